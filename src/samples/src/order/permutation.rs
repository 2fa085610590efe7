//! A pseudo-random permutation of `0..n` that is computed by position, in O(1) memory.
//!
//! The construction is the swap-or-not shuffle (Hoang, Morris, Rogaway, CRYPTO 2012): in each round `x` meets the partner
//! `k - x mod n`, and one pseudo-random bit, a function of the pair, says whether they change places. It works on any
//! `n` directly, small ones included, and every round is an involution, so each position appears exactly once whatever
//! the bits are. Nothing here may change from version to version: orders are part of what checkpoints mean.

use std::hint::select_unpredictable;

use dali_zarr_base::random::{GOLDEN, below, mix};

/// Number of neighbouring positions that are computed together. Each round of a position waits for the round before, so
/// four positions take little longer than one.
const TOGETHER: u64 = 4;

/// A permutation of `0..n`, fixed by its key.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    /// One partner constant and one bit key per round.
    rounds: Vec<(u64, u64)>,
    /// Where the last computed positions `first..first + TOGETHER` go, as `(first, results)`.
    computed: Option<(u64, [u64; TOGETHER as usize])>,
}

impl Permutation {
    /// Makes the permutation of `0..n` that belongs to `key`.
    pub fn new(n: u64, key: u64) -> Self {
        let bits = u64::from(u64::BITS - n.leading_zeros());
        // The distance from a random permutation shrinks by a constant factor per round; 6 log2 n rounds and some more
        // leave nothing that the tests of uniformity can see, and cost well under a microsecond.
        let rounds = (0..24 + 6 * bits)
            .map(|round| {
                let k = mix(key.wrapping_add(GOLDEN.wrapping_mul(2 * round + 1)));
                (below(k, n.max(1)), mix(key ^ mix(GOLDEN.wrapping_mul(2 * round + 2))))
            })
            .collect();
        Self { n, rounds, computed: None }
    }

    /// Returns where position `x` goes, which must be less than `n`. Fastest for positions in order.
    pub fn at(&mut self, x: u64) -> u64 {
        debug_assert!(x < self.n);
        if x.is_multiple_of(TOGETHER) {
            self.computed = Some((x, self.from(x)));
        }
        match self.computed {
            Some((first, these)) if x - x % TOGETHER == first => these[(x - first) as usize],
            _ => self.from::<1>(x)[0],
        }
    }

    /// Returns where `N` positions from `first` on go. Positions beyond the last one go where the last one goes.
    fn from<const N: usize>(&self, first: u64) -> [u64; N] {
        let mut at = std::array::from_fn(|i| (first + i as u64).min(self.n - 1));
        for &(k, bit_key) in &self.rounds {
            for x in &mut at {
                // No branches: the processor would predict every second one wrongly.
                let apart = k.wrapping_sub(*x);
                let partner = select_unpredictable(*x <= k, apart, apart.wrapping_add(self.n));
                let larger = select_unpredictable(*x < partner, partner, *x);
                *x = select_unpredictable(mix(larger ^ bit_key) & 1 == 1, partner, *x);
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dali_zarr_base::random::key;

    #[test]
    fn each_position_once() {
        for n in (1..130).chain([1000, 4097]) {
            for k in 0..3 {
                let mut p = Permutation::new(n, key(&[k, 1]));
                let mut seen = vec![false; n as usize];
                for x in 0..n {
                    assert!(!std::mem::replace(&mut seen[p.at(x) as usize], true), "n={n}");
                }
            }
        }
    }

    #[test]
    fn in_any_order_the_same() {
        for n in [1, 3, 4, 7, 130, 4097] {
            let new = || Permutation::new(n, key(&[n, 1]));
            let (mut forwards, mut backwards, mut jumps) = (new(), new(), new());
            let in_order: Vec<u64> = (0..n).map(|x| forwards.at(x)).collect();
            assert!((0..n).rev().all(|x| backwards.at(x) == in_order[x as usize]), "n={n}");
            assert!((0..n).map(|i| i * 61 % n).all(|x| jumps.at(x) == in_order[x as usize]), "n={n}");
        }
    }

    /// The order must be the same on every platform and in every later version.
    #[test]
    fn golden() {
        let mut p = Permutation::new(10, key(&[42, 0]));
        let mut q = Permutation::new(1_000_000_000_000, key(&[42, 1]));
        let got: Vec<u64> = (0..10).map(|x| p.at(x)).chain((0..3).map(|x| q.at(x))).collect();
        assert_eq!(got, GOLDEN_ORDER);
    }
    const GOLDEN_ORDER: [u64; 13] = [9, 2, 3, 7, 4, 8, 5, 0, 6, 1, 580_007_519_859, 575_698_394_249, 547_856_300_560];

    /// Over many keys every position is equally likely at every place (chi-squared, 5 sigma).
    #[test]
    fn uniform_over_keys() {
        const N: usize = 12;
        const KEYS: u64 = 24_000;
        let mut count = [[0u32; N]; N];
        for k in 0..KEYS {
            let mut p = Permutation::new(N as u64, key(&[k, 7]));
            for (x, row) in count.iter_mut().enumerate() {
                row[p.at(x as u64) as usize] += 1;
            }
        }
        let expected = KEYS as f64 / N as f64;
        let chi2: f64 = count.iter().flatten().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
        let freedom = ((N - 1) * (N - 1)) as f64;
        assert!((chi2 - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "chi2 {chi2} at {freedom} degrees of freedom");
    }

    /// Neighbours land independently: the mean distance of a random pair is n/3.
    #[test]
    fn neighbours_are_torn_apart() {
        for n in [100_000u64, 1_000_000_000_000] {
            let mut p = Permutation::new(n, key(&[3, 9]));
            let distances: Vec<f64> = (1..50_000).map(|x| p.at(x).abs_diff(p.at(x - 1)) as f64 / n as f64).collect();
            let mean = distances.iter().sum::<f64>() / distances.len() as f64;
            assert!((mean - 1.0 / 3.0).abs() < 0.01, "{mean}");
            let near = distances.iter().filter(|&&d| d < 0.05).count() as f64 / distances.len() as f64;
            assert!((near - 0.0975).abs() < 0.01, "{near} of the neighbours are nearer than a twentieth");
        }
    }
}
