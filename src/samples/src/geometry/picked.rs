//! Resolves the indices of `pick` against the lengths of dimensions.

use std::collections::HashMap;

use super::ArrayShape;
use super::dims::resolve;
use crate::spec::Spec;
use dali_zarr_base::error::{Error, Result};

/// The indices that `pick` takes along one dimension of an array, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    /// One list for all stores, or one for each if they differ. All have the same length.
    lists: Vec<Vec<u64>>,
}

impl Picked {
    /// Resolves indices; negative ones count from the end. `lists` has one list for all stores, or one for each. `lens`
    /// has the length of the dimension in each store, or one length for all stores.
    ///
    /// # Errors
    /// If an index is out of range.
    pub(super) fn new(lists: &[Vec<i64>], lens: &[u64], dim: &str, array: &str, paths: &[String]) -> Result<Self> {
        let resolved = |(store, list): (usize, &Vec<i64>)| {
            let len = lens.get(store).copied().unwrap_or(lens[0]);
            let whose = match paths.get(store) {
                Some(path) if lists.len() > 1 => format!(" in store {path}"),
                _ => String::new(),
            };
            let one = |&i: &i64| {
                let at = if i < 0 { i + len as i64 } else { i };
                if at < 0 || at >= len as i64 {
                    return Err(Error::index(format!(
                        "pick: index {i} is outside dimension \"{dim}\" of array '{array}'{whose}, which has length {len}"
                    )));
                }
                Ok(at as u64)
            };
            list.iter().map(one).collect::<Result<Vec<u64>>>()
        };
        let mut lists = lists.iter().enumerate().map(resolved).collect::<Result<Vec<_>>>()?;
        if lists.iter().all(|list| *list == lists[0]) {
            lists.truncate(1);
        }
        Ok(Self { lists })
    }

    /// Makes one list for all stores of resolved indices.
    pub(super) fn one(list: Vec<u64>) -> Self {
        Self { lists: vec![list] }
    }

    /// Returns the indices in one store.
    pub fn of(&self, store: usize) -> &[u64] {
        self.lists.get(store).unwrap_or(&self.lists[0])
    }

    /// Returns one list for all stores, or one for each if they differ.
    pub fn lists(&self) -> &[Vec<u64>] {
        &self.lists
    }

    /// Returns the number of indices, which is the same in every store.
    pub fn len(&self) -> u64 {
        self.lists[0].len() as u64
    }

    /// Whether there are no indices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the lists of indices that `spec` picks, by the names of their dimensions.
///
/// # Errors
/// If a dimension is unknown or comes twice, if it has neither one list nor one for each store, or if the lists are
/// empty or differ in length.
pub(super) fn by_name<'a>(spec: &'a Spec, arrays: &[ArrayShape]) -> Result<HashMap<String, &'a [Vec<i64>]>> {
    let stores = arrays.iter().map(|array| array.parts.len()).max().unwrap_or(1);
    let mut picks = HashMap::new();
    for pick in &spec.source.pick {
        let name = resolve(&pick.dim, "pick", arrays)?;
        if pick.indices.first().is_none_or(Vec::is_empty) {
            return Err(Error::value(format!("pick: dimension \"{name}\" has no index; give at least one")));
        }
        if let Some(other) = pick.indices.iter().find(|list| list.len() != pick.indices[0].len()) {
            return Err(Error::value(format!(
                "pick: expected as many indices of \"{name}\" for each store, but found {} and {}",
                pick.indices[0].len(),
                other.len()
            )));
        }
        if ![1, stores].contains(&pick.indices.len()) {
            return Err(Error::value(format!(
                "pick: expected one list of indices of \"{name}\", or one for each store of path ({stores}), but found {}",
                pick.indices.len()
            )));
        }
        if picks.insert(name.clone(), pick.indices.as_slice()).is_some() {
            return Err(Error::value(format!(
                "pick: dimension \"{name}\" is named twice; give all its indices at once"
            )));
        }
    }
    Ok(picks)
}
