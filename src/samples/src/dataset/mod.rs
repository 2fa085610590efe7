//! Datasets: turns paths and names into arrays that can be read, with their shapes, types, chunk grids, formats and
//! keys.
//!
//! This module reads only metadata, never a chunk. It checks everything in the metadata, so later stages may trust it:
//! shapes don't overflow, chunk extents are positive, chunks fit into memory, and all codecs are known.

#![forbid(unsafe_code)]

mod array;
mod cf;
mod chunks;
mod documents;
mod find;
mod grid;
mod groups;
mod hierarchy;
mod kept;
mod lengths;
mod listing;
mod names;
mod ome;
mod own;
mod positions;
mod sharding;
mod text;
mod view;

use std::sync::Arc;

pub use array::ArrayPart;
pub use cf::Cf;
pub use grid::DimGrid;
pub use groups::resolved;
pub use kept::Kept;
pub use lengths::{ChunkLengths, LengthRun};
pub use listing::{Listed, Listing, list};
pub use names::{DimNames, Unclear};
pub use ome::{Level, LevelPlace};
pub use own::{LoneArray, open_parent, parent_of};
pub use sharding::Sharding;
pub use text::{MAX_TEXT, TextArray, Texts};
pub use view::{MAX_COORDINATES, View, ViewedArray};

use crate::spec::{ArrayArgument, Concat, Spec};
use array::Described;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Code, Error, ErrorKind, Result, Site};
use dali_zarr_stores::{self as store, Latency, ReadFiles, Store};
use find::{base_name, find, only_name};
use hierarchy::Hierarchy;

/// The arrays that a reader reads, in all of its stores.
pub struct Dataset {
    /// The stores, in the order of the spec's paths, then those of arrays with a store of their own.
    pub stores: Vec<Arc<dyn Store>>,
    /// The arrays, in the order of the spec's arrays.
    pub arrays: Vec<ArrayInfo>,
    /// For each store: the location of its parent, where coordinates may be, if the store is the array of an array
    /// argument with its own store. Otherwise `None`.
    pub parents: Vec<Option<String>>,
    /// If samples are cut from groups: the path of each, for each of `stores`. Otherwise empty.
    pub groups: Vec<String>,
}

/// An array. It has one part in each store.
#[derive(Debug)]
pub struct ArrayInfo {
    /// The array's name in the store, or the store's name if the store is the array. For an array with its own store,
    /// the location as the user gave it.
    pub name: String,
    /// The name of the array's output.
    pub output: String,
    /// The names of the dimensions.
    pub dims: DimNames,
    /// The element type. For complex elements, the type of their two parts.
    pub dtype: DType,
    /// The stored type, as NumPy names it.
    pub stored: String,
    /// The value of elements in missing chunks: bits of `dtype` in native order, zero-extended. For complex elements,
    /// the real part.
    pub fill: u64,
    /// The imaginary part of the fill value of complex elements. Equal to `fill` for other types.
    pub imaginary_fill: u64,
    /// Whether values are decoded: as `mask_and_scale` says, or by the attributes if it wasn't given.
    pub decoded: bool,
    /// How stored values are decoded. The identity if `decoded` is false.
    pub cf: Cf,
    /// The unit of the values: the attribute `units`, or the stored type for times.
    pub units: Option<String>,
    /// The calendar of times, from the attribute `calendar`.
    pub calendar: Option<String>,
    /// One part for each store, all with the same number of dimensions.
    pub parts: Vec<ArrayPart>,
}

impl Dataset {
    /// Makes a dataset of one array in one store.
    pub fn of_array(store: &Arc<dyn Store>, array: ArrayInfo) -> Self {
        Self { stores: vec![Arc::clone(store)], arrays: vec![array], parents: vec![None], groups: Vec::new() }
    }

    /// Opens the stores of `spec` and reads the metadata of its arrays.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] if a store or an array doesn't exist or can't be read, or the stores don't fit together;
    /// [`ErrorKind::Type`] for a data type that DALI doesn't have.
    pub fn open(spec: &Spec) -> Result<Self> {
        Self::open_as(spec, None)
    }

    /// Like [`Self::open`], with the elements that the dataset had when `kept` was made of it.
    ///
    /// # Errors
    /// Those of [`Self::open`]; also if an array has become shorter.
    pub fn open_as(spec: &Spec, kept: Option<&Kept>) -> Result<Self> {
        spec.source.check()?;
        if !spec.source.members.is_empty() {
            let described = groups::open(spec, kept)?.into_iter().map(Ok);
            let groups = spec.source.members.iter().map(|member| member.group.clone()).collect();
            return Self::of_described(spec, described.collect(), groups);
        }
        let how = ReadFiles { unbuffered: spec.resources.use_o_direct, versions: spec.resources.cache_size > 0 };
        let locations = spec.source.locations();
        let mut stores = store::open(&locations, &spec.source.storage_options, spec.io_threads(), how)?;
        for (store, snapshot) in stores.iter_mut().zip(kept.into_iter().flat_map(|kept| &kept.snapshots)) {
            *store = Arc::clone(snapshot.as_ref().unwrap_or(store));
        }
        Self::of_stores(spec, stores, kept)
    }

    /// Like [`Self::open_as`], with opened stores, one for each location.
    ///
    /// # Errors
    /// Those of [`Self::open_as`].
    pub fn of_stores(spec: &Spec, stores: Vec<Arc<dyn Store>>, kept: Option<&Kept>) -> Result<Self> {
        if spec.source.own().next().is_some() {
            return own::open(spec, stores, kept);
        }
        let wanted = Wanted::of(spec);
        let described = each_store(&stores, |i, store| describe(spec, &wanted, i, store, kept));
        Self::of_described(spec, described, Vec::new())
    }

    /// Makes a dataset of what the metadata of its stores say. `groups` are the paths of its groups, if each is a store.
    fn of_described(spec: &Spec, described: Vec<Result<Arrays>>, groups: Vec<String>) -> Result<Self> {
        let mut arrays: Vec<ArrayInfo> = Vec::new();
        let (mut named, mut levels, mut above) = (Vec::new(), Vec::new(), own::Above::new());
        let mut stores: Vec<Arc<dyn Store>> = Vec::with_capacity(described.len());
        let place = |i: usize, store: &dyn Store| match groups.get(i) {
            Some(group) => format!("{}/{group}", store.location().trim_end_matches('/')),
            None => store.location().to_owned(),
        };
        for (i, described) in described.into_iter().enumerate() {
            let (store, described) = described?;
            stores.push(store);
            for (position, (ArrayArgument { output, array }, mut described)) in described.into_iter().enumerate() {
                // Each group has the array, whose name is the one that was given.
                let array = if groups.is_empty() { array } else { spec.source.arrays[position].array.clone() };
                if described.part.is_root() {
                    own::place_alone(spec, &spec.source.paths[i], &mut described, &mut above)?;
                }
                if i == 0 {
                    let own = || base_name(stores[0].location());
                    let name = if array.is_empty() { own() } else { array };
                    let output = if output.is_empty() { own() } else { output };
                    named.push(described.named);
                    levels.push(described.level.clone());
                    arrays.push(ArrayInfo::new(name, output, described));
                } else {
                    let level = levels[position].as_ref();
                    let places = [place(0, &*stores[0]), place(i, &*stores[i])];
                    join(spec, &mut arrays[position], level, described, places)?;
                }
            }
        }
        // The first dimension of ragged arrays counts elements of rows, not samples, so it isn't matched by position.
        if spec.samples.ragged.is_none() && spec.samples.ragged_ends.is_none() {
            positions::name(spec, &mut arrays, &named, false);
        }
        let parents = vec![None; stores.len()];
        Ok(Self { stores, arrays, parents, groups })
    }
}

/// Joins what an array is in one of the stores to what it is in the first one, where its level is `level`. The stores are at
/// these places.
///
/// # Errors
/// If they don't fit together.
fn join(
    spec: &Spec,
    array: &mut ArrayInfo,
    level: Option<&Level>,
    described: Described,
    [first, store]: [String; 2],
) -> Result<()> {
    if let (true, Some(of_first), Some(level)) = (is_joined(spec), level, &described.level) {
        level.check_joined(&format!("store {store}"), of_first, &format!("store {first}"))?;
    }
    array.join(described, &first, &store)
}

/// Whether several stores are joined along one axis. Then their images must have the same scale.
fn is_joined(spec: &Spec) -> bool {
    spec.source.paths.len() > 1 && spec.samples.concat == Concat::Dims
}

/// A store, and its arrays with their arguments.
type Arrays = (Arc<dyn Store>, Vec<(ArrayArgument, Described)>);

/// An array to find in a store.
#[derive(Clone, Debug)]
struct Wanted {
    /// The array's position in the spec's `arrays`.
    at: usize,
    /// The name of the output. `None`: the array's name.
    output: Option<String>,
    /// The array's name in the store. `None`: the store's only array.
    array: Option<String>,
}

impl Wanted {
    /// Returns the arrays to find in each store of the spec's paths.
    fn of(spec: &Spec) -> Vec<Self> {
        let want = |(at, a): (usize, &ArrayArgument)| Self {
            at,
            output: Some(a.output.clone()),
            array: Some(a.array.clone()),
        };
        match spec.source.arrays.as_slice() {
            [] => vec![Self { at: 0, output: None, array: None }],
            arrays => arrays.iter().enumerate().map(want).collect(),
        }
    }
}

/// Number of remote stores whose metadata are read at the same time.
const TOGETHER: usize = 16;

/// Calls `work` for each store and returns the results in order. With remote stores, several calls run at the same
/// time.
pub fn each_store<T: Send>(
    stores: &[Arc<dyn Store>],
    work: impl Fn(usize, &Arc<dyn Store>) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let work = |i: usize| work(i, &stores[i]);
    if stores.len() == 1 || stores.iter().all(|s| s.latency() == Latency::Local) {
        return (0..stores.len()).map(work).collect();
    }
    let all: Vec<usize> = (0..stores.len()).collect();
    let together = |some: &[usize]| -> Vec<Result<T>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|&i| scope.spawn(move || work(i))).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|r| r.unwrap_or_else(|p| Err(Error::panicked("while metadata were read", &*p)))).collect()
        })
    };
    all.chunks(TOGETHER).flat_map(together).collect()
}

/// Reads the metadata of the arrays in store number `i`. If the store holds an Icechunk repository or references, the
/// returned store is the one that reads them.
fn describe(spec: &Spec, wanted: &[Wanted], i: usize, store: &Arc<dyn Store>, kept: Option<&Kept>) -> Result<Arrays> {
    let names: Option<Vec<String>> = wanted.iter().map(|want| want.array.clone()).collect();
    let sought = names.as_deref().map_or(Sought::Only, Sought::Names);
    in_hierarchy(sought, store, &|store, hierarchy| describe_in(spec, wanted, i, &**store, hierarchy, kept))
}

/// What is looked for in a store.
#[derive(Clone, Copy)]
enum Sought<'a> {
    /// Its only array, or all of its arrays.
    Only,
    /// The arrays of these names.
    Names(&'a [String]),
    /// Groups.
    Groups,
}

/// What is done with a store and the metadata at its root.
type Work<'a, T> = dyn Fn(&Arc<dyn Store>, Hierarchy<'_>) -> Result<T> + 'a;

/// Calls `work` with the metadata of a store, and returns its result with the store. If `store` holds an Icechunk
/// repository or references, `work` gets the store that reads them, and that one is returned.
fn in_hierarchy<T>(sought: Sought<'_>, store: &Arc<dyn Store>, work: &Work<'_, T>) -> Result<(Arc<dyn Store>, T)> {
    let refused = match Hierarchy::open(&**store) {
        Err(e) if e.is_refused() => Some(e),
        opened => match metadata_error(opened)? {
            Some(hierarchy) => {
                if hierarchy.has_references
                    && let Some(references) = metadata_error(store::references(store))?
                {
                    return in_hierarchy(sought, &references, work);
                }
                return Ok((Arc::clone(store), work(store, hierarchy)?));
            }
            None => None,
        },
    };
    let none = || match &refused {
        Some(e) => e.clone().of_kind(ErrorKind::Value),
        None => Error::value(format!(
            "expected a Zarr group or array, but found none of zarr.json, .zmetadata, .zarray and .zgroup, no array {}\
             below, and no Icechunk repository; check the path",
            if let Sought::Names([name, ..]) = sought { format!("'{name}' ") } else { String::new() }
        ))
        .with_code(Code::NotFound)
        .at(Site::store(store.location())),
    };
    let repository = match store.snapshot() {
        None if refused.is_none() => metadata_error(store::repository(store))?,
        _ => None,
    };
    if let Some(repository) = repository {
        let hierarchy = metadata_error(Hierarchy::open(&*repository))?.ok_or_else(none)?;
        let found = work(&repository, hierarchy)?;
        return Ok((repository, found));
    }
    // Writers of single arrays create parent folders that aren't groups.
    let mut hierarchy = Hierarchy::without_top(&**store);
    let found = match sought {
        // Folders of stores needn't be groups.
        Sought::Groups => {
            metadata_error(hierarchy.groups_below("", groups::MAX_GROUPS))?.is_some_and(|names| !names.is_empty())
        }
        Sought::Only => metadata_error(hierarchy.names())?.is_some_and(|names| !names.is_empty()),
        Sought::Names(names) => {
            hierarchy.read_ahead(names, false);
            names.iter().any(|name| hierarchy.array(name).map_or_else(|e| !e.is_refused(), |node| node.is_some()))
        }
    };
    if !found {
        return Err(none());
    }
    Ok((Arc::clone(store), work(store, hierarchy)?))
}

fn describe_in(
    spec: &Spec,
    wanted: &[Wanted],
    i: usize,
    store: &dyn Store,
    mut hierarchy: Hierarchy<'_>,
    kept: Option<&Kept>,
) -> Result<Vec<(ArrayArgument, Described)>> {
    let named = |want: &Wanted| {
        let array = want.array.clone().map_or_else(|| only_name(&hierarchy, store), Ok)?;
        Ok((want.at, ArrayArgument { output: want.output.clone().unwrap_or_else(|| array.clone()), array }))
    };
    let arrays: Vec<(usize, ArrayArgument)> = wanted.iter().map(named).collect::<Result<_>>()?;
    // Whether arrays are read together, here or in other stores. Then it matters where the elements of images lie.
    let is_beside_others = spec.source.arrays.len() > 1 || is_joined(spec) || spec.samples.scale_by.is_some();
    hierarchy.read_ahead(&arrays.iter().map(|(_, a)| a.array.clone()).collect::<Vec<_>>(), is_beside_others);
    describe_named(spec, arrays, i, store, &hierarchy, kept)
}

/// Reads the metadata of arrays in store number `i`. Each is given with its position in the spec's `arrays`.
fn describe_named(
    spec: &Spec,
    arrays: Vec<(usize, ArrayArgument)>,
    i: usize,
    store: &dyn Store,
    hierarchy: &Hierarchy<'_>,
    kept: Option<&Kept>,
) -> Result<Vec<(ArrayArgument, Described)>> {
    let is_beside_others = spec.source.arrays.len() > 1 || is_joined(spec);
    let found = |(at, array): (usize, ArrayArgument)| {
        let decode = spec.values.mask_and_scale.of(&array.output, at);
        let then = kept.and_then(|kept| kept.shape(at, i));
        let described = find(hierarchy, store, i, &array.array, decode, is_beside_others, then)?;
        Ok((array, described))
    };
    let found: Vec<(ArrayArgument, Described)> = arrays.into_iter().map(found).collect::<Result<_>>()?;
    let level = |(array, described): &'_ (ArrayArgument, Described)| {
        (format!("array '{}'", array.array), described.level.clone())
    };
    let levels: Vec<_> = found.iter().map(level).filter_map(|(name, level)| Some((name, level?))).collect();
    if spec.samples.scale_by.is_none() {
        Level::check_places(&levels).map_err(|e| e.at(Site::store(store.location())))?;
    }
    Ok(found)
}

/// Reads the metadata of the array `name` in a single store. `mask_and_scale`: whether its values are to be decoded.
/// `None` if there is no such array.
///
/// # Errors
/// If its metadata can't be read.
pub fn lone_array(store: &dyn Store, name: &str, mask_and_scale: bool) -> Result<Option<ArrayInfo>> {
    let Some(hierarchy) = metadata_error(Hierarchy::open(store))? else { return Ok(None) };
    let Some(node) = metadata_error(hierarchy.array(name))? else { return Ok(None) };
    let described = metadata_error(array::describe(node, None, 0, Some(mask_and_scale)))
        .map_err(|e| e.at(Site::store(store.location()).array(name)))?;
    Ok(Some(ArrayInfo::new(name.to_owned(), name.to_owned(), described)))
}

/// Returns the attributes of a group of one store. Empty if there is no such group.
///
/// # Errors
/// If its metadata can't be read.
pub fn group_attributes(store: &dyn Store, path: &str) -> Result<serde_json::Map<String, serde_json::Value>> {
    let Some(hierarchy) = metadata_error(Hierarchy::open(store))? else { return Ok(serde_json::Map::new()) };
    metadata_error(hierarchy.group_attributes(path))
}

impl ArrayInfo {
    fn new(name: String, output: String, described: Described) -> Self {
        let Described { mut part, dims, stored, fill, decoded, cf, units, calendar, level, .. } = described;
        part.level = level;
        let (dtype, stored, parts) = (stored.dtype, stored.to_string(), vec![part]);
        let (fill, imaginary_fill) = (fill.bits, fill.imaginary);
        Self { name, output, dims, dtype, stored, fill, imaginary_fill, decoded, cf, units, calendar, parts }
    }

    /// Whether both have the same array name and the same first store.
    pub fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.parts[0].store == other.parts[0].store
    }

    /// Adds the array's part in another store.
    ///
    /// # Errors
    /// If its dimensions, type, fill value or decoding differ from those in the first store.
    fn join(&mut self, other: Described, first: &str, location: &str) -> Result<()> {
        let differ = |what: &str, mine: String, theirs: String| {
            Err(Error::value(format!(
                "stores {first} and {location}, array '{}': expected the same {what} in all stores that are joined, but \
                 found {mine} and {theirs}",
                self.name
            )))
        };
        if self.dims.names != other.dims.names {
            return differ("dimensions", format!("{:?}", self.dims.names), format!("{:?}", other.dims.names));
        }
        if self.stored != other.stored.to_string() {
            return differ("data type", self.stored.clone(), other.stored.to_string());
        }
        let (mine, theirs) = ((self.fill, self.imaginary_fill), (other.fill.bits, other.fill.imaginary));
        if mine != theirs {
            let shown = |fill: (u64, u64)| format!("{:#x}", if mine.0 == theirs.0 { fill.1 } else { fill.0 });
            return differ("fill value", shown(mine), shown(theirs));
        }
        if self.cf != other.cf {
            let theirs = format!("{}; mask_and_scale=False reads them as stored", other.cf);
            return differ("decoding attributes", self.cf.to_string(), theirs);
        }
        let mut part = other.part;
        part.level = other.level;
        self.parts.push(part);
        Ok(())
    }
}

/// Turns runtime errors into value errors, because problems with metadata are found when the reader is built.
fn metadata_error<T>(result: Result<T>) -> Result<T> {
    result.map_err(|e| if e.kind() == ErrorKind::Runtime { e.of_kind(ErrorKind::Value) } else { e })
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_unusual;
