//! Shards: the positions of the global order that each reader delivers, by DALI's arithmetic.

use crate::spec::Spec;
use dali_zarr_base::error::{Error, Result};

/// How the samples of an epoch are divided among readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleSharding {
    /// How many shards, and readers, there are.
    pub num_shards: u64,
    /// Samples per batch.
    pub batch_size: u64,
    /// Whether a shard's last sample is repeated until its last batch is full and all shards have equally many batches.
    pub pad_last_batch: bool,
    /// Whether a reader stays with its shard instead of moving on to the next one after each epoch.
    pub stick_to_shard: bool,
}

/// A sample of a reader, in the shard that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardSample {
    /// How many epochs after the reader's first one.
    pub later: u64,
    pub shard: u64,
    /// How many samples after the start of the shard. With padding it may lie beyond the shard's end.
    pub done: u64,
}

impl SampleSharding {
    /// Makes the sharding of `spec` for `samples` samples.
    ///
    /// # Errors
    /// If its arguments contradict each other, or a shard would be empty.
    pub fn new(spec: &Spec, samples: u64) -> Result<Self> {
        let (shard, shards) = (spec.order.shard_id, spec.order.num_shards);
        if shards < 1 {
            return Err(Error::value(format!("num_shards: expected at least 1, found {shards}")));
        }
        if shard < 0 || shard >= shards {
            return Err(Error::value(format!(
                "shard_id: expected a number from 0 to num_shards - 1 = {}, found {shard}",
                shards - 1
            )));
        }
        if samples == 0 {
            return Err(Error::value(
                "the store holds no sample: every window reaches beyond the region of interest; \
                 make window, stride or offsets smaller, or use out_of_bounds_policy=\"pad\"",
            ));
        }
        if samples < shards as u64 {
            return Err(Error::value(format!(
                "num_shards: there are {samples} samples, fewer than the {shards} shards; use at most {samples} shards"
            )));
        }
        if spec.batch_size == 0 {
            return Err(Error::value("batch_size: expected at least 1, found 0"));
        }
        if spec.order.shuffle_after_epoch && spec.order.stick_to_shard {
            return Err(Error::value("shuffle_after_epoch and stick_to_shard contradict each other: give one of them"));
        }
        Ok(Self {
            num_shards: shards as u64,
            batch_size: spec.batch_size as u64,
            pad_last_batch: spec.order.pad_last_batch,
            stick_to_shard: spec.order.keeps_shard(),
        })
    }

    /// Returns the first of the positions that shard `shard` holds of `count` positions. A shard `s` of `S` holds
    /// `[count*s/S, count*(s+1)/S)`. `shard == num_shards` gives the end of the last shard.
    pub fn start(&self, count: u64, shard: u64) -> u64 {
        (u128::from(count) * u128::from(shard) / u128::from(self.num_shards)) as u64
    }

    /// Returns how many samples each reader delivers of `count` positions, repetitions included; `None` without
    /// `pad_last_batch`.
    pub fn padded(&self, count: u64) -> Option<u64> {
        self.pad_last_batch.then(|| count.div_ceil(self.num_shards).next_multiple_of(self.batch_size))
    }

    /// Finds the `k`-th sample of a reader that begins with `shard`, if all epochs have `samples` samples.
    pub(super) fn locate(&self, samples: u64, shard: u64, k: u64) -> ShardSample {
        let shards = self.num_shards;
        let next = |epoch: u64| if self.stick_to_shard { shard } else { (shard + epoch % shards) % shards };
        if let Some(padded) = self.padded(samples) {
            let later = k / padded;
            return ShardSample { later, shard: next(later), done: k % padded };
        }
        let start = self.start(samples, shard);
        if self.stick_to_shard {
            let held = self.start(samples, shard + 1) - start;
            return ShardSample { later: k / held, shard, done: k % held };
        }
        // After every `shards` epochs the reader has gone through all positions once, from the start of its own shard.
        let (round, r) = (k / samples, k % samples);
        let position = (start + r) % samples;
        let found = ((u128::from(position) + 1) * u128::from(shards) - 1) / u128::from(samples);
        let found = found as u64;
        let later = round * shards + (found + shards - shard) % shards;
        ShardSample { later, shard: found, done: position - self.start(samples, found) }
    }
}
