//! Where the samples along one axis start: a grid of equal distances, without the starts whose windows would cross a
//! break.

/// The starts of samples along one axis. It takes memory for each break, whatever the number of starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starts {
    first: i64,
    step: i64,
    count: i64,
    /// The stretches of the grid without a gap: the number of the first start, and its place in the grid. Ascending.
    runs: Vec<(i64, i64)>,
}

impl Starts {
    /// `count` starts from `first` on.
    pub fn grid(first: i64, step: i64, count: i64) -> Self {
        Self { first, step, count, runs: vec![(0, 0)] }
    }

    /// The starts `first`, `first + step`, ... within `bounds` that read elements of one segment between `bounds` only: a
    /// start `s` reads elements from `s + reach.0` to before `s + reach.1`.
    pub fn within(first: i64, step: i64, reach: (i64, i64), bounds: &[i64]) -> Self {
        let mut all = Self { first, step, count: 0, runs: Vec::new() };
        let last = bounds[bounds.len() - 1] - 1;
        for segment in bounds.windows(2) {
            let least = (segment[0] - reach.0 - first).max(0);
            let most = (segment[1] - reach.1).min(last) - first;
            let from = least / step + i64::from(least % step > 0);
            if most >= 0 && most / step >= from {
                all.runs.push((all.count, from));
                all.count += most / step - from + 1;
            }
        }
        all
    }

    /// How many there are.
    pub fn count(&self) -> i64 {
        self.count
    }

    /// The `k`-th; `k` is less than [`Self::count`].
    pub fn at(&self, k: i64) -> i64 {
        let (number, place) = self.runs[self.runs.partition_point(|run| run.0 <= k) - 1];
        self.first + (place + k - number) * self.step
    }

    /// The stretches of starts at equal distances: how many, and the first.
    pub fn runs(&self) -> impl Iterator<Item = (i64, i64)> {
        let end = |i: usize| self.runs.get(i + 1).map_or(self.count, |next| next.0);
        self.runs.iter().enumerate().map(move |(i, &(number, place))| (end(i) - number, self.first + place * self.step))
    }

    /// The distance between neighbouring starts.
    pub fn step(&self) -> i64 {
        self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn starts_are_those_that_fit(
            cuts in prop::collection::btree_set(0i64..60, 2..8), first in 0i64..20, step in 1i64..7, least in -9i64..9,
            len in 1i64..9,
        ) {
            let bounds: Vec<i64> = cuts.into_iter().collect();
            let first = bounds[0] + first;
            let expected: Vec<i64> = (0..100)
                .map(|i| first + i * step)
                .take_while(|s| s < bounds.last().unwrap())
                .filter(|s| bounds.windows(2).any(|b| b[0] <= s + least && s + least + len <= b[1]))
                .collect();
            let starts = Starts::within(first, step, (least, least + len), &bounds);
            let got: Vec<i64> = (0..starts.count()).map(|k| starts.at(k)).collect();
            prop_assert_eq!(&got, &expected);
            let runs: Vec<i64> = starts.runs().flat_map(|(n, s)| (0..n).map(move |i| s + i * step)).collect();
            prop_assert_eq!(runs, expected);
        }
    }
}
