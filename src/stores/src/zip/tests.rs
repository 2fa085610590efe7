//! Tests of archives in the styles of all writers, and of damaged archives.

use std::io::Write;
use std::sync::Arc;

use super::tests_archives::{Style, files, styles, value, written};
use super::*;
use crate::object::fake::{Act, Random, Server, store_of, without_waiting};

/// An archive in a local file, with blocking calls.
struct Local(Zip);

impl Local {
    fn open(path: &Path) -> Result<Self> {
        Zip::open_file("local.zip", path, "").map(Self)
    }
    fn read(&self, key: &str, range: ByteRange, to: &mut [u8]) -> Result<Option<Found>> {
        block_on(&self.0, self.0.read(key, range, None, Phase::Running, to))
    }
    fn get(&self, key: &str, max: u64) -> Result<Option<Vec<u8>>> {
        block_on(&self.0, self.0.get(key, max, Phase::Building))
    }
    fn exists(&self, key: &str) -> Result<bool> {
        block_on(&self.0, self.0.exists(key))
    }
    fn children(&self, prefix: &str) -> Vec<String> {
        block_on(&self.0, self.0.children(prefix)).unwrap().unwrap()
    }
}

fn local(bytes: &[u8]) -> Result<Local> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Local::open(file.path())
}

/// An archive on a server in this process.
struct Remote {
    server: Arc<Server>,
    store: Zip,
    _runtime: Arc<Runtime>,
}

fn remote(bytes: &[u8]) -> Result<Remote> {
    let server = Arc::new(Server::default());
    server.put("/store", bytes.to_vec());
    let runtime = Runtime::new(1).unwrap();
    let base = Arc::new(store_of(&server, &runtime));
    let store = without_waiting(Zip::open(base.location().to_owned(), base, ""))?;
    Ok(Remote { store, server, _runtime: runtime })
}

type Read<'a> = &'a dyn Fn(&str, ByteRange, &mut [u8]) -> Result<Option<Found>>;

fn check(read: Read<'_>, what: &str) {
    for (name, data) in files().into_iter().filter(|(n, _)| !n.ends_with('/')) {
        let mut to = vec![9; data.len() + 5];
        let found = read(name, ByteRange::Whole, &mut to).unwrap().unwrap();
        assert_eq!((found.size, &to[..data.len()]), (data.len() as u64, &data[..]), "{what}: {name}");
        let mut exact = vec![9; data.len()];
        read(name, ByteRange::Whole, &mut exact).unwrap();
        assert_eq!(exact, data, "{what}: {name}");
        let Some(short) = data.len().checked_sub(2) else { continue };
        let mut to = vec![9; short];
        assert_eq!(read(name, ByteRange::Whole, &mut to).unwrap().unwrap().size, data.len() as u64);
        assert_eq!(to, vec![9; short], "{what}: too long, nothing is read");
        read(name, ByteRange::From(1), &mut to).unwrap();
        assert_eq!(to, data[1..=short], "{what}: {name}");
        read(name, ByteRange::Last, &mut to).unwrap();
        assert_eq!(to, data[2..], "{what}: {name}");
        assert!(read(name, ByteRange::From(3), &mut to).unwrap_err().message().contains("the value ends before"));
    }
    assert!(
        read("a", ByteRange::Whole, &mut []).unwrap().is_none()
            && read("a/c", ByteRange::Whole, &mut []).unwrap().is_none()
    );
}

#[test]
fn every_style_of_archive_gives_the_same() {
    for (i, style) in styles().into_iter().enumerate() {
        let (bytes, _) = written(&files(), style);
        let (on_disk, server) = (local(&bytes).unwrap(), remote(&bytes).unwrap());
        check(&|k, p, to| on_disk.read(k, p, to), &format!("local, style {i}"));
        check(
            &|k, p, to| without_waiting(server.store.read(k, p, None, Phase::Running, to)),
            &format!("remote, style {i}"),
        );
        for (name, data) in files().iter().filter(|(n, _)| !n.ends_with('/')) {
            assert_eq!(on_disk.get(name, 1 << 20).unwrap().unwrap(), *data);
            assert_eq!(without_waiting(server.store.get(name, 1 << 20, Phase::Building)).unwrap().unwrap(), *data);
        }
        assert!(on_disk.get("ü/0", 5).unwrap_err().message().contains("expected at most 5 bytes"));
        assert_eq!(on_disk.children(""), ["a", "b", "b.x", "ü"]);
        assert_eq!(on_disk.children("a/"), ["c"]);
        assert_eq!(on_disk.children("a/c"), ["0", "1"]);
        assert!(on_disk.exists("a/c/0/1").unwrap() && !on_disk.exists("a/c").unwrap());
    }
}

#[test]
fn a_value_is_one_request() {
    for (i, style) in styles().into_iter().enumerate() {
        let remote = remote(&written(&files(), style).0).unwrap();
        assert_eq!(remote.server.taken_log().len(), 2, "small: the end, and because there is no more, all of it");
        let names: Vec<_> = files().iter().map(|(n, _)| *n).filter(|n| n.contains("/c/")).collect();
        for &name in &names {
            without_waiting(remote.store.read(name, ByteRange::Whole, None, Phase::Running, &mut [0; 9000]))
                .unwrap()
                .unwrap();
        }
        // One request for each value, in all styles: the guess of where data begin is right.
        let asked = remote.server.taken_log().len();
        assert_eq!(asked, names.len(), "style {i}");
        for _ in 0..3 {
            without_waiting(remote.store.read("a/c/1/0", ByteRange::From(5), None, Phase::Running, &mut [0; 90]))
                .unwrap()
                .unwrap();
        }
        // Parts of a value take one more request, for the header, if data can begin at more than one place.
        assert!(remote.server.taken_log().len() <= 4, "style {i}");
    }
    // Descriptors of another length: learned from the first entry.
    let (mut bytes, places) = written(&files(), Style { descriptor: true, ..Style::default() });
    let names: Vec<_> = files().iter().map(|(n, _)| *n).collect();
    let padding = [0; 8];
    for place in places.iter().rev() {
        bytes.splice(place.end + 16..place.end + 16, padding);
    }
    // Moves the offsets in the directory and in the end record accordingly.
    let end = bytes.len() - 22;
    let at = u32_at(&bytes, end + 16) as usize + 8 * names.len();
    bytes[end + 16..end + 20].copy_from_slice(&(at as u32).to_le_bytes());
    let mut record = at;
    for (i, name) in names.iter().enumerate() {
        let moved = u32_at(&bytes, record + 42) + 8 * i as u32;
        bytes[record + 42..record + 46].copy_from_slice(&moved.to_le_bytes());
        record += 46 + name.len();
    }
    let remote = remote(&bytes).unwrap();
    remote.server.taken_log();
    for name in ["a/c/0/0", "a/c/0/1", "a/c/1/0", "b/c/0"] {
        without_waiting(remote.store.read(name, ByteRange::Whole, None, Phase::Running, &mut [0; 9000]))
            .unwrap()
            .unwrap();
    }
    assert_eq!(remote.server.taken_log().len(), 4 + 2, "the first is read again, with its header in between");
}

#[test]
fn a_large_directory_is_two_requests_and_compact() {
    let names: Vec<String> = (0..20_000).map(|i| format!("array/c/{}/{}/0", i / 100, i % 100)).collect();
    let files: Vec<(&str, Vec<u8>)> = names.iter().enumerate().map(|(i, n)| (n.as_str(), value(i, 3))).collect();
    let (bytes, _) = written(&files, Style::default());
    let remote = remote(&bytes).unwrap();
    assert_eq!(remote.server.taken_log().len(), 2);
    for i in (0..20_000).step_by(997) {
        let mut to = [0; 3];
        without_waiting(remote.store.read(&names[i], ByteRange::Whole, None, Phase::Running, &mut to))
            .unwrap()
            .unwrap();
        assert_eq!(to[..], value(i, 3));
    }
    assert_eq!((remote.store.directory.len(), size_of::<Entry>()), (20_000, 48));
    assert_eq!(without_waiting(remote.store.children("array/c")).unwrap().unwrap().len(), 200);
}

#[test]
fn the_last_of_equal_names_counts() {
    let (bytes, _) = written(&[("k", value(1, 50)), ("x", value(3, 9)), ("k", value(2, 70))], Style::default());
    assert_eq!(local(&bytes).unwrap().get("k", 100).unwrap().unwrap(), value(2, 70));
}

#[test]
fn names_are_as_python_reads_them() {
    let (mut bytes, _) = written(&[("caf\u{e9}/k", value(1, 5)), ("b\0ad", value(2, 6))], Style::default());
    assert!(local(&bytes).unwrap().exists("b").unwrap());
    // The same bytes of the name without the flag for UTF-8.
    for sig in [b"PK\x03\x04", b"PK\x01\x02"] {
        let at = bytes.windows(4).position(|w| w == sig).unwrap();
        bytes[at + if sig[2] == 3 { 7 } else { 9 }] = 0;
    }
    let store = local(&bytes).unwrap();
    assert_eq!(store.get("caf├⌐/k", 9).unwrap().unwrap(), value(1, 5));
    assert_eq!(CP437.chars().count(), 128);
}

use super::directory::CP437;

#[test]
fn what_cannot_be_read_is_named() {
    let one = |change: &dyn Fn(&mut Vec<u8>, usize, usize)| {
        let (mut bytes, _) = written(&[("k", value(1, 50)), ("l", value(2, 60))], Style::default());
        let find = |sig: &[u8], bytes: &[u8]| bytes.windows(4).position(|w| w == sig).unwrap();
        let (record, end) = (find(b"PK\x01\x02", &bytes), find(b"PK\x05\x06", &bytes));
        change(&mut bytes, record, end);
        let read = |store: Result<Local>| store.and_then(|s| s.get("k", 100)).map(|v| v.unwrap());
        let error = read(local(&bytes)).unwrap_err();
        let remotely =
            remote(&bytes).and_then(|r| without_waiting(r.store.get("k", 100, Phase::Building))).unwrap_err();
        let tail = |e: &Error| e.message().rsplit(": ").next().unwrap().to_owned();
        // An empty object has no last bytes: servers refuse such a read with an error of their own.
        assert!(tail(&error) == tail(&remotely) || bytes.is_empty(), "{error}, {remotely}");
        error.message().to_owned()
    };
    for (words, change) in [
        ("an encrypted one", &(|b: &mut Vec<u8>, r: usize, _| b[r + 8] |= 1) as &dyn Fn(&mut Vec<u8>, usize, usize)),
        ("method 93 (Zstandard)", &|b, r, _| b[r + 10] = 93),
        ("method 12 (bzip2)", &|b, r, _| b[r + 10] = 12),
        ("CRC-32", &|b, r, _| b[r + 16] ^= 1),
        ("can't be those of a file of", &|b, r, _| b[r + 24] ^= 1),
        ("can't be those of a file of", &|b, r, _| b[r + 27] = 0x7f),
        ("reaches into", &|b, r, _| b[r + 20..r + 28].copy_from_slice(&[51, 0, 0, 0, 51, 0, 0, 0])),
        ("lies beyond the directory", &|b, r, _| b[r + 45] = 0x7f),
        ("lacks sizes or an offset of ZIP64", &|b, r, _| b[r + 42..r + 46].fill(255)),
        ("expected 255 entries, but found 2", &|b, _, e| b[e + 10] = 255),
        ("in several", &|b, _, e| b[e + 4] = 1),
        ("expected a directory of at most", &|b, _, e| b[e + 15] = 0xff),
        ("truncated or damaged", &|b, _, e| b[e + 13] = 0xff),
        ("found no end of one", &|b, _, e| b.truncate(e + 5)),
        ("found no end of one", &|b, _, _| b.clear()),
        ("expected a record of the directory", &|b, r, _| b[r] = 0),
        ("reaches beyond the directory", &|b, r, _| b[r + 32] = 200),
    ] {
        let error = one(change);
        assert!(error.contains(words), "{words}: {error}");
    }
    let (bytes, _) = written(&[("k", vec![0; 5000])], Style { deflate: true, ..Style::default() });
    let record = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    for (at, words) in [(24, "found more"), (25, "inflated bytes, but found")] {
        let mut bytes = bytes.clone();
        bytes[record + at] = if at == 24 { bytes[record + at] - 1 } else { 0x20 };
        let error = local(&bytes).unwrap().read("k", ByteRange::Whole, &mut vec![0; 9000]).unwrap_err();
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn another_archive_in_its_place_is_an_error() {
    let (bytes, _) = written(&files(), Style::default());
    let remote = remote(&bytes).unwrap();
    remote.server.versions.lock().unwrap().insert("/store".into(), 1);
    let error = without_waiting(remote.store.read("a/c/0/0", ByteRange::Whole, None, Phase::Running, &mut [0; 9000]))
        .unwrap_err();
    assert!(error.message().contains("it was replaced since"), "{error}");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let store = Local::open(file.path()).unwrap();
    // Nothing was changed yet.
    assert!(store.get("a/c/0/0", 9000).unwrap().is_some());
    std::fs::OpenOptions::new().append(true).open(file.path()).unwrap().write_all(b"more").unwrap();
    let error = store.get("a/c/0/0", 9000).unwrap_err();
    assert!(error.message().contains("changed since its directory was read"), "{error}");
}

#[test]
fn archives_are_found_in_urls() {
    for (url, expected) in [
        ("https://host/a/x.zip", Some(("https://host/a/x.zip", ""))),
        ("s3://bucket/x.ZARR.ZIP/in%20ner/b", Some(("s3://bucket/x.ZARR.ZIP", "/in ner/b"))),
        ("s3://x.zip/store.zarr", None),
        ("http://host.zip", None),
        ("s3://bucket/x.zipped", None),
    ] {
        assert_eq!(split_url(url), expected.map(|(a, i)| (a, i.to_owned())), "{url}");
    }
}

/// Checks what was read of a damaged archive: the right bytes or an error. Parts of stored values have no checksum, so
/// for them the damaged bytes are allowed too. Returns 1 if bytes were read, and 0 if not.
fn check_outcome(
    found: Result<Option<Vec<u8>>>,
    right: &[u8],
    damaged: Option<&[u8]>,
    in_directory: bool,
    what: &str,
) -> usize {
    match found {
        Ok(Some(bytes)) => {
            assert!(bytes == right || damaged.is_some_and(|d| bytes == d), "{what}: wrong values");
            1
        }
        // A damaged name makes its value missing: it can't be told from a chunk that was never written.
        Ok(None) => {
            assert!(in_directory, "{what}: missing");
            0
        }
        Err(_) => 0,
    }
}

#[test]
fn thousands_of_damaged_archives_give_right_values_or_errors() {
    let (mut right, mut all) = (0, 0);
    for seed in 0..4000 {
        let mut random = Random(seed);
        let styles = styles();
        let style = styles[random.below(styles.len() as u64) as usize];
        let (good, places) = written(&files(), style);
        let mut bytes = good.clone();
        let directory = places.last().unwrap().end;
        let (mut in_directory, mut hits) = (false, Vec::new());
        for _ in 0..=random.below(3) {
            // Half of the damage is in the directory or the end record.
            let at = match random.below(2) {
                0 => random.below(bytes.len() as u64) as usize,
                _ => directory + random.below((bytes.len() - directory) as u64) as usize,
            };
            in_directory |= at >= directory;
            hits.push(at);
            bytes[at] ^= 1 << random.below(8);
        }
        if random.below(10) == 0 {
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        }
        let Ok(on_disk) = local(&bytes) else {
            assert!(remote(&bytes).is_err(), "seed {seed}");
            continue;
        };
        let server = remote(&bytes).unwrap();
        if random.below(4) == 0 {
            let acts = (0..5).map(|_| Act::Cut(random.below(2000) as usize));
            server.server.acts.lock().unwrap().extend(acts);
        }
        for ((name, data), place) in files().iter().zip(&places).filter(|((n, _), _)| !n.ends_with('/')) {
            let from = (data.len() / 3).min(1);
            let len = data.len() - from;
            // A part of a stored value has no checksum.
            let damaged = (!style.deflate && from > 0).then(|| bytes.get(place.clone()).map(|d| &d[from..])).flatten();
            // Damage to the length of a header's extra field moves the data. For a part of a value, it can't be told
            // from padding.
            let field = place.start - usize::from(style.extra) - name.len();
            let moved = hits.iter().any(|h| (field - 2..field).contains(h));
            for (whole, name_of) in [(true, "whole"), (false, "part")] {
                let what = format!(
                    "seed {seed}, {name} at {place:?}, {name_of}, {style:?}, damage at {hits:?} of {directory}"
                );
                let (range, len) =
                    if whole { (ByteRange::Whole, data.len()) } else { (ByteRange::From(from as u64), len) };
                let mut to = vec![0; len];
                let take = |found: Result<Option<Found>>, to: &mut Vec<u8>| match found {
                    Ok(Some(f)) if whole && f.size > to.len() as u64 => Err(Error::runtime("too long")),
                    Ok(Some(f)) if whole => Ok(Some(to[..f.size as usize].to_vec())),
                    found => found.map(|f| f.map(|_| to.clone())),
                };
                if moved && !whole {
                    continue;
                }
                let (expected, allowed) = if whole { (&data[..], None) } else { (&data[from..], damaged) };
                let found = take(on_disk.read(name, range, &mut to), &mut to);
                right += check_outcome(found, expected, allowed, in_directory, &what);
                to.fill(0);
                let found =
                    take(without_waiting(server.store.read(name, range, None, Phase::Running, &mut to)), &mut to);
                right += check_outcome(found, expected, allowed, in_directory, &format!("{what}, remote"));
                all += 2;
            }
        }
    }
    println!("{right} of {all} reads were right");
    assert!(right > 20_000 && right < all);
}
