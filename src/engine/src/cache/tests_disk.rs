//! The disk cache as a reader sees it: which pieces are written in the background, and which requests the store gets.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::*;
use dali_zarr_stores::testing::{Server, publish};
use dali_zarr_stores::{self as store, Phase, block_on};

fn spec(dir: &Path, url: &str) -> Spec {
    Spec::default().with(|s| {
        s.source.paths = vec![url.to_owned()];
        s.resources.cache_dir = Some(dir.to_owned());
        s.resources.cache_dir_size = Some(100 << 20);
    })
}

fn open(spec: &Spec) -> (Arc<Cache>, Vec<Arc<dyn Store>>) {
    let stores = store::open(&spec.source.paths, &spec.source.storage_options, 1, store::ReadFiles::default()).unwrap();
    (Cache::open(spec, &stores).unwrap().unwrap(), stores)
}

/// Gets a whole value as a reader does. Returns its bytes, and the requests that the server got.
fn get(server: &Server, cache: &Cache, stores: &[Arc<dyn Store>], len: usize) -> (Vec<u8>, Vec<String>) {
    let store = &*stores[0];
    let permits = Semaphore::new(1);
    let name = cache.name(0, "k", ByteRange::Whole, len);
    let mut to = vec![0; len];
    server.log.lock().unwrap().clear();
    block_on(store, async {
        if cache.get_current_from_disk(&name, "k", store, &permits, &mut to).await.unwrap().is_none() {
            let found = store.read("k", ByteRange::Whole, None, Phase::Running, &mut to).await.unwrap().unwrap();
            cache.keep(&name, &found, &to);
        }
    });
    (to, server.log.lock().unwrap().clone())
}

#[test]
fn the_next_process_asks_once_for_each_object() {
    let server = Arc::new(Server::default());
    server.put("/store/k", vec![5; 3000]);
    let url = publish(&server);
    let dir = tempfile::tempdir().unwrap();
    let spec = spec(dir.path(), &url);
    let (cache, stores) = open(&spec);
    assert_eq!(get(&server, &cache, &stores, 3000), (vec![5; 3000], vec!["GET /store/k".to_owned()]));
    drop((cache, stores));

    let (cache, stores) = open(&spec);
    assert_eq!(get(&server, &cache, &stores, 3000), (vec![5; 3000], vec!["HEAD /store/k".to_owned()]));
    assert_eq!(get(&server, &cache, &stores, 3000), (vec![5; 3000], vec![]), "once");
    drop((cache, stores));

    let trusting = spec.clone().with(|s| s.resources.cache_validate = false);
    let (cache, stores) = open(&trusting);
    assert_eq!(get(&server, &cache, &stores, 3000), (vec![5; 3000], vec![]));
    drop((cache, stores));

    server.replace("/store/k");
    let (cache, stores) = open(&spec);
    let both = vec!["HEAD /store/k".to_owned(), "GET /store/k".to_owned()];
    assert_eq!(get(&server, &cache, &stores, 3000), (vec![!5; 3000], both), "replaced");
    drop((cache, stores));
    let (cache, stores) = open(&spec);
    assert_eq!(get(&server, &cache, &stores, 3000), (vec![!5; 3000], vec!["HEAD /store/k".to_owned()]));
    drop((cache, stores));

    // The same URL with other options is another store.
    let other = spec.with(|s| s.source.storage_options = vec![("user_agent".into(), "x".into())]);
    let (cache, stores) = open(&other);
    assert_eq!(get(&server, &cache, &stores, 3000).1, ["GET /store/k"]);
}

/// A server that answers before its client begins to wait.
struct Prompt {
    asks: bool,
}

#[async_trait]
impl Store for Prompt {
    fn location(&self) -> &'static str {
        "https://prompt.example/store"
    }
    fn latency(&self) -> Latency {
        Latency::Remote
    }
    fn head_needs_io(&self, _key: &str) -> bool {
        self.asks
    }
    async fn read(
        &self,
        key: &str,
        _: ByteRange,
        _: Option<&store::ObjectVersion>,
        _: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        to.fill(5);
        self.head(key).await
    }
    async fn get(&self, _key: &str, _max: u64, _: Phase) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
    async fn head(&self, _key: &str) -> Result<Option<Found>> {
        Ok(Some(Found { size: 100, version: Some(ObjectVersion::Tag("1".into())) }))
    }
    async fn children(&self, _prefix: &str) -> Result<Option<Vec<String>>> {
        Ok(None)
    }
}

#[test]
fn requests_for_versions_are_counted_however_fast_the_answer() {
    for asks in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let spec = spec(dir.path(), "https://prompt.example/store");
        for process in 0..2 {
            let stores: Vec<Arc<dyn Store>> = vec![Arc::new(Prompt { asks })];
            let cache = Cache::open(&spec, &stores).unwrap().unwrap();
            let (bytes, _) = get(&Server::default(), &cache, &stores, 100);
            let counted = cache.counters.disk_checks.load(Relaxed);
            assert_eq!((bytes, counted), (vec![5; 100], u64::from(process == 1 && asks)), "{asks}, {process}");
        }
    }
}

#[test]
fn pieces_of_versions_that_cannot_be_told_apart_are_not_kept() {
    let server = Arc::new(Server::anonymous());
    server.put("/store/k", vec![5; 3000]);
    let dir = tempfile::tempdir().unwrap();
    let spec = spec(dir.path(), &publish(&server));
    for _ in 0..2 {
        let (cache, stores) = open(&spec);
        assert_eq!(get(&server, &cache, &stores, 3000).1, ["GET /store/k"]);
    }
}

#[test]
fn what_waits_is_bounded_and_written_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = Arc::new(Server::default());
    let spec = spec(dir.path(), &publish(&server)).with(|s| s.resources.cache_dir_size = Some(1 << 30));
    let (cache, _stores) = open(&spec);
    let found = Found { size: 1, version: Some(ObjectVersion::Tag("\"v\"".into())) };
    let bytes = vec![1; 16 << 20];
    for number in 0..12 {
        cache.keep(&cache.name(0, &number.to_string(), ByteRange::Whole, 0), &found, &bytes);
    }
    let counters = Arc::clone(&cache.counters);
    drop(cache);
    let (written, dropped) = (counters.disk_writes.load(Relaxed), counters.disk_dropped.load(Relaxed));
    assert!(written >= 1 && written + dropped == 12, "{written} {dropped}");
    let (cache, _stores) = open(&spec);
    let mut to = vec![0; 16 << 20];
    let there = (0..12).filter(|number: &i32| {
        let name = cache.name(0, &number.to_string(), ByteRange::Whole, 0);
        cache.get_from_disk(&name, &ObjectVersion::Tag("\"v\"".into()), &mut to)
    });
    assert_eq!(there.count() as u64, written);
}

#[test]
fn arguments_that_make_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let good = spec(dir.path(), "http://localhost:1/s");
    let message = |spec: &Spec| check(spec).unwrap_err().message().to_owned();
    assert!(check(&good).is_ok() && check(&good.clone().with(|s| s.resources.cache_size = 1 << 20)).is_ok());
    assert!(
        message(&good.clone().with(|s| s.resources.cache_size = 64)).starts_with("cache_size: expected 0, or at least")
    );
    assert!(
        message(&good.clone().with(|s| s.resources.cache_dir_size = Some(9)))
            .starts_with("cache_dir_size: expected at least")
    );
    assert!(message(&good.clone().with(|s| s.resources.cache_dir = None)).contains("give cache_dir too"));
    assert!(message(&good.with(|s| s.source.paths = vec!["/data".into()])).contains("every path is local"));
}
