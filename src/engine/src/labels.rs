//! Finds the indices of elements by their coordinates (labels), for `pick`.
//!
//! The coordinates of a dimension are in the array that has the dimension's name. This array is searched in the group
//! of the arrays that have the dimension, then in the groups around it, the nearest first, as in CF and xarray's
//! `DataTree`. Labels are compared with decoded coordinates, whatever `mask_and_scale` says for the reader's own
//! arrays. Each store has its own coordinates.

mod values;

pub use values::{Labels, Values};

use std::collections::HashMap;
use std::sync::Arc;

use crate::reader::coordinates::{nearest, read};
use crate::reader::shapes::shapes;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::stored_type::{float_bits, float_value};
use dali_zarr_samples::dataset::{Dataset, MAX_COORDINATES, each_store, resolved};
use dali_zarr_samples::geometry::{resolve, sample_dims};
use dali_zarr_samples::spec::{DimKey, PerOutput, Pick, Spec};
use dali_zarr_stores::Store;

/// Most coordinates that an error message shows.
const SHOWN: usize = 20;

/// A group with arrays that have the dimension.
struct Group {
    /// The path of the group; empty for the root.
    path: String,
    /// For each array its index in the dataset, and the index of the dimension in the array.
    arrays: Vec<(usize, usize)>,
}

/// The coordinates in one store.
struct Coordinates {
    store: String,
    /// The name of the array with the coordinates.
    array: String,
    /// The type of the decoded coordinates.
    dtype: DType,
    values: Vec<f64>,
}

/// Finds the elements along `dim` whose coordinates are `labels`, and returns their indices in the order of the labels.
/// Only the paths, arrays, dims and store options of `spec` are used. The result has one list of indices for each
/// store. It has a single list if all stores have the same indices and the same length, or if stores are joined along
/// `dim`.
///
/// # Errors
/// If the dimension is unknown, if a store lacks its coordinates, or if a label isn't the coordinate of exactly one
/// element. If stores are joined along `dim`, the elements of all stores count together, otherwise those of each store.
pub fn find(spec: &Spec, dim: &DimKey, labels: &[f64]) -> Result<Pick> {
    let spec = &*resolved(spec, &[])?;
    // Only the shapes of the reader's own arrays are needed, so their attributes aren't decoded.
    let dataset = Dataset::open(&spec.clone().with(|s| s.values.mask_and_scale = PerOutput::one(false)))?;
    let shapes = shapes(spec, &dataset)?;
    let name = resolve(dim, "pick", &shapes)?;
    let is_joined = spec.source.paths.len() > 1 && sample_dims(spec, &shapes)?[0] == name;
    // The array of coordinates, and what was found in it.
    let mut lists: Option<(String, Vec<Vec<i64>>)> = None;
    // The stores after these belong to arrays with a store of their own. Labels don't apply to them.
    let stores = &dataset.stores[..spec.source.paths.len().min(dataset.stores.len())];
    for group in groups(&dataset, stores.len(), &name) {
        let read = |i: usize, store: &Arc<dyn Store>| coordinates(&dataset, i, store, &group, &name);
        let all: Vec<Coordinates> = each_store(stores, read).into_iter().collect::<Result<_>>()?;
        let together = if is_joined { all.len() } else { 1 };
        let mut places: Vec<_> = all.chunks(together).map(|some| places(&name, labels, some)).collect::<Result<_>>()?;
        // One list may stand for all stores only if the dimension has the same length in all of them.
        let is_same =
            |(place, one): (&Vec<i64>, &Coordinates)| *place == places[0] && one.values.len() == all[0].values.len();
        if !is_joined && places.iter().zip(&all).all(is_same) {
            places.truncate(1);
        }
        match &lists {
            None => lists = Some((all[0].array.clone(), places)),
            Some((first, other)) if *other != places => {
                return Err(Error::value(format!(
                    "pick: the labels of dimension \"{name}\" have other indices in array '{first}' than in '{}'; give indices, \
                     or leave out the arrays of one of their groups",
                    all[0].array
                )));
            }
            Some(_) => {}
        }
    }
    let (_, indices) = lists.ok_or_else(|| missing(&name, dataset.stores[0].location()))?;
    Ok(Pick { output: None, dim: dim.clone(), indices })
}

/// Returns the groups that have arrays with the dimension `name`. An array at the root of its store is in no group.
fn groups(dataset: &Dataset, stores: usize, name: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (array, info) in dataset.arrays.iter().enumerate() {
        // An array with a store of its own, beside several stores, has one part.
        let in_group = info.parts.len() >= stores && info.parts.iter().all(|part| !part.is_root());
        let Some(dim) = info.dims.names.iter().position(|d| d == name).filter(|_| in_group) else { continue };
        let path = info.name.trim_matches('/').rsplit_once('/').map_or("", |(group, _)| group);
        match groups.iter_mut().find(|group| group.path == path) {
            Some(group) => group.arrays.push((array, dim)),
            None => groups.push(Group { path: path.to_owned(), arrays: vec![(array, dim)] }),
        }
    }
    groups
}

/// Reads the coordinates of a group's arrays in the store number `i`.
fn coordinates(dataset: &Dataset, i: usize, store: &Arc<dyn Store>, group: &Group, name: &str) -> Result<Coordinates> {
    let len = group.arrays.first().map_or(0, |&(array, dim)| dataset.arrays[array].parts[i].shape[dim]);
    let array = nearest(store, &dataset.path_of(i, &group.path), name, len).map_err(|e| unreadable(name, &e))?;
    let array = array.ok_or_else(|| missing(name, store.location()))?;
    let path = array.name.clone();
    let wrong = |expected: String, found: String| {
        let e = Error::value(format!("expected {expected}, but found {found}"));
        Err(unreadable(name, &e.at(Site::store(store.location()).array(&*path))))
    };
    let shape = &array.parts[0].shape;
    for &(a, dim) in &group.arrays {
        let beside = &dataset.arrays[a];
        let len = beside.parts[i].shape[dim];
        if *shape != [len] {
            let expected = format!("the shape [{len}], with a coordinate for each element of array '{}'", beside.name);
            return wrong(expected, format!("{shape:?}"));
        }
    }
    if shape[0] > MAX_COORDINATES {
        return wrong(format!("at most {MAX_COORDINATES} coordinates"), shape[0].to_string());
    }
    let dtype = array.cf.decoded;
    let values = read(store, array).map_err(|e| unreadable(name, &e))?;
    Ok(Coordinates { store: store.location().to_owned(), array: path, dtype, values })
}

/// Returns the index of each label among the coordinates of these stores, counted over all of them.
fn places(name: &str, labels: &[f64], stores: &[Coordinates]) -> Result<Vec<i64>> {
    // For each label: how often it was found, and the index where it was found first.
    let mut all = vec![(0usize, 0i64); labels.len()];
    let mut start = 0;
    for Coordinates { dtype, values, .. } in stores {
        // A label such as 0.1 means the coordinate 0.1 as the stored type can represent it.
        let keys: Vec<u64> = labels
            .iter()
            .map(|&label| key(if dtype.is_float() { float_value(float_bits(label, *dtype), *dtype) } else { label }))
            .collect();
        let mut found: HashMap<u64, (usize, i64)> = keys.iter().map(|&key| (key, (0, 0))).collect();
        for (i, &value) in values.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
            if let Some((times, at)) = found.get_mut(&key(value)) {
                *at = if *times == 0 { start + i as i64 } else { *at };
                *times += 1;
            }
        }
        for (key, (times, at)) in keys.iter().zip(&mut all) {
            let (more, first) = found[key];
            *at = if *times == 0 { first } else { *at };
            *times += more;
        }
        start += values.len() as i64;
    }
    for (label, (times, _)) in labels.iter().zip(&all) {
        let what = match times {
            1 => continue,
            0 => "isn't a coordinate".to_owned(),
            n => format!("is the coordinate of {n} elements"),
        };
        let place = match stores {
            [one] => format!("in store {}", one.store),
            _ => format!("in the {} stores that are joined along it", stores.len()),
        };
        return Err(Error::value(format!("pick: {label:?} {what} of dimension \"{name}\" {place}: {}", shown(stores))));
    }
    Ok(all.into_iter().map(|(_, at)| at).collect())
}

/// Returns a key for hashing that is equal for equal numbers.
fn key(value: f64) -> u64 {
    // Adding zero turns -0.0 into 0.0.
    (value + 0.0).to_bits()
}

/// Returns the coordinates as text for errors, at most [`SHOWN`] of them.
fn shown(stores: &[Coordinates]) -> String {
    let one = |dtype: DType, value: f64| match dtype {
        DType::F16 | DType::F32 => format!("{:?}", value as f32),
        DType::F64 => format!("{value:?}"),
        _ => format!("{value:.0}"),
    };
    let all = stores.iter().flat_map(|s| s.values.iter().map(|&value| one(s.dtype, value)));
    let mut texts: Vec<String> = all.take(SHOWN + 1).collect();
    if texts.is_empty() {
        return "it has none".into();
    }
    if texts.len() > SHOWN {
        texts[SHOWN] = "...".into();
    }
    texts.join(", ")
}

fn missing(name: &str, location: &str) -> Error {
    Error::value(format!(
        "pick: the labels of dimension \"{name}\" can't be looked up, because store {location} has no array '{name}' with its \
         coordinates beside the arrays; give indices"
    ))
}

fn unreadable(name: &str, error: &Error) -> Error {
    Error::new(
        error.kind(),
        format!(
            "pick: the labels of dimension \"{name}\" can't be looked up, because its coordinates can't be read ({error}); \
             give indices"
        ),
    )
    .with_code(error.code())
}

#[cfg(test)]
mod tests;
