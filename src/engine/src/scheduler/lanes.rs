//! Hands waves to the lanes of a GPU, and chunks to decode threads that decode in the GPU's place.

use super::Scheduler;
use super::waves::{WaitingChunk, WaveContext};
use crate::messages::{Content, Handle, Outcome, Wave, WaveChunk};
use crate::route::Route;
use crate::stats::Stats;

impl Scheduler {
    /// Queues a chunk, whose bytes are in host memory or in the GDS buffer, for a lane.
    pub(super) fn queue_for_lane(&mut self, handle: Handle, content: Content) {
        let active_end = self.batches.active_end();
        let chunk = &mut self.chunks[handle];
        chunk.await_lane();
        self.waves.push(WaitingChunk {
            handle,
            content,
            bytes: chunk.payload().map_or(0, |payload| payload.bytes.len()),
            decoded: chunk.info().decoded,
            uses: chunk.uses_before(active_end) as u32,
            batch: chunk.first_batch().unwrap_or(active_end),
        });
    }

    /// Gives chunks that the GPU could decode to idle decode threads, if that spares a model's time on the GPU
    /// ([`Sharing`](super::sharing::Sharing)). Returns whether one of them waits for memory.
    pub(super) fn decode_on_idle_cores(&mut self) -> bool {
        while self.broken.is_none()
            && let Some(WaitingChunk { handle, decoded, .. }) =
                self.waves.next_shared(|batch| self.batches.due_after(batch))
        {
            let Some(host_decoded) = self.memory.take_staging(decoded) else { return true };
            self.waves.begin_shared(handle);
            self.chunks[handle].share(host_decoded);
            Stats::add(&self.shared.stats.chunks_shared, 1);
            self.decode(&[handle]);
        }
        false
    }

    /// Handles a chunk that the CPU has decoded for the GPU: frees the memory of its encoded bytes, and queues its
    /// decoded bytes for a lane.
    pub(super) fn host_decoded(&mut self, Outcome { handle, result }: Outcome) {
        let chunk = &mut self.chunks[handle];
        chunk.unpin();
        if chunk.end_sharing() {
            self.waves.sharing.end();
        }
        if let Err(e) = result {
            self.undecodable(handle, e);
            return;
        }
        let encoded = chunk.take_payload();
        let decoded = chunk.lend_decoded().map(|lease| self.reads.hold(lease));
        chunk.set_payload(decoded);
        self.place(handle);
        if let Some(encoded) = encoded {
            self.reads.release(encoded, &mut self.memory);
        }
        self.queue_for_lane(handle, Content::Decoded);
    }

    /// Launches waves on idle lanes. `cpu_lacks_memory`: what [`Self::decode_on_idle_cores`] returned.
    pub(super) fn launch(&mut self, cpu_lacks_memory: bool) {
        while self.broken.is_none() {
            let now = WaveContext {
                reads: self.reads.in_flight() + self.shards.reading(),
                tasks: self.tasks,
                ready_uses: self.ready_jobs.assembly.served.iter().map(|s| s.uses).sum(),
                batch_uses: self.batches.uses_of_next(),
                reads_lack_memory: self.shortage.is_some(),
                cpu_lacks_memory,
                untaken: self.batches.untaken(),
            };
            let Some((lane, chunks)) = self.waves.next(now) else { return };
            let wave = self.wave(&chunks);
            Stats::add(&self.shared.stats.waves, 1);
            if let Some(lanes) = &self.backends.lanes {
                lanes.launch(lane, wave);
            }
        }
    }

    /// Lets a chunk that the CPU has decoded go to an output, if it was to go to a slot, where the GPU would have decoded it.
    fn place(&mut self, handle: Handle) {
        if self.chunks[handle].output().is_none()
            && let Some(part) = self.output_part(handle, Route::Cpu)
            && let Some(slot) = self.chunks[handle].place(part)
        {
            self.memory.release_slot(slot);
        }
    }

    /// Makes a wave of these chunks and all ready jobs.
    fn wave(&mut self, chunks: &[WaitingChunk]) -> Wave {
        let mut wave = std::mem::take(&mut self.ready_jobs);
        let ready_jobs = std::mem::take(&mut wave.assembly.jobs);
        wave.chunks.reserve(chunks.len());
        wave.payloads.reserve(chunks.len());
        // Most chunks have one job.
        wave.assembly.jobs.reserve(chunks.len() + ready_jobs.len());
        for &WaitingChunk { handle, content, decoded, .. } in chunks {
            let chunk = &mut self.chunks[handle];
            let Some(payload) = chunk.take_payload() else { continue };
            let id = chunk.id();
            let to = self.device_address(handle).expect("reserved on admission");
            let first = wave.assembly.jobs.len();
            self.serve_decoding(handle, &mut wave.assembly);
            wave.chunks.push(WaveChunk {
                id,
                handle,
                bytes: payload.bytes.len(),
                source: self.reads.source(&payload, &self.memory),
                version: self.reads.get(payload.read).and_then(|read| read.object.version.clone()),
                content,
                to,
                decoded_bytes: decoded,
                jobs: first..wave.assembly.jobs.len(),
            });
            wave.payloads.push(payload);
        }
        wave.ready_jobs = wave.assembly.jobs.len()..wave.assembly.jobs.len() + ready_jobs.len();
        wave.assembly.jobs.extend(ready_jobs);
        wave.assembly.after.sort_unstable();
        wave.assembly.after.dedup();
        wave
    }
}
