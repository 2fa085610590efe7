//! Finds arrays in a store by their names. Errors name the arrays that exist.

use serde_json::Map;

use super::array::{self, Described};
use super::hierarchy::Hierarchy;
use super::{kept, metadata_error};
use dali_zarr_base::error::{Code, Error, Result, Site};
use dali_zarr_stores::Store;

/// Reads the metadata of the array `name` in store number `index`. With `is_beside_others` its OME-Zarr level is needed,
/// because arrays are read together. `then`: the shape that the array is to have, although it may have grown since.
///
/// # Errors
/// If there is no such array, or its metadata are wrong, or it has become shorter. The error names the arrays that exist.
pub(super) fn find(
    hierarchy: &Hierarchy,
    store: &dyn Store,
    index: usize,
    name: &str,
    mask_and_scale: Option<bool>,
    is_beside_others: bool,
    then: Option<&[u64]>,
) -> Result<Described> {
    let Some(mut node) = metadata_error(hierarchy.array(name))? else {
        // The names are only used in the message.
        let names = hierarchy.names().ok().flatten();
        let found = match names.as_deref() {
            Some([only]) if only.is_empty() => " in it, but the store is an array itself; leave arrays out".to_owned(),
            None => format!(", but found none of that name{}", besides(hierarchy)),
            Some(names) => format!(", but found {}{}", listed(names), besides(hierarchy)),
        };
        let error = Error::coded(Code::NotFound, format!("expected an array '{name}'{found}"))
            .at(Site::store(store.location()));
        return Err(error.unknown(Some(name), names.unwrap_or_default()));
    };
    // An array that is alone and has dimension names needs no OME-Zarr level, so the attributes of the groups aren't
    // read.
    let level =
        if is_beside_others || !Hierarchy::has_names(&node) { metadata_error(hierarchy.level(&node))? } else { None };
    let shown_name = if name.is_empty() { base_name(store.location()) } else { name.to_owned() };
    let place = |e: Error| e.at(Site::store(store.location()).array(&*shown_name));
    let grown = match then {
        Some(then) => kept::as_it_was(&mut node.metadata, then).map_err(place)?,
        None => None,
    };
    let path = node.prefix.trim_end_matches('/');
    let missing = match path.rsplit_once('/').map_or("", |(group, _)| group) {
        group if array::may_miss_dates(path) => metadata_error(hierarchy.attributes_around(group, node.version))?,
        _ => Map::new(),
    };
    let mut described = metadata_error(array::describe(node, level, index, mask_and_scale)).map_err(place)?;
    described.part.grown = grown;
    described.part.missing_dates = array::missing_dates(&missing);
    Ok(described)
}

/// Returns the names of all arrays in a store.
///
/// # Errors
/// If the store can't be listed.
pub(super) fn all_names(hierarchy: &Hierarchy, store: &dyn Store) -> Result<Vec<String>> {
    let names = match hierarchy.names() {
        Err(e) if e.is_refused() => Err(format!(" ({e})")),
        names => metadata_error(names)?.ok_or_else(String::new),
    };
    names.map_err(|why| {
        Error::value(format!(
            "expected arrays to be named, since the store has no consolidated metadata and can't be listed{why}; give arrays{}",
            besides(hierarchy)
        ))
        .at(Site::store(store.location()))
    })
}

/// Returns the name of the only array in a store.
///
/// # Errors
/// If the store has none or several, or can't be listed.
pub(super) fn only_name(hierarchy: &Hierarchy, store: &dyn Store) -> Result<String> {
    let mut names = all_names(hierarchy, store)?;
    match (names.pop(), names.is_empty()) {
        (Some(only), true) => Ok(only),
        (last, _) => {
            names.extend(last);
            Err(Error::value(format!(
                "expected arrays to be named, since it doesn't hold exactly one, but found {}{}",
                listed(&names),
                besides(hierarchy)
            ))
            .at(Site::store(store.location()))
            .unknown(None, names))
        }
    }
}

/// Returns what is wrong with the root of the store, as an addition to the message that something was not found. Empty
/// if the root isn't damaged.
fn besides(hierarchy: &Hierarchy) -> String {
    hierarchy.damaged().map_or(String::new(), |e| format!("; besides, {e}"))
}

/// Returns these names as a part of a message.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 30;
    let quoted: Vec<String> = names.iter().take(SHOWN).map(|name| format!("'{name}'")).collect();
    match names.len() {
        0 => "no arrays".into(),
        n if n > SHOWN => format!("the arrays {} and {} more", quoted.join(", "), n - SHOWN),
        1 => format!("only the array {}", quoted[0]),
        _ => format!("the arrays {}", quoted.join(", ")),
    }
}

/// Returns the name of a store that is an array itself, for messages.
pub(super) fn base_name(location: &str) -> String {
    let name = location.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".zip").unwrap_or(name);
    name.strip_suffix(".zarr").unwrap_or(name).to_owned()
}
