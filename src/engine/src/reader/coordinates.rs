//! Coordinates of a dimension: the array with the dimension's name. It lies in the group of the arrays that have the
//! dimension, or in the nearest group around it, as in CF and xarray's `DataTree`. This module reads coordinates, and
//! checks that arrays of several stores have the same ones.

use std::sync::Arc;

use super::Reader;
use super::opening::{UnstartedReader, is_first_log_of};
use super::times::{Comparison, Meaning};
use crate::dataset::{ArrayInfo, Dataset, lone_array, open_parent};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result, Site};
use crate::geometry::Role;
use crate::spec::{DimKey, PerOutput, Spec};
use crate::store::Store;

/// Maximum number of coordinates along a dimension. They take 512 MiB.
pub(crate) const MAX_COORDINATES: u64 = 1 << 26;

/// Finds the array `name` in a group, or in the nearest group around it that has one; `None` if there is none.
///
/// # Errors
/// If its metadata can't be read.
pub(crate) fn nearest(store: &dyn Store, group: &str, name: &str) -> Result<Option<ArrayInfo>> {
    let path = if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") };
    match lone_array(store, &path, true)? {
        None if !group.is_empty() => nearest(store, group.rsplit_once('/').map_or("", |(parent, _)| parent), name),
        found => Ok(found),
    }
}

/// Reads all values of an array of one dimension, decoded, as float64.
///
/// # Errors
/// If they can't be read.
pub(crate) fn read(store: &Arc<dyn Store>, array: ArrayInfo) -> Result<Vec<f64>> {
    if array.parts[0].shape.contains(&0) {
        return Ok(Vec::new());
    }
    let spec = Spec::default().with(|s| {
        s.source.paths = vec![store.location().to_owned()];
        s.samples.dims = vec![DimKey::Index(0)];
        s.samples.window = vec![-1].into();
        s.values.mask_and_scale = PerOutput::one(true);
        s.values.dtype = PerOutput::one(DType::F64);
        s.resources.prefetch_queue_depth = Some(1);
        s.resources.io_threads = Some(1);
        s.resources.decode_threads = Some(1);
    });
    let batch = Reader::small(spec, Dataset::of_array(store, array))?.next_batch()?;
    let (values, _) = batch.host[0].as_slice().as_chunks();
    Ok(values.iter().map(|&bytes| f64::from_ne_bytes(bytes)).collect())
}

/// The group of an array, where its coordinates are searched.
#[derive(PartialEq, Eq)]
struct StoreGroup {
    /// Index into the dataset's stores.
    store: usize,
    path: String,
}

/// The coordinates of an array along a dimension.
struct Coordinates {
    /// The site of the array, for messages.
    site: Site,
    dtype: DType,
    meaning: Meaning,
    /// Decoded; NaN where they are missing.
    values: Vec<f64>,
    /// If some are missing, all values as they are stored. In Zarr v2, zeros are missing if zero is the fill value.
    stored: Option<Vec<f64>>,
}

/// Checks that arrays of different stores have equal coordinates along the dimensions that samples are cut along.
/// Arrays without coordinates aren't checked. Reads nothing if no array has a store of its own.
///
/// # Errors
/// If coordinates differ, or can't be read.
pub(crate) fn check_in_step(spec: &Spec, unstarted: &UnstartedReader) -> Result<()> {
    if spec.source.own().next().is_none() {
        return Ok(());
    }
    let (dataset, geometry) = (&unstarted.chunk_index.dataset, unstarted.chunk_index.planner.geometry());
    for (a, axis) in geometry.axes.iter().enumerate() {
        let mut groups: Vec<StoreGroup> = Vec::new();
        let mut first: Option<Coordinates> = None;
        for (array, view) in dataset.arrays.iter().zip(&geometry.views) {
            let Some(d) = view.dims.iter().position(|dim| dim.role == Role::Axis(a)) else { continue };
            let part = &array.parts[0];
            let path = part.path().rsplit_once('/').map_or("", |(group, _)| group).to_owned();
            let group = StoreGroup { store: part.store, path };
            if groups.contains(&group) {
                continue;
            }
            let site = Site::store(dataset.stores[part.store].location());
            let site = if dataset.parents[part.store].is_some() { site } else { site.array(&*array.name) };
            let found = match coordinates(spec, dataset, &group, &axis.name, part.shape[d], site.clone()) {
                // Coordinates that aren't numbers, such as text.
                Err(e) if e.kind() == ErrorKind::Type => {
                    let text = format!(
                        "{site}: the coordinates along \"{}\" aren't numbers, and the reader doesn't compare them with those of other \
                         arrays; loaders, dali_zarr.zarr_reader and explain compare text",
                        axis.name
                    );
                    if is_first_log_of(&text) {
                        tracing::warn!("{text}");
                    }
                    None
                }
                found => found.map_err(|e| {
                    let why = format!(
                        "{site}: the coordinates along \"{}\", which other arrays must share, can't be read",
                        axis.name
                    );
                    e.within(why)
                })?,
            };
            groups.push(group);
            match (&first, found) {
                (Some(first), Some(found)) => first.check(&found, &axis.name)?,
                (None, found) => first = found,
                (Some(_), None) => {}
            }
        }
    }
    Ok(())
}

/// Reads the coordinates of an array of `len` elements along `dim`. Searches them in `group`; `None` if there are none.
fn coordinates(
    spec: &Spec,
    dataset: &Dataset,
    group: &StoreGroup,
    dim: &str,
    len: u64,
    site: Site,
) -> Result<Option<Coordinates>> {
    let Some(store) = store_with(spec, dataset, group.store) else { return Ok(None) };
    let find = || match nearest(&*store, &group.path, dim) {
        // A store may refuse what isn't there.
        Err(e) if e.is_refused() => Ok(None),
        array => array,
    };
    let Some(array) = find()?.filter(|array| array.parts[0].shape == [len] && len <= MAX_COORDINATES) else {
        return Ok(None);
    };
    let meaning = Meaning::new(array.units.as_deref(), array.calendar.as_deref());
    let dtype = array.cf.decoded;
    let values = read(&store, array)?;
    // The metadata are looked up once more only where something is missing.
    let again = if values.iter().any(|value| value.is_nan()) { find()? } else { None };
    let stored = match again {
        None => None,
        Some(mut array) => {
            array.cf.missing.clear();
            Some(read(&store, array)?)
        }
    };
    Ok(Some(Coordinates { site, dtype, meaning, values, stored }))
}

/// Returns the store in which to search the coordinates of arrays of store number `store`; `None` if it can't be
/// opened.
pub(super) fn store_with(spec: &Spec, dataset: &Dataset, store: usize) -> Option<Arc<dyn Store>> {
    match &dataset.parents[store] {
        None => Some(Arc::clone(&dataset.stores[store])),
        Some(parent) => open_parent(spec, parent),
    }
}

impl Coordinates {
    fn check(&self, other: &Self, dim: &str) -> Result<()> {
        let expected =
            format!("expected arrays that are cut along \"{dim}\" together to have the same coordinates there");
        let how = self.meaning.compared(&other.meaning);
        if let Comparison::Impossible(one, of) = &how {
            return Err(Error::value(format!(
                "{expected}, but found {one} in {}, and {of} in {}, which can't be compared; give arrays with coordinates of the same \
                 kind",
                self.site, other.site
            )));
        }
        let differs = |a: f64, b: f64| match how {
            _ if a == b && how == Comparison::Numbers => false,
            Comparison::Times => {
                let rounding = self.meaning.rounding(a, self.dtype) + other.meaning.rounding(b, other.dtype);
                let apart = (self.meaning.seconds(a) - other.meaning.seconds(b)).abs();
                // Some units represent dates only to a millisecond.
                apart.is_nan() || apart > rounding + 1e-3
            }
            // 0.1 as float32 counts as equal to 0.1 as float64.
            _ if self.dtype == DType::F32 || other.dtype == DType::F32 => (a as f32) != (b as f32),
            _ => true,
        };
        // Coordinates are the same if both are missing, or if both are equal. If only one is missing, the stored
        // numbers are compared, since zeros may count as missing in Zarr v2. Equal numbers are enough to be in step.
        // `breaks="auto"`, which needs distances, refuses missing coordinates.
        let is_same = |i: usize| match (self.is_missing(i), other.is_missing(i)) {
            (true, true) => true,
            (false, false) => !differs(self.values[i], other.values[i]),
            _ => !differs(self.stored(i), other.stored(i)),
        };
        let Some(i) = (0..self.values.len().min(other.values.len())).find(|&i| !is_same(i)) else { return Ok(()) };
        let (mut a, mut b) = (self.shown(i), other.shown(i));
        if a == b {
            // The same date in two calendars: the message names these too.
            (a, b) = (format!("{a} ({})", self.meaning.text()), format!("{b} ({})", other.meaning.text()));
        }
        Err(Error::value(format!(
            "{expected}, but found {a} at index {i} in {}, and {b} in {}; give arrays that are in step",
            self.site, other.site
        )))
    }

    fn is_missing(&self, i: usize) -> bool {
        self.values[i].is_nan() || self.meaning.is_nat(self.values[i])
    }

    /// Returns the stored value of an element; NaN if it is NaT (not a time).
    fn stored(&self, i: usize) -> f64 {
        let value = self.stored.as_ref().unwrap_or(&self.values)[i];
        if self.meaning.is_nat(value) { f64::NAN } else { value }
    }

    /// Formats an element for messages.
    fn shown(&self, i: usize) -> String {
        let value = if self.is_missing(i) { self.stored(i) } else { self.values[i] };
        if value.is_nan() { "none".into() } else { self.meaning.shown(value) }
    }
}
