//! Samples that start outside of the region, where padding allows it: the caller of a reader may ask for them by their starts.
//! They aren't among the samples of an epoch, and have numbers of their own, from [`OUTSIDE`] on.

use super::{Axis, DimVec, Geometry, Start};

/// The least number of a sample outside. Numbers of other samples are smaller.
pub const OUTSIDE: u64 = 1 << 62;

/// The starts along one axis that a sample outside may have: those of other samples, then those on the same grid before the
/// region, then those after it.
struct Lattice<'a> {
    axis: &'a Axis,
    /// The first start before the region, and the number of starts there.
    before: (i64, i64),
    /// The same after the region.
    after: (i64, i64),
}

impl<'a> Lattice<'a> {
    fn of(axis: &'a Axis) -> Self {
        let ((from, to), step) = (axis.region(), axis.starts.step());
        // Nobody needs starts that are farther away than the region is long, or a sample.
        let margin = (to - from).max(axis.reach.1 - axis.reach.0);
        let anchor = if axis.starts.count() > 0 { axis.starts.at(0).0 } else { from };
        let above = |least: i64| anchor - (anchor - least).div_euclid(step) * step;
        let grid = |first: i64, end: i64| (first, (end - first + step - 1).div_euclid(step).max(0));
        Self { axis, before: grid(above(from - margin), from), after: grid(above(to), to + margin + 1) }
    }

    fn count(&self) -> u64 {
        self.axis.starts.count().saturating_add(self.before.1).saturating_add(self.after.1) as u64
    }

    /// Returns the number of a start, and whether it lies outside. `None` if no sample starts there.
    fn find(&self, at: i64, segment: Option<usize>) -> Option<(u64, bool)> {
        let (axis, (from, to)) = (self.axis, self.axis.region());
        if let Some(k) = axis.starts.find(at, segment) {
            return Some((k as u64, false));
        }
        let (first, count, skipped) = match at {
            at if at < from => (self.before.0, self.before.1, 0),
            at if at >= to => (self.after.0, self.after.1, self.before.1),
            _ => return None,
        };
        let (step, apart) = (axis.starts.step(), at.checked_sub(first)?);
        let is_start = apart >= 0 && apart % step == 0 && apart / step < count;
        let reads_missing = || {
            let segment = axis.segment(axis.segment_of_start(at));
            axis.missing.as_ref().is_some_and(|missing| missing.is_read(at, segment))
        };
        (is_start && !reads_missing()).then(|| ((axis.starts.count() + skipped + apart / step) as u64, true))
    }

    /// Returns the start with a number, the inverse of [`Self::find`].
    fn at(&self, number: u64) -> Start {
        let (axis, step) = (self.axis, self.axis.starts.step());
        let k = number as i64;
        let Some(rest) = k.checked_sub(axis.starts.count()).filter(|&rest| rest >= 0) else { return axis.start(k) };
        let ((first, count), (later, _)) = (self.before, self.after);
        let at = if rest < count { first + rest * step } else { later + (rest - count) * step };
        Start { at, segment: axis.segment_of_start(at) }
    }
}

impl Geometry {
    /// Returns how many numbers samples outside may have, from [`OUTSIDE`] on; 0 if there are none: without padding, with a table
    /// of starts, which has all of them, with `pad_before` and `pad_after`, which say how far windows reach, and with ragged rows.
    pub fn outside(&self) -> u64 {
        if !self.may_start_outside || self.table.is_some() || self.rows.is_some() || self.draws_starts() {
            return 0;
        }
        let all = self.axes.iter().try_fold(1u64, |n, axis| n.checked_mul(Lattice::of(axis).count()));
        all.filter(|&n| n < OUTSIDE).unwrap_or(0)
    }

    /// Returns the number of the sample with these starts, which may lie outside. With a `segment`, those along the first axis
    /// that aren't outside are its own. `None` if no sample has them.
    pub(super) fn number_of(&self, starts: &[i64], segment: Option<usize>) -> Option<u64> {
        let (mut number, mut outside, mut is_outside) = (0u64, 0u64, false);
        let may_be = self.outside() > 0;
        for (a, (axis, &at)) in self.axes.iter().zip(starts).enumerate() {
            let segment = segment.filter(|_| a == 0);
            if !may_be {
                number = number * axis.count() as u64 + axis.starts.find(at, segment)? as u64;
                continue;
            }
            let lattice = Lattice::of(axis);
            let (k, is_out) = lattice.find(at, segment)?;
            is_outside |= is_out;
            // It is the number of no sample once a start lies outside.
            number = number.wrapping_mul(axis.count() as u64).wrapping_add(k);
            outside = outside * lattice.count() + k;
        }
        Some(if is_outside { OUTSIDE + outside } else { number * self.per_start })
    }

    /// Returns the start of a sample outside, given its number without [`OUTSIDE`].
    pub(super) fn start_outside(&self, number: u64) -> DimVec<Start> {
        let mut rest = number;
        let digit = |axis: &Axis| {
            let lattice = Lattice::of(axis);
            let k = rest % lattice.count();
            rest /= lattice.count();
            lattice.at(k)
        };
        let mut starts: DimVec<Start> = self.axes.iter().rev().map(digit).collect();
        starts.reverse();
        starts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::geometry::ArrayShape;
    use crate::order::Sample;
    use crate::spec::{DimKey, OutOfBounds, Spec};
    use dali_zarr_base::dtype::DType;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn starts_outside_have_numbers_of_their_own(
            lens in (3u64..14, 2u64..7), window in (1i64..5, 1i64..4), steps in (1i64..4, 1i64..3), region in (0i64..3, 0i64..3),
            breaks in prop::collection::btree_set(1i64..10, 0..3), pads in prop::option::of(0i64..3),
            policy in prop::sample::select(vec![OutOfBounds::Drop, OutOfBounds::Pad, OutOfBounds::Edge]),
        ) {
            let array = ArrayShape {
                name: "a".into(), output: "a".into(), dims: vec!["t".into(), "x".into()], unclear: None,
                parts: vec![vec![lens.0, lens.1]], values: DType::F32, aligned: None, places: Vec::new(), stored: "float32".into(), complex_fill_parts_differ: false, ragged: None,
            };
            let spec = Spec::default().with(|s| {
                s.samples.dims = vec![DimKey::parse("t"), DimKey::parse("x")];
                s.samples.window = vec![window.0, window.1].into();
                s.samples.step = vec![steps.0, steps.1].into();
                s.samples.breaks.at = breaks.into_iter().collect();
                s.samples.roi_start = vec![region.0, 0].into();
                s.samples.out_of_bounds_policy = policy;
                if let Some(pad) = pads.filter(|&pad| policy.fills() && pad < window.0) {
                    s.samples.pad_before = vec![pad, 0].into();
                }
            });
            let Ok(geometry) = Geometry::new(&spec, &[array]) else { return Ok(()) };
            let names_segment = geometry.index_len() > 2;
            let may_be = policy.fills() && spec.samples.pad_before.is_empty();
            let mut numbers = std::collections::BTreeSet::new();
            let region = |a: usize| geometry.axes[a].region();
            let anchor = |a: usize| geometry.axes[a].starts.at(0).0;
            for (t, x) in (-30..45).flat_map(|t| (-12..20).map(move |x| (t, x))) {
                let is_out = |a: usize, at: i64| {
                    let ((from, to), axis) = (region(a), &geometry.axes[a]);
                    let margin = (to - from).max(axis.reach.1 - axis.reach.0);
                    !(from..to).contains(&at) && (from - margin..=to + margin).contains(&at) && (at - anchor(a)) % axis.starts.step() == 0
                };
                let segments: Vec<Option<i64>> = if names_segment { (0..4).map(Some).collect() } else { vec![None] };
                for segment in segments {
                    let row: Vec<i64> = segment.into_iter().chain([t, x]).collect();
                    let own = segment.map(|segment| segment as usize);
                    let is_start = |a: usize, at: i64| geometry.axes[a].starts.find(at, own.filter(|_| a == 0)).is_some();
                    let outside = [(0, t), (1, x)].iter().any(|&(a, at)| !is_start(a, at));
                    let is_known = [(0, t), (1, x)].iter().all(|&(a, at)| is_start(a, at) || may_be && is_out(a, at));
                    // A start on the axis's grid may be found by any segment, and has one.
                    let first = &geometry.axes[0];
                    let found_in = first.starts.find(t, own).map_or(first.segment_of_start(t), |k| first.start(k).segment);
                    let is_own = own.is_none_or(|own| own == found_in);
                    let found = geometry.find(&row, |_| None);
                    prop_assert_eq!(found.is_some(), is_known && is_own, "{:?}", row);
                    let Some(number) = found else { continue };
                    prop_assert!(numbers.insert(number));
                    prop_assert_eq!(number >= OUTSIDE, outside);
                    let end = if outside { OUTSIDE + geometry.outside() } else { geometry.samples };
                    prop_assert!(number < end);
                    let start = geometry.start(Sample::new(0, number));
                    prop_assert_eq!(geometry.index(&start).collect::<Vec<_>>(), row);
                }
            }
            prop_assert!(geometry.samples <= numbers.len() as u64);
        }
    }
}
