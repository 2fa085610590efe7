//! The table of chunks.

use std::ops::{Index, IndexMut};

use dali_zarr_kernels::Layout;
use smallvec::SmallVec;

use super::queue::Wanted;
use crate::chunk_index::Place;
use crate::error::Error;
use crate::memory::{Lease, arena};
use crate::messages::{Handle, Payload};
use crate::plan::{ChunkId, ChunkMap};

/// The state of a chunk.
#[derive(Debug)]
pub(in crate::scheduler) enum ChunkState {
    /// In the queue of wanted chunks.
    Wanted,
    /// Its shard's index is being read.
    AwaitsIndex,
    /// Being read.
    Fetching,
    /// Read, or decoded by the CPU for a GPU. It waits for a lane.
    Fetched,
    /// In a task of the decode threads, or in a wave.
    Decoding,
    /// Decoded, in its slot.
    Ready,
    /// The store does not have it.
    Missing,
    /// It could not be read or decoded.
    Failed(Error),
    /// Removed from the table. Its handle is free.
    Gone,
}

impl ChunkState {
    /// Whether the outcome is known (decoded, missing or failed), so that its users can be served.
    pub fn is_resolved(&self) -> bool {
        matches!(self, Self::Ready | Self::Missing | Self::Failed(_))
    }
}

/// A part of an output of a batch. A chunk is decoded there if the batch needs a copy of the whole chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct OutputPart {
    /// The batch's number.
    pub batch: u64,
    /// The output's number in the batch.
    pub output: usize,
    /// The offset of the first byte in the output.
    pub offset: usize,
}

/// A chunk that a planned batch needs.
#[derive(Debug)]
pub(in crate::scheduler) struct Chunk {
    pub id: ChunkId,
    /// Where the chunk lies and how it is decoded.
    pub place: Place,
    pub state: ChunkState,
    /// Its place in the queue among the chunks of one batch.
    pub order: u64,
    /// Whether it was read since it was added to the table. If it is read again, it had not been kept.
    pub read: bool,
    /// Encoded bytes, if they are more than is usually reserved ([`crate::scheduler::oversized`]).
    pub oversized: Option<usize>,
    /// Whether it must be read alone, because a merged read with it failed.
    pub unmerged: bool,
    /// Uses that have not been served, in order: the batch, and the use in the batch's plan.
    pub users: SmallVec<[(u64, u32); 2]>,
    /// Batches that the current task or wave serves.
    pub serving: SmallVec<[u64; 2]>,
    /// Device memory for its decoded bytes, if batches are delivered to a GPU.
    pub slot: Option<arena::Range>,
    /// Host memory for its decoded bytes, if the CPU decodes it. While a read or a decode thread writes there, it has
    /// the lease, and this is `None`.
    pub decoded: Option<Lease>,
    /// The part of an output that `decoded` is a lease of. `None`: it is one of staging.
    pub output: Option<OutputPart>,
    /// The order of its decoded bytes in memory, once it is decoded.
    pub layout: Layout,
    /// Number of tasks and waves that use its memory.
    pub pins: u32,
    /// Its bytes in host memory. They are encoded, unless the CPU has decoded the chunk for a GPU. `None` while a
    /// decode thread or a lane has them.
    pub payload: Option<Payload>,
    /// Whether a decode thread decodes it now although the GPU could.
    pub is_shared: bool,
}

impl Chunk {
    /// Whether memory is reserved for its decoded bytes, and no thread has it.
    pub fn has_decoded(&self) -> bool {
        self.slot.is_some() || self.decoded.is_some()
    }
}

/// The chunks that planned batches need. They are found by id, or by a handle without a look-up.
#[derive(Default)]
pub(super) struct Table {
    handles: ChunkMap<Handle>,
    chunks: Vec<Chunk>,
    free: Vec<Handle>,
}

impl Table {
    /// Returns the handle of a chunk, and whether the chunk was added. A new chunk is wanted, with this place in the
    /// queue.
    pub fn entry(&mut self, id: ChunkId, place: Place, order: u64) -> (Handle, bool) {
        if let Some(&handle) = self.handles.get(&id) {
            return (handle, false);
        }
        let chunk = Chunk {
            id,
            place,
            state: ChunkState::Wanted,
            order,
            read: false,
            oversized: None,
            unmerged: false,
            users: SmallVec::new(),
            serving: SmallVec::new(),
            slot: None,
            decoded: None,
            output: None,
            layout: Layout::NONE,
            pins: 0,
            payload: None,
            is_shared: false,
        };
        let handle = match self.free.pop() {
            Some(handle) => {
                self[handle] = chunk;
                handle
            }
            None => {
                self.chunks.push(chunk);
                (self.chunks.len() - 1) as Handle
            }
        };
        self.handles.insert(id, handle);
        (handle, true)
    }

    /// All chunks in the table.
    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().filter(|chunk| !matches!(chunk.state, ChunkState::Gone))
    }

    /// All chunks in the table, and where each lies.
    pub fn places(&mut self) -> impl Iterator<Item = (ChunkId, &mut Place)> {
        self.chunks.iter_mut().filter(|c| !matches!(c.state, ChunkState::Gone)).map(|c| (c.id, &mut c.place))
    }

    /// Removes a chunk.
    pub fn remove(&mut self, handle: Handle) {
        let chunk = &mut self[handle];
        chunk.state = ChunkState::Gone;
        chunk.order = 0;
        let id = chunk.id;
        self.handles.remove(&id);
        self.free.push(handle);
    }

    /// Whether an entry of the queue is up to date: the chunk is still wanted, was not queued again since, and this
    /// batch is its first user.
    pub fn wanted(&self, w: &Wanted) -> bool {
        let chunk = &self[w.handle];
        chunk.order == w.order
            && matches!(chunk.state, ChunkState::Wanted)
            && chunk.users.first().is_some_and(|&(batch, _)| batch == w.batch)
    }
}

impl Index<Handle> for Table {
    type Output = Chunk;
    fn index(&self, handle: Handle) -> &Chunk {
        &self.chunks[handle as usize]
    }
}

impl IndexMut<Handle> for Table {
    fn index_mut(&mut self, handle: Handle) -> &mut Chunk {
        &mut self.chunks[handle as usize]
    }
}
