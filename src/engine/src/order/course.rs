//! Where a reader is in its order: epochs that are divided by one sharding, perhaps after what was left of an epoch that was
//! divided by another one.
//!
//! A reader that is restored from a checkpoint with other shards begins a new *leg*: what all readers of the leg before had
//! not delivered of their epoch, in the order of its shards, is divided anew, and the epochs after it as usual. A checkpoint
//! within that rest, restored with other shards again, adds one more leg, so what is left may have to be looked up through
//! several. Legs whose rest is over are forgotten.

use super::shards::Sharding;
use crate::error::{Error, Result};

/// How often the shards may change within one epoch: a course has at most so many legs before the last.
pub(super) const MAX_CHANGES: usize = 16;
/// Shards that a leg has at most if it was left in mid-epoch; each takes 16 bytes.
pub(super) const MAX_OLD_SHARDS: u64 = 1 << 20;

/// A part of a course in which one sharding holds. The same for all of its readers, which deliver in lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// How its samples are divided.
    pub sharding: Sharding,
    /// The epoch in which it begins.
    pub epoch: u64,
    /// With how many samples of that epoch, which earlier legs left; 0: with the whole epoch.
    pub rest: u64,
    /// How many samples each of its readers has delivered.
    pub delivered: u64,
}

/// What one reader of a leg has to deliver of an epoch: in its first epoch indices into the rest, else positions.
struct Part {
    epoch: u64,
    whole: bool,
    shard: u64,
    start: u64,
    end: u64,
    /// How many of them were delivered, repetitions included.
    done: u64,
}

impl Leg {
    /// A leg that begins with a whole epoch.
    pub fn new(sharding: Sharding, epoch: u64) -> Self {
        Self { sharding, epoch, rest: 0, delivered: 0 }
    }

    /// Where the reader of `shard` is after `k` samples.
    fn part(&self, samples: u64, shard: u64, k: u64) -> Part {
        let Self { sharding, epoch, rest, .. } = *self;
        let (mut k, mut first, mut turn) = (k, epoch, 0);
        if rest > 0 {
            let (start, end) = (sharding.start(rest, shard), sharding.start(rest, shard + 1));
            let length = sharding.padded(rest).unwrap_or(end - start);
            if k < length {
                return Part { epoch, whole: false, shard, start, end, done: k };
            }
            (k, first, turn) = (k - length, epoch + 1, 1);
        }
        let begin = if sharding.stick_to_shard { shard } else { (shard + turn) % sharding.num_shards };
        let (later, shard, done) = sharding.locate(samples, begin, k);
        let (start, end) = (sharding.start(samples, shard), sharding.start(samples, shard + 1));
        Part { epoch: first + later, whole: true, shard, start, end, done }
    }
}

/// What the readers of a leg had not delivered of their epoch, shard after shard.
#[derive(Clone, Debug)]
struct Left {
    leg: Leg,
    /// Whether these are positions of the epoch, and not indices into the rest with which the leg began.
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
    Error::value("the state contradicts itself: a leg doesn't begin with what the one before it left")
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
pub(super) struct Course {
    samples: u64,
    /// The legs before, as far as the rest of the last one needs them; the oldest first.
    before: Vec<Left>,
    leg: Leg,
}

impl Course {
    /// The course of a reader of `samples` samples that begins at the beginning.
    pub fn new(sharding: Sharding, samples: u64) -> Self {
        Self { samples, before: Vec::new(), leg: Leg::new(sharding, 0) }
    }

    /// The course that goes on where `legs` stopped, the oldest first and each with what its readers delivered, and how many
    /// samples of it the reader has delivered. With the sharding of the last leg nothing changes; with another one, what
    /// is left of its epoch is divided by that.
    ///
    /// # Errors
    /// If the readers of a leg were in different epochs, the legs contradict each other, or one more would be too many.
    pub fn resume(sharding: Sharding, samples: u64, legs: &[Leg]) -> Result<(Self, u64)> {
        let Some((first, later)) = legs.split_first() else {
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
        let mut course = Self { samples, before: Vec::new(), leg: *first };
        for leg in later {
            let next = course.left()?;
            if (next.leg.epoch, next.leg.rest) != (leg.epoch, leg.rest) {
                return Err(contradiction());
            }
            course = Self { leg: *leg, ..next };
        }
        if course.before.is_empty() && course.leg.rest > 0 {
            return Err(contradiction());
        }
        let old = course.leg.sharding;
        let same_batches = old.batch_size == sharding.batch_size || !sharding.pad_last_batch;
        if same_batches && (Sharding { batch_size: sharding.batch_size, ..old }) == sharding {
            let delivered = course.leg.delivered;
            let leg = Leg { sharding, delivered: 0, ..course.leg };
            return Ok((Self { leg, ..course }, delivered));
        }
        let mut next = course.left()?;
        if next.before.len() > MAX_CHANGES {
            return Err(Error::value(format!(
                "the shards changed {MAX_CHANGES} times within one epoch, and no more changes can be followed; finish the \
                 epoch with the shards of the checkpoint",
            )));
        }
        next.leg.sharding = sharding;
        Ok((next, 0))
    }

    /// The course of the leg after the one that ended now, with the same sharding: the rest of the epoch, or the next epoch
    /// if the rest is nothing or all of it.
    fn left(self) -> Result<Self> {
        let Self { samples, mut before, leg } = self;
        let sharding = leg.sharding;
        if leg.delivered == 0 {
            return Ok(Self { samples, before, leg });
        }
        let first = leg.part(samples, 0, leg.delivered);
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
            let part = leg.part(samples, shard, leg.delivered);
            if (part.epoch, part.whole) != (first.epoch, first.whole) {
                return Err(Error::value(format!(
                    "after {} samples shard 0 is in epoch {} and shard {shard} in epoch {}, so what is left of the epoch can't \
                     be divided into other shards; use pad_last_batch=True, which keeps the shards in step, or a checkpoint \
                     from the middle of an epoch",
                    leg.delivered, first.epoch, part.epoch
                )));
            }
            let begin = part.start + part.done.min(part.end - part.start);
            shards[part.shard as usize] = (part.end - begin, begin);
            total += part.end - begin;
            all += part.end - part.start;
        }
        if total == 0 || (total == all && first.whole) {
            let epoch = first.epoch + u64::from(total == 0);
            return Ok(Self { samples, before: Vec::new(), leg: Leg::new(sharding, epoch) });
        }
        let mut sum = 0;
        for (count, _) in &mut shards {
            sum += std::mem::replace(count, sum);
        }
        if first.whole {
            before.clear();
        }
        before.push(Left { leg, whole: first.whole, shards });
        Ok(Self { samples, before, leg: Leg { sharding, epoch: first.epoch, rest: total, delivered: 0 } })
    }

    /// Samples in an epoch, over all shards.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// What a checkpoint needs to know after the readers of this course have delivered `delivered` samples each.
    pub fn legs(&self, delivered: u64) -> Vec<Leg> {
        let last = Leg { delivered, ..self.leg };
        self.before.iter().map(|left| left.leg).chain([last]).collect()
    }

    /// Where the `k`-th sample of the reader of `shard` stands.
    pub fn place(&self, shard: u64, k: u64) -> Place {
        let part = self.leg.part(self.samples, shard, k);
        let sharding = self.leg.sharding;
        // A shard of a short rest may be empty: with padding it repeats the sample that comes next.
        let at = part.start + part.done.min((part.end - part.start).saturating_sub(1));
        if part.whole {
            return Place { epoch: part.epoch, position: at, shard: part.shard, sharding };
        }
        let mut place = Place { epoch: part.epoch, position: at, shard: part.shard, sharding };
        for left in self.before.iter().rev() {
            let (shard, position) = left.find(place.position);
            place = Place { position, shard, sharding: left.leg.sharding, ..place };
            if left.whole {
                break;
            }
        }
        place
    }
}
