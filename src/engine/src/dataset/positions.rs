//! Arrays without names of dimensions, beside arrays that have them: which of their dimensions are `dims`.

use super::ArrayInfo;
use crate::spec::{DimKey, Spec};

/// Names the dimensions of arrays without names that are `dims` in the others. In an array with as many dimensions as the named array
/// that has most, these are the dimensions at the same positions; if their lengths differ, or in other arrays, they are the first ones.
///
/// Names are given where the lengths are equal. If `must`, they are also given where no position has equal lengths, so that the
/// lengths are refused where samples are cut; else these arrays keep their own names, and are read whole.
pub(super) fn name(spec: &Spec, arrays: &mut [ArrayInfo], named: &[bool], must: bool) {
    let rank = |at: &usize| arrays[*at].dims.names.len();
    let Some(reference) = (0..arrays.len()).rev().filter(|&at| named[at]).max_by_key(rank) else { return };
    let most = arrays.iter().map(|array| array.dims.names.len()).max().unwrap_or(0);
    let known = arrays[reference].dims.names.clone();
    // Numbers count the dimensions of the array that has most.
    let name = |key: DimKey| match key {
        DimKey::Name(name) => Some(name),
        DimKey::Index(i) => {
            let at = if i < 0 { i + most as i64 } else { i };
            usize::try_from(at).ok().and_then(|at| known.get(at).cloned())
        }
    };
    let (given, _) = spec.samples.dims_or_window();
    let given = if given.is_empty() { vec![DimKey::Index(0)] } else { given };
    // What is wrong with `dims` is said where samples are cut.
    let Some(dims) = given.into_iter().map(name).collect::<Option<Vec<_>>>() else { return };
    // For each of `dims`, its lengths in all stores. Arrays without names have no part in them.
    let lengths = |dim: &String| {
        let array = (0..arrays.len()).filter(|&at| named[at]).find(|&at| arrays[at].dims.names.contains(dim))?;
        lengths(&arrays[array], arrays[array].dims.names.iter().position(|name| name == dim)?)
    };
    let Some(lens) = dims.iter().map(lengths).collect::<Option<Vec<_>>>() else { return };
    let same: Option<Vec<usize>> = dims.iter().map(|dim| known.iter().position(|name| name == dim)).collect();
    for (array, _) in arrays.iter_mut().zip(named).filter(|(_, named)| !**named) {
        let rank = array.dims.names.len();
        // Dimensions that are asked for by the names that they have by default keep them.
        if dims.iter().any(|dim| array.dims.names.contains(dim)) {
            continue;
        }
        let is_equal =
            |at: &[usize]| at.iter().zip(&lens).all(|(&d, lens)| self::lengths(array, d).as_ref() == Some(lens));
        let first: Vec<usize> = (0..dims.len().min(rank)).collect();
        let candidates = same.iter().filter(|_| rank == known.len()).chain([&first]);
        let Some(at) = candidates.clone().find(|at| is_equal(at)).or(must.then_some(&first)) else { continue };
        let mut names = array.dims.names.clone();
        at.iter().zip(&dims).for_each(|(&d, dim)| names[d].clone_from(dim));
        array.dims.names = names;
    }
}

/// The lengths of a dimension in all stores.
fn lengths(array: &ArrayInfo, d: usize) -> Option<Vec<u64>> {
    array.parts.iter().map(|part| part.shape.get(d).copied()).collect()
}
