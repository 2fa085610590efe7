//! Missing data along the first of `dims` that are filled (`fill_missing`), instead of leaving out the samples that read
//! them.

use super::aligned::held;
use super::between::{Between, Pair};
use super::picked::Picked;
use super::{ArrayShape, Role, View};
use crate::spec::{FillMissing, OutOfBounds, Spec};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// Fills the missing elements of each array, if `spec` says so: changes what views read, and removes them from `missing`.
/// Returns the elements of which some array's are filled, in ascending order. `labels` are those of the elements along the
/// first of `dims`. Without any, elements are at equal distances.
///
/// # Errors
/// If an array has no element that isn't missing.
pub(super) fn apply(
    spec: &Spec,
    arrays: &[ArrayShape],
    views: &mut [View],
    missing: &mut Vec<Vec<i64>>,
    labels: &[f64],
) -> Result<Vec<i64>> {
    let Some(how) = spec.samples.fill_missing else { return Ok(Vec::new()) };
    if how == FillMissing::Linear {
        return Ok(interpolate(views, missing, labels));
    }
    let mut all: Vec<i64> = missing.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    for ((view, array), missing) in views.iter_mut().zip(arrays).zip(std::mem::take(missing)) {
        let Some(dim) = view.dims.iter_mut().find(|dim| dim.role == Role::Axis(0)) else { continue };
        if missing.is_empty() {
            continue;
        }
        if how != FillMissing::Previous {
            view.filled = missing;
            continue;
        }
        let there = (0..dim.len).map(|at| missing.binary_search(&(at as i64)).is_err().then_some(at));
        let Some(held) = held(there) else {
            return Err(Error::value(format!(
                "fill_missing: expected an element of array '{}' that isn't missing, but found none",
                array.name
            )));
        };
        let element = |at: u64| dim.picked(0).map_or(at, |pick| pick[at as usize]);
        let elements = held.iter().map(|&at| element(at)).collect();
        if let Some(between) = view.between.take() {
            view.between = Between::new(held.iter().map(|&at| between.at(at as i64)).collect());
        }
        dim.pick = Some(Picked::one(elements));
    }
    Ok(all)
}

/// Lets the missing elements of each array lie between those before and after them, and removes them from `missing`. Others
/// stay: the first and the last ones, which have no neighbour on one side, those whose neighbour lies between two elements
/// itself, and those whose label doesn't lie between the neighbours' labels. Returns the elements of which some array's are
/// filled.
fn interpolate(views: &mut [View], missing: &mut [Vec<i64>], labels: &[f64]) -> Vec<i64> {
    let label = |at: usize| labels.get(at).copied().unwrap_or(at as f64);
    let mut all = Vec::new();
    for (view, missing) in views.iter_mut().zip(missing) {
        let Some(dim) = view.dims.iter_mut().find(|dim| dim.role == Role::Axis(0)) else { continue };
        if missing.is_empty() {
            continue;
        }
        let mut pairs: Vec<Pair> = match &view.between {
            Some(between) => between.pairs().to_vec(),
            None => (0..dim.len).map(|at| Pair::one(dim.picked(0).map_or(at, |pick| pick[at as usize]))).collect(),
        };
        let mut left = Vec::new();
        for run in missing.chunk_by(|one, next| one + 1 == *next) {
            let (begin, end) = (run[0] as usize, run[run.len() - 1] as usize + 1);
            let ends = begin.checked_sub(1).map(|before| (before, end)).filter(|_| end < pairs.len());
            let ends = ends.filter(|&(before, after)| pairs[before].weight == 0.0 && pairs[after].weight == 0.0);
            for at in begin..end {
                let weight = ends.map(|(before, after)| {
                    let weight = (label(at) - label(before)) / (label(after) - label(before));
                    (pairs[before].low, pairs[after].low, weight)
                });
                match weight.filter(|&(.., weight)| weight > 0.0 && weight < 1.0) {
                    Some((low, high, weight)) => {
                        pairs[at] = Pair { low, high, weight };
                        all.push(at as i64);
                    }
                    None => left.push(at as i64),
                }
            }
        }
        dim.pick = Some(Picked::one(pairs.iter().map(|pair| pair.low).collect()));
        view.between = Between::new(pairs);
        *missing = left;
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the value of the output that takes the place of missing elements and of those out of bounds, which is `given`
/// for the latter. `is_normalised`: whether a mean or a stddev is given.
///
/// # Errors
/// If the output has no such value, or two different ones.
pub(super) fn value(
    spec: &Spec,
    array: &ArrayShape,
    dtype: DType,
    given: Option<f64>,
    is_normalised: bool,
) -> Result<f64> {
    let value = match spec.samples.fill_missing {
        None | Some(FillMissing::Previous | FillMissing::Linear) => return Ok(given.unwrap_or(0.0)),
        Some(FillMissing::Nan) if !dtype.is_float() => {
            return Err(Error::value(format!(
                "fill_missing: expected a floating-point output for NaN, but '{}' is {}; give dtype, or \"previous\"",
                array.output,
                dtype.name()
            )));
        }
        Some(FillMissing::Nan) => f64::NAN,
        Some(FillMissing::Mean) if !is_normalised => {
            return Err(Error::value(format!(
                "fill_missing: expected a mean with \"mean\", but found none for '{}'; give mean, or another value",
                array.output
            )));
        }
        Some(FillMissing::Mean) => 0.0,
    };
    let of_bounds = given.unwrap_or(0.0);
    let is_same = value == of_bounds || (value.is_nan() && of_bounds.is_nan());
    if spec.samples.out_of_bounds_policy == OutOfBounds::Pad && !is_same {
        return Err(Error::value(format!(
            "fill_missing, fill_value: expected one value for missing and for padded elements of '{}', but found {value} and {of_bounds}; \
             give fill_value={value}, or another policy than \"pad\"",
            array.output
        )));
    }
    Ok(value)
}
