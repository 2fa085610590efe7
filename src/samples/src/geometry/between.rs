//! Values between two elements of an array along the first of `dims`: linear interpolation by labels, of arrays of another
//! rate ([`super::Alignment`]) and of missing data ([`super::filled`]).

use std::collections::HashMap;

/// Two elements of an array, before `pick`, and the weight of the second one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The first element. It is the value if the weight is 0.
    pub low: u64,
    /// The second element.
    pub high: u64,
    /// From 0 to 1.
    pub weight: f64,
}

impl Pair {
    /// Returns the value of one element.
    pub(super) fn one(element: u64) -> Self {
        Self { low: element, high: element, weight: 0.0 }
    }
}

/// A pair for each element along the first of `dims`, after `pick`.
#[derive(Clone, Debug, PartialEq)]
pub struct Between {
    pairs: Vec<Pair>,
}

impl Between {
    /// Makes it of a pair for each element. `None` if each is the value of one element.
    pub(super) fn new(pairs: Vec<Pair>) -> Option<Self> {
        pairs.iter().any(|pair| pair.weight > 0.0).then_some(Self { pairs })
    }

    /// Returns the pair of an element along the first of `dims`.
    pub fn at(&self, at: i64) -> Pair {
        self.pairs[at as usize]
    }

    /// Whether the value of an element along the first of `dims` lies between two.
    pub fn is_between(&self, at: i64) -> bool {
        self.pairs[at as usize].weight > 0.0
    }

    /// All pairs.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Returns the most different elements that the values of a window lie between, over all windows.
    pub(super) fn most(&self, window: usize, stride: usize) -> usize {
        let mut most = 0;
        for first in 0..stride.min(self.pairs.len()) {
            let along: Vec<&Pair> = self.pairs[first..].iter().step_by(stride).collect();
            let mut counts: HashMap<u64, usize> = HashMap::new();
            for (i, pair) in along.iter().enumerate() {
                if pair.weight > 0.0 {
                    [pair.low, pair.high].into_iter().for_each(|of| *counts.entry(of).or_default() += 1);
                }
                if let Some(gone) = i.checked_sub(window).map(|gone| along[gone]).filter(|gone| gone.weight > 0.0) {
                    for of in [gone.low, gone.high] {
                        if let Some(count) = counts.get_mut(&of).filter(|count| **count > 1) {
                            *count -= 1;
                        } else {
                            counts.remove(&of);
                        }
                    }
                }
                most = most.max(counts.len());
            }
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn windows_need_no_more_slots_than_counted(
            pairs in prop::collection::vec((0u64..9, 0u64..9, prop::bool::ANY), 1..40), window in 1usize..9, stride in 1usize..4,
        ) {
            let pairs: Vec<Pair> =
                pairs.into_iter().map(|(low, high, is)| Pair { low, high, weight: if is { 0.25 } else { 0.0 } }).collect();
            let Some(between) = Between::new(pairs.clone()) else { return Ok(()) };
            let of = |first: usize| {
                let all = pairs.iter().skip(first).step_by(stride).take(window).filter(|pair| pair.weight > 0.0);
                all.flat_map(|pair| [pair.low, pair.high]).collect::<std::collections::BTreeSet<_>>().len()
            };
            prop_assert_eq!(between.most(window, stride), (0..pairs.len()).map(of).max().unwrap());
        }
    }
}
