//! The arrays as samples see them: stores are joined and `pick` is applied.

use super::between::Between;
use super::cuts::Cut;
use super::dims::is_cut;
use super::picked::{self, Picked};
use super::scaled::Place;
use super::{ArrayShape, Pair};
use crate::spec::{Concat, Spec};
use dali_zarr_base::error::{Error, Result};

/// How one dimension of an array is read for a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Samples are cut along it. Holds its index in [`Geometry::axes`](super::Geometry::axes).
    Axis(usize),
    /// Every sample has the whole dimension.
    Whole,
    /// A sample has the elements of its row, see [`Geometry::rows`](super::Geometry::rows).
    Ragged,
}

/// One dimension of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewDim {
    /// How it is read.
    pub role: Role,
    /// Its length after `pick`, over all joined stores.
    pub len: u64,
    /// The indices that `pick` takes of it; `None` if `pick` doesn't name it.
    pub pick: Option<Picked>,
}

impl ViewDim {
    /// Returns the indices that `pick` takes of this dimension in one store; `None` if `pick` doesn't name it. Indices
    /// of the joined dimension count over all stores.
    pub fn picked(&self, store: usize) -> Option<&[u64]> {
        self.pick.as_ref().map(|pick| pick.of(store))
    }
}

/// An array as samples see it.
#[derive(Clone, Debug)]
pub struct View {
    /// One entry per dimension of the stored array.
    pub dims: Vec<ViewDim>,
    /// Where its elements lie along each entry of `dims`, in the first store; empty without `scale_by`.
    pub places: Vec<Option<Place>>,
    /// How it is cut along each entry of [`Geometry::axes`](super::Geometry::axes).
    pub cuts: Vec<Cut>,
    /// The values along the first of `dims` that lie between two elements. Those of one element are in `dims` too, as picked.
    /// `None` if there are none.
    pub between: Option<Between>,
    /// The elements along the first of `dims`, in ascending order, that the fill value of the output takes the place of.
    pub filled: Vec<i64>,
    /// The elements of the first of `dims` that `pick` takes, if the array is aligned; `None` if `pick` doesn't name it.
    pub along: Option<Picked>,
    /// If several stores are joined: the dimension of the array along which they are, and the first index of each store
    /// followed by the end of the last one.
    pub joined: Option<(usize, Vec<u64>)>,
}

/// Returns the error for arrays that have unequal lengths along a dimension that they share: each length and its array.
pub(super) fn unequal(dim: &str, (len, array): (u64, &str), (other, of): (u64, &str)) -> Error {
    Error::value(format!(
        "dimension \"{dim}\" has length {len} in array '{array}' but {other} in array '{of}'; pick as many indices of both, or leave one \
         of the arrays out"
    ))
}

/// Returns each array as samples see it: joins stores and applies `pick`. Checks that arrays agree on the lengths of
/// the dimensions that they share: those that samples are cut along and, in a stack, all of them.
pub(super) fn views(spec: &Spec, arrays: &[ArrayShape], axis_names: &[String]) -> Result<Vec<View>> {
    let picks = picked::by_name(spec, arrays, axis_names)?;
    if axis_names.is_empty() && spec.source.paths.len() > 1 {
        return Err(Error::value(format!(
            "path: expected one store, since array '{}' has no dimension along which {} could be joined; read them with a \
             reader each",
            arrays[0].name,
            spec.source.paths.len()
        )));
    }
    let stores = arrays.iter().map(|array| array.parts.len()).max().unwrap_or(1);
    let mut lengths: Vec<(String, u64, String)> = Vec::new();
    let mut views = Vec::new();
    for array in arrays {
        let (mut joined, mut between, mut along, is_cut) = (None, None, None, is_cut(spec, array));
        let mut dims = Vec::new();
        for (d, name) in array.dims.iter().enumerate() {
            let lists = picks.of(array, name);
            let has_own = lists.is_some_and(|lists| lists.len() > 1);
            let mut stored: Vec<u64> = array.parts.iter().map(|part| part[d]).collect();
            let is_first = axis_names.first() == Some(name);
            if is_first && stored.len() < stores && array.aligned.is_none() {
                return Err(Error::value(format!(
                    "arrays: array '{}' has a store of its own and the dimension \"{name}\", along which {stores} stores are joined; \
                     say how its elements belong to theirs, such as align={{'{}': 'exact'}}, or join its stores as a path too",
                    array.name, array.output
                )));
            }
            if stored.len() > 1 && is_first {
                if has_own {
                    return Err(Error::value(format!(
                        "pick: stores are joined along \"{name}\", so that its indices count over all of them; expected one \
                         list of indices, but found one for each store"
                    )));
                }
                let mut starts = vec![0u64];
                for len in &stored {
                    starts.push(starts[starts.len() - 1].saturating_add(*len));
                }
                stored = vec![starts[starts.len() - 1]];
                joined = Some((d, starts));
            } else if let Some(p) = stored.iter().position(|&len| len != stored[0] && !has_own) {
                return Err(Error::value(format!(
                    "path: array '{}' has length {} along \"{name}\" in {} and {} in {}; stores are joined along \"{}\" \
                     and must agree on everything else",
                    array.name, stored[0], spec.source.paths[0], stored[p], spec.source.paths[p], axis_names[0]
                )));
            }
            if let Some(len) = stored.iter().find(|&&len| len > i64::MAX as u64 / 4) {
                return Err(Error::value(format!(
                    "array '{}': dimension \"{name}\" has length {len}, more than can be addressed",
                    array.name
                )));
            }
            let pick = match array.aligned.as_ref().filter(|_| is_first) {
                Some(aligned) => {
                    along = match lists {
                        Some(lists) => {
                            Some(Picked::new(lists, &[aligned.len()], name, &array.name, &spec.source.paths)?)
                        }
                        None => None,
                    };
                    let pairs = aligned.of(along.as_ref().map(|along| along.of(0)), stored[0], array)?;
                    let low = pairs.iter().map(|pair: &Pair| pair.low).collect();
                    between = Between::new(pairs);
                    Some(Picked::one(low))
                }
                None => {
                    lists.map(|lists| Picked::new(lists, &stored, name, &array.name, &spec.source.paths)).transpose()?
                }
            };
            let len = pick.as_ref().map_or(stored[0], Picked::len);
            let axis = axis_names.iter().position(|n| n == name).filter(|_| is_cut);
            let role = axis.map_or(Role::Whole, Role::Axis);
            // With `scale_by`, lengths along axes are compared where arrays have no places.
            let is_scaled = role != Role::Whole && spec.samples.scale_by.is_some();
            let is_shared = !is_scaled && (role != Role::Whole || spec.samples.stack_arrays);
            match lengths.iter().find(|(n, ..)| n == name && is_shared) {
                Some((_, other, of)) if *other != len => {
                    return Err(unequal(name, (len, &array.name), (*other, of)));
                }
                Some(_) => {}
                None => lengths.push((name.clone(), len, array.name.clone())),
            }
            // A store of its own may lack elements that others have: its samples are empty then.
            if role == Role::Whole && len == 0 && spec.samples.concat != Concat::Samples {
                return Err(Error::value(format!("array '{}': dimension \"{name}\" has length 0", array.name)));
            }
            dims.push(ViewDim { role, len, pick });
        }
        let places = array.places.first().cloned().unwrap_or_default();
        views.push(View { dims, places, cuts: Vec::new(), between, filled: Vec::new(), along, joined });
    }
    Ok(views)
}
