//! Tests of directories: which keys are files, what a replaced file is, and what links lead to.

use std::os::fd::AsRawFd;

use super::*;
use crate::block_on;
use dali_zarr_base::error::ErrorKind as Kind;

fn open(dir: &Path) -> LocalStore {
    LocalStore::open(dir.to_str().unwrap(), ReadFiles::default()).unwrap()
}

fn read(
    s: &LocalStore,
    key: &str,
    range: ByteRange,
    version: Option<&ObjectVersion>,
    to: &mut [u8],
) -> Result<Option<Found>> {
    block_on(s, s.read(key, range, version, Phase::Running, to))
}

fn get(s: &LocalStore, key: &str, max: u64) -> Result<Option<Vec<u8>>> {
    block_on(s, s.get(key, max, Phase::Building))
}

#[test]
fn values_ranges_and_missing_keys() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/c/0")).unwrap();
    fs::write(dir.path().join("a/c/0/1"), b"0123456789").unwrap();
    let store = open(dir.path());
    assert_eq!(get(&store, "a/c/0/1", 10).unwrap().unwrap(), b"0123456789");
    assert!(get(&store, "a/c/0/1", 9).unwrap_err().message().contains("at most 9 bytes, but found 10"));
    assert!(get(&store, "a/c/0/2", 10).unwrap().is_none());
    assert!(get(&store, "a/c/0/1/2", 10).unwrap().is_none(), "a key below a file is missing");
    assert!(block_on(&store, store.exists("a/c/0/1")).unwrap() && !block_on(&store, store.exists("a/c/0")).unwrap());
    assert_eq!(block_on(&store, store.children("")).unwrap().unwrap(), ["a"]);

    let mut buf = [0; 4];
    let size = |range, buf: &mut [u8]| read(&store, "a/c/0/1", range, None, buf).unwrap().unwrap().size;
    assert_eq!((size(ByteRange::From(3), &mut buf), &buf), (10, b"3456"));
    assert_eq!((size(ByteRange::Last, &mut buf), &buf), (10, b"6789"));
    assert_eq!((size(ByteRange::Whole, &mut buf), &buf), (10, b"6789"), "too long: nothing is read");
    assert_eq!(size(ByteRange::Last, &mut [0; 11]), 10);
    let mut all = [7; 12];
    assert_eq!((size(ByteRange::Whole, &mut all), &all), (10, b"0123456789\x07\x07"));
    let error = read(&store, "a/c/0/1", ByteRange::From(8), None, &mut buf).unwrap_err();
    assert!(error.message().contains("expected 4 bytes at offset 8"), "{error}");
    let error = read(&store, "a/c", ByteRange::Whole, None, &mut buf).unwrap_err();
    assert!(error.message().contains("expected a file, but found a directory"), "{error}");
}

#[test]
fn files_are_opened_as_they_are_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    fs::write(&path, [1; 100]).unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    let store = open(dir.path());
    let version = read(&store, "k", ByteRange::From(0), None, &mut [0; 8]).unwrap().unwrap().version;
    for version in [None, version.as_ref()] {
        let found = store.in_file("k", version).unwrap().unwrap();
        assert_eq!((found.start, found.size), (0, 100));
        let flags = fs::read_to_string(format!("/proc/self/fdinfo/{}", found.file.as_raw_fd())).unwrap();
        let flags = flags.lines().find_map(|l| l.strip_prefix("flags:")).unwrap().trim();
        assert_eq!(i32::from_str_radix(flags, 8).unwrap() & libc::O_NONBLOCK, 0);
    }
    let Some(ObjectVersion::File { size, seconds, nanoseconds, born }) = version else { panic!("{version:?}") };
    let other = ObjectVersion::File { size, seconds, nanoseconds: nanoseconds + 1, born };
    let error = store.in_file("k", Some(&other)).unwrap_err();
    assert!(error.message().contains("it was replaced since"), "{error}");
    // Opening a pipe without a writer must not block.
    for (key, found) in [("d", "a directory"), ("pipe", "a special file")] {
        for error in [
            store.in_file(key, None).unwrap_err(),
            get(&store, key, 10).unwrap_err(),
            read(&store, key, ByteRange::Whole, None, &mut [0; 8]).unwrap_err(),
        ] {
            assert!(error.message().contains(&format!("expected a file, but found {found}")), "{error}");
        }
    }
    assert!(store.in_file("no", None).unwrap().is_none() && store.in_file("k/below", None).unwrap().is_none());
}

#[test]
fn links_to_content_that_is_not_there_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("a.zarr");
    fs::create_dir(&store).unwrap();
    std::os::unix::fs::symlink("../.git/annex/objects/x", store.join("0.0")).unwrap();
    let store = LocalStore::open(store.to_str().unwrap(), ReadFiles::default()).unwrap();
    for error in [
        block_on(&store, store.read("0.0", ByteRange::Whole, None, Phase::Running, &mut [0; 8])).unwrap_err(),
        block_on(&store, store.get("0.0", 8, Phase::Running)).unwrap_err(),
        block_on(&store, store.exists("0.0")).unwrap_err(),
        store.in_file("0.0", None).unwrap_err(),
        block_on(&store, store.get("0.0/below", 8, Phase::Running)).unwrap_err(),
    ] {
        let (message, link) = (error.message(), dir.path().join("a.zarr/0.0"));
        assert!(message.contains("expected a file, but found the symbolic link"), "{message}");
        assert!(message.contains(&format!("{} to ../.git/annex/objects/x, where", link.display())), "{message}");
    }
    // A store's own path, of a directory or an archive, may be such a link too.
    for name in ["b.zarr", "b.zip"] {
        let path = dir.path().join(name);
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        let Err(error) = LocalStore::open(path.to_str().unwrap(), ReadFiles::default()) else { panic!("{name}") };
        assert!(error.message().contains("to nowhere, where there is nothing"), "{error}");
        assert_eq!(error.kind(), Kind::Value);
    }
}

#[test]
fn a_truncated_file_is_an_error_not_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    fs::write(&path, [1; 100]).unwrap();
    let store = open(dir.path());
    let (file, meta) = store.open_key("k", 0).unwrap().unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(50).unwrap();
    let error = store.fill("k", (&file, meta.len()), 0, &mut [0; 100], false).unwrap_err();
    assert!(error.message().contains("it had 100 bytes when it was opened"), "{error}");
}

#[test]
fn a_file_that_is_replaced_between_two_reads_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    fs::write(&path, [1; 100]).unwrap();
    let store = open(dir.path());
    let version = |part| read(&store, "k", part, None, &mut [0; 8]).unwrap().unwrap().version;
    let then = version(ByteRange::Last).unwrap();
    assert_eq!(version(ByteRange::From(0)).as_ref(), Some(&then), "nothing has changed");
    let read = || read(&store, "k", ByteRange::From(4), Some(&then), &mut [0; 8]);
    assert_eq!(read().unwrap().unwrap().version.as_ref(), Some(&then));
    let old = fs::metadata(&path).unwrap();
    let (modified, born) = (old.modified().unwrap(), old.created());
    let replaced = || {
        let error = read().unwrap_err();
        assert!(error.message().contains("\"k\" can't be read: it was replaced since"), "{error}");
        assert_eq!(error.code(), dali_zarr_base::error::Code::Replaced);
    };
    let touch = |time| OpenOptions::new().write(true).open(&path).unwrap().set_modified(time).unwrap();
    // Written in place with the same size: only the date differs.
    touch(modified + std::time::Duration::from_nanos(1));
    replaced();
    touch(modified);
    read().unwrap();
    // Written with the old date: only the size differs.
    fs::write(&path, [1; 101]).unwrap();
    touch(modified);
    replaced();
    // Replaced by another file with the old size and date, as by a copy that preserves dates: only the birth time
    // differs, where the file system has it.
    fs::write(dir.path().join("new"), [2; 100]).unwrap();
    fs::rename(dir.path().join("new"), &path).unwrap();
    touch(modified);
    if born.is_ok_and(|born| fs::metadata(&path).unwrap().created().unwrap() != born) {
        replaced();
    }
    fs::remove_file(&path).unwrap();
    assert!(read().unwrap().is_none(), "gone is missing, which its caller must judge");
}

#[test]
fn locations() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("a b")).unwrap();
    let path = dir.path().to_str().unwrap();
    assert!(LocalStore::open(&format!("file://{path}/a%20b"), ReadFiles::default()).is_ok());
    assert!(LocalStore::open(&format!("file://localhost{path}/a b"), ReadFiles::default()).is_ok());
    let stores = super::super::open(&[format!("FILE://{path}/a%20b")], &[], 1, ReadFiles::default());
    assert!(stores.unwrap()[0].latency() == Latency::Local, "schemes have no case");
    fs::write(dir.path().join("file.zip"), b"").unwrap();
    for wrong in ["", "file://relative", "/no/such/store", &format!("{path}/file.zip"), "ftp://host/store"] {
        let error = super::super::open(&[wrong.to_owned()], &[], 1, ReadFiles::default()).err().unwrap();
        assert_eq!(error.kind(), Kind::Value, "{error}");
    }
}

/// Returns the message of the error for a path or URL.
fn refused(location: &str) -> String {
    super::super::open(&[location.to_owned()], &[], 1, ReadFiles::default()).err().unwrap().message().to_owned()
}

#[test]
fn files_that_are_no_stores_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, found) in [
        ("a.nc", &b"\x89HDF\r\n\x1a\n and more"[..], "an HDF5 or NetCDF file"),
        ("b.nc", b"CDF\x01 and more", "an HDF5 or NetCDF file"),
        ("zarr.json", b"{\"zarr_format\": 3}", "zarr.json, which is a part of a store"),
        ("d.tif", b"II*\0 and more", "a file of another kind"),
        ("e", b"", "an empty file"),
        ("f", b"PK\x03\x04 and so on", "no end of one; the file is truncated"),
        ("g.zip", b"", "no end of one; the file is truncated"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let message = refused(path.to_str().unwrap());
        assert!(message.contains(found) && message.contains("zip archive"), "{name}: {message}");
    }
}

#[test]
fn chains_of_urls_name_the_inner_one() {
    for (chain, inner, hint) in [
        ("simplecache::s3://bucket/era5.zarr", "give s3://bucket/era5.zarr itself", "cache_dir"),
        ("filecache::https://host/a.zarr", "give https://host/a.zarr itself", "cache_dir"),
        ("zip://inner::s3://bucket/a.zip", "give s3://bucket/a.zip itself", "the path inside"),
        ("simplecache::zip://::gs://b/a.zip", "give gs://b/a.zip itself", "cache_dir"),
        ("zip::file:///data/a.zip", "give file:///data/a.zip itself", "the path inside"),
        ("simplecache::/data/a.zarr", "give /data/a.zarr itself", "cache_dir"),
        ("s3::s3://user:secret@bucket/a", "give s3://...:...@bucket/a itself", ""),
    ] {
        let message = refused(chain);
        assert!(message.contains("fsspec") && message.contains(inner) && message.contains(hint), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("a::b")).unwrap();
    assert!(LocalStore::open(dir.path().join("a::b").to_str().unwrap(), ReadFiles::default()).is_ok());
    for other in ["http://[::1]:9/a.zarr", "http://host/a::b/c.zarr"] {
        assert!(super::super::open(&[other.to_owned()], &[], 1, ReadFiles::default()).is_ok(), "{other}");
    }
}
