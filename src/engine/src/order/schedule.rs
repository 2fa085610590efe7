//! Where a reader is in its order: epochs that are divided by one sharding, perhaps after what was left of an epoch that was
//! divided by another one.
//!
//! A reader that is restored from a checkpoint with other shards begins a new *segment*: what all readers of the segment before had
//! not delivered of their epoch, in the order of its shards, is divided anew, and the epochs after it as usual. A checkpoint
//! within that rest, restored with other shards again, adds one more segment, so what is left may have to be looked up through
//! several. Segments whose rest is over are forgotten.

use super::shards::Sharding;
use crate::error::{Error, Result};

/// How often the shards may change within one epoch: a schedule has at most so many segments before the last.
pub(super) const MAX_CHANGES: usize = 16;
/// Shards that a segment has at most if it was left in mid-epoch; each takes 16 bytes.
pub(super) const MAX_OLD_SHARDS: u64 = 1 << 20;

/// A part of a schedule in which one sharding holds. The same for all of its readers, which deliver in lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// How its samples are divided.
    pub sharding: Sharding,
    /// The epoch in which it begins.
    pub epoch: u64,
    /// With how many samples of that epoch, which earlier segments left; 0: with the whole epoch.
    pub rest: u64,
    /// How many samples each of its readers has delivered.
    pub delivered: u64,
}

/// What one reader of a segment has to deliver of an epoch: in its first epoch indices into the rest, else positions.
struct EpochShare {
    epoch: u64,
    whole: bool,
    shard: u64,
    start: u64,
    end: u64,
    /// How many of them were delivered, repetitions included.
    done: u64,
}

impl Segment {
    /// A segment that begins with a whole epoch.
    pub fn new(sharding: Sharding, epoch: u64) -> Self {
        Self { sharding, epoch, rest: 0, delivered: 0 }
    }

    /// Where the reader of `shard` is after `k` samples.
    fn share(&self, samples: u64, shard: u64, k: u64) -> EpochShare {
        let Self { sharding, epoch, rest, .. } = *self;
        let (mut k, mut first, mut turn) = (k, epoch, 0);
        if rest > 0 {
            let (start, end) = (sharding.start(rest, shard), sharding.start(rest, shard + 1));
            let length = sharding.padded(rest).unwrap_or(end - start);
            if k < length {
                return EpochShare { epoch, whole: false, shard, start, end, done: k };
            }
            (k, first, turn) = (k - length, epoch + 1, 1);
        }
        let begin = if sharding.stick_to_shard { shard } else { (shard + turn) % sharding.num_shards };
        let (later, shard, done) = sharding.locate(samples, begin, k);
        let (start, end) = (sharding.start(samples, shard), sharding.start(samples, shard + 1));
        EpochShare { epoch: first + later, whole: true, shard, start, end, done }
    }
}

/// What the readers of a segment had not delivered of their epoch, shard after shard.
#[derive(Clone, Debug)]
struct Left {
    segment: Segment,
    /// Whether these are positions of the epoch, and not indices into the rest with which the segment began.
    whole: bool,
    /// For each shard, how many are left in the shards before it, and the first that is left in it.
    shards: Vec<(u64, u64)>,
}

impl Left {
    /// The shard and the position (or index) of the `r`-th.
    fn find(&self, r: u64) -> (u64, u64) {
        // A shard with nothing left has as many before it as the next one, so the last with no more than `r` holds it.
        let shard = self.shards.partition_point(|&(before, _)| before <= r).saturating_sub(1);
        let (before, first) = self.shards[shard];
        (shard as u64, first + (r - before))
    }
}

fn contradiction() -> Error {
    Error::value("the state contradicts itself: a segment doesn't begin with what the one before it left")
}

/// Where a sample stands: at this position of the global order of an epoch, in this shard of this sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub epoch: u64,
    pub position: u64,
    pub shard: u64,
    pub sharding: Sharding,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    samples: u64,
    /// The segments before, as far as the rest of the last one needs them; the oldest first.
    before: Vec<Left>,
    segment: Segment,
}

impl Schedule {
    /// The schedule of a reader of `samples` samples that begins at the beginning.
    pub fn new(sharding: Sharding, samples: u64) -> Self {
        Self { samples, before: Vec::new(), segment: Segment::new(sharding, 0) }
    }

    /// The schedule that goes on where `segments` stopped, the oldest first and each with what its readers delivered, and how many
    /// samples of it the reader has delivered. With the sharding of the last segment nothing changes; with another one, what
    /// is left of its epoch is divided by that.
    ///
    /// # Errors
    /// If the readers of a segment were in different epochs, the segments contradict each other, or one more would be too many.
    pub fn resume(sharding: Sharding, samples: u64, segments: &[Segment]) -> Result<(Self, u64)> {
        let Some((first, later)) = segments.split_first() else {
            return Ok((Self::new(sharding, samples), 0));
        };
        // No reader writes more.
        if later.len() > MAX_CHANGES {
            return Err(Error::value(format!(
                "the state contradicts itself: the shards changed {} times within one epoch, but no more than {MAX_CHANGES} \
                 changes are possible",
                later.len()
            )));
        }
        let mut schedule = Self { samples, before: Vec::new(), segment: *first };
        for segment in later {
            let next = schedule.left()?;
            if (next.segment.epoch, next.segment.rest) != (segment.epoch, segment.rest) {
                return Err(contradiction());
            }
            schedule = Self { segment: *segment, ..next };
        }
        if schedule.before.is_empty() && schedule.segment.rest > 0 {
            return Err(contradiction());
        }
        let old = schedule.segment.sharding;
        let same_batches = old.batch_size == sharding.batch_size || !sharding.pad_last_batch;
        if same_batches && (Sharding { batch_size: sharding.batch_size, ..old }) == sharding {
            let delivered = schedule.segment.delivered;
            let segment = Segment { sharding, delivered: 0, ..schedule.segment };
            return Ok((Self { segment, ..schedule }, delivered));
        }
        let mut next = schedule.left()?;
        if next.before.len() > MAX_CHANGES {
            return Err(Error::value(format!(
                "the shards changed {MAX_CHANGES} times within one epoch, and no more changes can be followed; finish the \
                 epoch with the shards of the checkpoint",
            )));
        }
        next.segment.sharding = sharding;
        Ok((next, 0))
    }

    /// The schedule of the segment after the one that ended now, with the same sharding: the rest of the epoch, or the next epoch
    /// if the rest is nothing or all of it.
    fn left(self) -> Result<Self> {
        let Self { samples, mut before, segment } = self;
        let sharding = segment.sharding;
        if segment.delivered == 0 {
            return Ok(Self { samples, before, segment });
        }
        let first = segment.share(samples, 0, segment.delivered);
        if sharding.num_shards > MAX_OLD_SHARDS {
            return Err(Error::value(format!(
                "num_shards: {} shards were left in mid-epoch, but at most {MAX_OLD_SHARDS} can be divided anew",
                sharding.num_shards
            )));
        }
        if !first.whole && before.is_empty() {
            return Err(contradiction());
        }
        let mut shards = vec![(0, 0); sharding.num_shards as usize];
        let (mut total, mut all) = (0, 0);
        for shard in 0..sharding.num_shards {
            let share = segment.share(samples, shard, segment.delivered);
            if (share.epoch, share.whole) != (first.epoch, first.whole) {
                return Err(Error::value(format!(
                    "after {} samples shard 0 is in epoch {} and shard {shard} in epoch {}, so what is left of the epoch can't \
                     be divided into other shards; use pad_last_batch=True, which keeps the shards in step, or a checkpoint \
                     from the middle of an epoch",
                    segment.delivered, first.epoch, share.epoch
                )));
            }
            let begin = share.start + share.done.min(share.end - share.start);
            shards[share.shard as usize] = (share.end - begin, begin);
            total += share.end - begin;
            all += share.end - share.start;
        }
        if total == 0 || (total == all && first.whole) {
            let epoch = first.epoch + u64::from(total == 0);
            return Ok(Self { samples, before: Vec::new(), segment: Segment::new(sharding, epoch) });
        }
        let mut sum = 0;
        for (count, _) in &mut shards {
            sum += std::mem::replace(count, sum);
        }
        if first.whole {
            before.clear();
        }
        before.push(Left { segment, whole: first.whole, shards });
        Ok(Self { samples, before, segment: Segment { sharding, epoch: first.epoch, rest: total, delivered: 0 } })
    }

    /// Samples in an epoch, over all shards.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// What a checkpoint needs to know after the readers of this schedule have delivered `delivered` samples each.
    pub fn segments(&self, delivered: u64) -> Vec<Segment> {
        let last = Segment { delivered, ..self.segment };
        self.before.iter().map(|left| left.segment).chain([last]).collect()
    }

    /// Where the `k`-th sample of the reader of `shard` stands.
    pub fn place(&self, shard: u64, k: u64) -> Place {
        let share = self.segment.share(self.samples, shard, k);
        let sharding = self.segment.sharding;
        // A shard of a short rest may be empty: with padding it repeats the sample that comes next.
        let at = share.start + share.done.min((share.end - share.start).saturating_sub(1));
        if share.whole {
            return Place { epoch: share.epoch, position: at, shard: share.shard, sharding };
        }
        let mut place = Place { epoch: share.epoch, position: at, shard: share.shard, sharding };
        for left in self.before.iter().rev() {
            let (shard, position) = left.find(place.position);
            place = Place { position, shard, sharding: left.segment.sharding, ..place };
            if left.whole {
                break;
            }
        }
        place
    }
}
