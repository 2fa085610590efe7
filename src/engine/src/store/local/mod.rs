//! A directory on a file system: a key is a relative path, a value is a regular file, read with `pread`.
//!
//! Its futures do all of their work when they are first polled.

mod direct;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use async_trait::async_trait;

use super::links::Dangling;
use super::{ByteRange, Found, InFile, Latency, Phase, ReadFiles, Store, not_after_date, too_long};
use crate::error::{Error, Result, Site};

pub(crate) use direct::BYTES_PER_THREAD as O_DIRECT_BYTES_PER_THREAD;

/// A store in a local directory.
pub struct LocalStore {
    location: String,
    root: PathBuf,
    how: ReadFiles,
}

impl LocalStore {
    /// Opens the directory at `location`, a path or a `file://` URL.
    ///
    /// # Errors
    /// [`Error::value`] if it isn't a directory that can be read, or its file system has no reads past the page cache.
    pub fn open(location: &str, how: ReadFiles) -> Result<Self> {
        let root = root(location)?;
        let wrong = |found: &str| wrong(location, found);
        let meta = fs::metadata(&root).map_err(|e| match (e.kind(), Dangling::find(&root)) {
            (_, Some(dangling)) => wrong(&dangling.to_string()),
            (ErrorKind::NotFound, _) => wrong("there is nothing; check the path"),
            _ => wrong(&format!("it can't be opened: {e}")),
        })?;
        if !meta.is_dir() {
            return Err(wrong("found a special file; give the directory that holds zarr.json, .zgroup or .zarray"));
        }
        let store = Self { location: location.to_owned(), root, how };
        if how.unbuffered {
            store.probe()?;
        }
        Ok(store)
    }

    /// Opens a metadata document with `O_DIRECT`: only that tells whether the file system allows it.
    fn probe(&self) -> Result<()> {
        for key in ["zarr.json", ".zgroup", ".zarray", ".zmetadata"] {
            if let Err(e) = self.open_with(key, libc::O_DIRECT)
                && e.raw_os_error() == Some(libc::EINVAL)
            {
                return Err(Error::value(format!(
                    "use_o_direct: expected store {} to be on a file system that can be read past the page cache, but \
                     this one refuses O_DIRECT; leave use_o_direct out",
                    self.location
                )));
            }
        }
        Ok(())
    }

    fn open_with(&self, key: &str, flags: i32) -> io::Result<File> {
        // Without O_NONBLOCK, opening a pipe at a chunk's key would wait for its writer. Regular files ignore the flag.
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | flags).open(self.path(key))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    fn failed(&self, key: &str, e: io::Error) -> Error {
        self.unreadable(key, &e.to_string()).caused_by(e)
    }

    fn unreadable(&self, key: &str, why: &str) -> Error {
        let place = Site::store(&*self.location).key(key);
        Error::runtime(format!("{place} can't be read: {why}")).placed(place)
    }

    fn at(&self, key: &str, e: &Error) -> Error {
        e.at(Site::store(&*self.location).key(key))
    }

    /// The file of `key`, open, and its metadata; `None` if there is none.
    fn open_key(&self, key: &str, flags: i32) -> Result<Option<(File, Metadata)>> {
        let file = match self.open_with(key, flags) {
            Ok(file) => file,
            Err(e) => return self.not_found(key, e).map(|()| None),
        };
        let meta = file.metadata().map_err(|e| self.failed(key, e))?;
        self.check_kind(key, &meta)?;
        Ok(Some((file, meta)))
    }

    /// The metadata of what is at `key`; `None` if nothing is.
    fn metadata(&self, key: &str) -> Result<Option<Metadata>> {
        match fs::metadata(self.path(key)) {
            Ok(meta) => Ok(Some(meta)),
            Err(e) => self.not_found(key, e).map(|()| None),
        }
    }

    /// Whether the system's error means that there is no such key.
    ///
    /// # Errors
    /// If it doesn't, or a symbolic link says that there is one.
    fn not_found(&self, key: &str, e: io::Error) -> Result<()> {
        if !is_missing(&e) {
            return Err(self.failed(key, e));
        }
        match Dangling::find(&self.path(key)) {
            Some(dangling) => Err(self.at(key, &Error::runtime(format!("expected a file, but {dangling}")))),
            None => Ok(()),
        }
    }

    /// # Errors
    /// If it isn't a regular file.
    fn check_kind(&self, key: &str, meta: &Metadata) -> Result<()> {
        if meta.is_file() {
            return Ok(());
        }
        let found = if meta.is_dir() { "a directory" } else { "a special file" };
        Err(self.at(key, &Error::runtime(format!("expected a file, but found {found}"))))
    }

    /// # Errors
    /// If the file isn't of the version `wanted`: one that [`Found`] told, or one that a reference from another store tells.
    fn check_version(&self, key: &str, meta: &Metadata, wanted: Option<&Arc<str>>) -> Result<()> {
        let Some(wanted) = wanted else { return Ok(()) };
        let what = match foreign_version(wanted) {
            None if Version::of(meta).as_str() == &**wanted => return Ok(()),
            None => "it was replaced since its index was read",
            Some(foreign) if foreign.describes(meta) => return Ok(()),
            Some(_) => "it was changed since its reference was written; write the references to virtual chunks again",
        };
        Err(self.unreadable(key, what))
    }

    /// Fills `to` from an open file and its size.
    fn fill(&self, key: &str, (file, size): (&File, u64), offset: u64, to: &mut [u8], unbuffered: bool) -> Result<()> {
        let read = if unbuffered { direct::read_exact_at(file, to, offset) } else { file.read_exact_at(to, offset) };
        let len = to.len();
        let failed = |e: io::Error| match e.kind() {
            ErrorKind::UnexpectedEof => Error::runtime(format!(
                "expected {len} bytes at offset {offset}, but the file ends before (it had {size} bytes when it was \
                 opened); it is truncated or being rewritten",
            )),
            _ => Error::runtime(format!("{len} bytes at offset {offset} can't be read: {e}")).caused_by(e),
        };
        read.map_err(|e| failed(e).at(Site::store(&*self.location).key(key)).placed(Site::default().range(offset, len)))
    }
}

/// The version of a file: its size, its time of birth (where the file system has it) and of its last change, in nanoseconds.
/// The inode's number isn't in it: file systems in user space give new ones to files that they have forgotten. The text is
/// written without an allocation, since it is compared for each inner chunk of a shard.
struct Version {
    text: [u8; 96],
    len: usize,
}

impl Version {
    fn of(meta: &Metadata) -> Self {
        let born = meta.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let mut text = [0; 96];
        let mut rest = &mut text[..];
        // Four numbers, none of more than 24 hexadecimal digits: they fit.
        let _ = write!(rest, "{:x} {:x}.{:x} {:x}", meta.size(), meta.mtime(), meta.mtime_nsec(), born.as_nanos());
        let len = 96 - rest.len();
        Self { text, len }
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..self.len]).unwrap_or_default()
    }
}

/// What a reference from another store tells of the version of a file.
enum ForeignVersion<'a> {
    /// The tag that the crate object_store makes of a file.
    Tag(&'a str),
    /// The file wasn't changed after this date, in seconds since 1970.
    NotAfter(i64),
}

/// What `version` tells, if a reference from another store gave it. Own versions contain no quote.
fn foreign_version(version: &str) -> Option<ForeignVersion<'_>> {
    if let Some(date) = not_after_date(version) {
        return Some(ForeignVersion::NotAfter(date));
    }
    version.contains('"').then(|| ForeignVersion::Tag(version.trim_matches('"')))
}

impl ForeignVersion<'_> {
    fn describes(&self, meta: &Metadata) -> bool {
        match *self {
            Self::NotAfter(date) => meta.mtime() <= date,
            Self::Tag(tag) => {
                let micros = i128::from(meta.mtime()) * 1_000_000 + i128::from(meta.mtime_nsec() / 1000);
                tag == format!("{:x}-{micros:x}-{:x}", meta.ino(), meta.size())
            }
        }
    }
}

fn wrong(location: &str, found: &str) -> Error {
    let e = Error::value(format!("expected a directory, a zip archive or references in JSON, but {found}"));
    e.at(Site::store(location))
}

/// The path of `location`, which is one or a `file://` URL.
///
/// # Errors
/// [`Error::value`] if it is neither.
pub(super) fn root(location: &str) -> Result<PathBuf> {
    if location.is_empty() {
        return Err(Error::value("path: expected the path of a Zarr store, but found an empty string"));
    }
    let url = location.split_at_checked("file://".len()).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("file://"));
    let Some((_, rest)) = url else { return Ok(PathBuf::from(location)) };
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(wrong(location, "found a file:// URL without an absolute path; write file:///PATH"));
    }
    Ok(PathBuf::from(percent_decoded(path)))
}

/// A key below a file (`ENOTDIR`) is as missing as one in no directory.
fn is_missing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

pub(super) fn percent_decoded(text: &str) -> std::ffi::OsString {
    let bytes = text.as_bytes();
    let hex = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%'
            && let (Some(&high), Some(&low)) = (bytes.get(i + 1), bytes.get(i + 2))
            && let (Some(high), Some(low)) = (hex(high), hex(low))
        {
            out.push(high << 4 | low);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    std::ffi::OsString::from_vec(out)
}

#[async_trait]
impl Store for LocalStore {
    fn location(&self) -> &str {
        &self.location
    }

    fn latency(&self) -> Latency {
        Latency::Local
    }

    async fn read(
        &self,
        key: &str,
        range: ByteRange,
        version: Option<&Arc<str>>,
        _: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let flags = if self.how.unbuffered { libc::O_DIRECT } else { 0 };
        let Some((file, meta)) = self.open_key(key, flags)? else { return Ok(None) };
        let size = meta.len();
        self.check_version(key, &meta, version)?;
        let version = match (version, range) {
            (Some(wanted), _) if foreign_version(wanted).is_none() => Some(Arc::clone(wanted)),
            // What was read as a whole is read once.
            (None, ByteRange::Whole) if !self.how.versions => None,
            _ => Some(Version::of(&meta).as_str().into()),
        };
        let resolved = range.resolve(size, to.len()).map_err(|e| self.at(key, &e));
        let (offset, len) = resolved?.unwrap_or((0, 0));
        self.fill(key, (&file, size), offset, &mut to[..len], self.how.unbuffered)?;
        Ok(Some(Found { size, version }))
    }

    async fn get(&self, key: &str, max: u64, _: Phase) -> Result<Option<Vec<u8>>> {
        let Some((file, meta)) = self.open_key(key, 0)? else { return Ok(None) };
        let size = meta.len();
        let len = usize::try_from(size).ok().filter(|_| size <= max);
        let mut bytes = vec![0; len.ok_or_else(|| too_long(&self.location, key, max, size))?];
        self.fill(key, (&file, size), 0, &mut bytes, false)?;
        Ok(Some(bytes))
    }

    async fn head(&self, key: &str) -> Result<Option<Found>> {
        let Some(meta) = self.metadata(key)? else { return Ok(None) };
        self.check_kind(key, &meta)?;
        Ok(Some(Found { size: meta.len(), version: Some(Version::of(&meta).as_str().into()) }))
    }

    async fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.metadata(key)?.is_some_and(|meta| meta.is_file()))
    }

    fn has_files(&self) -> bool {
        true
    }

    fn in_file(&self, key: &str, version: Option<&Arc<str>>) -> Result<Option<InFile>> {
        let path = self.path(key);
        // cuFile refuses files that were opened with O_NONBLOCK, so pipes must be found before.
        let Some(meta) = self.metadata(key)? else { return Ok(None) };
        self.check_kind(key, &meta)?;
        let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(&path);
        // Some file systems don't have O_DIRECT.
        let file = match open(libc::O_DIRECT).or_else(|_| open(0)) {
            Ok(file) => file,
            Err(e) => return self.not_found(key, e).map(|()| None),
        };
        let meta = file.metadata().map_err(|e| self.failed(key, e))?;
        self.check_kind(key, &meta)?;
        self.check_version(key, &meta, version)?;
        Ok(Some(InFile { file, start: 0, size: meta.len() }))
    }

    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        let directory: &Path = &self.path(prefix);
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                if let Ok(name) = entry.file_name().into_string()
                    && entry.path().is_dir()
                {
                    names.push(name);
                }
            }
            names.sort();
            Ok(names)
        };
        list().map(Some).map_err(|e| self.failed(prefix, e))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::error::ErrorKind as Kind;
    use crate::store::block_on;

    fn open(dir: &Path) -> LocalStore {
        LocalStore::open(dir.to_str().unwrap(), ReadFiles::default()).unwrap()
    }

    fn read(
        s: &LocalStore,
        key: &str,
        range: ByteRange,
        version: Option<&Arc<str>>,
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
        assert!(
            block_on(&store, store.exists("a/c/0/1")).unwrap() && !block_on(&store, store.exists("a/c/0")).unwrap()
        );
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
        let error = store.in_file("k", Some(&"another".into())).unwrap_err();
        assert!(error.message().contains("it was replaced since"), "{error}");
        // A pipe without a writer would be waited for.
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
        // The store itself, or an archive in its place.
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
        };
        let touch = |time| OpenOptions::new().write(true).open(&path).unwrap().set_modified(time).unwrap();
        // In place, with as many bytes: its date alone tells.
        touch(modified + std::time::Duration::from_nanos(1));
        replaced();
        touch(modified);
        read().unwrap();
        // With the old date: the size tells.
        fs::write(&path, [1; 101]).unwrap();
        touch(modified);
        replaced();
        // By another file with the old size and date, as a copy that preserves dates does: its birth tells, where it is known.
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

    /// What is said of a path or URL.
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
}
