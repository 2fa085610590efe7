//! How often chunks are read in an epoch: the planner's plans, batch by batch, with a model of what memory keeps
//! ([`super::keeping`]).
//!
//! Nothing is read, so chunks that are missing in the store count as read.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use dali_zarr_kernels::Op;

use super::keeping::{Keeping, Use};
use crate::flow::catalog::Catalog;
use crate::flow::{MAX_PLANNED_JOBS, is_whole_copy};
use crate::order::{Order, Sample};
use crate::plan::{ChunkId, IdHasher};

/// Samples that are looked at; an epoch with more is judged by its first ones.
const MAX_SAMPLES: u64 = 1 << 14;
/// Uses of chunks by batches that are looked at.
const MAX_USES: usize = 1 << 20;

/// What the scheduler can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookahead {
    /// Samples per batch.
    pub batch: u64,
    /// Batches that are in preparation at a time.
    pub active: usize,
    /// Batches that are planned at a time, those in preparation included.
    pub planned: usize,
    /// Batches that are planned ahead of those in preparation.
    pub ahead: usize,
    /// Bytes of all decoded chunks that a typical batch needs.
    pub working_set: usize,
    /// With chunk-aware shuffling: bytes of all decoded chunks that samples are drawn from at a time.
    pub shuffled: Option<usize>,
    /// Bytes of memory that decoded chunks live in.
    pub capacity: usize,
    /// Of `capacity`: bytes that chunks on their way take beside the decoded bytes of the one that is read.
    pub in_flight: usize,
    /// Whether batches are delivered to the CPU, where a chunk may be decoded to its place in the batch.
    pub on_cpu: bool,
}

/// Reads of one array.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ArrayReads {
    /// Chunks that are needed at all.
    pub chunks: f64,
    /// Reads of chunks.
    pub reads: f64,
    /// Decoded bytes of these.
    pub bytes: f64,
}

/// Reads of one epoch of one reader.
#[derive(Clone, Debug)]
pub(crate) struct Reads {
    /// Samples in the epoch.
    pub samples: u64,
    /// Samples that were looked at: the first ones.
    pub looked_at: u64,
    /// Scaled to the epoch, one for each array of the dataset; arrays of one name share the chunks of the first.
    pub arrays: Vec<ArrayReads>,
}

impl Reads {
    /// Over all arrays.
    pub fn total(&self) -> ArrayReads {
        self.arrays.iter().fold(ArrayReads::default(), |sum, a| ArrayReads {
            chunks: sum.chunks + a.chunks,
            reads: sum.reads + a.reads,
            bytes: sum.bytes + a.bytes,
        })
    }
}

impl ArrayReads {
    /// How often each chunk is read, on average.
    pub fn per_chunk(&self) -> f64 {
        if self.chunks > 0.0 { self.reads / self.chunks } else { 0.0 }
    }

    /// Decoded bytes of the chunks, each counted once.
    pub fn distinct_bytes(&self) -> f64 {
        if self.reads > 0.0 { self.bytes * self.chunks / self.reads } else { 0.0 }
    }
}

/// Plans an epoch batch by batch.
struct Planning<'a> {
    order: Order,
    catalog: &'a Catalog,
    ops: &'a [Op],
    model: Lookahead,
    /// Of the epoch.
    samples: u64,
    next: u64,
    uses: usize,
}

impl Planning<'_> {
    /// What one more batch needs; `None` at the end of the epoch, or when enough was looked at.
    fn plan(&mut self) -> Option<Vec<Use>> {
        let to = (self.next + self.model.batch).min(self.samples);
        if self.next >= to || self.next >= MAX_SAMPLES || self.uses >= MAX_USES {
            return None;
        }
        let samples: Vec<Sample> = (self.next..to).map(|k| self.order.sample(k)).collect();
        self.next = to;
        let plan = self.catalog.planner.plan(&samples);
        let uses = plan.uses.iter().map(|u| {
            let bytes = self.catalog.decoded_bytes(u.chunk);
            let jobs = &plan.jobs[u.jobs.clone()];
            Use { chunk: u.chunk, bytes, direct: self.model.on_cpu && is_whole_copy(jobs, self.ops, bytes) }
        });
        let uses: Vec<Use> = uses.collect();
        self.uses += uses.len();
        Some(uses)
    }
}

/// Counts the reads of the first epoch of `order`, whose reader has `catalog` and `ops` and keeps what `model` says.
pub(crate) fn reads_per_chunk(order: &Order, catalog: &Catalog, ops: &[Op], model: Lookahead) -> Reads {
    let samples = order.epoch_samples();
    let mut planning = Planning { order: order.clone(), catalog, ops, model, samples, next: 0, uses: 0 };
    let mut keeping = Keeping::new(model);
    let mut arrays = vec![ArrayReads::default(); catalog.dataset.arrays.len()];
    let mut seen: HashSet<ChunkId, BuildHasherDefault<IdHasher>> = HashSet::default();
    // What there was after powers of two of batches: the last one, and the one before, which is in the first half.
    let mut last = (0, arrays.clone());
    let mut earlier = last.clone();
    loop {
        if keeping.first().is_power_of_two() {
            earlier = std::mem::replace(&mut last, (keeping.first(), arrays.clone()));
        }
        while keeping.planned() < model.planned
            && let Some(uses) = planning.plan()
        {
            keeping.plan(&uses);
        }
        if keeping.planned() == 0 {
            break;
        }
        keeping.finish(|chunk, bytes| {
            let array = &mut arrays[chunk.array as usize];
            array.chunks += f64::from(u8::from(seen.insert(chunk)));
            array.reads += 1.0;
            array.bytes += bytes as f64;
        });
    }
    let looked_at = planning.next;
    if looked_at < samples {
        let later = (looked_at - (earlier.0 * model.batch).min(looked_at)).max(1);
        extrapolate(&mut arrays, &earlier.1, catalog, (samples - looked_at) as f64 / later as f64);
    }
    Reads { samples, looked_at, arrays }
}

/// Takes an epoch for one that goes on, after the batches that were looked at, as in the later half of them. `early` is what
/// there was before that half, of which the rest of the epoch has `times` as many batches.
fn extrapolate(arrays: &mut [ArrayReads], early: &[ArrayReads], catalog: &Catalog, times: f64) {
    for (a, (array, early)) in arrays.iter_mut().zip(early).enumerate() {
        let all: f64 = super::chunks_in_reach(catalog, a).iter().map(|&n| n as f64).sum();
        array.chunks = (array.chunks + (array.chunks - early.chunks) * times).min(all.max(array.chunks));
        array.reads += (array.reads - early.reads) * times;
        array.bytes += (array.bytes - early.bytes) * times;
    }
}

/// The model for a reader that plans `window` batches and those ahead of it.
pub(crate) fn planned_at_a_time(window: usize, ahead: usize, jobs: usize) -> usize {
    // As the scheduler asks for plans: two always, and no more than a number of jobs.
    (window + ahead).min((MAX_PLANNED_JOBS / jobs.max(1)).max(2))
}
