//! Chunk-aware shuffling of listed blocks, see [`super::windows`].
//!
//! Each epoch puts the blocks in a new order. It keeps this order, and the position at which each block ends. Positions
//! are divided into stretches of equal length, and the blocks that begin in one stretch are a window. A block that is
//! longer than a stretch is a window of its own. The result must never change from one version to another.

use std::ops::Range;
use std::sync::Arc;

use super::listed::ListedBlocks;
use super::numbers::Numbers;
use super::permutation::Permutation;
use super::window_count;
use dali_zarr_base::random::key;

/// The order of the blocks in an epoch.
#[derive(Clone, Debug)]
struct Epoch {
    number: u64,
    key: u64,
    /// The blocks in their new order, numbered from the first block of the range.
    order: Numbers,
    /// For each block in this order, the end of its positions.
    ends: Vec<u64>,
}

/// The current window. Consecutive positions share it.
#[derive(Clone, Debug)]
struct Window {
    positions: Range<u64>,
    permutation: Permutation,
    /// Its blocks, as indices into [`Epoch::order`].
    blocks: Range<usize>,
}

/// Finds the sample at a position under chunk-aware shuffling of listed blocks.
#[derive(Clone, Debug)]
pub(super) struct ListedShuffleWindows {
    all: Arc<ListedBlocks>,
    /// The places of the samples that are shuffled.
    places: Range<u64>,
    /// The blocks that hold these places. Of the first and the last block, only the part in `places` counts.
    blocks: Range<usize>,
    /// Approximate number of windows; some may be empty.
    windows: u64,
    /// Length of a stretch, in positions.
    stretch: u64,
    epoch: Option<Epoch>,
    window: Option<Window>,
}

/// Make the random numbers from one key differ: those for the order of blocks, and for permutations of samples.
const BLOCKS: u64 = 0;
const SAMPLES: u64 = 1;

impl ListedShuffleWindows {
    /// Prepares to shuffle the samples at `places`, in windows of about `initial_fill` samples.
    pub fn new(all: Arc<ListedBlocks>, places: Range<u64>, initial_fill: u64) -> Self {
        let samples = places.end - places.start;
        let blocks = all.around(&places);
        let windows = window_count(samples, blocks.len() as u64, initial_fill);
        let stretch = samples.div_ceil(windows).max(1);
        Self { all, places, blocks, windows, stretch, epoch: None, window: None }
    }

    /// Returns the average number of samples and of blocks of a window, rounded up.
    pub fn typical(&self) -> (u64, u64) {
        (self.stretch, (self.blocks.len() as u64).div_ceil(self.windows))
    }

    /// Returns the bytes of memory that the order of an epoch takes.
    pub fn epoch_bytes(&self) -> u64 {
        let count = self.blocks.len() as u64;
        8 * count + Numbers::bytes_of(count, count)
    }

    /// Returns the sample at `position`, counted from the start of the range, in epoch `number`. `key_of` returns the
    /// key of the epoch and the range.
    pub fn at(&mut self, number: u64, key_of: impl Fn() -> u64, position: u64) -> u64 {
        if self.epoch.as_ref().is_none_or(|e| e.number != number) {
            // Frees the memory of the last epoch first.
            (self.epoch, self.window) = (None, None);
            self.epoch = Some(self.shuffled(number, key_of()));
        }
        let Some(epoch) = &self.epoch else { unreachable!("it was just set") };
        let mut window = match self.window.take() {
            Some(window) if window.positions.contains(&position) => window,
            _ => self.find(epoch, position),
        };
        let at = window.positions.start + window.permutation.at(position - window.positions.start);
        let ends = &epoch.ends[window.blocks.clone()];
        let block = window.blocks.start + ends.partition_point(|&end| end <= at);
        self.window = Some(window);
        let begin = block.checked_sub(1).map_or(0, |before| epoch.ends[before]);
        let part = self.part(epoch.order.at(block));
        self.all.sample(part.start + (at - begin))
    }

    /// Returns the places of a block that are in the range.
    fn part(&self, block: u64) -> Range<u64> {
        self.all.part(self.blocks.start + block as usize, &self.places)
    }

    fn shuffled(&self, number: u64, base: u64) -> Epoch {
        let order = Numbers::shuffled(self.blocks.len() as u64, key(&[base, BLOCKS]));
        let mut ends = Vec::with_capacity(order.len());
        let mut end = 0;
        for block in order.iter() {
            let part = self.part(block);
            end += part.end - part.start;
            ends.push(end);
        }
        Epoch { number, key: base, order, ends }
    }

    /// Returns the window of a position: the blocks that begin in the same stretch as the block of the position.
    fn find(&self, epoch: &Epoch, position: u64) -> Window {
        let Epoch { key: base, ends, .. } = epoch;
        let block = ends.partition_point(|&end| end <= position);
        let begin = |block: usize| block.checked_sub(1).map_or(0, |before| ends[before]);
        let stretch = begin(block) / self.stretch;
        // The first block that begins at or after `start` follows the first one that ends at or after it.
        let first_from = |start: u64| if start == 0 { 0 } else { ends.partition_point(|&end| end < start) + 1 };
        let blocks = first_from(stretch * self.stretch)..first_from((stretch + 1) * self.stretch).min(ends.len());
        let positions = begin(blocks.start)..begin(blocks.end);
        Window {
            permutation: Permutation::new(positions.end - positions.start, key(&[*base, SAMPLES, stretch])),
            positions,
            blocks,
        }
    }
}
