//! What goes wrong in a random world.

use crate::chunk_index::{ChunkIndex, Location, ShardId};
use dali_zarr_base::random::key;
use dali_zarr_samples::plan::ChunkId;

/// The probabilities of faults in one world.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub read: f64,
    pub index: f64,
    pub decode: f64,
    pub lane: f64,
    pub died: f64,
}

/// The keys that the store of a world lacks.
#[derive(Clone, Copy)]
pub(super) struct MissingKeys<'a> {
    pub seed: u64,
    pub chunk_index: &'a ChunkIndex,
    /// The share that is missing: of the chunks that have keys of their own, and of whole shards.
    pub share: f64,
}

impl MissingKeys<'_> {
    pub fn bits(&self, numbers: [u64; 4]) -> u64 {
        key(&[self.seed, numbers[0], numbers[1], numbers[2], numbers[3]])
    }

    pub fn is(&self, numbers: [u64; 4]) -> bool {
        ((self.bits(numbers) >> 11) as f64 / (1u64 << 53) as f64) < self.share
    }

    pub fn shard(&self, shard: ShardId) -> bool {
        self.is([1, shard.array.into(), shard.part.into(), shard.index])
    }

    pub fn chunk(&self, id: ChunkId) -> bool {
        match self.chunk_index.location(id) {
            Location::Shard(shard, _) => self.shard(shard),
            Location::Key | Location::Range(_) | Location::Unread(_) => {
                self.is([0, id.array.into(), id.part.into(), id.index])
            }
        }
    }
}
