//! Handles chunks after they were read, decoded, found bad or failed: they go to decoders, serve the batches that need them, and
//! are kept, evicted or removed.

use dali_zarr_kernels::{Job, Layout};

use super::Scheduler;
use super::batches::JobSource;
use super::chunks::{ChunkState, OutputPart};
use super::memory::MemoryKind;
use super::reads::ReadChunk;
use super::waves::EAGER_USES;
use crate::chunk_index::{ChunkInfo, LATER, Location};
use crate::messages::{Assembly, Content, Handle, Item, ItemDone, Outcome, Payload, ReadDone, Served, Task};
use crate::route::Route;
use crate::stats::Stats;
use dali_zarr_base::error::{Code, Error, Result};
use dali_zarr_stores::{ByteRange, Extent};

/// Decode tasks have about this many decoded bytes. Handing over larger tasks costs little for each byte.
const TASK_BYTES: usize = 256 << 10;

impl Scheduler {
    // ---- reads ----

    /// Handles the end of a read: its chunks go to decoders, or are resolved.
    pub(super) fn fetched(&mut self, ReadDone { id, to, result }: ReadDone) {
        let Some((chunks, in_place)) = self.reads.take_chunks(id) else { return };
        let in_place = chunks.first().filter(|_| in_place).map(|chunk| chunk.handle);
        let read = match result {
            Ok(Some(read)) if read <= to.len() => read,
            other => {
                self.end_lease(to, in_place);
                self.reads.forget(id, &mut self.memory);
                self.not_fetched(&chunks, &other);
                return;
            }
        };
        Stats::add(&self.shared.stats.chunks_read, chunks.len() as u64);
        match in_place {
            Some(handle) => {
                self.chunks[handle].return_decoded(to);
                self.reads.forget(id, &mut self.memory);
            }
            None => {
                let mut bytes = self.memory.shorten(to, read).share();
                for &ReadChunk { handle, offset, len } in &chunks {
                    if !self.is_uploaded(handle) {
                        let bytes = bytes.part(offset, len.unwrap_or(read));
                        self.chunks[handle].set_payload(Some(Payload { read: id, bytes }));
                    }
                }
                self.reads.keep(id, bytes, &mut self.memory);
            }
        }
        self.distribute(&chunks);
    }

    /// Handles the chunks of a read that brought nothing: they are missing, oversized or failed.
    fn not_fetched(&mut self, chunks: &[ReadChunk], result: &Result<Option<usize>>) {
        if let Ok(Some(bytes)) = result {
            chunks.iter().for_each(|chunk| self.oversized(chunk.handle, *bytes));
            return;
        }
        // References may be wrong for single chunks. So each chunk of a failed merged read is read again alone.
        let again = chunks.len() > 1 && result.is_err();
        for &ReadChunk { handle, .. } in chunks {
            if again && matches!(self.chunks[handle].info().location, Location::Range(_)) {
                self.read_unmerged(handle);
                continue;
            }
            let chunk = &self.chunks[handle];
            let state = match result {
                Err(e) => {
                    self.broken_chunk(handle, e.clone(), None);
                    continue;
                }
                // The shard was deleted after its index was read. Its chunks must not become fill values.
                _ if matches!(chunk.info().location, Location::Shard(..)) => {
                    let gone = Error::coded(Code::Replaced, "the shard vanished while it was read");
                    ChunkState::Failed(gone.at(self.shared.chunk_index.site(chunk.id())))
                }
                _ => ChunkState::Missing,
            };
            self.resolve(handle, state);
        }
    }

    /// Passes on chunks that were read: to decode threads, to lanes, or to the batches that need them, if the reading
    /// thread has copied them to the device.
    fn distribute(&mut self, chunks: &[ReadChunk]) {
        let on_gpu = self.on_gpu();
        let mut items: Vec<Handle> = Vec::new();
        let mut bytes = 0;
        for &ReadChunk { handle, .. } in chunks {
            let uploaded = self.is_uploaded(handle);
            let chunk = &mut self.chunks[handle];
            if chunk.mark_read() {
                Stats::add(&self.shared.stats.chunks_read_again, 1);
            }
            if uploaded {
                chunk.uploaded();
                Stats::add(&self.shared.stats.chunks_uncompressed, 1);
                self.serve_ready(handle, 1);
                continue;
            }
            let ChunkInfo { route, decoded, .. } = chunk.info();
            if on_gpu && route != Route::Cpu {
                self.queue_for_lane(handle, if route == Route::Gpu { Content::Encoded } else { Content::Decoded });
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

    /// Gives chunks to a decode thread. If batches are delivered to the CPU, the jobs of active users go with them.
    pub(super) fn decode(&mut self, handles: &[Handle]) {
        let mut task = Task::default();
        for &handle in handles {
            let first = task.assembly.jobs.len();
            if self.on_gpu() {
                self.chunks[handle].decode();
            } else {
                self.serve_decoding(handle, &mut task.assembly);
            }
            let jobs = first..task.assembly.jobs.len();
            let chunk = &mut self.chunks[handle];
            let decoded = chunk.lend_decoded().expect("reserved on admission");
            task.items.push(Item { id: chunk.id(), handle, encoded: chunk.take_payload(), decoded, jobs });
        }
        let n = task.assembly.jobs.len();
        task.ready_jobs = n..n;
        self.tasks += 1;
        self.backends.decode.run(task);
    }

    /// Takes back the memory of a chunk from a decode thread.
    pub(super) fn take_back(&mut self, ItemDone { outcome, encoded, decoded }: ItemDone) -> Outcome {
        let chunk = &mut self.chunks[outcome.handle];
        chunk.set_payload(encoded);
        chunk.return_decoded(decoded);
        outcome
    }

    /// Marks a chunk as being decoded, and adds the jobs of its active users to `assembly`: none if it goes to an output.
    pub(super) fn serve_decoding(&mut self, handle: Handle, assembly: &mut Assembly) {
        // The lane that decodes the chunk sets the order of its bytes.
        self.chunks[handle].reset_layout();
        let from = self.job_source(handle);
        let chunk = &mut self.chunks[handle];
        chunk.decode();
        let served = match chunk.output() {
            // A chunk that goes to an output serves only the user that it was admitted for, and needs no job.
            Some(part) => {
                let first = assembly.jobs.len();
                let served = self.batches.serve_batch(chunk, from, part.batch, assembly);
                assembly.jobs.truncate(first);
                served
            }
            None => self.batches.serve(chunk, from, assembly),
        };
        Stats::add(&self.shared.stats.chunks_from_memory, served.saturating_sub(1) as u64);
    }

    /// Returns where the jobs of a chunk read its elements.
    fn job_source(&self, handle: Handle) -> JobSource {
        let chunk = &self.chunks[handle];
        match (chunk.state(), self.device_address(handle), chunk.decoded()) {
            (ChunkState::Missing, ..) => JobSource::Missing,
            (ChunkState::Bad, ..) => JobSource::Bad { ops: self.shared.ops.bad_from() },
            (_, Some(address), _) => JobSource::Slot(address, chunk.layout()),
            (_, None, Some(lease)) => JobSource::Slot(lease.address(), chunk.layout()),
            (_, None, None) => JobSource::Slot(0, Layout::NONE),
        }
    }

    /// Returns the device address of a chunk's decoded bytes: that of its slot, or of its part of an output.
    pub(super) fn device_address(&self, handle: Handle) -> Option<u64> {
        let chunk = &self.chunks[handle];
        chunk.output().and_then(OutputPart::on_device).or_else(|| Some(self.memory.slot_address(chunk.slot()?)))
    }

    // ---- chunks that are decoded, missing, bad or failed ----

    /// Records that the jobs of a task or wave have run: these uses are served, and the ready jobs have read these
    /// chunks.
    pub(super) fn served(&mut self, served: &[Served], pinned: &[Handle]) {
        self.batches.served(served);
        for &handle in pinned {
            self.chunks[handle].unpin();
            self.keep_or_drop(handle);
        }
    }

    /// Handles the end of a chunk's task or wave: it is decoded or failed, and its jobs have run.
    pub(super) fn completed(&mut self, Outcome { handle, result }: Outcome) {
        let chunk = &mut self.chunks[handle];
        chunk.unpin();
        let layout = match result {
            Ok(layout) => layout,
            Err(e) => {
                self.undecodable(handle, e);
                return;
            }
        };
        let (encoded, output) = (chunk.decoded_as(layout), chunk.output());
        if let Some(payload) = encoded {
            self.reads.release(payload, &mut self.memory);
        }
        match output {
            None => self.serve_resolved(handle),
            Some(_) => {
                self.release_decoded(handle);
                self.requeue(handle);
            }
        }
    }

    /// Handles a chunk that can't be decoded, and removes it from the cache: its bytes may have been damaged on the way.
    pub(super) fn undecodable(&mut self, handle: Handle, error: Error) {
        self.forget(handle);
        self.broken_chunk(handle, error, None);
    }

    fn forget(&self, handle: Handle) {
        let (chunk_index, Some(cache)) = (&self.shared.chunk_index, &self.shared.cache) else { return };
        let chunk = &self.chunks[handle];
        let number = chunk_index.store_number(chunk.id().array, chunk.id().part);
        let (part, len) = match chunk.info().location {
            Location::Key | Location::Unread(_) => (ByteRange::Whole, 0),
            Location::Range(_) => {
                // It may have been read alone, or in a merged read. The cache names these in different ways.
                if let Some(Extent { object, offset, len, .. }) = chunk_index.extent(chunk.id()) {
                    cache.forget(&cache.name(number, &object, ByteRange::From(offset), len as usize));
                }
                (ByteRange::Whole, 0)
            }
            Location::Shard(shard, entry) => match self.shards.range(shard, entry) {
                Some((offset, len)) => (ByteRange::From(offset), len as usize),
                None => return,
            },
        };
        cache.forget(&cache.name(number, &chunk_index.key(chunk.id()), part, len));
    }

    /// Handles a chunk that is missing, bad or failed: frees its memory and serves its active users.
    pub(super) fn resolve(&mut self, handle: Handle, state: ChunkState) {
        if matches!(state, ChunkState::Missing) {
            Stats::add(&self.shared.stats.chunks_missing, 1);
        }
        let chunk = &mut self.chunks[handle];
        let (serving, payload) = (chunk.take_serving(), chunk.take_payload());
        self.release_decoded(handle);
        if let ChunkState::Failed(e) = &state {
            serving.into_iter().for_each(|number| self.batches.fail_batch(number, e));
        }
        self.chunks[handle].resolve(state);
        if let Some(payload) = payload {
            self.reads.release(payload, &mut self.memory);
        }
        self.serve_resolved(handle);
    }

    /// Serves the active users of a chunk that is decoded, missing, bad or failed.
    pub(super) fn serve_resolved(&mut self, handle: Handle) {
        self.serve_ready(handle, 0);
    }

    /// Like [`Self::serve_resolved`], for a chunk that was read for `fresh` of the uses. Only the other uses count as
    /// served from memory.
    fn serve_ready(&mut self, handle: Handle, fresh: usize) {
        let from = self.job_source(handle);
        self.chunks.unkeep(handle);
        let chunk = &mut self.chunks[handle];
        if !chunk.users().is_empty() {
            if matches!(chunk.state(), ChunkState::Failed(_)) {
                self.batches.fail(chunk);
            } else if matches!(chunk.state(), ChunkState::Bad) && self.shared.bad.replaces() {
                self.batches.let_go(chunk);
            } else {
                let served = self.batches.serve(chunk, from, &mut self.ready_jobs.assembly);
                if served > 0 {
                    chunk.pin();
                    self.ready_jobs.pinned.push(handle);
                }
                if matches!(chunk.state(), ChunkState::Ready) {
                    Stats::add(&self.shared.stats.chunks_from_memory, served.saturating_sub(fresh) as u64);
                }
            }
        }
        self.keep_or_drop(handle);
    }

    /// Hands out the jobs between elements of batches whose other jobs have run: on the CPU in parts, each to a decode
    /// thread, on the GPU with the next wave, which they make worth launching.
    pub(super) fn interpolate(&mut self) {
        while self.on_gpu() && self.batches.serve_between(EAGER_USES, &mut self.ready_jobs.assembly) {}
        loop {
            let mut assembly = Assembly::default();
            if self.on_gpu() || !self.batches.serve_between(1, &mut assembly) {
                return;
            }
            self.interpolate_in_parts(assembly);
        }
    }

    fn interpolate_in_parts(&mut self, mut assembly: Assembly) {
        let Served { batch, .. } = assembly.served[0];
        let mut parts: Vec<Vec<Job>> = Vec::new();
        let mut bytes = TASK_BYTES;
        for job in std::mem::take(&mut assembly.jobs) {
            if bytes >= TASK_BYTES {
                parts.push(Vec::new());
                bytes = 0;
            }
            let elements: usize = job.extent[..job.ndim as usize].iter().map(|&n| n as usize).product();
            bytes += elements * size_of::<f32>();
            parts.last_mut().expect("the first job makes one").push(job);
        }
        self.batches.set_remaining(batch, parts.len() as u32);
        for jobs in parts {
            let n = jobs.len();
            let served = vec![Served { batch, uses: 1 }];
            let assembly = Assembly { jobs, served, after: assembly.after.clone() };
            self.tasks += 1;
            self.backends.decode.run(Task { assembly, ready_jobs: 0..n, ..Task::default() });
        }
    }

    /// On the CPU, sends the ready jobs to a decode thread. On the GPU they wait for the next wave.
    pub(super) fn flush_ready_jobs(&mut self) {
        if self.on_gpu() || self.ready_jobs.assembly.served.is_empty() {
            return;
        }
        let ready_jobs = std::mem::take(&mut self.ready_jobs);
        let n = ready_jobs.assembly.jobs.len();
        self.tasks += 1;
        self.backends.decode.run(Task {
            items: Vec::new(),
            assembly: ready_jobs.assembly,
            ready_jobs: 0..n,
            pinned: ready_jobs.pinned,
        });
    }

    /// Keeps, evicts or removes a resolved chunk that no task uses.
    ///
    /// - If a planned or foreseen batch needs it and nothing waits for memory, it is kept.
    /// - If a planned or foreseen batch needs it and something waits for memory, it is kept only if memory is likely to hold it
    ///   until then. Otherwise it is evicted now: to keep it for a moment would cost throughput.
    /// - If no batch is known that needs it, it is removed. But while the next batch is still being planned, or a caller has not
    ///   pushed it, and nothing waits for memory, it is kept: that batch may need it.
    fn keep_or_drop(&mut self, handle: Handle) {
        let (no_shortage, late) = (self.shortage.is_none(), self.batches.planner_is_late());
        let chunk = &mut self.chunks[handle];
        if chunk.is_pinned() || !chunk.state().is_resolved() {
            return;
        }
        match (chunk.first_batch(), chunk.has_decoded()) {
            (Some(batch), true) => {
                let until = batch.saturating_sub(self.batches.active_end()) + 1;
                // Nobody knows whether a chunk of which no batch is known comes again: it must not push out others. While no other
                // batch is known, there are none.
                let is_free = no_shortage && (late || batch != LATER);
                if is_free || self.rules.keeps_for(until, self.memory.usable(MemoryKind::Slots)) {
                    self.chunks.keep(handle);
                } else {
                    Stats::add(&self.shared.stats.evictions, 1);
                    self.release_decoded(handle);
                    self.requeue(handle);
                }
            }
            // A failed chunk is tried again for the batch that is foreseen. Missing chunks of which no batch is known would
            // fill the table.
            (Some(batch), false)
                if chunk.is_only_foreseen() && (batch == LATER || matches!(chunk.state(), ChunkState::Failed(_))) =>
            {
                self.chunks.remove(handle);
            }
            // Missing, bad or failed: it takes no memory.
            (Some(_), false) => {}
            (None, true) if late && no_shortage => self.chunks.keep(handle),
            (None, _) => {
                self.release_decoded(handle);
                self.chunks.remove(handle);
            }
        }
    }

    /// Frees the memory of a chunk whose merged read failed, and queues the chunk again. It will be read alone.
    fn read_unmerged(&mut self, handle: Handle) {
        self.release_decoded(handle);
        self.chunks[handle].unmerge();
        self.requeue(handle);
    }

    /// Queues a chunk again, if a planned batch still needs it. Otherwise removes it.
    pub(super) fn requeue(&mut self, handle: Handle) {
        self.chunks.requeue(handle, self.batches.active_end());
    }

    /// Evicts the decoded chunk that is needed last. Returns false if there is none, or if the first batch that needs
    /// it is active or does not come after `before`.
    pub(super) fn evict(&mut self, before: u64) -> bool {
        let Some(victim) = self.chunks.take_victim(before, self.batches.active_end()) else { return false };
        Stats::add(&self.shared.stats.evictions, 1);
        self.release_decoded(victim);
        self.requeue(victim);
        true
    }
}
