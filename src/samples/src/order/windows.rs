//! Chunk-aware shuffling: permutes blocks of samples that share chunks, then the samples of each window of blocks.
//!
//! The samples are cut into windows of about `initial_fill` samples. Each window has blocks that are drawn anew in each
//! epoch. For each position in a window, a permutation of the window's samples gives the block and the sample in the
//! block.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::{Blocks, StoredBlocks};
use super::grid_windows::GridShuffleWindows;
use super::listed_windows::ListedShuffleWindows;

/// Finds the sample at a position under chunk-aware shuffling.
#[derive(Clone, Debug)]
pub(super) enum ShuffleWindows {
    /// Windows of blocks of a grid.
    Grid(GridShuffleWindows),
    /// Windows of listed blocks.
    Listed(ListedShuffleWindows),
}

impl ShuffleWindows {
    /// Prepares to shuffle the samples at the positions in `range`, in windows of about `initial_fill` samples.
    /// Positions count block by block.
    pub fn new(blocks: &Blocks, range: Range<u64>, initial_fill: u64) -> Self {
        match blocks.kind() {
            StoredBlocks::Grid(blocks) => Self::Grid(GridShuffleWindows::new(Arc::clone(blocks), range, initial_fill)),
            StoredBlocks::Listed(blocks) => {
                Self::Listed(ListedShuffleWindows::new(Arc::clone(blocks), range, initial_fill))
            }
        }
    }

    /// Returns the average number of samples and of blocks of a window, rounded up.
    pub fn typical(&self) -> (u64, u64) {
        match self {
            Self::Grid(windows) => windows.typical(),
            Self::Listed(windows) => windows.typical(),
        }
    }

    /// Returns the bytes of memory that the order of an epoch takes.
    pub fn epoch_bytes(&self) -> u64 {
        match self {
            Self::Grid(_) => 0,
            Self::Listed(windows) => windows.epoch_bytes(),
        }
    }

    /// Returns the sample at `position`, counted from the start of the range, in `epoch`. `key` returns the key of the
    /// epoch and the range.
    pub fn at(&mut self, epoch: u64, key: impl Fn() -> u64, position: u64) -> u64 {
        match self {
            Self::Grid(windows) => windows.at(epoch, key, position),
            Self::Listed(windows) => windows.at(epoch, key, position),
        }
    }
}
