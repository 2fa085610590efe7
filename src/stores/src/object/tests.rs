//! Tests the outcome of reads with any fault of their requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::RemoteStore;
use super::fake::{Act, Random, Server, store_of, without_waiting};
use crate::{ByteRange, ObjectVersion, Phase, Runtime, Store, block_on, get_many};
use dali_zarr_base::error::{Code, Error, Result};

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

fn server(acts: &[Act]) -> Arc<Server> {
    let server = Server { acts: Mutex::new(acts.iter().copied().collect()), ..Server::default() };
    server.put("/store/k", value(5000));
    Arc::new(server)
}

fn read(server: &Arc<Server>, range: ByteRange, len: usize) -> (Result<Option<u64>>, Vec<u8>, Vec<String>) {
    let runtime = Runtime::new(1).unwrap();
    let store = store_of(server, &runtime);
    let mut to = vec![0; len];
    let found = without_waiting(store.read("k", range, None, Phase::Running, &mut to)).map(|f| f.map(|f| f.size));
    (found, to, server.taken_log())
}

#[test]
fn each_read_is_one_request() {
    let all = value(5000);
    let cases = [
        (ByteRange::Whole, 6000, 0..5000, "GET /store/k"),
        (ByteRange::From(100), 50, 100..150, "GET /store/k bytes=100-149"),
        (ByteRange::Last, 68, 4932..5000, "GET /store/k bytes=-68"),
    ];
    for (range, len, bytes, request) in cases {
        let (found, to, log) = read(&server(&[]), range, len);
        assert_eq!(found.unwrap(), Some(5000));
        assert_eq!((&to[..bytes.len()], log), (&all[bytes], vec![request.to_owned()]));
    }
    let (found, to, log) = read(&server(&[]), ByteRange::Whole, 4999);
    assert_eq!((found.unwrap(), log.len()), (Some(5000), 1), "too long: the size tells");
    assert!(to.iter().all(|&b| b == 0));
    let (found, _, _) = read(&server(&[]), ByteRange::Last, 5001);
    assert_eq!(found.unwrap(), Some(5000));
    let (found, _, _) = read(&server(&[]), ByteRange::From(4990), 20);
    let error = found.unwrap_err();
    assert!(error.message().contains("bytes 4990 to 5010") && error.message().contains("5000 bytes"), "{error}");
}

#[test]
fn a_missing_key_is_none_and_other_refusals_are_errors() {
    let runtime = Runtime::new(1).unwrap();
    let server = server(&[]);
    let store = store_of(&server, &runtime);
    assert!(without_waiting(store.read("no", ByteRange::Whole, None, Phase::Running, &mut [0; 9])).unwrap().is_none());
    for status in [400, 401, 403, 405, 410] {
        server.taken_log();
        server.acts.lock().unwrap().push_back(Act::Status(status));
        let error = without_waiting(store.read("k", ByteRange::Whole, None, Phase::Running, &mut [0; 9])).unwrap_err();
        assert!(error.message().contains(&status.to_string()) && error.message().contains("\"k\""), "{error}");
        let code = if matches!(status, 401 | 403) { Code::PermissionDenied } else { Code::Failed };
        assert_eq!(error.code(), code, "{status}");
        assert_eq!(server.taken_log().len(), 1, "{status} isn't asked again");
    }
}

#[test]
fn a_body_goes_on_where_it_broke_off() {
    for act in [Act::Cut(2500), Act::Short(2500), Act::Stall(2500)] {
        let (found, to, log) = read(&server(&[act]), ByteRange::From(1000), 3000);
        assert_eq!(found.unwrap(), Some(5000));
        assert_eq!(to, value(5000)[1000..4000]);
        assert_eq!(log, ["GET /store/k bytes=1000-3999", "GET /store/k bytes=3500-3999"], "{act:?}");
    }
}

#[test]
fn a_server_that_refuses_to_go_on_is_asked_for_all() {
    for refusal in [403, 501] {
        let server = server(&[Act::Cut(2500), Act::Status(refusal)]);
        let (found, bytes, log) = read(&server, ByteRange::Whole, 5000);
        assert_eq!((found.unwrap(), bytes), (Some(5000), value(5000)), "{log:?}");
        assert_eq!(log.len(), 3, "{log:?}");
    }
}

#[test]
fn versions_are_never_mixed() {
    let (found, to, log) = read(&server(&[Act::Replace(2500)]), ByteRange::Whole, 5000);
    assert_eq!(found.unwrap(), Some(5000));
    assert_eq!(to, value(5000).iter().map(|b| !b).collect::<Vec<_>>());
    assert_eq!(log.len(), 3, "the rest of the old one is refused, the new one read: {log:?}");
    // If answers have neither a tag nor a date, a broken body is read again from its beginning.
    let anonymous = Server { anonymous: true, acts: Mutex::new([Act::Cut(2500)].into()), ..Server::default() };
    anonymous.put("/store/k", value(5000));
    let (found, to, log) = read(&Arc::new(anonymous), ByteRange::Whole, 5000);
    assert_eq!((found.unwrap(), to), (Some(5000), value(5000)));
    assert_eq!(log, ["GET /store/k", "GET /store/k"]);
    // A chunk that was found in an index must have the index's version.
    let runtime = Runtime::new(1).unwrap();
    let server = server(&[Act::Replace(0)]);
    let store = store_of(&server, &runtime);
    let error = without_waiting(store.read(
        "k",
        ByteRange::From(0),
        Some(&ObjectVersion::Tag("\"0\"".into())),
        Phase::Running,
        &mut [0; 9],
    ))
    .unwrap_err();
    assert!(error.message().contains("replaced since its index was read"), "{error}");
    assert_eq!(error.code(), Code::Replaced);
}

#[test]
fn dates_tell_versions_apart_where_there_are_no_tags() {
    let runtime = Runtime::new(1).unwrap();
    let server = Server { anonymous: true, dated: true, ..Server::default() };
    server.put("/store/k", value(5000));
    let server = Arc::new(server);
    let store = store_of(&server, &runtime);
    let index =
        without_waiting(store.read("k", ByteRange::Last, None, Phase::Running, &mut [0; 100])).unwrap().unwrap();
    let chunk =
        || without_waiting(store.read("k", ByteRange::From(7), index.version.as_ref(), Phase::Running, &mut [0; 9]));
    assert_eq!(chunk().unwrap().unwrap().size, 5000);
    server.versions.lock().unwrap().insert("/store/k".to_owned(), 1);
    let error = chunk().unwrap_err();
    assert!(error.message().contains("replaced since its index was read"), "{error}");
}

#[test]
fn the_last_error_tells_the_whole_story() {
    let (found, _, log) = read(&server(&[Act::Status(503); 20]), ByteRange::From(7), 9);
    let error = found.unwrap_err();
    for part in ["http://fake/store", "\"k\"", "bytes 7 to 16", "11 tries failed within", "503"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert_eq!(log.len(), 11);
}

#[test]
fn a_slow_answer_is_raced() {
    let runtime = Runtime::new(1).unwrap();
    let server = server(&[]);
    let store = store_of(&server, &runtime);
    without_waiting(async {
        let mut to = vec![0; 5000];
        for _ in 0..100 {
            server.acts.lock().unwrap().push_back(Act::Delay(Duration::from_millis(40)));
            store.read("k", ByteRange::Whole, None, Phase::Running, &mut to).await.unwrap();
        }
        to.fill(0);
        server.acts.lock().unwrap().push_back(Act::Silence);
        let began = tokio::time::Instant::now();
        store.read("k", ByteRange::Whole, None, Phase::Running, &mut to).await.unwrap();
        assert_eq!(to, value(5000));
        assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
    });
    assert_eq!(runtime.counters.hedges.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(runtime.counters.requests.load(std::sync::atomic::Ordering::Relaxed), 102);
}

#[test]
fn thousands_of_schedules_end_in_right_bytes_or_an_error_in_time() {
    let runtime = Runtime::new(1).unwrap();
    let (old, new) = (value(5000), value(5000).iter().map(|b| !b).collect::<Vec<_>>());
    let (mut right, mut wrong, mut missing) = (0, 0, 0);
    for seed in 0..6000 {
        let mut random = Random(seed);
        let acts: Vec<Act> = (0..random.below(16)).map(|_| random.act(5000)).collect();
        let (range, bytes) = match random.below(3) {
            0 => (ByteRange::Whole, 0..5000),
            1 => {
                let from = random.below(4999) as usize;
                (ByteRange::From(from as u64), from..from + 1 + random.below(4999 - from as u64) as usize)
            }
            _ => (ByteRange::Last, 5000 - 1 - random.below(4999) as usize..5000),
        };
        let server = server(&acts);
        let store = store_of(&server, &runtime);
        let mut to = vec![0; bytes.len()];
        let (found, time) = without_waiting(async {
            let began = tokio::time::Instant::now();
            (store.read("k", range, None, Phase::Running, &mut to).await, began.elapsed())
        });
        // The total time, then one more request, and one after it if the server refuses to resume.
        assert!(time <= store.policy.total + 2 * store.policy.request, "seed {seed}: {time:?}");
        match found {
            Ok(Some(found)) => {
                assert_eq!(found.size, 5000);
                assert!(to == old[bytes.clone()] || to == new[bytes], "seed {seed}: bytes of two versions");
                right += 1;
            }
            // A 404 is believed if no body began to arrive before it.
            Ok(None) => {
                assert!(acts.contains(&Act::Status(404)), "seed {seed}");
                missing += 1;
            }
            Err(e) => {
                assert!(e.message().contains("\"k\"") && e.message().contains("can't be read"), "seed {seed}: {e}");
                wrong += 1;
            }
        }
    }
    assert!(right > 3000 && wrong > 100 && missing > 20, "{right} right, {wrong} wrong, {missing} missing");
}

#[test]
fn blocking_calls_and_metadata() {
    let server = server(&[]);
    let runtime = Runtime::new(1).unwrap();
    let store = &store_of(&server, &runtime);
    let get = |max| block_on(store, store.get("k", max, Phase::Building));
    assert_eq!(get(5000).unwrap().unwrap(), value(5000));
    let error: Error = get(4999).unwrap_err();
    assert!(error.message().contains("at most 4999 bytes, but found 5000"), "{error}");
    let exists = |key| block_on(store, store.exists(key)).unwrap();
    assert!(exists("k") && !exists("no"));
    assert_eq!(block_on(store, store.children("")).unwrap(), None);
    let found = get_many(store, &["no".into(), "k".into()], 5000);
    assert!(found[0].as_ref().unwrap().is_none() && found[1].as_ref().unwrap().is_some());
}

#[test]
fn what_is_there_is_asked_after_once_in_a_while() {
    let server = server(&[]);
    let runtime = Runtime::new(1).unwrap();
    let store = store_of(&server, &runtime);
    without_waiting(async {
        for _ in 0..5 {
            assert!(store.exists("k").await.unwrap());
        }
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(store.exists("k").await.unwrap() && !store.exists("no").await.unwrap());
    });
    assert_eq!(server.taken_log(), ["HEAD /store/k", "HEAD /store/k", "HEAD /store/no"]);
}

#[test]
fn a_failure_is_one_for_all_who_wait_for_it() {
    let server = server(&[Act::Status(503); 100]);
    let runtime = Runtime::new(1).unwrap();
    let store = store_of(&server, &runtime);
    let (first, second) = without_waiting(async {
        let all = || futures_util::future::join_all((0..8).map(|_| store.exists("k")));
        let failed = all().await;
        assert!(failed.iter().all(|f| f.as_ref().is_err_and(|e| e.message().contains("503"))), "{failed:?}");
        let first = server.taken_log().len();
        // Tasks that come later send a request of their own.
        assert!(all().await.iter().all(Result::is_err));
        (first, server.taken_log().len())
    });
    assert_eq!(first, second);
    assert!((2..20).contains(&first), "{first} tries of one who asks");
}

#[test]
fn servers_that_refuse_head_are_asked_otherwise() {
    let runtime = Runtime::new(1).unwrap();
    for status in [403, 405, 501] {
        for without_ranges in [false, true] {
            let server = Server { refuses_head: Some(status), without_ranges, ..Server::default() };
            server.put("/store/k", value(5000));
            server.put("/store/nothing", Vec::new());
            let server = Arc::new(server);
            let store = store_of(&server, &runtime);
            let ask = |key| without_waiting(store.head(key)).map(|found| found.map(|f| (f.size, f.version)));
            let tag = Some(ObjectVersion::Tag("\"0\"".into()));
            assert_eq!(ask("k").unwrap(), Some((5000, tag.clone())), "{status}");
            let log = server.taken_log();
            let ways = ["HEAD /store/k", "GET /store/k bytes=0-0", "GET /store/k"];
            assert_eq!(log, &ways[..if without_ranges { 3 } else { 2 }]);
            assert_eq!(ask("no").unwrap(), None);
            assert_eq!(ask("nothing").unwrap().map(|f| f.0), Some(0));
            assert_eq!(server.taken_log().iter().filter(|l| l.starts_with("GET")).count(), 2, "it is remembered");
            // A read of zero bytes asks for size and version in the same way.
            let none = without_waiting(store.read("k", ByteRange::From(9), None, Phase::Running, &mut [])).unwrap();
            assert_eq!(none.map(|f| (f.size, f.version)), Some((5000, tag)));
            assert!(without_waiting(store.exists("k")).unwrap() && !without_waiting(store.exists("no")).unwrap());
        }
    }
    // A server that refuses every method for one value, or is down, changes nothing for the next value.
    let server = server(&[Act::Status(403), Act::Status(403), Act::Status(503), Act::Answer]);
    let store = store_of(&server, &runtime);
    assert!(without_waiting(store.head("k")).unwrap_err().message().contains("403"));
    assert_eq!(without_waiting(store.head("k")).unwrap().map(|f| f.size), Some(5000));
    let log = server.taken_log();
    assert_eq!(log, ["HEAD /store/k", "GET /store/k bytes=0-0", "HEAD /store/k", "HEAD /store/k"]);
}

#[test]
fn locations_that_are_refused() {
    let runtime = Runtime::new(1).unwrap();
    for (location, part) in [
        ("http://me:hunter2@host/store", "without user and password"),
        ("https://host/store?sig=hunter2", "without query"),
        ("ftp://host/store", "the scheme \"ftp\""),
        ("s3://", "bucket"),
    ] {
        let Err(error) = RemoteStore::open(location, &[], Arc::clone(&runtime)) else {
            panic!("{location} was opened")
        };
        assert!(error.message().contains(part) && !error.message().contains("hunter2"), "{error}");
    }
    for (location, option) in [("http://host/x", "aws_region"), ("s3://b/x", "nonsense"), ("gs://b/x", "aws_region")] {
        let options = [(option.to_owned(), "x".to_owned())];
        let error = RemoteStore::open(location, &options, Arc::clone(&runtime)).err().unwrap();
        assert!(error.message().contains(option) && error.message().contains("isn't an option"), "{error}");
    }
}
