//! Where the bytes of a Zarr hierarchy come from: keys, whole values, and byte ranges of them.
//!
//! A store knows nothing of Zarr. It must never turn a failure into "missing": a missing chunk is a fill value, a
//! failed read is an error. Local stores implement [`Store`], remote ones [`AsyncStore`], by which their chunks are read;
//! for metadata [`Blocking`] makes a [`Store`] of them too.

#![forbid(unsafe_code)]

mod blocking;
mod local;
pub mod remote;
mod unbuffered;

pub(crate) use unbuffered::PER_THREAD as UNBUFFERED_PER_THREAD;

pub use blocking::Blocking;
pub use local::LocalStore;
pub use remote::RemoteStore;

use std::fs::File;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::{Error, Result};

/// Which bytes of a value go to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of them, if the buffer is long enough: else nothing is read, and the size tells.
    Whole,
    /// As many as the buffer has, from this offset on.
    From(u64),
    /// As many as the buffer has, up to the value's end; if there are fewer nothing is read, and the size tells.
    Last,
}

/// What a read came upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the whole value.
    pub size: u64,
    /// What changes whenever the value does (an ETag, a file's times), if the store has such a thing and tells.
    pub version: Option<Arc<str>>,
}

/// A value that is (part of) a file of this machine.
#[derive(Debug)]
pub struct InFile {
    /// Open for reading.
    pub file: File,
    /// Where the value begins in it.
    pub start: u64,
    /// Its bytes.
    pub size: u64,
}

/// A flat set of values with names such as `t2m/c/0/0/0`, below one location.
pub trait Store: Send + Sync {
    /// The path or URL, as it stands in messages.
    fn location(&self) -> &str;

    /// Reads bytes of the value of `key` to the front of `to`; `None` if there is no such key. With `version` the value must
    /// be the one that [`Found`] told of.
    ///
    /// # Errors
    /// If that can't be found out, if what is there isn't a value, ends before the bytes that [`Part::From`] asks for, or was
    /// replaced.
    fn read(&self, key: &str, part: Part, version: Option<&Arc<str>>, to: &mut [u8]) -> Result<Option<Found>>;

    /// The whole value of `key`, of at most `most` bytes; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::read`], and if the value is longer.
    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>>;

    /// [`Self::get`] for each of `keys`, in their order; at the same time where that is faster.
    fn get_many(&self, keys: &[String], most: u64) -> Vec<Result<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(key, most)).collect()
    }

    /// Whether `key` has a value. Asks, but reads nothing.
    ///
    /// # Errors
    /// If that can't be found out.
    fn exists(&self, key: &str) -> Result<bool>;

    /// The names right below `prefix` that have names below them in turn (directories), sorted; `None` if the store
    /// can't list.
    ///
    /// # Errors
    /// If listing fails.
    fn children(&self, prefix: &str) -> Result<Option<Vec<String>>>;

    /// Whether values are (parts of) files of this machine, which [`Self::in_file`] opens.
    fn has_files(&self) -> bool {
        false
    }

    /// The value of `key` as bytes of a file, opened for reads past the page cache if the file system has them; `None` if
    /// there is no such key. With `version` the value must be the one that [`Found`] told of.
    ///
    /// # Errors
    /// As [`Self::read`]; or if there are no files.
    fn in_file(&self, key: &str, _version: Option<&Arc<str>>) -> Result<Option<InFile>> {
        Err(Error::runtime(format!("store {}: key {key:?} isn't in a file of this machine", self.location())))
    }

    /// The same store for asynchronous reads, if it isn't local.
    fn remote(&self) -> Option<&Arc<dyn AsyncStore>> {
        None
    }
}

/// A store whose answers have to be waited for, by tasks on the threads of its [`remote::Io`].
#[async_trait]
pub trait AsyncStore: Send + Sync {
    /// As [`Store::location`].
    fn location(&self) -> &str;

    /// The threads that drive its requests.
    fn io(&self) -> &Arc<remote::Io>;

    /// As [`Store::read`].
    ///
    /// # Errors
    /// As there, after as many tries as the options allow.
    async fn read(&self, key: &str, part: Part, version: Option<&Arc<str>>, to: &mut [u8]) -> Result<Option<Found>>;

    /// As [`Store::get`].
    ///
    /// # Errors
    /// As there.
    async fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>>;

    /// What there is of the value of `key`; `None` if there is none. Asks, but reads nothing.
    ///
    /// # Errors
    /// If that can't be found out.
    async fn head(&self, key: &str) -> Result<Option<Found>>;

    /// As [`Store::exists`].
    ///
    /// # Errors
    /// As there.
    async fn exists(&self, key: &str) -> Result<bool>;

    /// Whether `key` is there, or was a moment ago.
    ///
    /// # Errors
    /// If that can't be found out.
    async fn confirm(&self, key: &str) -> Result<bool>;

    /// As [`Store::children`].
    ///
    /// # Errors
    /// As there.
    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>>;
}

/// The error for a value of which more bytes would have to be read than is sensible.
fn too_long(location: &str, key: &str, most: u64, size: u64) -> Error {
    Error::runtime(format!("store {location}: key {key:?}: expected at most {most} bytes, but found {size}"))
}

/// Whether `location` is a URL of a store that isn't local.
pub fn is_remote(location: &str) -> bool {
    location.split_once("://").is_some_and(|(scheme, _)| scheme != "file")
}

/// How files of local stores are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadFiles {
    /// Past the page cache, but for those that [`Store::get`] gives.
    pub unbuffered: bool,
    /// Telling versions apart also of those that are read whole, which takes time.
    pub versions: bool,
}

/// Opens the stores at `locations`: directories, as paths or `file://` URLs, and URLs of object stores and HTTP servers.
/// `options` are those of the remote ones; `threads` drive their requests.
///
/// # Errors
/// [`Error::value`] if there is no store of a kind that is read, or an option is unknown, wrong or a secret.
pub fn open(
    locations: &[String],
    options: &[(String, String)],
    threads: usize,
    how: ReadFiles,
) -> Result<Vec<Arc<dyn Store>>> {
    let mut io = None;
    if !locations.iter().any(|l| is_remote(l)) && !options.is_empty() {
        return Err(Error::value(
            "storage_options: expected none, since every path is local; leave them out, or give the URL of a remote store",
        ));
    }
    if how.unbuffered && locations.iter().all(|l| is_remote(l)) {
        return Err(Error::value(
            "use_o_direct: expected a local path among the stores; servers have page caches of their own",
        ));
    }
    let mut open = |location: &String| -> Result<Arc<dyn Store>> {
        if !is_remote(location) {
            return Ok(Arc::new(LocalStore::open(location, how)?));
        }
        let io = match &io {
            Some(io) => Arc::clone(io),
            None => Arc::clone(io.insert(remote::Io::new(threads)?)),
        };
        Ok(Arc::new(Blocking::new(Arc::new(RemoteStore::open(location, options, io)?))))
    };
    locations.iter().map(&mut open).collect()
}
