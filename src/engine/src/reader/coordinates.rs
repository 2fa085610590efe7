//! Coordinates of a dimension: the array with the dimension's name. It lies in the group of the arrays that have the
//! dimension, or in the nearest group around it, as in CF and xarray's `DataTree`. Stores of anemoi-datasets name it
//! otherwise. This module reads coordinates, and checks that arrays of several stores have the same ones.

use std::sync::Arc;

use super::Reader;
use super::opening::UnstartedReader;
use super::text;
use super::times::{Comparison, Meaning};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, ErrorKind, Result, Site};
use dali_zarr_base::first_log::warn_once;
use dali_zarr_samples::dataset::{ArrayInfo, Dataset, MAX_COORDINATES, Texts, View, open_parent};
use dali_zarr_samples::geometry::Role;
use dali_zarr_samples::spec::{DimKey, PerOutput, Spec};
use dali_zarr_stores::{self as store, Store};

/// Finds the array with the coordinates along `dim` of an array in `group` that has `len` elements along it; `None` if
/// there is none. See [`View::nearest`].
///
/// # Errors
/// If its metadata can't be read, or it has no numbers.
pub(crate) fn nearest(store: &Arc<dyn Store>, group: &str, dim: &str, len: u64) -> Result<Option<ArrayInfo>> {
    View::of(store)?.nearest(group, dim, len)?.map(|array| array.numbers(true)).transpose()
}

/// Reads all values of an array of one dimension, decoded, as float64.
///
/// # Errors
/// If they can't be read.
pub(crate) fn read(store: &Arc<dyn Store>, array: ArrayInfo) -> Result<Vec<f64>> {
    let bytes = read_as(store, array, DType::F64, true, &Spec::default())?;
    Ok(bytes.as_chunks().0.iter().map(|&bytes| f64::from_ne_bytes(bytes)).collect())
}

/// Reads all elements of an array as `dtype`, in C order and native byte order. `decoded`: whether the attributes of the
/// array decode them. `of`: the spec of the reader that they are for, whose folder on a disk may keep chunks.
///
/// # Errors
/// If they can't be read.
pub(crate) fn read_as(
    store: &Arc<dyn Store>,
    array: ArrayInfo,
    dtype: DType,
    decoded: bool,
    of: &Spec,
) -> Result<Vec<u8>> {
    let shape = &array.parts[0].shape;
    if shape.contains(&0) {
        return Ok(Vec::new());
    }
    let is_scalar = shape.is_empty();
    let spec = Spec::default().with(|s| {
        s.source.paths = vec![store.location().to_owned()];
        if !is_scalar {
            s.samples.dims = vec![DimKey::Index(0)];
            s.samples.window = vec![-1].into();
        }
        s.values.mask_and_scale = PerOutput::one(decoded);
        s.values.dtype = PerOutput::one(dtype);
        s.resources.prefetch_queue_depth = Some(1);
        s.resources.io_threads = Some(1);
        s.resources.decode_threads = Some(1);
        // Only chunks of servers are kept on a disk.
        if store.latency() == store::Latency::Remote {
            s.source.storage_options.clone_from(&of.source.storage_options);
            s.resources.cache_dir.clone_from(&of.resources.cache_dir);
            s.resources.cache_dir_size = of.resources.cache_dir_size;
            s.resources.cache_validate = of.resources.cache_validate;
        }
    });
    let batch = Reader::small(spec, Dataset::of_array(store, array))?.next_batch()?;
    Ok(batch.host[0].as_slice().to_vec())
}

/// The group of an array, where its coordinates are searched.
#[derive(PartialEq, Eq)]
pub(super) struct StoreGroup {
    /// Index into the dataset's stores.
    pub store: usize,
    pub path: String,
}

/// The coordinates of an array along a dimension. The site is the array's, for messages.
pub(super) enum Coordinates {
    Numbers(Site, Numbers),
    /// Text or bytes.
    Text(Site, Texts),
}

/// Coordinates that are numbers or times.
pub(super) struct Numbers {
    pub dtype: DType,
    pub meaning: Meaning,
    /// Decoded; NaN where they are missing.
    pub values: Vec<f64>,
    /// If some are missing, all values as they are stored. In Zarr v2, zeros are missing if zero is the fill value.
    pub stored: Option<Vec<f64>>,
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
            // Along an axis with places, arrays have coordinates of their own.
            if view.places.get(d).copied().flatten().is_some() {
                continue;
            }
            // An aligned array has other coordinates along the first of `dims`.
            if a == 0 && spec.source.follows(&array.output) {
                continue;
            }
            let part = &array.parts[0];
            let path = part.path().rsplit_once('/').map_or("", |(group, _)| group).to_owned();
            let group = StoreGroup { store: part.store, path };
            if groups.contains(&group) {
                continue;
            }
            let site = Site::store(dataset.stores[part.store].location());
            let site = if dataset.parents[part.store].is_some() { site } else { site.array(&*array.name) };
            let what = format!("{site}: the coordinates along \"{}\"", axis.name);
            let found = match coordinates(spec, dataset, &group, &axis.name, part.shape[d], site) {
                // What can't be labels.
                Err(e) if e.kind() == ErrorKind::Type => {
                    warn_once(format!("{what} aren't compared with those of other arrays: {e}"));
                    None
                }
                found => {
                    found.map_err(|e| e.within(format!("{what}, which other arrays must share, can't be read")))?
                }
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
pub(super) fn coordinates(
    spec: &Spec,
    dataset: &Dataset,
    group: &StoreGroup,
    dim: &str,
    len: u64,
    site: Site,
) -> Result<Option<Coordinates>> {
    let Some(store) = store_with(spec, dataset, group.store) else { return Ok(None) };
    let found = match View::of(&store)?.nearest(&group.path, dim, len) {
        // A store may refuse what isn't there.
        Err(e) if e.is_refused() => None,
        found => found?,
    };
    let Some(found) = found.filter(|found| len <= MAX_COORDINATES && found.shape().is_ok_and(|shape| shape == [len]))
    else {
        return Ok(None);
    };
    if let Some(array) = found.text().map_err(|e| e.of_kind(ErrorKind::Type))? {
        let texts = text::read(&store, &array, &site)?;
        return Ok(Some(Coordinates::Text(site, texts)));
    }
    let array = found.numbers(true).map_err(|e| found.refused(e))?;
    let meaning = Meaning::new(array.units.as_deref(), array.calendar.as_deref());
    let dtype = array.cf.decoded;
    let values = read(&store, array)?;
    let mut stored = None;
    if values.iter().any(|value| value.is_nan()) {
        let mut array = found.numbers(true)?;
        array.cf.missing.clear();
        stored = Some(read(&store, array)?);
    }
    Ok(Some(Coordinates::Numbers(site, Numbers { dtype, meaning, values, stored })))
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
    fn site(&self) -> &Site {
        match self {
            Self::Numbers(site, _) | Self::Text(site, _) => site,
        }
    }

    fn check(&self, other: &Self, dim: &str) -> Result<()> {
        let expected =
            format!("expected arrays that are cut along \"{dim}\" together to have the same coordinates there");
        let (site, other_site) = (self.site(), other.site());
        let difference = match (self, other) {
            (Self::Numbers(_, one), Self::Numbers(_, other)) => match one.meaning.compared(&other.meaning) {
                Comparison::Impossible(one, of) => {
                    return Err(Error::value(format!(
                        "{expected}, but found {one} in {site}, and {of} in {other_site}, which can't be compared; give arrays with \
                         coordinates of the same kind"
                    )));
                }
                how => one.difference(other, &how),
            },
            (Self::Text(_, one), Self::Text(_, other)) => difference_of_text(one, other),
            (Self::Numbers(..), Self::Text(..)) | (Self::Text(..), Self::Numbers(..)) => {
                warn_once(format!(
                    "{site}, and {other_site}: the coordinates along \"{dim}\" are text in one and numbers in the other, and aren't \
                     compared"
                ));
                None
            }
        };
        let Some((i, a, b)) = difference else { return Ok(()) };
        Err(Error::value(format!(
            "{expected}, but found {a} at index {i} in {site}, and {b} in {other_site}; give arrays that are in step"
        )))
    }
}

/// Returns the first element that differs, as index and as text of both.
fn difference_of_text(one: &Texts, other: &Texts) -> Option<(usize, String, String)> {
    let shown = |texts: &Texts, i: usize| format!("{:?}", String::from_utf8_lossy(texts.element(i)));
    let count = one.ends.len().min(other.ends.len());
    let i = (0..count).find(|&i| one.element(i) != other.element(i))?;
    Some((i, shown(one, i), shown(other, i)))
}

impl Numbers {
    /// Returns the first element that differs, as index and as text of both.
    fn difference(&self, other: &Self, how: &Comparison) -> Option<(usize, String, String)> {
        let differs = |a: f64, b: f64| match how {
            _ if a == b && *how == Comparison::Numbers => false,
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
        let i = (0..self.values.len().min(other.values.len())).find(|&i| !is_same(i))?;
        let (mut a, mut b) = (self.shown(i), other.shown(i));
        if a == b {
            // The same date in two calendars: the message names these too.
            (a, b) = (format!("{a} ({})", self.meaning.text()), format!("{b} ({})", other.meaning.text()));
        }
        Some((i, a, b))
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
