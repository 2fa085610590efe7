//! Checks what [`Store`] promises, for all kinds of stores, over the same values.

use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::object::fake::{Server, publish};
use super::*;

/// The Icechunk repository that is read here: arrays `a` and `deep/b`, with chunks in objects and inline.
const REPOSITORY: &str = "../../tests/corpus/icechunk/v2";

fn values() -> Vec<(&'static str, Vec<u8>)> {
    let value = |len: usize| (0..len).map(|i| (i * 31 % 251) as u8).collect();
    vec![("zarr.json", value(40)), ("a/c/0/0", value(5000)), ("a/c/0/1", value(150_000)), ("a/empty", vec![])]
}

fn write(folder: &Path, values: &[(&str, Vec<u8>)]) {
    for (key, value) in values {
        std::fs::create_dir_all(folder.join(key).parent().unwrap()).unwrap();
        std::fs::write(folder.join(key), value).unwrap();
    }
}

/// Makes a zip archive of stored entries: local headers, data, the directory, the end record.
fn archive(values: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (key, value) in values {
        let mut common = [20u16, 0x800, 0, 0, 0].map(u16::to_le_bytes).concat();
        common.extend([crc32fast::hash(value), value.len() as u32, value.len() as u32].map(u32::to_le_bytes).concat());
        common.extend([key.len() as u16, 0].map(u16::to_le_bytes).concat());
        directory.extend([b"PK\x01\x02\x14\0", &common[..], &[0; 10]].concat());
        directory.extend((out.len() as u32).to_le_bytes());
        directory.extend(key.as_bytes());
        out.extend([b"PK\x03\x04", &common[..], key.as_bytes(), value].concat());
    }
    let (at, len, n) = (out.len() as u32, directory.len() as u32, values.len() as u16);
    out.extend(directory);
    out.extend([b"PK\x05\x06\0\0\0\0", &[n, n].map(u16::to_le_bytes).concat()[..]].concat());
    out.extend([len, at].map(u32::to_le_bytes).concat());
    out.extend([0, 0]);
    out
}

fn served(values: &[(&str, Vec<u8>)], root: &str) -> String {
    let server = std::sync::Arc::new(Server::default());
    values.iter().for_each(|(key, value)| server.put(&format!("{root}{key}"), value.clone()));
    publish(&server)
}

fn opened(location: &str) -> Arc<dyn Store> {
    open(&[location.to_owned()], &[], 1, ReadFiles::default()).unwrap().remove(0)
}

fn read(store: &dyn Store, key: &str, range: ByteRange, to: &mut [u8]) -> Result<Option<Found>> {
    block_on(store, store.read(key, range, None, Phase::Running, to))
}

/// Takes all bytes of a stream.
#[derive(Default)]
struct Taken(Vec<u8>);

impl Sink for Taken {
    fn begin(&mut self) {
        self.0.clear();
    }
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.extend(bytes);
        Ok(())
    }
}

/// Checks all promises for one value.
fn keeps_its_promises(store: &dyn Store, key: &str, value: &[u8]) {
    let what = format!("{}, {key}", store.location());
    let size = value.len() as u64;
    let mut to = vec![7; value.len() + 3];
    let found = read(store, key, ByteRange::Whole, &mut to).unwrap().unwrap();
    assert_eq!((found.size, &to[..value.len()], &to[value.len()..]), (size, value, &[7; 3][..]), "{what}");
    let get = |max| block_on(store, store.get(key, max, Phase::Building));
    assert_eq!(get(size).unwrap().unwrap(), value, "{what}");
    assert_eq!(block_on(store, store.head(key)).unwrap().unwrap().size, size, "{what}");
    if size < 3 {
        return;
    }
    let error = get(size - 1).unwrap_err();
    assert!(error.message().contains(&format!("expected at most {} bytes, but found {size}", size - 1)), "{error}");
    let mut short = vec![7; value.len() - 2];
    for range in [ByteRange::Whole, ByteRange::From(1), ByteRange::Last] {
        short.fill(7);
        assert_eq!(read(store, key, range, &mut short).unwrap().unwrap().size, size, "{what}, {range:?}");
        match range {
            ByteRange::Whole => assert!(short.iter().all(|&b| b == 7), "{what}: nothing is read of a longer value"),
            ByteRange::From(_) => assert_eq!(short, value[1..value.len() - 1], "{what}"),
            ByteRange::Last => assert_eq!(short, value[2..], "{what}"),
        }
    }
    assert_eq!(read(store, key, ByteRange::Last, &mut to).unwrap().unwrap().size, size, "{what}: too short for it");
    let error = read(store, key, ByteRange::From(3), &mut short).unwrap_err();
    assert!(error.message().contains(store.location()) && error.message().contains(key), "{error}");
    // The next read accepts the version that a read returned, and `head` returns the same version.
    let first = read(store, key, ByteRange::From(0), &mut short).unwrap().unwrap();
    let again = store.read(key, ByteRange::From(1), first.version.as_ref(), Phase::Running, &mut short);
    assert_eq!(block_on(store, again).unwrap().unwrap().version, first.version, "{what}");
    assert_eq!(block_on(store, store.head(key)).unwrap().unwrap().version, first.version, "{what}");
    let mut taken = Taken::default();
    let stream = store.stream(key, 1..size, first.version.as_ref(), Phase::Running, &mut taken);
    assert_eq!(block_on(store, stream).unwrap().unwrap().size, size, "{what}");
    assert_eq!(taken.0, value[1..], "{what}");
    if let Some(extent) = store.locate(key) {
        assert_eq!(extent.len, size, "{what}");
        let mut bytes = vec![0; value.len()];
        block_on(store, store.read_extent(&extent, Phase::Running, &mut bytes)).unwrap().unwrap();
        assert_eq!(bytes, value, "{what}");
    }
}

#[test]
fn all_kinds_of_stores_keep_the_same_promises() {
    let folder = tempfile::tempdir().unwrap();
    let values = values();
    write(&folder.path().join("directory"), &values);
    let zip = folder.path().join("archive.zip");
    std::fs::write(&zip, archive(&values)).unwrap();
    let remote = served(&values, "/store/");
    let remote_zip = {
        let server = Arc::new(Server::default());
        let url = publish(&server);
        server.put("/store", archive(&values));
        let base: Arc<dyn Store> = opened(&url);
        Arc::new(Zip::open_in(&base, "").unwrap()) as Arc<dyn Store>
    };
    let local = |path: &Path| opened(path.to_str().unwrap());
    let stores = [
        (local(&folder.path().join("directory")), Latency::Local),
        (local(&zip), Latency::Local),
        (opened(&remote), Latency::Remote),
        (remote_zip, Latency::Remote),
    ];
    for (store, latency) in stores {
        assert_eq!((store.latency(), store.runtime().is_some()), (latency, latency == Latency::Remote));
        for (key, value) in &values {
            keeps_its_promises(&*store, key, value);
            assert!(block_on(&*store, store.exists(key)).unwrap());
        }
        for missing in ["a/c/0/9", "b", "a"] {
            let key = if missing == "a" && store.has_files() { "a/c/0/0/below" } else { missing };
            assert!(read(&*store, key, ByteRange::Whole, &mut [0; 9]).unwrap().is_none(), "{}", store.location());
            assert!(block_on(&*store, store.get(key, 9, Phase::Building)).unwrap().is_none());
            assert!(block_on(&*store, store.head(key)).unwrap().is_none());
            assert!(!block_on(&*store, store.exists(key)).unwrap());
        }
        let keys = [values[1].0, "no", values[0].0].map(str::to_owned);
        let many: Vec<_> = get_many(&*store, &keys, 5000).into_iter().map(|v| v.unwrap()).collect();
        assert_eq!(many, [Some(values[1].1.clone()), None, Some(values[0].1.clone())]);
        let children = block_on(&*store, store.children("")).unwrap();
        // Plain HTTP can't list.
        assert!(children.is_none_or(|names| names == ["a"]), "{}", store.location());
    }
}

#[test]
fn futures_of_local_stores_are_ready_when_they_are_first_polled() {
    let folder = tempfile::tempdir().unwrap();
    let values = values();
    write(folder.path(), &values);
    std::fs::write(folder.path().join("archive.zip"), archive(&values)).unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join(REPOSITORY);
    let repository = repository_in(repository.to_str().unwrap());
    for (store, key) in [
        (opened(folder.path().to_str().unwrap()), "a/c/0/1"),
        (opened(folder.path().join("archive.zip").to_str().unwrap()), "a/c/0/1"),
        (repository, "a/c/0/0/0"),
    ] {
        let mut to = vec![0; 200_000];
        let mut future = pin!(store.read(key, ByteRange::Whole, None, Phase::Running, &mut to));
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(Some(_)))), "{}", store.location());
    }
}

fn repository_in(location: &str) -> Arc<dyn Store> {
    repository(&opened(location)).unwrap().unwrap()
}

#[test]
fn chunks_of_a_repository_tell_where_they_lie() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(REPOSITORY);
    let mut files = Vec::new();
    for kind in ["chunks", "manifests", "snapshots"] {
        for entry in std::fs::read_dir(folder.join(kind)).unwrap() {
            let entry = entry.unwrap();
            let key = format!("{kind}/{}", entry.file_name().to_str().unwrap());
            files.push((key, std::fs::read(entry.path()).unwrap()));
        }
    }
    files.push(("repo".into(), std::fs::read(folder.join("repo")).unwrap()));
    let files: Vec<_> = files.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let (local, remote) = (repository_in(folder.to_str().unwrap()), repository_in(&served(&files, "/store/")));
    let mut located = 0;
    for i in 0..8 {
        let key = format!("a/c/{i}/0/0");
        for store in [&*local, &*remote] {
            let value = block_on(store, store.get(&key, 1000, Phase::Running)).unwrap().unwrap();
            keeps_its_promises(store, &key, &value);
            located += u32::from(store.locate(&key).is_some());
        }
        assert_eq!(local.locate(&key), remote.locate(&key));
    }
    assert_eq!(located, 12, "six chunks are in objects, two in the manifest");
    // Before its manifest is read, the place of a chunk isn't known.
    let fresh = repository_in(folder.to_str().unwrap());
    assert!(fresh.locate("a/c/0/0/0").is_none() && fresh.locate("a/zarr.json").is_none());
}

#[test]
fn threads_that_need_the_same_manifest_wait_for_one_another() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(REPOSITORY);
    let store = repository_in(folder.to_str().unwrap());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(read(&*store, "a/c/0/0/0", ByteRange::Whole, &mut [0; 1000]).unwrap().is_some()));
        }
    });
}

#[test]
fn a_thread_is_woken_by_the_one_that_works_for_it() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let worker = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        sender.send(5).unwrap();
    });
    assert_eq!(blocking::drive(receiver).unwrap(), 5);
    worker.join().unwrap();
}

#[test]
fn virtual_chunks_are_of_the_version_that_their_reference_tells() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("some file", vec![5; 100])]);
    let meta = std::fs::metadata(folder.path().join("some file")).unwrap();
    let (modified, micros) = {
        use std::os::unix::fs::MetadataExt;
        (meta.mtime() as u32, i128::from(meta.mtime()) * 1_000_000 + i128::from(meta.mtime_nsec() / 1000))
    };
    let inode = std::os::unix::fs::MetadataExt::ino(&meta);
    let tag = format!("{inode:x}-{micros:x}-64");
    let url = format!("file://{}/", folder.path().display());
    let chunks = virtual_chunks::VirtualChunks::new([(url.clone(), opened(&url))], None);
    assert!(chunks.runtime().is_none());
    let read = |name: &str, version: Option<ObjectVersion>| {
        let mut to = [0; 8];
        let url = format!("{url}{name}");
        let found = chunks.read(&url, ByteRange::From(92), version.as_ref(), Phase::Running, &mut to);
        blocking::drive(found).map(|found| found.map(|f| (f.size, to)))
    };
    for (tag, date) in [(None, 0), (None, modified), (Some(tag.as_str()), 0)] {
        let version = virtual_chunks::version_of(tag, date);
        assert_eq!(read("some%20file", version).unwrap(), Some((100, [5; 8])), "{tag:?} {date}");
    }
    for (tag, date) in [(None, modified - 1), (Some("other"), 0), (Some("\"other\""), 0)] {
        let error = read("some file", virtual_chunks::version_of(tag, date)).unwrap_err();
        assert!(error.message().contains("it was changed since its reference was written"), "{error}");
    }
    assert_eq!(read("no file", None).unwrap(), None);
    for (name, words) in [("../x", "expected the URL of a file below"), ("a%2F..%2Fb", "expected the URL of a file")] {
        assert!(read(name, None).unwrap_err().message().contains(words));
    }
    let elsewhere = blocking::drive(chunks.head("file:///elsewhere/x")).unwrap_err();
    assert!(elsewhere.message().contains("virtual_chunks\": \"file:///elsewhere/\""), "{elsewhere}");
}
