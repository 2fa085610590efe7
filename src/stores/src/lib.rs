//! Stores: they give the bytes of a Zarr hierarchy by key, as whole values or as ranges of values.
//!
//! A store knows nothing of Zarr. It must never turn a failure into "missing": a missing chunk is a fill value, a failed
//! read is an error.
//!
//! In: locations and options, to [`open()`]. Out: [`Store`]s, the one trait. [`LocalStore`] reads a directory;
//! [`RemoteStore`] reads an object store or an HTTP server. [`Zip`] ([APPNOTE]), [`Repository`] ([Icechunk]) and
//! [`References`] ([kerchunk]) are adapters over any of them. Requests are repeated here, and nowhere above. A caller that
//! must know what kind of store it has asks for a capability: [`Store::latency`], [`Store::runtime`],
//! [`Store::has_files`], [`Store::locate`].
//!
//! The interface is what stands in this file. With the feature `testing` there are stores that act out faults.
//!
//! ```
//! use dali_zarr_stores::{ByteRange, Phase, ReadFiles, block_on, open};
//!
//! let folder = tempfile::tempdir()?;
//! std::fs::create_dir(folder.path().join("c"))?;
//! std::fs::write(folder.path().join("c/0"), b"values")?;
//! let location = folder.path().to_str().expect("a path in UTF-8").to_owned();
//! let store = open(&[location], &[], 1, ReadFiles::default())?.remove(0);
//!
//! let mut bytes = [0; 3];
//! let read = store.read("c/0", ByteRange::From(2), None, Phase::Building, &mut bytes);
//! let found = block_on(&*store, read)?.expect("the key exists");
//! assert_eq!((&bytes, found.size), (b"lue", 6));
//! assert_eq!(block_on(&*store, store.get("c/1", 100, Phase::Building))?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [APPNOTE]: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
//! [Icechunk]: https://icechunk.io/en/latest/spec/
//! [kerchunk]: https://fsspec.github.io/kerchunk/spec.html

#![forbid(unsafe_code)]

mod blocking;
mod icechunk;
mod links;
mod local;
mod object;
mod open;
mod percent;
mod reference;
mod retry;
mod runtime;
mod shared_failure;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod version;
mod virtual_chunks;
mod zip;

pub use blocking::{block_on, get_many};
pub use icechunk::Repository;
pub use icechunk::{DIRECTORY_OPTION, VIRTUAL_CHUNKS_OPTION};
pub use local::O_DIRECT_BYTES_PER_THREAD;
pub use local::{LocalStore, ReadFiles};
pub use object::{RemoteStore, credentials};
pub use open::has_remote_places;
pub use open::{is_remote, open, references, repository};
pub use reference::References;
pub use reference::is_metadata_of_references;
pub use runtime::blocking;
pub use runtime::{Counters, Runtime};
pub use version::{ObjectVersion, Placed};
pub use zip::Zip;

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;

use dali_zarr_base::error::{Error, Result, Site};

/// Which bytes of a value a read copies to its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// The whole value, if it fits into the buffer. Otherwise nothing is read, and [`Found::size`] tells the length.
    Whole,
    /// As many bytes as the buffer holds, from this offset of the value on.
    From(u64),
    /// The last bytes, as many as the buffer holds. If the value is shorter than the buffer, nothing is read, and
    /// [`Found::size`] tells the length.
    Last,
}

impl ByteRange {
    /// Returns offset and number of the bytes that go to a buffer of `len` bytes, for a value of `size` bytes. `None`:
    /// nothing is read.
    ///
    /// # Errors
    /// If the value ends before the bytes that [`ByteRange::From`] asks for.
    pub fn resolve(self, size: u64, len: usize) -> Result<Option<(u64, usize)>> {
        let wanted = len as u64;
        match self {
            Self::Whole => Ok((size <= wanted).then_some((0, size as usize))),
            Self::Last => Ok(size.checked_sub(wanted).map(|offset| (offset, len))),
            Self::From(offset) if offset.checked_add(wanted).is_some_and(|end| end <= size) => Ok(Some((offset, len))),
            Self::From(offset) => Err(Error::damaged(format!(
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
    /// A file system. Each read keeps a thread busy, so few are under way at a time.
    Local,
    /// A server. Each read is a task that waits, so many are under way at a time.
    Remote,
}

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the whole value.
    pub size: u64,
    /// Another one whenever the value changes (an ETag, the times of a file). `None` if the store can't tell.
    pub version: Option<ObjectVersion>,
}

/// A range of an object that holds the value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The object's name, for [`Store::read_extent`].
    pub object: Arc<str>,
    /// The version that the object must have; `None`: any. Only extents of one object and version may be read together.
    pub version: Option<ObjectVersion>,
    /// Offset of the value in the object, in bytes.
    pub offset: u64,
    /// Bytes of the value.
    pub len: u64,
}

/// A value that lies in a file of this machine.
#[derive(Debug)]
pub struct InFile {
    /// Open for reading.
    pub file: File,
    /// Offset of the value in the file, in bytes.
    pub start: u64,
    /// Bytes of the value.
    pub size: u64,
}

/// Takes the bytes of a value while they arrive.
pub trait Sink: Send {
    /// Says that the next bytes are the first of the range. Called again if a read starts over.
    fn begin(&mut self);

    /// Takes the next bytes.
    ///
    /// # Errors
    /// If the bytes are wrong. The read then ends.
    fn put(&mut self, bytes: &[u8]) -> Result<()>;
}

/// Bytes that the default implementation of [`Store::stream`] reads at a time.
const STREAM_PIECE: u64 = 64 << 10;

/// A flat set of values with keys such as `t2m/c/0/0/0`, below one location. Errors name the store and the key.
///
/// Futures of a store without a [`Store::runtime`] do their work when they are polled, and block meanwhile. They are pending
/// only while another thread does the same work for them. [`block_on`] waits for futures of any store.
#[async_trait]
pub trait Store: Send + Sync {
    /// Returns the path or URL, as messages show it.
    fn location(&self) -> &str;

    /// Tells whether reads wait for a file system or a server.
    fn latency(&self) -> Latency;

    /// Returns the runtime that the store's futures need; `None` if they need none.
    fn runtime(&self) -> Option<&Arc<Runtime>> {
        None
    }

    /// Copies the bytes that `range` selects from the value of `key` to the front of `to`. Returns `None` if there is
    /// no such key. If `version` is given, the value must still have it (see [`Found::version`]).
    ///
    /// # Errors
    /// If the store can't tell whether the key exists, or the key holds no value but, for example, a directory. Also if the
    /// value was replaced, or ends before the bytes that [`ByteRange::From`] asks for. Errors are returned after the last
    /// try.
    async fn read(
        &self,
        key: &str,
        range: ByteRange,
        version: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>>;

    /// Returns the whole value of `key`, which may have at most `max` bytes; `None` if there is no such key.
    ///
    /// # Errors
    /// As [`Self::read`], and if the value is longer.
    async fn get(&self, key: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>>;

    /// Returns size and version of the value of `key` without reading its bytes; `None` if there is no such key. Tries
    /// as often as in [`Phase::Running`].
    ///
    /// # Errors
    /// As [`Self::read`].
    async fn head(&self, key: &str) -> Result<Option<Found>>;

    /// Whether [`Self::head`] asks a file system or a server about `key`. False if the answer is known from earlier
    /// reads, as for the entries of an archive.
    fn head_needs_io(&self, _key: &str) -> bool {
        true
    }

    /// Whether `version`, which was found earlier and perhaps by another process, belongs to the place that `key`
    /// points to now. Only stores of references check this: they don't ask the file or server at that place. All others
    /// return true. Tries as often as in [`Phase::Running`].
    ///
    /// # Errors
    /// If the store can't tell.
    async fn is_version_of_current_target(&self, _key: &str, _version: &ObjectVersion) -> Result<bool> {
        Ok(true)
    }

    /// Whether `key` has a value, or had one a few seconds ago. Tries as often as in [`Phase::Running`].
    ///
    /// # Errors
    /// If the store can't tell.
    async fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.head(key).await?.is_some())
    }

    /// Lists the names directly below `prefix` that have names below them (directories), sorted; `None` if the store
    /// can't list. Tries as often as in [`Phase::Building`].
    ///
    /// # Errors
    /// If listing fails.
    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>>;

    /// Gives the bytes of `range` to `sink` as they arrive, so that the range is never in memory as a whole. Returns
    /// `None` if there is no such key.
    ///
    /// # Errors
    /// As [`Self::read`], and the errors of `sink`.
    async fn stream(
        &self,
        key: &str,
        range: Range<u64>,
        version: Option<&ObjectVersion>,
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

    /// Whether values may be ranges of larger objects, which [`Self::locate`] finds.
    fn has_extents(&self) -> bool {
        false
    }

    /// Returns the object and the range that hold the value of `key`. `None` if the value isn't a range of a larger
    /// object, or the store would have to read something to know. Values of one object that lie near each other can be
    /// read together, by [`Self::read_extent`].
    fn locate(&self, _key: &str) -> Option<Extent> {
        None
    }

    /// Returns the number of the index (a manifest, a file of references) that must be read before [`Self::locate`] can
    /// find `key`; `None` if no index must be read.
    fn unread_index(&self, _key: &str) -> Option<u64> {
        None
    }

    /// Reads the index that [`Self::unread_index`] names for `key`. It stays in memory. Tries as often as in
    /// [`Phase::Running`].
    ///
    /// # Errors
    /// If it can't be read.
    async fn read_index(&self, _key: &str) -> Result<()> {
        Ok(())
    }

    /// Fills `to` from [`Extent::offset`] of an object that [`Self::locate`] named. Returns size and version of the
    /// object, not of the value; `None` if the object is gone.
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

    /// Opens the file that holds the value of `key`, past the page cache if the file system can do that. Returns `None`
    /// if there is no such key. If `version` is given, the value must still have it. Blocks.
    ///
    /// # Errors
    /// As [`Self::read`], and if values don't lie in files.
    fn in_file(&self, key: &str, _version: Option<&ObjectVersion>) -> Result<Option<InFile>> {
        let place = Site::store(self.location()).key(key);
        Err(Error::runtime(format!("{place} isn't in a file of this machine")).placed(place))
    }

    /// The name of the snapshot that is read, if the store has snapshots.
    fn snapshot(&self) -> Option<String> {
        None
    }
}

/// The names of Zarr's metadata documents, which users give by mistake in place of the directory.
const METADATA_DOCUMENTS: [&str; 5] = ["zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"];

/// Makes the error for a value of `size` bytes where at most `max` are read.
fn too_long(location: &str, key: &str, max: u64, size: u64) -> Error {
    let e = Error::runtime(format!("expected at most {max} bytes, but found {size}"));
    e.at(Site::store(location).key(key))
}
