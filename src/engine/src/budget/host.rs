//! How host memory is divided.

use super::device::least_tables;
use super::needs::{MAX_BATCHES, Needs, too_small};
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::arena::rounded;

/// How host memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBudget {
    /// Delivery to the CPU: batches that may be in preparation or waiting. 0 with a GPU, whose memory holds them.
    pub batches: usize,
    /// Delivery to the CPU: most buffers that came back with their batches and are kept to be used again.
    pub idle: usize,
    /// Bytes of the block for encoded chunks (and decoded ones, if batches are delivered to the CPU).
    pub block: usize,
    /// Most bytes of shard indexes that are kept.
    pub indexes: usize,
    /// Number of decode threads.
    pub threads: usize,
    /// Delivery to a GPU: most chunks that decode threads decode at a time in the GPU's place. 0: none.
    pub shared: usize,
}

impl HostBudget {
    /// Returns the bytes that a reader reserves when it is opened, if batches are delivered to the CPU. The rest of the
    /// block for chunks, the other batches and the idle buffers are drawn when they are needed. `batches` is the number of
    /// batches that the user asked for, if any.
    pub fn reserved(&self, needs: &Needs, batches: Option<usize>) -> u64 {
        let indexes = if needs.index > 0 { self.indexes } else { 0 };
        let decoders = self.threads * needs.per_thread;
        let outputs = (needs.least_batches(batches) + 1) * needs.batch;
        (outputs + needs.cpu_chunk() + indexes + decoders + needs.read_buffers + needs.rows + needs.tables) as u64
    }
}

/// The limit in bytes if the user sets none, before looking at the dataset and the machine.
pub const DEFAULT_HOST: u64 = 2 << 30;

/// Most buffers that came back and are kept.
const MAX_IDLE: usize = 4;

/// Bytes of batches after the first one that are enough, if the user doesn't say how many to prepare. The pages of each
/// further buffer are faulted in and zeroed once. With large batches this slows the whole first epoch.
const AHEAD_BYTES: usize = 512 << 20;

/// Number of batches that are prepared after the first one, even if they are large.
const MIN_AHEAD: usize = 3;

/// Returns the limit on host memory in bytes: what the user gave, or `default`. `total` is the memory of the machine,
/// if it is known. If the user gave more than that, the limit is 7/8 of it; a default is at most `share`, which is half of
/// it if it isn't known. The rest is left to the system and to the user. The limit isn't below `smallest`, unless the user
/// gave less.
pub(super) fn host_limit(
    given: Option<u64>,
    default: u64,
    smallest: u64,
    total: Option<u64>,
    share: Option<u64>,
) -> u64 {
    let total = total.unwrap_or(u64::MAX);
    match given {
        Some(given) if given <= total => given,
        Some(_) => (total / 8 * 7).max(smallest),
        None => default.min(share.unwrap_or(total / 2)).max(smallest),
    }
}

/// Returns the limit if the user sets none. A dataset with large chunks gets more than [`DEFAULT_HOST`].
pub(super) fn default_host(needs: &Needs, smallest: u64) -> u64 {
    let large = match needs.device {
        None => smallest - needs.tables as u64,
        Some(_) => (needs.encoded + needs.host_decoded + needs.fallback_bytes() + needs.per_thread) as u64,
    };
    large.saturating_mul(3).max(DEFAULT_HOST).saturating_add(needs.tables.max(needs.opening) as u64)
}

/// Returns the smallest possible limit in bytes. For delivery to the CPU, it holds one chunk and this number of `batches`
/// (`None`: one). With a GPU, it holds one chunk, the tables of one lane, and room for a chunk that the GPU couldn't
/// decode.
pub fn smallest_host(needs: &Needs, batches: Option<usize>) -> u64 {
    let smallest = match needs.device {
        None => {
            // One more batch than are in preparation: a buffer that came back and waits to be used again.
            let outputs = (needs.least_batches(batches) + 1) * needs.batch;
            outputs + needs.cpu_chunk() + fixed_bytes(needs)
        }
        Some(_) => gpu_chunk(needs) + fixed_bytes(needs) + needs.fallback_bytes() + least_tables(needs),
    };
    smallest as u64
}

/// Returns the bytes of one chunk in host memory, if batches are delivered to a GPU.
fn gpu_chunk(needs: &Needs) -> usize {
    rounded(needs.encoded) + rounded(needs.host_decoded)
}

/// Returns the bytes that are set aside for two indexes, one decoder, the threads that read, the offsets of rows, and
/// tables.
fn fixed_bytes(needs: &Needs) -> usize {
    rounded(needs.index * 2) + needs.per_thread + needs.read_buffers + needs.rows + needs.tables
}

/// The parts of a limit: the number of decode threads, the bytes of indexes, and the bytes that are left for other
/// uses.
struct Remainder {
    threads: usize,
    indexes: usize,
    left: usize,
}

/// Splits the bytes of a limit beyond `smallest` into decoders, indexes and the rest. `smallest` holds two indexes and
/// one decoder.
fn remainder(limit: u64, needs: &Needs, smallest: usize, threads: usize) -> Result<Remainder> {
    let total = usize::try_from(limit).unwrap_or(usize::MAX);
    if total < smallest {
        return Err(too_small("host_memory_limit", limit, smallest, needs.tables));
    }
    let threads = match needs.per_thread {
        0 => threads,
        // At most half of what is left goes to more decoders.
        each => threads.min(1 + (total - smallest) / 2 / each),
    };
    let left = total - smallest + needs.per_thread - threads * needs.per_thread;
    Ok(Remainder { threads, indexes: rounded(needs.index * 2) + left / 8, left: left - left / 8 })
}

/// Divides `limit` bytes for batches delivered to the CPU. `batches` is the number of batches that the user asked for,
/// if any.
///
/// # Errors
/// If one chunk and one batch don't fit. The error names the smallest limit that would be enough.
pub(super) fn divide_cpu(limit: u64, needs: &Needs, batches: Option<usize>, threads: usize) -> Result<HostBudget> {
    let chunk = needs.cpu_chunk();
    let least = needs.least_batches(batches);
    let Remainder { threads, indexes, left } =
        remainder(limit, needs, smallest_host(needs, batches) as usize, threads)?;
    // Memory for the chunks of one batch, for a chunk of each thread and for all requests comes first, then batches
    // ahead.
    let set = needs.shuffled.map_or(needs.working_set, |bytes| bytes.saturating_add(needs.working_set));
    let wanted = set.saturating_add(threads * chunk).saturating_add(needs.request_bytes).min(left / 2);
    let affordable = (left - wanted) / needs.batch.max(1);
    // Users give back several buffers at a time. A buffer that isn't kept is mapped again, and its pages are zeroed
    // once more.
    let idle = (affordable / 4).min(MAX_IDLE - 1);
    let ahead = if batches.is_some() { 0 } else { (affordable - idle).min(ahead_at_most(needs)) };
    let (batches, idle, block) = (least + ahead, 1 + idle, chunk + left - (ahead + idle) * needs.batch);
    Ok(HostBudget { batches, idle, block, indexes, threads, shared: 0 })
}

/// Returns the most batches that are prepared after the first one, if the user doesn't say how many.
fn ahead_at_most(needs: &Needs) -> usize {
    (AHEAD_BYTES / needs.batch.max(1)).clamp(MIN_AHEAD, MAX_BATCHES - 1)
}

/// Returns the bytes of `limit` that the tables of all lanes may take in host memory: those of the smallest lane, and
/// half of what is left.
///
/// # Errors
/// If one chunk doesn't fit. The error names the smallest limit that would be enough.
pub(super) fn host_tables(limit: u64, needs: &Needs) -> Result<usize> {
    let total = usize::try_from(limit).unwrap_or(usize::MAX);
    let smallest = smallest_host(needs, None) as usize;
    if total < smallest {
        return Err(too_small("host_memory_limit", limit, smallest, needs.tables));
    }
    Ok(least_tables(needs) + (total - smallest) / 2)
}

/// Bytes of the block for gaps between chunks, and for chunks that take more bytes than usual, if all chunks of the data
/// set fit into it.
const ROOM: usize = 32 << 20;

/// Divides `limit` bytes of host memory for batches delivered to a GPU. `tables` are the bytes of the tables of all
/// lanes. There are at most `threads` decode threads. The block is page-locked when a reader is opened, which takes 0.5 s for each GB.
/// So it isn't larger than all chunks need.
///
/// # Errors
/// If one chunk doesn't fit.
pub(super) fn divide_for_gpu(limit: u64, needs: &Needs, tables: usize, threads: usize) -> Result<HostBudget> {
    let smallest = gpu_chunk(needs) + fixed_bytes(needs) + needs.fallback_bytes() + tables;
    let Remainder { threads, indexes, left } = remainder(limit, needs, smallest, threads)?;
    let (shared, scratch) = shared(needs, left, threads);
    let enough = needs.all.saturating_add(needs.request_bytes).saturating_add(ROOM);
    let block = gpu_chunk(needs) + (left - scratch).min(enough);
    Ok(HostBudget { batches: 0, idle: 0, block, indexes, threads, shared })
}

/// Returns how many of `threads` decode threads have memory to decode in the GPU's place, and the bytes beyond
/// [`Needs::per_thread`] that they take for it: at most a quarter of `left`. At least as much is left for the chunks
/// that they have decoded.
fn shared(needs: &Needs, left: usize, threads: usize) -> (usize, usize) {
    let Some(scratch) = needs.sharing else { return (0, 0) };
    let each = scratch.saturating_sub(needs.per_thread);
    let room = left / 4;
    let threads = threads.min(room / rounded(needs.decoded)).min(room.checked_div(each).unwrap_or(usize::MAX));
    (threads, threads * each)
}

/// Finds the limit on host memory that gives the block for chunks a wanted size: the inverse of [`divide_cpu`] and
/// [`divide_for_gpu`].
#[derive(Clone, Copy, Debug)]
pub struct LimitFinder {
    /// The smallest limit with which the reader runs.
    smallest: u64,
    /// Bytes that the block has with the smallest limit.
    least: usize,
    /// Bytes that the block gets of a larger limit before batches ahead get any.
    before_batches: usize,
    /// Bytes of all batches ahead.
    batches_ahead: usize,
    /// Whether batches are delivered to a GPU.
    gpu: bool,
}

impl LimitFinder {
    /// For a reader with these needs; `batches` is what the user asked for, if anything.
    pub fn new(needs: &Needs, batches: Option<usize>) -> Self {
        let smallest = smallest_host(needs, batches);
        if needs.device.is_some() {
            return Self { smallest, least: gpu_chunk(needs), before_batches: usize::MAX, batches_ahead: 0, gpu: true };
        }
        let least = needs.cpu_chunk();
        let before_batches = needs.working_set.saturating_add(least);
        // Batches beyond those of the smallest limit.
        let ahead = MAX_IDLE - 1 + if batches.is_some() { 0 } else { ahead_at_most(needs) };
        Self { smallest, least, before_batches, batches_ahead: needs.batch.saturating_mul(ahead), gpu: false }
    }

    /// Returns a limit with which the block has at least `bytes` bytes; so it has with any larger limit. If decoders
    /// and tables take less than they may, a smaller limit would be enough.
    pub fn limit_for(&self, bytes: usize) -> u64 {
        let more = bytes.saturating_sub(self.least);
        // Decoded chunks get half of what is left, as far as a batch needs them. Beyond that, batches ahead come first.
        let left = if self.gpu {
            more
        } else if more <= self.before_batches {
            more.saturating_mul(2).min(more.saturating_add(self.batches_ahead))
        } else {
            more.saturating_add(self.batches_ahead)
        };
        // Of what is beyond the smallest limit, the block gets at least 7/16: half may go to decoders, and an eighth of the rest
        // to indexes. With a GPU half may go to tables before, and a quarter of the rest to decoding beside the GPU: at least
        // 1/2 x 7/16 x 3/4 = 21/128, which is more than 7/43.
        let parts = if self.gpu { 43 } else { 16 };
        self.smallest.saturating_add((left as u64).saturating_mul(parts).div_ceil(7)).saturating_add(64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::needs::tests::{FIELD, MIB, Numbers, needs, on_gpu};
    use super::*;

    #[test]
    fn limits_are_what_the_machine_can_give() {
        const GIB: u64 = 1 << 30;
        let limit = |given, total| host_limit(given, 6 * GIB, 2 * GIB, total, None);
        assert_eq!(limit(None, None), 6 * GIB);
        assert_eq!(limit(None, Some(64 * GIB)), 6 * GIB);
        assert_eq!(limit(None, Some(8 * GIB)), 4 * GIB);
        assert_eq!(limit(None, Some(3 * GIB)), 2 * GIB, "the smallest that would do");
        assert_eq!(limit(Some(7 * GIB), Some(8 * GIB)), 7 * GIB);
        assert_eq!(limit(Some(1), Some(8 * GIB)), 1, "refused later");
        assert_eq!(limit(Some(1000 * GIB), Some(8 * GIB)), 7 * GIB);
        assert_eq!(limit(Some(1000 * GIB), None), 1000 * GIB);
        assert_eq!(host_limit(None, 6 * GIB, 2 * GIB, Some(64 * GIB), Some(5 * GIB)), 5 * GIB, "what readers share");
        assert_eq!(host_limit(Some(7 * GIB), 6 * GIB, 2 * GIB, Some(64 * GIB), Some(GIB)), 7 * GIB);
    }

    #[test]
    fn host_budgets_are_never_exceeded() {
        for per_thread in [0, FIELD] {
            let n = Needs { per_thread, index: 1000, ..needs(16 * FIELD, FIELD) };
            let smallest = smallest_host(&n, None);
            for limit in [smallest, smallest + 5000, 1 << 28, 1 << 31] {
                let b = divide_cpu(limit, &n, None, 4).unwrap();
                let total = (b.batches + b.idle) * n.batch + b.block + b.indexes + b.threads * per_thread;
                assert!(total as u64 <= limit, "{limit}: {total} {b:?}");
                assert!(b.block >= n.encoded + n.decoded && b.batches >= 1 && b.idle >= 1 && b.threads >= 1);
            }
            let refused = divide_cpu(smallest - 1, &n, None, 4).unwrap_err();
            assert!(refused.message().contains(&format!("at least {smallest} bytes")), "{refused}");
            let b = divide_cpu(1 << 31, &n, Some(3), 4).unwrap();
            assert_eq!((b.batches, b.idle), (3, MAX_IDLE));
            // Requests that are under way have room, as far as half of the memory goes.
            let far = Needs { request_bytes: 50 * FIELD, ..n };
            let (near, far) = (divide_cpu(1 << 30, &n, None, 4).unwrap(), divide_cpu(1 << 30, &far, None, 4).unwrap());
            assert!(
                near.block < 50 * FIELD && far.block > 50 * FIELD && far.batches < near.batches,
                "{near:?} {far:?}"
            );
            // Of large batches a few are enough, however much memory there is; of small ones as many as fit.
            let batches = |batch| divide_cpu(1 << 40, &Needs { batch, ..n }, None, 4).unwrap().batches;
            assert_eq!(
                [1 << 10, 16 << 20, 64 << 20, 1 << 30].map(batches),
                [MAX_BATCHES, MAX_BATCHES, 9, 1 + MIN_AHEAD]
            );
        }
    }

    #[test]
    fn host_budgets_for_a_gpu_are_never_exceeded() {
        for (batch, chunk) in [(16 * FIELD, FIELD), (16 * FIELD, 65_536), (4096, 64), (2 * FIELD, 37 * FIELD)] {
            let n = Needs {
                host_decoded: chunk,
                per_thread: chunk,
                sharing: Some(2 * chunk),
                index: 1000,
                ..on_gpu(batch, chunk)
            };
            let smallest = smallest_host(&n, None);
            assert!(host_tables(smallest - 1, &n).is_err());
            for limit in [smallest, smallest + 5000, smallest + (4 << 20), smallest + (4 << 30)] {
                let tables = host_tables(limit, &n).unwrap();
                let h = divide_for_gpu(limit, &n, tables, 4).unwrap();
                let beside = h.shared * (2 * chunk - n.per_thread.min(2 * chunk));
                let total = n.fallback_bytes() + tables + h.block + h.indexes + h.threads * n.per_thread + beside;
                assert!(total as u64 <= limit, "{limit}: {total} {h:?}");
                assert!(h.block >= n.encoded + n.host_decoded && h.threads >= 1, "{limit} {h:?}");
                let small = divide_for_gpu(limit, &Needs { all: 1 << 20, ..n }, tables, 4).unwrap();
                assert!(small.block <= h.block.min(ROOM + (2 << 20) + gpu_chunk(&n)), "{limit} {small:?}");
            }
        }
    }

    #[test]
    fn the_limit_that_is_named_has_room_with_any_larger_one() {
        let mut numbers = Numbers(7);
        for _ in 0..3000 {
            let (cpu, gpu) = (numbers.needs(false), numbers.needs(true));
            let batches = (numbers.below(3) == 0).then_some(1 + numbers.below(5));
            let threads = 1 + numbers.below(32);
            let more = 1 + (numbers.below(300 * MIB) >> numbers.below(12));
            for more_memory in [0, 1 + numbers.below(MIB), numbers.below(500 * MIB), numbers.below(8 << 30)] {
                let bytes = cpu.cpu_chunk() + more;
                let limit = LimitFinder::new(&cpu, batches).limit_for(bytes) + more_memory as u64;
                let block = divide_cpu(limit, &cpu, batches, threads).unwrap().block;
                assert!(block >= bytes, "{block} < {bytes} with {limit}: {cpu:?} {batches:?} {threads}");
                let bytes = gpu_chunk(&gpu) + more;
                let limit = LimitFinder::new(&gpu, batches).limit_for(bytes) + more_memory as u64;
                let tables = host_tables(limit, &gpu).unwrap();
                let block = divide_for_gpu(limit, &gpu, tables, threads).unwrap().block;
                assert!(block >= bytes, "{block} < {bytes} with {limit}: {gpu:?} {threads}");
            }
        }
    }
}
