//! Sentences for the log about a dataset: what a user may not expect of its values, its dates and its shape.

use std::collections::BTreeMap;

use crate::chunk_index::ChunkIndex;
use dali_zarr_base::error::Site;
use dali_zarr_samples::dataset::{ArrayInfo, Dataset};
use dali_zarr_samples::plan::Planner;
use dali_zarr_samples::spec::Spec;

/// Returns a sentence for the log with the arrays that are decoded because `mask_and_scale` is left out; `None` if
/// there are none.
pub(super) fn decoded_by_default(spec: &Spec, dataset: &Dataset) -> Option<String> {
    let decoded = dataset
        .arrays
        .iter()
        .enumerate()
        .filter(|(i, a)| a.decoded && spec.values.mask_and_scale.of(&a.output, *i).is_none());
    let mut names: Vec<_> = decoded.map(|(_, a)| format!("'{}'", a.name)).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| {
        format!(
            "{}: decoded as xarray does it, since they have scale_factor or add_offset and mask_and_scale is left out: {}",
            Site::stores(&spec.source.locations()),
            names.join(", ")
        )
    })
}

/// Returns a sentence for each array whose metadata name missing values, but which stays as stored because
/// `mask_and_scale` is left out.
pub(crate) fn unmasked(dataset: &Dataset) -> impl Iterator<Item = String> {
    let is_first = |(i, array): &(usize, &ArrayInfo)| dataset.arrays[..*i].iter().all(|other| other.name != array.name);
    dataset.arrays.iter().enumerate().filter(is_first).filter_map(|(_, array)| {
        let (part, named) = array.parts.iter().find_map(|part| Some((part, part.unmasked.as_ref()?)))?;
        Some(format!(
            "{}: stays as stored, though {named}: mask_and_scale=True makes them \
             NaN, as xarray does it; mask_and_scale=False keeps them without this warning",
            Site::store(dataset.stores[part.store].location()).array(&*array.name)
        ))
    })
}

/// Returns how many dates are declared missing in the region that samples may touch, and how many samples are left out
/// because they read some; over all stores.
pub(crate) fn missing(planner: &Planner) -> (usize, u64) {
    planner.geometries().fold((0, 0), |sum, geometry| (sum.0 + geometry.missing.0, sum.1 + geometry.missing.1))
}

/// Returns the numbers of the stores, or groups, from which samples are cut on their own, but which have none.
pub(crate) fn without_samples(planner: &Planner) -> impl Iterator<Item = usize> {
    let is_by_store = planner.geometry().table.is_none() && planner.geometries().count() > 1;
    let empty = planner.geometries().enumerate().filter(move |(_, geometry)| is_by_store && geometry.samples == 0);
    empty.map(|(store, _)| store)
}

/// Returns a text about stores or groups that have no samples; `None` if there are none.
pub(super) fn too_small(chunk_index: &ChunkIndex) -> Option<String> {
    const SHOWN: usize = 5;
    let count = without_samples(&chunk_index.planner).count();
    let mut names: Vec<String> =
        without_samples(&chunk_index.planner).take(SHOWN).map(|store| chunk_index.dataset.location(store)).collect();
    if count > SHOWN {
        names.push("others".into());
    }
    let all = chunk_index.planner.geometries().count();
    (count > 0).then(|| {
        format!(
            "{count} of {all} stores or groups have no sample, since no window fits in them; out_of_bounds_policy=\"pad\" fills windows: {}",
            names.join(", ")
        )
    })
}

/// Returns a text about data that are missing; `None` if none are.
pub(super) fn left_out(spec: &Spec, chunk_index: &ChunkIndex) -> Option<String> {
    let (dates, samples) = missing(&chunk_index.planner);
    let stores: Vec<_> = chunk_index.dataset.stores.iter().map(|store| store.location()).collect();
    let then = match spec.samples.fill_missing {
        Some(how) if samples == 0 => format!("they are filled (fill_missing=\"{}\")", how.name()),
        Some(how) => format!(
            "they are filled (fill_missing=\"{}\"), except some without an element before or behind them to interpolate from; \
             {samples} samples read these and are left out",
            how.name()
        ),
        None => format!(
            "{samples} samples read some of them and are left out; missing_dates=\"keep\" reads those of the attribute, and fill_missing \
             fills them"
        ),
    };
    (dates > 0).then(|| {
        format!(
            "{}: the data of {dates} dates are missing (attribute missing_dates, align, or no element has them): {then}",
            Site::stores(&stores)
        )
    })
}

/// Returns a text for each store with arrays that have grown since the host opened the reader first.
pub(super) fn grown(dataset: &Dataset) -> impl Iterator<Item = String> {
    // The first such array of each store.
    let mut first = BTreeMap::new();
    for array in &dataset.arrays {
        for part in &array.parts {
            if let Some(now) = &part.grown {
                first.entry(part.store).or_insert((array, part, now));
            }
        }
    }
    first.into_iter().map(|(store, (array, part, now))| {
        format!(
            "{}: the store has changed: the array has the shape {now:?} now, and {:?} when the loader opened it; the loader keeps its samples \
             until loader.refresh()",
            Site::store(dataset.location(store)).array(&*array.name),
            part.shape
        )
    })
}
