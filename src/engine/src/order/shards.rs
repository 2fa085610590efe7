//! Which positions of the global order a reader delivers, one after the other: DALI's arithmetic of shards.

use crate::error::{Error, Result};
use crate::spec::Spec;

/// Shard `s` of `S` holds the positions `[N*s/S, N*(s+1)/S)`. In its epoch `e` a reader delivers shard
/// `(shard_id + e) % S`, or always `shard_id` if it sticks to it.
#[derive(Clone, Debug)]
pub(super) struct Shards {
    /// Samples in an epoch, over all shards.
    pub samples: u64,
    pub shards: u64,
    pub shard: u64,
    stick: bool,
    /// With `pad_last_batch`: the padded length of an epoch of this reader.
    padded: Option<u64>,
}

impl Shards {
    pub fn new(spec: &Spec, samples: u64) -> Result<Self> {
        let (shard, shards) = (spec.shard_id, spec.num_shards);
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
        let (shards, batch) = (shards as u64, spec.batch_size as u64);
        Ok(Self {
            samples,
            shards,
            shard: shard as u64,
            stick: spec.stick_to_shard,
            padded: spec.pad_last_batch.then(|| samples.div_ceil(shards).next_multiple_of(batch)),
        })
    }

    /// First position of a shard; `shard == shards` gives the end of the last.
    pub fn start(&self, shard: u64) -> u64 {
        (u128::from(self.samples) * u128::from(shard) / u128::from(self.shards)) as u64
    }

    /// Samples in the first epoch of this reader, those that pad it included.
    pub fn epoch_samples(&self) -> u64 {
        self.padded.unwrap_or_else(|| self.start(self.shard + 1) - self.start(self.shard))
    }

    /// The epoch of this reader and the position in the global order of its `k`-th sample.
    pub fn locate(&self, k: u64) -> (u64, u64) {
        let shard_in =
            |epoch: u64| if self.stick { self.shard } else { (self.shard + epoch % self.shards) % self.shards };
        if let Some(padded) = self.padded {
            let (epoch, i) = (k / padded, k % padded);
            let (start, end) = (self.start(shard_in(epoch)), self.start(shard_in(epoch) + 1));
            return (epoch, (start + i).min(end - 1));
        }
        if self.stick {
            let (start, end) = (self.start(self.shard), self.start(self.shard + 1));
            return (k / (end - start), start + k % (end - start));
        }
        // Every `shards` epochs the reader has gone once through all positions, from its own shard's start onwards.
        let (round, r) = (k / self.samples, k % self.samples);
        let position = (self.start(self.shard) + r) % self.samples;
        let shard = ((u128::from(position) + 1) * u128::from(self.shards) - 1) / u128::from(self.samples);
        let epoch = round * self.shards + (shard as u64 + self.shards - self.shard) % self.shards;
        (epoch, position)
    }
}
