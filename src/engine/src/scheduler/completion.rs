//! What becomes of chunks once they were read, decoded or given up: they are decoded, serve the batches that need them, are
//! kept for others or forgotten. The scheduler's half that deals with chunks; see [`crate::scheduler`].

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

/// Decode tasks hold about this many decoded bytes: enough to make handing them over cheap.
const TASK_BYTES: usize = 256 << 10;

/// Stands for the first batch that needs a chunk which is kept though none is known: the first to be dropped.
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
                // Of ranges that references tell of, each may be wrong by itself: a chunk fails with its own read.
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
                        // A shard that vanished after its index was read: its chunks are no fill values.
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

    /// Gives chunks to a decode thread; if batches are delivered to the CPU, with the jobs of their active users.
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
                // A chunk that is decoded straight to its place needs no job.
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

    /// Marks a chunk as being decoded, and hands out the jobs of its active users.
    pub(super) fn serve_decoding(&mut self, handle: Handle, assembly: &mut crate::messages::Assembly) {
        // The lane that decodes it will know the order of its bytes.
        self.chunks[handle].layout = Layout::NONE;
        let from = self.job_source(handle);
        let chunk = &mut self.chunks[handle];
        chunk.state = ChunkState::Decoding;
        chunk.pins += 1;
        // What goes straight to one place serves the one user that it was admitted for.
        let most = if chunk.output_span.is_some() { 1 } else { usize::MAX };
        let served = self.batches.serve(chunk, from, most, assembly);
        Stats::add(&self.s.shared.stats.chunks_from_memory, served.saturating_sub(1) as u64);
    }

    /// Where a chunk's jobs find it.
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

    /// Tasks or waves ended: chunks are there or failed, batches have been served.
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

    /// A chunk that can't be decoded fails, and isn't in the cache for later: it may have been damaged on its way.
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
                // It may have come alone, or with others.
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

    /// A chunk's fate is known before it was decoded: it is missing, or failed.
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

    /// Serves the active users of a chunk whose fate is known.
    pub(super) fn serve_resolved(&mut self, handle: Handle) {
        self.serve_ready(handle, 0);
    }

    /// The same, if `fresh` of the uses are what it was read for.
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

    /// On the CPU loose jobs go to a decode thread at once; on the GPU they wait for the next wave.
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

    /// Forgets a settled chunk that nobody needs any more. One that only batches to come need is kept if there is hope that
    /// it needn't make room before they come, or while nothing waits for memory: else it would be dropped at once, which for
    /// small chunks costs throughput. One that nobody needs as far as batches are planned is kept too while the next batch
    /// isn't planned yet, which may need it: a late planner shall cost no reads.
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
                // Shuffled batches need the same chunks again and again.
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
            // Missing or failed: that costs nothing to remember.
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

    /// Tells a chunk that is kept for nobody so far that batch `first` needs it.
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
            // In its old place: whoever is first stays first, however often it has to wait.
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

    /// Makes room for a chunk that batch `before` needs by dropping the decoded chunk that is needed last, if that is
    /// later. False if there is none.
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

    /// The kept chunk that [`Self::evict`] would drop.
    pub(super) fn victim(&self, before: u64) -> Option<(u64, Handle)> {
        let active_end = self.batches.active_end();
        self.evictable.last().filter(|(batch, _)| *batch > before && *batch >= active_end).copied()
    }

    // ---- memory ----

    pub(super) fn slots(&mut self) -> &mut Block {
        self.s.slots.as_mut().unwrap_or(&mut self.s.staging)
    }

    /// Memory for `bytes` from an arena.
    pub(super) fn reserve(&mut self, slots: bool, bytes: usize) -> Option<arena::Range> {
        let block = if slots { self.slots() } else { &mut self.s.staging };
        block.arena.take(bytes)
    }
}
