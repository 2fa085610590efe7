//! Which sample a reader delivers at its k-th place: a function of the spec alone, in O(1) memory.
//!
//! Shard `s` of `S` holds the positions `[N*s/S, N*(s+1)/S)` of one global order, as DALI's readers cut theirs. In its
//! epoch `e` a reader delivers shard `(shard_id + e) % S`, or always `shard_id` if it sticks to it.

mod permutation;

pub use permutation::Permutation;

use crate::error::{Error, Result};
use crate::spec::Spec;

/// Used when the user gives no seed, so that shards in different processes agree.
const DEFAULT_SEED: i64 = 0x5eed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shuffle {
    /// In order.
    No,
    /// A permutation of all samples in every epoch.
    All,
    /// A permutation of all samples in every epoch but the first.
    AllButFirst,
    /// A permutation within the shard, which keeps its samples.
    Shard,
}

/// The order in which one reader delivers samples.
#[derive(Clone, Debug)]
pub struct Order {
    samples: u64,
    shards: u64,
    shard: u64,
    stick: bool,
    /// With `pad_last_batch`: the padded length of an epoch of this reader.
    padded: Option<u64>,
    shuffle: Shuffle,
    seed: u64,
    /// The permutation in use, since consecutive places share it: (epoch, shard) and itself.
    current: Option<(u64, u64, Permutation)>,
}

impl Order {
    /// The order of `samples` samples under `spec`.
    ///
    /// # Errors
    /// If the shard arguments contradict each other, or a shard would be empty.
    pub fn new(spec: &Spec, samples: u64) -> Result<Self> {
        let (shard, shards) = (spec.shard_id, spec.num_shards);
        if shards < 1 {
            return Err(Error::value(format!("num_shards: expected at least 1, found {shards}")));
        }
        if shard < 0 || shard >= shards {
            return Err(Error::value(format!(
                "shard_id: expected a number from 0 to num_shards - 1 = {}, found {shard}",
                shards - 1
            )));
        }
        if spec.shuffle_after_epoch && (spec.random_shuffle || spec.stick_to_shard) {
            let other = if spec.random_shuffle { "random_shuffle" } else { "stick_to_shard" };
            return Err(Error::value(format!(
                "shuffle_after_epoch and {other} contradict each other: give one of them"
            )));
        }
        if samples == 0 {
            return Err(Error::value(
                "the store holds no sample: every window reaches beyond the region of interest; \
                 make window, stride or offsets smaller, or use out_of_bounds_policy=\"pad\"",
            ));
        }
        if samples < shards as u64 {
            return Err(Error::value(format!(
                "num_shards: there are {samples} samples, fewer than the {shards} shards; use at most {samples} shards"
            )));
        }
        if spec.batch_size == 0 {
            return Err(Error::value("batch_size: expected at least 1, found 0"));
        }
        let (shards, batch) = (shards as u64, spec.batch_size as u64);
        let shuffle = match (spec.random_shuffle, spec.shuffle_after_epoch, spec.stick_to_shard) {
            (true, _, true) if shards > 1 => Shuffle::Shard,
            (true, ..) => Shuffle::All,
            (_, true, _) => Shuffle::AllButFirst,
            _ => Shuffle::No,
        };
        let seed = if spec.seed == -1 { DEFAULT_SEED } else { spec.seed };
        Ok(Self {
            samples,
            shards,
            shard: shard as u64,
            stick: spec.stick_to_shard,
            padded: spec.pad_last_batch.then(|| samples.div_ceil(shards).next_multiple_of(batch)),
            shuffle,
            seed: seed as u64,
            current: None,
        })
    }

    /// Samples in an epoch, over all shards.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// First position of a shard; `shard == shards` gives the end of the last.
    fn start(&self, shard: u64) -> u64 {
        (u128::from(self.samples) * u128::from(shard) / u128::from(self.shards)) as u64
    }

    /// The epoch of this reader and the position in the global order of its `k`-th sample.
    pub fn locate(&self, k: u64) -> (u64, u64) {
        let shard_in =
            |epoch: u64| if self.stick { self.shard } else { (self.shard + epoch % self.shards) % self.shards };
        if let Some(padded) = self.padded {
            let (epoch, i) = (k / padded, k % padded);
            let (start, end) = (self.start(shard_in(epoch)), self.start(shard_in(epoch) + 1));
            return (epoch, (start + i).min(end - 1));
        }
        if self.stick {
            let (start, end) = (self.start(self.shard), self.start(self.shard + 1));
            return (k / (end - start), start + k % (end - start));
        }
        // Every `shards` epochs the reader has gone once through all positions, from its own shard's start onwards.
        let (round, r) = (k / self.samples, k % self.samples);
        let position = (self.start(self.shard) + r) % self.samples;
        let shard = ((u128::from(position) + 1) * u128::from(self.shards) - 1) / u128::from(self.samples);
        let epoch = round * self.shards + (shard as u64 + self.shards - self.shard) % self.shards;
        (epoch, position)
    }

    /// The index of this reader's `k`-th sample.
    pub fn sample(&mut self, k: u64) -> u64 {
        let (epoch, position) = self.locate(k);
        let within = match self.shuffle {
            Shuffle::No => return position,
            Shuffle::AllButFirst if epoch == 0 => return position,
            Shuffle::All | Shuffle::AllButFirst => self.shards,
            Shuffle::Shard => self.shard,
        };
        let (start, len) = match self.shuffle {
            Shuffle::Shard => (self.start(within), self.start(within + 1) - self.start(within)),
            _ => (0, self.samples),
        };
        if !matches!(&self.current, Some((e, w, _)) if (*e, *w) == (epoch, within)) {
            let key = permutation::key(&[self.seed, epoch, within]);
            // Over all shards the key must not depend on how many there are.
            let key = if within == self.shards { permutation::key(&[self.seed, epoch]) } else { key };
            self.current = Some((epoch, within, Permutation::new(len, key)));
        }
        let permutation = &self.current.as_ref().expect("just set").2;
        start + permutation.at(position - start)
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
