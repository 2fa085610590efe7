//! Blocks of samples that share chunks. Chunk-aware shuffling keeps each block together.

use std::sync::Arc;

pub use super::grid::Run;

use super::grid::GridBlocks;
use super::listed::ListedBlocks;
use super::numbers::Numbers;
use super::window_count;

/// The blocks of all samples of an epoch. A copy shares its lists with the original.
#[derive(Clone, Debug)]
pub struct Blocks(StoredBlocks);

/// Maximum number of samples of concatenated sets whose blocks are listed. The list takes 256 MiB then.
const MAX_CONCATENATED: u64 = 1 << 26;

/// How blocks are stored.
#[derive(Clone, Debug)]
pub(super) enum StoredBlocks {
    /// As a product of blocks along axes, which takes no memory for each block.
    Grid(Arc<GridBlocks>),
    /// As a list.
    Listed(Arc<ListedBlocks>),
}

/// The sizes of blocks and the samples in them, as checkpoints describe them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// For each axis, the sizes of the blocks along it in order.
    Grid(Vec<Vec<Run>>),
    /// The number of blocks, and a hash of their sizes and samples.
    Listed(u64, String),
}

impl Blocks {
    /// Makes the blocks of a grid from the runs along each axis. The grid must have fewer than 2^63 samples. If runs
    /// have too many sizes, blocks of even size take their place, so list irregular blocks instead.
    ///
    /// # Panics
    /// If there is no axis, or one without a run.
    pub fn new(axes: &[Vec<Run>]) -> Self {
        Self(StoredBlocks::Grid(Arc::new(GridBlocks::new(axes))))
    }

    /// Makes `samples` blocks of one sample each, for samples that share no chunk.
    pub fn single(samples: u64) -> Self {
        Self::new(&[vec![Run { size: 1, count: samples.max(1) }]])
    }

    /// Makes consecutive blocks of any sizes: the first has the samples from 0 to before `ends[0]`, the next those to
    /// before `ends[1]`, and so on. Blocks without samples are left out. Takes 8 bytes for each block, and 12 more
    /// while a shuffled epoch is read (16 with more than 2^32 blocks).
    ///
    /// # Panics
    /// If the ends descend.
    pub fn listed(ends: Vec<u64>) -> Self {
        Self(StoredBlocks::Listed(Arc::new(ListedBlocks::new(ends, None))))
    }

    /// As [`Self::listed`], but a block may have any samples. `rows` has the numbers of the samples of the first block,
    /// then those of the next, each sample once.
    ///
    /// # Panics
    /// If the ends descend, or if the last end isn't the number of rows.
    pub fn listed_rows(ends: Vec<u64>, rows: Arc<Numbers>) -> Self {
        Self(StoredBlocks::Listed(Arc::new(ListedBlocks::new(ends, Some(rows)))))
    }

    /// Makes a list of the blocks of several sets of samples. Samples are numbered set after set. Takes 4 bytes for
    /// each sample. If there are too many samples, each becomes a block of its own instead.
    pub fn concatenated(sets: &[Self]) -> Self {
        let samples: u64 = sets.iter().map(Self::samples).sum();
        if samples > MAX_CONCATENATED || sets.iter().all(|set| set.largest() == 1) {
            return Self::single(samples);
        }
        let mut ends = Vec::new();
        let mut before = 0;
        let mut numbers = Vec::with_capacity(samples as usize);
        for set in sets {
            set.each_place(|sample, is_first| {
                if is_first && !numbers.is_empty() {
                    ends.push(numbers.len() as u64);
                }
                numbers.push((before + sample) as u32);
            });
            before += set.samples();
        }
        ends.push(samples);
        Self::listed_rows(ends, Arc::new(Numbers::Short(numbers)))
    }

    /// Calls `f` with the number of the sample at each place, block by block, and whether it is the first of its block.
    fn each_place(&self, mut f: impl FnMut(u64, bool)) {
        for place in 0..self.samples() {
            match &self.0 {
                StoredBlocks::Grid(blocks) => {
                    let (block, offset) = blocks.locate(place);
                    f(blocks.sample_of(&block, offset), offset == 0);
                }
                StoredBlocks::Listed(blocks) => f(blocks.sample(place), blocks.starts(place)),
            }
        }
    }

    /// Returns the number of samples in all blocks.
    pub fn samples(&self) -> u64 {
        match &self.0 {
            StoredBlocks::Grid(blocks) => blocks.samples(),
            StoredBlocks::Listed(blocks) => blocks.samples(),
        }
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u64 {
        match &self.0 {
            StoredBlocks::Grid(blocks) => blocks.count(),
            StoredBlocks::Listed(blocks) => blocks.count(),
        }
    }

    /// Returns the number of samples of the largest block.
    pub fn largest(&self) -> u64 {
        match &self.0 {
            StoredBlocks::Grid(blocks) => blocks.largest(),
            StoredBlocks::Listed(blocks) => blocks.largest(),
        }
    }

    /// Returns the bytes of memory that lists of blocks take.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            StoredBlocks::Grid(blocks) => blocks.bytes(),
            StoredBlocks::Listed(blocks) => blocks.bytes(),
        }
    }

    /// Whether an order that is shuffled with `initial_fill` depends on the blocks. It does not if each block is one
    /// sample, or if the shuffle window is the whole epoch.
    pub fn affect_order(&self, initial_fill: u64) -> bool {
        initial_fill < self.samples() && self.largest() > 1
    }

    /// Returns how many shuffle windows of about `initial_fill` samples all samples have.
    pub fn windows(&self, initial_fill: u64) -> u64 {
        window_count(self.samples(), self.count(), initial_fill)
    }

    /// Returns the sizes of blocks, each with the number of blocks that have it.
    pub fn sizes(&self) -> Vec<(u64, u64)> {
        match &self.0 {
            StoredBlocks::Grid(blocks) => blocks.shapes().iter().map(|shape| (shape.size, shape.count)).collect(),
            StoredBlocks::Listed(blocks) => blocks.sizes(),
        }
    }

    /// Returns what a checkpoint says about the blocks.
    pub fn layout(&self) -> Layout {
        match &self.0 {
            StoredBlocks::Grid(blocks) => Layout::Grid(blocks.runs().collect()),
            StoredBlocks::Listed(blocks) => Layout::Listed(blocks.count(), blocks.digest()),
        }
    }

    pub(super) fn kind(&self) -> &StoredBlocks {
        &self.0
    }
}
