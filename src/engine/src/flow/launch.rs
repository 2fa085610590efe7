//! What goes to the lanes of a GPU, and when: fetched chunks become waves. The scheduler's half that deals with lanes; see
//! [`super::scheduler`].

use super::catalog::Route;
use super::chunks::{Group, State};
use super::scheduler::Scheduler;
use super::stats::Stats;
use super::tasks::Outcome;
use super::wave::{Content, WaveChunk};
use crate::memory::arena;
use crate::plan::ChunkId;

/// Uncompressed bytes that make a wave worth launching while more is being read.
const EAGER_WAVE: usize = 16 << 20;

impl Scheduler {
    pub(super) fn queue_for_lane(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        chunk.state = State::Fetched;
        let bytes = chunk.payload.map_or(0, |p| p.1.len);
        match self.s.shared.catalog.route(id) {
            Route::Gpu(_) => self.pending_encoded += self.s.shared.catalog.decoded_bytes(id),
            _ => self.pending_raw += bytes,
        }
        self.pending.push_back(id);
    }

    /// The CPU decoded a chunk for the GPU: its decoded bytes wait for a lane now, its encoded ones may go.
    pub(super) fn bounced(&mut self, outcome: Outcome) {
        let id = outcome.id;
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        chunk.pins -= 1;
        if let Err(e) = outcome.result {
            self.settle(id, State::Failed(e));
            return;
        }
        let payload = chunk.payload.take();
        if let Some((group, _)) = payload {
            self.release_group(group);
        }
        let decoded = self.s.shared.catalog.decoded_bytes(id);
        let to = self.decoded_span(id, decoded);
        let bounce = self.chunks.get_mut(&id).and_then(|c| c.bounce.take());
        let group = self.next_group;
        self.next_group += 1;
        self.groups.insert(group, Group { staging: bounce, chunks: Vec::new(), to, remaining: 1 });
        if let Some(chunk) = self.chunks.get_mut(&id) {
            chunk.payload = Some((group, to));
        }
        self.queue_for_lane(id);
    }

    /// Fills idle lanes. A wave waits for more while more is on its way, unless it is full.
    pub(super) fn launch(&mut self) {
        let Some(limits) = self.s.lanes.as_ref().map(|l| l.limits()) else { return };
        while let Some(&lane) = self.idle_lanes.last() {
            if self.broken.is_some() || (self.pending.is_empty() && self.loose.served.is_empty()) {
                return;
            }
            let more_comes = self.reads_in_flight + self.index_reads_in_flight + self.cpu_tasks_in_flight > 0;
            // Loose jobs go with the next chunks, or alone where none wait.
            let nothing_else = self.pending.is_empty() && !self.loose.served.is_empty();
            let full = self.pending_encoded >= limits.decoded
                || self.pending.len() >= limits.chunks
                || self.pending_raw >= EAGER_WAVE.min(limits.encoded);
            if more_comes && !full && !nothing_else {
                return;
            }
            let mut wave = std::mem::take(&mut self.loose);
            let loose_jobs = std::mem::take(&mut wave.jobs);
            let (mut encoded, mut decoded) = (0, 0);
            while let Some(&id) = self.pending.front() {
                let bytes = self.s.shared.catalog.decoded_bytes(id);
                let Some((group, span)) = self.chunks.get(&id).and_then(|c| c.payload) else {
                    self.pending.pop_front();
                    continue;
                };
                let content = match self.s.shared.catalog.route(id) {
                    Route::Gpu(compression) => Content::Encoded(compression),
                    _ => Content::Decoded,
                };
                let on_gpu = if content == Content::Decoded { 0 } else { bytes };
                if !wave.chunks.is_empty()
                    && (encoded + arena::rounded(span.len) > limits.encoded
                        || decoded + on_gpu > limits.decoded
                        || wave.chunks.len() >= limits.chunks)
                {
                    break;
                }
                encoded += arena::rounded(span.len);
                decoded += on_gpu;
                self.pending.pop_front();
                match content {
                    Content::Decoded => self.pending_raw -= span.len,
                    Content::Encoded(_) => self.pending_encoded -= bytes,
                }
                let first = wave.jobs.len();
                let mut jobs = std::mem::take(&mut wave.jobs);
                self.serve_decoding(id, &mut jobs, &mut wave.served, Some(&mut wave.after));
                wave.jobs = jobs;
                let Some(chunk) = self.chunks.get_mut(&id) else { continue };
                chunk.payload = None; // The lane gives the group back as soon as the bytes are copied.
                let slots = self.s.slots.as_ref().unwrap_or(&self.s.staging);
                let slot = chunk.slot.map_or(0, |s| slots.base + s.offset as u64);
                wave.chunks.push(WaveChunk {
                    id,
                    bytes: span,
                    content,
                    group,
                    slot,
                    decoded_bytes: bytes,
                    jobs: first..wave.jobs.len(),
                });
            }
            wave.loose = wave.jobs.len()..wave.jobs.len() + loose_jobs.len();
            wave.jobs.extend(loose_jobs);
            wave.after.sort_unstable();
            wave.after.dedup();
            self.idle_lanes.pop();
            Stats::add(&self.s.shared.stats.waves, 1);
            if let Some(lanes) = &self.s.lanes {
                lanes.launch(lane, wave);
            }
        }
    }
}
