//! Finds the dimensions `dims` in arrays without dimension names, if other arrays have names.

use super::ArrayInfo;
use crate::spec::{DimKey, Spec};

/// Gives the names of `dims` to dimensions of arrays that have no dimension names (`named` is false).
///
/// The reference is the named array with the most dimensions. An array with the same number of dimensions gets the
/// names at the same positions, if the lengths there equal those of the named arrays. Otherwise the names go to its
/// first dimensions, if the lengths there are equal.
///
/// If no lengths are equal, the array keeps its own names and is read whole. With `must` its first dimensions get the
/// names all the same, so that the different lengths become an error when samples are cut.
pub(super) fn name(spec: &Spec, arrays: &mut [ArrayInfo], named: &[bool], must: bool) {
    let rank = |at: &usize| arrays[*at].dims.names.len();
    let Some(reference) = (0..arrays.len()).rev().filter(|&at| named[at]).max_by_key(rank) else { return };
    let most = arrays.iter().map(|array| array.dims.names.len()).max().unwrap_or(0);
    let known = arrays[reference].dims.names.clone();
    // Positions refer to the array with the most dimensions.
    let name = |key: DimKey| match key {
        DimKey::Name(name) => Some(name),
        DimKey::Index(i) => {
            let at = if i < 0 { i + most as i64 } else { i };
            usize::try_from(at).ok().and_then(|at| known.get(at).cloned())
        }
    };
    let (given, _) = spec.samples.dims_or_window();
    let given = if given.is_empty() { vec![DimKey::Index(0)] } else { given };
    // Wrong `dims` are reported when samples are cut.
    let Some(dims) = given.into_iter().map(name).collect::<Option<Vec<_>>>() else { return };
    // The lengths of each of `dims` in all stores, from the first named array that has it.
    let lengths = |dim: &String| {
        let array = (0..arrays.len()).filter(|&at| named[at]).find(|&at| arrays[at].dims.names.contains(dim))?;
        lengths(&arrays[array], arrays[array].dims.names.iter().position(|name| name == dim)?)
    };
    let Some(lens) = dims.iter().map(lengths).collect::<Option<Vec<_>>>() else { return };
    let same: Option<Vec<usize>> = dims.iter().map(|dim| known.iter().position(|name| name == dim)).collect();
    for (array, _) in arrays.iter_mut().zip(named).filter(|(_, named)| !**named) {
        let rank = array.dims.names.len();
        // An array keeps its default names if `dims` has one of them.
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

/// Returns the lengths of a dimension in all stores. `None` if the array doesn't have it.
fn lengths(array: &ArrayInfo, d: usize) -> Option<Vec<u64>> {
    array.parts.iter().map(|part| part.shape.get(d).copied()).collect()
}
