//! Shard indexes in memory: each is read once and kept within a limit. Chunks wait for them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use crate::chunk_index::{ShardId, ShardIndex};
use crate::messages::Handle;
use dali_zarr_samples::plan::IdHasher;

/// What a read of a shard's index found.
pub(crate) enum Known {
    /// The index.
    Index(Arc<ShardIndex>),
    /// The shard does not exist: all its chunks are missing.
    Missing,
}

enum IndexState {
    Reading(Vec<Handle>),
    Known {
        known: Arc<Known>,
        /// Whether chunks waited for the index and have not used it yet. It must not be dropped before they do.
        awaited: bool,
    },
}

/// The answer for a chunk whose shard index is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexPending {
    /// The chunk waits, and the caller must read the index.
    MustRead,
    /// The chunk waits for a read under way.
    Waits,
    /// There is no room for another index until a read under way ends. The chunk does not wait here.
    NoRoom,
}

/// The shard indexes of one reader. Indexes of stores (manifests, reference files) are tracked here too, though their
/// stores keep them.
pub(crate) struct Shards {
    /// The indexes that are in memory or being read.
    states: HashMap<ShardId, IndexState, BuildHasherDefault<IdHasher>>,
    /// Shards whose index is in memory, oldest first, with the bytes of their indexes.
    known: VecDeque<(ShardId, usize)>,
    /// The sum of these bytes.
    bytes: usize,
    /// Most bytes of indexes that are kept.
    limit: usize,
    /// Bytes of the largest index.
    largest: usize,
    /// Reads of indexes under way.
    reading: usize,
}

impl Shards {
    /// Makes an empty list. Keeps up to `limit` bytes of indexes, each of up to `largest` bytes. An index that chunks
    /// wait for is kept even beyond the limit.
    pub fn new(limit: usize, largest: usize) -> Self {
        Self { states: HashMap::default(), known: VecDeque::new(), bytes: 0, limit, largest, reading: 0 }
    }

    /// Whether one more index may be read: all indexes under way must fit at the same time.
    fn room(&self) -> bool {
        self.reading == 0 || (self.reading + 1).saturating_mul(self.largest) <= self.limit
    }

    /// Returns the index of a shard, if it is in memory. Otherwise `chunk` waits for it, unless the answer is
    /// [`IndexPending::NoRoom`].
    pub fn get(&mut self, shard: ShardId, chunk: Handle) -> Result<Arc<Known>, IndexPending> {
        let room = self.room();
        match self.states.entry(shard) {
            Entry::Vacant(_) if !room => Err(IndexPending::NoRoom),
            Entry::Vacant(e) => {
                e.insert(IndexState::Reading(vec![chunk]));
                self.reading += 1;
                Err(IndexPending::MustRead)
            }
            Entry::Occupied(mut e) => match e.get_mut() {
                IndexState::Known { known, awaited } => {
                    *awaited = false;
                    Ok(Arc::clone(known))
                }
                IndexState::Reading(waiting) => {
                    waiting.push(chunk);
                    Err(IndexPending::Waits)
                }
            },
        }
    }

    /// Returns the offset and length of an inner chunk in bytes, if the shard's index is in memory.
    pub fn range(&self, shard: ShardId, entry: usize) -> Option<(u64, u64)> {
        match self.states.get(&shard)? {
            IndexState::Known { known, .. } => match &**known {
                Known::Index(index) => index.entries.get(entry),
                Known::Missing => None,
            },
            IndexState::Reading(_) => None,
        }
    }

    /// Returns the number of reads of indexes under way.
    pub fn reading(&self) -> usize {
        self.reading
    }

    /// Whether the index of a shard is being read.
    pub fn is_reading(&self, shard: ShardId) -> bool {
        matches!(self.states.get(&shard), Some(IndexState::Reading(_)))
    }

    /// Whether the index of a shard should be read ahead of its chunks. If so, it counts as a read under way.
    pub fn begin_read_ahead(&mut self, shard: ShardId) -> bool {
        // Half of the limit is left for indexes in use.
        if self.reading.saturating_mul(self.largest) > self.limit / 2 {
            return false;
        }
        match self.states.entry(shard) {
            Entry::Vacant(e) => {
                e.insert(IndexState::Reading(Vec::new()));
                self.reading += 1;
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Stores an index, or the failure to read it (`None`), and returns the chunks that waited.
    pub fn set(&mut self, shard: ShardId, known: Option<Known>) -> Vec<Handle> {
        self.reading -= 1;
        let waiting = match self.states.remove(&shard) {
            Some(IndexState::Reading(waiting)) => waiting,
            _ => Vec::new(),
        };
        if let Some(known) = known {
            let bytes = 128
                + match &known {
                    Known::Index(i) => i.entries.count() * size_of::<Option<(u64, u64)>>(),
                    Known::Missing => 0,
                };
            for _ in 0..self.known.len() {
                if self.bytes + bytes <= self.limit {
                    break;
                }
                let Some((oldest, size)) = self.known.pop_front() else { break };
                if matches!(self.states.get(&oldest), Some(IndexState::Known { awaited: true, .. })) {
                    self.known.push_back((oldest, size));
                    continue;
                }
                self.states.remove(&oldest);
                self.bytes -= size;
            }
            self.bytes += bytes;
            self.known.push_back((shard, bytes));
            self.states.insert(shard, IndexState::Known { known: Arc::new(known), awaited: !waiting.is_empty() });
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk_index::Entries;

    fn shard(index: u64) -> ShardId {
        ShardId { array: 0, part: 0, index }
    }

    /// An index of ten inner chunks.
    fn known() -> Option<Known> {
        Some(Known::Index(Arc::new(ShardIndex { entries: Entries::Read(vec![None; 10]), version: None })))
    }

    #[test]
    fn read_once_and_kept_within_the_limit() {
        let mut shards = Shards::new(1000, 368);
        assert_eq!(shards.get(shard(0), 1).err(), Some(IndexPending::MustRead));
        assert_eq!(shards.get(shard(0), 2).err(), Some(IndexPending::Waits), "the second waits for the same read");
        assert_eq!(shards.set(shard(0), known()), [1, 2]);
        assert!(shards.get(shard(0), 3).is_ok());
        for i in 1..5 {
            assert_eq!(shards.get(shard(i), 0).err(), Some(IndexPending::MustRead));
            shards.set(shard(i), known());
            assert!(shards.get(shard(i), 0).is_ok());
        }
        assert!(shards.bytes <= 1000 && shards.states.len() == shards.known.len());
        assert_eq!(shards.get(shard(0), 1).err(), Some(IndexPending::MustRead), "the oldest made room");
        assert_eq!(shards.set(shard(0), None), [1]);
        assert_eq!(shards.get(shard(0), 1).err(), Some(IndexPending::MustRead), "a failure isn't remembered");
    }

    #[test]
    fn an_index_that_chunks_wait_for_is_not_dropped() {
        let mut shards = Shards::new(400, 368);
        assert_eq!(shards.get(shard(0), 0).err(), Some(IndexPending::MustRead));
        assert_eq!(shards.get(shard(1), 1).err(), Some(IndexPending::NoRoom), "one at a time");
        assert!(!shards.begin_read_ahead(shard(2)));
        shards.set(shard(0), known());
        assert_eq!(shards.get(shard(1), 1).err(), Some(IndexPending::MustRead));
        shards.set(shard(1), known());
        assert!(shards.get(shard(0), 0).is_ok(), "still there for the chunk that waited");
    }
}
