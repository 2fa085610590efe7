//! A directory on a file system: a key is a relative path, a value is a regular file, read with `pread`.
//!
//! Its futures do all of their work when they are first polled.

mod direct;
mod version;

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use self::version::{is_as_referenced, version as version_of};
use super::links::Dangling;
use super::percent::percent_decoded;
use super::{ByteRange, Found, InFile, Latency, ObjectVersion, Phase, Store, too_long};
use dali_zarr_base::error::{Code, Error, Result, Site, printable};

pub use direct::BYTES_PER_THREAD as O_DIRECT_BYTES_PER_THREAD;

/// How files of local stores are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadFiles {
    /// Read past the page cache (`O_DIRECT`), except in [`Store::get`].
    pub unbuffered: bool,
    /// Report the versions of whole values too. This takes time.
    pub versions: bool,
}

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
    /// [`Error::value`] if it isn't a directory that can be read, or reads past the page cache are wanted and its file
    /// system doesn't have them.
    pub fn open(location: &str, how: ReadFiles) -> Result<Self> {
        let root = root(location)?;
        let wrong = |found: &str| wrong(location, found);
        let meta = fs::metadata(&root).map_err(|e| match (e.kind(), Dangling::find(&root)) {
            (_, Some(dangling)) => wrong(&dangling.to_string()).with_code(Code::NotFound),
            (ErrorKind::NotFound, _) => wrong("there is nothing; check the path").with_code(Code::NotFound),
            _ => wrong(&format!("it can't be opened: {e}")).with_code(Code::of_system(&e)),
        })?;
        if !meta.is_dir() {
            return Err(wrong("found a special file; give the directory that holds zarr.json, .zgroup or .zarray"));
        }
        let store = Self { location: printable(location).into_owned(), root, how };
        if how.unbuffered {
            store.probe()?;
        }
        Ok(store)
    }

    /// Checks that the file system has `O_DIRECT`, by opening metadata documents with it: there is no other way to
    /// know.
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
        self.unreadable(key, Code::of_system(&e), &e.to_string()).caused_by(e)
    }

    fn unreadable(&self, key: &str, code: Code, why: &str) -> Error {
        let place = Site::store(&*self.location).key(key);
        Error::runtime(format!("{place} can't be read: {why}")).with_code(code).placed(place)
    }

    fn at(&self, key: &str, e: &Error) -> Error {
        e.at(Site::store(&*self.location).key(key))
    }

    /// Opens the file of `key`, and returns it with its metadata; `None` if there is no such file. `flags` are those of
    /// `open(2)`.
    fn open_key(&self, key: &str, flags: i32) -> Result<Option<(File, Metadata)>> {
        let file = match self.open_with(key, flags) {
            Ok(file) => file,
            Err(e) => return self.not_found(key, e).map(|()| None),
        };
        let meta = file.metadata().map_err(|e| self.failed(key, e))?;
        self.check_kind(key, &meta)?;
        Ok(Some((file, meta)))
    }

    /// Returns the metadata of the file or directory at `key`; `None` if there is nothing.
    fn metadata(&self, key: &str) -> Result<Option<Metadata>> {
        match fs::metadata(self.path(key)) {
            Ok(meta) => Ok(Some(meta)),
            Err(e) => self.not_found(key, e).map(|()| None),
        }
    }

    /// Returns `Ok` if the system's error `e` means that there is no such key.
    ///
    /// # Errors
    /// If `e` means something else, or a dangling symbolic link says that the key exists.
    fn not_found(&self, key: &str, e: io::Error) -> Result<()> {
        if !is_missing(&e) {
            return Err(self.failed(key, e));
        }
        match Dangling::find(&self.path(key)) {
            Some(dangling) => {
                let error = Error::runtime(format!("expected a file, but {dangling}")).with_code(Code::NotFound);
                Err(self.at(key, &error))
            }
            None => Ok(()),
        }
    }

    /// # Errors
    /// If `meta` isn't that of a regular file.
    fn check_kind(&self, key: &str, meta: &Metadata) -> Result<()> {
        if meta.is_file() {
            return Ok(());
        }
        let found = if meta.is_dir() { "a directory" } else { "a special file" };
        Err(self.at(key, &Error::runtime(format!("expected a file, but found {found}"))))
    }

    /// # Errors
    /// If the file doesn't have the version `wanted`: one from [`Found`], or one that a reference from another store
    /// gives.
    fn check_version(&self, key: &str, meta: &Metadata, wanted: Option<&ObjectVersion>) -> Result<()> {
        let Some(wanted) = wanted else { return Ok(()) };
        let what = match is_as_referenced(wanted, meta) {
            None if version_of(meta) == *wanted => return Ok(()),
            None => "it was replaced since its index was read",
            Some(true) => return Ok(()),
            Some(false) => {
                "it was changed since its reference was written; write the references to virtual chunks again"
            }
        };
        Err(self.unreadable(key, Code::Replaced, what))
    }

    /// Fills `to` from `offset` of an open file. `size` is what the file had when it was opened, for the error.
    fn fill(&self, key: &str, (file, size): (&File, u64), offset: u64, to: &mut [u8], unbuffered: bool) -> Result<()> {
        let read = if unbuffered { direct::read_exact_at(file, to, offset) } else { file.read_exact_at(to, offset) };
        let len = to.len();
        let failed = |e: io::Error| match e.kind() {
            ErrorKind::UnexpectedEof => Error::damaged(format!(
                "expected {len} bytes at offset {offset}, but the file ends before (it had {size} bytes when it was \
                 opened); it is truncated or being rewritten",
            )),
            _ => {
                let message = format!("{len} bytes at offset {offset} can't be read: {e}");
                Error::runtime(message).with_code(Code::of_system(&e)).caused_by(e)
            }
        };
        read.map_err(|e| failed(e).at(Site::store(&*self.location).key(key)).placed(Site::default().range(offset, len)))
    }
}

fn wrong(location: &str, found: &str) -> Error {
    let e = Error::value(format!("expected a directory, a zip archive or references in JSON, but {found}"));
    e.at(Site::store(location))
}

/// Returns the path that `location` means. It is a path itself, or a `file://` URL.
///
/// # Errors
/// [`Error::value`] if it is empty, or a `file://` URL without an absolute path.
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

/// Whether the error means that a key is missing. A key below a file (`ENOTDIR`) is missing too.
fn is_missing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
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
        version: Option<&ObjectVersion>,
        _: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let flags = if self.how.unbuffered { libc::O_DIRECT } else { 0 };
        let Some((file, meta)) = self.open_key(key, flags)? else { return Ok(None) };
        let size = meta.len();
        self.check_version(key, &meta, version)?;
        let version = match (version, range) {
            (Some(wanted @ ObjectVersion::File { .. }), _) => Some(wanted.clone()),
            // A value that is read as a whole isn't read again, so nobody needs its version.
            (None, ByteRange::Whole) if !self.how.versions => None,
            _ => Some(version_of(&meta)),
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
        Ok(Some(Found { size: meta.len(), version: Some(version_of(&meta)) }))
    }

    async fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.metadata(key)?.is_some_and(|meta| meta.is_file()))
    }

    fn has_files(&self) -> bool {
        true
    }

    fn in_file(&self, key: &str, version: Option<&ObjectVersion>) -> Result<Option<InFile>> {
        let path = self.path(key);
        // cuFile refuses files that were opened with O_NONBLOCK. So a pipe must be detected before it is opened.
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
mod tests;
