//! Finds an array's metadata in a store: Zarr v2 and v3, with consolidated metadata or without.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::json::{self, shown};
use crate::error::{Error, Result};
use crate::store::Store;

/// Listing stops here; it only serves messages and the choice of a store's only array.
const MAX_LISTED: usize = 1000;
const MAX_DEPTH: usize = 8;

/// What is at the top of a store.
pub(super) struct Hierarchy<'a> {
    store: &'a dyn Store,
    version: u8,
    root: Value,
    is_array: bool,
    /// Documents by path (v3) or key (v2).
    consolidated: Option<Map<String, Value>>,
    consolidated_key: &'static str,
}

/// An array's metadata.
pub(super) struct Node {
    /// 2 or 3.
    pub version: u8,
    /// What goes before its chunks' keys: empty, or its path and a slash.
    pub prefix: String,
    /// `zarr.json` or `.zarray`.
    pub metadata: Value,
    /// Attributes.
    pub attributes: Map<String, Value>,
    /// A key that exists as long as the array does.
    pub key: String,
}

impl<'a> Hierarchy<'a> {
    /// Reads the top of `store`.
    pub fn open(store: &'a dyn Store) -> Result<Self> {
        let place = |key: &str| format!("store {}, {key}", store.location());
        if let Some(root) = json::read(store, "zarr.json")? {
            let is_array = match root.get("node_type").and_then(Value::as_str) {
                Some("array") => true,
                Some("group") => false,
                _ => {
                    let found = shown(root.get("node_type").unwrap_or(&Value::Null));
                    return Err(Error::value(format!(
                        "{}: expected the node_type \"array\" or \"group\", but found {found}",
                        place("zarr.json")
                    )));
                }
            };
            let consolidated =
                root.get("consolidated_metadata").and_then(|c| c.get("metadata")).and_then(Value::as_object);
            let consolidated = consolidated.map(|documents| {
                documents.iter().map(|(path, node)| (path.trim_matches('/').to_owned(), node.clone())).collect()
            });
            return Ok(Self { store, version: 3, root, is_array, consolidated, consolidated_key: "zarr.json" });
        }
        let v2 = |root, is_array, consolidated| Self {
            store,
            version: 2,
            root,
            is_array,
            consolidated,
            consolidated_key: ".zmetadata",
        };
        if let Some(mut document) = json::read(store, ".zmetadata")? {
            let Some(Value::Object(documents)) = document.get_mut("metadata").map(Value::take) else {
                return Err(Error::value(format!(
                    "{}: expected an object \"metadata\", but found none; consolidate the metadata again",
                    place(".zmetadata")
                )));
            };
            return Ok(v2(Value::Null, documents.contains_key(".zarray"), Some(documents)));
        }
        if let Some(root) = json::read(store, ".zarray")? {
            return Ok(v2(root, true, None));
        }
        if json::read(store, ".zgroup")?.is_some() {
            return Ok(v2(Value::Null, false, None));
        }
        Err(Error::value(format!(
            "store {}: expected a Zarr group or array, but found none of zarr.json, .zmetadata, .zarray and .zgroup; \
             check the path",
            store.location()
        )))
    }

    /// The names of the arrays, as far as they can be listed; an array that is the store itself has an empty one.
    pub fn names(&self) -> Result<Vec<String>> {
        if self.is_array {
            return Ok(vec![String::new()]);
        }
        let mut names = BTreeSet::new();
        if let Some(documents) = &self.consolidated {
            for (key, document) in documents {
                if self.version == 2 {
                    names.extend(key.strip_suffix("/.zarray").map(str::to_owned));
                } else if document.get("node_type").and_then(Value::as_str) == Some("array") {
                    names.insert(key.clone());
                }
            }
        } else {
            self.list("", 0, &mut names)?;
        }
        Ok(names.into_iter().collect())
    }

    fn list(&self, prefix: &str, depth: usize, names: &mut BTreeSet<String>) -> Result<()> {
        let Some(children) = self.store.children(prefix)? else { return Ok(()) };
        for child in children {
            let path = format!("{prefix}{child}");
            let (array, group) = if self.version == 2 {
                (self.store.exists(&format!("{path}/.zarray"))?, self.store.exists(&format!("{path}/.zgroup"))?)
            } else {
                let node = json::read(self.store, &format!("{path}/zarr.json"))?;
                let kind = node.as_ref().and_then(|n| n.get("node_type")).and_then(Value::as_str);
                (kind == Some("array"), kind == Some("group"))
            };
            if names.len() >= MAX_LISTED {
                return Ok(());
            }
            if array {
                names.insert(path);
            } else if group && depth < MAX_DEPTH {
                self.list(&format!("{path}/"), depth + 1, names)?;
            }
        }
        Ok(())
    }

    /// The array `name`; `None` if there is no such array.
    pub fn array(&self, name: &str) -> Result<Option<Node>> {
        let path = name.trim_matches('/');
        if path.is_empty() != self.is_array
            || path.split('/').any(|part| matches!(part, "." | ".."))
            || path.contains("//")
        {
            return Ok(None);
        }
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        if self.version == 3 { self.array_v3(path, prefix) } else { self.array_v2(prefix) }
    }

    fn array_v3(&self, path: &str, prefix: String) -> Result<Option<Node>> {
        let own_key = format!("{prefix}zarr.json");
        let consolidated = self.consolidated.as_ref().and_then(|documents| documents.get(path)).cloned();
        let (mut metadata, from_consolidated) = match consolidated {
            _ if self.is_array => (self.root.clone(), false),
            Some(document) => (document, true),
            None => match json::read(self.store, &own_key)? {
                Some(document) => (document, false),
                None => return Ok(None),
            },
        };
        if metadata.get("node_type").and_then(Value::as_str) != Some("array") {
            return Ok(None);
        }
        let attributes = metadata.get_mut("attributes").map(Value::take);
        let attributes = self.attributes(attributes, &own_key)?;
        Ok(Some(Node { version: 3, key: self.key(own_key, from_consolidated)?, prefix, metadata, attributes }))
    }

    fn array_v2(&self, prefix: String) -> Result<Option<Node>> {
        let (own_key, attributes_key) = (format!("{prefix}.zarray"), format!("{prefix}.zattrs"));
        let documents = self.consolidated.as_ref().filter(|documents| documents.contains_key(&own_key));
        let (metadata, attributes) = match documents {
            Some(documents) => (documents.get(&own_key).cloned(), documents.get(&attributes_key).cloned()),
            None if self.is_array => (Some(self.root.clone()), json::read(self.store, &attributes_key)?),
            None => (json::read(self.store, &own_key)?, json::read(self.store, &attributes_key)?),
        };
        let Some(metadata) = metadata else { return Ok(None) };
        let attributes = self.attributes(attributes, &attributes_key)?;
        Ok(Some(Node { version: 2, key: self.key(own_key, documents.is_some())?, prefix, metadata, attributes }))
    }

    /// An array that only consolidated metadata describe exists as long as they do.
    fn key(&self, own: String, consolidated: bool) -> Result<String> {
        Ok(if consolidated && !self.store.exists(&own)? { self.consolidated_key.to_owned() } else { own })
    }

    fn attributes(&self, attributes: Option<Value>, key: &str) -> Result<Map<String, Value>> {
        match attributes {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(attributes)) => Ok(attributes),
            Some(found) => Err(Error::value(format!(
                "store {}, {key}: expected the attributes to be an object, but found {}",
                self.store.location(),
                shown(&found)
            ))),
        }
    }
}
