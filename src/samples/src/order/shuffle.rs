//! Finds the sample at a position of the global order of an epoch.

use std::ops::Range;

use super::blocks::Blocks;
use super::permutation::Permutation;
use super::weights::{Draws, Weights};
use super::windows::ShuffleWindows;
use crate::spec::Spec;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::random::key;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// In order.
    InOrder,
    /// All samples are shuffled in every epoch.
    All,
    /// All samples are shuffled in every epoch but the first.
    AllButFirst,
    /// Each shard is shuffled on its own and keeps its samples.
    Shard,
}

/// Maps (epoch, position) to a sample.
#[derive(Clone, Debug)]
pub(super) struct Shuffle {
    mode: Mode,
    samples: u64,
    /// With [`Mode::Shard`]: the shard and its positions.
    shard: (u64, Range<u64>),
    seed: u64,
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
    /// Makes the shuffle. `shard` is the reader's own shard and its positions; it matters only with `stick_to_shard`.
    pub fn new(spec: &Spec, blocks: &Blocks, weights: Option<&Weights>, shard: (u64, Range<u64>)) -> Result<Self> {
        if spec.order.shuffle_after_epoch && spec.order.random_shuffle {
            return Err(Error::value("shuffle_after_epoch and random_shuffle contradict each other: give one of them"));
        }
        if weights.is_some() && (spec.order.random_shuffle || spec.order.shuffle_after_epoch) {
            let other = if spec.order.random_shuffle { "random_shuffle" } else { "shuffle_after_epoch" };
            return Err(Error::value(format!(
                "weights and {other} contradict each other: weights draw samples in an order of their own; leave {other} out"
            )));
        }
        if spec.order.fill() == 0 {
            return Err(Error::value("initial_fill: expected at least 1, found 0"));
        }
        let mode = match (spec.order.random_shuffle, spec.order.shuffle_after_epoch, spec.order.stick_to_shard) {
            (true, _, true) if spec.order.num_shards > 1 => Mode::Shard,
            (true, ..) => Mode::All,
            (_, true, _) => Mode::AllButFirst,
            _ => Mode::InOrder,
        };
        let samples = blocks.samples();
        // Decided for all samples, not for those of the shard, so that all shards agree.
        let by_chunks = mode != Mode::InOrder && blocks.affect_order(spec.order.fill());
        let range = if mode == Mode::Shard { shard.1.clone() } else { 0..samples };
        let draws = weights.map(|weights| Draws::new(weights.clone()));
        let windows = by_chunks.then(|| ShuffleWindows::new(blocks, range, spec.order.fill()));
        Ok(Self { mode, samples, shard, seed: spec.order.effective_seed(), windows, draws, current: None })
    }

    /// Whether any epoch is in random order.
    pub fn is_random(&self) -> bool {
        self.mode != Mode::InOrder || self.draws.is_some()
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
        if let Some(draws) = &mut self.draws {
            return draws.at(self.seed, epoch, position);
        }
        let range = match self.mode {
            Mode::InOrder => return position,
            Mode::AllButFirst if epoch == 0 => return position,
            Mode::All | Mode::AllButFirst => 0..self.samples,
            Mode::Shard => self.shard.1.clone(),
        };
        if let Some(windows) = &mut self.windows {
            let of = if self.mode == Mode::Shard { self.shard.0 } else { u64::MAX };
            let seed = self.seed;
            return windows.at(epoch, || key(&[seed, epoch, of, WINDOWS]), position - range.start);
        }
        if self.current.as_ref().is_none_or(|(e, _)| *e != epoch) {
            // If all samples are shuffled, the key must not depend on the number of shards.
            let key = match self.mode {
                Mode::Shard => key(&[self.seed, epoch, self.shard.0]),
                _ => key(&[self.seed, epoch]),
            };
            self.current = Some((epoch, Permutation::new(range.end - range.start, key)));
        }
        let permutation = &mut self.current.as_mut().expect("just set").1;
        range.start + permutation.at(position - range.start)
    }
}
