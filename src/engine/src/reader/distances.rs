//! Labels along the first of `dims` as numbers that have distances, for interpolation of missing data. They are read once,
//! when a reader is opened.

use std::ops::Range;
use std::sync::Arc;

use super::coordinates;
use super::missing::DATES;
use super::shapes::{by_geometry, shapes};
use super::times::{Comparison, Meaning};
use dali_zarr_base::error::{ErrorKind, Result};
use dali_zarr_samples::dataset::{ArrayInfo, Dataset, MAX_COORDINATES, lone_array};
use dali_zarr_samples::geometry::{ArrayShape, FirstDim};
use dali_zarr_samples::spec::{FillMissing, Spec};
use dali_zarr_stores::Store;

/// Returns the labels along the first of `dims`, after `pick`: seconds for times, and numbers as they are. One list for all
/// stores, or one for each store if samples are cut from each on its own. A list is empty if some elements have no labels,
/// or stores have labels that can't be compared. Empty if nothing is interpolated.
///
/// # Errors
/// If coordinates can't be read.
pub(super) fn found(spec: &Spec, dataset: &Dataset) -> Result<Vec<Vec<f64>>> {
    let has_rows = spec.samples.ragged.is_some() || spec.samples.ragged_ends.is_some();
    if spec.samples.fill_missing != Some(FillMissing::Linear) || has_rows {
        return Ok(Vec::new());
    }
    let shapes = shapes(spec, dataset)?;
    by_geometry(spec, dataset, &shapes, |spec, shapes, stores| of_stores(spec, shapes, dataset, stores))
}

/// Returns the labels along the joined dimension of these stores, after `pick`. Empty if there are none.
fn of_stores(spec: &Spec, shapes: &[ArrayShape], dataset: &Dataset, stores: Range<usize>) -> Result<Vec<f64>> {
    let Some(first) = FirstDim::of(spec, shapes)? else { return Ok(Vec::new()) };
    let (mut all, mut before): (Vec<f64>, Option<Meaning>) = (Vec::new(), None);
    for store in stores.clone() {
        let len = first.len(store - stores.start);
        let Some((store, array)) = beside(spec, shapes, dataset, store, &first.name, len)? else {
            return Ok(Vec::new());
        };
        let meaning = Meaning::new(array.units.as_deref(), array.calendar.as_deref());
        if before.as_ref().is_some_and(|before| matches!(before.compared(&meaning), Comparison::Impossible(..))) {
            return Ok(Vec::new());
        }
        let values = coordinates::read(&store, array)?;
        if values.iter().any(|&value| !value.is_finite() || meaning.is_nat(value)) {
            return Ok(Vec::new());
        }
        all.extend(values.into_iter().map(|value| meaning.seconds(value)));
        before = Some(meaning);
    }
    Ok(match &first.pick {
        Some(pick) => pick.iter().map(|&at| all[at as usize]).collect(),
        None => all,
    })
}

/// Finds the array with the labels of the `len` elements along `dim` in one store: coordinates, or the dates of
/// anemoi-datasets. `None` if there is none.
fn beside(
    spec: &Spec,
    shapes: &[ArrayShape],
    dataset: &Dataset,
    store: usize,
    dim: &str,
    len: u64,
) -> Result<Option<(Arc<dyn Store>, ArrayInfo)>> {
    let own = dataset.arrays.iter().zip(shapes).filter(|(_, shape)| shape.aligned.is_none());
    for (array, _) in own.filter(|(_, shape)| shape.dims.iter().any(|name| name == dim)) {
        let Some(part) = array.parts.get(store).or(array.parts.first()) else { continue };
        if part.is_root() && dataset.parents[part.store].is_none() {
            continue;
        }
        let Some(store) = coordinates::store_with(spec, dataset, part.store) else { continue };
        let group = part.path().rsplit_once('/').map_or("", |(group, _)| group);
        let fits = |found: &ArrayInfo| len <= MAX_COORDINATES && *found.parts[0].shape == [len];
        match coordinates::nearest(&store, group, dim, len) {
            // What can't be numbers.
            Err(e) if e.kind() == ErrorKind::Type => {}
            found => {
                if let Some(found) = found?.filter(fits) {
                    return Ok(Some((store, found)));
                }
            }
        }
        for name in DATES {
            let path = if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") };
            if let Some(found) = lone_array(&*store, &path, false)?.filter(fits) {
                return Ok(Some((store, found)));
            }
        }
    }
    Ok(None)
}
