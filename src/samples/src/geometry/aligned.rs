//! Arrays of another rate: which of an array's elements belongs to each element along the first of `dims`. Six-hourly
//! fields beside hourly ones, a climatology beside dates. The elements are looked up by labels before a geometry is made.

use std::sync::Arc;

use super::dims::sample_dims;
use super::{ArrayShape, Role, View};
use crate::spec::{Aligned, Spec};
use dali_zarr_base::error::{Error, Result};

/// An element of an array for each element along the first of `dims`, before `pick`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// -1: none belongs to it. Samples that would read it are left out.
    elements: Arc<[i64]>,
}

impl Alignment {
    /// Returns the array's elements, one for each element along the first of `dims`, of which `pick` takes some. `len` is
    /// the length of the array along it. Where no element belongs to it, there is any element that is read nearby.
    ///
    /// # Errors
    /// If an element is outside of the array, or none belongs to any.
    pub(super) fn of(&self, pick: Option<&[u64]>, len: u64, array: &ArrayShape) -> Result<Vec<u64>> {
        if let Some(wrong) = self.elements.iter().find(|&&at| at < -1 || at >= len as i64) {
            return Err(Error::index(format!(
                "align: expected elements of array '{}', whose length is {len}, but found {wrong}",
                array.name
            )));
        }
        let Some(held) = held(self.elements.iter().map(|&at| u64::try_from(at).ok())) else {
            return Err(Error::value(format!(
                "align: expected an element of array '{}' for some element along the first of dims, but found none; give a larger \
                 tolerance, or another method",
                array.name
            )));
        };
        Ok(match pick {
            Some(pick) => pick.iter().map(|&at| held[at as usize]).collect(),
            None => held,
        })
    }

    /// Returns the elements along the first of `dims`, after `pick`, to which none of the array's belongs.
    pub(super) fn without(&self, pick: Option<&[u64]>) -> Vec<i64> {
        let is_none = |at: usize| self.elements.get(at).is_none_or(|&at| at < 0);
        match pick {
            Some(pick) => (0..).zip(pick).filter(|&(_, &at)| is_none(at as usize)).map(|(i, _)| i).collect(),
            None => (0..).zip(&*self.elements).filter(|&(_, &at)| at < 0).map(|(i, _)| i).collect(),
        }
    }

    /// Returns the number of elements along the first of `dims`, before `pick`.
    pub(super) fn len(&self) -> u64 {
        self.elements.len() as u64
    }

    /// Returns the elements along the first of `dims`, before `pick`, to which one of `own` belongs, which is in ascending
    /// order.
    pub fn belonging(&self, own: &[i64]) -> Vec<i64> {
        (0..).zip(&*self.elements).filter(|(_, at)| own.binary_search(at).is_ok()).map(|(i, _)| i).collect()
    }
}

/// Returns the elements with the last one before in place of each that isn't there, or the first one where none is before.
/// `None` if there are none at all.
pub(super) fn held(elements: impl Iterator<Item = Option<u64>> + Clone) -> Option<Vec<u64>> {
    let mut before = elements.clone().flatten().next()?;
    let hold = |at: Option<u64>| {
        before = at.unwrap_or(before);
        before
    };
    Some(elements.map(hold).collect())
}

/// Returns for each array the missing elements along the first of `dims`: those in `declared`, and those to which none of
/// the array's elements belongs. Empty if there are none.
pub(super) fn missing(arrays: &[ArrayShape], views: &[View], declared: &[Vec<i64>]) -> Vec<Vec<i64>> {
    if arrays.iter().all(|array| array.aligned.is_none()) {
        return declared.to_vec();
    }
    let own = arrays.iter().zip(views).filter(|(array, _)| array.aligned.is_none());
    let first = own.flat_map(|(_, view)| &view.dims).find(|dim| dim.role == Role::Axis(0));
    let pick = first.and_then(|dim| dim.picked(0));
    let of_array = |(a, array): (usize, &ArrayShape)| {
        let mut all = declared.get(a).cloned().unwrap_or_default();
        all.extend(array.aligned.iter().flat_map(|aligned| aligned.without(pick)));
        all.sort_unstable();
        all.dedup();
        all
    };
    arrays.iter().enumerate().map(of_array).collect()
}

/// Gives the arrays that `spec` aligns their alignment, and the name of the first of `dims` to their dimension.
///
/// # Errors
/// If an output or a dimension is unknown, or all arrays are aligned.
pub fn align(spec: &Spec, mut arrays: Vec<ArrayShape>) -> Result<Vec<ArrayShape>> {
    if spec.source.align.is_empty() {
        return Ok(arrays);
    }
    for Aligned { output, elements, .. } in &spec.source.align {
        let Some(array) = arrays.iter_mut().find(|array| array.output == *output) else {
            return Err(Error::value(format!("align: there is no output '{output}'")));
        };
        array.aligned = Some(Alignment { elements: elements.as_slice().into() });
    }
    if arrays.iter().all(|array| array.aligned.is_some()) {
        return Err(Error::value(
            "align: expected an array to which the others are aligned, but found all of them in align; leave out the one whose \
             elements samples start at",
        ));
    }
    let names = sample_dims(spec, &arrays)?;
    let first = names.first().cloned().unwrap_or_default();
    for Aligned { output, dim, .. } in &spec.source.align {
        let array = arrays.iter_mut().find(|array| array.output == *output).expect("found above");
        let Some(at) = array.dims.iter().position(|name| name == dim) else {
            return Err(Error::value(format!(
                "align: array '{}' has no dimension \"{dim}\"; its dimensions are {}",
                array.name,
                array.dims.join(", ")
            )));
        };
        if let Some(other) = array.dims.iter().position(|name| *name == first).filter(|&other| other != at) {
            return Err(Error::value(format!(
                "align: expected dimension {other} of array '{}', \"{first}\", which samples are cut along, but found \"{dim}\"",
                array.name
            )));
        }
        if *dim != first {
            // Stores are joined along the first of `dims` only. Of other dimensions, the first store's is read.
            array.parts.truncate(1);
        }
        array.dims[at].clone_from(&first);
    }
    Ok(arrays)
}
