//! The order of the samples: which sample a reader delivers as its k-th. It is a function of the spec, the blocks and
//! the schedule alone. It takes O(1) memory, and some bytes for each listed block and each weight.
//!
//! The samples of batches come from this order, or from the pushes of a caller ([`batches`], [`pushed`]).
//!
//! [`shards`] divides the global order of an epoch among readers. [`schedule`] follows a reader through its epochs and
//! through changes of the shards. [`mod@shuffle`] finds the sample at a position: by one permutation of all samples, or,
//! where chunks hold several samples ([`blocks`]), window by window ([`windows`]). Samples with [`weights`] are drawn instead.

mod batches;
mod blocks;
mod grid;
mod grid_windows;
mod listed;
mod listed_windows;
mod numbers;
mod permutation;
mod pushed;
mod schedule;
mod shards;
mod shuffle;
#[cfg(test)]
mod tests_listed;
#[cfg(test)]
mod tests_resume;
#[cfg(test)]
mod tests_windows;
mod weights;
mod windows;

pub use batches::{Batches, OwnBatches};
pub use blocks::Layout;
pub use blocks::{Blocks, Run};
pub use numbers::Numbers;
pub use permutation::Permutation;
pub use pushed::{Draws, MOST_BATCHES, MOST_SAMPLES, Pushed, Pushes};
pub use schedule::Segment;
pub use shards::SampleSharding;
pub use weights::Weights;

use crate::spec::Spec;
use dali_zarr_base::error::Result;
use schedule::{GlobalPosition, Schedule};
use shuffle::{Shuffle, Shuffling};

/// A sample of an epoch. Its values depend on `index` only; if crops are random, on `epoch` and `draw` too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sample {
    /// The reader's epoch, from 0.
    pub epoch: u64,
    /// Its number among all samples.
    pub index: u64,
    /// Makes its random crops differ from others of the epoch. It is `index`, or, if samples are drawn by weights, the
    /// position of the draw, since a sample may be drawn several times.
    pub draw: u64,
}

impl Sample {
    /// Makes a sample that comes once in its epoch.
    pub fn new(epoch: u64, index: u64) -> Self {
        Self { epoch, index, draw: index }
    }
}

/// The order in which one reader delivers samples.
#[derive(Clone, Debug)]
pub struct Order {
    shuffling: Shuffling,
    /// The shards of the reader's own arguments.
    sharding: SampleSharding,
    /// Which samples share chunks.
    blocks: Blocks,
    /// How samples are drawn, if they have weights.
    weights: Option<Weights>,
    schedule: Schedule,
    shard: u64,
    /// The shuffle in use, behind what [`range_of`] returned when it was made.
    shuffle: ((u64, u64), Shuffle),
}

impl Order {
    /// Makes the order of `samples` samples, none of which share a chunk.
    ///
    /// # Errors
    /// If the shard arguments contradict each other, or a shard would be empty.
    pub fn new(spec: &Spec, samples: u64) -> Result<Self> {
        let sharding = SampleSharding::new(spec, samples)?;
        Self::of(spec, sharding, Blocks::single(samples), None, samples)
    }

    /// Makes the order of the samples of `blocks`; those of one block share chunks.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn by_chunks(spec: &Spec, blocks: Blocks) -> Result<Self> {
        let samples = blocks.samples();
        Self::of(spec, SampleSharding::new(spec, samples)?, blocks, None, samples)
    }

    /// Makes the order of `samples` samples that are drawn by weights. It ignores chunks.
    ///
    /// # Errors
    /// As [`Self::new`]; if the samples are to be shuffled too.
    pub fn drawn(spec: &Spec, samples: u64, weights: Weights) -> Result<Self> {
        let draws = weights.draws();
        let sharding = SampleSharding::new(spec, draws)?;
        Self::of(spec, sharding, Blocks::single(samples), Some(weights), draws)
    }

    /// Makes the order of `positions` positions in an epoch, which `sharding` divides.
    fn of(
        spec: &Spec,
        sharding: SampleSharding,
        blocks: Blocks,
        weights: Option<Weights>,
        positions: u64,
    ) -> Result<Self> {
        let shuffling = Shuffling::of(&spec.order, weights.is_some())?;
        let (schedule, shard) = (Schedule::new(sharding, positions), spec.order.shard_id as u64);
        let shuffle = shuffle(shuffling, &blocks, weights.as_ref(), &schedule.position(shard, 0));
        Ok(Self { shuffling, sharding, blocks, weights, schedule, shard, shuffle })
    }

    /// Returns the order of the same samples from where `segments` stopped (see [`Self::segments`]), and how many
    /// samples of it this reader has delivered. The spec may divide the samples in another way than the last segment.
    ///
    /// # Errors
    /// If the shards change, but the old ones weren't all in the same epoch; if the shards changed too often; if the
    /// segments contradict each other.
    pub fn resume(&self, segments: &[Segment]) -> Result<(Self, u64)> {
        let (schedule, delivered) = Schedule::resume(self.sharding, self.samples(), segments)?;
        let place = schedule.position(self.shard, 0);
        let shuffle = shuffle(self.shuffling, &self.blocks, self.weights.as_ref(), &place);
        let Self { shuffling, sharding, shard, .. } = *self;
        let (blocks, weights) = (self.blocks.clone(), self.weights.clone());
        Ok((Self { shuffling, sharding, blocks, weights, schedule, shard, shuffle }, delivered))
    }

    /// Whether samples come in a random order, in any epoch.
    pub fn is_random(&self) -> bool {
        self.shuffle.1.is_random()
    }

    /// With chunk-aware shuffling, returns the average number of samples and of blocks in a shuffle window. `None` if
    /// samples come in order, or in an order that ignores chunks.
    pub fn window(&self) -> Option<(u64, u64)> {
        self.shuffle.1.window()
    }

    /// Returns the number of samples within which all samples of a chunk come, or nearly all: those of a shuffle window,
    /// or of the epoch in other random orders. 0 if samples come in order.
    pub fn reach(&self) -> u64 {
        let all = if self.is_random() { self.epoch_samples() } else { 0 };
        self.window().map_or(all, |(samples, _)| samples)
    }

    /// Returns the bytes of memory that lists of blocks, weights and the order of an epoch take.
    pub fn bytes(&self) -> u64 {
        self.blocks.bytes() + self.weights.as_ref().map_or(0, Weights::bytes) + self.shuffle.1.epoch_bytes()
    }

    /// Returns whether a sample may come several times in an epoch; `None` if samples aren't drawn by weights.
    pub fn replacement(&self) -> Option<bool> {
        self.weights.as_ref().map(Weights::replacement)
    }

    /// Returns the number of samples in an epoch, over all shards.
    pub fn samples(&self) -> u64 {
        self.schedule.samples()
    }

    /// Returns the segments that [`Self::resume`] needs to go on after `delivered` samples. They are the same on all
    /// shards.
    pub fn segments(&self, delivered: u64) -> Vec<Segment> {
        self.schedule.segments(delivered)
    }

    /// Returns how many samples this reader delivers in its first epoch, padding included.
    pub fn epoch_samples(&self) -> u64 {
        let GlobalPosition { sharding, shard, .. } = self.schedule.position(self.shard, 0);
        let held = |s: u64| sharding.start(self.samples(), s);
        sharding.padded(self.samples()).unwrap_or_else(|| held(shard + 1) - held(shard))
    }

    /// Returns the epoch of this reader's `k`-th sample, and its position in the global order of the epoch.
    pub fn locate(&self, k: u64) -> (u64, u64) {
        let place = self.schedule.position(self.shard, k);
        (place.epoch, place.position)
    }

    /// Returns this reader's `k`-th sample.
    pub fn sample(&mut self, k: u64) -> Sample {
        let place = self.schedule.position(self.shard, k);
        if self.shuffle.0 != range_of(&place) {
            // The rest of an epoch that another sharding left keeps the order of that sharding.
            self.shuffle = shuffle(self.shuffling, &self.blocks, self.weights.as_ref(), &place);
        }
        let sample = Sample::new(place.epoch, self.shuffle.1.at(place.epoch, place.position));
        if self.weights.is_some() { Sample { draw: place.position, ..sample } } else { sample }
    }
}

/// Returns the shard of `place` and the number of shards if shards are shuffled on their own; otherwise (0, 1).
fn range_of(place: &GlobalPosition) -> (u64, u64) {
    if place.sharding.stick_to_shard { (place.shard, place.sharding.num_shards) } else { (0, 1) }
}

fn shuffle(
    shuffling: Shuffling,
    blocks: &Blocks,
    weights: Option<&Weights>,
    place: &GlobalPosition,
) -> ((u64, u64), Shuffle) {
    let SampleSharding { num_shards, stick_to_shard, .. } = place.sharding;
    let start = |shard| place.sharding.start(blocks.samples(), shard);
    let own = (stick_to_shard && num_shards > 1).then(|| (place.shard, start(place.shard)..start(place.shard + 1)));
    (range_of(place), Shuffle::new(shuffling, blocks, weights, own))
}

/// Returns how many shuffle windows of about `initial_fill` samples there are, for so many samples in so many blocks.
fn window_count(samples: u64, blocks: u64, initial_fill: u64) -> u64 {
    (samples.saturating_add(initial_fill / 2) / initial_fill).clamp(1, blocks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(shards: i64, shard: i64, batch: usize) -> Spec {
        Spec::default().with(|s| {
            s.order.num_shards = shards;
            s.order.shard_id = shard;
            s.batch_size = batch;
        })
    }

    /// The samples of one epoch of one reader.
    fn epoch_of(order: &mut Order, epoch: u64) -> Vec<u64> {
        let mut all = Vec::new();
        for k in 0.. {
            match order.locate(k).0.cmp(&epoch) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => all.push(order.sample(k).index),
                std::cmp::Ordering::Greater => break,
            }
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_sample_once_per_epoch(
            n in 1u64..60, shards in 1i64..6, batch in 1usize..9, mode in 0..4, stick: bool, pad: bool, epoch in 0u64..7,
        ) {
            prop_assume!(n >= shards as u64);
            let mut seen = vec![0; n as usize];
            let mut lengths = Vec::new();
            for shard in 0..shards {
                let s = spec(shards, shard, batch).with(|s| { s.order.random_shuffle = mode == 1; s.order.shuffle_after_epoch = mode == 2 && !stick; s.order.stick_to_shard = stick; s.order.pad_last_batch = pad; s.order.seed = i64::from(mode); });
                let mut all = epoch_of(&mut Order::new(&s, n).unwrap(), epoch);
                lengths.push(all.len());
                if pad {
                    prop_assert_eq!(all.len() as u64, n.div_ceil(shards as u64).next_multiple_of(batch as u64));
                    all.dedup();
                }
                all.iter().for_each(|&i| seen[i as usize] += 1);
            }
            prop_assert!(seen.iter().all(|&c| c == 1), "{:?}", seen);
            if pad { prop_assert!(lengths.windows(2).all(|w| w[0] == w[1])); }
        }

        #[test]
        fn epochs_are_consecutive(n in 1u64..50, shards in 1i64..6, shard in 0i64..6, stick: bool, pad: bool) {
            prop_assume!(n >= shards as u64 && shard < shards);
            let s = spec(shards, shard, 4).with(|s| { s.order.stick_to_shard = stick; s.order.pad_last_batch = pad; });
            let order = Order::new(&s, n).unwrap();
            let mut last = 0;
            for k in 0..300 {
                let (epoch, position) = order.locate(k);
                prop_assert!(epoch == last || epoch == last + 1);
                prop_assert!(position < n);
                last = epoch;
            }
        }
    }

    #[test]
    fn shuffled_epochs_differ_and_shards_agree() {
        let s = spec(1, 0, 1).with(|s| s.order.random_shuffle = true);
        let mut order = Order::new(&s, 100).unwrap();
        let (a, b) = (epoch_of(&mut order, 0), epoch_of(&mut order, 1));
        assert_ne!(a, b);
        assert_ne!(a, (0..100).collect::<Vec<_>>());
        let mut joined = Vec::new();
        for shard in 0..3 {
            let s = spec(3, shard, 1).with(|s| s.order.random_shuffle = true);
            joined.extend(epoch_of(&mut Order::new(&s, 100).unwrap(), 0));
        }
        assert_eq!(joined, a, "the global order doesn't depend on the number of shards");
    }

    #[test]
    fn sticking_keeps_the_shard() {
        let s = spec(4, 1, 1).with(|s| {
            s.order.random_shuffle = true;
            s.order.stick_to_shard = true;
        });
        let mut order = Order::new(&s, 40).unwrap();
        for epoch in 0..3 {
            let mut e = epoch_of(&mut order, epoch);
            e.sort_unstable();
            assert_eq!(e, (10..20).collect::<Vec<_>>());
        }
    }

    #[test]
    fn huge_stores_cost_nothing() {
        let s = spec(7, 3, 16).with(|s| {
            s.order.random_shuffle = true;
            s.order.num_shards = 7;
        });
        for n in [1_000_000_000_000, 1_000_000_000_000_000] {
            let mut order = Order::new(&s, n).unwrap();
            assert!(order.sample(123_456_789_012).index < n);
            let blocks = Blocks::new(&[vec![Run { size: 24, count: n / 48 }, Run { size: n % 24 + n / 2, count: 1 }]]);
            let mut order = Order::by_chunks(&s, blocks).unwrap();
            assert!(order.sample(123_456_789_012).index < n);
        }
    }

    #[test]
    fn contradictions_are_named() {
        let both = spec(1, 0, 1).with(|s| {
            s.order.random_shuffle = true;
            s.order.shuffle_after_epoch = true;
        });
        assert!(Order::new(&both, 5).unwrap_err().message().contains("random_shuffle"));
        assert!(Order::new(&spec(3, 3, 1), 5).unwrap_err().message().contains("shard_id"));
        assert!(Order::new(&spec(6, 0, 1), 5).unwrap_err().message().contains("at most 5 shards"));
        assert!(Order::new(&spec(1, 0, 1), 0).unwrap_err().message().contains("no sample"));
    }
}
