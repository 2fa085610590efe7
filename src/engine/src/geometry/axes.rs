//! The dimensions that samples are cut along: window, step, stride, offsets, region of interest.

use super::{ArrayShape, View};
use crate::error::{Error, Result};
use crate::spec::{DimKey, OutOfBounds, Spec};

/// One of the dimensions that samples are cut along. All numbers are elements of the joined, picked dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Its name.
    pub name: String,
    /// First element that samples may touch.
    pub roi_start: i64,
    /// One past the last element that samples may touch.
    pub roi_end: i64,
    /// Elements per sample, at least 1.
    pub window: i64,
    /// Whether the dimension is missing from the sample (its window is then 1).
    pub dropped: bool,
    /// Distance between the elements of a sample.
    pub stride: i64,
    /// Distance between the starts of samples.
    pub step: i64,
    /// Start of the first sample.
    pub first: i64,
    /// How many starts there are.
    pub count: i64,
}

/// The array whose dimensions numbers refer to: the first of the highest rank.
pub(super) fn reference(arrays: &[ArrayShape]) -> &ArrayShape {
    let rank = arrays.iter().map(|a| a.dims.len()).max().unwrap_or(0);
    arrays.iter().find(|a| a.dims.len() == rank).expect("a dataset has an array")
}

/// The name of a dimension that the user named or numbered.
pub(super) fn resolve(key: &DimKey, argument: &str, arrays: &[ArrayShape], reference: &ArrayShape) -> Result<String> {
    match key {
        DimKey::Name(name) if arrays.iter().any(|a| a.dims.contains(name)) => Ok(name.clone()),
        DimKey::Name(name) => {
            let mut known: Vec<&str> = Vec::new();
            for d in arrays.iter().flat_map(|a| &a.dims) {
                if !known.contains(&d.as_str()) {
                    known.push(d);
                }
            }
            Err(Error::value(format!(
                "{argument}: no array has a dimension \"{name}\"; the dimensions are {}",
                known.join(", ")
            )))
        }
        DimKey::Index(i) => {
            let rank = reference.dims.len() as i64;
            let at = if *i < 0 { i + rank } else { *i };
            if at < 0 || at >= rank {
                return Err(Error::value(format!(
                    "{argument}: there is no dimension {i}: array '{}' has {rank} dimensions ({})",
                    reference.name,
                    reference.dims.join(", ")
                )));
            }
            Ok(reference.dims[at as usize].clone())
        }
    }
}

/// The names of the dimensions that samples are cut along.
pub(super) fn sample_dims(spec: &Spec, arrays: &[ArrayShape]) -> Result<Vec<String>> {
    let reference = reference(arrays);
    if spec.dims.is_empty() {
        return reference.dims.first().map(|d| vec![d.clone()]).ok_or_else(|| {
            Error::value(format!("array '{}' has no dimension: there is nothing to cut samples along", reference.name))
        });
    }
    let mut names = Vec::new();
    for key in &spec.dims {
        let name = resolve(key, "dims", arrays, reference)?;
        if names.contains(&name) {
            return Err(Error::value(format!("dims: dimension \"{name}\" is named twice")));
        }
        names.push(name);
    }
    Ok(names)
}

pub(super) fn build(spec: &Spec, arrays: &[ArrayShape], views: &[View], names: &[String]) -> Result<Vec<Axis>> {
    let per_axis: [(&str, &Vec<i64>); 5] = [
        ("window", &spec.window),
        ("step", &spec.step),
        ("stride", &spec.stride),
        ("roi_start", &spec.roi_start),
        ("roi_end", &spec.roi_end),
    ];
    for (what, values) in per_axis {
        if !values.is_empty() && values.len() != names.len() {
            return Err(Error::value(format!(
                "{what}: expected one value for each of dims ({}), found {}",
                names.join(", "),
                values.len()
            )));
        }
    }
    names.iter().enumerate().map(|(i, name)| axis(spec, i, name, length(name, arrays, views))).collect()
}

fn length(name: &str, arrays: &[ArrayShape], views: &[View]) -> i64 {
    arrays
        .iter()
        .zip(views)
        .find_map(|(a, v)| a.dims.iter().position(|d| d == name).map(|d| v.dims[d].len as i64))
        .expect("resolved against the arrays")
}

fn axis(spec: &Spec, i: usize, name: &str, len: i64) -> Result<Axis> {
    let entry = |values: &[i64], default: i64| values.get(i).copied().unwrap_or(default);
    let bound = |what: &str, value: i64| {
        let at = if value < 0 { value + len } else { value };
        if at < 0 || at > len {
            return Err(Error::value(format!("{what}: {value} is outside dimension \"{name}\" of length {len}")));
        }
        Ok(at)
    };
    let roi_start = bound("roi_start", entry(&spec.roi_start, 0))?;
    let roi_end = bound("roi_end", entry(&spec.roi_end, len))?;
    if roi_end <= roi_start {
        return Err(Error::value(format!(
            "roi_start, roi_end: along \"{name}\" the region of interest [{roi_start}, {roi_end}) is empty, so the store holds no sample"
        )));
    }
    let limit = |what: &str, value: i64, least: i64| {
        if value < least || value > 1 << 40 {
            return Err(Error::value(format!("{what}: expected {least} to 2^40 along \"{name}\", found {value}")));
        }
        Ok(value)
    };
    let (window, dropped) = match entry(&spec.window, 0) {
        0 => (1, true),
        -1 => (roi_end - roi_start, false),
        w => (limit("window", w, 1)?, false),
    };
    let stride = limit("stride", entry(&spec.stride, 1), 1)?;
    let step = limit("step", entry(&spec.step, window), 1)?;
    let (before, after) = if i == 0 {
        let least = spec.offsets.iter().copied().min().unwrap_or(0);
        let most = spec.offsets.iter().copied().max().unwrap_or(0);
        if least < -(1 << 40) || most > 1 << 40 {
            return Err(Error::value("offsets: expected numbers within 2^40 of zero"));
        }
        ((-least).max(0), most.max(0))
    } else {
        (0, 0)
    };
    let need = (window - 1)
        .checked_mul(stride)
        .and_then(|n| n.checked_add(1))
        .ok_or_else(|| Error::value(format!("window, stride: too large along \"{name}\"")))?;
    let whole = |first: i64, last_end: i64| if last_end < first { 0 } else { (last_end - first) / step + 1 };
    let inside = whole(roi_start + before, roi_end - after - need);
    let padded = (roi_end - roi_start - 1) / step + 1;
    let (first, count) = match spec.out_of_bounds_policy {
        OutOfBounds::Pad => (roi_start, padded),
        OutOfBounds::Error => {
            let last = roi_start + (padded - 1) * step;
            if before > 0 || last + after + need > roi_end {
                return Err(Error::value(format!(
                    "out_of_bounds_policy=\"error\": along \"{name}\" windows of {need} elements (offsets from -{before} to \
                     {after}) at every {step} elements don't tile the region of interest [{roi_start}, {roi_end}); \
                     use \"drop\" or \"pad\", or another window, step or region"
                )));
            }
            (roi_start, padded)
        }
        OutOfBounds::Drop => (roi_start + before, inside),
    };
    if count == 0 {
        return Err(Error::value(format!(
            "window: along \"{name}\" a sample needs {} elements (window {window}, stride {stride}, offsets from -{before} \
             to {after}) but the region of interest [{roi_start}, {roi_end}) has {}, so the store holds no sample; \
             make them smaller or use out_of_bounds_policy=\"pad\"",
            need + before + after,
            roi_end - roi_start
        )));
    }
    Ok(Axis { name: name.to_owned(), roi_start, roi_end, window, dropped, stride, step, first, count })
}
