//! Breaks that follow from values in the stores: from arrays with ends of segments, and from coordinates that aren't
//! evenly spaced. They are read once, when a reader is opened.

use std::ops::Range;
use std::sync::Arc;

use super::coordinates;
use super::rows::integers;
use super::shapes::{by_geometry, shapes};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_samples::dataset::{ArrayInfo, Dataset, LoneArray, MAX_COORDINATES, each_store, lone_array};
use dali_zarr_samples::geometry::{ArrayShape, FirstDim, Rows, merged};
use dali_zarr_samples::spec::{Spec, is_location};
use dali_zarr_stores::Store;

/// Reads the breaks that arrays in the stores define. Returns one list for all stores, or one for each store if samples
/// are cut from each on its own. The breaks are elements of the first of `dims`. If samples are `rows`, they count
/// rows.
pub(super) fn found(spec: &Spec, dataset: &Dataset, rows: Option<&Rows>) -> Result<Vec<Vec<i64>>> {
    if let Some(location) = spec.samples.breaks.ends.iter().find(|name| is_location(name))
        && spec.source.paths.len() > 1
    {
        return Err(Error::value(format!(
            "breaks: expected the name of an array relative to path, since each of the {} stores there has segments of its own, but \
             found the location {location}",
            spec.source.paths.len()
        )));
    }
    let shapes = shapes(spec, dataset)?;
    let shapes = rows.map_or_else(|| Ok(shapes.clone()), |rows| rows.shapes(spec, &shapes))?;
    by_geometry(spec, dataset, &shapes, |spec, shapes, stores| of_stores(spec, shapes, dataset, stores))
}

/// Returns the breaks along the joined dimension of these stores, as elements after `pick`.
fn of_stores(spec: &Spec, shapes: &[ArrayShape], dataset: &Dataset, stores: Range<usize>) -> Result<Vec<i64>> {
    let Some(first) = FirstDim::of(spec, shapes)? else {
        return Err(Error::value(match spec.source.is_grouped() {
            true => {
                "breaks: expected dims or window with it, since each group is one sample without them; leave breaks out"
            }
            false => {
                "breaks: expected an array with dimensions, but none has one, so that there is one sample; leave breaks out"
            }
        }));
    };
    let mut breaks = Vec::new();
    for name in &spec.samples.breaks.ends {
        if is_location(name) {
            breaks = merged(&breaks, &between(own_ends(spec, name, &first)?, &first));
            continue;
        }
        let read = |i: usize, store: &Arc<dyn Store>| -> Result<Vec<i64>> {
            let len = first.len(i);
            let mut ends = ends(store, &dataset.path_of(stores.start + i, name), len)?;
            // The store's end is the end of a segment too: of the elements after the last end. It must also stand
            // before an empty segment at the start of the next store.
            if !spec.samples.cross_stores && ends.last() != Some(&(len as i64)) {
                ends.push(len as i64);
            }
            Ok(ends)
        };
        let all: Vec<Vec<i64>> =
            each_store(&dataset.stores[stores.clone()], read).into_iter().collect::<Result<_>>()?;
        let joined =
            all.iter().zip(&first.stores).flat_map(|(ends, &start)| ends.iter().map(move |end| start as i64 + end));
        breaks = merged(&breaks, &between(joined.collect(), &first));
    }
    if spec.samples.breaks.auto {
        breaks = merged(&breaks, &uneven(spec, dataset, stores, &first)?);
    }
    Ok(breaks)
}

/// Turns ends of segments into breaks: the elements before which one segment ends and another begins. If there are
/// empty segments at a break, it comes several times. With `pick`, breaks lie between picked elements, and empty
/// segments don't count.
fn between(mut ends: Vec<i64>, first: &FirstDim) -> Vec<i64> {
    match &first.pick {
        None => {
            // The end of the last segment is no break.
            ends.pop_if(|end| *end == first.stores[first.stores.len() - 1] as i64);
            ends
        }
        Some(pick) => {
            let segment = |&at: &u64| ends.partition_point(|&end| end <= at as i64);
            let borders = pick.windows(2).enumerate().filter(|(_, two)| segment(&two[0]) != segment(&two[1]));
            borders.map(|(i, _)| i as i64 + 1).collect()
        }
    }
}

/// Returns the number of elements of an array, which must have one dimension and at most [`MAX_COORDINATES`] elements.
fn length(store: &Arc<dyn Store>, array: &ArrayInfo) -> Result<u64> {
    match array.parts[0].shape[..] {
        [len] if len <= MAX_COORDINATES => Ok(len),
        ref shape => Err(Error::value(format!(
            "breaks: expected one dimension of at most {MAX_COORDINATES} elements, but found the shape {shape:?}"
        ))
        .at(Site::store(store.location()).array(&*array.name))),
    }
}

/// Reads the ends of segments from an array that has a store of its own.
fn own_ends(spec: &Spec, location: &str, first: &FirstDim) -> Result<Vec<i64>> {
    let LoneArray { store, array, .. } = LoneArray::open(spec, location, false).map_err(|e| e.within("breaks"))?;
    ends_in(&store, array, first.len(0))
}

/// Reads the ends of the segments of one store. The dimension has length `len` in it.
fn ends(store: &Arc<dyn Store>, name: &str, len: u64) -> Result<Vec<i64>> {
    let Some(array) = lone_array(&**store, name, false)? else {
        return Err(Error::value(format!(
            "breaks: expected \"auto\", or an array with the ends of segments, but found no array '{name}'"
        ))
        .at(Site::store(store.location())));
    };
    ends_in(store, array, len)
}

/// Reads ends of segments from an array. They must be from 0 to `len` and not descend. An end that is repeated belongs
/// to a segment without elements.
fn ends_in(store: &Arc<dyn Store>, array: ArrayInfo, len: u64) -> Result<Vec<i64>> {
    let site = Site::store(store.location()).array(&*array.name);
    let wrong = |found: String| {
        let e = Error::value(format!(
            "breaks: expected ends of segments, whole numbers from 0 to {len} in ascending order, but found {found}"
        ));
        e.at(site.clone())
    };
    if array.dtype.is_float() || array.dtype == DType::Bool {
        return Err(wrong(format!("values of the type {}", array.dtype)));
    }
    let (count, is_unsigned) = (length(store, &array)?, array.dtype == DType::U64);
    let mut bits = Vec::new();
    if count > 0 {
        integers(store, array, count, 1, &mut bits)?;
    }
    let mut before = 0;
    let one = |(i, bits): (usize, u64)| {
        let end = if is_unsigned { i128::from(bits) } else { i128::from(bits.cast_signed()) };
        if end < i128::from(before) || end > i128::from(len) {
            let after = if i == 0 { String::new() } else { format!(" after {before}") };
            return Err(wrong(format!("{end}{after} at element {i}")));
        }
        before = end as i64;
        Ok(before)
    };
    bits.into_iter().enumerate().map(one).collect()
}

/// Returns the elements whose coordinate has an unusual distance from the coordinate before.
fn uneven(spec: &Spec, dataset: &Dataset, stores: Range<usize>, first: &FirstDim) -> Result<Vec<i64>> {
    let name = &first.name;
    // Returns the coordinates beside the first array that has some. Beside an array that is a store of its own, there
    // are only those of the location around it.
    let beside = |i: usize| -> Result<Option<(Arc<dyn Store>, ArrayInfo)>> {
        for array in dataset.arrays.iter().filter(|array| array.dims.names.contains(name)) {
            let Some(part) = array.parts.get(stores.start + i) else { continue };
            let is_around = dataset.parents[part.store].is_some();
            if part.is_root() && !is_around {
                continue;
            }
            let Some(store) = coordinates::store_with(spec, dataset, part.store) else { continue };
            let group = part.path().rsplit_once('/').map_or("", |(group, _)| group);
            if let Some(found) = coordinates::nearest(&store, group, name, first.len(i))? {
                return Ok(Some((store, found)));
            }
        }
        Ok(None)
    };
    let read = |i: usize, store: &Arc<dyn Store>| {
        let Some((store, array)) = beside(i)? else {
            return Err(Error::value(format!(
                "breaks: \"auto\" needs the coordinates along \"{name}\", but there is no array '{name}' beside the arrays or in a \
                 group above; give the breaks"
            ))
            .at(Site::store(store.location())));
        };
        if array.parts[0].shape != [first.len(i)] {
            return Err(Error::value(format!(
                "breaks: expected a coordinate for each of the {} elements along \"{name}\", but found the shape {:?}",
                first.len(i),
                array.parts[0].shape
            ))
            .at(Site::store(store.location()).array(&*array.name)));
        }
        length(&store, &array)?;
        let (decoded, name) = (array.cf.decoded, array.name.clone());
        let found = coordinates::read(&store, array)?;
        // `check_in_step` accepts missing coordinates that are stored as equal numbers. Here they are refused: a number
        // that means "missing" has no distance from its neighbours. Taken for a coordinate, it would make breaks, or
        // hide them.
        if let Some(at) = found.iter().position(|value| value.is_nan()) {
            return Err(Error::value(format!(
                "breaks: \"auto\" needs a coordinate for each element, but that of element {at} is missing (NaN, or the value that \
                 stands for missing ones: _FillValue, or the fill_value of Zarr v2); give the breaks"
            ))
            .at(Site::store(store.location()).array(&*name)));
        }
        Ok((decoded, found))
    };
    let all: Vec<(DType, Vec<f64>)> =
        each_store(&dataset.stores[stores.clone()], read).into_iter().collect::<Result<_>>()?;
    let dtype = all[0].0;
    let mut coordinates: Vec<f64> = all.into_iter().flat_map(|(_, values)| values).collect();
    if let Some(pick) = &first.pick {
        coordinates = pick.iter().map(|&at| coordinates[at as usize]).collect();
    }
    Ok(gaps(&coordinates, dtype))
}

/// Returns the elements after an unusual distance, for [`uneven`]. Distances count as equal if they differ only by
/// rounding.
fn gaps(coordinates: &[f64], dtype: DType) -> Vec<i64> {
    let apart = |two: &[f64]| two[1] - two[0];
    let largest = coordinates.iter().filter(|c| c.is_finite()).fold(0.0f64, |most, c| most.max(c.abs()));
    let rounding = match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::F32 => f64::from(f32::EPSILON) / 2.0,
        // Whole numbers up to 2^53 are exact.
        _ if !dtype.is_float() && largest < 2f64.powi(53) => 0.0,
        _ => f64::EPSILON / 2.0,
    };
    // Two distances come from four coordinates, and each of these is rounded.
    let tolerance = 4.0 * rounding * largest;
    let mut sorted: Vec<f64> = coordinates.windows(2).map(apart).filter(|d| d.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    // Finds the largest group of distances that are equal except for rounding. Of equally large groups, it is the one
    // with the smallest distances.
    let (mut from, mut best) = (0, 0..0);
    for (to, difference) in sorted.iter().enumerate() {
        while difference - sorted[from] > tolerance {
            from += 1;
        }
        if to + 1 - from > best.len() {
            best = from..to + 1;
        }
    }
    let Some(&usual) = sorted.get(best.start + best.len() / 2) else { return Vec::new() };
    let is_gap = |two: &[f64]| {
        let differs = (apart(two) - usual).abs();
        differs > tolerance || differs.is_nan()
    };
    coordinates.windows(2).enumerate().filter(|(_, two)| is_gap(two)).map(|(i, _)| i as i64 + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_where_the_distance_is_unusual() {
        for (coordinates, dtype, expected) in [
            (vec![], DType::I64, vec![]),
            (vec![3.0], DType::I64, vec![]),
            (vec![3.0, 9.0], DType::I64, vec![]),
            (vec![0.0, 1.0, 2.0, 9.0, 10.0, 10.0, 11.0], DType::I64, vec![3, 5]),
            // Two distances are equally common: the smaller one is the usual one.
            (vec![0.0, 2.0, 3.0, 5.0, 6.0], DType::I64, vec![1, 3]),
            (vec![5.0, 4.0, 3.0, 7.0, 6.0, f64::NAN, 4.0], DType::F64, vec![3, 5, 6]),
            ((0..50).map(|i| f64::from(i + i / 20 * 7) * 0.1).collect(), DType::F64, vec![20, 40]),
            ((0..50).map(|i| f64::from((i + i / 30) as f32 * 0.1)).collect(), DType::F32, vec![30]),
            (
                (0..9).map(|i| (1_600_000_000_000_000_000i64 + 3_600_000_000_003 * (i + i / 4)) as f64).collect(),
                DType::I64,
                vec![4, 8],
            ),
        ] {
            assert_eq!(gaps(&coordinates, dtype), expected, "{coordinates:?}");
        }
    }
}
