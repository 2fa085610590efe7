//! In which order samples come, and which of them this reader delivers.

use serde::Deserialize;

use super::read::{positive, positive_or_none};

/// Used when the user gives no seed, so that shards in different processes agree.
pub(crate) const DEFAULT_SEED: u64 = 0x5eed;

/// What DALI's readers have.
pub const DEFAULT_INITIAL_FILL: u64 = 1024;

/// The arguments that say in which order samples come.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct OrderArguments {
    /// Visit the samples in an order drawn anew for each epoch.
    pub random_shuffle: bool,
    /// Samples among which each is drawn where chunks hold several: whole groups of samples that share chunks are drawn
    /// until there are about so many, and these are shuffled. At least 1.
    #[serde(deserialize_with = "positive")]
    pub initial_fill: u64,
    /// The first epoch in order, each later one in an order drawn anew for it, over all shards.
    pub shuffle_after_epoch: bool,
    /// Of the order, the same on every shard; -1: a fixed one.
    pub seed: i64,
    /// Which shard this reader delivers.
    pub shard_id: i64,
    /// How many shards there are.
    pub num_shards: i64,
    /// Stay with `shard_id` instead of moving on to the next shard after each epoch.
    pub stick_to_shard: bool,
    /// How often each sample comes, relative to the others: a number for each, from the same sources as
    /// [`super::SampleArguments::starts`]. Samples are drawn by them instead of each coming once.
    pub weights: Option<String>,
    /// With `weights`: samples in an epoch; default: as many as there are.
    #[serde(deserialize_with = "positive_or_none")]
    pub num_samples: Option<u64>,
    /// With `weights`: whether a sample may come several times in an epoch.
    pub replacement: bool,
    /// Repeat a shard's last sample until its last batch is full and all shards have equally many batches.
    pub pad_last_batch: bool,
}

impl Default for OrderArguments {
    fn default() -> Self {
        Self {
            random_shuffle: false,
            initial_fill: DEFAULT_INITIAL_FILL,
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
    /// The seed of whatever is random; it is a fixed one if the user gave none.
    pub fn effective_seed(&self) -> u64 {
        if self.seed == -1 { DEFAULT_SEED } else { self.seed as u64 }
    }
}
