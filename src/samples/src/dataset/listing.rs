//! Lists all arrays of a store, with their metadata or with the error of reading them. An array that can't be read
//! doesn't hide the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::find::{all_names, base_name, find};
use super::hierarchy::{Hierarchy, MAX_LISTED};
use super::{ArrayInfo, Dataset, Sought, in_hierarchy, metadata_error};
use crate::spec::{ArrayArgument, PerOutput, Spec};
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_stores::{self as store, ReadFiles, Store};

/// Limit on the number of arrays that are listed.
const MAX_ARRAYS: usize = 10_000;
/// Number of arrays whose documents are read and held at the same time.
const TOGETHER: usize = 32;
/// Limit on the length of an attribute's JSON text, in bytes.
const MAX_TEXT: usize = 1000;

/// The attributes that say how values are packed.
const PACKING: [&str; 5] = ["scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"];

/// A listed array.
pub struct Listed {
    /// The array's name in the store, or the store's name if the store is the array. For an array with its own store,
    /// the location as the user gave it.
    pub name: String,
    /// Whether the store is the array, or the array has its own store.
    pub is_root: bool,
    /// The array's attributes that say how values are packed, as stored. Long attributes are left out.
    pub packing: Map<String, Value>,
    /// A dataset of this array alone, with values as stored. Or the error of reading its metadata.
    pub array: Result<Dataset>,
}

/// The arrays of a spec's store.
pub struct Listing {
    /// The store. `None` if all arrays have their own stores.
    pub store: Option<Arc<dyn Store>>,
    /// The arrays, in the order of their names, or as the spec names them.
    pub arrays: Vec<Listed>,
    /// Whether the store may have more arrays than are listed.
    pub is_cut: bool,
}

/// Lists all arrays of the only store of `spec`, or the arrays that `spec` names, which may have their own stores.
///
/// # Errors
/// If the store can't be opened or listed, or a named array doesn't exist. Other errors of a single array are in
/// [`Listed::array`].
pub fn list(spec: &Spec) -> Result<Listing> {
    let source = &spec.source;
    source.check()?;
    let mut listing = Listing { store: None, arrays: Vec::new(), is_cut: false };
    if let [path] = source.paths.as_slice() {
        let how = ReadFiles { unbuffered: spec.resources.use_o_direct, versions: false };
        let stores = store::open(std::slice::from_ref(path), &source.storage_options, spec.io_threads(), how)?;
        let names = source.arrays.iter().filter(|one| !one.is_own()).map(|one| one.array.clone()).collect::<Vec<_>>();
        let names = (!source.arrays.is_empty()).then_some(names);
        let sought = names.as_deref().map_or(Sought::Only, Sought::Names);
        let (store, (arrays, is_cut)) =
            in_hierarchy(sought, &stores[0], &|store, hierarchy| list_in(names.as_deref(), &**store, hierarchy))?;
        let alone = |one: Found| Listed {
            name: one.name,
            is_root: one.is_root,
            packing: one.packing,
            array: one.array.map(|array| Dataset::of_array(&store, array)),
        };
        listing = Listing { arrays: arrays.into_iter().map(alone).collect(), store: Some(Arc::clone(&store)), is_cut };
    } else if !source.paths.is_empty() {
        return Err(Error::value(format!("path: expected one store, but found {}", source.paths.len())));
    }
    for (at, one) in source.arrays.iter().enumerate().filter(|(_, one)| one.is_own()) {
        // The list may have been cut, so it may be shorter than `at`.
        let at = at.min(listing.arrays.len());
        listing.arrays.insert(at, own(spec, one));
    }
    Ok(listing)
}

/// Lists an array that has its own store.
fn own(spec: &Spec, array: &ArrayArgument) -> Listed {
    let mut alone = Spec { resources: spec.resources.clone(), ..Spec::default() };
    alone.source.storage_options.clone_from(&spec.source.storage_options);
    alone.source.arrays.push(array.clone());
    alone.values.mask_and_scale = PerOutput::one(false);
    let name = &array.array;
    let found = fenced(name, || Dataset::open(&alone));
    let attributes = |dataset: &Dataset| {
        let hierarchy = Hierarchy::open(&*dataset.stores[0]).ok()??;
        Some(hierarchy.array(dataset.arrays[0].parts[0].path()).ok()??.attributes)
    };
    let packing = packing(found.as_ref().ok().and_then(attributes).unwrap_or_default());
    Listed { name: name.clone(), is_root: true, packing, array: found }
}

/// Calls `work`, and turns a panic into an error of this array.
fn fenced<T>(array: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let error = Error::panicked("while its metadata were read", &*panic);
        Err(error.at(Site { array: Some(array.to_owned()), ..Site::default() }))
    })
}

fn packing(attributes: Map<String, Value>) -> Map<String, Value> {
    let is_told = |name: &str, value: &Value| PACKING.contains(&name) && value.to_string().len() <= MAX_TEXT;
    attributes.into_iter().filter(|(name, value)| is_told(name, value)).collect()
}

/// An array found in the metadata of a store.
struct Found {
    name: String,
    is_root: bool,
    packing: Map<String, Value>,
    array: Result<ArrayInfo>,
}

fn list_in(names: Option<&[String]>, store: &dyn Store, mut hierarchy: Hierarchy<'_>) -> Result<(Vec<Found>, bool)> {
    let given = names.is_some();
    let mut names = names.map_or_else(|| all_names(&hierarchy, store), |names| Ok(names.to_vec()))?;
    let is_cut = !given && (names.len() > MAX_ARRAYS || (!hierarchy.has_consolidated() && names.len() >= MAX_LISTED));
    names.truncate(MAX_ARRAYS);
    let mut found = Vec::with_capacity(names.len());
    for some in names.chunks(TOGETHER) {
        hierarchy.read_ahead(some, false);
        for name in some {
            let listed = one(&hierarchy, store, name);
            match listed.array {
                // The spec names an array that doesn't exist.
                Err(e) if given && e.unknown_name().is_some() => return Err(e),
                _ => found.push(listed),
            }
        }
    }
    Ok((found, is_cut))
}

fn one(hierarchy: &Hierarchy<'_>, store: &dyn Store, name: &str) -> Found {
    let is_root = name.trim_matches('/').is_empty();
    let shown = if is_root { base_name(store.location()) } else { name.to_owned() };
    let array = fenced(&shown, || {
        let described = find(hierarchy, store, 0, name, Some(false), false, None)?;
        Ok(ArrayInfo::new(shown.clone(), shown.clone(), described))
    });
    let attributes =
        metadata_error(hierarchy.array(name)).ok().flatten().map(|node| node.attributes).unwrap_or_default();
    Found { name: shown, is_root, packing: packing(attributes), array }
}
