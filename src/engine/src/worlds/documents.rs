//! A store without chunks: metadata documents in memory, and where the chunks of each array would lie. Simulations and
//! tests of the scheduler read nothing else.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;
use serde_json::Value;

use dali_zarr_base::error::{Error, Result};
use dali_zarr_stores::{ByteRange, Extent, Found, Latency, ObjectVersion, Phase, Store};

/// Where the chunks of an array lie.
#[derive(Clone)]
pub(crate) enum ChunkLocations {
    /// Each chunk has a key of its own.
    Keys,
    /// Most chunks are ranges of a few objects: the bytes of each chunk, and the bytes between two neighbours.
    Objects { len: u64, gap: u64 },
    /// Chunks with these keys are these ranges, and other chunks have keys of their own. The store knows this when its
    /// indexes are read. There is an index for every ten chunks along the last dimension.
    Listed { ranges: HashMap<String, Extent>, indexes_are_read: Arc<AtomicBool> },
}

/// The store: a group with arrays.
pub(crate) struct Documents {
    latency: Latency,
    /// Whether values are files of this machine, for GPUDirect Storage.
    has_files: bool,
    /// The metadata documents, by their keys.
    documents: HashMap<String, Vec<u8>>,
    /// By the name of an array.
    locations: HashMap<String, ChunkLocations>,
}

impl Documents {
    /// Makes a store without arrays.
    pub fn new(latency: Latency, has_files: bool) -> Self {
        let root = br#"{"zarr_format": 3, "node_type": "group"}"#;
        let documents = HashMap::from([("zarr.json".into(), root.to_vec())]);
        Self { latency, has_files, documents, locations: HashMap::new() }
    }

    /// Adds an array with this metadata document.
    pub fn add(&mut self, name: &str, metadata: &Value, locations: ChunkLocations) {
        self.documents.insert(format!("{name}/zarr.json"), metadata.to_string().into_bytes());
        self.locations.insert(name.to_owned(), locations);
    }

    /// Returns where the chunks of a key's array lie, and a number for the key's chunk. Chunks near each other have
    /// numbers near each other.
    fn find(&self, key: &str) -> Option<(&ChunkLocations, u64)> {
        let (array, chunk) = key.split_once("/c/")?;
        let number = chunk.split('/').filter_map(|c| c.parse().ok()).fold(0u64, |n, c: u64| 5 * n + c);
        Some((self.locations.get(array)?, number))
    }
}

#[async_trait]
impl Store for Documents {
    fn location(&self) -> &str {
        "simulated"
    }
    fn latency(&self) -> Latency {
        self.latency
    }
    async fn read(
        &self,
        key: &str,
        _: ByteRange,
        _: Option<&ObjectVersion>,
        _: Phase,
        _: &mut [u8],
    ) -> Result<Option<Found>> {
        Err(Error::runtime(format!("a simulation reads no bytes, but {key:?} is read")))
    }
    async fn get(&self, key: &str, _: u64, _: Phase) -> Result<Option<Vec<u8>>> {
        Ok(self.documents.get(key).cloned())
    }
    async fn head(&self, key: &str) -> Result<Option<Found>> {
        Ok(self.documents.get(key).map(|d| Found { size: d.len() as u64, version: None }))
    }
    async fn children(&self, _: &str) -> Result<Option<Vec<String>>> {
        Ok(None)
    }
    fn has_extents(&self) -> bool {
        self.locations.values().any(|locations| !matches!(locations, ChunkLocations::Keys))
    }
    fn locate(&self, key: &str) -> Option<Extent> {
        match self.find(key)? {
            (ChunkLocations::Keys, _) => None,
            (&ChunkLocations::Objects { len, gap }, number) => {
                // One chunk in eight has no range, as if it were inline or all of a file.
                let object = || format!("object {}", number % 16 / 12).into();
                (number % 8 != 3).then(|| Extent { object: object(), version: None, offset: number * (len + gap), len })
            }
            (ChunkLocations::Listed { ranges, .. }, _) => ranges.get(key).cloned(),
        }
    }
    fn unread_index(&self, key: &str) -> Option<u64> {
        let (ChunkLocations::Listed { indexes_are_read, .. }, number) = self.find(key)? else { return None };
        (!indexes_are_read.load(Relaxed)).then_some(number / 10)
    }
    fn has_files(&self) -> bool {
        self.has_files
    }
}
