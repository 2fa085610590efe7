//! Finds the names of all arrays in a store: in the consolidated metadata, or by a walk through its groups.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Hierarchy, is_damage};
use crate::dataset::documents;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_stores::block_on;

/// Limit on the number of names that are found by listing, which is done if metadata aren't consolidated.
pub(in crate::dataset) const MAX_LISTED: usize = 1000;
/// Limit on the depth of groups, if metadata aren't consolidated.
const MAX_DEPTH: usize = 8;

impl Hierarchy<'_> {
    /// Returns the names of all arrays. If the store is an array, its name is empty. `None` if the metadata aren't
    /// consolidated and the store can't list.
    pub fn names(&self) -> Result<Option<Vec<String>>> {
        if self.is_array {
            return Ok(Some(vec![String::new()]));
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
        } else if !self.list("", 0, &mut names)? {
            return Ok(None);
        }
        Ok(Some(names.into_iter().collect()))
    }

    /// Adds the names of all arrays below `prefix` to `names`. Returns false if the store can't list.
    fn list(&self, prefix: &str, depth: usize, names: &mut BTreeSet<String>) -> Result<bool> {
        let Some(children) = block_on(self.store(), self.store().children(prefix))? else { return Ok(false) };
        let paths: Vec<String> = children.iter().take(MAX_LISTED).map(|child| format!("{prefix}{child}")).collect();
        let (arrays, groups) = self.kinds(paths)?;
        names.extend(arrays);
        for path in groups {
            if depth < MAX_DEPTH && names.len() < MAX_LISTED {
                self.list(&format!("{path}/"), depth + 1, names)?;
            }
        }
        Ok(true)
    }

    /// Returns which of these paths are arrays, and which are groups.
    fn kinds(&self, paths: Vec<String>) -> Result<(Vec<String>, Vec<String>)> {
        let documents = |name: &str, paths: &[String]| {
            let keys: Vec<String> = paths.iter().map(|path| format!("{path}/{name}")).collect();
            documents::read_many(self.store(), &keys)
        };
        let (mut arrays, mut groups, mut rest) = (Vec::new(), Vec::new(), paths);
        let versions = if self.version == 2 { [2, 3] } else { [3, 2] };
        for version in versions {
            let nodes = if version == 3 {
                let kind = |node: Option<Value>| {
                    let node = node?;
                    Some(if node.get("node_type").and_then(Value::as_str)? == "array" {
                        NodeKind::Array
                    } else {
                        NodeKind::Group
                    })
                };
                let nodes = documents("zarr.json", &rest).into_iter();
                nodes.map(|node| told(node, NodeKind::Array, kind)).collect::<Result<Vec<_>>>()?
            } else {
                let of = |name, kind: NodeKind| {
                    documents(name, &rest).into_iter().map(move |d| told(d, kind, |d| d.map(|_| kind)))
                };
                let both = of(".zarray", NodeKind::Array).zip(of(".zgroup", NodeKind::Group));
                both.map(|(array, group)| Ok(array?.or(group?))).collect::<Result<Vec<_>>>()?
            };
            let mut others = Vec::new();
            for (path, kind) in rest.into_iter().zip(nodes) {
                match kind {
                    Some(NodeKind::Array) => arrays.push(path),
                    Some(NodeKind::Group) => groups.push(path),
                    None => others.push(path),
                }
            }
            rest = others;
        }
        Ok((arrays, groups))
    }

    /// Returns the names of the groups in the group with this prefix, which is empty or ends with a slash. `None` if metadata
    /// aren't consolidated and the store can't list. Groups without metadata are left out.
    ///
    /// # Errors
    /// If the store fails, or if there are more than `limit` nodes.
    pub fn groups_below(&self, prefix: &str, limit: usize) -> Result<Option<Vec<String>>> {
        let too_many = || {
            let place = if prefix.is_empty() { "the root" } else { prefix };
            Err(Error::value(format!(
                "groups: expected at most {limit} nodes in {place}, but found more; name the groups in a list"
            )))
        };
        if let Some(documents) = &self.consolidated {
            let is_group = |document: &Value| document.get("node_type").and_then(Value::as_str) == Some("group");
            let mut names = BTreeSet::new();
            for (key, document) in documents {
                let Some(below) = key.strip_prefix(prefix) else { continue };
                let found = match below.split_once('/') {
                    Some((name, ".zarray" | ".zattrs")) if self.version == 2 && !name.is_empty() => None,
                    Some((name, _)) => Some(name),
                    None => (self.version == 3 && is_group(document)).then_some(below),
                };
                names.extend(found.filter(|name| !name.is_empty()).map(str::to_owned));
                if names.len() > limit {
                    return too_many();
                }
            }
            return Ok(Some(names.into_iter().collect()));
        }
        let Some(children) = block_on(self.store(), self.store().children(prefix))? else { return Ok(None) };
        if children.len() > limit {
            return too_many();
        }
        let mut names = Vec::new();
        for some in children.chunks(MAX_LISTED) {
            let (_, groups) = self.kinds(some.iter().map(|child| format!("{prefix}{child}")).collect())?;
            names.extend(groups.into_iter().map(|path| path[prefix.len()..].to_owned()));
        }
        Ok(Some(names))
    }
}

/// The kinds of nodes below a group.
#[derive(Clone, Copy)]
enum NodeKind {
    Array,
    Group,
}

/// Returns the kind of node that a document describes. For a damaged document it is `if_damaged`, so that the node is
/// listed and its error is found.
fn told(
    document: Result<Option<Value>>,
    if_damaged: NodeKind,
    kind: impl Fn(Option<Value>) -> Option<NodeKind>,
) -> Result<Option<NodeKind>> {
    match document {
        Ok(document) => Ok(kind(document)),
        Err(e) if is_damage(&e) => Ok(Some(if_damaged)),
        Err(e) => Err(e),
    }
}
