//! Icechunk repositories as stores. A store is one snapshot, chosen by a branch, a tag or its own name. A snapshot
//! never changes.
//!
//! The format (specification 1, which Icechunk 1 writes, and 2) is parsed by own code, with a checked reader of
//! FlatBuffers ([`flat`]). The crate icechunk would bring its own object stores, retries and caches, and triple the
//! time to build. Here bytes come from the [`Store`] that holds the repository.
//!
//! Opening reads everything from [`refs`] to the [`snapshot`]. A [`manifest`] is read when its first chunk is needed,
//! and stays in memory. After that a chunk costs one read.

mod containers;
mod file;
mod flat;
mod flex;
mod manifest;
mod options;
mod refs;
mod snapshot;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_named;

pub use options::{DIRECTORY_OPTION, IcechunkOptions, VIRTUAL_CHUNKS_OPTION, Version};

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::shared_failure::SharedFailure;
use super::virtual_chunks::{VirtualChunks, place};
use super::{ByteRange, Extent, Found, Latency, ObjectVersion, Phase, Placed, Runtime, Store, too_long};
use containers::Containers;
use dali_zarr_base::error::{Code, Error, ErrorKind, Result, Site};
use file::{Id, MAX_FILE};
use manifest::{Chunk, Manifest};
use snapshot::Snapshot;

/// Most bytes that all manifests of a store may take in memory.
const MAX_MANIFESTS: u64 = 4 << 30;

/// Most bytes of a configuration in YAML.
const MAX_CONFIG: u64 = 1 << 20;

/// Prefix of the keys of chunks in the repository's own objects.
const CHUNKS: &str = "chunks/";

/// A store in an Icechunk repository.
pub struct Repository {
    location: String,
    base: Arc<dyn Store>,
    id: Id,
    snapshot: Snapshot,
    /// In the order of [`Snapshot::files`].
    manifests: Vec<LazyManifest>,
    /// Bytes of all manifests in memory.
    bytes: AtomicU64,
    virtual_chunks: Arc<VirtualChunks>,
    /// The configuration in the file `repo`, if it is there.
    config: Option<Vec<u8>>,
    /// Places of virtual chunks that have names. Read when the first manifest needs them.
    containers: OnceCell<Containers>,
}

/// A manifest that is read when it is first needed.
#[derive(Default)]
struct LazyManifest {
    manifest: OnceCell<Manifest>,
    failure: SharedFailure,
}

impl Chunk<'_> {
    fn len(&self) -> u64 {
        match *self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Native { len, .. } | Self::Virtual { len, .. } => len,
        }
    }

    /// Returns the object and the range that hold the chunk; `None` if it is in the manifest.
    fn extent(&self) -> Option<Extent> {
        match *self {
            Self::Inline(_) => None,
            Self::Native { object, offset, len } => {
                let object = format!("{CHUNKS}{}", file::name(&object)).into();
                Some(Extent { object, version: None, offset, len })
            }
            Self::Virtual { url, version, offset, len } => {
                Some(Extent { object: Arc::clone(url), version: version.cloned(), offset, len })
            }
        }
    }
}

/// Returns the version of a chunk in an object of the repository itself. These objects never change, so it is the place alone.
fn version_of_native(extent: &Extent) -> ObjectVersion {
    let (object, range) = (Arc::clone(&extent.object), place(extent));
    ObjectVersion::At(Arc::new(Placed { object, range, of_object: None }))
}

/// Whether an extent lies in an object of the repository itself.
fn is_native(extent: &Extent) -> bool {
    extent.object.strip_prefix(CHUNKS).is_some_and(|name| !name.contains(['/', '.']))
}

impl Repository {
    /// Opens the repository that `base` holds; `None` if it holds none.
    ///
    /// # Errors
    /// [`Error::value`] if it can't be read, or has no such version.
    pub(super) async fn open(
        base: &Arc<dyn Store>,
        version: &Version,
        virtual_chunks: Arc<VirtualChunks>,
    ) -> Result<Option<Self>> {
        let within = |e: Error| {
            let place = Site::store(base.location());
            e.of_kind(ErrorKind::Value).within(format!("{place}, as an Icechunk repository")).placed(place)
        };
        let Some((id, config)) = refs::resolve(&**base, version).await.map_err(within)? else { return Ok(None) };
        let key = format!("snapshots/{}", file::name(&id));
        let missing = || match version {
            Version::Snapshot(_) => Error::coded(
                Code::NotFound,
                "expected a snapshot, but found nothing; check its name, and whether the path is that of an Icechunk repository",
            ),
            _ => Error::coded(Code::NotFound, "expected a snapshot, but found nothing"),
        };
        let file = base.get(&key, MAX_FILE, Phase::Building).await.and_then(|f| f.ok_or_else(missing));
        let snapshot = file.and_then(|f| Snapshot::parse(&f, &id)).map_err(|e| within(e.within(key)))?;
        let manifests = snapshot.files.iter().map(|_| LazyManifest::default()).collect();
        let (location, base) = (base.location().to_owned(), Arc::clone(base));
        let (bytes, containers) = (AtomicU64::new(0), OnceCell::new());
        Ok(Some(Self { location, base, id, snapshot, manifests, bytes, virtual_chunks, config, containers }))
    }

    /// Finds the value of `key`: a metadata document or a chunk. `manifest` returns a manifest by its number in
    /// [`Snapshot::files`], if it is in memory. Returns `None` if the snapshot has no such key or `manifest` returned
    /// `None`.
    fn find_in<'a>(&'a self, key: &str, manifest: impl FnOnce(usize) -> Option<&'a Manifest>) -> Option<Chunk<'a>> {
        if let Some(document) = self.snapshot.document(key) {
            return Some(Chunk::Inline(document));
        }
        let (node, coords) = self.snapshot.chunk(key)?;
        manifest(self.snapshot.manifest(node, &coords)?)?.find(&node.id, &coords)
    }

    /// As [`Self::find_in`], but reads the manifest if it isn't in memory.
    async fn find(&self, key: &str, phase: Phase) -> Result<Option<Chunk<'_>>> {
        let mut lacking = None;
        let loaded = |file: usize| {
            let manifest = self.manifests[file].manifest.get();
            if manifest.is_none() {
                lacking = Some(file);
            }
            manifest
        };
        let found = self.find_in(key, loaded);
        let Some(file) = lacking else { return Ok(found) };
        let manifest = self.manifest(file, phase).await?;
        Ok(self.find_in(key, |_| Some(manifest)))
    }

    async fn manifest(&self, file: usize, phase: Phase) -> Result<&Manifest> {
        let (began, lazy) = (Instant::now(), &self.manifests[file]);
        let read = async || match lazy.failure.since(began) {
            Some(e) => Err(e),
            None => self.read_manifest(file, phase).await.inspect_err(|e| lazy.failure.note(e)),
        };
        // Reads that need the manifest at the same time wait for one request.
        lazy.manifest.get_or_try_init(read).await
    }

    async fn read_manifest(&self, file: usize, phase: Phase) -> Result<Manifest> {
        let id = &self.snapshot.files[file];
        let key = format!("manifests/{}", file::name(id));
        let bytes = self.base.get(&key, MAX_FILE, phase).await;
        let parse = || {
            let bytes = bytes?.ok_or_else(|| {
                Error::coded(
                    Code::Replaced,
                    "expected a manifest, but found nothing; the snapshot expired and was collected as garbage",
                )
            })?;
            Manifest::parse(&bytes, id)
        };
        let mut manifest = parse().map_err(|e: Error| e.within(&key))?;
        if manifest.has_containers() {
            let containers = self.containers.get_or_try_init(|| self.read_containers(phase)).await?;
            manifest.resolve(containers).map_err(|e| e.within(&key))?;
        }
        let bytes = manifest.bytes() + self.bytes.fetch_add(manifest.bytes(), Relaxed);
        if bytes > MAX_MANIFESTS {
            return Err(Error::runtime(format!(
                "expected manifests of at most {MAX_MANIFESTS} bytes in memory, but found {bytes}; write larger chunks, or shards"
            )));
        }
        Ok(manifest)
    }

    async fn read_containers(&self, phase: Phase) -> Result<Containers> {
        if let Some(config) = &self.config {
            return Containers::of_repo(config).map_err(|e| e.within("repo"));
        }
        let config = self.base.get(containers::DOCUMENT, MAX_CONFIG, phase).await?.unwrap_or_default();
        Ok(std::str::from_utf8(&config).map_or_else(|_| Containers::default(), Containers::of_yaml))
    }

    async fn fetch(
        &self,
        chunk: Chunk<'_>,
        range: ByteRange,
        wanted: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Found> {
        let size = chunk.len();
        let Some(extent) = chunk.extent() else {
            if let (Chunk::Inline(bytes), Some((offset, len))) = (chunk, range.resolve(size, to.len())?) {
                to[..len].copy_from_slice(&bytes[offset as usize..][..len]);
            }
            return Ok(Found { size, version: None });
        };
        if !is_native(&extent) {
            return self.virtual_chunks.read_value(&extent, range, wanted, phase, to).await;
        }
        if let Some((offset, len)) = range.resolve(size, to.len())?.filter(|(_, len)| *len > 0) {
            let range = ByteRange::From(extent.offset + offset);
            let found = self.base.read(&extent.object, range, None, phase, &mut to[..len]).await?;
            found.ok_or_else(|| {
                let message = format!(
                    "expected the object {}, but found nothing; the snapshot expired and was collected as garbage",
                    extent.object
                );
                Error::coded(Code::Replaced, message)
            })?;
        }
        Ok(Found { size, version: Some(version_of_native(&extent)) })
    }

    fn within(&self, key: &str, e: &Error) -> Error {
        e.at(Site::store(&*self.location).key(key))
    }
}

#[async_trait]
impl Store for Repository {
    fn location(&self) -> &str {
        &self.location
    }

    /// The latency of the repository, even if its virtual chunks lie on servers.
    fn latency(&self) -> Latency {
        self.base.latency()
    }

    fn runtime(&self) -> Option<&Arc<Runtime>> {
        self.base.runtime().or_else(|| self.virtual_chunks.runtime())
    }

    async fn read(
        &self,
        key: &str,
        range: ByteRange,
        version: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let read = async {
            match self.find(key, phase).await? {
                Some(chunk) => self.fetch(chunk, range, version, phase, to).await.map(Some),
                None => Ok(None),
            }
        };
        read.await.map_err(|e| self.within(key, &e))
    }

    async fn get(&self, key: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        let found = self.find(key, phase).await.map_err(|e| self.within(key, &e))?;
        let Some(chunk) = found else { return Ok(None) };
        if chunk.len() > max {
            return Err(too_long(&self.location, key, max, chunk.len()));
        }
        let mut bytes = vec![0; chunk.len() as usize];
        let fetched = self.fetch(chunk, ByteRange::Whole, None, phase, &mut bytes).await;
        fetched.map(|_| Some(bytes)).map_err(|e| self.within(key, &e))
    }

    async fn head(&self, key: &str) -> Result<Option<Found>> {
        let head = async {
            let Some(chunk) = self.find(key, Phase::Running).await? else { return Ok(None) };
            let version = match chunk.extent() {
                // The chunk is in the manifest, which is in memory: no cache is faster.
                None => None,
                Some(extent) if is_native(&extent) => Some(version_of_native(&extent)),
                Some(extent) => return self.virtual_chunks.head_value(&extent).await.map(Some),
            };
            Ok(Some(Found { size: chunk.len(), version }))
        };
        head.await.map_err(|e: Error| self.within(key, &e))
    }

    /// False for objects of the repository, which never change, once the manifest is in memory.
    fn head_needs_io(&self, key: &str) -> bool {
        self.locate(key).is_none_or(|extent| !is_native(&extent))
    }

    async fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.snapshot.document(key).is_some())
    }

    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        Ok(Some(self.snapshot.children(prefix)))
    }

    fn has_extents(&self) -> bool {
        true
    }

    fn unread_index(&self, key: &str) -> Option<u64> {
        let (node, coords) = self.snapshot.chunk(key)?;
        let file = self.snapshot.manifest(node, &coords)?;
        self.manifests[file].manifest.get().is_none().then_some(file as u64)
    }

    async fn read_index(&self, key: &str) -> Result<()> {
        self.find(key, Phase::Running).await.map(drop).map_err(|e| self.within(key, &e))
    }

    fn locate(&self, key: &str) -> Option<Extent> {
        self.find_in(key, |file| self.manifests[file].manifest.get())?.extent()
    }

    async fn read_extent(&self, extent: &Extent, phase: Phase, to: &mut [u8]) -> Result<Option<Found>> {
        let Extent { object, version, offset, .. } = extent;
        if is_native(extent) {
            return self.base.read(object, ByteRange::From(*offset), None, phase, to).await;
        }
        self.virtual_chunks.read(object, ByteRange::From(*offset), version.as_ref(), phase, to).await
    }

    fn snapshot(&self) -> Option<String> {
        Some(file::name(&self.id))
    }
}
