//! Shards, and where their inner chunks lie.

use dali_zarr_stores::ObjectVersion;

/// Identifies a shard by array, part, and row-major index in the grid of shards. In a store that tells where chunks
/// lie, it identifies an index of the store: `index` is the number of a manifest or of a reference file.
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

/// The index of a shard: offset and length of each inner chunk.
#[derive(Debug)]
pub(crate) struct ShardIndex {
    pub entries: Entries,
    /// The version of the shard, if the store tells it. The index holds for this version only.
    pub version: Option<ObjectVersion>,
}

/// The entries of a shard index.
#[derive(Debug)]
pub(crate) enum Entries {
    /// As they were read: offset and length of each chunk; `None` if it is missing.
    Read(Vec<Option<(u64, u64)>>),
    /// In a simulation: `count` chunks of `len` bytes, one after the other.
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

    /// Returns offset and length of the chunk of an entry. `None` if the chunk is missing.
    pub fn get(&self, entry: usize) -> Option<(u64, u64)> {
        match self {
            Self::Read(entries) => entries.get(entry).copied().flatten(),
            Self::Even { count, len } => (entry < *count).then(|| (entry as u64 * len, *len)),
        }
    }
}
