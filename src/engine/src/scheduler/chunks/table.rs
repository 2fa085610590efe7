//! The table of chunks.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::ops::{Index, IndexMut};

use super::chunk::Chunk;
use super::queue::Wanted;
use super::state::ChunkState;
use crate::chunk_index::{ChunkInfo, Location};
use crate::messages::Handle;
use dali_zarr_samples::plan::{ChunkId, ChunkMap};

/// The chunks that planned batches need. They are found by id, or by a handle without a look-up.
#[derive(Default)]
pub(super) struct Table {
    handles: ChunkMap<Handle>,
    chunks: Vec<Chunk>,
    free: FreeHandles,
}

/// Handles of no chunk. Chunks that are planned one after the other get neighbouring handles if possible, however their
/// reads and waves end: so their memory is fetched ahead of its use.
#[derive(Default)]
struct FreeHandles {
    /// For each 64 handles the free ones, as bits.
    blocks: Vec<u64>,
    /// The blocks with free handles. The first one has had the longest time to become free as a whole.
    order: VecDeque<usize>,
}

impl FreeHandles {
    fn push(&mut self, handle: Handle) {
        let (block, bit) = (handle as usize / 64, 1 << (handle % 64));
        if self.blocks.len() <= block {
            self.blocks.resize(block + 1, 0);
        }
        if self.blocks[block] == 0 {
            self.order.push_back(block);
        }
        debug_assert!(self.blocks[block] & bit == 0, "freed twice: {handle}");
        self.blocks[block] |= bit;
    }

    fn pop(&mut self) -> Option<Handle> {
        let &block = self.order.front()?;
        let free = &mut self.blocks[block];
        let first = free.trailing_zeros();
        *free &= *free - 1;
        if *free == 0 {
            self.order.pop_front();
        }
        Some(block as Handle * 64 + first)
    }
}

impl Table {
    /// Returns the handle of a chunk, and whether the chunk was added. A new chunk is wanted, with this place in the
    /// queue.
    pub fn entry(&mut self, id: ChunkId, info: ChunkInfo, order: u64) -> (Handle, bool) {
        let entry = match self.handles.entry(id) {
            Entry::Occupied(entry) => return (*entry.get(), false),
            Entry::Vacant(entry) => entry,
        };
        let handle = match self.free.pop() {
            Some(handle) => {
                self.chunks[handle as usize].renew(id, info, order);
                handle
            }
            None => {
                self.chunks.push(Chunk::new(id, info, order));
                (self.chunks.len() - 1) as Handle
            }
        };
        entry.insert(handle);
        (handle, true)
    }

    /// All chunks in the table.
    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().filter(|chunk| !matches!(chunk.state(), ChunkState::Gone))
    }

    /// Gives the chunks that lie at `unknown` the location that `find` returns.
    pub fn locate(&mut self, unknown: Location, find: impl Fn(ChunkId) -> Location) {
        let in_table = self.chunks.iter_mut().filter(|chunk| !matches!(chunk.state(), ChunkState::Gone));
        in_table
            .filter(|chunk| chunk.info().location == unknown)
            .for_each(|chunk| chunk.set_location(find(chunk.id())));
    }

    /// Removes a chunk.
    pub fn remove(&mut self, handle: Handle) {
        let chunk = &mut self[handle];
        chunk.leave();
        let id = chunk.id();
        self.handles.remove(&id);
        self.free.push(handle);
    }

    /// Whether an entry of the queue is up to date: the chunk is still wanted, was not queued again since, and this
    /// batch is its first user.
    pub fn wanted(&self, w: &Wanted) -> bool {
        let chunk = &self[w.handle];
        chunk.order() == w.order && matches!(chunk.state(), ChunkState::Wanted) && chunk.first_batch() == Some(w.batch)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_handles_come_in_rows() {
        let mut free = FreeHandles::default();
        // In any order: all of the first block, and some of the second.
        (0..64).map(|i| i * 37 % 64).chain([70, 65]).for_each(|handle| free.push(handle));
        let popped: Vec<_> = std::iter::from_fn(|| free.pop()).collect();
        assert_eq!(popped, (0..64).chain([65, 70]).collect::<Vec<_>>());
        free.push(64);
        assert_eq!((free.pop(), free.pop()), (Some(64), None));
    }
}
