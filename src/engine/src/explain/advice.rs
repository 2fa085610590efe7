//! Advice on how to make a reader faster. Each rule looks at the numbers of the explanation, and says what it found and
//! what to do.

use super::Explanation;
use super::memory::FEW_FOR_GPU;
use crate::budget::MAX_BATCHES;
use crate::route::{Route, Why};
use dali_zarr_base::memory::shown as bytes;
use dali_zarr_codecs::Compression;

/// There is advice if chunks are read more often than this in an epoch, on average.
const MANY_READS: f64 = 1.5;
/// Chunks are too large for the window if more than this many bytes are decoded for each byte that a sample takes.
const MUCH_DECODED: f64 = 4.0;

/// Returns all advice that applies, the most important first. `working_set` are the decoded bytes of the chunks of one
/// batch.
pub(super) fn advice(e: &Explanation, working_set: usize) -> Vec<String> {
    let mut all = Vec::new();
    all.extend(refused(e));
    all.extend(scarce_memory(e));
    all.extend(read_often(e));
    all.extend(large_chunks(e));
    all.extend(cpu_codecs(e));
    all.extend(few_in_flight(e));
    all.extend(small_memory(e, working_set));
    all
}

fn refused(e: &Explanation) -> Option<String> {
    let why = e.memory.refused()?;
    Some(format!("a reader with these limits isn't built ({why}); what is said here holds for the smallest ones"))
}

/// Advises on limits that are more than the machine can give.
fn scarce_memory(e: &Explanation) -> Vec<String> {
    let mut all = Vec::new();
    let (Some(machine), None) = (&e.memory.machine, e.memory.refused()) else { return all };
    let (limit, total) = (e.memory.division.limits.host, bytes(machine.total));
    if let Some(given) = e.spec.resources.host_memory_limit.filter(|&given| given > limit) {
        all.push(format!(
            "host_memory_limit: {} are more than the {total} that this machine has ({}): {} are taken at most",
            bytes(given),
            machine.says,
            bytes(limit)
        ));
    }
    let most = limit.saturating_add(e.spec.resources.cache_size);
    if most > machine.available {
        let what =
            if e.spec.resources.cache_size > 0 { "host_memory_limit and cache_size" } else { "host_memory_limit" };
        all.push(format!(
            "the reader may take {} of host memory, but of the {total} that this machine has ({}) {} are available now: \
             lower {what}, or free memory that others hold",
            bytes(most),
            machine.says,
            bytes(machine.available)
        ));
    }
    all
}

/// Advises on chunks that are read several times in an epoch.
fn read_often(e: &Explanation) -> Vec<String> {
    let mut all = Vec::new();
    for (i, array) in e.arrays.iter().enumerate().filter(|(i, a)| a.chunks_of == *i) {
        let (in_order, shuffled) = (e.in_order.arrays[i].per_chunk(), e.shuffled.arrays[i].per_chunk());
        if e.is_shuffled && shuffled > MANY_READS && shuffled > 1.2 * in_order {
            let how = if e.is_pushed() { "in a random order of the caller's" } else { "shuffled" };
            let or = match (e.is_by_chunks, e.spec.order.weights.is_some()) {
                _ if e.is_pushed() => ", or push samples of one chunk near each other",
                (true, _) => {
                    ", give more memory, so that chunks are kept for later batches, or use a smaller initial_fill"
                }
                (false, false) => {
                    ", or use an initial_fill that is smaller than the epoch, so that samples of a chunk come together"
                }
                (false, true) => "",
            };
            all.push(format!(
                "array '{}': {how}, each chunk is read {shuffled:.1} times per epoch, in order {in_order:.1} times, \
                 since its chunks hold several samples: write it with smaller chunks (a chunk for each sample, or \
                 shards of them){or}",
                array.name
            ));
        } else if !e.is_shuffled && in_order > MANY_READS {
            all.push(format!(
                "array '{}': each chunk is read {in_order:.1} times per epoch, since it is needed again later than it \
                 can be kept: give more memory, or write the array with chunks that are shorter along the dimensions \
                 that samples are cut along",
                array.name
            ));
        }
    }
    all
}

/// Advises on chunks of which a sample takes only a small part.
fn large_chunks(e: &Explanation) -> Vec<String> {
    let mut all = Vec::new();
    for (i, array) in e.arrays.iter().enumerate() {
        let read = e.reads().arrays[array.chunks_of].bytes / e.reads().samples.max(1) as f64;
        let needed = read / array.bytes_per_sample.max(1) as f64;
        if array.chunks_of == i && array.amplification() > MUCH_DECODED && needed > MUCH_DECODED / 2.0 {
            all.push(format!(
                "array '{}': {needed:.1} bytes are decoded for each byte that a sample takes, since chunks of {} are \
                 larger than the windows: use smaller chunks, or larger windows",
                array.name,
                bytes(array.chunk_bytes())
            ));
        }
    }
    all
}

/// Advises on codecs and chunk sizes that the GPU doesn't decode.
fn cpu_codecs(e: &Explanation) -> Vec<String> {
    let parts = e.arrays.iter().flat_map(|array| array.parts.iter().map(move |part| (&array.name, part)));
    let mut all: Vec<String> = parts
        .filter_map(|(name, part)| match part.decision.why {
            Why::TooLarge { most } => Some(format!(
                "array '{name}': chunks of {} are decoded on the CPU: the GPU would decode chunks of {} at most",
                bytes(part.chunk_bytes),
                bytes(most as u64)
            )),
            Why::Codecs | Why::NoDecoder => Some(format!(
                "array '{name}': its codecs ({}) are decoded on the CPU: with Blosc (lz4 or zstd) or zstd the GPU would decode it",
                part.codecs
            )),
            _ => None,
        })
        .collect();
    all.dedup();
    all
}

/// Advises if memory, or the number of batches, allows fewer chunks in flight than keep the decoders busy.
fn few_in_flight(e: &Explanation) -> Option<String> {
    let in_flight = e.memory.chunks_in_flight;
    let budget = &e.memory.division.budget;
    let threads = budget.host.threads + e.memory.io_threads;
    let (argument, wanted) = match budget.device {
        None => ("host_memory_limit", threads),
        Some(_) => ("device_memory_limit (or host_memory_limit)", wanted_on_gpu(e).unwrap_or(threads)),
    };
    // An epoch has no more chunks than this.
    let wanted = wanted.min(e.reads().total().chunks.max(1.0) as usize);
    if in_flight >= wanted {
        return None;
    }
    let (batches, given) = (budget.batches, e.spec.resources.prefetch_queue_depth.is_some());
    let of_batches = e.memory.chunks_of_batches;
    if of_batches < wanted && (given || batches == MAX_BATCHES) {
        return Some(format!(
            "the {batches} batches in preparation have {of_batches} chunks, of {wanted} that would keep the decoders busy: use a \
             larger batch_size{}",
            if given { ", or raise prefetch_queue_depth" } else { "" }
        ));
    }
    if !e.memory.is_short {
        return None;
    }
    Some(format!(
        "the memory limits allow {in_flight} chunks in flight, of {wanted} that would keep the decoders busy: raise {argument}, by {} \
         for each chunk",
        bytes(e.memory.chunk as u64)
    ))
}

/// Returns how many chunks keep the GPU's decoders busy. The codec with the fewest streams in a chunk decides. `None`
/// if a few chunks are enough for all arrays.
fn wanted_on_gpu(e: &Explanation) -> Option<usize> {
    let parts = e.arrays.iter().flat_map(|a| &a.parts);
    let wanted = parts.filter(|part| part.decision.route == Route::Gpu).filter_map(|part| match part.compression {
        Some(Compression::Gzip | Compression::Zlib | Compression::Lz4) => Some(FEW_FOR_GPU),
        // The blocks of a frame are decoded side by side.
        Some(Compression::Zstd) => {
            Some((FEW_FOR_GPU as u64 * (4 << 20)).div_ceil(part.chunk_bytes.max(1)).min(FEW_FOR_GPU as u64) as usize)
        }
        // Dozens of streams in each chunk, or none.
        Some(Compression::Blosc(..)) | None => None,
    });
    wanted.max()
}

/// Advises if memory doesn't hold the chunks of a batch.
fn small_memory(e: &Explanation, working_set: usize) -> Option<String> {
    let (argument, kept) = match e.memory.division.budget.device {
        None => ("host_memory_limit", e.memory.division.budget.host.block),
        Some(d) => ("device_memory_limit", d.slots),
    };
    (kept < working_set).then(|| {
        format!(
            "the chunks of one batch decode to {}, more than the {} that memory has for them: raise {argument} by the \
             difference, or use a smaller batch_size",
            bytes(working_set as u64),
            bytes(kept as u64)
        )
    })
}
