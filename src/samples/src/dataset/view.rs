//! A view of one store: the metadata of arrays that are read beside a reader's own, such as coordinates, and the
//! attributes of groups. It comes from the same documents as the reader's arrays.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::array::{self, shape};
use super::hierarchy::{Hierarchy, Node};
use super::text::{self, TextArray};
use super::{ArrayInfo, Sought, in_hierarchy, metadata_error};
use dali_zarr_base::error::{Code, Error, ErrorKind, Result, Site};
use dali_zarr_base::json::shown;
use dali_zarr_base::stored_type::{self, Fill};
use dali_zarr_stores::Store;

/// Maximum number of coordinates along a dimension. Numbers take 512 MiB.
pub const MAX_COORDINATES: u64 = 1 << 26;

/// The metadata of a store, which is kept open.
pub struct View {
    store: Arc<dyn Store>,
    hierarchy: Hierarchy<'static>,
}

/// The metadata of one array of a [`View`].
pub struct ViewedArray {
    /// The array's path in the store.
    pub name: String,
    node: Node,
    /// For messages.
    site: Site,
}

impl View {
    /// Opens a view of `store`, which has the arrays `names`. If it holds an Icechunk repository or references, the view is of
    /// the store that reads them. A store without metadata at its root may have arrays below.
    ///
    /// # Errors
    /// If its metadata can't be read.
    pub fn open(store: &Arc<dyn Store>, names: &[String]) -> Result<Self> {
        match in_hierarchy(Sought::Names(names), store, &|store, hierarchy| Ok(hierarchy.shared(store))) {
            Ok((store, hierarchy)) => Ok(Self { store, hierarchy }),
            Err(e) if e.code() == Code::NotFound || e.is_refused() => Ok(Self::without_top(store)),
            Err(e) => Err(e),
        }
    }

    /// Makes a view of a store that holds neither an Icechunk repository nor references, or that reads them.
    ///
    /// # Errors
    /// If its metadata can't be read.
    pub fn of(store: &Arc<dyn Store>) -> Result<Self> {
        let found = metadata_error(Hierarchy::open(&**store))?.map(|hierarchy| hierarchy.shared(store));
        Ok(found.map_or_else(|| Self::without_top(store), |hierarchy| Self { store: Arc::clone(store), hierarchy }))
    }

    fn without_top(store: &Arc<dyn Store>) -> Self {
        Self { store: Arc::clone(store), hierarchy: Hierarchy::without_top(&**store).shared(store) }
    }

    /// The store that is read.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the attributes of a group. Empty if there is no such group.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn attributes(&self, group: &str) -> Result<Map<String, Value>> {
        metadata_error(self.hierarchy.group_attributes(group))
    }

    /// Finds the array `name`; `None` if there is none.
    ///
    /// # Errors
    /// If its document can't be read.
    pub fn array(&self, name: &str) -> Result<Option<ViewedArray>> {
        let name = name.trim_matches('/');
        let site = Site::store(self.store.location()).array(name);
        let node = metadata_error(self.hierarchy.array(name))?;
        Ok(node.map(|node| ViewedArray { name: name.to_owned(), node, site }))
    }

    /// Finds the array with the coordinates along `dim` of an array in `group` that has `len` elements along it; `None`
    /// if there is none. It has the dimension's name, and is in the group or in the nearest one around it.
    /// anemoi-datasets names these arrays otherwise.
    ///
    /// # Errors
    /// If documents can't be read.
    pub fn nearest(&self, group: &str, dim: &str, len: u64) -> Result<Option<ViewedArray>> {
        let mut around = group.trim_matches('/');
        loop {
            let found = match self.array(&below(around, dim)) {
                // A store may refuse what isn't there. Consolidated metadata name what is.
                Err(e) if e.is_refused() && self.hierarchy.has_consolidated() => None,
                found => found?,
            };
            if found.is_some() {
                return Ok(found);
            }
            if around.is_empty() {
                break;
            }
            around = around.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        self.anemoi(group.trim_matches('/'), dim, len)
    }

    /// Finds the coordinates in a store of anemoi-datasets: `dates` along `time`, and of trajectories `base_dates` and
    /// `steps`. Such a store has the attribute `variables`, or `name_to_index` if it is old.
    fn anemoi(&self, group: &str, dim: &str, len: u64) -> Result<Option<ViewedArray>> {
        let names: &[&str] = match dim {
            "time" => &["dates", "base_dates"],
            "step" => &["steps"],
            _ => return Ok(None),
        };
        let attributes = self.attributes(group)?;
        if !attributes.get("variables").is_some_and(Value::is_array)
            && !attributes.get("name_to_index").is_some_and(Value::is_object)
        {
            return Ok(None);
        }
        for name in names {
            if let Some(array) = self.array(&below(group, name))?
                && array.shape()? == [len]
            {
                return Ok(Some(array));
            }
        }
        Ok(None)
    }
}

fn below(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") }
}

impl ViewedArray {
    /// Returns the number of elements along each dimension. Complex elements count as one.
    ///
    /// # Errors
    /// If the metadata are wrong.
    pub fn shape(&self) -> Result<Vec<u64>> {
        shape(self.node.metadata.get("shape").unwrap_or(&Value::Null)).map_err(|e| self.at(&e))
    }

    /// The array's attributes.
    pub fn attributes(&self) -> &Map<String, Value> {
        &self.node.attributes
    }

    /// The Zarr version, 2 or 3.
    pub fn version(&self) -> u8 {
        self.node.version
    }

    /// Returns the array as one of numbers or times. `mask_and_scale`: whether its attributes decode it.
    ///
    /// # Errors
    /// If its metadata are wrong, or its elements are neither numbers, times nor text. It must not be text.
    pub fn numbers(&self, mask_and_scale: bool) -> Result<ArrayInfo> {
        let described = metadata_error(array::describe(self.node.clone(), None, 0, Some(mask_and_scale)));
        let described = described.map_err(|e| self.at(&e))?;
        Ok(ArrayInfo::new(self.name.clone(), self.name.clone(), described))
    }

    /// Returns the array as one of text; `None` if its elements aren't text or bytes.
    ///
    /// # Errors
    /// If it has another number of dimensions than one, or its metadata are wrong.
    pub fn text(&self) -> Result<Option<TextArray>> {
        metadata_error(text::describe(&self.node)).map_err(|e| self.at(&e))
    }

    /// Returns the stored fill value of numbers; `None` if it is undefined, as null in Zarr v2.
    ///
    /// # Errors
    /// If it isn't a value of the type.
    pub fn fill(&self) -> Result<Option<Fill>> {
        let field = |key: &str| self.node.metadata.get(key).unwrap_or(&Value::Null);
        let stored = if self.node.version == 3 {
            stored_type::parse_v3(field("data_type"))
        } else {
            stored_type::parse_v2(field("dtype"))
        };
        stored.and_then(|stored| stored_type::fill_value(field("fill_value"), stored)).map_err(|e| self.at(&e))
    }

    /// Says of a type that can't be read what labels may be.
    pub fn refused(&self, e: Error) -> Error {
        if e.kind() != ErrorKind::Type {
            return e;
        }
        let field = if self.node.version == 3 { "data_type" } else { "dtype" };
        let found = shown(self.node.metadata.get(field).unwrap_or(&Value::Null));
        self.at(&Error::dtype(format!(
            "expected labels that are numbers, times or text (of fixed length, or encoded by vlen-utf8), but found {found}; write \
             the array as one of these"
        )))
    }

    fn at(&self, e: &Error) -> Error {
        e.at(self.site.clone())
    }
}
