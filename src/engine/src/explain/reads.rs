//! Counts how often chunks are read in an epoch, by running the scheduler on the planner's plans in a simulation
//! ([`crate::scheduler::simulation::rehearsal`]).
//!
//! Nothing is read, so chunks that are missing in the store count as read.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use crate::chunk_index::{ChunkIndex, Foresight, LATER, Plan, chunks_in_reach};
use crate::reader::opening::UnstartedReader;
use crate::scheduler::WantedChunk;
use crate::scheduler::simulation::rehearsal::{Consumer, Rehearsal};
use crate::scheduler::simulation::{self, Config};
use dali_zarr_base::error::Result;
use dali_zarr_samples::order::Order;
use dali_zarr_samples::plan::{ChunkId, IdHasher};
use dali_zarr_samples::spec::{OrderSource, Spec};

/// Limit on samples that are simulated. A longer epoch is extrapolated from its first ones.
const MAX_SAMPLES: u64 = 1 << 14;
/// A caller is assumed to push so many batches more than the reader prepares at a time, as the loaders do.
const PUSHED_MORE: usize = 2;
/// Limit on uses of chunks that are simulated.
pub(super) const MAX_USES: usize = 1 << 18;
/// Fewer reads than this in the later half are not enough to extrapolate.
const FEW: f64 = 8.0;

/// Reads of one array.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ArrayReads {
    /// Number of different chunks that are read.
    pub chunks: f64,
    /// Number of reads of chunks.
    pub reads: f64,
    /// Decoded bytes of these reads: a chunk that is read twice counts twice.
    pub bytes: f64,
}

/// Reads of one epoch of one reader.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    /// Number of samples in the epoch.
    pub samples: u64,
    /// Number of samples that were looked at: the first ones.
    pub looked_at: u64,
    /// The reads of each array of the dataset, scaled to the epoch. Arrays of the same name share the chunks of the
    /// first.
    pub arrays: Vec<ArrayReads>,
}

impl Reads {
    /// Returns the sum over all arrays.
    pub fn total(&self) -> ArrayReads {
        self.arrays.iter().fold(ArrayReads::default(), |sum, a| ArrayReads {
            chunks: sum.chunks + a.chunks,
            reads: sum.reads + a.reads,
            bytes: sum.bytes + a.bytes,
        })
    }
}

impl ArrayReads {
    /// Returns how often each chunk is read, on average.
    pub fn per_chunk(&self) -> f64 {
        if self.chunks > 0.0 { self.reads / self.chunks } else { 0.0 }
    }

    /// Returns the decoded bytes of the chunks, each counted once.
    pub fn distinct_bytes(&self) -> f64 {
        if self.reads > 0.0 { self.bytes * self.chunks / self.reads } else { 0.0 }
    }
}

/// Plans batch by batch: first the batches of the first epoch, of which the last may be short, then those of later
/// epochs. After [`MAX_USES`] uses of chunks, batches are empty.
struct Planning<'a> {
    chunk_index: &'a ChunkIndex,
    foresight: Foresight,
    /// Number of planned batches that aren't empty.
    batches: u64,
    /// Number of uses of chunks by the batches that were planned.
    uses: usize,
}

impl Planning<'_> {
    fn plan(&mut self) -> Plan {
        if self.uses >= MAX_USES {
            return self.chunk_index.plan(&[]);
        }
        self.batches += 1;
        let upcoming = self.foresight.next(self.chunk_index, true).unwrap_or_default();
        let plan = self.chunk_index.plan_upcoming(upcoming);
        self.uses += plan.batch.uses.len();
        plan
    }
}

/// A chunk that was read.
struct ReadOf {
    /// The first batch that waited for it.
    batch: u64,
    array: u16,
    bytes: u64,
    /// Whether the chunk had not been read before.
    new: bool,
}

/// Sums up the reads of each array for the first `batches` batches.
fn sum(reads: &[ReadOf], batches: u64, arrays: usize) -> Vec<ArrayReads> {
    let mut sums = vec![ArrayReads::default(); arrays];
    for read in reads.iter().filter(|read| read.batch < batches) {
        let sum = &mut sums[read.array as usize];
        sum.chunks += f64::from(u8::from(read.new));
        sum.reads += 1.0;
        sum.bytes += read.bytes as f64;
    }
    sums
}

/// Counts the reads for the first epoch of `order`, the order of `spec`, by the reader `unstarted` with this simulated
/// memory.
///
/// # Errors
/// If the scheduler waits when nothing is under way, which is a bug.
pub(crate) fn reads_per_chunk(
    unstarted: &UnstartedReader,
    spec: &Spec,
    order: &Order,
    config: Config,
    consumer: Consumer,
) -> Result<Reads> {
    let batch = spec.batch_size as u64;
    let chunk_index = &unstarted.chunk_index;
    let shared = simulation::shared(chunk_index, unstarted.ops.clone());
    let mut rehearsal = Rehearsal::new(&shared, config);
    let samples = order.epoch_samples();
    let end_of = move |k: u64| if k < samples { (k + batch).min(samples) } else { k + batch };
    let mut foresight = Foresight::new(chunk_index, order.clone(), 0, end_of);
    if spec.order.order == OrderSource::Pushed {
        foresight.sees_at_most(config.rules.max_active + PUSHED_MORE);
    }
    let mut planning = Planning { chunk_index, foresight, batches: 0, uses: 0 };
    let mut seen: HashSet<ChunkId, BuildHasherDefault<IdHasher>> = HashSet::default();
    let mut reads = Vec::new();
    let mut batches = 0;
    while batches * batch < samples.min(MAX_SAMPLES) && (planning.uses < MAX_USES || batches < planning.batches) {
        rehearsal.next_batch(consumer, &mut || planning.plan(), &mut |chunk| {
            let WantedChunk { id, decoded, batch } = chunk;
            reads.push(ReadOf { batch, array: id.array, bytes: decoded as u64, new: seen.insert(id) });
        })?;
        batches += 1;
    }
    let n = chunk_index.dataset.arrays.len();
    let mut arrays = sum(&reads, batches, n);
    let looked_at = samples.min(batches * batch);
    if looked_at < samples {
        // The rest of the epoch is extrapolated from the batches after `half`: the later half, or more.
        let half = batches.checked_ilog2().map_or(0, |log| (1 << log) / 2);
        let early = sum(&reads, half, n);
        let times = |from: u64| (samples - looked_at) as f64 / (looked_at - from * batch) as f64;
        // In shuffled order, chunks that were read once are read again later. Where windows are short, this was seen
        // already: the chunks of a window don't come again after it.
        // If memory holds a longer window, they don't come again either.
        let holds = config.rules.keeps_for(LATER, config.gpu.map_or(config.staging, |gpu| gpu.slots));
        let returns =
            spec.order.random_shuffle && !holds && order.window().is_none_or(|(window, _)| window > looked_at / 2);
        for (a, (array, early)) in arrays.iter_mut().zip(&early).enumerate() {
            let all: f64 =
                chunks_in_reach(&chunk_index.dataset, &chunk_index.planner, a).iter().map(|&n| n as f64).sum();
            if holds && order.window().is_none() {
                // Each chunk is kept once it was read. What was read again before memory had settled isn't repeated.
                let new = (all - array.chunks).max(0.0).min((array.chunks - early.chunks) * times(half));
                let bytes = array.bytes * (1.0 + new / array.reads.max(1.0));
                *array = ArrayReads { chunks: array.chunks + new, reads: array.reads + new, bytes };
                continue;
            }
            // Chunks that every batch needs are kept.
            let returns = returns && (array.chunks < all || array.reads > early.reads);
            let few = array.chunks - early.chunks < FEW && array.reads - early.reads < FEW;
            let (early, times) = if few { (ArrayReads::default(), times(0)) } else { (*early, times(half)) };
            extrapolate(array, early, times, all, returns);
        }
    }
    Ok(Reads { samples, looked_at, arrays })
}

/// Extrapolates the reads of an array to the whole epoch: it goes on as it did after `early`, for `times` as long. An
/// array has at most `all` chunks. When all of these were read, no new chunk is read any more, unless the epoch
/// `returns` to chunks that were read before.
fn extrapolate(array: &mut ArrayReads, early: ArrayReads, times: f64, all: f64, returns: bool) {
    let more = |now: f64, before: f64| now + (now - before) * times;
    let (chunks, reads) = (more(array.chunks, early.chunks), more(array.reads, early.reads));
    let most = all.max(array.chunks).min(chunks);
    let new = ((array.chunks - early.chunks) / (array.reads - early.reads).max(1.0)).min(1.0);
    let fewer = if returns { reads } else { reads - (chunks - most) * new };
    let bytes = more(array.bytes, early.bytes) * if reads > 0.0 { fewer / reads } else { 1.0 };
    *array = ArrayReads { chunks: most, reads: fewer, bytes };
}
