//! Finds an array's metadata in a store: Zarr v2 and v3, with consolidated metadata or without.
//!
//! An array is read if its own metadata are sound, even if the groups above it have no metadata, metadata of the other
//! version, or damaged ones.

mod walk;

pub(super) use walk::MAX_LISTED;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::documents;
use super::names::DimNames;
use super::ome::{self, Level};
use dali_zarr_base::error::{Error, ErrorKind, Result};
use dali_zarr_base::first_log::warn_once;
use dali_zarr_base::json::shown;
use dali_zarr_stores::{Latency, Store, block_on, is_metadata_of_references};

/// A store that a hierarchy borrows, or shares.
enum StoreRef<'a> {
    Borrowed(&'a dyn Store),
    Shared(Arc<dyn Store>),
}

impl StoreRef<'_> {
    fn get(&self) -> &dyn Store {
        match self {
            Self::Borrowed(store) => *store,
            Self::Shared(store) => &**store,
        }
    }
}

/// The metadata at the root of a store.
pub(super) struct Hierarchy<'a> {
    store: StoreRef<'a>,
    /// The Zarr version of the root, 2 or 3. Arrays are looked up in this version first.
    version: u8,
    /// Whether a document at the root gave the Zarr version.
    rooted: bool,
    root: Value,
    is_array: bool,
    /// The documents in the consolidated metadata, by path (v3) or key (v2).
    consolidated: Option<Map<String, Value>>,
    /// The key of the document with the consolidated metadata.
    consolidated_key: &'static str,
    /// The error of a damaged document at the root. Arrays may be found without the document.
    damaged: Option<Error>,
    /// Whether the chunks' locations are in Parquet files beside the consolidated metadata.
    pub has_references: bool,
    /// The documents that [`Self::read_ahead`] has read, by key.
    ahead: HashMap<String, Result<Option<Value>>>,
}

/// An array's metadata.
#[derive(Clone)]
pub(super) struct Node {
    /// The Zarr version, 2 or 3.
    pub version: u8,
    /// The prefix of the array's keys: empty, or the array's path and a slash.
    pub prefix: String,
    /// The content of `zarr.json` or `.zarray`.
    pub metadata: Value,
    /// The array's attributes.
    pub attributes: Map<String, Value>,
    /// A key that exists as long as the array does.
    pub key: String,
}

impl<'a> Hierarchy<'a> {
    /// Reads the root of `store`. `None` if it has no Zarr metadata.
    pub fn open(store: &'a dyn Store) -> Result<Option<Self>> {
        // Some stores refuse access to keys that don't exist. Only the keys of one version exist, so a refused key is
        // treated as missing. The error is returned if nothing is found.
        let mut refused = None;
        let mut read = |key: &str| match documents::read(store, key) {
            Err(e) if e.is_refused() => {
                refused.get_or_insert(e);
                Ok(None)
            }
            read => read,
        };
        let root = match read("zarr.json") {
            Err(e) if is_damage(&e) => return Ok(Some(Self { damaged: Some(e), ..Self::without_top(store) })),
            root => root?,
        };
        if let Some(root) = root {
            let is_array = match root.get("node_type").and_then(Value::as_str) {
                Some("array") => true,
                Some("group") => false,
                _ => {
                    let found = shown(root.get("node_type").unwrap_or(&Value::Null));
                    let e = Error::value(format!("expected the node_type \"array\" or \"group\", but found {found}"));
                    return Err(documents::at(store, "zarr.json", &e));
                }
            };
            let inline = |c: &&Value| c.get("kind").is_none_or(|kind| kind == "inline");
            let consolidated = root.get("consolidated_metadata").filter(inline).and_then(|c| c.get("metadata"));
            let consolidated =
                consolidated.and_then(Value::as_object).filter(|documents| !documents.is_empty()).map(|documents| {
                    documents.iter().map(|(path, node)| (path.trim_matches('/').to_owned(), node.clone())).collect()
                });
            return Ok(Some(Self {
                store: StoreRef::Borrowed(store),
                version: 3,
                rooted: true,
                root,
                is_array,
                consolidated,
                consolidated_key: "zarr.json",
                damaged: None,
                has_references: false,
                ahead: HashMap::new(),
            }));
        }
        let v2 = |root, is_array, consolidated, damaged| Self {
            store: StoreRef::Borrowed(store),
            version: 2,
            rooted: true,
            root,
            is_array,
            consolidated,
            consolidated_key: ".zmetadata",
            damaged,
            has_references: false,
            ahead: HashMap::new(),
        };
        let mut damaged = None;
        match read(".zmetadata") {
            Ok(None) => {}
            Ok(Some(mut document)) => {
                let has_references = is_metadata_of_references(&document);
                match document.get_mut("metadata").map(Value::take) {
                    Some(Value::Object(documents)) if !documents.is_empty() => {
                        let hierarchy = v2(Value::Null, documents.contains_key(".zarray"), Some(documents), None);
                        return Ok(Some(Self { has_references, ..hierarchy }));
                    }
                    found => {
                        let e = Error::value(format!(
                            "expected an object \"metadata\" with documents, but found {}; consolidate the metadata again",
                            found.as_ref().map_or("none".to_owned(), shown)
                        ));
                        damaged = Some(documents::at(store, ".zmetadata", &e));
                    }
                }
            }
            Err(e) if is_damage(&e) => damaged = Some(e),
            Err(e) => return Err(e),
        }
        if let Some(root) = read(".zarray")? {
            return Ok(Some(v2(root, true, None, None)));
        }
        match read(".zgroup") {
            Ok(None) if damaged.is_none() => refused.map_or(Ok(None), Err),
            Err(e) if !is_damage(&e) => Err(e),
            found => Ok(Some(v2(Value::Null, false, None, damaged.or(found.err())))),
        }
    }

    /// Makes the hierarchy of a store without metadata at the root, which may have arrays below.
    pub fn without_top(store: &'a dyn Store) -> Self {
        Self {
            store: StoreRef::Borrowed(store),
            version: 3,
            rooted: false,
            root: Value::Null,
            is_array: false,
            consolidated: None,
            consolidated_key: "zarr.json",
            damaged: None,
            has_references: false,
            ahead: HashMap::new(),
        }
    }

    /// Makes a hierarchy that lives as long as it is needed, of the same `store`.
    pub fn shared(self, store: &Arc<dyn Store>) -> Hierarchy<'static> {
        Hierarchy {
            store: StoreRef::Shared(Arc::clone(store)),
            version: self.version,
            rooted: self.rooted,
            root: self.root,
            is_array: self.is_array,
            consolidated: self.consolidated,
            consolidated_key: self.consolidated_key,
            damaged: self.damaged,
            has_references: self.has_references,
            ahead: self.ahead,
        }
    }

    fn store(&self) -> &dyn Store {
        self.store.get()
    }

    /// Returns the error of a damaged document at the root, which may be the reason why something was not found.
    pub fn damaged(&self) -> Option<&Error> {
        self.damaged.as_ref()
    }

    /// Reads the documents of these arrays that aren't in the consolidated metadata; `with_groups` also those of the
    /// groups above them. They are read at the same time, so a server's latency counts once.
    pub fn read_ahead(&mut self, names: &[String], with_groups: bool) {
        let mut keys: Vec<String> = Vec::new();
        for path in names.iter().map(|name| name.trim_matches('/')).filter(|path| is_path(path)) {
            let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
            if self.version == 3 && !self.is_array && !self.is_consolidated(path) {
                keys.push(format!("{prefix}zarr.json"));
            }
            if (self.version == 2 || !self.rooted) && !self.is_consolidated(&format!("{prefix}.zarray")) {
                keys.push(format!("{prefix}.zattrs"));
                keys.extend((!self.is_array).then(|| format!("{prefix}.zarray")));
            }
            for group in groups_above(path).filter(|_| with_groups) {
                let prefix = if group.is_empty() { String::new() } else { format!("{group}/") };
                let is_root = group.is_empty() && self.rooted;
                if self.version == 3 && !is_root && !self.is_consolidated(group) {
                    keys.push(format!("{prefix}zarr.json"));
                }
                if (self.version == 2 || !self.rooted) && self.consolidated.is_none() {
                    keys.push(format!("{prefix}.zattrs"));
                }
            }
        }
        keys.sort();
        keys.dedup();
        let documents = documents::read_many(self.store(), &keys);
        self.ahead = keys.into_iter().zip(documents).collect();
    }

    /// Returns the document of this path (v3) or key (v2) in the consolidated metadata, if there is one.
    fn consolidated(&self, key: &str) -> Option<&Value> {
        self.consolidated.as_ref()?.get(key).filter(|document| document.is_object())
    }

    /// Whether there are consolidated metadata.
    pub fn has_consolidated(&self) -> bool {
        self.consolidated.is_some()
    }

    fn is_consolidated(&self, key: &str) -> bool {
        self.consolidated(key).is_some()
    }

    fn read(&self, key: &str) -> Result<Option<Value>> {
        self.ahead.get(key).cloned().unwrap_or_else(|| documents::read(self.store(), key))
    }

    /// Whether the array's metadata have dimension names.
    pub fn has_names(node: &Node) -> bool {
        DimNames::are_stored(node.metadata.get("dimension_names"), &node.attributes)
    }

    /// Returns what OME-Zarr attributes say about an array: those of the nearest group above it that has it as a level.
    ///
    /// # Errors
    /// If attributes can't be read. Invalid attributes aren't an error.
    pub fn level(&self, node: &Node) -> Result<Option<Level>> {
        let path = node.prefix.trim_end_matches('/');
        let ndim = node.metadata.get("shape").and_then(Value::as_array).map_or(0, Vec::len);
        for group in groups_above(path) {
            let attributes = self.attributes_around(group, node.version)?;
            let location = format!("{}/{group}", self.store.get().location().trim_end_matches('/'));
            let level = ome::level(&attributes, location.trim_end_matches('/'), &path[group.len()..], ndim);
            if level.is_some() {
                return Ok(level);
            }
        }
        Ok(None)
    }

    /// Returns the attributes of a group above an array of Zarr version `version`. Empty if there are none, or they are
    /// damaged.
    ///
    /// # Errors
    /// If the store fails.
    pub fn attributes_around(&self, path: &str, version: u8) -> Result<Map<String, Value>> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let all = self.consolidated.as_ref().filter(|_| self.version == version);
        let read = |key: &str| match self.read(key) {
            Err(e) if e.is_refused() || is_damage(&e) => Ok(None),
            read => read,
        };
        let found = match (version, all) {
            (3, _) if path.is_empty() && self.version == 3 && self.rooted => self.root.get("attributes").cloned(),
            (3, Some(all)) if all.contains_key(path) => all[path].get("attributes").cloned(),
            (3, _) => {
                read(&format!("{prefix}zarr.json"))?.and_then(|mut group| group.get_mut("attributes").map(Value::take))
            }
            (_, Some(all)) => all.get(&format!("{prefix}.zattrs")).cloned(),
            _ => read(&format!("{prefix}.zattrs"))?,
        };
        Ok(match found {
            Some(Value::Object(attributes)) => attributes,
            _ => Map::new(),
        })
    }

    /// Returns the metadata of the array `name`. `None` if there is no such array.
    pub fn array(&self, name: &str) -> Result<Option<Node>> {
        let path = name.trim_matches('/');
        if path.is_empty() != self.is_array || !is_path(path) {
            return Ok(None);
        }
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let v3 = || self.array_v3(path, prefix.clone());
        let v2 = || self.array_v2(prefix.clone());
        if self.is_array {
            return if self.version == 3 { v3() } else { v2() };
        }
        let (first, second) = if self.version == 3 { (v3(), &v2 as &dyn Fn() -> _) } else { (v2(), &v3 as _) };
        match first {
            Ok(Some(node)) => Ok(Some(node)),
            // A store that refuses access to missing keys may have the array in the other version.
            Ok(None) => second(),
            Err(e) if e.is_refused() => match second() {
                Ok(Some(node)) => Ok(Some(node)),
                _ => Err(e),
            },
            Err(e) => Err(e),
        }
    }

    fn array_v3(&self, path: &str, prefix: String) -> Result<Option<Node>> {
        let own_key = format!("{prefix}zarr.json");
        let known = |node: &&Value| matches!(node.get("node_type").and_then(Value::as_str), Some("array" | "group"));
        let consolidated = self.consolidated(path).filter(known).filter(|_| !self.is_array);
        let mut metadata = match consolidated {
            _ if self.is_array => self.root.clone(),
            Some(document) => document.clone(),
            None => match self.read(&own_key)? {
                Some(document) => document,
                None => return Ok(None),
            },
        };
        if metadata.get("node_type").and_then(Value::as_str) != Some("array") {
            return Ok(None);
        }
        let attributes = metadata.get_mut("attributes").map(Value::take);
        let attributes = self.attributes(attributes, &own_key)?;
        Ok(Some(Node { version: 3, key: self.key(own_key, consolidated)?, prefix, metadata, attributes }))
    }

    fn array_v2(&self, prefix: String) -> Result<Option<Node>> {
        let (own_key, attributes_key) = (format!("{prefix}.zarray"), format!("{prefix}.zattrs"));
        let consolidated = self.consolidated(&own_key);
        let (metadata, attributes) = match consolidated {
            Some(document) => {
                (document.clone(), self.consolidated.as_ref().and_then(|all| all.get(&attributes_key).cloned()))
            }
            None if self.is_array => (self.root.clone(), self.read(&attributes_key)?),
            None => match self.read(&own_key)? {
                Some(document) => (document, self.read(&attributes_key)?),
                None => return Ok(None),
            },
        };
        let attributes = self.attributes(attributes, &attributes_key)?;
        Ok(Some(Node { version: 2, key: self.key(own_key, consolidated)?, prefix, metadata, attributes }))
    }

    /// Returns the attributes of a group. Empty if there is no such group, or it has no document.
    pub fn group_attributes(&self, path: &str) -> Result<Map<String, Value>> {
        let path = path.trim_matches('/');
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        if self.is_array || !is_path(path) {
            return Ok(Map::new());
        }
        let node_key = format!("{prefix}zarr.json");
        let node = match self.consolidated(path) {
            _ if path.is_empty() => Some(self.root.clone()),
            Some(document) => Some(document.clone()),
            None if self.version == 3 => self.read(&node_key)?,
            None => None,
        };
        if let Some(attributes) = node.and_then(|mut node| node.get_mut("attributes").map(Value::take)) {
            return self.attributes(Some(attributes), &node_key);
        }
        let key = format!("{prefix}.zattrs");
        let attributes = match self.consolidated(&key) {
            Some(document) => Some(document.clone()),
            None => self.read(&key)?,
        };
        self.attributes(attributes, &key)
    }

    /// Returns the key that exists as long as the array does: `own`, the key of the array's own document. If only the
    /// consolidated metadata describe the array (`consolidated`), it is their key.
    ///
    /// In a local store the own document is looked for, and the log says if it differs. In a remote one that would cost
    /// a request for each array, so the document is assumed to exist: writers of consolidated metadata write it too, and
    /// only its absence tells that an array was deleted.
    fn key(&self, own: String, consolidated: Option<&Value>) -> Result<String> {
        let store = self.store();
        let Some(consolidated) = consolidated.filter(|_| store.latency() == Latency::Local) else { return Ok(own) };
        if !block_on(store, store.exists(&own))? {
            return Ok(self.consolidated_key.to_owned());
        }
        // Damage of a document that isn't used is no error.
        if let Ok(Some(document)) = documents::read(store, &own) {
            self.log_if_stale(&own, &document, consolidated);
        }
        Ok(own)
    }

    /// Logs that the consolidated metadata of an array differ from its own document, as after an array was extended and
    /// metadata weren't consolidated again.
    fn log_if_stale(&self, key: &str, own: &Value, consolidated: &Value) {
        const COMPARED: [&str; 5] = ["shape", "chunks", "chunk_grid", "dtype", "data_type"];
        let Some(field) = COMPARED.iter().find(|field| own.get(**field) != consolidated.get(**field)) else { return };
        let value = |document: &Value| shown(document.get(field).unwrap_or(&Value::Null));
        warn_once(format!(
            "store {}, {key}: {field} is {} here, but {} in the consolidated metadata ({}), which readers and labels follow, as \
             xarray does; consolidate the metadata again (zarr.consolidate_metadata)",
            self.store().location(),
            value(own),
            value(consolidated),
            self.consolidated_key
        ));
    }

    fn attributes(&self, attributes: Option<Value>, key: &str) -> Result<Map<String, Value>> {
        match attributes {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(attributes)) => Ok(attributes),
            Some(found) => {
                let e = Error::value(format!("expected the attributes to be an object, but found {}", shown(&found)));
                Err(documents::at(self.store(), key, &e))
            }
        }
    }
}

/// Whether the error means that a document exists but is invalid, and not that reading it failed.
fn is_damage(e: &Error) -> bool {
    e.kind() == ErrorKind::Value
}

/// Returns the paths of the groups above an array, the nearest first. The last one is the root: an empty path.
fn groups_above(path: &str) -> impl Iterator<Item = &str> {
    fn above<'a>(path: &&'a str) -> Option<&'a str> {
        (!path.is_empty()).then_some(path.rsplit_once('/').map_or("", |(group, _)| group))
    }
    std::iter::successors(Some(path), above).skip(1)
}

/// Whether a path can be that of an array below the root.
fn is_path(path: &str) -> bool {
    !path.split('/').any(|part| matches!(part, "." | "..")) && !path.contains("//")
}
