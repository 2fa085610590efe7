//! Handles chunks after they were read, decoded or failed: they go to decoders, serve the batches that need them, and
//! are kept, evicted or removed.

use dali_zarr_kernels::Layout;

use super::batches::JobSource;
use super::chunk_table::ChunkState;
use super::queue::Wanted;
use super::{Block, Scheduler};
use crate::chunk_index::{Location, Route};
use crate::error::{Error, Result};
use crate::memory::arena;
use crate::messages::{GroupId, Handle, Item, Outcome, Served, Task};
use crate::stats::Stats;
use crate::store::{ByteRange, Extent};

/// Decode tasks have about this many decoded bytes, so that handing them over costs little.
const TASK_BYTES: usize = 256 << 10;

/// In place of the first batch that needs a chunk, if none is known. Such chunks are evicted first.
const NOT_YET: u64 = u64::MAX;

impl Scheduler {
    // ---- reads ----

    pub(super) fn fetched(&mut self, id: GroupId, result: Result<Option<usize>>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let members = std::mem::take(&mut group.chunks);
        let to = group.to;
        let read = match result {
            Ok(Some(read)) if read <= to.len => read,
            Ok(Some(bytes)) => {
                for (handle, ..) in members {
                    self.oversized(id, handle, bytes);
                }
                return;
            }
            other => {
                // References may be wrong for single chunks. So each chunk of a failed merged read is read again alone.
                let again = members.len() > 1 && other.is_err();
                for (handle, ..) in members {
                    self.release_group(id, 1);
                    if again && matches!(self.chunks[handle].place.location, Location::Range(_)) {
                        self.read_unmerged(handle);
                        continue;
                    }
                    let chunk = &self.chunks[handle];
                    let state = match &other {
                        Err(e) => ChunkState::Failed(e.clone()),
                        // The shard was deleted after its index was read. Its chunks are not fill values.
                        _ if matches!(chunk.place.location, Location::Shard(..)) => {
                            ChunkState::Failed(Error::runtime(format!(
                                "{}: the shard vanished while it was read",
                                self.s.shared.chunk_index.name(chunk.id)
                            )))
                        }
                        _ => ChunkState::Missing,
                    };
                    self.resolve(handle, state);
                }
                return;
            }
        };
        Stats::add(&self.s.shared.stats.chunks_read, members.len() as u64);
        if let Some(staging) = group.staging {
            group.staging = Some(self.s.staging.arena.shrink(staging, read));
        }
        if let (Some(gds_buffer), Some(block)) = (group.gds_buffer, &mut self.s.gds_buffer) {
            group.gds_buffer = Some(block.arena.shrink(gds_buffer, read));
        }
        let on_gpu = self.s.lanes.is_some();
        let mut items: Vec<Handle> = Vec::new();
        let mut bytes = 0;
        for (handle, offset, len) in members {
            let uploaded = self.is_uploaded(handle);
            let chunk = &mut self.chunks[handle];
            if std::mem::replace(&mut chunk.read, true) {
                Stats::add(&self.s.shared.stats.chunks_read_again, 1);
            }
            if uploaded {
                (chunk.state, chunk.layout) = (ChunkState::Ready, Layout::NONE);
                Stats::add(&self.s.shared.stats.chunks_uncompressed, 1);
                self.release_group(id, 1);
                self.serve_ready(handle, 1);
                continue;
            }
            chunk.payload = Some((id, to.part(offset, len.unwrap_or(read))));
            let (route, decoded) = (chunk.place.route, chunk.place.decoded);
            if on_gpu && route != Route::Cpu {
                self.queue_for_lane(handle);
                continue;
            }
            bytes += decoded;
            items.push(handle);
            if bytes >= TASK_BYTES {
                self.decode(&items);
                items.clear();
                bytes = 0;
            }
        }
        if !items.is_empty() {
            self.decode(&items);
        }
    }

    pub(super) fn release_group(&mut self, id: GroupId, chunks: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.remaining -= chunks;
        if group.remaining == 0
            && let Some(group) = self.groups.remove(&id)
        {
            if let Some(staging) = group.staging {
                self.s.staging.arena.release(staging);
            }
            if let (Some(gds_buffer), Some(block)) = (group.gds_buffer, &mut self.s.gds_buffer) {
                block.arena.release(gds_buffer);
            }
        }
    }

    /// Gives chunks to a decode thread. If batches are delivered to the CPU, the jobs of active users go with them.
    fn decode(&mut self, handles: &[Handle]) {
        let mut task = Task::default();
        for &handle in handles {
            let decoded = self.decoded_span(handle);
            let chunk = &self.chunks[handle];
            let Some((_, encoded)) = chunk.payload else { continue };
            let (id, output_span) = (chunk.id, chunk.output_span.is_some());
            let first = task.assembly.jobs.len();
            if self.s.lanes.is_none() {
                self.serve_decoding(handle, &mut task.assembly);
                // A chunk that is decoded to an output needs no job.
                if output_span {
                    task.assembly.jobs.truncate(first);
                }
            } else {
                let chunk = &mut self.chunks[handle];
                chunk.state = ChunkState::Decoding;
                chunk.pins += 1;
            }
            let jobs = first..task.assembly.jobs.len();
            task.items.push(Item { id, handle, encoded, decoded, in_place: encoded == decoded, jobs });
        }
        let n = task.assembly.jobs.len();
        task.ready_jobs = n..n;
        self.cpu_tasks_in_flight += 1;
        self.s.decode.run(task);
    }

    /// Marks a chunk as being decoded, and adds the jobs of its active users to `assembly`.
    pub(super) fn serve_decoding(&mut self, handle: Handle, assembly: &mut crate::messages::Assembly) {
        // The lane that decodes the chunk sets the order of its bytes.
        self.chunks[handle].layout = Layout::NONE;
        let from = self.job_source(handle);
        let chunk = &mut self.chunks[handle];
        chunk.state = ChunkState::Decoding;
        chunk.pins += 1;
        // A chunk that is decoded to an output serves only the user that it was admitted for.
        let most = if chunk.output_span.is_some() { 1 } else { usize::MAX };
        let served = self.batches.serve(chunk, from, most, assembly);
        Stats::add(&self.s.shared.stats.chunks_from_memory, served.saturating_sub(1) as u64);
    }

    /// Where the jobs of a chunk read its elements.
    fn job_source(&self, handle: Handle) -> JobSource {
        let chunk = &self.chunks[handle];
        match (&chunk.state, chunk.slot) {
            (ChunkState::Missing, _) => JobSource::Missing,
            (_, Some(slot)) => {
                let base = self.s.slots.as_ref().unwrap_or(&self.s.staging).base;
                JobSource::Slot(base + slot.offset as u64, chunk.layout)
            }
            (_, None) => JobSource::Slot(0, Layout::NONE),
        }
    }

    // ---- chunks whose fate is known ----

    /// A task or wave ended: its chunks are decoded or failed, and its jobs have run.
    pub(super) fn completed(&mut self, outcomes: Vec<Outcome>, served: &[Served], pinned: &[Handle]) {
        self.batches.served(served);
        for &handle in pinned {
            self.chunks[handle].pins -= 1;
            self.retire(handle);
        }
        for Outcome { handle, result } in outcomes {
            let chunk = &mut self.chunks[handle];
            chunk.pins -= 1;
            match result {
                Ok(layout) => chunk.layout = layout,
                Err(e) => {
                    self.undecodable(handle, e);
                    continue;
                }
            }
            chunk.serving.clear();
            chunk.output_span = None;
            chunk.state = ChunkState::Ready;
            let (payload, host_decoded, slot) = (chunk.payload.take(), chunk.host_decoded.take(), chunk.slot);
            if let Some(host_decoded) = host_decoded {
                self.s.staging.arena.release(host_decoded);
            }
            if let Some((group, _)) = payload {
                self.release_group(group, 1);
            }
            match slot {
                Some(_) => self.serve_resolved(handle),
                None => self.requeue(handle),
            }
        }
    }

    /// Fails a chunk that can't be decoded, and removes it from the cache: its bytes may have been damaged on the way.
    pub(super) fn undecodable(&mut self, handle: Handle, error: Error) {
        self.forget(handle);
        self.resolve(handle, ChunkState::Failed(error));
    }

    fn forget(&self, handle: Handle) {
        let (chunk_index, Some(cache)) = (&self.s.shared.chunk_index, &self.s.shared.cache) else { return };
        let chunk = &self.chunks[handle];
        let number = chunk_index.store_number(chunk.id.array, chunk.id.part);
        let (part, len) = match chunk.place.location {
            Location::Key | Location::Unread(_) => (ByteRange::Whole, 0),
            Location::Range(_) => {
                // It may have been read alone, or in a merged read. The cache names these in different ways.
                if let Some(Extent { object, offset, len, .. }) = chunk_index.extent(chunk.id) {
                    cache.forget(&cache.name(number, &object, ByteRange::From(offset), len as usize));
                }
                (ByteRange::Whole, 0)
            }
            Location::Shard(shard, entry) => match self.shards.range(shard, entry) {
                Some((offset, len)) => (ByteRange::From(offset), len as usize),
                None => return,
            },
        };
        cache.forget(&cache.name(number, &chunk_index.key(chunk.id), part, len));
    }

    /// A chunk is missing or failed: frees its memory and serves its active users.
    pub(super) fn resolve(&mut self, handle: Handle, state: ChunkState) {
        if matches!(state, ChunkState::Missing) {
            Stats::add(&self.s.shared.stats.chunks_missing, 1);
        }
        let chunk = &mut self.chunks[handle];
        let serving = std::mem::take(&mut chunk.serving);
        let (slot, host_decoded, payload) = (chunk.slot.take(), chunk.host_decoded.take(), chunk.payload.take());
        chunk.output_span = None;
        if let ChunkState::Failed(e) = &state {
            for number in serving {
                if let Some(batch) = self.batches.get_mut(number) {
                    batch.error.get_or_insert_with(|| e.clone());
                }
            }
        }
        chunk.state = state;
        if let Some(slot) = slot {
            self.slots().arena.release(slot);
        }
        if let Some(host_decoded) = host_decoded {
            self.s.staging.arena.release(host_decoded);
        }
        if let Some((group, _)) = payload {
            self.release_group(group, 1);
        }
        self.serve_resolved(handle);
    }

    /// Serves the active users of a chunk that is decoded, missing or failed.
    pub(super) fn serve_resolved(&mut self, handle: Handle) {
        self.serve_ready(handle, 0);
    }

    /// As [`Self::serve_resolved`], where the chunk was read for `fresh` of the uses. Only the others count as served
    /// from memory.
    fn serve_ready(&mut self, handle: Handle, fresh: usize) {
        let from = self.job_source(handle);
        let chunk = &mut self.chunks[handle];
        if let Some(&(batch, _)) = chunk.users.first() {
            self.evictable.remove(&(batch, handle));
            if matches!(chunk.state, ChunkState::Failed(_)) {
                self.batches.fail(chunk);
            } else {
                let served = self.batches.serve(chunk, from, usize::MAX, &mut self.ready_jobs.assembly);
                if served > 0 {
                    chunk.serving.clear();
                    chunk.pins += 1;
                    self.ready_jobs.pinned.push(handle);
                }
                if matches!(chunk.state, ChunkState::Ready) {
                    Stats::add(&self.s.shared.stats.chunks_from_memory, served.saturating_sub(fresh) as u64);
                }
            }
        }
        self.retire(handle);
    }

    /// On the CPU, sends the ready jobs to a decode thread. On the GPU they wait for the next wave.
    pub(super) fn flush_ready_jobs(&mut self) {
        if self.s.lanes.is_some() || self.ready_jobs.assembly.served.is_empty() {
            return;
        }
        let ready_jobs = std::mem::take(&mut self.ready_jobs);
        let n = ready_jobs.assembly.jobs.len();
        self.cpu_tasks_in_flight += 1;
        self.s.decode.run(Task {
            items: Vec::new(),
            assembly: ready_jobs.assembly,
            ready_jobs: 0..n,
            pinned: ready_jobs.pinned,
        });
    }

    /// Keeps, evicts or removes a resolved chunk that no task uses. If planned batches need it, it is kept, provided
    /// that memory may hold it until then or that nothing waits for memory. Otherwise it would be evicted at once,
    /// which costs throughput for small chunks. If no planned batch needs it, it is removed, unless the next batch is
    /// still being planned: that batch may need it, and a late planner must not cost reads.
    fn retire(&mut self, handle: Handle) {
        let (room, late) = (self.shortage.is_none(), self.planner_is_late());
        let chunk = &mut self.chunks[handle];
        if chunk.pins > 0 || !chunk.state.is_resolved() {
            return;
        }
        match (chunk.users.first(), chunk.slot) {
            (Some(&(batch, _)), Some(slot)) => {
                let until = (batch.saturating_sub(self.batches.active_end()) + 1) as usize;
                let block = self.s.slots.as_ref().unwrap_or(&self.s.staging);
                // Shuffled batches need the same chunks again, so the bytes needed until then don't exceed a shuffle
                // window.
                let ahead =
                    until.saturating_mul(self.s.rules.working_set).min(self.s.rules.shuffled.unwrap_or(usize::MAX));
                if ahead <= block.arena.capacity() || room {
                    self.evictable.insert((batch, handle));
                } else {
                    chunk.slot = None;
                    self.slots().arena.release(slot);
                    self.requeue(handle);
                }
            }
            // Missing or failed: it takes no memory.
            (Some(_), None) => {}
            (None, Some(_)) if late && room => {
                self.evictable.insert((NOT_YET, handle));
            }
            (None, slot) => {
                self.chunks.remove(handle);
                if let Some(slot) = slot {
                    self.slots().arena.release(slot);
                }
            }
        }
    }

    /// Sets the first batch that needs a chunk which was kept without a known user.
    pub(super) fn keep_for(&mut self, handle: Handle, first: u64) {
        if self.evictable.remove(&(NOT_YET, handle)) {
            self.evictable.insert((first, handle));
        }
    }

    /// Puts a chunk back in the queue, if anyone needs it still.
    /// Puts a chunk back whose read with others failed, without the memory that it had for it.
    fn read_unmerged(&mut self, handle: Handle) {
        self.unreserve_decoded(handle);
        self.chunks[handle].unmerged = true;
        self.requeue(handle);
    }

    pub(super) fn requeue(&mut self, handle: Handle) {
        let chunk = &mut self.chunks[handle];
        chunk.state = ChunkState::Wanted;
        match chunk.users.first() {
            // It keeps its old place in the queue.
            Some(&(batch, _)) if batch < self.batches.active_end() => {
                self.queue.push_again(Wanted { batch, order: chunk.order, handle });
            }
            Some(&(batch, _)) => {
                self.wanted += 1;
                chunk.order = self.wanted;
                self.queue.push(Wanted { batch, order: self.wanted, handle });
            }
            None => self.chunks.remove(handle),
        }
    }

    /// Evicts the decoded chunk that is needed last, if a batch after `before` is the first that needs it. False if
    /// there is none.
    pub(super) fn evict(&mut self, before: u64) -> bool {
        let Some(victim) = self.victim(before) else { return false };
        self.evictable.remove(&victim);
        Stats::add(&self.s.shared.stats.evictions, 1);
        if let Some(slot) = self.chunks[victim.1].slot.take() {
            self.slots().arena.release(slot);
        }
        self.requeue(victim.1);
        true
    }

    /// The chunk that [`Self::evict`] would evict.
    pub(super) fn victim(&self, before: u64) -> Option<(u64, Handle)> {
        let active_end = self.batches.active_end();
        self.evictable.last().filter(|(batch, _)| *batch > before && *batch >= active_end).copied()
    }

    // ---- memory ----

    pub(super) fn slots(&mut self) -> &mut Block {
        self.s.slots.as_mut().unwrap_or(&mut self.s.staging)
    }

    /// Reserves `bytes`, in the slots or in staging.
    pub(super) fn reserve(&mut self, slots: bool, bytes: usize) -> Option<arena::Range> {
        let block = if slots { self.slots() } else { &mut self.s.staging };
        block.arena.take(bytes)
    }
}
