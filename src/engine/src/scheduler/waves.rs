//! Forms waves: decides which chunks go to the lanes of a GPU, and when.

use std::collections::VecDeque;

use super::sharing::Sharing;
use crate::chunk_index::DIRECT_COPY;
use crate::messages::{Content, Handle, WaveLimits};
use crate::route::{Facts, Route, Training, decide};
use dali_zarr_base::memory::arena;

/// While more chunks are being read, a wave waits for them. It is launched anyway when this many bytes of chunks that
/// need no decoding wait for it. It waits longer if there is time to wait for a whole batch.
const EAGER_WAVE: usize = 16 << 20;
/// The same for this many uses of chunks that are in their slots already. Fewer are not worth a wave: its tables wait
/// for the same bus as the chunks.
pub(super) const EAGER_USES: u32 = 8;

/// A chunk that waits for a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingChunk {
    pub handle: Handle,
    /// Whether the GPU decodes it, or only copies it because it is stored uncompressed or the CPU has decoded it.
    pub content: Content,
    /// Bytes that are copied to the GPU.
    pub bytes: usize,
    /// Decoded bytes.
    pub decoded: usize,
    /// Number of uses by active batches.
    pub uses: u32,
    /// The first batch that needs it.
    pub batch: u64,
}

/// Chunks that wait for a lane, in the order in which they came, with the sums of their decoded bytes and their uses.
#[derive(Debug, Default)]
struct LaneQueue {
    chunks: VecDeque<WaitingChunk>,
    decoded_bytes: usize,
    uses: u32,
}

impl LaneQueue {
    fn push(&mut self, chunk: WaitingChunk) {
        self.decoded_bytes += chunk.decoded;
        self.uses += chunk.uses;
        self.chunks.push_back(chunk);
    }

    fn pop(&mut self) -> Option<WaitingChunk> {
        let chunk = self.chunks.pop_front()?;
        self.removed(&chunk);
        Some(chunk)
    }

    fn pop_last(&mut self) {
        if let Some(chunk) = self.chunks.pop_back() {
            self.removed(&chunk);
        }
    }

    fn removed(&mut self, chunk: &WaitingChunk) {
        self.decoded_bytes -= chunk.decoded;
        self.uses -= chunk.uses;
    }

    fn len(&self) -> usize {
        self.chunks.len()
    }
}

/// What the launch of a wave depends on, besides the chunks that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaveContext {
    /// Number of reads under way, of chunks and of shard indexes, and of copies to the device.
    pub reads: usize,
    /// Number of tasks of the decode threads under way.
    pub tasks: usize,
    /// Number of uses of chunks that are decoded already. Their jobs wait for a wave.
    pub ready_uses: u32,
    /// Number of uses of the next batch to be delivered.
    pub batch_uses: u32,
    /// Whether a read waits for memory.
    pub reads_lack_memory: bool,
    /// Whether a decode thread waits for memory, to decode in the GPU's place.
    pub cpu_lacks_memory: bool,
    /// Number of finished batches that the consumer has not taken.
    pub untaken: usize,
}

/// The lanes of a GPU, and the chunks that wait for them. Without a GPU it has no lanes, and nothing waits.
#[derive(Debug)]
pub(super) struct Waves {
    /// Number of lanes.
    lanes: usize,
    limits: WaveLimits,
    /// The lanes without a wave.
    idle: Vec<usize>,
    /// Chunks that are only copied.
    copied: LaneQueue,
    /// Chunks that the GPU decodes.
    encoded: LaneQueue,
    pub sharing: Sharing,
}

impl Waves {
    /// Makes the state of `lanes` idle lanes. Each lane takes waves within `limits`.
    pub fn new(lanes: usize, limits: WaveLimits, sharing: Sharing) -> Self {
        let (copied, encoded) = (LaneQueue::default(), LaneQueue::default());
        Self { lanes, limits, idle: (0..lanes).rev().collect(), copied, encoded, sharing }
    }

    /// Queues a chunk for a lane.
    pub fn push(&mut self, chunk: WaitingChunk) {
        match chunk.content {
            Content::Decoded => self.copied.push(chunk),
            Content::Encoded => self.encoded.push(chunk),
        }
    }

    /// Returns the next chunk that a decode thread should decode in the GPU's place, if there is one now: the first one
    /// that waits, or, if that is needed too soon or nobody knows how long tasks take, the last one ([`Sharing::task_batches`]). `due_after(batch)` is the number
    /// of batches that the consumer takes before this one.
    pub fn next_shared(&self, due_after: impl Fn(u64) -> usize) -> Option<WaitingChunk> {
        let (chunks, task_batches) = (&self.encoded.chunks, self.sharing.task_batches());
        let core_is_idle = self.sharing.cpu_decodes();
        let goes_to_cpu = |chunk: &&WaitingChunk| {
            let due_after = due_after(chunk.batch);
            let now = Training { core_is_idle, due_after, task_batches: task_batches.unwrap_or(0) };
            decide(&Facts { training: Some(now), ..Facts::OF_GPU }).route == Route::Cpu
        };
        let first = chunks.front().filter(|_| task_batches.is_some());
        first.filter(goes_to_cpu).or_else(|| chunks.back().filter(goes_to_cpu)).copied()
    }

    /// Records that a decode thread takes this chunk, which [`Self::next_shared`] returned.
    pub fn begin_shared(&mut self, chunk: Handle) {
        if self.encoded.chunks.front().is_some_and(|first| first.handle == chunk) {
            self.encoded.pop();
        } else {
            self.encoded.pop_last();
        }
        self.sharing.begin(self.encoded.len());
    }

    /// Records that the wave of a lane ended.
    pub fn ended(&mut self, lane: usize) {
        self.idle.push(lane);
        self.sharing.ended(lane);
    }

    /// Whether all lanes are idle.
    fn all_idle(&self) -> bool {
        self.idle.len() == self.lanes
    }

    /// Whether no chunk waits and no wave is under way.
    pub fn is_idle(&self) -> bool {
        self.copied.len() + self.encoded.len() == 0 && self.all_idle()
    }

    /// Returns the next wave, if one is to be launched now: its lane and its chunks. All ready jobs go with it.
    ///
    /// While reads are under way, a wave waits until it is full. It does not wait if all lanes are idle and no batch is
    /// finished: the reads may take long, and the next batch may have all chunks already. If nothing is under way that
    /// could add to a wave, all that waits is launched, so the scheduler never stands still.
    pub fn next(&mut self, now: WaveContext) -> Option<(usize, Vec<WaitingChunk>)> {
        let lane = *self.idle.last()?;
        let encoded = self.sharing.for_gpu(self.encoded.len(), now.untaken, !now.cpu_lacks_memory);
        let chunks = self.copied.len() + encoded;
        if chunks == 0 && now.ready_uses == 0 {
            return None;
        }
        let more_comes = now.reads + now.tasks > 0;
        let starving = self.all_idle() && now.untaken == 0;
        let launch_now = starving
            || self.copies_are_due(chunks, now)
            || (encoded > 0 && self.encoded.decoded_bytes >= self.limits.decoded)
            || chunks >= self.limits.chunks
            // Only tasks in the GPU's place are under way. They don't add chunks for the GPU to decode.
            || (encoded > 0 && now.reads + now.tasks == self.sharing.tasks());
        if more_comes && !launch_now {
            return None;
        }
        let wave = self.take(encoded);
        self.idle.pop();
        if wave.iter().any(|chunk| chunk.content == Content::Encoded) {
            self.sharing.launched(lane, self.encoded.len());
        }
        Some((lane, wave))
    }

    /// Whether the work that needs no decoding is enough for a wave now, although more could be added to it. `chunks`
    /// is the number of chunks that the wave could take.
    fn copies_are_due(&self, chunks: usize, now: WaveContext) -> bool {
        let enough = self.copied.decoded_bytes >= EAGER_WAVE.min(self.limits.decoded)
            || (chunks == 0 && (now.ready_uses >= EAGER_USES || self.all_idle()));
        // However small a wave is, its calls to the driver delay the calls of the thread that launches the model's
        // kernels. So there is one wave for each batch. But chunks that wait hold memory, which reads and decode
        // threads must not lack.
        let may_wait = self.sharing.has_time(now.untaken) && !now.reads_lack_memory && !now.cpu_lacks_memory;
        enough && (!may_wait || now.ready_uses + self.copied.uses >= now.batch_uses)
    }

    /// Takes as many of the waiting chunks as fit in a wave, at least one. Chunks that are only copied come first, then
    /// at most `encoded` chunks that the GPU decodes.
    fn take(&mut self, mut encoded: usize) -> Vec<WaitingChunk> {
        let mut wave = Vec::new();
        let (mut staged_bytes, mut decoded_bytes) = (0, 0);
        loop {
            let next = self.encoded.chunks.front().filter(|_| encoded > 0);
            let Some(chunk) = self.copied.chunks.front().or(next).copied() else { break };
            // Large decoded chunks are copied straight to their slots.
            let staged = match chunk.content {
                Content::Decoded if chunk.decoded >= DIRECT_COPY => 0,
                _ => arena::rounded(chunk.bytes),
            };
            let on_gpu = if chunk.content == Content::Encoded { chunk.decoded } else { 0 };
            let fits = staged_bytes + staged <= self.limits.encoded
                && decoded_bytes + on_gpu <= self.limits.decoded
                && wave.len() < self.limits.chunks;
            if !wave.is_empty() && !fits {
                break;
            }
            match chunk.content {
                Content::Decoded => self.copied.pop(),
                Content::Encoded => {
                    encoded -= 1;
                    self.encoded.pop()
                }
            };
            (staged_bytes, decoded_bytes) = (staged_bytes + staged, decoded_bytes + on_gpu);
            wave.push(chunk);
        }
        wave
    }
}

#[cfg(test)]
mod tests;
