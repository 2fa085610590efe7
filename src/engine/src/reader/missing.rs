//! Dates whose data are declared missing: stores of anemoi-datasets list them in the attribute `missing_dates`, and the
//! dates of the elements are in the array `dates` (`base_dates` for trajectories). Their data are filled with NaN. They
//! are looked up once, when a reader is opened.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::coordinates;
use super::shapes::{by_geometry, shapes};
use super::times::Meaning;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_samples::dataset::{ArrayInfo, ArrayPart, Dataset, MAX_COORDINATES, lone_array, parent_of};
use dali_zarr_samples::geometry::{ArrayShape, FirstDim};
use dali_zarr_samples::spec::{MissingDates, Spec};
use dali_zarr_stores::Store;

/// The arrays that may have the dates.
pub(super) const DATES: [&str; 2] = ["dates", "base_dates"];

/// Returns for each array the elements along the first of `dims` whose data are declared missing: one list for all
/// stores, or one for each store if samples are cut from each on its own. Empty if there are none. Reads nothing unless
/// a store declares some.
///
/// # Errors
/// If a store declares some, but its dates can't be read.
pub(super) fn found(spec: &Spec, dataset: &Dataset) -> Result<Vec<Vec<Vec<i64>>>> {
    let is_declared = |array: &ArrayInfo| array.parts.iter().any(|part| !part.missing_dates.is_empty());
    let has_rows = spec.samples.ragged.is_some() || spec.samples.ragged_ends.is_some();
    let is_kept = spec.samples.missing_dates == MissingDates::Keep && spec.samples.fill_missing.is_none();
    if is_kept || has_rows || !dataset.arrays.iter().any(is_declared) {
        return Ok(Vec::new());
    }
    let shapes = shapes(spec, dataset)?;
    let mut known = HashMap::new();
    by_geometry(spec, dataset, &shapes, |spec, shapes, stores| of_stores(spec, shapes, dataset, stores, &mut known))
}

/// Missing elements by the number of the store and the group of the array.
type Known = HashMap<(usize, String), Vec<i64>>;

/// Returns for each array the missing elements along the joined dimension of these stores, as elements after `pick`.
fn of_stores(
    spec: &Spec,
    shapes: &[ArrayShape],
    dataset: &Dataset,
    stores: Range<usize>,
    known: &mut Known,
) -> Result<Vec<Vec<i64>>> {
    let Some(first) = FirstDim::of(spec, shapes)? else { return Ok(Vec::new()) };
    let mut of_array = |(array, shape): (&ArrayInfo, &ArrayShape)| -> Result<Vec<i64>> {
        // Dates belong to the first dimension of fields.
        if shape.dims.first() != Some(&first.name) {
            return Ok(Vec::new());
        }
        let mut all: Vec<i64> = Vec::new();
        let parts = array.parts.get(stores.clone()).unwrap_or(&array.parts);
        let begins = parts.iter().scan(0u64, |end, part| {
            let begin = *end;
            *end += part.shape[0];
            Some(begin)
        });
        for (part, start) in parts.iter().zip(begins).filter(|(part, _)| !part.missing_dates.is_empty()) {
            let group = part.path().rsplit_once('/').map_or("", |(group, _)| group).to_owned();
            let key = (part.store, group);
            if !known.contains_key(&key) {
                let found = of_part(spec, dataset, array, part, &key.1)?;
                known.insert(key.clone(), found);
            }
            all.extend(known[&key].iter().map(|element| start as i64 + element));
        }
        if let Some(aligned) = &shape.aligned {
            all = aligned.belonging(&all);
        }
        let Some(pick) = &first.pick else { return Ok(all) };
        let is_missing = |(_, at): &(i64, &u64)| all.binary_search(&(**at as i64)).is_ok();
        Ok((0..).zip(pick).filter(is_missing).map(|(i, _)| i).collect())
    };
    dataset.arrays.iter().zip(shapes).map(&mut of_array).collect()
}

/// Returns the missing elements along the first dimension of an array in one store. `group` is the array's group.
fn of_part(spec: &Spec, dataset: &Dataset, array: &ArrayInfo, part: &ArrayPart, group: &str) -> Result<Vec<i64>> {
    let own = &dataset.stores[part.store];
    let wrong = |expected: String, found: String| {
        Error::value(format!(
            "missing_dates: {expected}, since the attribute missing_dates declares that {} are missing, but found {found}; use \
             missing_dates=\"keep\" to read all",
            part.missing_dates.len()
        ))
        .at(Site::store(own.location()))
    };
    let store = match part.is_root() {
        false => Some(Arc::clone(own)),
        true => parent_of(spec, own.location()),
    };
    let find = |store: &Arc<dyn Store>| -> Result<Option<ArrayInfo>> {
        for name in DATES {
            let path = if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") };
            if let Some(found) = lone_array(&**store, &path, false)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    };
    let dim = &array.dims.names[0];
    let expected = format!("expected an array 'dates' with the date of each element along \"{dim}\"");
    let Some((store, dates)) =
        store.map(|store| Ok((find(&store)?, store))).transpose()?.and_then(|(dates, store)| Some((store, dates?)))
    else {
        return Err(wrong(expected, "none beside the array".into()));
    };
    let shape = &dates.parts[0].shape;
    if dates.dims.names.first() != Some(dim) && dates.dims.names.first().is_some_and(|name| name != "dim_0") {
        return Ok(Vec::new());
    }
    if *shape != [part.shape[0]] || shape[0] > MAX_COORDINATES {
        let found = format!("the shape {shape:?} in '{}' and {:?} in '{}'", dates.name, part.shape, array.name);
        return Err(wrong(expected, found));
    }
    let meaning = Meaning::new(dates.units.as_deref(), dates.calendar.as_deref());
    let second = |date: &String| {
        meaning.date(date).ok_or_else(|| {
            wrong(format!("{expected}, and dates in ISO 8601"), format!("{date:?} and {}", meaning.text()))
        })
    };
    let mut missing: Vec<f64> = part.missing_dates.iter().map(second).collect::<Result<_>>()?;
    missing.sort_unstable_by(f64::total_cmp);
    let is_missing = |value: f64| {
        let at = meaning.seconds(value);
        let next = missing.partition_point(|&second| second < at - 0.5);
        missing.get(next).is_some_and(|&second| second < at + 0.5)
    };
    let values = coordinates::read(&store, dates)?;
    Ok((0..).zip(values).filter(|&(_, value)| is_missing(value)).map(|(i, _)| i).collect())
}
