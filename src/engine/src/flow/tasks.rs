//! What the scheduler hands to other threads. Addresses in it are valid until the matching event arrives.

use std::sync::Arc;

use dali_zarr_kernels::{Job, Layout};

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::memory::{Lease, Span};
use crate::plan::ChunkId;
use crate::store::ByteRange;

use super::catalog::Catalog;
use super::chunks::Handle;
use super::shards::ShardId;

/// Names a read, and the chunks that wait for it.
pub(crate) type GroupId = u64;

/// Who reads for the scheduler.
pub(crate) trait Fetch: Send {
    /// Starts a read to `to`; [`super::Event::Fetched`] follows, or [`super::Event::Uploading`] and [`super::Event::Uploaded`].
    fn read(&mut self, read: Read, to: Lease);
    /// Starts to read the index of the shard at `key`; [`super::Event::Index`] follows.
    fn index(&mut self, shard: ShardId, key: String);
    /// Reports copies to the device that are done while their threads are busy. They report them themselves after their next
    /// reads; but on a file system that hangs these may take for ever, and what is there needn't wait for them.
    fn report_copies(&self);
}

/// Who decodes on the CPU for the scheduler, and assembles there what is delivered there.
pub(crate) trait Decode: Send {
    /// Starts a task; [`super::Event::Decoded`] follows.
    fn run(&self, task: Task);
}

/// One use of a chunk by a batch (its number in the reader's sequence), whose jobs have been handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub batch: u64,
    /// How many uses.
    pub uses: u32,
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
    pub past_host: Option<PastHost>,
}

/// Where a read of a file goes on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PastHost {
    /// To the slots that [`Read::uploads`] names; nothing of it goes to host memory.
    Slots,
    /// To this address, and from there to host memory too: what the GPU decodes is checked on the host before.
    Landing(u64),
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

/// Jobs, and what it means to batches that they have run.
#[derive(Default)]
pub(crate) struct Work {
    pub jobs: Vec<Job>,
    pub served: Vec<Served>,
    /// Raw `CUevent`s after which the outputs may be written.
    pub after: Vec<u64>,
}

impl Work {
    /// The jobs that were just added serve one use of a batch, whose outputs may be written after `ready`.
    pub fn serves(&mut self, batch: u64, ready: Option<u64>) {
        match self.served.last_mut() {
            Some(last) if last.batch == batch => last.uses += 1,
            _ => {
                self.served.push(Served { batch, uses: 1 });
                self.after.extend(ready);
            }
        }
    }
}

/// One chunk for a decode thread.
pub(crate) struct Item {
    pub id: ChunkId,
    pub handle: Handle,
    pub encoded: Span,
    pub decoded: Span,
    /// Uncompressed and read to where it belongs: there is nothing to decode.
    pub in_place: bool,
    /// Into [`Work::jobs`], to be run once the chunk is decoded.
    pub jobs: std::ops::Range<usize>,
}

/// Work for one decode thread: chunks to be decoded, jobs to be run after them, and jobs that need no decoding.
#[derive(Default)]
pub(crate) struct Task {
    pub items: Vec<Item>,
    pub work: Work,
    /// Jobs that run after all items, whatever became of them.
    pub loose: std::ops::Range<usize>,
    /// Chunks whose memory the loose jobs read.
    pub pinned: Vec<Handle>,
}

/// What became of one chunk: the order in which its decoded bytes lie in memory, or why there are none.
pub(crate) struct Outcome {
    pub handle: Handle,
    pub result: Result<Layout>,
}

/// Shared by the threads that work for one reader.
#[derive(Clone)]
pub(crate) struct Shared {
    pub catalog: Arc<Catalog>,
    pub ops: Arc<crate::assemble::Ops>,
    pub stats: Arc<super::stats::Stats>,
    pub cache: Option<Arc<Cache>>,
    pub events: crossbeam_channel::Sender<super::Event>,
    /// Set when the reader is dropped: work that is still queued is skipped.
    pub stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Shared {
    pub fn stopped(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }
}
