//! Reads of chunks and of shard indexes.

use std::ops::Range;
use std::sync::Arc;

use crate::chunk_index::ShardId;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::{Lease, Part};
use dali_zarr_stores::{ByteRange, ObjectVersion};

/// The number of a read. It also stands for the memory that the read filled, until all its chunks are done with it.
pub(crate) type ReadId = u64;

/// What a read reads: the value of its key, or an object that holds several values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadObject {
    /// The name of the object, if it holds several values. `None`: the value of the read's key.
    pub name: Option<Arc<str>>,
    /// The version that the value or object must have. `None`: any.
    pub version: Option<ObjectVersion>,
}

/// A part of the bytes of a read, which the reading thread copies to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UploadPart {
    /// The offset of its first byte in the destination of the read.
    pub offset: usize,
    /// The number of its bytes.
    pub len: usize,
    /// The device address that it is copied to.
    pub to: u64,
}

/// Reads encoded chunks and shard indexes for the scheduler.
pub(crate) trait Fetch: Send {
    /// Starts a read to `to`. [`crate::messages::Event::Fetched`] follows, or [`crate::messages::Event::Uploading`] and
    /// then [`crate::messages::Event::Uploaded`]. Both bring `to` back.
    fn read(&mut self, read: Read, to: Lease);
    /// Starts to read the index of the shard at `key`. [`crate::messages::Event::Index`] follows.
    fn index(&mut self, shard: ShardId, key: String);
    /// Reports copies to the device that have ended while their threads are busy. A thread reports its copy itself
    /// after its next read. On a file system that hangs this read may never end, and the copied chunk must not wait for
    /// it.
    fn report_copies(&self);
}

/// One read.
pub(crate) struct Read {
    pub id: ReadId,
    pub array: u16,
    pub part: u16,
    pub key: String,
    pub object: ReadObject,
    pub range: ReadRange,
    /// Bytes of the destination.
    pub len: usize,
    /// Parts that are copied to the device as soon as they are read.
    pub uploads: Vec<UploadPart>,
    /// The chunks in the range, in order, as ranges of the destination. Empty if there is no cache.
    pub pieces: Vec<Range<usize>>,
    /// Where GPUDirect Storage reads the file to. `None`: it is not used.
    pub gds: Option<GdsTarget>,
}

/// The end of a read.
pub(crate) struct ReadDone {
    pub id: ReadId,
    /// The memory that was leased to the read.
    pub to: Lease,
    /// The bytes that were read, or `None` if the key does not exist. If the number is larger than the destination,
    /// nothing was read, and the number is the size of the value.
    pub result: Result<Option<usize>>,
}

/// The bytes of one chunk, in the memory of the read that brought them.
#[derive(Debug)]
pub(crate) struct Payload {
    pub read: ReadId,
    pub bytes: Part,
}

/// Where GPUDirect Storage reads a file to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GdsTarget {
    /// To the slots in [`Read::uploads`]. Nothing goes to host memory.
    Slots,
    /// To this device address in the GDS buffer, and from there also to host memory: the host checks what the GPU
    /// decodes.
    Buffer(u64),
}

impl Read {
    /// Returns the name of the value in the cache.
    pub fn name(&self) -> &str {
        self.object.name.as_deref().unwrap_or(&self.key)
    }

    /// Returns which bytes of the value are read.
    pub fn byte_range(&self) -> ByteRange {
        match self.range {
            ReadRange::Whole | ReadRange::Exact => ByteRange::Whole,
            ReadRange::From(offset) => ByteRange::From(offset),
        }
    }

    /// Returns the bytes that were read of a value of `size` bytes. If a whole value is longer than the destination,
    /// nothing was read, and the result is `size`.
    ///
    /// # Errors
    /// If the value must have a known length and has another one.
    pub fn fits(&self, size: u64) -> Result<usize> {
        match self.range {
            ReadRange::From(_) => Ok(self.len),
            ReadRange::Whole => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
            ReadRange::Exact if size == self.len as u64 => Ok(self.len),
            ReadRange::Exact => Err(Error::damaged(format!(
                "expected {} bytes, but found {size}; the chunk is truncated or isn't what the metadata says",
                self.len
            ))),
        }
    }
}

/// Which bytes of a key are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadRange {
    /// The whole value, to a destination that is long enough for what usual encoders write. If the value is longer,
    /// nothing is read.
    Whole,
    /// The whole value, which must be as long as the destination.
    Exact,
    /// As many bytes as the destination has, from this offset in the object.
    From(u64),
}
