//! Tests of virtual chunks in containers with names, in repositories that Icechunk 2.3 wrote (`named-v1`, `named-v2` in
//! `tests/corpus/icechunk`): with the configuration as YAML and in the file `repo`.
//!
//! The container `cont` is a folder whose name has 99 x, which the tests replace by a folder of their own. `a` has 8x4
//! int32 in two chunks in it. The second chunk of `up` is the same, the first has `..` in its path. The chunks of `lost`
//! are in a container that there isn't, those of `far` in one on S3.

use std::path::{Path, PathBuf};

use super::tests::{corpus, files, values};
use super::*;
use crate::store::object::fake::Random;
use crate::store::{LocalStore, ReadFiles, block_on};

const URL: &str =
    "file:///xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/";
const MAIN: [&str; 2] = ["named-v1", "named-v2"];

/// Returns the file `repo` with its content in the plain.
fn plain(repo: &[u8]) -> Vec<u8> {
    let (_, content) = file::open(repo, file::Kind::Repository).unwrap();
    let mut header = repo[..39].to_vec();
    header[38] = 0;
    [header, content].concat()
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(from) {
            out.extend_from_slice(to);
            at += from.len();
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

/// Copies a repository of the corpus to `folder`, and makes the container, whose URL is returned.
fn copied(name: &str, folder: &Path) -> (PathBuf, String) {
    let begin = format!("file://{}/", folder.to_str().unwrap());
    let inner = "y".repeat(URL.len() - begin.len() - 1);
    let (url, places) = (format!("{begin}{inner}/"), folder.join(&inner));
    std::fs::create_dir_all(places.join("sub dir")).unwrap();
    let numbers = |from: i32| (from..from + 16).flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
    std::fs::write(places.join("sub dir/ü .bin"), [b"HEAD".to_vec(), numbers(0)].concat()).unwrap();
    std::fs::write(places.join("b.bin"), [b"HEAD".to_vec(), numbers(16)].concat()).unwrap();
    let repository = folder.join(name);
    for (key, bytes) in files(&corpus(name)) {
        let bytes = if key == "repo" { plain(&bytes) } else { bytes };
        let path = repository.join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, replaced(&bytes, URL.as_bytes(), url.as_bytes())).unwrap();
    }
    (repository, url)
}

#[test]
fn chunks_in_named_containers_are_read_where_that_is_allowed() {
    let expected: Vec<[u8; 4]> = (0..32i32).map(i32::to_le_bytes).collect();
    for name in MAIN {
        let folder = tempfile::tempdir().unwrap();
        let (repository, url) = copied(name, folder.path());
        let path = repository.to_str().unwrap();
        let allowed = [("virtual_chunks", &*url)];
        assert_eq!(values(path, "a", &allowed).unwrap(), expected, "{name}");
        assert_eq!(values(path, "native", &[]).unwrap(), expected, "{name}");
        for (array, options, words) in [
            ("a", &[][..], &["a virtual one, at file://", "storage_options={\"virtual_chunks\": \"file://"][..]),
            ("a", &[("virtual_chunks", "file:///usr/")], &["a virtual one, at file://"]),
            ("up", &allowed, &["\"..\" isn't read"]),
            ("lost", &allowed, &["found vcc://none/b.bin", "no container with the name \"none\""]),
            ("far", &allowed, &["a virtual one, at s3://other/x/b.bin"]),
            ("a", &[("virtual_chunks", "vcc://cont/")], &["found vcc://cont/", "url_prefix"]),
        ] {
            let error = values(path, array, options).unwrap_err();
            assert!(words.iter().all(|word| error.message().contains(word)), "{name}, {array}: {error}");
        }
    }
}

#[test]
fn the_configuration_is_read_when_it_is_needed() {
    for name in MAIN {
        let folder = tempfile::tempdir().unwrap();
        let (repository, url) = copied(name, folder.path());
        std::fs::remove_file(repository.join("config.yaml")).ok();
        let path = repository.to_str().unwrap();
        assert!(values(path, "native", &[]).is_ok(), "{name}");
        let read = values(path, "a", &[("virtual_chunks", &url)]);
        assert_eq!(read.is_ok(), name == "named-v2", "{name}");
    }
}

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
