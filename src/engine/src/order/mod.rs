//! Which sample a reader delivers at its k-th place: a function of the spec alone, in O(1) memory.
//!
//! [`shards`] finds the epoch and the position in the global order, [`shuffle`] the sample that stands there.

mod permutation;
mod shards;
mod shuffle;

pub use permutation::Permutation;

use crate::error::Result;
use crate::spec::Spec;
use shards::Shards;
use shuffle::Shuffle;

/// The order in which one reader delivers samples.
#[derive(Clone, Debug)]
pub struct Order {
    shards: Shards,
    shuffle: Shuffle,
}

impl Order {
    /// The order of `samples` samples under `spec`.
    ///
    /// # Errors
    /// If the shard arguments contradict each other, or a shard would be empty.
    pub fn new(spec: &Spec, samples: u64) -> Result<Self> {
        let shards = Shards::new(spec, samples)?;
        let own = shards.start(shards.shard)..shards.start(shards.shard + 1);
        let shuffle = Shuffle::new(spec, samples, (shards.shard, own))?;
        Ok(Self { shards, shuffle })
    }

    /// Samples in an epoch, over all shards.
    pub fn samples(&self) -> u64 {
        self.shards.samples
    }

    /// Samples that this reader delivers in its first epoch, those that pad it included.
    pub fn epoch_samples(&self) -> u64 {
        self.shards.epoch_samples()
    }

    /// The epoch of this reader and the position in the global order of its `k`-th sample.
    pub fn locate(&self, k: u64) -> (u64, u64) {
        self.shards.locate(k)
    }

    /// The index of this reader's `k`-th sample.
    pub fn sample(&mut self, k: u64) -> u64 {
        let (epoch, position) = self.locate(k);
        self.shuffle.at(epoch, position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(shards: i64, shard: i64, batch: usize) -> Spec {
        Spec { num_shards: shards, shard_id: shard, batch_size: batch, ..Spec::default() }
    }

    /// The samples of one epoch of one reader.
    fn epoch_of(order: &mut Order, epoch: u64) -> Vec<u64> {
        let mut all = Vec::new();
        for k in 0.. {
            match order.locate(k).0.cmp(&epoch) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => all.push(order.sample(k)),
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
                let s = Spec {
                    random_shuffle: mode == 1, shuffle_after_epoch: mode == 2 && !stick,
                    stick_to_shard: stick, pad_last_batch: pad, seed: i64::from(mode), ..spec(shards, shard, batch)
                };
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
            let s = Spec { stick_to_shard: stick, pad_last_batch: pad, ..spec(shards, shard, 4) };
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
        let s = Spec { random_shuffle: true, ..spec(1, 0, 1) };
        let mut order = Order::new(&s, 100).unwrap();
        let (a, b) = (epoch_of(&mut order, 0), epoch_of(&mut order, 1));
        assert_ne!(a, b);
        assert_ne!(a, (0..100).collect::<Vec<_>>());
        let mut joined = Vec::new();
        for shard in 0..3 {
            let s = Spec { random_shuffle: true, ..spec(3, shard, 1) };
            joined.extend(epoch_of(&mut Order::new(&s, 100).unwrap(), 0));
        }
        assert_eq!(joined, a, "the global order doesn't depend on the number of shards");
    }

    #[test]
    fn sticking_keeps_the_shard() {
        let s = Spec { random_shuffle: true, stick_to_shard: true, ..spec(4, 1, 1) };
        let mut order = Order::new(&s, 40).unwrap();
        for epoch in 0..3 {
            let mut e = epoch_of(&mut order, epoch);
            e.sort_unstable();
            assert_eq!(e, (10..20).collect::<Vec<_>>());
        }
    }

    #[test]
    fn huge_stores_cost_nothing() {
        let s = Spec { random_shuffle: true, num_shards: 7, ..spec(7, 3, 16) };
        let mut order = Order::new(&s, 1_000_000_000_000_000).unwrap();
        assert!(order.sample(123_456_789_012) < 1_000_000_000_000_000);
    }

    #[test]
    fn contradictions_are_named() {
        let both = Spec { random_shuffle: true, shuffle_after_epoch: true, ..spec(1, 0, 1) };
        assert!(Order::new(&both, 5).unwrap_err().message().contains("random_shuffle"));
        assert!(Order::new(&spec(3, 3, 1), 5).unwrap_err().message().contains("shard_id"));
        assert!(Order::new(&spec(6, 0, 1), 5).unwrap_err().message().contains("at most 5 shards"));
        assert!(Order::new(&spec(1, 0, 1), 0).unwrap_err().message().contains("no sample"));
    }
}
