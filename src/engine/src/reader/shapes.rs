//! What the geometry and the planner need to know about arrays.

use dali_zarr_base::error::Result;
use dali_zarr_samples::dataset::{ArrayInfo, ArrayPart, Dataset};
use dali_zarr_samples::geometry::{ArrayShape, align};
use dali_zarr_samples::plan::{ArrayGrids, PartGrid};
use dali_zarr_samples::spec::Spec;

/// Returns what the geometry needs to know about the arrays.
///
/// # Errors
/// If an alignment doesn't fit them.
pub(crate) fn shapes(spec: &Spec, dataset: &Dataset) -> Result<Vec<ArrayShape>> {
    align(spec, dataset.arrays.iter().map(shape).collect())
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
