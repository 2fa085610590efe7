//! Forms waves: decides which chunks go to the lanes of a GPU, and when.

use std::collections::VecDeque;

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

/// Chunks that wait for a lane, in the order in which they came, and their decoded bytes.
#[derive(Debug, Default)]
pub(super) struct LaneQueue {
    handles: VecDeque<Handle>,
    bytes: usize,
}

impl LaneQueue {
    fn push(&mut self, handle: Handle, bytes: usize) {
        self.handles.push_back(handle);
        self.bytes += bytes;
    }

    fn front(&self) -> Option<Handle> {
        self.handles.front().copied()
    }

    /// Removes the first chunk, which has so many decoded bytes.
    fn pop(&mut self, bytes: usize) {
        self.handles.pop_front();
        self.bytes -= bytes;
    }

    fn len(&self) -> usize {
        self.handles.len()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The chunks that wait for a lane.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Decoded: stored uncompressed, or decoded by the CPU. They are only copied.
    pub decoded: LaneQueue,
    /// Encoded, to be decoded by the GPU.
    pub encoded: LaneQueue,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.decoded.len() + self.encoded.len() == 0
    }
}

impl Scheduler {
    pub(super) fn queue_for_lane(&mut self, handle: Handle) {
        let chunk = &mut self.chunks[handle];
        chunk.state = ChunkState::Fetched;
        match chunk.place.route {
            Route::Gpu => self.pending.encoded.push(handle, chunk.place.decoded),
            _ => self.pending.decoded.push(handle, chunk.place.decoded),
        }
    }

    /// Gives chunks that the GPU could decode to idle decode threads, if that spares a model's time on the GPU
    /// ([`Sharing`](super::sharing::Sharing)).
    pub(super) fn share(&mut self) {
        while self.broken.is_none()
            && self.sharing.cpu_decodes()
            && let Some(handle) = self.pending.encoded.front()
        {
            let bytes = self.chunks[handle].place.decoded;
            let Some(host_decoded) = self.reserve(false, bytes) else { return };
            self.pending.encoded.pop(bytes);
            let chunk = &mut self.chunks[handle];
            chunk.host_decoded = Some(host_decoded);
            chunk.place.route = Route::Cpu;
            chunk.is_shared = true;
            self.sharing.begin();
            Stats::add(&self.s.shared.stats.chunks_shared, 1);
            self.decode(&[handle]);
        }
    }

    /// The CPU has decoded a chunk for the GPU. The decoded bytes wait for a lane. The memory of the encoded bytes is
    /// free.
    pub(super) fn host_decoded(&mut self, Outcome { handle, result }: Outcome) {
        let to = self.decoded_span(handle);
        let chunk = &mut self.chunks[handle];
        chunk.pins -= 1;
        if std::mem::take(&mut chunk.is_shared) {
            self.sharing.end();
        }
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
            let gpu_decodes = self.sharing.gpu_decodes(self.untaken);
            let encoded = if gpu_decodes { self.pending.encoded.len() } else { 0 };
            let chunks = self.pending.decoded.len() + encoded;
            if self.broken.is_some() || (chunks == 0 && self.ready_jobs.assembly.served.is_empty()) {
                return;
            }
            let reads =
                self.reads_in_flight[0] + self.reads_in_flight[1] + self.uploads_in_flight + self.index_reads_in_flight;
            let more_comes = reads + self.cpu_tasks_in_flight > 0;
            let all_idle = self.s.lanes.as_ref().is_none_or(|l| l.count() == self.idle_lanes.len());
            let ready_jobs: u32 = self.ready_jobs.assembly.served.iter().map(|s| s.uses).sum();
            let starving = all_idle && self.untaken == 0;
            let full = starving
                || (chunks == 0 && (ready_jobs >= EAGER_USES || all_idle))
                || (encoded > 0 && self.pending.encoded.bytes() >= limits.decoded)
                || chunks >= limits.chunks
                || self.pending.decoded.bytes() >= EAGER_WAVE.min(limits.decoded)
                // What the CPU decodes in the GPU's place doesn't fill a wave.
                || (encoded > 0 && reads + self.cpu_tasks_in_flight == self.sharing.tasks());
            if more_comes && !full {
                return;
            }
            let wave = self.wave(limits, gpu_decodes);
            self.idle_lanes.pop();
            if wave.chunks.iter().any(|chunk| chunk.content == Content::Encoded) {
                self.sharing.launched(lane, self.pending.encoded.len() == 0);
            }
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

    /// The next wave: all ready jobs, and as many of the waiting chunks as fit, those first that are only copied;
    /// `gpu_decodes` says whether it may hold encoded chunks.
    fn wave(&mut self, limits: WaveLimits, gpu_decodes: bool) -> Wave {
        let mut wave = std::mem::take(&mut self.ready_jobs);
        let jobs = std::mem::take(&mut wave.assembly.jobs);
        let base = self.slots().base;
        let (mut copied, mut decoded) = (0, 0);
        loop {
            let (handle, content) = match (self.pending.decoded.front(), self.pending.encoded.front()) {
                (Some(handle), _) => (handle, Content::Decoded),
                (None, Some(handle)) if gpu_decodes => (handle, Content::Encoded),
                _ => break,
            };
            let chunk = &mut self.chunks[handle];
            let (id, bytes, slot, payload) = (chunk.id, chunk.place.decoded, chunk.slot, chunk.payload);
            let on_gpu = if content == Content::Encoded { bytes } else { 0 };
            // Large decoded chunks are copied straight to their slots.
            let staged = match content {
                Content::Decoded if bytes >= DIRECT_COPY => 0,
                _ => arena::rounded(payload.map_or(0, |(_, span)| span.len)),
            };
            let room = copied + staged <= limits.encoded
                && decoded + on_gpu <= limits.decoded
                && wave.chunks.len() < limits.chunks;
            if !wave.chunks.is_empty() && !room {
                break;
            }
            chunk.payload = None; // The lane gives the group back as soon as the bytes are copied.
            match content {
                Content::Decoded => self.pending.decoded.pop(bytes),
                Content::Encoded => self.pending.encoded.pop(bytes),
            }
            let Some((group, span)) = payload else { continue };
            copied += staged;
            decoded += on_gpu;
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
