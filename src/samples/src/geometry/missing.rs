//! Elements along the first of `dims` whose data are declared missing. Samples that would read one aren't samples.

use super::cuts::Cut;
use super::starts::{Starts, above};
use crate::spec::{OutOfBounds, Spec};
use dali_zarr_base::error::{Error, Result};

/// Limit on the single starts that are left out one by one, because windows have a stride.
const MAX_SINGLE: usize = 1 << 26;

/// What samples read along the first axis of the arrays that have missing elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// How each of these arrays is cut, and its missing elements in ascending order.
    arrays: Vec<(Cut, Vec<i64>)>,
    offsets: Vec<i64>,
    /// The distance of the elements that samples may touch.
    spacing: i64,
    /// Whether elements outside of a segment repeat its first and its last element.
    repeats_edges: bool,
}

impl Missing {
    /// Makes it from the cuts of all arrays, each with its missing elements; `None` if no array has any.
    pub(super) fn new(spec: &Spec, spacing: i64, arrays: impl Iterator<Item = (Cut, Vec<i64>)>) -> Option<Self> {
        let arrays: Vec<_> = arrays.filter(|(_, elements)| !elements.is_empty()).collect();
        let offsets = if spec.samples.offsets.is_empty() { vec![0] } else { spec.samples.offsets.clone() };
        let repeats_edges = spec.samples.out_of_bounds_policy == OutOfBounds::Edge;
        (!arrays.is_empty()).then_some(Self { arrays, offsets, spacing, repeats_edges })
    }

    /// Returns the number of different missing elements from `from` to before `to`.
    pub(super) fn count(&self, from: i64, to: i64) -> usize {
        let mut all: Vec<i64> =
            self.arrays.iter().flat_map(|(_, elements)| within(elements, from, to)).copied().collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }

    /// Whether a sample that starts at `start` and belongs to the segment from `from` to before `to` reads a missing
    /// element.
    pub(super) fn is_read(&self, start: i64, (from, to): (i64, i64)) -> bool {
        self.each(from, to).any(|(cut, elements, offset)| {
            let first = start + offset;
            let last = first + (cut.window - 1) * cut.stride;
            let mut inside = within(elements, first.max(from), last.saturating_add(1).min(to)).iter();
            inside.any(|element| (element - first) % cut.stride == 0)
                || first < from && self.is_at_edge(elements, from)
                || last >= to && self.is_at_edge(elements, to - self.spacing)
        })
    }

    /// Returns the starts at which no missing element is read. Their segments must be recorded; `bounds` has the bounds
    /// of these.
    ///
    /// # Errors
    /// If there are more single starts than [`MAX_SINGLE`] to leave out.
    pub(super) fn without(&self, starts: &Starts, bounds: &[i64]) -> Result<Starts> {
        let mut all = Starts::none(starts.step());
        let mut single = 0;
        for ((n, first), segment) in starts.runs().zip(starts.segments()) {
            let segment = segment.expect("each start has a segment");
            let (from, to) = (bounds[segment], bounds[segment + 1]);
            let last = first + (n - 1) * starts.step();
            let mut out: Vec<(i64, i64)> = Vec::new();
            for (cut, elements, offset) in self.each(from, to) {
                let reach = (cut.window - 1) * cut.stride;
                for &element in elements {
                    // The windows whose first element is `element` begin at `at`.
                    let at = element - offset;
                    if cut.stride == 1 {
                        out.push((at - reach, at));
                        continue;
                    }
                    let least = ((at - last).max(0) + cut.stride - 1) / cut.stride;
                    let most = ((at - first).div_euclid(cut.stride)).min(cut.window - 1);
                    single += usize::try_from((most - least + 1).max(0)).unwrap_or(usize::MAX);
                    if single > MAX_SINGLE {
                        return Err(Error::value(format!(
                            "missing_dates: expected at most {MAX_SINGLE} samples that read missing dates with a stride, but found \
                             more; use missing_dates=\"keep\", or a stride of 1"
                        )));
                    }
                    out.extend((least..=most).map(|k| (at - k * cut.stride, at - k * cut.stride)));
                }
                if self.is_at_edge(elements, from) {
                    out.push((first, from - offset - 1));
                }
                if self.is_at_edge(elements, to - self.spacing) {
                    out.push((to - offset - reach, last));
                }
            }
            out.sort_unstable();
            let mut next = first;
            for (least, most) in out {
                all.push(next, (least - 1).min(last), segment);
                next = next.max(above(most + 1, first, starts.step()));
            }
            all.push(next, last, segment);
        }
        Ok(all)
    }

    /// Returns each cut with its missing elements in a segment, and each offset.
    fn each(&self, from: i64, to: i64) -> impl Iterator<Item = (&Cut, &[i64], i64)> {
        let of =
            move |(cut, elements)| self.offsets.iter().map(move |&offset| (cut, within(elements, from, to), offset));
        self.arrays.iter().map(|(cut, elements)| (cut, elements.as_slice())).flat_map(of)
    }

    fn is_at_edge(&self, elements: &[i64], edge: i64) -> bool {
        self.repeats_edges && elements.binary_search(&edge).is_ok()
    }
}

/// Returns the elements from `from` to before `to`.
fn within(elements: &[i64], from: i64, to: i64) -> &[i64] {
    let at = |bound: i64| elements.partition_point(|&element| element < bound);
    &elements[at(from)..at(to.max(from))]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        /// Both ways to find samples agree with a look at every element.
        #[test]
        fn samples_that_read_missing_elements_are_left_out(
            cuts in prop::collection::vec((1i64..5, 1i64..4, prop::collection::btree_set(0i64..40, 0..6)), 1..3),
            mut bounds in prop::collection::vec(0i64..40, 2..6), step in 1i64..4, pad in 0i64..6,
            offsets in prop::collection::vec(-6i64..6, 1..3), edges: bool,
        ) {
            bounds.sort_unstable();
            let arrays: Vec<_> = cuts.into_iter().map(|(window, stride, elements)| {
                (Cut { window, dropped: false, stride, scaled: None }, elements.into_iter().collect::<Vec<_>>())
            }).collect();
            let missing = Missing { arrays, offsets, spacing: 1, repeats_edges: edges };
            let starts = Starts::each(step, (0, 1), (pad, pad), &bounds);
            let left: Vec<_> = {
                let left = missing.without(&starts, &bounds).unwrap();
                (0..left.count()).map(|k| left.at(k)).collect()
            };
            let mut expected = Vec::new();
            for (start, segment) in (0..starts.count()).map(|k| starts.at(k)) {
                let (from, to) = (bounds[segment.unwrap()], bounds[segment.unwrap() + 1]);
                let is_read = missing.arrays.iter().any(|(cut, elements)| {
                    missing.offsets.iter().any(|offset| (0..cut.window).any(|k| {
                        let at = start + offset + k * cut.stride;
                        let at = if edges { at.clamp(from, to - 1) } else { at };
                        (from..to).contains(&at) && elements.contains(&at)
                    }))
                });
                prop_assert_eq!(missing.is_read(start, (from, to)), is_read, "{}", start);
                if !is_read {
                    expected.push((start, segment));
                }
            }
            prop_assert_eq!(left, expected);
        }
    }
}
