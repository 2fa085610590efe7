//! How much memory goes where: fixed when the reader is built, never exceeded. Pure arithmetic.

use crate::error::{Error, Result};
use crate::memory::arena::{ALIGN, rounded};

/// What the reader must hold at a time, at the least.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Bytes of all outputs of one batch.
    pub batch: usize,
    /// The most encoded bytes of a chunk, 0 if none has to be staged.
    pub encoded: usize,
    /// Bytes of the largest decoded chunk.
    pub decoded: usize,
    /// Bytes of the largest decoded chunk that the CPU decodes for a GPU, 0 if there is none.
    pub bounced: usize,
    /// Bytes that a decoder takes for itself on each thread (decoders that don't decode in place).
    pub per_thread: usize,
    /// Bytes that the CPU's decoder takes for itself when it decodes a chunk that the GPU couldn't.
    pub fallback: usize,
    /// Bytes of the largest index of a shard.
    pub index: usize,
    /// Bytes that the threads which read take for themselves.
    pub reading: usize,
    /// Bytes of device memory that files are best read to before the GPU decodes them, 0 if they aren't.
    pub landing: usize,
    /// Encoded bytes of as many requests to remote stores as may be under way, 0 if all stores are local: these wait for nothing
    /// but a disk, while from far away nothing comes that wasn't asked for long before.
    pub requested: usize,
    /// Bytes of all decoded chunks that a typical batch needs.
    pub working_set: usize,
    /// With chunk-aware shuffling: bytes of the decoded chunks among whose samples those of a batch are drawn. These are worth
    /// keeping, if memory allows.
    pub shuffled: Option<usize>,
    /// Decoded bytes of the smallest chunk, or of the typical stream inside a chunk: how many a wave may have to hold.
    pub smallest: usize,
    /// Jobs of a typical batch.
    pub jobs: usize,
}

/// How host memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostBudget {
    /// Batches that may be in preparation or waiting.
    pub window: usize,
    /// Buffers of batches that came back and wait to be used again, at most.
    pub idle: usize,
    /// Bytes of the block for encoded chunks (and decoded ones, if batches are delivered to the CPU).
    pub block: usize,
    /// Bytes of shard indexes that are kept.
    pub indexes: usize,
    /// Decode threads.
    pub threads: usize,
}

/// What is divided if the user sets no limit, before looking at the machine.
pub const DEFAULT_HOST: u64 = 2 << 30;
/// See [`DEFAULT_HOST`].
pub const DEFAULT_DEVICE: u64 = 8 << 30;

const MOST_WINDOW: usize = 32;

/// Buffers that came back and are kept, at most.
const MOST_IDLE: usize = 4;

fn too_small(argument: &str, limit: u64, smallest: usize) -> Error {
    Error::value(format!(
        "{argument}: expected at least {smallest} bytes for one chunk and one batch of this dataset, found {limit}"
    ))
}

/// The limit on host memory on a machine with `total` bytes of it, where that is known: what the user gave, else `default`.
/// No more than the machine has: of a limit beyond it, seven eighths of its memory, and of a default half. The rest is the
/// system's and the user's. No less than `smallest` either, unless the user asks for less.
pub fn host_limit(given: Option<u64>, default: u64, smallest: u64, total: Option<u64>) -> u64 {
    let total = total.unwrap_or(u64::MAX);
    match given {
        Some(given) if given <= total => given,
        Some(_) => (total / 8 * 7).max(smallest),
        None => default.min(total / 2).max(smallest),
    }
}

/// The smallest limit with which batches can be delivered to the CPU: one chunk, and one batch or what was asked for.
pub fn smallest_cpu(needs: &Needs, window: Option<usize>) -> u64 {
    let chunk = rounded(needs.encoded) + rounded(needs.decoded);
    // One batch more than are in preparation: a buffer that came back and waits to be used again.
    let aside = rounded(needs.index * 2) + needs.per_thread + needs.reading;
    ((window.unwrap_or(1).max(1) + 1) * needs.batch + chunk + aside) as u64
}

/// Batches that [`cpu`] may give memory beyond those of [`smallest_cpu`].
pub fn most_ahead(window: Option<usize>) -> usize {
    MOST_IDLE - 1 + if window.is_some() { 0 } else { MOST_WINDOW - 1 }
}

/// What of a limit on host memory goes to decoders and indexes, and what is left beyond the smallest that would do.
struct Spare {
    threads: usize,
    indexes: usize,
    left: usize,
}

/// Both ways of delivery divide host memory alike, once `smallest` (which holds two indexes and one decoder) is set aside.
fn spare(limit: u64, needs: &Needs, smallest: usize, threads: usize) -> Result<Spare> {
    let total = usize::try_from(limit).unwrap_or(usize::MAX);
    if total < smallest {
        return Err(too_small("host_memory_limit", limit, smallest));
    }
    let threads = match needs.per_thread {
        0 => threads,
        // Half of what is left at most goes to the decoders.
        each => threads.min(1 + (total - smallest) / 2 / each),
    };
    let left = total - smallest + needs.per_thread - threads * needs.per_thread;
    Ok(Spare { threads, indexes: rounded(needs.index * 2) + left / 8, left: left - left / 8 })
}

/// Divides `limit` bytes for batches delivered to the CPU. `window` is what the user asked for, if anything.
///
/// # Errors
/// If one chunk and one batch don't fit, with the smallest limit that would do.
pub fn cpu(limit: u64, needs: &Needs, window: Option<usize>, threads: usize) -> Result<HostBudget> {
    let chunk = rounded(needs.encoded) + rounded(needs.decoded);
    let batches = window.unwrap_or(1).max(1);
    let Spare { threads, indexes, left } = spare(limit, needs, smallest_cpu(needs, window) as usize, threads)?;
    // Enough chunks for one batch, every thread and all requests come first, then batches ahead.
    let set = needs.shuffled.map_or(needs.working_set, |bytes| bytes.saturating_add(needs.working_set));
    let wanted = set.saturating_add(threads * chunk).saturating_add(needs.requested).min(left / 2);
    let affordable = (left - wanted) / needs.batch.max(1);
    // Users give back several at a time; what doesn't wait is mapped anew, and its pages zeroed once more.
    let idle = (affordable / 4).min(MOST_IDLE - 1);
    let ahead = if window.is_some() { 0 } else { (affordable - idle).min(MOST_WINDOW - 1) };
    let (window, idle, block) = (batches + ahead, 1 + idle, chunk + left - (ahead + idle) * needs.batch);
    Ok(HostBudget { window, idle, block, indexes, threads })
}

/// The smallest limit on host memory with which batches can be delivered to a GPU, where `aside` bytes are taken already.
fn smallest_for_gpu(needs: &Needs, aside: usize) -> usize {
    rounded(needs.encoded)
        + rounded(needs.bounced)
        + rounded(needs.index * 2)
        + needs.per_thread
        + needs.reading
        + aside
}

/// The same for a dataset, where the CPU has `fallback` bytes in which it decodes what the GPU can't: a lane's tables are in host
/// memory too.
pub fn smallest_host_for_gpu(needs: &Needs, fallback: usize) -> usize {
    smallest_for_gpu(needs, fallback + least_tables(needs))
}

/// Bytes of the tables of a lane that takes one chunk at a time.
fn least_tables(needs: &Needs) -> usize {
    let chunk = rounded(needs.decoded);
    tables_for(streams_in(needs, chunk), chunk)
}

/// Bytes of `limit` that the tables of all lanes may take in host memory, beside the `fallback` bytes in which the CPU decodes
/// what the GPU can't: those of the smallest lane, and half of what is left.
///
/// # Errors
/// If one chunk doesn't fit, with the smallest limit that would do.
pub fn host_tables(limit: u64, needs: &Needs, fallback: usize) -> Result<usize> {
    let total = usize::try_from(limit).unwrap_or(usize::MAX);
    let smallest = smallest_host_for_gpu(needs, fallback);
    if total < smallest {
        return Err(too_small("host_memory_limit", limit, smallest));
    }
    Ok(least_tables(needs) + (total - smallest) / 2)
}

/// Divides `limit` bytes of host memory for batches delivered to a GPU; `aside` bytes of it are taken already.
///
/// # Errors
/// If one chunk doesn't fit.
pub fn host_for_gpu(limit: u64, needs: &Needs, aside: usize, threads: usize) -> Result<HostBudget> {
    let chunk = rounded(needs.encoded) + rounded(needs.bounced);
    let smallest = smallest_for_gpu(needs, aside);
    let Spare { threads, indexes, left } = spare(limit, needs, smallest, threads)?;
    Ok(HostBudget { window: 0, idle: 0, block: chunk + left, indexes, threads })
}

/// The limits that a reader keeps to: the user's, or what stands for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub host: u64,
    /// 0 if batches are delivered to the CPU.
    pub device: u64,
}

/// How device memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBudget {
    /// Batches that may be in preparation or waiting; each takes [`Needs::batch`] bytes that the host lends.
    pub window: usize,
    /// Waves at a time.
    pub lanes: usize,
    /// Decoded bytes of chunks that the GPU decodes in one wave.
    pub wave_decoded: usize,
    /// Encoded bytes in one wave.
    pub wave_encoded: usize,
    /// Chunks in one wave, and streams in one round of a lane.
    pub wave_streams: usize,
    /// Blocks of zstd frames in one round of a lane.
    pub wave_blocks: usize,
    /// Bytes of tables of each lane, on the device and in host memory.
    pub tables: usize,
    /// Bytes of workspace of each lane.
    pub workspace: usize,
    /// Bytes of the block for decoded chunks.
    pub slots: usize,
    /// Bytes of the block that files are read to.
    pub landing: usize,
}

/// Streams that a wave of `decoded` bytes may have.
fn streams_in(needs: &Needs, decoded: usize) -> usize {
    (decoded / needs.smallest.max(1)).clamp(1, 32_768)
}

/// What a lane with waves of `decoded` bytes costs beside its slots, and its workspace.
fn lane(
    needs: &Needs,
    decoded: usize,
    on_gpu: bool,
    workspace: &dyn Fn(usize, usize) -> Result<usize>,
) -> Result<(usize, usize)> {
    let streams = streams_in(needs, decoded);
    let space = if on_gpu { rounded(workspace(streams, decoded)?) } else { 0 };
    Ok((rounded(needs.encoded).max(rounded(decoded)) + space + rounded(tables_for(streams, decoded)), space))
}

/// The smallest limit on device memory: one chunk, and one batch or what was asked for.
///
/// # Errors
/// Those of `workspace`.
pub fn smallest_gpu(
    needs: &Needs,
    window: Option<usize>,
    on_gpu: bool,
    workspace: &dyn Fn(usize, usize) -> Result<usize>,
) -> Result<usize> {
    let chunk = rounded(needs.decoded);
    let landing = if needs.landing > 0 { rounded(needs.encoded) } else { 0 };
    Ok(window.unwrap_or(1).max(1) * needs.batch + chunk + lane(needs, chunk, on_gpu, workspace)?.0 + landing)
}

/// Divides `limit` bytes of device memory. `on_gpu` says whether the GPU decodes anything; `workspace(streams, decoded)`
/// is what its decoders need for a wave; `host_tables` is the most that the tables of all lanes may take in host memory, as
/// [`host_tables`] says.
///
/// # Errors
/// If one chunk and one batch don't fit, with the smallest limit that would do.
pub fn gpu(
    limit: u64,
    needs: &Needs,
    window: Option<usize>,
    on_gpu: bool,
    workspace: &dyn Fn(usize, usize) -> Result<usize>,
    host_tables: usize,
) -> Result<DeviceBudget> {
    let total = usize::try_from(limit).unwrap_or(usize::MAX);
    let chunk = rounded(needs.decoded);
    let encoded_chunk = rounded(needs.encoded);
    let batches = window.unwrap_or(1).max(1);
    let smallest = smallest_gpu(needs, Some(batches), on_gpu, workspace)?;
    if total < smallest {
        return Err(too_small("device_memory_limit", limit, smallest));
    }
    let landing = match needs.landing {
        0 => 0,
        wanted => rounded(wanted).min(total / 8).min(total - smallest).max(encoded_chunk) / ALIGN * ALIGN,
    };
    let total = total - landing;
    let streams_in = |decoded: usize| streams_in(needs, decoded);
    let lane = |decoded: usize| lane(needs, decoded, on_gpu, workspace);
    let budget = |window: usize, lanes: usize, decoded: usize, workspace: usize, slots: usize| DeviceBudget {
        window,
        lanes,
        wave_decoded: decoded,
        wave_encoded: encoded_chunk.max(rounded(decoded)),
        wave_streams: streams_in(decoded),
        wave_blocks: blocks_for(streams_in(decoded), decoded),
        tables: tables_for(streams_in(decoded), decoded),
        workspace,
        slots,
        landing,
    };
    let set = needs.working_set.max(chunk).max(1);
    // Many lanes keep many streams in flight; each should hold a batch if it can, and no more than four.
    for lanes in [8usize, 6, 4, 3, 2, 1] {
        let most = if on_gpu { (4 * set).clamp(8 << 20, 1 << 30) } else { set.clamp(8 << 20, 256 << 20) };
        let mut decoded = rounded(most.max(chunk));
        loop {
            let (cost, space) = lane(decoded)?;
            // Slots for what is in flight and one working set; outputs for as much.
            let slots = (lanes * decoded).saturating_add(rounded(set)).max(chunk);
            let ahead = (lanes * decoded).div_ceil(set) + 2;
            let windows = window.unwrap_or(ahead.clamp(2, MOST_WINDOW));
            let sum =
                lanes.saturating_mul(cost).saturating_add(slots).saturating_add(windows.saturating_mul(needs.batch));
            let tables = lanes.saturating_mul(tables_for(streams_in(decoded), decoded));
            let enough = decoded >= set.min(32 << 20) || lanes == 1;
            if sum <= total && tables <= host_tables && enough {
                // What is left keeps the chunks that samples are shuffled among.
                let kept = rounded(needs.shuffled.unwrap_or(0)).min(total - sum);
                return Ok(budget(windows, lanes, decoded, space, slots + kept));
            }
            if decoded <= chunk || !enough {
                break;
            }
            decoded = rounded((decoded / 8 * 7).max(chunk)).min(decoded - crate::memory::arena::ALIGN).max(chunk);
        }
    }
    // One chunk at a time.
    let (cost, space) = lane(chunk)?;
    Ok(budget(batches, 1, chunk, space, total - batches * needs.batch - cost))
}

/// Blocks of zstd frames in a round: twice what encoders make of its bytes, and some for each frame.
const fn blocks_for(streams: usize, decoded: usize) -> usize {
    2 * streams + 2 * (decoded >> 17)
}

/// Bytes of the tables of a lane.
const fn tables_for(streams: usize, decoded: usize) -> usize {
    streams * TABLE_PER_STREAM + blocks_for(streams, decoded) * TABLE_PER_BLOCK + JOB_TABLE
}

/// Bytes of each lane's tables for each stream of a wave.
pub const TABLE_PER_STREAM: usize = 168;

/// Bytes of each lane's tables for each block of zstd frames.
pub const TABLE_PER_BLOCK: usize = 96;

/// Bytes of each lane's table of jobs.
pub const JOB_TABLE: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: usize = 721 * 1440 * 4;

    fn needs(batch: usize, chunk: usize) -> Needs {
        Needs {
            batch,
            encoded: chunk + chunk / 8,
            decoded: chunk,
            bounced: 0,
            per_thread: 0,
            fallback: 0,
            index: 0,
            reading: 0,
            landing: 0,
            requested: 0,
            working_set: batch,
            shuffled: None,
            smallest: chunk,
            jobs: 0,
        }
    }

    /// The smallest limit that an error names.
    fn named(e: &Error) -> u64 {
        e.message().split("at least ").nth(1).and_then(|r| r.split(' ').next()?.parse().ok()).unwrap()
    }

    fn device_total(b: &DeviceBudget, n: &Needs) -> usize {
        b.landing + b.window * n.batch + b.lanes * (b.wave_encoded + b.workspace + rounded(b.tables)) + b.slots
    }

    #[test]
    fn limits_are_what_the_machine_can_give() {
        const GIB: u64 = 1 << 30;
        let limit = |given, total| host_limit(given, 6 * GIB, 2 * GIB, total);
        assert_eq!(limit(None, None), 6 * GIB);
        assert_eq!(limit(None, Some(64 * GIB)), 6 * GIB);
        assert_eq!(limit(None, Some(8 * GIB)), 4 * GIB);
        assert_eq!(limit(None, Some(3 * GIB)), 2 * GIB, "the smallest that would do");
        assert_eq!(limit(Some(7 * GIB), Some(8 * GIB)), 7 * GIB);
        assert_eq!(limit(Some(1), Some(8 * GIB)), 1, "refused later");
        assert_eq!(limit(Some(1000 * GIB), Some(8 * GIB)), 7 * GIB);
        assert_eq!(limit(Some(1000 * GIB), None), 1000 * GIB);
    }

    #[test]
    fn device_budgets_are_never_exceeded() {
        let zstd = |_: usize, decoded: usize| Ok(3 * decoded);
        for (batch, chunk) in [(16 * FIELD, FIELD), (16 * FIELD, 65_536), (4096, 64), (2 * FIELD, 37 * FIELD)] {
            let n = needs(batch, chunk);
            let smallest = gpu(0, &n, None, true, &zstd, usize::MAX).unwrap_err();
            let smallest: u64 = named(&smallest);
            for limit in [smallest, smallest + 1_000_000, 1 << 29, 1 << 30, 8 << 30, 100 << 30] {
                if limit < smallest {
                    continue;
                }
                let b = gpu(limit, &n, None, true, &zstd, usize::MAX).unwrap();
                assert!(device_total(&b, &n) as u64 <= limit, "{limit} {b:?}");
                assert!(b.slots >= chunk && b.wave_decoded >= chunk && b.wave_encoded >= n.encoded);
            }
            assert!(gpu(smallest - 1, &n, None, true, &zstd, usize::MAX).is_err());
        }
    }

    #[test]
    fn eight_gigabytes_hold_many_streams() {
        let b = gpu(8 << 30, &needs(16 * FIELD, FIELD), None, true, &|_, d| Ok(3 * d), usize::MAX).unwrap();
        assert!(b.lanes * b.wave_streams >= 256, "{b:?}");
        assert!(b.window * 16 >= 256, "{b:?}");
    }

    /// The smallest limit on host memory is the chunk's, however much device memory there is: lanes are given up before.
    #[test]
    fn tables_fit_the_host_limit() {
        let zstd = |_: usize, decoded: usize| Ok(3 * decoded);
        for (batch, chunk) in [(16 * FIELD, FIELD), (16 * FIELD, 65_536), (4096, 64), (2 * FIELD, 37 * FIELD)] {
            let n = Needs { bounced: chunk, per_thread: 3 * chunk, index: 1000, ..needs(batch, chunk) };
            let fallback = 2 * chunk;
            let smallest = named(&host_tables(0, &n, fallback).unwrap_err());
            assert!(host_tables(smallest - 1, &n, fallback).is_err());
            let mut lanes = 0;
            for limit in [smallest, smallest + 5000, smallest + (4 << 20), smallest + (64 << 20), smallest + (4 << 30)]
            {
                let most = host_tables(limit, &n, fallback).unwrap();
                let d = gpu(100 << 30, &n, None, true, &zstd, most).unwrap();
                let aside = fallback + d.lanes * d.tables;
                let h = host_for_gpu(limit, &n, aside, 4).unwrap();
                let total = aside + h.block + h.indexes + h.threads * n.per_thread;
                assert!(total as u64 <= limit, "{limit}: {total} {d:?} {h:?}");
                assert!(h.block >= n.encoded + n.bounced && h.threads >= 1 && d.lanes >= lanes, "{limit} {d:?} {h:?}");
                lanes = d.lanes;
            }
            assert!(lanes > 1, "{chunk}");
        }
    }

    #[test]
    fn host_budgets_are_never_exceeded() {
        for per_thread in [0, FIELD] {
            let n = Needs { per_thread, index: 1000, ..needs(16 * FIELD, FIELD) };
            let smallest = cpu(0, &n, None, 4).unwrap_err();
            let smallest: u64 = named(&smallest);
            for limit in [smallest, smallest + 5000, 1 << 28, 1 << 31] {
                let b = cpu(limit, &n, None, 4).unwrap();
                let total = (b.window + b.idle) * n.batch + b.block + b.indexes + b.threads * per_thread;
                assert!(total as u64 <= limit, "{limit}: {total} {b:?}");
                assert!(b.block >= n.encoded + n.decoded && b.window >= 1 && b.idle >= 1 && b.threads >= 1);
            }
            assert!(cpu(smallest - 1, &n, None, 4).is_err());
            let b = cpu(1 << 31, &n, Some(3), 4).unwrap();
            assert_eq!((b.window, b.idle), (3, MOST_IDLE));
            // Requests that are under way have room, as far as half of the memory goes.
            let far = Needs { requested: 100 * FIELD, ..n };
            let (near, far) = (cpu(1 << 31, &n, None, 4).unwrap(), cpu(1 << 31, &far, None, 4).unwrap());
            assert!(
                near.block < 100 * FIELD && far.block > 100 * FIELD && far.window < near.window,
                "{near:?} {far:?}"
            );
        }
    }
}
