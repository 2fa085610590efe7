//! How often chunks are read in an epoch: the planner's plans, batch by batch, with a model of what the scheduler keeps.
//!
//! The model keeps a decoded chunk while a batch within the lookahead needs it, unless memory is short: then the chunk that
//! is needed last goes first. It is exact where memory isn't short, and as near as timing allows where it is. Nothing is
//! read, so chunks that are missing in the store count as read.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use dali_zarr_kernels::Op;

use crate::flow::catalog::Catalog;
use crate::flow::{MAX_PLANNED_JOBS, is_whole_copy};
use crate::order::{Order, Sample};
use crate::plan::{ChunkId, ChunkMap, IdHasher};

/// Samples that are looked at; an epoch with more is judged by its first ones.
const MAX_SAMPLES: u64 = 1 << 14;
/// Uses of chunks by batches that are looked at.
const MAX_USES: usize = 1 << 20;

/// What the scheduler can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookahead {
    /// Samples per batch.
    pub batch: u64,
    /// Batches that are planned at a time, the one in preparation included.
    pub planned: usize,
    /// Batches that are planned ahead of those in preparation.
    pub ahead: usize,
    /// Bytes of all decoded chunks that a typical batch needs.
    pub working_set: usize,
    /// With chunk-aware shuffling: bytes of all decoded chunks that samples are drawn from at a time.
    pub shuffled: Option<usize>,
    /// Bytes of memory that decoded chunks live in.
    pub capacity: usize,
    /// Of `capacity`: bytes that chunks on their way take.
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
}

/// What one batch does with one chunk.
struct Use {
    chunk: ChunkId,
    bytes: usize,
    /// Whether it can be decoded to its place in the batch.
    direct: bool,
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
    batches: VecDeque<Vec<Use>>,
    first: u64,
    /// The batches that will need each chunk.
    users: ChunkMap<VecDeque<u64>>,
}

impl Planning<'_> {
    /// Plans one more batch; false at the end of the epoch, or when enough was looked at.
    fn plan(&mut self) -> bool {
        let to = (self.next + self.model.batch).min(self.samples);
        if self.next >= to || self.next >= MAX_SAMPLES || self.uses >= MAX_USES {
            return false;
        }
        let samples: Vec<Sample> = (self.next..to).map(|k| self.order.sample(k)).collect();
        self.next = to;
        let plan = self.catalog.planner.plan(&samples);
        let number = self.first + self.batches.len() as u64;
        let uses: Vec<Use> = plan
            .uses
            .iter()
            .map(|u| {
                let bytes = self.catalog.decoded_bytes(u.chunk);
                let jobs = &plan.jobs[u.jobs.clone()];
                let direct = self.model.on_cpu && is_whole_copy(jobs, self.ops, bytes);
                self.users.entry(u.chunk).or_default().push_back(number);
                Use { chunk: u.chunk, bytes, direct }
            })
            .collect();
        self.uses += uses.len();
        self.batches.push_back(uses);
        true
    }
}

/// Counts the reads of the first epoch of `order`, whose reader has `catalog` and `ops` and keeps what `model` says.
pub(crate) fn reads_per_chunk(order: &Order, catalog: &Catalog, ops: &[Op], model: Lookahead) -> Reads {
    let samples = order.epoch_samples();
    let mut planning = Planning {
        order: order.clone(),
        catalog,
        ops,
        model,
        samples,
        next: 0,
        uses: 0,
        batches: VecDeque::new(),
        first: 0,
        users: ChunkMap::default(),
    };
    let mut arrays = vec![ArrayReads::default(); catalog.dataset.arrays.len()];
    let mut seen: HashSet<ChunkId, BuildHasherDefault<IdHasher>> = HashSet::default();
    // Decoded chunks, by the batch that needs them next.
    let mut kept: BTreeSet<(u64, ChunkId)> = BTreeSet::new();
    let mut held = 0;
    let room = model.capacity.saturating_sub(model.in_flight);
    // What there was after powers of two of batches: the last one, and the one before, which is in the first half.
    let mut last = (0, arrays.clone());
    let mut earlier = last.clone();
    loop {
        if planning.first.is_power_of_two() {
            earlier = std::mem::replace(&mut last, (planning.first, arrays.clone()));
        }
        while planning.batches.len() < model.planned && planning.plan() {}
        let Some(uses) = planning.batches.pop_front() else { break };
        let now = planning.first;
        planning.first += 1;
        for Use { chunk, bytes, direct } in uses {
            let Some(users) = planning.users.get_mut(&chunk) else { continue };
            users.pop_front();
            let next = users.front().copied();
            if next.is_none() {
                planning.users.remove(&chunk);
            }
            let array = &mut arrays[chunk.array as usize];
            array.chunks += f64::from(u8::from(seen.insert(chunk)));
            let there = kept.remove(&(now, chunk));
            if there {
                held -= bytes;
            } else {
                array.reads += 1.0;
                array.bytes += bytes as f64;
            }
            let Some(next) = next else { continue };
            let distance = (next - now) as usize;
            let passed_on = !there && direct && distance > model.ahead / 2;
            let until = distance.saturating_mul(model.working_set).min(model.shuffled.unwrap_or(usize::MAX));
            if passed_on || until > model.capacity {
                continue;
            }
            kept.insert((next, chunk));
            held += bytes;
            while held > room
                && let Some((_, dropped)) = kept.pop_last()
            {
                held -= catalog.decoded_bytes(dropped);
            }
        }
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
