//! Arrays with their own stores, beside other arrays: `arrays={"image": "0", "label": "s3://bucket/labels.zarr/0"}`.
//!
//! The array's location is opened as a store that is an array, or that holds only one array. Coordinates are looked up in
//! the store at the parent location, OME-Zarr attributes there and at the locations above.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::array::{self, Described};
use super::hierarchy::Hierarchy;
use super::names::DimNames;
use super::ome::{self, Level};
use super::{
    ArrayInfo, Dataset, Kept, Wanted, describe, each_store, group_attributes, is_joined, join, metadata_error,
    positions,
};
use crate::spec::{ArrayArgument, PerOutput, Spec};
use dali_zarr_base::error::Result;
use dali_zarr_stores::{self as store, ReadFiles, Store};

/// Reads the metadata of the arrays of `spec`. `stores` are opened, one for each of the spec's locations.
pub(super) fn open(spec: &Spec, mut stores: Vec<Arc<dyn Store>>, kept: Option<&Kept>) -> Result<Dataset> {
    let locations = spec.source.locations();
    let of_path = spec.source.paths.len();
    let all: Vec<(usize, &ArrayArgument)> = spec.source.arrays.iter().enumerate().collect();
    let wanted = |store: usize| -> Vec<Wanted> {
        let is_here = |array: &ArrayArgument| match store {
            store if store < of_path => !array.is_own(),
            store => array.array == locations[store],
        };
        let here = all.iter().filter(|(_, array)| is_here(array));
        let want = |&(at, array): &(usize, &ArrayArgument)| Wanted {
            at,
            output: Some(array.output.clone()),
            array: (store < of_path).then(|| array.array.clone()),
        };
        here.map(want).collect()
    };
    let mut found: Vec<Option<(ArrayInfo, bool, Option<Level>)>> = all.iter().map(|_| None).collect();
    let (mut parents, mut above) = (vec![None; stores.len()], Above::new());
    let described = each_store(&stores, |i, store| describe(spec, &wanted(i), i, store, kept));
    for (i, described) in described.into_iter().enumerate() {
        let (store, described) = described?;
        stores[i] = store;
        for (want, mut described) in wanted(i).into_iter().zip(described.into_iter().map(|(_, described)| described)) {
            if i >= of_path && described.part.is_root() {
                parents[i] = parent(&locations[i]);
                place(spec, &locations[i], &mut described, &mut above)?;
            }
            let ArrayArgument { output, array } = all[want.at].1.clone();
            let (named, level) = (described.named, described.level.clone());
            match &mut found[want.at] {
                None => found[want.at] = Some((ArrayInfo::new(array, output, described), named, level)),
                Some((first, _, level)) => {
                    let places = [stores[0].location().to_owned(), stores[i].location().to_owned()];
                    join(spec, first, level.as_ref(), described, places)?;
                }
            }
        }
    }
    let (mut arrays, mut named, mut levels) = (Vec::new(), Vec::new(), Vec::new());
    for (array, is_named, level) in found.into_iter().flatten() {
        levels.extend(level.map(|level| (format!("array '{}'", array.name), level)));
        named.push(is_named);
        arrays.push(array);
    }
    if spec.samples.scale_by.is_none() {
        Level::check_places(&levels)?;
    }
    positions::name(spec, &mut arrays, &named, true);
    Ok(Dataset { stores, arrays, parents, groups: Vec::new() })
}

/// Returns the parent of a location. `None` if it has none, or the location has a query (`?`).
fn parent(location: &str) -> Option<String> {
    let location = location.trim_end_matches('/');
    let start = location.find("://").map_or(0, |at| at + 3);
    let (parent, _) = location[start..].rsplit_once('/').filter(|_| !location.contains('?'))?;
    Some(if parent.is_empty() { "/".to_owned() } else { location[..start + parent.len()].to_owned() })
}

/// Opens the store at `location`, the parent of an array's store. `None` if that fails; the array can be read without
/// it.
pub fn open_parent(spec: &Spec, location: &str) -> Option<Arc<dyn Store>> {
    let options = if store::is_remote(location) { &*spec.source.storage_options } else { &[] };
    store::open(&[location.to_owned()], options, 1, ReadFiles::default()).ok()?.pop()
}

/// Like [`place`], for a store of `path` that is an array, if it matters where the array lies.
///
/// # Errors
/// If the attributes can't be read, unless they would only name dimensions.
pub(super) fn place_alone(spec: &Spec, location: &str, described: &mut Described, above: &mut Above) -> Result<()> {
    let matters = is_joined(spec) || array::may_miss_dates(location) || spec.samples.scale_by.is_some();
    if !matters && described.named {
        return Ok(());
    }
    match place(spec, location, described, above) {
        Err(_) if !matters => Ok(()),
        placed => placed,
    }
}

/// Opens the store at the parent of a location. `None` if there is none, or it can't be opened.
pub fn parent_of(spec: &Spec, location: &str) -> Option<Arc<dyn Store>> {
    open_parent(spec, &parent(location)?)
}

/// An array that is read alone from its own store.
pub struct LoneArray {
    /// Its store.
    pub store: Arc<dyn Store>,
    /// What its metadata say.
    pub array: ArrayInfo,
    /// The attributes of the array's group. Empty if they aren't known.
    pub group: Map<String, Value>,
}

impl LoneArray {
    /// Opens the array at `location`, or the only array of the store there, with the storage options of `spec` if the
    /// location is remote. `mask_and_scale`: whether values are decoded.
    ///
    /// # Errors
    /// If there is no array, or its metadata can't be read.
    pub fn open(spec: &Spec, location: &str, mask_and_scale: bool) -> Result<Self> {
        let of = Spec::default().with(|s| {
            s.source.paths = vec![location.to_owned()];
            if store::is_remote(location) {
                s.source.storage_options.clone_from(&spec.source.storage_options);
            }
            s.values.mask_and_scale = PerOutput::one(mask_and_scale);
        });
        let mut dataset = Dataset::open(&of)?;
        let (store, array) = (dataset.stores.swap_remove(0), dataset.arrays.swap_remove(0));
        let found = if array.parts[0].is_root() {
            let parent = parent(location).and_then(|parent| open_parent(spec, &parent));
            parent.map_or_else(|| Ok(Map::new()), |parent| group_attributes(&*parent, ""))
        } else {
            let name = array.name.trim_matches('/');
            group_attributes(&*store, name.rsplit_once('/').map_or("", |(group, _)| group))
        };
        let group = match found {
            // A server may refuse access to the array's parent.
            Err(e) if e.is_refused() => Map::new(),
            found => found?,
        };
        Ok(Self { store, array, group })
    }
}

/// Limit on the locations above an array at which OME-Zarr attributes are looked for: the parts of a level's path.
const MAX_ABOVE: usize = 4;

/// The attributes of groups, with the location of their store, by the group's location and the Zarr version. `None` where
/// no store can be opened.
pub(super) type Above = HashMap<(String, u8), Option<(String, Map<String, Value>)>>;

/// Adds the OME-Zarr level of an array with its own store, from the attributes at the nearest location above that has the
/// array as a level. `above` holds the attributes that were read for other arrays.
fn place(spec: &Spec, location: &str, described: &mut Described, above: &mut Above) -> Result<()> {
    let key_dims = described.part.key_dims();
    let (mut at, mut path) = (location.trim_end_matches('/').to_owned(), String::new());
    for number in 0..MAX_ABOVE {
        let Some(group) = parent(&at) else { break };
        path = format!("{}/{path}", at.rsplit('/').next().unwrap_or_default());
        at = group;
        let key = (at.clone(), described.version);
        if !above.contains_key(&key) {
            let read = |store: Arc<dyn Store>| {
                let hierarchy = Hierarchy::without_top(&*store);
                let attributes = metadata_error(hierarchy.attributes_around("", described.version))?;
                Ok((store.location().trim_end_matches('/').to_owned(), attributes))
            };
            above.insert(key.clone(), open_parent(spec, &at).map(read).transpose()?);
        }
        let Some((group, attributes)) = &above[&key] else { continue };
        if number == 0 && array::may_miss_dates(location) {
            described.part.missing_dates = array::missing_dates(attributes);
        }
        let Some(level) = ome::level(attributes, group, &path, key_dims) else { continue };
        if let Some(axes) = level.axes.as_ref().filter(|_| !described.named) {
            let mut names = DimNames { names: axes.clone(), unclear: None };
            if described.part.shape.len() > key_dims {
                names.push("complex");
            }
            (described.dims, described.named) = (names, true);
        }
        described.level = Some(level);
        break;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parent;

    #[test]
    fn parents() {
        for (location, expected) in [
            ("./a.zarr/0", Some("./a.zarr")),
            ("./a.zarr/", Some(".")),
            ("/a", Some("/")),
            ("s3://bucket/a.zarr/0", Some("s3://bucket/a.zarr")),
            ("https://host:80/a", Some("https://host:80")),
            ("https://host", None),
            ("https://host/a?key=b/c", None),
            ("file:///data/a", Some("file:///data")),
        ] {
            assert_eq!(parent(location).as_deref(), expected, "{location}");
        }
    }
}
