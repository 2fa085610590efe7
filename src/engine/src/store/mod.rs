//! Where the bytes of a Zarr hierarchy come from: keys, whole values and ranges of values.
//!
//! A store knows nothing of Zarr. It must never turn a failure into "missing": a missing chunk is a fill value, a failed
//! read is an error.
//!
//! [`Store`] is the one trait. [`LocalStore`] reads a directory; [`RemoteStore`] reads an object store or an HTTP server.
//! [`Zip`], [`Repository`] (Icechunk) and [`References`] (kerchunk) are adapters over any of them. A caller that must know what kind of store it has
//! asks for a capability: [`Store::latency`], [`Store::runtime`], [`Store::has_files`], [`Store::locate`].

#![forbid(unsafe_code)]

mod blocking;
mod icechunk;
mod links;
mod local;
pub(crate) mod object;
mod open;
mod reference;
mod retry;
mod runtime;
mod shared_failure;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod tests_hooked;
mod virtual_chunks;
mod zip;

pub use blocking::{block_on, get_many};
pub use icechunk::Repository;
pub use local::LocalStore;
pub(crate) use local::O_DIRECT_BYTES_PER_THREAD;
pub use object::RemoteStore;
pub(crate) use open::has_remote_places;
pub use open::{ReadFiles, is_remote, open, references, repository};
pub use reference::References;
pub(crate) use reference::is_metadata_of_references;
pub(crate) use runtime::blocking;
pub use runtime::{Counters, Runtime};
pub use zip::Zip;

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::{Error, Result, Site};

/// Which bytes of a value a read copies to its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// All of them, if the buffer is long enough. Otherwise nothing is read; [`Found::size`] tells.
    Whole,
    /// As many as the buffer holds, from this offset on.
    From(u64),
    /// The last ones, as many as the buffer holds. If the value is shorter, nothing is read; [`Found::size`] tells.
    Last,
}

impl ByteRange {
    /// Offset and number of the bytes that go to a buffer of `len` bytes, for a value of `size` bytes. `None`: nothing is
    /// read.
    ///
    /// # Errors
    /// If the value ends before the bytes that [`ByteRange::From`] asks for.
    pub fn resolve(self, size: u64, len: usize) -> Result<Option<(u64, usize)>> {
        let wanted = len as u64;
        match self {
            Self::Whole => Ok((size <= wanted).then_some((0, size as usize))),
            Self::Last => Ok(size.checked_sub(wanted).map(|offset| (offset, len))),
            Self::From(offset) if offset.checked_add(wanted).is_some_and(|end| end <= size) => Ok(Some((offset, len))),
            Self::From(offset) => Err(Error::runtime(format!(
                "expected {len} bytes at offset {offset}, but the value ends before: it has {size} bytes"
            ))),
        }
    }
}

/// When a store is read. This decides how often a failed request is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// While a pipeline is built. A user waits, and a failure is more often a wrong URL than a busy server: few tries.
    Building,
    /// While a pipeline runs: as many tries as the options allow.
    Running,
}

/// What the reads of a store wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// A file system. A thread makes each read, so few are under way at a time.
    Local,
    /// A server. A task makes each read, so many are under way at a time.
    Remote,
}

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the whole value.
    pub size: u64,
    /// A text that changes whenever the value does (an ETag, the times of a file). `None` if the store has no such text.
    pub version: Option<Arc<str>>,
}

/// A range of an object that holds the value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The object's name, for [`Store::read_extent`].
    pub object: Arc<str>,
    /// The version that the object must have; `None`: any. Only extents of one object and version may be read together.
    pub version: Option<Arc<str>>,
    /// Where the value begins in the object.
    pub offset: u64,
    /// Bytes of the value.
    pub len: u64,
}

/// A value that lies in a file of this machine.
#[derive(Debug)]
pub struct InFile {
    /// Open for reading.
    pub file: File,
    /// Where the value begins in the file.
    pub start: u64,
    /// Bytes of the value.
    pub size: u64,
}

/// Takes the bytes of a value while they arrive.
pub trait Sink: Send {
    /// The next bytes are the first ones of the value. May be called again, when a read starts over.
    fn begin(&mut self);

    /// The next bytes.
    ///
    /// # Errors
    /// If the bytes are wrong. The read ends then.
    fn put(&mut self, bytes: &[u8]) -> Result<()>;
}

/// Bytes that the default of [`Store::stream`] reads at a time.
const STREAM_PIECE: u64 = 64 << 10;

/// A flat set of values with keys such as `t2m/c/0/0/0`, below one location. Errors name the store and the key.
///
/// Futures of a store without a [`Store::runtime`] do their work when they are polled, and block meanwhile. They are pending
/// only while another thread does the same work for them. [`block_on`] waits for futures of any store.
#[async_trait]
pub trait Store: Send + Sync {
    /// The path or URL, as messages show it.
    fn location(&self) -> &str;

    /// What its reads wait for.
    fn latency(&self) -> Latency;

    /// The runtime that its futures need; `None` if they need none.
    fn runtime(&self) -> Option<&Arc<Runtime>> {
        None
    }

    /// Reads bytes of the value of `key` to the front of `to`; `None` if there is no such key. With `version` the value must
    /// be the one that [`Found`] described.
    ///
    /// # Errors
    /// If the store can't tell, the value isn't one, it ends before the bytes that [`ByteRange::From`] asks for, or it was
    /// replaced. After the last try.
    async fn read(
        &self,
        key: &str,
        range: ByteRange,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>>;

    /// The whole value of `key`, of at most `max` bytes; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::read`], and if the value is longer.
    async fn get(&self, key: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>>;

    /// Size and version of the value of `key`; `None` if there is none. Reads none of its bytes. In [`Phase::Running`].
    ///
    /// # Errors
    /// As [`Self::read`].
    async fn head(&self, key: &str) -> Result<Option<Found>>;

    /// Whether [`Self::head`] asks a server for `key`. False if the version is known from what was read before, as that of an
    /// archive's entries is.
    fn head_asks(&self, _key: &str) -> bool {
        true
    }

    /// Whether a version that was found before, perhaps by another process, is of the place that `key` leads to now: where a
    /// store says where values lie. Servers of values aren't asked. In [`Phase::Running`].
    ///
    /// # Errors
    /// If the store can't tell.
    async fn leads_to(&self, _key: &str, _version: &str) -> Result<bool> {
        Ok(true)
    }

    /// Whether `key` has a value, or had one a few seconds ago. In [`Phase::Running`].
    ///
    /// # Errors
    /// If the store can't tell.
    async fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.head(key).await?.is_some())
    }

    /// The names right below `prefix` that have names below them in turn (directories), sorted; `None` if the store can't
    /// list. In [`Phase::Building`].
    ///
    /// # Errors
    /// If listing fails.
    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>>;

    /// Gives a range of a value to `sink` while it arrives, so that it is never in memory as a whole; `None` if there is no
    /// such key.
    ///
    /// # Errors
    /// As [`Self::read`], and those of `sink`.
    async fn stream(
        &self,
        key: &str,
        range: Range<u64>,
        version: Option<&Arc<str>>,
        phase: Phase,
        sink: &mut dyn Sink,
    ) -> Result<Option<Found>> {
        let mut piece = vec![0; STREAM_PIECE.min(range.end - range.start) as usize];
        let mut at = range.start;
        sink.begin();
        loop {
            let piece = &mut piece[..STREAM_PIECE.min(range.end - at) as usize];
            let Some(found) = self.read(key, ByteRange::From(at), version, phase, piece).await? else {
                return Ok(None);
            };
            sink.put(piece)?;
            at += piece.len() as u64;
            if at >= range.end {
                return Ok(Some(found));
            }
        }
    }

    /// Whether values may be ranges of larger objects, of which [`Self::locate`] tells.
    fn has_extents(&self) -> bool {
        false
    }

    /// Where the value of `key` lies, if it is a range of a larger object and the store knows that without reading anything.
    /// Values of one object that lie near each other can be read together, by [`Self::read_extent`].
    fn locate(&self, _key: &str) -> Option<Extent> {
        None
    }

    /// The number of the index (a manifest, a file of references) that must be read before [`Self::locate`] can tell of `key`;
    /// `None` if none must.
    fn unread_index(&self, _key: &str) -> Option<u64> {
        None
    }

    /// Reads that index, which stays. In [`Phase::Running`].
    ///
    /// # Errors
    /// If it can't be read.
    async fn read_index(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Fills `to` from [`Extent::offset`] of an object that [`Self::locate`] named; `None` if the object is gone. What is found
    /// is the object's size and version.
    ///
    /// # Errors
    /// As [`Self::read`].
    async fn read_extent(&self, extent: &Extent, phase: Phase, to: &mut [u8]) -> Result<Option<Found>> {
        self.read(&extent.object, ByteRange::From(extent.offset), extent.version.as_ref(), phase, to).await
    }

    /// Whether values lie in files of this machine, which [`Self::in_file`] opens.
    fn has_files(&self) -> bool {
        false
    }

    /// The value of `key` in its file, opened past the page cache if the file system can do that; `None` if there is no such
    /// key. With `version` the value must be the one that [`Found`] described. Blocks.
    ///
    /// # Errors
    /// As [`Self::read`], and if there are no files.
    fn in_file(&self, key: &str, _version: Option<&Arc<str>>) -> Result<Option<InFile>> {
        let message = format!("store {}: key {key:?} isn't in a file of this machine", self.location());
        Err(Error::runtime(message).placed(Site::store(self.location()).key(key)))
    }

    /// The name of the snapshot that is read, if the store has snapshots.
    fn snapshot(&self) -> Option<String> {
        None
    }
}

/// The names of Zarr's metadata documents, which users give by mistake in place of the directory.
const METADATA_DOCUMENTS: [&str; 5] = ["zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"];

/// The error for a value that is longer than what is sensible to read.
fn too_long(location: &str, key: &str, max: u64, size: u64) -> Error {
    let e = Error::runtime(format!("expected at most {max} bytes, but found {size}"));
    e.at(Site::store(location).key(key))
}

/// How the version of an object that may be anything up to a date begins: some references give a date, and no tag.
const NOT_AFTER: &str = "W/not after ";

/// The version that stands for whatever an object was until a date, in seconds since 1970.
fn not_after(seconds: i64) -> Arc<str> {
    format!("{NOT_AFTER}{seconds}").into()
}

/// The date of a version that [`not_after`] made.
fn not_after_date(version: &str) -> Option<i64> {
    version.strip_prefix(NOT_AFTER)?.parse().ok()
}
