//! Forms waves: decides which chunks go to the lanes of a GPU, and when.

use std::collections::VecDeque;

use super::sharing::Sharing;
use crate::chunk_index::DIRECT_COPY;
use crate::memory::arena;
use crate::messages::{Content, Handle, WaveLimits};

/// While more chunks are being read, a wave waits for them. It is launched anyway when this many bytes of chunks that
/// need no decoding wait for it. It waits longer if there is time to wait for a whole batch.
const EAGER_WAVE: usize = 16 << 20;
/// The same for this many uses of chunks that are in their slots already. Fewer are not worth a wave: its tables wait
/// for the same bus as the chunks.
const EAGER_USES: u32 = 8;

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
        self.decoded_bytes -= chunk.decoded;
        self.uses -= chunk.uses;
        Some(chunk)
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
    /// Whether a read or a decode thread waits for memory.
    pub short_of_memory: bool,
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

    /// Returns the next chunk that a decode thread should decode in the GPU's place, if there is one now.
    pub fn next_shared(&self) -> Option<WaitingChunk> {
        self.encoded.chunks.front().copied().filter(|_| self.sharing.cpu_decodes())
    }

    /// Records that a decode thread takes the chunk that [`Self::next_shared`] returned.
    pub fn begin_shared(&mut self) {
        self.encoded.pop();
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
        // The scheduler gave chunks to decode threads before this call. If a chunk is left for them, they lack memory
        // for it.
        let cpu_decodes = self.next_shared().is_none();
        let encoded = self.sharing.for_gpu(self.encoded.len(), now.untaken, cpu_decodes);
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
        let may_wait = self.sharing.has_time(now.untaken) && !now.short_of_memory;
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
mod tests {
    use super::super::task_limit::TaskLimit;
    use super::*;

    const LIMITS: WaveLimits = WaveLimits { encoded: 4096, decoded: 8192, chunks: 3 };
    const QUIET: WaveContext =
        WaveContext { reads: 0, tasks: 0, ready_uses: 0, batch_uses: 16, short_of_memory: false, untaken: 1 };

    fn waves(lanes: usize) -> Waves {
        Waves::new(lanes, LIMITS, Sharing::new(TaskLimit::fixed(0), 8, false))
    }

    fn chunk(handle: Handle, content: Content, decoded: usize) -> WaitingChunk {
        WaitingChunk { handle, content, bytes: decoded / 2, decoded, uses: 1 }
    }

    fn handles(wave: Option<(usize, Vec<WaitingChunk>)>) -> Option<Vec<Handle>> {
        wave.map(|(_, wave)| wave.iter().map(|chunk| chunk.handle).collect())
    }

    #[test]
    fn copies_come_first_and_a_wave_keeps_its_limits() {
        let mut waves = waves(4);
        for (handle, content) in [(0, Content::Encoded), (1, Content::Decoded), (2, Content::Encoded)] {
            waves.push(chunk(handle, content, 2048));
        }
        waves.push(chunk(3, Content::Encoded, 2048));
        assert_eq!(handles(waves.next(QUIET)), Some(vec![1, 0, 2]), "three chunks at most");
        assert_eq!(handles(waves.next(QUIET)), Some(vec![3]));
        waves.push(chunk(4, Content::Encoded, 8192));
        waves.push(chunk(5, Content::Encoded, 256));
        assert_eq!(handles(waves.next(QUIET)), Some(vec![4]), "8192 decoded bytes at most");
        waves.push(chunk(6, Content::Encoded, 1 << 20));
        waves.push(chunk(7, Content::Encoded, 256));
        assert_eq!(handles(waves.next(QUIET)), Some(vec![5]));
        assert_eq!(handles(waves.next(QUIET)), None, "no lane is idle");
        waves.ended(0);
        assert_eq!(handles(waves.next(QUIET)), Some(vec![6]), "a chunk beyond the limits goes alone");
        assert!(!waves.is_idle());
    }

    #[test]
    fn a_wave_waits_for_reads_until_it_is_full() {
        let mut waves = waves(2);
        let reading = WaveContext { reads: 1, ..QUIET };
        waves.push(chunk(0, Content::Encoded, 4096));
        assert_eq!(handles(waves.next(reading)), None);
        waves.push(chunk(1, Content::Encoded, 4096));
        assert_eq!(handles(waves.next(reading)), Some(vec![0, 1]), "all bytes that a wave may have");
        waves.push(chunk(2, Content::Encoded, 4096));
        assert_eq!(handles(waves.next(WaveContext { untaken: 0, ..reading })), None, "a lane works for the next batch");
        waves.ended(0);
        assert_eq!(handles(waves.next(WaveContext { untaken: 0, ..reading })), Some(vec![2]), "no batch, idle lanes");
    }

    #[test]
    fn jobs_of_decoded_chunks_wait_for_company() {
        let mut waves = waves(2);
        assert_eq!(handles(waves.next(QUIET)), None);
        let few = WaveContext { reads: 1, ready_uses: 1, ..QUIET };
        assert_eq!(handles(waves.next(few)), Some(vec![]), "all lanes are idle");
        assert_eq!(handles(waves.next(few)), None);
        assert_eq!(handles(waves.next(WaveContext { ready_uses: EAGER_USES, ..few })), Some(vec![]));
    }

    /// Two lanes. 8 batches may wait, and the reserve is 2 of them.
    fn waves_with_time() -> Waves {
        let mut waves = Waves::new(
            2,
            WaveLimits { encoded: 1 << 30, decoded: 1 << 30, chunks: 64 },
            Sharing::new(TaskLimit::fixed(8), 8, false),
        );
        waves.sharing.queue_is_full();
        waves
    }

    #[test]
    fn while_enough_batches_wait_there_is_one_wave_for_a_batch() {
        let mut waves = waves_with_time();
        let reading = WaveContext { reads: 1, untaken: 5, ..QUIET };
        let ready = |ready_uses| WaveContext { ready_uses, ..reading };
        assert_eq!(handles(waves.next(ready(15))), None, "more is being read");
        assert_eq!(handles(waves.next(ready(16))), Some(vec![]), "a whole batch");
        // What the CPU has decoded counts by its uses, and not by its bytes.
        for handle in 0..15 {
            waves.push(chunk(handle, Content::Decoded, 4 << 20));
        }
        assert_eq!(handles(waves.next(WaveContext { reads: 0, tasks: 1, ..reading })), None);
        assert_eq!(waves.next(ready(1)).unwrap().1.len(), 15);
        waves.ended(0);
        waves.ended(1);
        assert_eq!(handles(waves.next(ready(3))), None);
        assert_eq!(handles(waves.next(WaveContext { reads: 0, ..ready(3) })), Some(vec![]), "nothing else comes");
    }

    #[test]
    fn a_burst_leaves_the_last_chunks_to_the_cpu_if_it_has_memory_for_them() {
        for cpu_decodes in [true, false] {
            let mut waves = waves_with_time();
            (0..72).for_each(|handle| waves.push(chunk(handle, Content::Encoded, 1 << 20)));
            if cpu_decodes {
                (0..8).for_each(|_| waves.begin_shared());
            }
            let now = WaveContext { untaken: 2, ..QUIET };
            let wave = handles(waves.next(now)).unwrap();
            assert_eq!(
                wave,
                if cpu_decodes { 8..56 } else { 0..64 }.collect::<Vec<_>>(),
                "two for each of eight tasks are left"
            );
            assert_eq!(handles(waves.next(now)), None, "the burst has ended");
        }
    }

    #[test]
    fn a_wave_waits_for_no_whole_batch_where_that_costs_time() {
        let reading = WaveContext { reads: 1, untaken: 5, ready_uses: 1, ..QUIET };
        let urgent = [
            ("the reserve is reached", WaveContext { untaken: 2, ..reading }),
            ("no batch waits", WaveContext { untaken: 0, ..reading }),
            ("a read waits for memory", WaveContext { short_of_memory: true, ..reading }),
        ];
        for (why, now) in urgent {
            let mut waves = waves_with_time();
            assert_eq!(handles(waves.next(reading)), None);
            assert_eq!(handles(waves.next(now)), Some(vec![]), "{why}");
        }
        // The consumer is the faster one.
        let mut waves = Waves::new(2, LIMITS, Sharing::new(TaskLimit::fixed(8), 8, false));
        assert_eq!(handles(waves.next(reading)), Some(vec![]));
    }

    #[test]
    fn small_chunks_of_several_batches_share_a_wave() {
        let mut waves = waves_with_time();
        let reading = WaveContext { reads: 1, untaken: 5, batch_uses: 1, ..QUIET };
        for handle in 0..3 {
            waves.push(chunk(handle, Content::Decoded, 1 << 10));
            assert_eq!(
                handles(waves.next(reading)),
                None,
                "16 MB would be launched, or what waits when no read is under way"
            );
        }
        assert_eq!(handles(waves.next(WaveContext { reads: 0, ..reading })), Some(vec![0, 1, 2]));
    }
}
