//! Chunk-aware shuffling of a grid of samples, see [`super::windows`].
//!
//! Blocks of one shape are a stratum. Each window takes a share of each stratum. Of a stratum with `n` blocks, window
//! `w` of `W` takes the blocks from `(n w + shift) / W` to before `(n (w + 1) + shift) / W` of the stratum's own
//! permutation. So the start of a window is a sum over strata, and the window of a position is found by bisection. No
//! list is kept. The result must never change from one version to another.

use std::ops::Range;
use std::sync::Arc;

use super::grid::{Block, GridBlocks};
use super::permutation::Permutation;
use super::window_count;
use dali_zarr_base::random::{below, key};

/// Blocks of one size that lie in the range.
#[derive(Clone, Debug)]
struct Stratum {
    /// Samples in each block.
    size: u64,
    /// Number of blocks.
    count: u64,
    members: Members,
}

#[derive(Clone, Debug)]
enum Members {
    /// Blocks of a shape: the index of the shape, and the number of the first block.
    Shape(usize, u64),
    /// A part of one block: the block, and the offset of the first sample in it.
    Part(Block, u64),
}

/// State that is the same for a whole epoch.
#[derive(Clone, Debug)]
struct Epoch {
    number: u64,
    key: u64,
    /// For each stratum, a random shift of its shares, from 0 to below the number of windows. Without it, a stratum of
    /// one block would always come in the last window.
    shifts: Vec<u64>,
    /// For each stratum the permutation of its blocks, made when it is first needed.
    permutations: Vec<Option<Permutation>>,
}

/// What a window has of one stratum.
#[derive(Clone, Copy, Debug)]
struct Share {
    stratum: usize,
    /// The first block of the share.
    first: u64,
    /// Number of samples of the window that come before the share.
    before: u64,
}

/// The current window. Consecutive positions share it.
#[derive(Clone, Debug)]
struct Window {
    positions: Range<u64>,
    permutation: Permutation,
    shares: Vec<Share>,
}

/// Finds the sample at a position under chunk-aware shuffling of a grid.
#[derive(Clone, Debug)]
pub(super) struct GridShuffleWindows {
    blocks: Arc<GridBlocks>,
    strata: Vec<Stratum>,
    samples: u64,
    windows: u64,
    epoch: Option<Epoch>,
    window: Option<Window>,
}

/// Make the random numbers from one key differ: those for permutations of blocks, for shifts, and for permutations of
/// samples.
const BLOCKS: u64 = 0;
const SHIFT: u64 = 1;
const SAMPLES: u64 = 2;

impl GridShuffleWindows {
    /// Prepares to shuffle the samples at the positions in `range`, in windows of about `initial_fill` samples.
    /// Positions count block by block.
    pub fn new(blocks: Arc<GridBlocks>, range: Range<u64>, initial_fill: u64) -> Self {
        let samples = range.end - range.start;
        let (first, skipped) = blocks.locate(range.start);
        let (last, taken) = if range.end < blocks.samples() {
            let (block, taken) = blocks.locate(range.end);
            (Some(block), taken)
        } else {
            (None, 0)
        };
        let mut strata = Vec::new();
        if last.as_ref() == Some(&first) {
            strata.push(Stratum { size: samples, count: 1, members: Members::Part(first, skipped) });
        } else {
            for (c, shape) in blocks.shapes().iter().enumerate() {
                let from = blocks.before(c, &first) + u64::from(skipped > 0 && blocks.is_of(&first, c));
                let to = last.as_ref().map_or(shape.count, |last| blocks.before(c, last));
                if to > from {
                    strata.push(Stratum { size: shape.size, count: to - from, members: Members::Shape(c, from) });
                }
            }
            if skipped > 0 {
                let size = blocks.size(&first) - skipped;
                strata.push(Stratum { size, count: 1, members: Members::Part(first, skipped) });
            }
            if let Some(last) = last.filter(|_| taken > 0) {
                strata.push(Stratum { size: taken, count: 1, members: Members::Part(last, 0) });
            }
        }
        let all: u64 = strata.iter().map(|s| s.count).sum();
        let windows = window_count(samples, all, initial_fill);
        Self { blocks, strata, samples, windows, epoch: None, window: None }
    }

    /// Returns the average number of samples and of blocks of a window, rounded up.
    pub fn typical(&self) -> (u64, u64) {
        let all: u64 = self.strata.iter().map(|s| s.count).sum();
        (self.samples.div_ceil(self.windows), all.div_ceil(self.windows))
    }

    /// Returns the sample at `position`, counted from the start of the range, in epoch `number`. `key_of` returns the
    /// key of the epoch and the range.
    pub fn at(&mut self, number: u64, key_of: impl Fn() -> u64, position: u64) -> u64 {
        if self.epoch.as_ref().is_none_or(|e| e.number != number) {
            let base = key_of();
            let shift = |i: usize| below(key(&[base, SHIFT, i as u64]), self.windows);
            let shifts = (0..self.strata.len()).map(shift).collect();
            let permutations = vec![None; self.strata.len()];
            self.epoch = Some(Epoch { number, key: base, shifts, permutations });
            self.window = None;
        }
        if self.window.as_ref().is_none_or(|w| !w.positions.contains(&position)) {
            self.window = Some(self.find(position));
        }
        let (Some(window), Some(epoch)) = (&mut self.window, &mut self.epoch) else {
            unreachable!("both were just set")
        };
        let at = window.permutation.at(position - window.positions.start);
        let share = window.shares[window.shares.partition_point(|share| share.before <= at) - 1];
        let Share { stratum, first, before } = share;
        let Stratum { size, count, members } = &self.strata[stratum];
        let (block, offset) = (first + (at - before) / size, (at - before) % size);
        match members {
            Members::Part(part, skipped) => self.blocks.sample_of(part, skipped + offset),
            Members::Shape(shape, from) => {
                let permutation = epoch.permutations[stratum]
                    .get_or_insert_with(|| Permutation::new(*count, key(&[epoch.key, BLOCKS, stratum as u64])));
                self.blocks.sample(*shape, from + permutation.at(block), offset)
            }
        }
    }

    /// Returns how many blocks of a stratum come before window `w`.
    fn share(&self, stratum: usize, w: u64) -> u64 {
        let shift = self.epoch.as_ref().map_or(0, |e| e.shifts[stratum]);
        ((u128::from(self.strata[stratum].count) * u128::from(w) + u128::from(shift)) / u128::from(self.windows)) as u64
    }

    /// Returns how many samples come before window `w`.
    fn start(&self, w: u64) -> u64 {
        self.strata.iter().enumerate().map(|(i, s)| s.size * self.share(i, w)).sum()
    }

    fn find(&self, position: u64) -> Window {
        // Bisects for the last window that starts at or before the position. It isn't empty, since an empty window
        // starts where the next one does.
        let (mut low, mut high) = (0, self.windows);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.start(middle) <= position {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut shares = Vec::new();
        let mut before = 0;
        for (i, stratum) in self.strata.iter().enumerate() {
            let (from, to) = (self.share(i, low), self.share(i, low + 1));
            if to > from {
                shares.push(Share { stratum: i, first: from, before });
                before += stratum.size * (to - from);
            }
        }
        let start = self.start(low);
        let base = self.epoch.as_ref().map_or(0, |e| e.key);
        Window {
            positions: start..start + before,
            permutation: Permutation::new(before, key(&[base, SAMPLES, low])),
            shares,
        }
    }
}
