//! What the geometry and the planner need to know about arrays.

use std::ops::Range;

use dali_zarr_base::error::Result;
use dali_zarr_samples::dataset::{ArrayInfo, ArrayPart, Dataset};
use dali_zarr_samples::geometry::{ArrayShape, ByStore, align, is_by_store};
use dali_zarr_samples::plan::{ArrayGrids, PartGrid};
use dali_zarr_samples::spec::Spec;

/// Returns what the geometry needs to know about the arrays.
///
/// # Errors
/// If an alignment doesn't fit them.
pub(crate) fn shapes(spec: &Spec, dataset: &Dataset) -> Result<Vec<ArrayShape>> {
    align(spec, dataset.arrays.iter().map(shape).collect())
}

/// Returns what `of` makes of all stores in `path` together, or of each one if samples are cut from each on its own. `of` gets
/// the arguments and the arrays as they are there, and the numbers of these stores.
///
/// # Errors
/// Those of `of`.
pub(super) fn by_geometry<T>(
    spec: &Spec,
    dataset: &Dataset,
    shapes: &[ArrayShape],
    mut of: impl FnMut(&Spec, &[ArrayShape], Range<usize>) -> Result<T>,
) -> Result<Vec<T>> {
    // Arrays with stores of their own follow those of `path`.
    let stores = spec.source.paths.len().clamp(1, dataset.stores.len());
    if !is_by_store(spec, shapes) {
        return Ok(vec![of(spec, shapes, 0..stores)?]);
    }
    let by_store = ByStore::new(spec, shapes);
    let one = |store: usize| {
        let (own, shapes) = by_store.of(store);
        of(&own, &shapes, store..store + 1)
    };
    (0..stores).map(one).collect()
}

fn shape(array: &ArrayInfo) -> ArrayShape {
    ArrayShape {
        name: array.name.clone(),
        output: array.output.clone(),
        dims: array.dims.names.clone(),
        unclear: array.dims.unclear.clone(),
        parts: array.parts.iter().map(|p| p.shape.clone()).collect(),
        aligned: None,
        places: Vec::new(),
        values: array.cf.decoded,
        stored: array.stored.clone(),
        complex_fill_parts_differ: array.fill != array.imaginary_fill,
        ragged: None,
    }
}

/// Returns what the planner needs to know about an array. `all` are the arrays of the dataset.
pub(super) fn grids(array: &ArrayInfo, all: &[ArrayInfo]) -> ArrayGrids {
    let part = |p: &ArrayPart| PartGrid { dims: p.grid.clone(), order: p.format.order.clone(), swap: p.format.swap };
    let chunks_of = all.iter().position(|a| a.is_same(array)).unwrap_or(0);
    ArrayGrids { chunks_of, element: array.dtype.size(), parts: array.parts.iter().map(part).collect() }
}
