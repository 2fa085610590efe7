//! Tests of the configuration of containers with names (`named-v1`, `named-v2`, see [`super::testing`]). Tests of the engine
//! read their chunks.

use super::testing::{URL, corpus};
use super::*;
use crate::object::fake::Random;
use crate::{LocalStore, ReadFiles, block_on};

#[test]
fn damaged_configurations_are_errors() {
    let base: Arc<dyn Store> =
        Arc::new(LocalStore::open(corpus("named-v2").to_str().unwrap(), ReadFiles::default()).unwrap());
    let (_, config) = block_on(&*base, refs::resolve(&*base, &Version::default())).unwrap().unwrap();
    let config = config.unwrap();
    let found = Containers::of_repo(&config).unwrap();
    assert_eq!(found.url("vcc://cont/a").as_deref(), Some(&*format!("{URL}a")));
    assert_eq!(found.url("vcc://far/a").as_deref(), Some("s3://other/x/a"));
    for len in 0..config.len() {
        let _ = Containers::of_repo(&config[..len]);
    }
    let mut random = Random(3);
    let mut bad = 0;
    for _ in 0..30_000 {
        let mut damaged = config.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.below(256) as u8;
        }
        bad += usize::from(Containers::of_repo(&damaged).is_err());
    }
    assert!(bad > 500, "{bad}");
}
