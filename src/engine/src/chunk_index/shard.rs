//! Shards, and where their inner chunks lie.

use std::sync::Arc;

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
pub(crate) struct ShardIndex {
    pub entries: Entries,
    /// The version of the shard, where the store tells it: chunks of another one don't lie there.
    pub version: Option<Arc<str>>,
}

/// What an index says of each entry.
#[derive(Debug)]
pub(crate) enum Entries {
    /// As it was read.
    Read(Vec<Option<(u64, u64)>>),
    /// In a simulation: chunks of one length, one after the other.
    Even { count: usize, len: u64 },
}

impl Entries {
    /// How many inner chunks the shard has room for.
    pub fn count(&self) -> usize {
        match self {
            Self::Read(entries) => entries.len(),
            Self::Even { count, .. } => *count,
        }
    }

    /// Offset and length of a entry's chunk; `None` if it is missing.
    pub fn get(&self, entry: usize) -> Option<(u64, u64)> {
        match self {
            Self::Read(entries) => entries.get(entry).copied().flatten(),
            Self::Even { count, len } => (entry < *count).then(|| (entry as u64 * len, *len)),
        }
    }
}
