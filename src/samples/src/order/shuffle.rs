//! Finds the sample at a position of the global order of an epoch.

use std::ops::Range;

use super::blocks::Blocks;
use super::permutation::Permutation;
use super::weights::{Draws, Weights};
use super::windows::ShuffleWindows;
use crate::spec::OrderArguments;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::random::key;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// In order.
    InOrder,
    /// Shuffled in every epoch.
    All,
    /// Shuffled in every epoch but the first.
    AllButFirst,
}

/// What the arguments say of how samples are shuffled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shuffling {
    mode: Mode,
    /// About the number of samples in a shuffle window.
    fill: u64,
    seed: u64,
}

impl Shuffling {
    /// Takes the arguments. `weighted`: samples are drawn by weights.
    ///
    /// # Errors
    /// If they contradict each other.
    pub fn of(arguments: &OrderArguments, weighted: bool) -> Result<Self> {
        let OrderArguments { random_shuffle, shuffle_after_epoch, .. } = *arguments;
        if shuffle_after_epoch && random_shuffle {
            return Err(Error::value("shuffle_after_epoch and random_shuffle contradict each other: give one of them"));
        }
        if weighted && (random_shuffle || shuffle_after_epoch) {
            let other = if random_shuffle { "random_shuffle" } else { "shuffle_after_epoch" };
            return Err(Error::value(format!(
                "weights and {other} contradict each other: weights draw samples in an order of their own; leave {other} out"
            )));
        }
        if arguments.fill() == 0 {
            return Err(Error::value("initial_fill: expected at least 1, found 0"));
        }
        let mode = match (random_shuffle, shuffle_after_epoch) {
            (true, _) => Mode::All,
            (_, true) => Mode::AllButFirst,
            _ => Mode::InOrder,
        };
        Ok(Self { mode, fill: arguments.fill(), seed: arguments.effective_seed() })
    }
}

/// Maps (epoch, position) to a sample.
#[derive(Clone, Debug)]
pub(super) struct Shuffle {
    shuffling: Shuffling,
    samples: u64,
    /// If each shard is shuffled on its own and keeps its samples: the shard and its positions.
    shard: Option<(u64, Range<u64>)>,
    /// Finds samples under chunk-aware shuffling. `None` without shuffling, if no two samples share a chunk, or if the
    /// window is the whole epoch.
    windows: Option<ShuffleWindows>,
    /// Finds samples that are drawn by weights; `None` without weights.
    draws: Option<Draws>,
    /// Without `windows` and `draws`: the epoch and its permutation, kept because consecutive positions share it.
    current: Option<(u64, Permutation)>,
}

/// Makes the keys of windows differ from those of permutations.
const WINDOWS: u64 = 1;

impl Shuffle {
    /// Makes the shuffle. `shard` is the shard that the reader keeps, if there are several, and its positions.
    pub fn new(
        shuffling: Shuffling,
        blocks: &Blocks,
        weights: Option<&Weights>,
        shard: Option<(u64, Range<u64>)>,
    ) -> Self {
        let samples = blocks.samples();
        let shard = shard.filter(|_| shuffling.mode == Mode::All);
        // Decided for all samples, not for those of the shard, so that all shards agree.
        let by_chunks = shuffling.mode != Mode::InOrder && blocks.affect_order(shuffling.fill);
        let range = shard.as_ref().map_or(0..samples, |(_, range)| range.clone());
        let draws = weights.map(|weights| Draws::new(weights.clone()));
        let windows = by_chunks.then(|| ShuffleWindows::new(blocks, range, shuffling.fill));
        Self { shuffling, samples, shard, windows, draws, current: None }
    }

    /// Whether any epoch is in random order.
    pub fn is_random(&self) -> bool {
        self.shuffling.mode != Mode::InOrder || self.draws.is_some()
    }

    /// With chunk-aware shuffling, returns the average number of samples and of blocks in a shuffle window.
    pub fn window(&self) -> Option<(u64, u64)> {
        self.windows.as_ref().map(ShuffleWindows::typical)
    }

    /// Returns the bytes of memory that the order of an epoch takes; 0 without listed blocks.
    pub fn epoch_bytes(&self) -> u64 {
        self.windows.as_ref().map_or(0, ShuffleWindows::epoch_bytes)
    }

    /// Returns the sample at `position` in `epoch`.
    pub fn at(&mut self, epoch: u64, position: u64) -> u64 {
        let Shuffling { mode, seed, .. } = self.shuffling;
        if let Some(draws) = &mut self.draws {
            return draws.at(seed, epoch, position);
        }
        if mode == Mode::InOrder || (mode == Mode::AllButFirst && epoch == 0) {
            return position;
        }
        let range = self.shard.as_ref().map_or(0..self.samples, |(_, range)| range.clone());
        if let Some(windows) = &mut self.windows {
            let of = self.shard.as_ref().map_or(u64::MAX, |(shard, _)| *shard);
            return windows.at(epoch, || key(&[seed, epoch, of, WINDOWS]), position - range.start);
        }
        if self.current.as_ref().is_none_or(|(e, _)| *e != epoch) {
            // If all samples are shuffled, the key must not depend on the number of shards.
            let key = match self.shard {
                Some((shard, _)) => key(&[seed, epoch, shard]),
                None => key(&[seed, epoch]),
            };
            self.current = Some((epoch, Permutation::new(range.end - range.start, key)));
        }
        let permutation = &mut self.current.as_mut().expect("just set").1;
        range.start + permutation.at(position - range.start)
    }
}
