//! The labels of a reader's arrays as hosts get them: coordinates as they are stored, with the attributes that decode
//! them. They come from the stores that a reader opens, and are read by a reader.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use crate::reader::coordinates::read_as;
use crate::reader::text;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::json::with_bare_tokens;
use dali_zarr_samples::dataset::{ArrayPart, Dataset, MAX_COORDINATES, View, ViewedArray, open_parent, resolved};
use dali_zarr_samples::spec::{PerOutput, Spec};

/// The labels of arrays. Stores stay open.
pub struct Labels {
    spec: Spec,
    dataset: Dataset,
    /// For each store of the dataset the view of the store with the coordinates; `None` if there is none.
    views: Vec<OnceLock<Option<View>>>,
    /// For each store the number of the store that has its view. All groups of a store share one: it may have metadata of
    /// thousands of groups.
    first: Vec<usize>,
}

/// The elements of an array, in C order.
#[derive(Debug)]
pub struct Values {
    /// Numbers in native byte order, or the bytes of all texts.
    pub bytes: Vec<u8>,
    /// For text the end of each element in `bytes`; empty for numbers.
    pub ends: Vec<i64>,
}

impl Labels {
    /// Opens the stores of `spec`. Only its paths, arrays, dims, storage options and `cache_dir` are used.
    ///
    /// # Errors
    /// As opening a reader of these arrays does.
    pub fn open(spec: &Spec) -> Result<Self> {
        let spec = resolved(spec, &[])?.into_owned().with(|s| s.values.mask_and_scale = PerOutput::one(false));
        let dataset = Dataset::open(&spec)?;
        let views = dataset.stores.iter().map(|_| OnceLock::new()).collect();
        let mut first: Vec<usize> = (0..dataset.stores.len()).collect();
        for store in 1..dataset.groups.len() {
            if Arc::ptr_eq(&dataset.stores[store], &dataset.stores[store - 1]) {
                first[store] = first[store - 1];
            }
        }
        Ok(Self { spec, dataset, views, first })
    }

    /// Finds the coordinates along `dim` of array number `array` in store number `store`, where the array has `len`
    /// elements along it. Without `dim` it finds the array itself. Returns a description; see `dali_zarr_labels_find` in
    /// `include/dali_zarr.h`.
    ///
    /// # Errors
    /// If there is no such array or store, or metadata can't be read.
    pub fn find(&self, array: usize, store: usize, dim: Option<(&str, u64)>) -> Result<String> {
        let part = self.part(array, store)?;
        let found = match (self.view(part)?, dim) {
            (None, None) => return Err(Error::value("the array's own store has no parent that can be opened")),
            (None, Some(_)) => None,
            (Some(view), None) => view.array(self.path(part))?,
            (Some(_), Some(_)) if self.is_alone(part) => None,
            (Some(view), Some((dim, len))) => view.nearest(&self.group(part), dim, len)?,
        };
        let described = found.map(|found| described(&found, dim.is_none())).transpose()?;
        Ok(described.as_ref().map_or_else(|| "null".to_owned(), with_bare_tokens))
    }

    /// Returns the attributes of the group of array number `array` in store number `store`, as a JSON object. It is empty
    /// if there is no group.
    ///
    /// # Errors
    /// If there is no such array or store, or metadata can't be read.
    pub fn attributes(&self, array: usize, store: usize) -> Result<String> {
        let part = self.part(array, store)?;
        let found = match self.view(part)? {
            Some(view) if !self.is_alone(part) => view.attributes(&self.group(part))?,
            _ => Map::new(),
        };
        Ok(with_bare_tokens(&Value::Object(found)))
    }

    /// Reads the elements of the array `name`, which [`Self::find`] told for the same `array` and `store`.
    ///
    /// # Errors
    /// If there is no such array, it has too many elements, or they can't be read.
    pub fn read(&self, array: usize, store: usize, name: &str) -> Result<Values> {
        let part = self.part(array, store)?;
        let view = self.view(part)?;
        let found = view.map(|view| view.array(name)).transpose()?.flatten();
        let (Some(view), Some(found)) = (view, found) else {
            return Err(Error::value(format!("there is no array '{name}'")));
        };
        let site = Site::store(view.store().location()).array(name);
        if let Some(array) = found.text()? {
            let texts = text::read(view.store(), &array, &site)?;
            return Ok(Values { bytes: texts.bytes, ends: texts.ends });
        }
        let numbers = found.numbers(false).map_err(|e| found.refused(e))?;
        let count = numbers.parts[0].shape.iter().try_fold(1u64, |count, &n| count.checked_mul(n));
        if count.is_none_or(|count| count > MAX_COORDINATES) {
            let found = &numbers.parts[0].shape;
            return Err(Error::value(format!(
                "expected at most {MAX_COORDINATES} elements, but found the shape {found:?}"
            ))
            .at(site));
        }
        let dtype = delivered(numbers.dtype);
        Ok(Values { bytes: read_as(view.store(), numbers, dtype, false, &self.spec)?, ends: Vec::new() })
    }

    fn part(&self, array: usize, store: usize) -> Result<&ArrayPart> {
        // An array with a store of its own has one part, whatever the number of stores.
        let array_parts = self.dataset.arrays.get(array).map_or(&[][..], |array| &array.parts);
        let found = array_parts.get(if array_parts.len() == 1 { 0 } else { store });
        found.ok_or_else(|| Error::index(format!("array {array} in store {store}: there is none")))
    }

    /// Returns the view of the store with the coordinates of an array: its store, or the parent location of a store that is
    /// the array.
    fn view(&self, part: &ArrayPart) -> Result<Option<&View>> {
        let kept = &self.views[self.first[part.store]];
        if let Some(view) = kept.get() {
            return Ok(view.as_ref());
        }
        let view = match &self.dataset.parents[part.store] {
            None => Some(View::of(&self.dataset.stores[part.store])?),
            Some(parent) => open_parent(&self.spec, parent).map(|store| View::open(&store, &[])).transpose()?,
        };
        Ok(kept.get_or_init(|| view).as_ref())
    }

    /// Whether the array is a store without a known parent, so that nothing lies beside it.
    fn is_alone(&self, part: &ArrayPart) -> bool {
        part.is_root() && self.dataset.parents[part.store].is_none()
    }

    /// Returns the path of an array in its view.
    fn path<'a>(&'a self, part: &'a ArrayPart) -> &'a str {
        match &self.dataset.parents[part.store] {
            Some(_) => {
                let location = self.dataset.stores[part.store].location().trim_end_matches('/');
                location.rsplit_once('/').map_or(location, |(_, name)| name)
            }
            None => part.path(),
        }
    }

    /// Returns the path of the group of an array in its view.
    fn group(&self, part: &ArrayPart) -> String {
        part.path().rsplit_once('/').map_or("", |(group, _)| group).to_owned()
    }
}

/// Returns the type in which numbers are handed out. NumPy has no bfloat16.
fn delivered(dtype: DType) -> DType {
    if dtype == DType::BF16 { DType::F32 } else { dtype }
}

/// Describes an array. If it must be one of coordinates (not `is_any`) and has another number of dimensions than one, only
/// its shape is told.
fn described(array: &ViewedArray, is_any: bool) -> Result<Value> {
    let shape = array.shape()?;
    let mut told = json!({ "name": array.name, "shape": shape, "kind": null });
    if !is_any && shape.len() != 1 {
        return Ok(told);
    }
    told["attributes"] = Value::Object(array.attributes().clone());
    told["zarr_format"] = array.version().into();
    if let Some(text) = array.text()? {
        told["kind"] = if text.dtype.is_text() { "text" } else { "bytes" }.into();
        told["dtype"] = text.dtype.name().into();
        told["fill_value"] = text.fill.map_or(Value::Null, |fill| match String::from_utf8(fill) {
            Ok(fill) if text.dtype.is_text() => fill.into(),
            Ok(fill) => fill.into_bytes().into(),
            Err(fill) => fill.into_bytes().into(),
        });
        return Ok(told);
    }
    let numbers = array.numbers(false).map_err(|e| array.refused(e))?;
    let is_bfloat = numbers.dtype == DType::BF16;
    told["kind"] = "numbers".into();
    told["dtype"] = if is_bfloat { DType::F32.name().into() } else { numbers.stored.into() };
    // The bits of bfloat16 are the upper half of those of float32.
    let bits = |bits: u64| if is_bfloat { bits << 16 } else { bits };
    told["fill_value"] = array.fill()?.map_or(Value::Null, |fill| json!([bits(fill.bits), bits(fill.imaginary)]));
    Ok(told)
}
