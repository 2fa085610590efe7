//! The schedule of a reader: its epochs, each divided among the shards, and the changes of the shards after a restore.
//!
//! A restore with other shards begins a new *segment*. Its readers first deliver the rest of the epoch, which the
//! readers of the segment before left. The rest is divided among the new shards, in the order of the old ones; later
//! epochs are divided as usual. A second restore with other shards within that rest adds another segment. Then a sample
//! is looked up through several segments. Segments whose rest has been delivered are dropped.

use super::shards::{SampleSharding, ShardSample};
use dali_zarr_base::error::{Error, Result};

/// How often the shards may change within one epoch, which is the number of segments before the last one.
pub(super) const MAX_CHANGES: usize = 16;
/// Limit on the shards of a segment that ended within an epoch. Each takes 16 bytes.
pub(super) const MAX_OLD_SHARDS: u64 = 1 << 20;

/// A part of a schedule with one sharding. It is the same for all its readers, which deliver in lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// How its samples are divided.
    pub sharding: SampleSharding,
    /// The epoch in which it begins.
    pub epoch: u64,
    /// Samples of that epoch that earlier segments left. 0: it begins with a whole epoch.
    pub rest: u64,
    /// How many samples each of its readers has delivered.
    pub delivered: u64,
}

/// The samples of one epoch that one reader of a segment delivers. They are positions in the epoch if `whole` is set.
/// Otherwise they are indices into the rest that the segment began with.
struct EpochShare {
    epoch: u64,
    whole: bool,
    shard: u64,
    start: u64,
    end: u64,
    /// How many of these samples were delivered, repetitions included.
    done: u64,
}

impl Segment {
    /// A segment that begins with a whole epoch.
    pub fn new(sharding: SampleSharding, epoch: u64) -> Self {
        Self { sharding, epoch, rest: 0, delivered: 0 }
    }

    /// Returns the share in which the reader of `shard` is after `k` samples.
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
        let ShardSample { later, shard, done } = sharding.locate(samples, begin, k);
        let (start, end) = (sharding.start(samples, shard), sharding.start(samples, shard + 1));
        EpochShare { epoch: first + later, whole: true, shard, start, end, done }
    }
}

/// The rest of an epoch that the readers of a segment left, shard by shard.
#[derive(Clone, Debug)]
struct Remainder {
    segment: Segment,
    /// Whether the samples in `shards` are positions in the epoch. Otherwise they are indices into the rest that the
    /// segment began with.
    whole: bool,
    /// For each shard: how many samples are left in the shards before it, and the first sample that is left in it.
    shards: Vec<(u64, u64)>,
}

impl Remainder {
    /// Returns the shard and the position (or index) of the `r`-th sample of the rest.
    fn find(&self, r: u64) -> (u64, u64) {
        // A shard with nothing left has the same count as the next one. So the last shard whose count is at most `r`
        // holds it.
        let shard = self.shards.partition_point(|&(before, _)| before <= r).saturating_sub(1);
        let (before, first) = self.shards[shard];
        (shard as u64, first + (r - before))
    }
}

fn contradiction() -> Error {
    Error::value("the state contradicts itself: a segment doesn't begin with what the one before it left")
}

/// The position of a sample in the global order of an epoch, and its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GlobalPosition {
    pub epoch: u64,
    pub position: u64,
    pub shard: u64,
    pub sharding: SampleSharding,
}

/// The schedule of a reader: the current segment, and the earlier ones that it needs.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    samples: u64,
    /// The earlier segments that the rest of the current one refers to, oldest first.
    before: Vec<Remainder>,
    segment: Segment,
}

impl Schedule {
    /// Makes the schedule of a new reader of `samples` samples.
    pub fn new(sharding: SampleSharding, samples: u64) -> Self {
        Self { samples, before: Vec::new(), segment: Segment::new(sharding, 0) }
    }

    /// Makes the schedule after a restore of `segments` (oldest first, each with what its readers delivered). Returns
    /// it and how many of its samples the reader has delivered. If the sharding is that of the last segment, this
    /// segment goes on. Otherwise the rest of its epoch is divided by the new sharding.
    ///
    /// # Errors
    /// If the readers of a segment were in different epochs, if the segments contradict each other, or if the shards
    /// changed too often.
    pub fn resume(sharding: SampleSharding, samples: u64, segments: &[Segment]) -> Result<(Self, u64)> {
        let Some((first, later)) = segments.split_first() else {
            return Ok((Self::new(sharding, samples), 0));
        };
        // A reader never writes more segments.
        if later.len() > MAX_CHANGES {
            return Err(Error::value(format!(
                "the state contradicts itself: the shards changed {} times within one epoch, but no more than {MAX_CHANGES} \
                 changes are possible",
                later.len()
            )));
        }
        let mut schedule = Self { samples, before: Vec::new(), segment: *first };
        for segment in later {
            let next = schedule.remainder()?;
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
        if same_batches && (SampleSharding { batch_size: sharding.batch_size, ..old }) == sharding {
            let delivered = schedule.segment.delivered;
            let segment = Segment { sharding, delivered: 0, ..schedule.segment };
            return Ok((Self { segment, ..schedule }, delivered));
        }
        let mut next = schedule.remainder()?;
        if next.before.len() > MAX_CHANGES {
            return Err(Error::value(format!(
                "the shards changed {MAX_CHANGES} times within one epoch, and no more changes can be followed; finish the \
                 epoch with the shards of the checkpoint",
            )));
        }
        next.segment.sharding = sharding;
        Ok((next, 0))
    }

    /// Ends the current segment. Returns the schedule with the next segment and the same sharding. This segment begins
    /// with the rest of the epoch. If the whole epoch is left, it begins with this epoch; if nothing is left, with the
    /// next one.
    fn remainder(self) -> Result<Self> {
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
        before.push(Remainder { segment, whole: first.whole, shards });
        Ok(Self { samples, before, segment: Segment { sharding, epoch: first.epoch, rest: total, delivered: 0 } })
    }

    /// Returns the number of samples in an epoch, over all shards.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the segments that a checkpoint stores after the readers have delivered `delivered` samples each.
    pub fn segments(&self, delivered: u64) -> Vec<Segment> {
        let last = Segment { delivered, ..self.segment };
        self.before.iter().map(|remainder| remainder.segment).chain([last]).collect()
    }

    /// Returns the position of the `k`-th sample of the reader of `shard`.
    pub fn position(&self, shard: u64, k: u64) -> GlobalPosition {
        let share = self.segment.share(self.samples, shard, k);
        let sharding = self.segment.sharding;
        // A shard of a short rest may be empty. With padding it repeats the next sample.
        let at = share.start + share.done.min((share.end - share.start).saturating_sub(1));
        if share.whole {
            return GlobalPosition { epoch: share.epoch, position: at, shard: share.shard, sharding };
        }
        let mut found = GlobalPosition { epoch: share.epoch, position: at, shard: share.shard, sharding };
        for remainder in self.before.iter().rev() {
            let (shard, position) = remainder.find(found.position);
            found = GlobalPosition { position, shard, sharding: remainder.segment.sharding, ..found };
            if remainder.whole {
                break;
            }
        }
        found
    }
}
