//! Reads of chunks and of shard indexes.

use std::sync::Arc;

use crate::chunk_index::ShardId;
use crate::error::{Error, Result};
use crate::memory::Lease;
use crate::store::ByteRange;

/// Names a read, and the chunks that wait for it.
pub(crate) type GroupId = u64;

/// Who reads for the scheduler.
pub(crate) trait Fetch: Send {
    /// Starts a read to `to`; [`crate::messages::Event::Fetched`] follows, or [`crate::messages::Event::Uploading`] and [`crate::messages::Event::Uploaded`].
    fn read(&mut self, read: Read, to: Lease);
    /// Starts to read the index of the shard at `key`; [`crate::messages::Event::Index`] follows.
    fn index(&mut self, shard: ShardId, key: String);
    /// Reports copies to the device that are done while their threads are busy. They report them themselves after their next
    /// reads; but on a file system that hangs these may take for ever, and what is there needn't wait for them.
    fn report_copies(&self);
}

/// One read.
pub(crate) struct Read {
    pub group: GroupId,
    pub array: u16,
    pub part: u16,
    pub key: String,
    /// If a range is one of an object that holds several values: its name.
    pub object: Option<Arc<str>>,
    pub range: ReadRange,
    /// The version that the value, or the object, must have; `None`: any.
    pub version: Option<Arc<str>>,
    /// Bytes of its destination.
    pub len: usize,
    /// Parts of it that are copied to the device as soon as they are read: offset, bytes, device address.
    pub uploads: Vec<(usize, usize, u64)>,
    /// The chunks that a range is read for, in order: offset in the range, bytes. Only if there is a cache.
    pub pieces: Vec<(usize, usize)>,
    /// If files are read to the device: where to.
    pub gds: Option<GdsTarget>,
}

/// Where a read of a file goes on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GdsTarget {
    /// To the slots that [`Read::uploads`] names; nothing of it goes to host memory.
    Slots,
    /// To this address, and from there to host memory too: what the GPU decodes is checked on the host before.
    Buffer(u64),
}

impl Read {
    /// What caches call the value that bytes are of.
    pub fn name(&self) -> &str {
        self.object.as_deref().unwrap_or(&self.key)
    }

    /// Which bytes of the value are read.
    pub fn byte_range(&self) -> ByteRange {
        match self.range {
            ReadRange::Whole | ReadRange::Exact => ByteRange::Whole,
            ReadRange::From(offset) => ByteRange::From(offset),
        }
    }

    /// The bytes that were read of a value of `size` bytes; of a whole value that is longer than the span, nothing was read, and
    /// they are `size`.
    ///
    /// # Errors
    /// If the value hasn't the length that is known.
    pub fn fits(&self, size: u64) -> Result<usize> {
        match self.range {
            ReadRange::From(_) => Ok(self.len),
            ReadRange::Whole => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
            ReadRange::Exact if size == self.len as u64 => Ok(self.len),
            ReadRange::Exact => Err(Error::runtime(format!(
                "expected {} bytes, but found {size}; the chunk is truncated or isn't what the metadata says",
                self.len
            ))),
        }
    }
}

/// Which bytes of a key are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadRange {
    /// All of it, into a span that is long enough for what writers in use write. If it is longer nothing is read.
    Whole,
    /// All of it. Its length must be that of the destination.
    Exact,
    /// As many bytes as the destination has, from this offset on.
    From(u64),
}
