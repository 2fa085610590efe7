//! Resolves the indices of `pick` against the lengths of dimensions.

use super::ArrayShape;
use super::cuts::check_outputs;
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

/// The lists of indices that a spec picks, by output and by the names of their dimensions.
pub(super) struct Picks<'a>(Vec<Named<'a>>);

/// What a spec picks along one dimension.
struct Named<'a> {
    /// The output that it is for. `None`: for all.
    output: Option<&'a str>,
    dim: String,
    /// One list of indices, or one for each store.
    lists: &'a [Vec<i64>],
}

impl<'a> Picks<'a> {
    /// Returns the lists along a dimension of an array; `None` if nothing is picked there.
    pub(super) fn of(&self, array: &ArrayShape, dim: &str) -> Option<&'a [Vec<i64>]> {
        let is_for = |named: &&Named<'_>| named.dim == dim && named.output.is_none_or(|output| output == array.output);
        self.0.iter().find(is_for).map(|named| named.lists)
    }

    /// Checks that outputs have the same picks along each dimension that samples are cut along: windows, starts and the index
    /// count the picked elements there.
    fn check_axes(&self, axis_names: &[String], arrays: &[ArrayShape]) -> Result<()> {
        for name in axis_names {
            let mut having = arrays.iter().filter(|array| array.dims.contains(name));
            let Some(first) = having.next() else { continue };
            if let Some(other) = having.find(|array| self.of(array, name) != self.of(first, name)) {
                return Err(Error::value(format!(
                    "pick: expected the same indices for all outputs along \"{name}\", one of dims, whose picked elements windows \
                     count, but found others for '{}' than for '{}'; pick them for all outputs",
                    other.output, first.output
                )));
            }
        }
        Ok(())
    }
}

/// Returns the lists of indices that `spec` picks. `axis_names` are the dimensions that samples are cut along.
///
/// # Errors
/// If an output or a dimension is unknown, or a dimension comes twice for an output; if it has neither one list nor one for
/// each store; if the lists are empty or differ in length; if outputs differ along one of `axis_names`.
pub(super) fn by_name<'a>(spec: &'a Spec, arrays: &[ArrayShape], axis_names: &[String]) -> Result<Picks<'a>> {
    let stores = arrays.iter().map(|array| array.parts.len()).max().unwrap_or(1);
    let mut picks = Picks(Vec::new());
    for pick in &spec.source.pick {
        let output = pick.output.as_deref();
        check_outputs("pick", output.into_iter(), arrays)?;
        let own = arrays.iter().find(|array| output == Some(&array.output));
        let name = resolve(&pick.dim, "pick", own.map_or(arrays, std::slice::from_ref))?;
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
        let overlaps = |of: Option<&str>| of.is_none() || output.is_none() || of == output;
        if picks.0.iter().any(|named| named.dim == name && overlaps(named.output)) {
            let of = output.map(|output| format!(" of output '{output}'")).unwrap_or_default();
            return Err(Error::value(format!(
                "pick: dimension \"{name}\"{of} is named twice; give all its indices at once"
            )));
        }
        picks.0.push(Named { output, dim: name, lists: &pick.indices });
    }
    picks.check_axes(axis_names, arrays)?;
    Ok(picks)
}
