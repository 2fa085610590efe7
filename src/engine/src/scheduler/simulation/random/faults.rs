//! What goes wrong in a random world, and what its store lacks or has in a bad state.

use crate::chunk_index::{ChunkIndex, Location, ShardId};
use crate::route::Route;
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
    /// The share that is bad: of all chunks, and of the indexes of shards.
    pub bad: f64,
}

impl MissingKeys<'_> {
    pub fn bits(&self, numbers: [u64; 4]) -> u64 {
        key(&[self.seed, numbers[0], numbers[1], numbers[2], numbers[3]])
    }

    fn is(&self, numbers: [u64; 4], share: f64) -> bool {
        ((self.bits(numbers) >> 11) as f64 / (1u64 << 53) as f64) < share
    }

    /// Whether the index of a shard is damaged.
    pub fn bad_shard(&self, shard: ShardId) -> bool {
        self.chunk_index.sharded(shard.array, shard.part).is_some()
            && self.is([3, shard.array.into(), shard.part.into(), shard.index], self.bad / 4.0)
    }

    /// Whether the bytes of a chunk can't be decoded. Uncompressed ones are bad only if they have a wrong length.
    pub fn bad_chunk(&self, id: ChunkId) -> bool {
        let may_be = self.chunk_index.route(id) != Route::Raw || self.chunk_index.location(id) == Location::Key;
        may_be && self.is([4, id.array.into(), id.part.into(), id.index], self.bad)
    }

    /// Whether a chunk is bad, by itself or with its shard.
    pub fn bad(&self, id: ChunkId) -> bool {
        self.bad_chunk(id) || self.chunk_index.shard_of(id).is_some_and(|shard| self.bad_shard(shard))
    }

    pub fn shard(&self, shard: ShardId) -> bool {
        self.is([1, shard.array.into(), shard.part.into(), shard.index], self.share)
    }

    pub fn chunk(&self, id: ChunkId) -> bool {
        match self.chunk_index.location(id) {
            Location::Shard(shard, _) => self.shard(shard),
            Location::Key | Location::Range(_) | Location::Unread(_) => {
                self.is([0, id.array.into(), id.part.into(), id.index], self.share)
            }
        }
    }
}
