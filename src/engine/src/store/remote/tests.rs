//! What becomes of reads, whatever happens to their requests.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::fake::{Act, Random, Server, store_of, without_waiting};
use super::{Io, Part, RemoteStore};
use crate::error::{Error, Result};
use crate::store::{AsyncStore, Blocking, Phase, Store};

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

fn server(acts: &[Act]) -> Arc<Server> {
    let server = Server { acts: Mutex::new(acts.iter().copied().collect()), ..Server::default() };
    server.put("/store/k", value(5000));
    Arc::new(server)
}

fn read(server: &Arc<Server>, part: Part, len: usize) -> (Result<Option<u64>>, Vec<u8>, Vec<String>) {
    let io = Io::new(1).unwrap();
    let store = store_of(server, &io);
    let mut to = vec![0; len];
    let found = without_waiting(store.read("k", part, None, Phase::Running, &mut to)).map(|f| f.map(|f| f.size));
    (found, to, server.taken_log())
}

#[test]
fn each_read_is_one_request() {
    let all = value(5000);
    let cases = [
        (Part::Whole, 6000, 0..5000, "GET /store/k"),
        (Part::From(100), 50, 100..150, "GET /store/k bytes=100-149"),
        (Part::Last, 68, 4932..5000, "GET /store/k bytes=-68"),
    ];
    for (part, len, bytes, request) in cases {
        let (found, to, log) = read(&server(&[]), part, len);
        assert_eq!(found.unwrap(), Some(5000));
        assert_eq!((&to[..bytes.len()], log), (&all[bytes], vec![request.to_owned()]));
    }
    let (found, to, log) = read(&server(&[]), Part::Whole, 4999);
    assert_eq!((found.unwrap(), log.len()), (Some(5000), 1), "too long: the size tells");
    assert!(to.iter().all(|&b| b == 0));
    let (found, _, _) = read(&server(&[]), Part::Last, 5001);
    assert_eq!(found.unwrap(), Some(5000));
    let (found, _, _) = read(&server(&[]), Part::From(4990), 20);
    let error = found.unwrap_err();
    assert!(error.message().contains("bytes 4990 to 5010") && error.message().contains("5000 bytes"), "{error}");
}

#[test]
fn a_missing_key_is_none_and_other_refusals_are_errors() {
    let io = Io::new(1).unwrap();
    let server = server(&[]);
    let store = store_of(&server, &io);
    assert!(without_waiting(store.read("no", Part::Whole, None, Phase::Running, &mut [0; 9])).unwrap().is_none());
    for status in [400, 401, 403, 405, 410] {
        server.taken_log();
        server.acts.lock().unwrap().push_back(Act::Status(status));
        let error = without_waiting(store.read("k", Part::Whole, None, Phase::Running, &mut [0; 9])).unwrap_err();
        assert!(error.message().contains(&status.to_string()) && error.message().contains("\"k\""), "{error}");
        assert_eq!(server.taken_log().len(), 1, "{status} isn't asked again");
    }
}

#[test]
fn a_body_goes_on_where_it_broke_off() {
    for act in [Act::Cut(2500), Act::Short(2500), Act::Stall(2500)] {
        let (found, to, log) = read(&server(&[act]), Part::From(1000), 3000);
        assert_eq!(found.unwrap(), Some(5000));
        assert_eq!(to, value(5000)[1000..4000]);
        assert_eq!(log, ["GET /store/k bytes=1000-3999", "GET /store/k bytes=3500-3999"], "{act:?}");
    }
}

#[test]
fn a_server_that_refuses_to_go_on_is_asked_for_all() {
    for refusal in [403, 501] {
        let server = server(&[Act::Cut(2500), Act::Status(refusal)]);
        let (found, bytes, log) = read(&server, Part::Whole, 5000);
        assert_eq!((found.unwrap(), bytes), (Some(5000), value(5000)), "{log:?}");
        assert_eq!(log.len(), 3, "{log:?}");
    }
}

#[test]
fn versions_are_never_mixed() {
    let (found, to, log) = read(&server(&[Act::Replace(2500)]), Part::Whole, 5000);
    assert_eq!(found.unwrap(), Some(5000));
    assert_eq!(to, value(5000).iter().map(|b| !b).collect::<Vec<_>>());
    assert_eq!(log.len(), 3, "the rest of the old one is refused, the new one read: {log:?}");
    // Without any sign of the version a body is begun again.
    let anonymous = Server { anonymous: true, acts: Mutex::new([Act::Cut(2500)].into()), ..Server::default() };
    anonymous.put("/store/k", value(5000));
    let (found, to, log) = read(&Arc::new(anonymous), Part::Whole, 5000);
    assert_eq!((found.unwrap(), to), (Some(5000), value(5000)));
    assert_eq!(log, ["GET /store/k", "GET /store/k"]);
    // A chunk whose place an index told of must be of the index's version.
    let io = Io::new(1).unwrap();
    let server = server(&[Act::Replace(0)]);
    let store = store_of(&server, &io);
    let error = without_waiting(store.read("k", Part::From(0), Some(&Arc::from("\"0\"")), Phase::Running, &mut [0; 9]))
        .unwrap_err();
    assert!(error.message().contains("replaced since its index was read"), "{error}");
}

#[test]
fn dates_tell_versions_apart_where_there_are_no_tags() {
    let io = Io::new(1).unwrap();
    let server = Server { anonymous: true, dated: true, ..Server::default() };
    server.put("/store/k", value(5000));
    let server = Arc::new(server);
    let store = store_of(&server, &io);
    let index = without_waiting(store.read("k", Part::Last, None, Phase::Running, &mut [0; 100])).unwrap().unwrap();
    let chunk = || without_waiting(store.read("k", Part::From(7), index.version.as_ref(), Phase::Running, &mut [0; 9]));
    assert_eq!(chunk().unwrap().unwrap().size, 5000);
    server.versions.lock().unwrap().insert("/store/k".to_owned(), 1);
    let error = chunk().unwrap_err();
    assert!(error.message().contains("replaced since its index was read"), "{error}");
}

#[test]
fn the_last_error_tells_the_whole_story() {
    let (found, _, log) = read(&server(&[Act::Status(503); 20]), Part::From(7), 9);
    let error = found.unwrap_err();
    for part in ["http://fake/store", "\"k\"", "bytes 7 to 16", "11 tries failed within", "503"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert_eq!(log.len(), 11);
}

#[test]
fn a_slow_answer_is_raced() {
    let io = Io::new(1).unwrap();
    let server = server(&[]);
    let store = store_of(&server, &io);
    without_waiting(async {
        let mut to = vec![0; 5000];
        for _ in 0..100 {
            server.acts.lock().unwrap().push_back(Act::Delay(Duration::from_millis(40)));
            store.read("k", Part::Whole, None, Phase::Running, &mut to).await.unwrap();
        }
        to.fill(0);
        server.acts.lock().unwrap().push_back(Act::Silence);
        let began = tokio::time::Instant::now();
        store.read("k", Part::Whole, None, Phase::Running, &mut to).await.unwrap();
        assert_eq!(to, value(5000));
        assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
    });
    assert_eq!(io.counters.hedges.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(io.counters.requests.load(std::sync::atomic::Ordering::Relaxed), 102);
}

#[test]
fn thousands_of_schedules_end_in_right_bytes_or_an_error_in_time() {
    let io = Io::new(1).unwrap();
    let (old, new) = (value(5000), value(5000).iter().map(|b| !b).collect::<Vec<_>>());
    let (mut right, mut wrong, mut missing) = (0, 0, 0);
    for seed in 0..6000 {
        let mut random = Random(seed);
        let acts: Vec<Act> = (0..random.below(16)).map(|_| random.act(5000)).collect();
        let (part, bytes) = match random.below(3) {
            0 => (Part::Whole, 0..5000),
            1 => {
                let from = random.below(4999) as usize;
                (Part::From(from as u64), from..from + 1 + random.below(4999 - from as u64) as usize)
            }
            _ => (Part::Last, 5000 - 1 - random.below(4999) as usize..5000),
        };
        let server = server(&acts);
        let store = store_of(&server, &io);
        let mut to = vec![0; bytes.len()];
        let (found, time) = without_waiting(async {
            let began = tokio::time::Instant::now();
            (store.read("k", part, None, Phase::Running, &mut to).await, began.elapsed())
        });
        // The total, one more request, and its second.
        assert!(time <= store.policy.total + 2 * store.policy.request, "seed {seed}: {time:?}");
        match found {
            Ok(Some(found)) => {
                assert_eq!(found.size, 5000);
                assert!(to == old[bytes.clone()] || to == new[bytes], "seed {seed}: bytes of two versions");
                right += 1;
            }
            // A store that says 404 is believed, once there was nothing else.
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
    let io = Io::new(1).unwrap();
    let store = Blocking::new(Arc::new(store_of(&server, &io)));
    assert_eq!(store.get("k", 5000).unwrap().unwrap(), value(5000));
    let error: Error = store.get("k", 4999).unwrap_err();
    assert!(error.message().contains("at most 4999 bytes, but found 5000"), "{error}");
    assert!(store.exists("k").unwrap() && !store.exists("no").unwrap());
    assert_eq!(store.children("").unwrap(), None);
    let found = store.get_many(&["no".into(), "k".into()], 5000);
    assert!(found[0].as_ref().unwrap().is_none() && found[1].as_ref().unwrap().is_some());
}

#[test]
fn what_is_there_is_asked_after_once_in_a_while() {
    let server = server(&[]);
    let io = Io::new(1).unwrap();
    let store = store_of(&server, &io);
    without_waiting(async {
        for _ in 0..5 {
            assert!(store.confirm("k").await.unwrap());
        }
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(store.confirm("k").await.unwrap() && !store.confirm("no").await.unwrap());
    });
    assert_eq!(server.taken_log(), ["HEAD /store/k", "HEAD /store/k", "HEAD /store/no"]);
}

#[test]
fn a_failure_is_one_for_all_who_wait_for_it() {
    let server = server(&[Act::Status(503); 100]);
    let io = Io::new(1).unwrap();
    let store = store_of(&server, &io);
    let (first, second) = without_waiting(async {
        let all = || futures_util::future::join_all((0..8).map(|_| store.confirm("k")));
        let failed = all().await;
        assert!(failed.iter().all(|f| f.as_ref().is_err_and(|e| e.message().contains("503"))), "{failed:?}");
        let first = server.taken_log().len();
        // Who comes later asks anew.
        assert!(all().await.iter().all(Result::is_err));
        (first, server.taken_log().len())
    });
    assert_eq!(first, second);
    assert!((2..20).contains(&first), "{first} tries of one who asks");
}

#[test]
fn servers_that_refuse_head_are_asked_otherwise() {
    let io = Io::new(1).unwrap();
    for status in [403, 405, 501] {
        for without_ranges in [false, true] {
            let server = Server { refuses_head: Some(status), without_ranges, ..Server::default() };
            server.put("/store/k", value(5000));
            server.put("/store/nothing", Vec::new());
            let server = Arc::new(server);
            let store = store_of(&server, &io);
            let ask = |key| without_waiting(store.head(key)).map(|found| found.map(|f| (f.size, f.version)));
            let tag = Some("\"0\"".into());
            assert_eq!(ask("k").unwrap(), Some((5000, tag.clone())), "{status}");
            let log = server.taken_log();
            let ways = ["HEAD /store/k", "GET /store/k bytes=0-0", "GET /store/k"];
            assert_eq!(log, &ways[..if without_ranges { 3 } else { 2 }]);
            assert_eq!(ask("no").unwrap(), None);
            assert_eq!(ask("nothing").unwrap().map(|f| f.0), Some(0));
            assert_eq!(server.taken_log().iter().filter(|l| l.starts_with("GET")).count(), 2, "it is remembered");
            // What is asked while bytes are read: none of them.
            let none = without_waiting(store.read("k", Part::From(9), None, Phase::Running, &mut [])).unwrap();
            assert_eq!(none.map(|f| (f.size, f.version)), Some((5000, tag)));
            assert!(without_waiting(store.confirm("k")).unwrap() && !without_waiting(store.confirm("no")).unwrap());
        }
    }
    // One value that nobody gets says nothing of the next; nor does an outage.
    let server = server(&[Act::Status(403), Act::Status(403), Act::Status(503), Act::Answer]);
    let store = store_of(&server, &io);
    assert!(without_waiting(store.head("k")).unwrap_err().message().contains("403"));
    assert_eq!(without_waiting(store.head("k")).unwrap().map(|f| f.size), Some(5000));
    let log = server.taken_log();
    assert_eq!(log, ["HEAD /store/k", "GET /store/k bytes=0-0", "HEAD /store/k", "HEAD /store/k"]);
}

#[test]
fn locations_that_are_refused() {
    let io = Io::new(1).unwrap();
    for (location, part) in [
        ("http://me:hunter2@host/store", "without user and password"),
        ("https://host/store?sig=hunter2", "without query"),
        ("ftp://host/store", "the scheme \"ftp\""),
        ("s3://", "bucket"),
        ("http://host/a/../../b%00", ""),
    ] {
        let Err(error) = RemoteStore::open(location, &[], Arc::clone(&io)) else { panic!("{location} was opened") };
        assert!(error.message().contains(part) && !error.message().contains("hunter2"), "{error}");
    }
    for (location, option) in [("http://host/x", "aws_region"), ("s3://b/x", "nonsense"), ("gs://b/x", "aws_region")] {
        let options = [(option.to_owned(), "x".to_owned())];
        let error = RemoteStore::open(location, &options, Arc::clone(&io)).err().unwrap();
        assert!(error.message().contains(option) && error.message().contains("isn't an option"), "{error}");
    }
}
