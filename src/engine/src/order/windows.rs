//! Chunk-aware shuffling: blocks of samples that share chunks are permuted, and samples among the blocks of a window.
//!
//! The samples are cut into windows of about `initial_fill`, each made of blocks that are drawn anew in each epoch. Within a
//! window, a permutation of its samples gives the block, and the sample in the block, at each position.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::{Blocks, Kind};
use super::grid_windows::GridWindows;
use super::listed_windows::ListedWindows;

/// Finds samples under chunk-aware shuffling.
#[derive(Clone, Debug)]
pub(super) enum Windows {
    /// Of blocks of a grid.
    Grid(GridWindows),
    /// Of blocks that are listed.
    Listed(ListedWindows),
}

impl Windows {
    /// Shuffles the samples in `range`, about `initial_fill` at a time. The range counts samples block by block.
    pub fn new(blocks: &Blocks, range: Range<u64>, initial_fill: u64) -> Self {
        match blocks.kind() {
            Kind::Grid(blocks) => Self::Grid(GridWindows::new(Arc::clone(blocks), range, initial_fill)),
            Kind::Listed(blocks) => Self::Listed(ListedWindows::new(Arc::clone(blocks), range, initial_fill)),
        }
    }

    /// The samples and the blocks of a window, on average.
    pub fn typical(&self) -> (u64, u64) {
        match self {
            Self::Grid(windows) => windows.typical(),
            Self::Listed(windows) => windows.typical(),
        }
    }

    /// Bytes that the order of an epoch takes.
    pub fn epoch_bytes(&self) -> u64 {
        match self {
            Self::Grid(_) => 0,
            Self::Listed(windows) => windows.epoch_bytes(),
        }
    }

    /// The sample at `position` (from the start of the range) in an epoch; `key` belongs to the epoch and the range.
    pub fn at(&mut self, epoch: u64, key: impl Fn() -> u64, position: u64) -> u64 {
        match self {
            Self::Grid(windows) => windows.at(epoch, key, position),
            Self::Listed(windows) => windows.at(epoch, key, position),
        }
    }
}
