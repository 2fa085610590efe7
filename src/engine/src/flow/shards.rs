//! The indexes of shards: each read once, kept within a limit, with the chunks that wait for it.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use crate::plan::{ChunkId, IdHasher};

/// Names a shard: array, store, row-major index in the grid of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardId {
    pub array: u16,
    pub part: u16,
    pub index: u64,
}

impl std::hash::Hash for ShardId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64((u64::from(self.array) << 48) ^ (u64::from(self.part) << 32) ^ self.index);
    }
}

/// Where the inner chunks of a shard lie: offset and length in its object.
#[derive(Debug)]
pub(crate) struct Index {
    pub entries: Vec<Option<(u64, u64)>>,
}

/// What is known of a shard.
pub(crate) enum Known {
    /// Its index.
    Index(Arc<Index>),
    /// There is no such shard: all its chunks are missing.
    Missing,
}

enum State {
    Reading(Vec<ChunkId>),
    Known(Arc<Known>),
}

/// See the module.
pub(crate) struct Shards {
    states: HashMap<ShardId, State, BuildHasherDefault<IdHasher>>,
    /// Known shards, oldest first, with their sizes.
    known: VecDeque<(ShardId, usize)>,
    bytes: usize,
    limit: usize,
}

impl Shards {
    /// Keeps up to `limit` bytes of indexes, but always the newest.
    pub fn new(limit: usize) -> Self {
        Self { states: HashMap::default(), known: VecDeque::new(), bytes: 0, limit }
    }

    /// The index of a shard, if it is known. Otherwise `chunk` waits for it, and `true` says that it must be read.
    pub fn get(&mut self, shard: ShardId, chunk: ChunkId) -> Result<Arc<Known>, bool> {
        match self.states.entry(shard) {
            std::collections::hash_map::Entry::Vacant(e) => {
                e.insert(State::Reading(vec![chunk]));
                Err(true)
            }
            std::collections::hash_map::Entry::Occupied(mut e) => match e.get_mut() {
                State::Known(known) => Ok(Arc::clone(known)),
                State::Reading(waiting) => {
                    waiting.push(chunk);
                    Err(false)
                }
            },
        }
    }

    /// Whether the index of a shard must be read, for chunks that will ask for it.
    pub fn expect(&mut self, shard: ShardId) -> bool {
        match self.states.entry(shard) {
            std::collections::hash_map::Entry::Vacant(e) => {
                e.insert(State::Reading(Vec::new()));
                true
            }
            std::collections::hash_map::Entry::Occupied(_) => false,
        }
    }

    /// Takes note of an index, or of a failure (`None`), and gives back the chunks that waited.
    pub fn set(&mut self, shard: ShardId, known: Option<Known>) -> Vec<ChunkId> {
        let waiting = match self.states.remove(&shard) {
            Some(State::Reading(waiting)) => waiting,
            _ => Vec::new(),
        };
        if let Some(known) = known {
            let bytes = 128
                + match &known {
                    Known::Index(i) => i.entries.len() * size_of::<Option<(u64, u64)>>(),
                    Known::Missing => 0,
                };
            while self.bytes + bytes > self.limit {
                let Some((oldest, size)) = self.known.pop_front() else { break };
                self.states.remove(&oldest);
                self.bytes -= size;
            }
            self.bytes += bytes;
            self.known.push_back((shard, bytes));
            self.states.insert(shard, State::Known(Arc::new(known)));
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(index: u64) -> ShardId {
        ShardId { array: 0, part: 0, index }
    }

    #[test]
    fn read_once_and_kept_within_the_limit() {
        let chunk = |index| ChunkId { array: 0, part: 0, index };
        let known = || Some(Known::Index(Arc::new(Index { entries: vec![None; 10] })));
        let mut shards = Shards::new(1000);
        assert_eq!(shards.get(shard(0), chunk(1)).err(), Some(true));
        assert_eq!(shards.get(shard(0), chunk(2)).err(), Some(false), "the second waits for the same read");
        assert_eq!(shards.set(shard(0), known()), [chunk(1), chunk(2)]);
        assert!(shards.get(shard(0), chunk(3)).is_ok());
        for i in 1..5 {
            assert_eq!(shards.get(shard(i), chunk(0)).err(), Some(true));
            shards.set(shard(i), known());
        }
        assert!(shards.bytes <= 1000 && shards.states.len() == shards.known.len());
        assert_eq!(shards.get(shard(0), chunk(1)).err(), Some(true), "the oldest made room");
        assert_eq!(shards.set(shard(0), None), [chunk(1)]);
        assert_eq!(shards.get(shard(0), chunk(1)).err(), Some(true), "a failure isn't remembered");
    }
}
