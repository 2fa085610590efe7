//! Blocks of any sizes, one after the other, as a list.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::numbers::Numbers;
use dali_zarr_base::digest::digest;

/// Consecutive blocks, and which samples lie in them. The *place* of a sample is its index when blocks are put one
/// after the other.
#[derive(Debug)]
pub(super) struct ListedBlocks {
    /// One past the last place of each block, ascending; no block is empty.
    ends: Vec<u64>,
    /// For each place the number of the sample there; `None`: the place itself.
    rows: Option<Arc<Numbers>>,
}

impl ListedBlocks {
    /// Makes a list of blocks, see [`super::Blocks::listed`] and [`super::Blocks::listed_rows`].
    pub fn new(mut ends: Vec<u64>, rows: Option<Arc<Numbers>>) -> Self {
        let mut before = 0;
        ends.retain(|&end| {
            assert!(end >= before, "the ends of blocks ascend");
            std::mem::replace(&mut before, end) < end
        });
        ends.shrink_to_fit();
        if let Some(rows) = &rows {
            assert_eq!(rows.len() as u64, before, "there is a sample for each place");
        }
        Self { ends, rows }
    }

    /// Returns the number of samples in all blocks.
    pub fn samples(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Returns the sizes of blocks, each with the number of blocks that have it.
    pub fn sizes(&self) -> Vec<(u64, u64)> {
        let mut counts = BTreeMap::new();
        (0..self.ends.len()).for_each(|i| *counts.entry(self.ends[i] - self.start(i)).or_insert(0) += 1);
        counts.into_iter().collect()
    }

    /// Returns the number of samples of the largest block, at least 1.
    pub fn largest(&self) -> u64 {
        (0..self.ends.len()).map(|i| self.ends[i] - self.start(i)).max().unwrap_or(1)
    }

    /// Returns the first place of a block.
    fn start(&self, block: usize) -> u64 {
        block.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Returns the blocks that hold these places. The first and the last of these blocks may also hold other places.
    pub fn around(&self, places: &Range<u64>) -> Range<usize> {
        let first = self.ends.partition_point(|&end| end <= places.start);
        let last = self.ends.partition_point(|&end| end < places.end);
        first..(last + 1).min(self.ends.len()).max(first)
    }

    /// Returns those of `places` that lie in a block.
    pub fn part(&self, block: usize, places: &Range<u64>) -> Range<u64> {
        self.start(block).max(places.start)..self.ends[block].min(places.end)
    }

    /// Whether a block begins at a place.
    pub fn starts(&self, place: u64) -> bool {
        place == 0 || self.ends.binary_search(&place).is_ok()
    }

    /// Returns the number of the sample at a place.
    pub fn sample(&self, place: u64) -> u64 {
        self.rows.as_ref().map_or(place, |rows| rows.at(place as usize))
    }

    /// Returns the bytes of memory that the lists take.
    pub fn bytes(&self) -> u64 {
        8 * self.ends.capacity() as u64 + self.rows.as_ref().map_or(0, |rows| rows.bytes())
    }

    /// Returns a hash of the blocks and of the samples in them, for checkpoints.
    pub fn digest(&self) -> String {
        let rows = self.rows.iter().flat_map(|rows| rows.iter());
        digest(self.ends.iter().copied().chain(rows), self.count())
    }
}
