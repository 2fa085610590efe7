//! The number of a sample, given what the index output says of it: the inverse of [`Geometry::start`] and
//! [`Geometry::index`].

use super::Geometry;
use crate::order::Sample;

impl Geometry {
    /// Returns the number of entries of a sample in the index output, without the number of the store.
    pub fn index_len(&self) -> usize {
        usize::from(self.names_segments && !self.axes.is_empty()) + self.axes.len()
    }

    /// Returns whether starts along some axis are drawn at random, so that they don't tell the sample.
    pub fn draws_starts(&self) -> bool {
        self.axes.iter().any(|axis| axis.random)
    }

    /// Returns the number of the sample with these entries in the index output, without the number of the store. With a table
    /// of starts, `of_table` finds the sample with a start. Otherwise, where elements outside are padded or repeated, the sample
    /// may start outside of the region, and has a number from [`super::OUTSIDE`] on. `None` if there is no such sample.
    ///
    /// # Panics
    /// If starts are drawn at random.
    pub fn find(&self, row: &[i64], of_table: impl Fn(&[i64]) -> Option<u64>) -> Option<u64> {
        assert!(!self.draws_starts(), "a random start doesn't tell the sample");
        if row.len() != self.index_len() {
            return None;
        }
        let (segment, at) = row.split_at(row.len() - self.axes.len());
        let segment = match segment.first() {
            Some(&segment) => Some(usize::try_from(segment).ok()?),
            None => None,
        };
        // What is added to the starts may differ by store.
        let stores = self.index_origins.len().max(1);
        (0..stores).find_map(|store| {
            let origin = |a: usize| self.index_origins.get(store).and_then(|of| of.get(a)).copied().unwrap_or(0);
            let start: Vec<i64> =
                at.iter().enumerate().map(|(a, &at)| at.checked_sub(origin(a))).collect::<Option<_>>()?;
            let number = if let Some(table) = &self.table {
                of_table(&start[..table.columns().min(start.len())])?
            } else {
                self.number_of(&start, segment)?
            };
            // The entries that weren't used must agree too, and the store must be the one whose origin was taken.
            let start = self.start(Sample::new(0, number));
            self.index(&start).eq(row.iter().copied()).then_some(number)
        })
    }

    /// Describes the entries of the index output, for messages.
    pub fn index_names(&self) -> Vec<&str> {
        let segment = (self.index_len() > self.axes.len()).then_some("segment");
        segment.into_iter().chain(self.axes.iter().map(|axis| &*axis.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::geometry::ArrayShape;
    use crate::spec::{DimKey, Spec};
    use dali_zarr_base::dtype::DType;

    fn all(geometry: &Geometry) -> Vec<Vec<i64>> {
        (0..geometry.samples).map(|k| geometry.index(&geometry.start(Sample::new(0, k))).collect()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_sample_is_found_by_its_index(
            lens in (8u64..30, 4u64..9), window in 1i64..5, steps in (1i64..4, 1i64..3), cuts in prop::collection::vec(1i64..8, 0..3),
            pads: bool,
        ) {
            let array = ArrayShape {
                name: "a".into(), output: "a".into(), dims: vec!["t".into(), "x".into()], unclear: None,
                parts: vec![vec![lens.0, lens.1]], values: DType::F32, aligned: None, places: Vec::new(), stored: "float32".into(), complex_fill_parts_differ: false, ragged: None,
            };
            let mut breaks = cuts;
            breaks.sort_unstable();
            breaks.dedup();
            let spec = Spec::default().with(|s| {
                s.samples.dims = vec![DimKey::parse("t"), DimKey::parse("x")];
                s.samples.window = vec![window, 2].into();
                s.samples.step = vec![steps.0, steps.1].into();
                s.samples.breaks.at = breaks;
                if pads {
                    s.samples.out_of_bounds_policy = crate::spec::OutOfBounds::Pad;
                    s.samples.pad_before = vec![window - 1, 0].into();
                }
            });
            let Ok(geometry) = Geometry::new(&spec, &[array]) else { return Ok(()) };
            let rows = all(&geometry);
            for (k, row) in rows.iter().enumerate() {
                prop_assert_eq!(geometry.find(row, |_| None), Some(k as u64));
                let mut other = row.clone();
                *other.last_mut().unwrap() += 1;
                prop_assert_eq!(geometry.find(&other, |_| None), rows.iter().position(|r| *r == other).map(|k| k as u64));
            }
            prop_assert_eq!(geometry.find(&rows[0][1..], |_| None), None);
        }
    }
}
