//! The order of samples, and which of them this reader delivers.

use serde::Deserialize;

use super::read::positive_or_none;

/// The seed if the user gives none. It is fixed, so that shards in different processes agree.
pub const DEFAULT_SEED: u64 = 0x5eed;

/// The least default of `initial_fill`, which is that of DALI's readers.
pub const MIN_DEFAULT_FILL: u64 = 1024;

/// Who says in which order samples come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderSource {
    /// The reader.
    #[default]
    Own,
    /// Its caller, who pushes the samples of each batch.
    Pushed,
}

/// The arguments for the order of samples.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct OrderArguments {
    /// Who says in which order samples come. If it is the caller, the other arguments here must have their defaults, except
    /// `seed`.
    pub order: OrderSource,
    /// Whether to shuffle the samples, in a new order for each epoch.
    pub random_shuffle: bool,
    /// About the number of samples that are shuffled together where chunks hold several samples. Groups of samples that
    /// share chunks are drawn until there are about this many samples; then these are shuffled. At least 1. `None`: a
    /// number that depends on the data set only.
    #[serde(deserialize_with = "positive_or_none")]
    pub initial_fill: Option<u64>,
    /// Whether to read the first epoch in order, and to shuffle each later epoch over all shards, in a new order.
    pub shuffle_after_epoch: bool,
    /// The seed of everything random, the same on every shard. -1: a fixed seed.
    pub seed: i64,
    /// The shard that this reader delivers.
    pub shard_id: i64,
    /// The number of shards.
    pub num_shards: i64,
    /// Whether to stay with `shard_id`, instead of moving on to the next shard after each epoch.
    pub stick_to_shard: bool,
    /// The table of weights, one number for each sample, from the same sources as [`super::SampleArguments::starts`].
    /// Samples are drawn at random, in proportion to their weights, instead of each coming once.
    pub weights: Option<String>,
    /// With `weights`: samples in an epoch. `None`: the number of samples.
    #[serde(deserialize_with = "positive_or_none")]
    pub num_samples: Option<u64>,
    /// With `weights`: whether a sample may come several times in an epoch.
    pub replacement: bool,
    /// Whether to repeat a shard's last sample until its last batch is full and all shards have the same number of
    /// batches.
    pub pad_last_batch: bool,
}

impl OrderArguments {
    /// Whether a reader delivers the same shard in each epoch. With `shuffle_after_epoch` it needn't move on, because the
    /// order that is divided is a new one; DALI's readers don't either.
    pub fn keeps_shard(&self) -> bool {
        self.stick_to_shard || self.shuffle_after_epoch
    }
}

impl Default for OrderArguments {
    fn default() -> Self {
        Self {
            order: OrderSource::Own,
            random_shuffle: false,
            initial_fill: None,
            shuffle_after_epoch: false,
            seed: -1,
            shard_id: 0,
            num_shards: 1,
            stick_to_shard: false,
            weights: None,
            num_samples: None,
            replacement: true,
            pad_last_batch: false,
        }
    }
}

impl OrderArguments {
    /// Returns the number of samples of a shuffle window. If the user gave none and it wasn't found yet, it is the least
    /// default.
    pub fn fill(&self) -> u64 {
        self.initial_fill.unwrap_or(MIN_DEFAULT_FILL)
    }

    /// Returns the seed of everything random. It is a fixed one if the user gave none.
    pub fn effective_seed(&self) -> u64 {
        if self.seed == -1 { DEFAULT_SEED } else { self.seed as u64 }
    }
}
