//! What the scheduler remembers of chunks and of reads.

use std::ops::{Index, IndexMut};

use dali_zarr_kernels::Layout;
use smallvec::SmallVec;

use super::queue::Wanted;
use crate::chunk_index::Place;
use crate::error::Error;
use crate::memory::{Span, arena};
use crate::messages::{GroupId, Handle};
use crate::plan::{ChunkId, ChunkMap};

/// Where a chunk is on its way.
#[derive(Debug)]
pub(super) enum ChunkState {
    /// In the queue of wanted chunks.
    Wanted,
    /// Its shard's index is being read.
    AwaitsIndex,
    /// Being read.
    Fetching,
    /// Read (or also decoded by the CPU), waiting for a lane of the GPU.
    Fetched,
    /// In a task or wave.
    Decoding,
    /// Decoded, in its slot.
    Ready,
    /// Not in the store.
    Missing,
    /// It can't be had.
    Failed(Error),
    /// Nobody needs it: its handle is free.
    Gone,
}

impl ChunkState {
    /// Whether its fate is known: its users can be served.
    pub fn is_resolved(&self) -> bool {
        matches!(self, Self::Ready | Self::Missing | Self::Failed(_))
    }
}

/// A chunk that a planned batch needs.
#[derive(Debug)]
pub(super) struct Chunk {
    pub id: ChunkId,
    /// Where it lies and how it is decoded.
    pub place: Place,
    pub state: ChunkState,
    /// When it began to be wanted: its place in the queue among the chunks of one batch.
    pub order: u64,
    /// Whether it was read before, and dropped since.
    pub read: bool,
    /// Bytes of its value, if they are more than is usually reserved ([`crate::scheduler::oversized`]).
    pub oversized: Option<usize>,
    /// Whether it isn't read together with others of its object: that failed.
    pub unmerged: bool,
    /// Batches that haven't been served yet, in order, and the number of the use in the batch's plan.
    pub users: SmallVec<[(u64, u32); 2]>,
    /// Batches that the task or wave in progress serves.
    pub serving: SmallVec<[u64; 2]>,
    /// Its decoded bytes, unless they go straight to an output.
    pub slot: Option<arena::Range>,
    /// The order of the bytes in the slot, once they are there.
    pub layout: Layout,
    /// Tasks and waves that use its memory.
    pub pins: u32,
    /// Its encoded bytes, and the read that they came with.
    pub payload: Option<(GroupId, Span)>,
    /// Where its decoded bytes go, if that isn't a slot: part of an output.
    pub output_span: Option<Span>,
    /// Decoded by the CPU on behalf of a GPU: page-locked memory.
    pub host_decoded: Option<arena::Range>,
}

/// The chunks that planned batches need, by their ids and by handles that cost nothing to look up.
#[derive(Default)]
pub(super) struct Table {
    handles: ChunkMap<Handle>,
    chunks: Vec<Chunk>,
    free: Vec<Handle>,
}

impl Table {
    /// The chunk, and whether it is new here: then it is wanted, as number `order`.
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
            layout: Layout::NONE,
            pins: 0,
            payload: None,
            output_span: None,
            host_decoded: None,
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

    /// All chunks that aren't forgotten.
    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().filter(|chunk| !matches!(chunk.state, ChunkState::Gone))
    }

    /// All chunks, and where they lie.
    pub fn places(&mut self) -> impl Iterator<Item = (ChunkId, &mut Place)> {
        self.chunks.iter_mut().filter(|c| !matches!(c.state, ChunkState::Gone)).map(|c| (c.id, &mut c.place))
    }

    /// Forgets a chunk.
    pub fn remove(&mut self, handle: Handle) {
        let chunk = &mut self[handle];
        chunk.state = ChunkState::Gone;
        chunk.order = 0;
        let id = chunk.id;
        self.handles.remove(&id);
        self.free.push(handle);
    }

    /// Whether an entry of the queue is up to date: still wanted, since then, and by that batch first.
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

/// A chunk of a read: offset in the read, encoded bytes (`None`: all that was read).
pub(super) type Member = (Handle, usize, Option<usize>);

/// A read in progress, or whose bytes are still in use.
#[derive(Debug)]
pub(super) struct Group {
    /// Memory that it was read to, if reserved for it alone.
    pub staging: Option<arena::Range>,
    /// Device memory that it was read to.
    pub gds_buffer: Option<arena::Range>,
    pub chunks: Vec<Member>,
    pub to: Span,
    /// Chunks that still need the memory.
    pub remaining: u32,
    /// Whether it is a request.
    pub remote: bool,
}
