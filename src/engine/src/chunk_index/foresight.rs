//! Looks ahead in the order of samples: for each chunk of a batch, it finds the next batch that needs the chunk again.
//! The scheduler keeps decoded chunks by this, however few samples a batch has.
//!
//! A batch is looked at long before it is planned. To look at it takes the chunks of its samples, and no jobs. The
//! samples are kept until the batch is planned, so each sample is computed once. No epoch is foreseen from the one
//! before it: what an epoch has read isn't kept for the next one. In a caller's order, what the caller has pushed is seen,
//! and no wait is for more than the next batch.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ChunkIndex;
use super::bad_chunks::BadChunks;
use super::reach::chunks_in_reach;
use dali_zarr_samples::order::{Batches, Order, OwnBatches, Sample};
use dali_zarr_samples::plan::{ChunkId, ChunkMap};

/// Says that no batch is foreseen that needs the chunk again in this epoch.
pub(crate) const NEVER: u64 = u64::MAX;
/// Stands for a batch that comes after all that were looked at: samples of the chunk's shuffle window are left, and may
/// need the chunk.
pub(crate) const LATER: u64 = u64::MAX - 1;

/// Most samples and uses of chunks, added up, that are looked at ahead of the next batch. They take about 4 MiB.
const MOST: usize = 1 << 17;
/// How many of them are looked at before the first batch. A reader must not begin late. Each that is handed out then
/// adds [`FASTER`], until there are [`MOST`].
const FIRST: usize = 1 << 14;
const FASTER: usize = 8;
/// Number of samples that are looked at to see how many chunks a sample needs.
const TYPICAL: u64 = 4;

/// The samples of a batch that were asked for, if others may take the places of those that need bad chunks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// The number of the first one in the reader's own order.
    pub first: u64,
    /// The samples. Empty if none is ever replaced.
    pub samples: Vec<Sample>,
}

/// A batch to be planned.
#[derive(Debug, Default)]
pub(crate) struct Upcoming {
    pub samples: Vec<Sample>,
    pub asked: Asked,
    /// For each chunk, in the order of `Planner::chunks_of_samples`, the number of the next batch that needs it, or
    /// [`LATER`] or [`NEVER`]. Empty if nothing is foreseen.
    pub next: Vec<u64>,
}

/// A batch that was looked at, and is not planned yet.
struct Seen {
    samples: Vec<Sample>,
    asked: Asked,
    /// Its chunks, with the number of the next batch that needs each ([`NEVER`]: none was found so far).
    uses: Vec<(ChunkId, u64)>,
}

impl Seen {
    fn cost(&self) -> usize {
        self.samples.len() + self.asked.samples.len() + self.uses.len()
    }

    fn epoch(&self) -> u64 {
        self.samples.first().map_or(0, |sample| sample.epoch)
    }
}

/// The samples of a reader's batches, in order, with what is foreseen for their chunks.
pub(crate) struct Foresight {
    batches: Box<dyn Batches>,
    /// Most batches that are looked at ahead.
    most: usize,
    /// Whether chunks come again, so that it makes sense to look ahead.
    looks: bool,
    /// Samples in which all samples of a chunk come, or most of them: a shuffle window, or the epoch.
    window: u64,
    /// The batches that were looked at, and the number of the first of them.
    ahead: VecDeque<Seen>,
    first: u64,
    /// The sum of their costs, and their number of samples.
    cost: usize,
    samples: u64,
    /// The costs of all batches that were handed out.
    handed_out: usize,
    /// For each chunk of `ahead` the last batch that needs it, and its place in that batch. Only of the epoch that was
    /// looked at last.
    last: ChunkMap<(u64, u32)>,
    /// The bad chunks, if samples that need them are replaced.
    bad: Option<Arc<BadChunks>>,
    /// The number of the next sample that is looked at, in the reader's own order.
    position: u64,
}

impl Foresight {
    /// Looks ahead from sample number `next` of an order. A batch that begins with sample `k` ends before sample
    /// `end_of(k)`.
    pub fn new(chunk_index: &ChunkIndex, order: Order, next: u64, end_of: impl Fn(u64) -> u64 + 'static) -> Self {
        let seen = Self::over(chunk_index, &mut order.clone(), OwnBatches::new(order, next, end_of));
        Self { position: next, ..seen }
    }

    /// Looks ahead in these batches, whose samples come in an order like `order`.
    pub fn over(chunk_index: &ChunkIndex, order: &mut Order, batches: impl Batches + 'static) -> Self {
        let (looks, window) = (chunks_return(chunk_index, order), order.reach());
        let (ahead, last) = (VecDeque::new(), ChunkMap::default());
        let batches = Box::new(batches);
        let (cost, samples, handed_out, bad, position) = (0, 0, 0, None, 0);
        let (most, first) = (usize::MAX, 0);
        Self { batches, most, looks, window, ahead, first, cost, samples, handed_out, last, bad, position }
    }

    /// Replaces samples that need bad chunks, if the reader does so.
    #[must_use]
    pub fn without(self, bad: &Arc<BadChunks>) -> Self {
        Self { bad: bad.replaces().then(|| Arc::clone(bad)), ..self }
    }

    /// Looks ahead at no more than this number of batches.
    pub fn sees_at_most(&mut self, batches: usize) {
        self.most = batches.max(1);
    }

    /// Returns the next batch. `None` if there is none now: if `waits` is true, there will be none. Waits for nothing
    /// beyond the next batch.
    pub fn next(&mut self, chunk_index: &ChunkIndex, waits: bool) -> Option<Upcoming> {
        let most = MOST.min(FIRST + self.handed_out.saturating_mul(FASTER));
        let goes_on = |it: &Self| it.looks && it.cost < most && it.ahead.len() < it.most && !it.sees_next_epoch();
        while self.ahead.is_empty() || goes_on(self) {
            let Some(samples) = self.batches.next(waits && self.ahead.is_empty()) else { break };
            let is_last = samples.is_empty();
            self.look(chunk_index, samples);
            if is_last {
                break;
            }
        }
        let sees_all = self.sees_next_epoch() || self.samples >= self.window;
        let (number, unseen) = (self.first, if sees_all { NEVER } else { LATER });
        let seen = self.ahead.pop_front()?;
        self.first += 1;
        self.cost -= seen.cost();
        self.samples -= seen.samples.len() as u64;
        self.handed_out = self.handed_out.saturating_add(seen.cost());
        let next = (0..).zip(&seen.uses).map(|(at, &(chunk, next))| {
            if next == NEVER && self.last.get(&chunk) == Some(&(number, at)) {
                self.last.remove(&chunk);
                return unseen;
            }
            next
        });
        Some(Upcoming { next: next.collect(), samples: seen.samples, asked: seen.asked })
    }

    /// Whether a batch of a later epoch than the next batch was looked at.
    fn sees_next_epoch(&self) -> bool {
        let ends = self.ahead.front().zip(self.ahead.back());
        ends.is_some_and(|(front, back)| back.epoch() > front.epoch())
    }

    /// Looks at one more batch.
    fn look(&mut self, chunk_index: &ChunkIndex, samples: Vec<Sample>) {
        let first = self.position;
        self.position += samples.len() as u64;
        let mut seen = Seen { samples, asked: Asked::default(), uses: Vec::new() };
        if let Some(bad) = &self.bad {
            // Without a sample to take its place, a sample stays, and its batch fails when its chunks are found bad.
            let others = bad.replaced(chunk_index, first, &seen.samples).ok().flatten();
            let others = others.unwrap_or_else(|| seen.samples.clone());
            seen.asked = Asked { first, samples: std::mem::replace(&mut seen.samples, others) };
        }
        if self.looks {
            let number = self.first + self.ahead.len() as u64;
            if self.ahead.back().is_some_and(|before| before.epoch() < seen.epoch()) {
                self.last.clear();
            }
            for (chunk, at) in chunk_index.planner.chunks_of_samples(&seen.samples).into_iter().zip(0..) {
                seen.uses.push((chunk, NEVER));
                if let Some((before, at)) = self.last.insert(chunk, (number, at))
                    && let Some(before) = self.ahead.get_mut((before - self.first) as usize)
                {
                    before.uses[at as usize].1 = number;
                }
            }
        }
        self.cost += seen.cost();
        self.samples += seen.samples.len() as u64;
        self.ahead.push_back(seen);
    }
}

/// Whether a chunk may be needed again in an epoch, later than by the samples beside it.
fn chunks_return(chunk_index: &ChunkIndex, order: &mut Order) -> bool {
    let planner = &chunk_index.planner;
    // In order along one axis, the samples that need a chunk follow each other. A second offset needs it again.
    let jumps = planner.geometries().any(|geometry| {
        let offsets = || geometry.placements.iter().map(|placement| placement.offset);
        geometry.axes.len() > 1
            || geometry.table.is_some()
            || geometry.per_start > 1
            || offsets().min() != offsets().max()
    });
    if !(jumps || order.is_random()) {
        return false;
    }
    let mut uses = vec![0u64; chunk_index.dataset.arrays.len()];
    // All shards together: where shuffling takes chunks into account, a shard has whole chunks.
    let (samples, of_shard) = (order.samples(), order.epoch_samples());
    let looked_at = TYPICAL.min(of_shard);
    for k in 0..looked_at {
        // Samples from all over the epoch.
        let sample = order.sample(k * of_shard / looked_at);
        planner.chunks_of_samples(&[sample]).iter().for_each(|chunk| uses[chunk.array as usize] += 1);
    }
    (0..uses.len()).any(|array| {
        let chunks = u128::from(chunks_in_reach(&chunk_index.dataset, planner, array).iter().sum::<u64>());
        let uses = u128::from(uses[array]);
        // A chunk that every sample needs is kept in any case.
        uses * u128::from(samples) > chunks * u128::from(looked_at) && uses < chunks * u128::from(looked_at)
    })
}
