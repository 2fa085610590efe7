//! A list of sample or block numbers that takes no more memory than the largest number needs.

use dali_zarr_base::random::{GOLDEN, below, mix};

/// A list of numbers: 4 bytes for each where all of them fit, else 8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// All are less than 2^32.
    Short(Vec<u32>),
    /// Some may be larger.
    Long(Vec<u64>),
}

impl Numbers {
    /// Collects `count` numbers less than `end` from an iterator.
    pub fn collect(count: usize, end: u64, numbers: impl Iterator<Item = u64>) -> Self {
        if end <= 1 << 32 {
            let mut short = Vec::with_capacity(count);
            short.extend(numbers.map(|n| n as u32));
            Self::Short(short)
        } else {
            let mut long = Vec::with_capacity(count);
            long.extend(numbers);
            Self::Long(long)
        }
    }

    /// Returns the numbers `0..n` in an order that is fixed by `key` (Fisher and Yates). Takes O(n) memory, unlike
    /// [`super::Permutation`], but is much faster for each number. The order must never change from one version to
    /// another.
    pub fn shuffled(n: u64, key: u64) -> Self {
        let mut all = Self::collect(n as usize, n, 0..n);
        for i in (1..n).rev() {
            let j = below(mix(key.wrapping_add(GOLDEN.wrapping_mul(i))), i + 1);
            match &mut all {
                Self::Short(list) => list.swap(i as usize, j as usize),
                Self::Long(list) => list.swap(i as usize, j as usize),
            }
        }
        all
    }

    /// Returns the bytes that a list of `count` numbers less than `end` takes.
    pub fn bytes_of(count: u64, end: u64) -> u64 {
        count * if end <= 1 << 32 { 4 } else { 8 }
    }

    /// Returns the length of the list.
    pub fn len(&self) -> usize {
        match self {
            Self::Short(list) => list.len(),
            Self::Long(list) => list.len(),
        }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the `i`-th number.
    ///
    /// # Panics
    /// If `i` isn't less than the length.
    pub fn at(&self, i: usize) -> u64 {
        match self {
            Self::Short(list) => u64::from(list[i]),
            Self::Long(list) => list[i],
        }
    }

    /// Returns all numbers in their order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).map(|i| self.at(i))
    }

    /// Returns the bytes of memory that the list takes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Short(list) => 4 * list.capacity() as u64,
            Self::Long(list) => 8 * list.capacity() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dali_zarr_base::random::key;

    #[test]
    fn numbers_are_kept_as_they_are() {
        let short = Numbers::collect(3, 1 << 32, [0, 7, u64::from(u32::MAX)].into_iter());
        let long = Numbers::collect(2, (1 << 32) + 1, [1 << 32, 1].into_iter());
        assert_eq!(short.iter().collect::<Vec<_>>(), [0, 7, u64::from(u32::MAX)]);
        assert_eq!(long.iter().collect::<Vec<_>>(), [1 << 32, 1]);
        assert_eq!((short.bytes(), long.bytes()), (12, 16));
        assert_eq!((Numbers::bytes_of(3, 1 << 32), Numbers::bytes_of(2, (1 << 32) + 1)), (12, 16));
    }

    /// The order must be the same on every platform and in every later version.
    #[test]
    fn golden() {
        let order: Vec<u64> = Numbers::shuffled(12, key(&[42, 0])).iter().collect();
        assert_eq!(order, GOLDEN_ORDER);
        assert!(Numbers::shuffled(0, 1).is_empty());
    }
    const GOLDEN_ORDER: [u64; 12] = [3, 7, 6, 4, 2, 11, 9, 0, 5, 1, 8, 10];

    /// Over many keys every number is equally likely at every place (chi-squared, 5 sigma).
    #[test]
    fn uniform_over_keys() {
        const N: usize = 12;
        const KEYS: u64 = 24_000;
        let mut count = [[0u32; N]; N];
        for k in 0..KEYS {
            for (place, n) in Numbers::shuffled(N as u64, key(&[k, 3])).iter().enumerate() {
                count[place][n as usize] += 1;
            }
        }
        let expected = KEYS as f64 / N as f64;
        let chi2: f64 = count.iter().flatten().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
        let freedom = ((N - 1) * (N - 1)) as f64;
        assert!((chi2 - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "chi2 {chi2} at {freedom} degrees of freedom");
    }
}
