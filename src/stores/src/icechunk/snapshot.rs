//! A snapshot: the nodes of the hierarchy, their metadata, and the manifests of each array.
//!
//! The decompressed file stays in memory. Nodes are ranges of it.

use std::ops::Range;

use smallvec::SmallVec;

use super::file::{self, FileKind, Id};
use super::flat::Table;
use dali_zarr_base::error::{Error, Result};

/// Coordinates of a chunk.
pub(super) type Coords = SmallVec<[u32; 8]>;

/// A node takes at least this many bytes of the file. Otherwise the file names a node more than once.
const MIN_BYTES: usize = 24;

/// The number that stands for an array in `NodeData` of the schema.
const ARRAY: u8 = 1;

#[derive(Debug)]
pub(super) struct Node {
    path: Range<usize>,
    metadata: Range<usize>,
    pub id: [u8; 8],
    /// The manifests of an array: a range of [`Snapshot::manifests`]; empty for a group.
    manifests: Range<usize>,
}

/// A manifest with chunks of an array.
#[derive(Debug)]
struct ManifestRef {
    /// Its number in [`Snapshot::files`].
    file: u32,
    /// Begin and end of its chunks in each dimension: a range of [`Snapshot::extents`].
    extents: Range<usize>,
    /// The largest end along the first dimension, of this manifest and all before it in the array.
    until: u32,
}

#[derive(Debug)]
pub(super) struct Snapshot {
    bytes: Vec<u8>,
    /// Sorted by path.
    nodes: Vec<Node>,
    manifests: Vec<ManifestRef>,
    extents: Vec<[u32; 2]>,
    /// The IDs of all manifests, each once, sorted.
    pub files: Vec<Id>,
}

impl Snapshot {
    /// Parses the file of the snapshot `id`.
    ///
    /// # Errors
    /// If it is damaged, or another file.
    pub fn parse(file: &[u8], id: &Id) -> Result<Self> {
        let (_, bytes) = file::open(file, FileKind::Snapshot)?;
        let mut found = Self { bytes, nodes: vec![], manifests: vec![], extents: vec![], files: vec![] };
        let bytes = std::mem::take(&mut found.bytes);
        found.read(&bytes, id)?;
        found.bytes = bytes;
        found.sort();
        Ok(found)
    }

    fn read(&mut self, bytes: &[u8], id: &Id) -> Result<()> {
        let root = Table::root(bytes)?;
        if root.fixed(0)? != Some(*id) {
            return Err(damaged("expected the snapshot of the file's name, but found another one"));
        }
        let mut files: Vec<(Id, usize)> = Vec::new();
        for node in root.tables(2)? {
            let node = node?;
            let path = node.range(1)?.ok_or_else(|| damaged("a node has no path"))?;
            if !bytes[path.clone()].starts_with(b"/") || std::str::from_utf8(&bytes[path.clone()]).is_err() {
                return Err(damaged("expected paths that begin with a slash"));
            }
            let first = self.manifests.len();
            if node.u8(3)? == ARRAY {
                let array = node.table(4)?.ok_or_else(|| damaged("an array has no data"))?;
                for manifest in array.tables(2)? {
                    let manifest = manifest?;
                    files.push((
                        manifest.fixed(0)?.ok_or_else(|| damaged("a manifest has no name"))?,
                        self.manifests.len(),
                    ));
                    let from = self.extents.len();
                    for extent in manifest.structs::<8>(1)?.into_iter().flatten() {
                        let number = |at: usize| {
                            u32::from_le_bytes([extent[at], extent[at + 1], extent[at + 2], extent[at + 3]])
                        };
                        self.extents.push([number(0), number(4)]);
                    }
                    self.manifests.push(ManifestRef { file: 0, extents: from..self.extents.len(), until: 0 });
                    // A damaged file may name one table many times.
                    if (self.extents.len() + self.manifests.len()) * 4 > bytes.len() {
                        return Err(damaged("expected each manifest of an array once"));
                    }
                }
            }
            self.nodes.push(Node {
                path: path.start + 1..path.end,
                metadata: node.range(2)?.ok_or_else(|| damaged("a node has no metadata"))?,
                id: node.fixed(0)?.ok_or_else(|| damaged("a node has no number"))?,
                manifests: first..self.manifests.len(),
            });
            if self.nodes.len() * MIN_BYTES > bytes.len() {
                return Err(damaged("expected each node once"));
            }
        }
        let mut ids: Vec<Id> = files.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        for (id, at) in files {
            self.manifests[at].file = ids.binary_search(&id).unwrap_or_default() as u32;
        }
        self.files = ids;
        Ok(())
    }

    fn sort(&mut self) {
        let Self { bytes, nodes, manifests, extents, .. } = self;
        nodes.sort_by(|a, b| bytes[a.path.clone()].cmp(&bytes[b.path.clone()]));
        let first = |m: &ManifestRef| extents[m.extents.clone()].first().copied().unwrap_or([0, u32::MAX]);
        for node in nodes {
            let mut until = 0;
            let of_node = &mut manifests[node.manifests.clone()];
            of_node.sort_by_key(|m| first(m)[0]);
            for manifest in of_node {
                until = first(manifest)[1].max(until);
                manifest.until = until;
            }
        }
    }

    fn node(&self, path: &str) -> Option<&Node> {
        let at = self.nodes.binary_search_by(|n| self.bytes[n.path.clone()].cmp(path.as_bytes())).ok()?;
        Some(&self.nodes[at])
    }

    /// Returns the metadata document at `key`; `None` if there is none.
    pub fn document(&self, key: &str) -> Option<&[u8]> {
        let path = key.strip_suffix("zarr.json")?;
        let path = if path.is_empty() { path } else { path.strip_suffix('/')? };
        Some(&self.bytes[self.node(path)?.metadata.clone()])
    }

    /// Returns the node and the coordinates in a chunk's key; `None` if `key` isn't one.
    pub fn chunk(&self, key: &str) -> Option<(&Node, Coords)> {
        let mut coords = Coords::new();
        let mut rest = key;
        loop {
            let (before, last) = rest.rsplit_once('/').unwrap_or(("", rest));
            if last == "c" {
                coords.reverse();
                return self.node(before).map(|node| (node, coords));
            }
            coords.push(last.parse().ok()?);
            rest = before;
        }
    }

    /// Returns the manifest of a chunk, as its number in [`Self::files`]; `None` if there is none.
    pub fn manifest(&self, node: &Node, coords: &[u32]) -> Option<usize> {
        let manifests = &self.manifests[node.manifests.clone()];
        let along_first = coords.first().copied().unwrap_or(0);
        let from = |m: &ManifestRef| self.extents[m.extents.clone()].first().map_or(0, |e| e[0]);
        let behind = manifests.partition_point(|m| from(m) <= along_first);
        let candidates = manifests[..behind].iter().rev().take_while(|m| m.until > along_first);
        let holds = |m: &&ManifestRef| {
            let extents = &self.extents[m.extents.clone()];
            extents.len() == coords.len() && extents.iter().zip(coords).all(|(e, c)| (e[0]..e[1]).contains(c))
        };
        candidates.into_iter().find(holds).map(|m| m.file as usize)
    }

    /// Returns the names of the nodes directly below `prefix`, which is a path or empty.
    pub fn children(&self, prefix: &str) -> Vec<String> {
        let prefix = prefix.trim_matches('/');
        let below = |node: &Node| {
            let path = std::str::from_utf8(&self.bytes[node.path.clone()]).ok()?;
            let rest = if prefix.is_empty() { path } else { path.strip_prefix(prefix)?.strip_prefix('/')? };
            (!rest.is_empty() && !rest.contains('/')).then(|| rest.to_owned())
        };
        let mut names: Vec<String> = self.nodes.iter().filter_map(below).collect();
        names.sort();
        names
    }
}

pub(super) fn damaged(what: &str) -> Error {
    Error::damaged(format!("{what}; the file is damaged"))
}
