//! The starts of samples from a table: the argument `starts`.
//!
//! A row has the start of a sample along each of `dims`; with `concat="samples"` the number of its store stands in
//! front. Samples have the numbers of their rows. If rows were dropped, the remaining rows are numbered.

use std::sync::Arc;

use super::Axis;
use crate::order::Numbers;
use crate::spec::{Concat, OutOfBounds, Segments, Spec};
use dali_zarr_base::digest::digest;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::table::Table;

/// Maximum distance of a start from the region, in elements. Within it, sums of starts and windows can't overflow.
const MAX_OUTSIDE: i64 = 1 << 40;

/// Samples that start where a table says. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct TableStarts {
    table: Arc<Table<i64>>,
    /// Whether the first column has the numbers of stores.
    names_store: bool,
    /// The rows that are samples; `None`: all.
    kept: Option<Arc<Numbers>>,
    /// Number of samples whose windows reach beyond their segment. The elements there are filled.
    outside: u64,
    /// Number of rows that were dropped because they read elements whose data are declared missing.
    left_out: u64,
}

impl TableStarts {
    /// Makes the samples of `table`, and applies `out_of_bounds_policy` to its rows. `stores` has the axes of all
    /// stores together, or of each store if the table names stores.
    ///
    /// # Errors
    /// If the table doesn't fit the axes or contradicts other arguments; if a row is out of bounds where the policy
    /// forbids it.
    pub(super) fn new(spec: &Spec, stores: &[&[Axis]], table: Arc<Table<i64>>) -> Result<Self> {
        let samples = &spec.samples;
        let others = [
            ("step", samples.step.is_empty()),
            ("overlap", samples.overlap.is_empty()),
            ("random_crop", samples.random_crop.is_empty()),
            ("samples_per_volume", samples.samples_per_volume == 1),
            ("segments", samples.segments == Segments::All),
            ("pad_before", samples.pad_before.is_empty()),
            ("pad_after", samples.pad_after.is_empty()),
        ];
        if let Some((other, _)) = others.into_iter().find(|(_, unused)| !unused) {
            return Err(Error::value(format!(
                "starts, {other}: starts says where samples start, which {other} contradicts; give one of them"
            )));
        }
        let names_store = samples.concat == Concat::Samples;
        // The table may lack the last columns if a single element is selected along their axes.
        let is_single =
            |a: &usize| stores.iter().all(|axes| axes[*a].region().1 - axes[*a].region().0 == axes[*a].spacing);
        let count = stores[0].len();
        let least = count - (1..count).rev().take_while(is_single).count();
        if !(least..=count).contains(&table.columns().saturating_sub(usize::from(names_store))) {
            let names: Vec<&str> = stores[0].iter().take(least).map(|axis| &*axis.name).collect();
            let store = if names_store { " the number of the store (concat=\"samples\") and" } else { "" };
            return Err(Error::value(format!(
                "starts: expected a column for{store} each of dims ({}), but the table has {} columns",
                names.join(", "),
                table.columns()
            )));
        }
        let mut all = Self { table, names_store, kept: None, outside: 0, left_out: 0 };
        let rows = all.table.rows();
        let mut kept: Option<Vec<u64>> = None;
        for row in 0..rows {
            let (store, start) = all.split(row);
            let Some(axes) = usize::try_from(store).ok().and_then(|store| stores.get(store)) else {
                return Err(Error::index(format!(
                    "starts: row {row} is of store {store}, but the stores are numbered from 0 to {}",
                    stores.len() - 1
                )));
            };
            let is_selected = |axis: &Axis, at: i64| is_far(axis, at) || (at - axis.bounds[0]) % axis.spacing == 0;
            if let Some((axis, at)) = axes.iter().zip(start).find(|(axis, at)| !is_selected(axis, **at)) {
                return Err(Error::value(format!(
                    "starts: row {row} starts at {at} along \"{}\", which isn't selected: sel or isel selects every {} elements \
                     from {} on; starts has positions in the store",
                    axis.name, axis.spacing, axis.bounds[0]
                )));
            }
            let reads_missing = |(axis, &at): (&Axis, &i64)| {
                let segment = axis.segment(axis.segment_of_start(at));
                axis.missing.as_ref().is_some_and(|missing| !is_far(axis, at) && missing.is_read(at, segment))
            };
            if axes.iter().zip(start).any(reads_missing) {
                if spec.samples.out_of_bounds_policy == OutOfBounds::Error {
                    return Err(missing(row, &axes[0], start[0]));
                }
                kept.get_or_insert_with(|| (0..row as u64).collect());
                all.left_out += 1;
                continue;
            }
            let find = |is_wrong: fn(&Axis, i64) -> bool| axes.iter().zip(start).position(|(a, &at)| is_wrong(a, at));
            let Some(out) = find(|axis, at| !fits(axis, at)) else {
                kept.iter_mut().for_each(|kept| kept.push(row as u64));
                continue;
            };
            match spec.samples.out_of_bounds_policy {
                OutOfBounds::Error => return Err(outside(row, &axes[out], start[out])),
                OutOfBounds::Drop => {
                    kept.get_or_insert_with(|| (0..row as u64).collect());
                }
                OutOfBounds::Pad | OutOfBounds::Edge => {
                    if let Some(far) = find(is_far) {
                        return Err(too_far(row, &axes[far], start[far]));
                    }
                    all.outside += 1;
                }
            }
        }
        if kept.as_ref().map_or(rows, Vec::len) == 0 {
            return Err(Error::value(match rows {
                0 => "starts: expected at least one row, but the table has none".to_owned(),
                _ => format!(
                    "starts: all {rows} rows reach beyond the region of interest or across a break{}, so there is no sample; \
                     make window, stride or offsets smaller, or use out_of_bounds_policy=\"pad\"{}",
                    if all.left_out > 0 { ", or read dates whose data are missing" } else { "" },
                    if all.left_out > 0 { " or missing_dates=\"keep\"" } else { "" }
                ),
            }));
        }
        all.kept = kept.map(|kept| Arc::new(Numbers::collect(kept.len(), rows as u64, kept.into_iter())));
        Ok(all)
    }

    /// Returns the number of a row's store (0 if rows don't name stores), and its start along each axis.
    fn split(&self, row: usize) -> (i64, &[i64]) {
        match self.table.row(row) {
            [store, start @ ..] if self.names_store => (*store, start),
            start => (0, start),
        }
    }

    fn row(&self, sample: u64) -> usize {
        self.kept.as_ref().map_or(sample, |kept| kept.at(sample as usize)) as usize
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u64 {
        self.kept.as_ref().map_or(self.table.rows(), |kept| kept.len()) as u64
    }

    /// Returns the number of a sample's store; 0 if the table doesn't name stores.
    pub fn store(&self, sample: u64) -> usize {
        self.split(self.row(sample)).0 as usize
    }

    /// Returns the start of a sample along each axis that has a column.
    pub fn start(&self, sample: u64) -> &[i64] {
        self.split(self.row(sample)).1
    }

    /// Returns the number of samples whose windows reach beyond their segment. The elements there are filled.
    pub fn outside(&self) -> u64 {
        self.outside
    }

    /// Returns the number of rows that were dropped because they read elements whose data are declared missing.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the numbers of all samples in the order of their stores and starts, for [`Self::find`]. It takes 8 bytes for each
    /// sample.
    pub fn sorted(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..self.count()).collect();
        numbers.sort_by_key(|&sample| (self.store(sample), self.start(sample)));
        numbers
    }

    /// Returns the first sample of a store that has this start, of those in `sorted` ([`Self::sorted`]); `None` if there is
    /// none. `start` has a value for each axis that has a column.
    pub fn find(&self, sorted: &[u64], store: usize, start: &[i64]) -> Option<u64> {
        let of = |&sample: &u64| (self.store(sample), self.start(sample));
        let at = sorted.partition_point(|sample| of(sample) < (store, start));
        sorted.get(at).copied().filter(|sample| of(sample) == (store, start))
    }

    /// Returns the number of columns of a start.
    pub fn columns(&self) -> usize {
        self.table.columns() - usize::from(self.names_store)
    }

    /// Returns the bytes of memory that the table takes.
    pub fn bytes(&self) -> u64 {
        self.table.bytes() + self.kept.as_ref().map_or(0, |kept| kept.bytes())
    }

    /// Returns a text that identifies all starts by hashes, for checkpoints.
    pub fn described(&self) -> String {
        let hash = self.table.digest();
        match &self.kept {
            None => format!("{} from a table with hash {hash}", self.count()),
            Some(kept) => {
                let rows = digest(kept.iter(), 1);
                format!("{} from a table with hash {hash}, rows with hash {rows}", self.count())
            }
        }
    }
}

/// Whether a start is farther than [`MAX_OUTSIDE`] from the region, which must be a mistake.
fn is_far(axis: &Axis, start: i64) -> bool {
    let (from, to) = axis.region();
    !(from - MAX_OUTSIDE..=to + MAX_OUTSIDE).contains(&start)
}

/// Whether all windows of a sample with this start lie in one segment of the region.
fn fits(axis: &Axis, start: i64) -> bool {
    if is_far(axis, start) {
        return false;
    }
    let (first, last) = axis.room(axis.segment(axis.segment_of_start(start)));
    first <= start && start <= last
}

/// Returns the error for a row whose start is too far from the region under any policy.
fn too_far(row: usize, axis: &Axis, start: i64) -> Error {
    let (from, to) = axis.region();
    Error::value(format!(
        "starts: row {row} starts at {start} along \"{}\", more than 2^40 elements from the region of interest [{from}, {to}); change \
         the row",
        axis.name
    ))
}

/// Returns the error for a row that reads elements whose data are missing, which the policy forbids.
fn missing(row: usize, axis: &Axis, start: i64) -> Error {
    Error::value(format!(
        "starts: row {row} starts at {start} along \"{}\" and reads a date whose data are missing, as align or the store's \
         attribute missing_dates says; change the row, use out_of_bounds_policy \"drop\", or missing_dates=\"keep\"",
        axis.name
    ))
}

/// Returns the error for a row whose windows reach out of bounds, which the policy forbids.
fn outside(row: usize, axis: &Axis, start: i64) -> Error {
    let (from, to) = axis.region();
    let across = if axis.bounds.len() > 2 { " or across a break" } else { "" };
    let (first, end) = (i128::from(start) + i128::from(axis.reach.0), i128::from(start) + i128::from(axis.reach.1));
    Error::value(format!(
        "starts: row {row} starts at {start} along \"{}\" and reads the elements from {first} to before {end}, which reach \
         beyond the region of interest [{from}, {to}){across}; change the row, or use out_of_bounds_policy \"drop\" or \"pad\"",
        axis.name
    ))
}
