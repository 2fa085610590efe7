//! Forms waves: decides which chunks go to the lanes of a GPU, and when.

use super::Scheduler;
use super::chunk_table::{ChunkState, Group};
use crate::chunk_index::{DIRECT_COPY, Route};
use crate::memory::{Span, arena};
use crate::messages::{Content, GroupId, Handle, Outcome, Wave, WaveChunk, WaveLimits};
use crate::stats::Stats;

/// A wave with as many uncompressed bytes is launched while more chunks are being read.
const EAGER_WAVE: usize = 16 << 20;
/// A wave with as many uses of chunks that are decoded already is launched while more chunks are being read. Fewer are
/// not worth it: the tables of a wave wait for the same bus as the chunks.
const EAGER_USES: u32 = 8;

impl Scheduler {
    pub(super) fn queue_for_lane(&mut self, handle: Handle) {
        let chunk = &mut self.chunks[handle];
        chunk.state = ChunkState::Fetched;
        match chunk.place.route {
            Route::Gpu => self.pending_encoded += chunk.place.decoded,
            _ => self.pending_raw += chunk.payload.map_or(0, |p| p.1.len),
        }
        self.pending.push_back(handle);
    }

    /// The CPU has decoded a chunk for the GPU. The decoded bytes wait for a lane. The memory of the encoded bytes is
    /// free.
    pub(super) fn host_decoded(&mut self, Outcome { handle, result }: Outcome) {
        let to = self.decoded_span(handle);
        let chunk = &mut self.chunks[handle];
        chunk.pins -= 1;
        if let Err(e) = result {
            self.undecodable(handle, e);
            return;
        }
        let host_decoded = chunk.host_decoded.take();
        let group = self.next_group;
        self.next_group += 1;
        let encoded = chunk.payload.replace((group, to));
        let host_decoded =
            Group { staging: host_decoded, gds_buffer: None, chunks: Vec::new(), to, remaining: 1, remote: false };
        self.groups.insert(group, host_decoded);
        if let Some((group, _)) = encoded {
            self.release_group(group, 1);
        }
        self.queue_for_lane(handle);
    }

    /// Launches waves on idle lanes. While reads are under way a wave waits until it is full. It does not wait if all
    /// lanes are idle and no batch is ready: the reads may take long, and the next batch may have all chunks already.
    pub(super) fn launch(&mut self) {
        let Some(limits) = self.s.lanes.as_ref().map(|l| l.limits()) else { return };
        while let Some(&lane) = self.idle_lanes.last() {
            if self.broken.is_some() || (self.pending.is_empty() && self.ready_jobs.assembly.served.is_empty()) {
                return;
            }
            let more_comes = self.reads_in_flight != [0, 0]
                || self.uploads_in_flight + self.index_reads_in_flight + self.cpu_tasks_in_flight > 0;
            let all_idle = self.s.lanes.as_ref().is_none_or(|l| l.count() == self.idle_lanes.len());
            let ready_jobs: u32 = self.ready_jobs.assembly.served.iter().map(|s| s.uses).sum();
            let starving = all_idle && self.untaken == 0;
            let full = starving
                || (self.pending.is_empty() && (ready_jobs >= EAGER_USES || all_idle))
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

    /// Where the lane copies the bytes of a read from: host memory, or the GDS buffer on the device.
    fn source(&self, group: GroupId, span: Span) -> u64 {
        let in_gds_buffer = self.s.gds_buffer.as_ref().and_then(|block| {
            let group = self.groups.get(&group)?;
            Some(block.base + group.gds_buffer?.offset as u64 + (span.address - group.to.address))
        });
        in_gds_buffer.unwrap_or(span.address)
    }

    /// The next wave: all ready jobs, and as many of the waiting chunks as fit, in order.
    fn wave(&mut self, limits: WaveLimits) -> Wave {
        let mut wave = std::mem::take(&mut self.ready_jobs);
        let jobs = std::mem::take(&mut wave.assembly.jobs);
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
            let first = wave.assembly.jobs.len();
            self.serve_decoding(handle, &mut wave.assembly);
            wave.chunks.push(WaveChunk {
                id,
                handle,
                bytes: span,
                source: self.source(group, span),
                content,
                group,
                slot: slot.map_or(0, |s| base + s.offset as u64),
                decoded_bytes: bytes,
                jobs: first..wave.assembly.jobs.len(),
            });
        }
        wave.ready_jobs = wave.assembly.jobs.len()..wave.assembly.jobs.len() + jobs.len();
        wave.assembly.jobs.extend(jobs);
        wave.assembly.after.sort_unstable();
        wave.assembly.after.dedup();
        wave
    }
}
