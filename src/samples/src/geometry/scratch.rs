//! Memory behind the samples of an output, for elements between which values lie.

use super::ArrayShape;
use super::placement::{Placement, Scratch};
use super::views::{Role, View};
use crate::batch::{OutputInfo, SCRATCH_ALIGN};
use crate::spec::{OnBadChunk, OutOfBounds, Spec};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// Gives a placement the memory that it needs, if its array has values between elements. `lens` are the lengths of the
/// array's dimensions in a sample, with 1 for those that samples lack.
///
/// # Errors
/// If the array or the output has values that can't be interpolated.
pub(super) fn add(
    placement: &mut Placement,
    array: &ArrayShape,
    view: &View,
    lens: &[u64],
    output: &mut OutputInfo,
    spec: &Spec,
) -> Result<()> {
    let (Some(between), Some(dim)) = (&view.between, view.dims.iter().position(|dim| dim.role == Role::Axis(0))) else {
        return Ok(());
    };
    check(array, output.dtype, spec.resources.on_bad_chunk)?;
    let cut = view.cuts[0];
    let edges = if spec.samples.out_of_bounds_policy == OutOfBounds::Edge { 4 } else { 0 };
    let (window, stride) = (cut.window as usize, cut.stride as usize);
    let slots = between.most(window, stride).saturating_add(edges).min(window.saturating_mul(2));
    // Dimensions by their distance in the output, nearest first.
    let mut order: Vec<usize> = (0..lens.len()).filter(|&d| d != dim && lens[d] > 1).collect();
    order.sort_by_key(|&d| placement.strides[d]);
    let (mut strides, mut slot) = (vec![0; lens.len()], 1u64);
    for d in order {
        strides[d] = slot as i64;
        slot = slot.saturating_mul(lens[d]);
    }
    strides[dim] = slot as i64;
    let bytes = slot.saturating_mul(slots as u64).saturating_mul(array.values.size() as u64);
    let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes < 1 << 46).ok_or_else(|| {
        Error::value(format!(
            "align, fill_missing: samples of '{}' are too large to be interpolated; name more of its dimensions in dims, with a \
             window",
            array.output
        ))
    })?;
    let base = (output.scratch / array.values.size()) as i64;
    output.scratch += bytes.next_multiple_of(SCRATCH_ALIGN);
    let broadcast = Vec::new();
    let decoded = Placement { base, strides, broadcast, channels: None, is_decoded: true, ..placement.clone() };
    placement.scratch = Some(Box::new(Scratch { placement: decoded, dtype: array.values, dim, slots }));
    Ok(())
}

/// Checks that values of an array can be interpolated, and that the output's type can hold them.
fn check(array: &ArrayShape, dtype: DType, on_bad_chunk: OnBadChunk) -> Result<()> {
    let is_time = ["datetime64", "timedelta64"].iter().any(|name| array.stored.starts_with(name));
    let found = if array.complex_fill_parts_differ {
        "complex numbers whose fill value has two different parts".to_owned()
    } else if is_time || array.values == DType::Bool {
        array.stored.clone()
    } else if dtype == DType::Bool {
        "an output of bool".to_owned()
    } else if on_bad_chunk == OnBadChunk::Nan && array.values.is_float() != dtype.is_float() {
        // Elements and output don't both have a NaN, or both the fill value, for a bad chunk.
        format!("{} in an output of {dtype} with on_bad_chunk=\"nan\"", array.stored)
    } else {
        return Ok(());
    };
    Err(Error::dtype(format!(
        "align, fill_missing: expected numbers for linear interpolation of '{}', but found {found}; use another method, such as \
         \"previous\"",
        array.output
    )))
}
