//! Arrays of another rate: which of an array's elements belongs to each element along the first of `dims`. Six-hourly
//! fields beside hourly ones, a climatology beside dates. The elements are looked up by labels before a geometry is made.

use std::sync::Arc;

use super::dims::sample_dims;
use super::{ArrayShape, Pair, View};
use crate::spec::{Aligned, Spec};
use dali_zarr_base::error::{Error, Result};

/// Elements of an array, and the weight of each.
type Others = (Arc<[i64]>, Arc<[f64]>);

/// What belongs to each element along the first of `dims`, before `pick`: an element of an array, or a value between two.
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// The elements. -1: none belongs to it. Samples that would read it are left out.
    elements: Arc<[i64]>,
    /// The other elements, and their weights; `None` if all values are those of one element.
    others: Option<Others>,
    /// Whether the first of `dims` is the array's own dimension, with labels that the store lacks put in between.
    is_own: bool,
}

impl Alignment {
    /// Takes what a host looked up.
    ///
    /// # Errors
    /// If the lists have unlike lengths, or a weight isn't one.
    fn new(of: &Aligned) -> Result<Self> {
        let wrong = |expected: &str| Err(Error::value(format!("align: '{}': expected {expected}", of.output)));
        let elements: Arc<[i64]> = of.elements.as_slice().into();
        if of.others.is_empty() && of.weights.is_empty() {
            return Ok(Self { elements, others: None, is_own: of.is_own });
        }
        if of.others.len() != elements.len() || of.weights.len() != elements.len() {
            return wrong("as many other elements and weights as elements");
        }
        if !of.weights.iter().all(|weight| (0.0..=1.0).contains(weight)) {
            return wrong("weights from 0 to 1");
        }
        let others = Some((of.others.as_slice().into(), of.weights.as_slice().into()));
        Ok(Self { elements, others, is_own: of.is_own })
    }

    /// Returns the pair of an element along the first of `dims`, before `pick`, to which one belongs.
    fn pair(&self, at: usize) -> Pair {
        let low = self.elements[at] as u64;
        match &self.others {
            Some((others, weights)) if weights[at] > 0.0 => Pair { low, high: others[at] as u64, weight: weights[at] },
            _ => Pair::one(low),
        }
    }

    /// Returns what belongs to each element along the first of `dims`, of which `pick` takes some. `len` is the length of
    /// the array along it. Where nothing belongs to it, there is what is read nearby.
    ///
    /// # Errors
    /// If an element is outside of the array, or none belongs to any.
    pub(super) fn of(&self, pick: Option<&[u64]>, len: u64, array: &ArrayShape) -> Result<Vec<Pair>> {
        let others = self.others.iter().flat_map(|(others, _)| others.iter());
        if let Some(wrong) = self.elements.iter().chain(others).find(|&&at| at < -1 || at >= len as i64) {
            return Err(Error::index(format!(
                "align: expected elements of array '{}', whose length is {len}, but found {wrong}",
                array.name
            )));
        }
        let is_there = |at: usize| self.elements[at] >= 0;
        let is_whole = |at: usize| {
            let of = |(others, weights): &(Arc<[i64]>, Arc<[f64]>)| weights[at] == 0.0 || others[at] >= 0;
            !is_there(at) || self.others.as_ref().is_none_or(of)
        };
        if let Some(at) = (0..self.elements.len()).find(|&at| !is_whole(at)) {
            return Err(Error::index(format!("align: array '{}': expected two elements for label {at}", array.name)));
        }
        let Some(held) = held((0..self.elements.len()).map(|at| is_there(at).then_some(at as u64))) else {
            return Err(Error::value(format!(
                "align: expected an element of array '{}' for some element along the first of dims, but found none; give a larger \
                 tolerance, or another method",
                array.name
            )));
        };
        let one = |at: u64| self.pair(held[at as usize] as usize);
        Ok(match pick {
            Some(pick) => pick.iter().map(|&at| one(at)).collect(),
            None => (0..held.len() as u64).map(one).collect(),
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

    /// Whether the first of `dims` is the array's own dimension, with labels that the store lacks put in between.
    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns the number of elements along the first of `dims`, before `pick`.
    pub(super) fn len(&self) -> u64 {
        self.elements.len() as u64
    }

    /// Returns the elements along the first of `dims`, before `pick`, to which one of `own` belongs, which is in ascending
    /// order.
    pub fn belonging(&self, own: &[i64]) -> Vec<i64> {
        let is_own = |element: u64| own.binary_search(&(element as i64)).is_ok();
        let belongs = |&at: &usize| {
            let Pair { low, high, .. } = self.pair(at);
            self.elements[at] >= 0 && (is_own(low) || is_own(high))
        };
        (0..self.elements.len()).filter(belongs).map(|at| at as i64).collect()
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
    let pick = views.iter().find_map(|view| view.along.as_ref()).map(|along| along.of(0));
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
/// If an output or a dimension is unknown, or all arrays are aligned to others.
pub fn align(spec: &Spec, mut arrays: Vec<ArrayShape>) -> Result<Vec<ArrayShape>> {
    if spec.source.align.is_empty() {
        return Ok(arrays);
    }
    for aligned @ Aligned { output, .. } in &spec.source.align {
        let Some(array) = arrays.iter_mut().find(|array| array.output == *output) else {
            return Err(Error::value(format!("align: there is no output '{output}'")));
        };
        array.aligned = Some(Alignment::new(aligned)?);
    }
    if !arrays.iter().any(ArrayShape::has_own_axis) {
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
