//! Which sample stands at a position of the global order of an epoch.

use std::ops::Range;

use super::permutation::{self, Permutation};
use crate::error::{Error, Result};
use crate::spec::Spec;

/// Used when the user gives no seed, so that shards in different processes agree.
const DEFAULT_SEED: i64 = 0x5eed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// In order.
    No,
    /// A permutation of all samples in every epoch.
    All,
    /// A permutation of all samples in every epoch but the first.
    AllButFirst,
    /// A permutation within the shard, which keeps its samples.
    Shard,
}

/// From (epoch, position) to the sample.
#[derive(Clone, Debug)]
pub(super) struct Shuffle {
    mode: Mode,
    samples: u64,
    /// With [`Mode::Shard`]: the shard and its positions.
    shard: (u64, Range<u64>),
    seed: u64,
    /// The permutation in use, since consecutive positions share it, and its epoch.
    current: Option<(u64, Permutation)>,
}

impl Shuffle {
    /// `shard` is the reader's own, and its positions; it matters only to a reader that sticks to it.
    pub fn new(spec: &Spec, samples: u64, shard: (u64, Range<u64>)) -> Result<Self> {
        if spec.shuffle_after_epoch && (spec.random_shuffle || spec.stick_to_shard) {
            let other = if spec.random_shuffle { "random_shuffle" } else { "stick_to_shard" };
            return Err(Error::value(format!(
                "shuffle_after_epoch and {other} contradict each other: give one of them"
            )));
        }
        let mode = match (spec.random_shuffle, spec.shuffle_after_epoch, spec.stick_to_shard) {
            (true, _, true) if spec.num_shards > 1 => Mode::Shard,
            (true, ..) => Mode::All,
            (_, true, _) => Mode::AllButFirst,
            _ => Mode::No,
        };
        let seed = if spec.seed == -1 { DEFAULT_SEED } else { spec.seed };
        Ok(Self { mode, samples, shard, seed: seed as u64, current: None })
    }

    /// The sample at `position` in `epoch`.
    pub fn at(&mut self, epoch: u64, position: u64) -> u64 {
        let range = match self.mode {
            Mode::No => return position,
            Mode::AllButFirst if epoch == 0 => return position,
            Mode::All | Mode::AllButFirst => 0..self.samples,
            Mode::Shard => self.shard.1.clone(),
        };
        if self.current.as_ref().is_none_or(|(e, _)| *e != epoch) {
            // Over all shards the key must not depend on how many there are.
            let key = match self.mode {
                Mode::Shard => permutation::key(&[self.seed, epoch, self.shard.0]),
                _ => permutation::key(&[self.seed, epoch]),
            };
            self.current = Some((epoch, Permutation::new(range.end - range.start, key)));
        }
        let permutation = &self.current.as_ref().expect("just set").1;
        range.start + permutation.at(position - range.start)
    }
}
