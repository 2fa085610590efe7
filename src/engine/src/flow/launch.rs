//! What goes to the lanes of a GPU, and when: fetched chunks become waves. The scheduler's half that deals with lanes; see
//! [`super::scheduler`].

use super::catalog::Route;
use super::chunks::{Group, Handle, State};
use super::scheduler::Scheduler;
use super::stats::Stats;
use super::tasks::{GroupId, Outcome};
use super::wave::{Content, DIRECT_COPY, Wave, WaveChunk, WaveLimits};
use crate::memory::{Span, arena};

/// Uncompressed bytes that make a wave worth launching while more is being read.
const EAGER_WAVE: usize = 16 << 20;
/// Uses of chunks that are in their slots already that make a wave worth launching while more is being read: a wave
/// sends small tables, which stand in line with the chunks for the way to the device.
const EAGER_USES: u32 = 8;

impl Scheduler {
    pub(super) fn queue_for_lane(&mut self, handle: Handle) {
        let chunk = &mut self.chunks[handle];
        chunk.state = State::Fetched;
        match chunk.place.route {
            Route::Gpu => self.pending_encoded += chunk.place.decoded,
            _ => self.pending_raw += chunk.payload.map_or(0, |p| p.1.len),
        }
        self.pending.push_back(handle);
    }

    /// The CPU decoded a chunk for the GPU: its decoded bytes wait for a lane now, its encoded ones may go.
    pub(super) fn bounced(&mut self, Outcome { handle, result }: Outcome) {
        let to = self.decoded_span(handle);
        let chunk = &mut self.chunks[handle];
        chunk.pins -= 1;
        if let Err(e) = result {
            self.undecodable(handle, e);
            return;
        }
        let bounce = chunk.bounce.take();
        let group = self.next_group;
        self.next_group += 1;
        let encoded = chunk.payload.replace((group, to));
        let bounced = Group { staging: bounce, landing: None, chunks: Vec::new(), to, remaining: 1, remote: false };
        self.groups.insert(group, bounced);
        if let Some((group, _)) = encoded {
            self.release_group(group, 1);
        }
        self.queue_for_lane(handle);
    }

    /// Fills idle lanes. A wave waits for more while more is on its way, unless it is full; but not if the device would idle
    /// and no batch is ready: what is on its way may take long, and the next batch may have all that it needs.
    pub(super) fn launch(&mut self) {
        let Some(limits) = self.s.lanes.as_ref().map(|l| l.limits()) else { return };
        while let Some(&lane) = self.idle_lanes.last() {
            if self.broken.is_some() || (self.pending.is_empty() && self.loose.work.served.is_empty()) {
                return;
            }
            let more_comes = self.reads_in_flight != [0, 0]
                || self.uploads_in_flight + self.index_reads_in_flight + self.cpu_tasks_in_flight > 0;
            let all_idle = self.s.lanes.as_ref().is_none_or(|l| l.count() == self.idle_lanes.len());
            let loose: u32 = self.loose.work.served.iter().map(|s| s.uses).sum();
            let starving = all_idle && self.untaken == 0;
            let full = starving
                || (self.pending.is_empty() && (loose >= EAGER_USES || all_idle))
                || self.pending_encoded >= limits.decoded
                || self.pending.len() >= limits.chunks
                || self.pending_raw >= EAGER_WAVE.min(limits.decoded);
            if more_comes && !full {
                return;
            }
            let wave = self.wave(limits);
            self.idle_lanes.pop();
            Stats::add(&self.s.shared.stats.waves, 1);
            if let Some(lanes) = &self.s.lanes {
                lanes.launch(lane, wave);
            }
        }
    }

    /// Where the lane finds the bytes of a read: in host memory, or where they landed on the device.
    fn source(&self, group: GroupId, span: Span) -> u64 {
        let landed = self.s.landing.as_ref().and_then(|block| {
            let group = self.groups.get(&group)?;
            Some(block.base + group.landing?.offset as u64 + (span.address - group.to.address))
        });
        landed.unwrap_or(span.address)
    }

    /// The loose jobs, and as many of the chunks that wait as one wave may hold, in order.
    fn wave(&mut self, limits: WaveLimits) -> Wave {
        let mut wave = std::mem::take(&mut self.loose);
        let loose_jobs = std::mem::take(&mut wave.work.jobs);
        let base = self.slots().base;
        let (mut encoded, mut decoded) = (0, 0);
        while let Some(&handle) = self.pending.front() {
            let chunk = &mut self.chunks[handle];
            let (id, bytes, slot) = (chunk.id, chunk.place.decoded, chunk.slot);
            let (content, on_gpu) = match chunk.place.route {
                Route::Gpu => (Content::Encoded, bytes),
                _ => (Content::Decoded, 0),
            };
            let Some((group, span)) = chunk.payload else {
                self.pending.pop_front();
                continue;
            };
            // Large decoded chunks are copied straight to their slots.
            let staged = match content {
                Content::Decoded if span.len >= DIRECT_COPY => 0,
                _ => arena::rounded(span.len),
            };
            let room = encoded + staged <= limits.encoded
                && decoded + on_gpu <= limits.decoded
                && wave.chunks.len() < limits.chunks;
            if !wave.chunks.is_empty() && !room {
                break;
            }
            encoded += staged;
            decoded += on_gpu;
            self.pending.pop_front();
            match content {
                Content::Decoded => self.pending_raw -= span.len,
                Content::Encoded => self.pending_encoded -= bytes,
            }
            chunk.payload = None; // The lane gives the group back as soon as the bytes are copied.
            let first = wave.work.jobs.len();
            self.serve_decoding(handle, &mut wave.work);
            wave.chunks.push(WaveChunk {
                id,
                handle,
                bytes: span,
                source: self.source(group, span),
                content,
                group,
                slot: slot.map_or(0, |s| base + s.offset as u64),
                decoded_bytes: bytes,
                jobs: first..wave.work.jobs.len(),
            });
        }
        wave.loose = wave.work.jobs.len()..wave.work.jobs.len() + loose_jobs.len();
        wave.work.jobs.extend(loose_jobs);
        wave.work.after.sort_unstable();
        wave.work.after.dedup();
        wave
    }
}
