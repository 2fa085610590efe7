//! Blocks of samples that share chunks. Chunk-aware shuffling keeps each block together.

use std::sync::Arc;

pub use super::grid::Run;

use super::grid::GridBlocks;
use super::listed::ListedBlocks;
use super::numbers::Numbers;

/// The blocks of all samples of an epoch. A copy shares its lists with the original.
#[derive(Clone, Debug)]
pub struct Blocks(Kind);

/// Limit on samples of concatenated sets of which the blocks are listed: 256 MiB.
const MAX_CONCATENATED: u64 = 1 << 26;

/// How blocks are given.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// As a product of blocks along axes: no memory for each block.
    Grid(Arc<GridBlocks>),
    /// As a list.
    Listed(Arc<ListedBlocks>),
}

/// The sizes of blocks and the samples in them, as checkpoints describe them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Along each axis the sizes of the blocks, in their order.
    Grid(Vec<Vec<Run>>),
    /// How many there are, and a hash of their sizes and samples.
    Listed(u64, String),
}

impl Blocks {
    /// The blocks that these runs make along each axis; the samples of all axes together must be fewer than 2^63. Runs of
    /// too many sizes are cut evenly instead: where blocks are irregular, list them.
    ///
    /// # Panics
    /// If there is no axis, or one without a run.
    pub fn new(axes: &[Vec<Run>]) -> Self {
        Self(Kind::Grid(Arc::new(GridBlocks::new(axes))))
    }

    /// `samples` blocks of one sample each, for samples that share no chunk.
    pub fn single(samples: u64) -> Self {
        Self::new(&[vec![Run { size: 1, count: samples.max(1) }]])
    }

    /// Consecutive blocks of any sizes: the first has the samples from 0 to before `ends[0]`, the next those to before
    /// `ends[1]`. Blocks without samples are left out. Takes 8 bytes for each block, and while a shuffled epoch is read 12
    /// more (16 beyond 2^32 blocks).
    ///
    /// # Panics
    /// If the ends don't ascend.
    pub fn listed(ends: Vec<u64>) -> Self {
        Self(Kind::Listed(Arc::new(ListedBlocks::new(ends, None))))
    }

    /// As [`Self::listed`], but the samples of a block are any: `rows` has the numbers of the samples of the first block, then
    /// those of the next. Each sample is there once.
    ///
    /// # Panics
    /// If the ends don't ascend, or the last isn't the number of rows.
    pub fn listed_rows(ends: Vec<u64>, rows: Arc<Numbers>) -> Self {
        Self(Kind::Listed(Arc::new(ListedBlocks::new(ends, Some(rows)))))
    }

    /// The blocks of several sets of samples, which are numbered one set after the other: a list of them, with 4 bytes for each
    /// sample. Sets of too many samples become blocks of one sample each.
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
                Kind::Grid(blocks) => {
                    let (block, offset) = blocks.locate(place);
                    f(blocks.sample_of(&block, offset), offset == 0);
                }
                Kind::Listed(blocks) => f(blocks.sample(place), blocks.starts(place)),
            }
        }
    }

    /// Samples in all blocks.
    pub fn samples(&self) -> u64 {
        match &self.0 {
            Kind::Grid(blocks) => blocks.samples(),
            Kind::Listed(blocks) => blocks.samples(),
        }
    }

    /// Blocks.
    pub fn count(&self) -> u64 {
        match &self.0 {
            Kind::Grid(blocks) => blocks.count(),
            Kind::Listed(blocks) => blocks.count(),
        }
    }

    /// Samples of the largest block.
    pub fn largest(&self) -> u64 {
        match &self.0 {
            Kind::Grid(blocks) => blocks.largest(),
            Kind::Listed(blocks) => blocks.largest(),
        }
    }

    /// Bytes of the lists.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            Kind::Grid(blocks) => blocks.bytes(),
            Kind::Listed(blocks) => blocks.bytes(),
        }
    }

    /// Whether an order that is shuffled with `initial_fill` depends on the blocks. It does not if each block is one
    /// sample, or if the shuffle window is the whole epoch.
    pub(crate) fn matter(&self, initial_fill: u64) -> bool {
        initial_fill < self.samples() && self.largest() > 1
    }

    /// What a checkpoint says of them.
    pub(crate) fn layout(&self) -> Layout {
        match &self.0 {
            Kind::Grid(blocks) => Layout::Grid(blocks.runs().collect()),
            Kind::Listed(blocks) => Layout::Listed(blocks.count(), blocks.digest()),
        }
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.0
    }
}
