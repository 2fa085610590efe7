//! The chunks that planned batches need: a table ([`table`]) of all chunks ([`chunk`]), the queue of chunks to be read
//! ([`queue`]), and the decoded chunks that are kept for later batches.

mod chunk;
mod place;
mod queue;
mod state;
mod table;
#[cfg(test)]
mod tests_chunk;

pub(super) use chunk::Chunk;
pub(super) use place::{DecodedMemory, OutputPart, OutputPlace};
pub(super) use queue::Wanted;
pub(super) use state::ChunkState;

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use crate::chunk_index::{ChunkInfo, Location};
use crate::messages::Handle;
use dali_zarr_samples::plan::{ChunkId, ChunkMap};
use queue::Queue;
use table::Table;

/// The number that takes the place of a batch's number for a kept chunk that no planned batch needs. It is larger than
/// all others, so such chunks are evicted first.
const NOT_YET: u64 = u64::MAX;

/// Most chunks of which is recorded that they were read and not kept. More are counted as if they were new.
const MOST_DROPPED: usize = 1 << 17;

/// The chunks that planned batches need, by handle.
#[derive(Default)]
pub(super) struct Chunks {
    table: Table,
    queue: Queue,
    /// Counts how often any chunk was queued. The count orders the queue within a batch.
    order: u64,
    /// Decoded chunks that no active batch needs, with the first planned or foreseen batch that does ([`NOT_YET`] if none
    /// is known yet). They may be evicted when memory is short.
    kept: BTreeSet<(u64, Handle)>,
    /// Chunks that were read and not kept, and left the table, though a batch is foreseen that needs them.
    dropped: ChunkMap<()>,
}

impl Chunks {
    /// Adds a planned batch. [`Self::need`] follows for each chunk that it uses.
    pub fn plan_batch(&mut self) {
        self.queue.plan();
    }

    /// Removes the first batch, which is delivered.
    pub fn deliver_batch(&mut self) {
        self.queue.deliver();
    }

    /// Records that the last planned batch needs a chunk, for this use in its plan. A chunk that is not in the table is
    /// added and queued.
    pub fn need(&mut self, id: ChunkId, info: ChunkInfo, batch: u64, chunk_use: u32) -> Handle {
        let (handle, new) = self.table.entry(id, info, self.order + 1);
        if new {
            self.order += 1;
            self.queue.push(Wanted { batch, order: self.order, handle });
            if !self.dropped.is_empty() && self.dropped.remove(&id).is_some() {
                self.table[handle].mark_read();
            }
        } else {
            let foreseen = self.table[handle].take_foreseen().unwrap_or(NOT_YET);
            if foreseen != batch && self.kept.remove(&(foreseen, handle)) {
                self.kept.insert((batch, handle));
            }
        }
        self.table[handle].need(batch, chunk_use);
        handle
    }

    /// Records that an active batch, which is planned again, needs a chunk. As [`Self::need`] otherwise.
    pub fn need_again(&mut self, id: ChunkId, info: ChunkInfo, batch: u64, chunk_use: u32) -> Handle {
        let (handle, new) = self.table.entry(id, info, self.order + 1);
        if new {
            self.order += 1;
            if !self.dropped.is_empty() && self.dropped.remove(&id).is_some() {
                self.table[handle].mark_read();
            }
        }
        let before = self.table[handle].first_batch().unwrap_or(NOT_YET);
        let was_kept = self.kept.remove(&(before, handle));
        let chunk = &mut self.table[handle];
        chunk.need_before(batch, chunk_use);
        if was_kept {
            self.keep(handle);
        } else if matches!(chunk.state(), ChunkState::Wanted) {
            let order = chunk.order();
            self.queue.push_again(Wanted { batch, order, handle });
        }
        handle
    }

    /// Records that a batch which is not planned yet will need a chunk. [`Self::need`] follows when it is planned.
    pub fn foresee(&mut self, handle: Handle, batch: u64) {
        self.table[handle].foresee(batch);
    }

    /// Returns the first wanted chunk of the batches before `limit`.
    pub fn head(&mut self, limit: u64) -> Option<Wanted> {
        let Self { table, queue, .. } = self;
        queue.head(limit, |w| table.wanted(w))
    }

    /// Returns the entries after `head` in the queue, for batches before `limit`. Some may be out of date
    /// ([`Self::is_wanted`]).
    pub fn after(&self, head: Wanted, limit: u64) -> impl Iterator<Item = Wanted> {
        self.queue.after(head, limit)
    }

    /// Whether an entry of the queue is up to date.
    pub fn is_wanted(&self, w: &Wanted) -> bool {
        self.table.wanted(w)
    }

    /// Queues a chunk again, if a planned batch still needs it. Otherwise removes it. A batch that is only foreseen asks
    /// for it again when it is planned. `active_end` is the number of the
    /// first batch that isn't active.
    pub fn requeue(&mut self, handle: Handle, active_end: u64) {
        let chunk = &mut self.table[handle];
        chunk.want();
        if chunk.is_only_foreseen() {
            chunk.take_foreseen();
            if chunk.is_read() && self.dropped.len() < MOST_DROPPED {
                self.dropped.insert(chunk.id(), ());
            }
        }
        match chunk.first_batch() {
            // It keeps its old place in the queue.
            Some(batch) if batch < active_end => {
                self.queue.push_again(Wanted { batch, order: chunk.order(), handle });
            }
            Some(batch) => {
                self.order += 1;
                chunk.set_order(self.order);
                self.queue.push(Wanted { batch, order: self.order, handle });
            }
            None => self.table.remove(handle),
        }
    }

    /// Removes a chunk that no planned batch needs and that has no memory.
    pub fn remove(&mut self, handle: Handle) {
        self.table[handle].take_foreseen();
        self.table.remove(handle);
    }

    /// Keeps a decoded chunk for the first batch that needs it.
    pub fn keep(&mut self, handle: Handle) {
        let first = self.table[handle].first_batch().unwrap_or(NOT_YET);
        self.kept.insert((first, handle));
    }

    /// Stops keeping a chunk that is about to be used: it must not be evicted.
    pub fn unkeep(&mut self, handle: Handle) {
        if let Some(batch) = self.table[handle].first_batch() {
            self.kept.remove(&(batch, handle));
        }
    }

    /// Returns the kept chunk that is needed last. `None` if there is none, or if the first batch that needs it is
    /// active or does not come after `before`.
    pub fn victim(&self, before: u64, active_end: u64) -> Option<Handle> {
        let last = self.kept.last().filter(|(batch, _)| *batch > before && *batch >= active_end);
        last.map(|&(_, handle)| handle)
    }

    /// Like [`Self::victim`], and stops keeping the chunk.
    pub fn take_victim(&mut self, before: u64, active_end: u64) -> Option<Handle> {
        let victim = self.victim(before, active_end)?;
        self.kept.pop_last();
        Some(victim)
    }

    /// All chunks.
    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.table.iter()
    }

    /// Gives the chunks that lie at `unknown`, which stands for an unread index, the location that `find` returns.
    pub fn locate(&mut self, unknown: Location, find: impl Fn(ChunkId) -> Location) {
        self.table.locate(unknown, find);
    }
}

impl Index<Handle> for Chunks {
    type Output = Chunk;
    fn index(&self, handle: Handle) -> &Chunk {
        &self.table[handle]
    }
}

impl IndexMut<Handle> for Chunks {
    fn index_mut(&mut self, handle: Handle) -> &mut Chunk {
        &mut self.table[handle]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Route;

    fn need(chunks: &mut Chunks, number: u64, batch: u64) -> Handle {
        let id = ChunkId { array: 0, part: 0, index: number };
        let info = ChunkInfo { location: Location::Key, decoded: 1, route: Route::Raw, remote: false };
        chunks.need(id, info, batch, 0)
    }

    #[test]
    fn chunks_are_queued_once_and_again_in_their_old_places() {
        let mut chunks = Chunks::default();
        chunks.plan_batch();
        let (a, b) = (need(&mut chunks, 5, 0), need(&mut chunks, 6, 0));
        chunks.plan_batch();
        assert_eq!(need(&mut chunks, 5, 1), a, "one entry for both batches");
        assert_eq!(chunks.head(2).unwrap().handle, a);
        chunks[a].fetch();
        assert_eq!(chunks.head(2).unwrap().handle, b);
        chunks.requeue(a, 1);
        assert_eq!(chunks.head(2).unwrap().handle, a, "it is needed by an active batch");
        chunks[b].fetch();
        chunks[b].remove_uses(1);
        chunks.requeue(b, 1);
        assert_eq!(chunks.iter().count(), 1, "nobody needs the other");
    }

    #[test]
    fn the_chunk_that_is_needed_last_is_evicted_first() {
        let mut chunks = Chunks::default();
        let handles: Vec<Handle> = (0..4u64)
            .map(|batch| {
                chunks.plan_batch();
                need(&mut chunks, batch, batch)
            })
            .collect();
        handles.iter().for_each(|&handle| chunks.keep(handle));
        assert_eq!(chunks.victim(1, 1), Some(handles[3]));
        chunks.unkeep(handles[3]);
        assert_eq!(chunks.take_victim(1, 1), Some(handles[2]));
        assert_eq!(chunks.take_victim(1, 1), None, "the batch itself needs the next one");
        assert_eq!(chunks.take_victim(0, 2), None, "an active batch needs it");
        // A chunk that no planned batch needs goes first, unless one that is planned meanwhile needs it.
        chunks[handles[0]].remove_uses(1);
        chunks.keep(handles[0]);
        assert_eq!(chunks.victim(9, 1), Some(handles[0]));
        chunks.plan_batch();
        need(&mut chunks, 0, 4);
        assert_eq!((chunks.victim(4, 1), chunks.victim(3, 1)), (None, Some(handles[0])));
    }
}
