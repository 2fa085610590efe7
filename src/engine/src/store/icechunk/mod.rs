//! Icechunk repositories as stores: one snapshot of a branch, a tag or by its name, which stays what it is.
//!
//! The format is read by this project's own code: a checked reader of [`flat`] buffers and what the files hold (specification 1, which
//! Icechunk 1 writes, and 2). The crate icechunk would bring its own object stores, retries and caches, and three times as much to
//! build; here bytes come from the [`Store`] that the repository lies in, as all others do.
//!
//! From [`refs`] to the [`snapshot`] is done when the store is opened. A [`manifest`] is read when the first chunk in it is asked for,
//! and stays. After that a chunk is one read.

mod file;
mod flat;
mod manifest;
mod outside;
mod refs;
mod snapshot;
#[cfg(test)]
mod tests;

pub use outside::Source;
pub use refs::{Choice, Version};

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::failed::Failed;
use super::remote::Io;
use super::{AsyncStore, Blocking, Found, Part, Phase, Store, too_long, window};
use crate::error::{Error, Result};
use file::{Id, MOST};
use manifest::{Chunk, Manifest};
use outside::Check;
use snapshot::{Coords, Node, Snapshot};

/// All manifests of a store together, in memory.
const MOST_MANIFESTS: u64 = 4 << 30;

/// What local and remote repositories have in common.
struct Repository {
    location: String,
    id: Id,
    snapshot: Snapshot,
    /// By their places in [`Snapshot::files`].
    manifests: Vec<OnceCell<Manifest>>,
    bytes: AtomicU64,
    /// Where virtual chunks may be.
    sources: Vec<Source>,
}

/// What a key names.
enum Named<'a> {
    Document(&'a [u8]),
    /// A chunk, if the manifest has it.
    Chunk(&'a Node, Coords, usize),
}

/// Tells chunks apart that are different: the repository's objects never change, so where a chunk lies says what it is.
fn native(object: &Id, offset: u64, len: u64) -> Arc<str> {
    format!("{} {offset} {len}", file::name(object)).into()
}

impl Chunk<'_> {
    /// The version of a chunk in an object of the repository.
    fn native(&self) -> Option<Arc<str>> {
        match self {
            Self::Native { object, offset, len } => Some(native(object, *offset, *len)),
            Self::Inline(_) | Self::Virtual { .. } => None,
        }
    }
}

/// The same for a virtual chunk, in front of its file's version.
fn place(url: &str, offset: u64, len: u64) -> String {
    format!("{url} {offset} {len}\n")
}

/// What is to be read of a chunk.
struct Object<'a> {
    key: String,
    /// Offset in it.
    from: u64,
    /// If it isn't the repository's: where it is, and what it must be.
    outside: Option<(&'a Source, &'a Check)>,
}

/// Opens the repository that `base` holds; `None` if it holds none.
///
/// # Errors
/// [`Error::value`] if it can't be read, or has no such version.
pub fn open(base: &Arc<dyn Store>, version: &Version, sources: Vec<Source>) -> Result<Option<Arc<dyn Store>>> {
    let within = |e: Error| Error::value(format!("store {}, as an Icechunk repository: {e}", base.location()));
    let Some(id) = refs::resolve(&**base, version).map_err(within)? else { return Ok(None) };
    let key = format!("snapshots/{}", file::name(&id));
    let missing = || match version {
        Version::Snapshot(_) => Error::value(
            "expected a snapshot, but found nothing; check its name, and whether the path is that of an Icechunk repository",
        ),
        _ => Error::value("expected a snapshot, but found nothing"),
    };
    let file = base.get(&key, MOST).and_then(|f| f.ok_or_else(missing));
    let snapshot = file.and_then(|f| Snapshot::parse(&f, &id)).map_err(|e| within(e.within(key)))?;
    let manifests = snapshot.files.iter().map(|_| OnceCell::new()).collect();
    let location = base.location().to_owned();
    let repository = Repository { location, id, snapshot, manifests, bytes: AtomicU64::new(0), sources };
    Ok(Some(match base.remote() {
        Some(base) => {
            let failed = repository.manifests.iter().map(|_| Failed::default()).collect();
            Arc::new(Blocking::new(Arc::new(RemoteRepository { repository, base: Arc::clone(base), failed })))
        }
        None => Arc::new(LocalRepository { repository, base: Arc::clone(base), loading: Mutex::new(()) }),
    }))
}

impl Repository {
    fn find(&self, key: &str) -> Option<Named<'_>> {
        if let Some(document) = self.snapshot.document(key) {
            return Some(Named::Document(document));
        }
        let (node, coords) = self.snapshot.chunk(key)?;
        let file = self.snapshot.manifest(node, &coords)?;
        Some(Named::Chunk(node, coords, file))
    }

    fn manifest_key(&self, file: usize) -> String {
        format!("manifests/{}", file::name(&self.snapshot.files[file]))
    }

    fn manifest(&self, file: usize, bytes: Result<Option<Vec<u8>>>) -> Result<Manifest> {
        let parse = || {
            let bytes = bytes?.ok_or_else(|| {
                Error::runtime(
                    "expected a manifest, but found nothing; the snapshot expired and was collected as garbage",
                )
            })?;
            Manifest::parse(&bytes, &self.snapshot.files[file])
        };
        let manifest = parse().map_err(|e| e.within(self.manifest_key(file)))?;
        let bytes = manifest.bytes() + self.bytes.fetch_add(manifest.bytes(), Relaxed);
        if bytes > MOST_MANIFESTS {
            return Err(Error::runtime(format!(
                "expected manifests of at most {MOST_MANIFESTS} bytes in memory, but found {bytes}; write larger chunks, or shards"
            )));
        }
        Ok(manifest)
    }

    /// What of `part` of a chunk must still be read, to how many bytes of `to`, and what was found. What needs no reading is there
    /// afterwards.
    fn take<'a>(&'a self, chunk: Chunk<'a>, part: Part, to: &mut [u8]) -> Result<(Found, Option<(Object<'a>, usize)>)> {
        let found = |size: u64| Found { size, version: None };
        match chunk {
            Chunk::Inline(bytes) => {
                let size = bytes.len() as u64;
                if let Some((offset, len)) = window(part, size, to.len())? {
                    to[..len].copy_from_slice(&bytes[offset as usize..][..len]);
                }
                Ok((found(size), None))
            }
            Chunk::Native { object, offset, len: size } => {
                let Some((within, len)) = window(part, size, to.len())?.filter(|(_, len)| *len > 0) else {
                    return Ok((found(size), None));
                };
                let key = format!("chunks/{}", file::name(&object));
                Ok((found(size), Some((Object { key, from: offset + within, outside: None }, len))))
            }
            Chunk::Virtual { url, check, offset, len: size } => {
                let (source, key) = outside::find(&self.sources, url)?;
                let Some((within, len)) = window(part, size, to.len())?.filter(|(_, len)| *len > 0) else {
                    return Ok((found(size), None));
                };
                Ok((found(size), Some((Object { key, from: offset + within, outside: Some((source, check)) }, len))))
            }
        }
    }

    fn within(&self, key: &str, e: &Error) -> Error {
        e.within(format!("store {}: key {key:?}", self.location))
    }

    fn document(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>> {
        match self.snapshot.document(key) {
            Some(document) if document.len() as u64 > most => {
                Err(too_long(&self.location, key, most, document.len() as u64))
            }
            document => Ok(document.map(<[u8]>::to_vec)),
        }
    }
}

fn gone(object: &Object<'_>) -> Error {
    let why = match object.outside {
        None => "the snapshot expired and was collected as garbage",
        Some(_) => "virtual chunks of the repository lie in it",
    };
    Error::runtime(format!("expected the object {}, but found nothing; {why}", object.key))
}

/// Where all of a chunk would go, if it isn't longer than `most`.
fn whole(location: &str, key: &str, chunk: Chunk<'_>, most: u64) -> Result<Vec<u8>> {
    let size = match chunk {
        Chunk::Inline(bytes) => bytes.len() as u64,
        Chunk::Native { len, .. } | Chunk::Virtual { len, .. } => len,
    };
    if size > most { Err(too_long(location, key, most, size)) } else { Ok(vec![0; size as usize]) }
}

/// A repository on a file system.
struct LocalRepository {
    repository: Repository,
    base: Arc<dyn Store>,
    /// One manifest at a time: whoever needs the same one waits for it.
    loading: Mutex<()>,
}

impl LocalRepository {
    fn chunk(&self, node: &Node, coords: &Coords, file: usize) -> Result<Option<Chunk<'_>>> {
        let cell = &self.repository.manifests[file];
        if cell.get().is_none() {
            let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
            if cell.get().is_none() {
                let bytes = self.base.get(&self.repository.manifest_key(file), MOST);
                // Nobody else sets it.
                let _ = cell.set(self.repository.manifest(file, bytes)?);
            }
        }
        Ok(cell.get().and_then(|manifest| manifest.find(&node.id, coords)))
    }

    fn fetch(&self, chunk: Chunk<'_>, part: Part, version: Option<&Arc<str>>, to: &mut [u8]) -> Result<Found> {
        let native = chunk.native();
        let (found, object) = self.repository.take(chunk, part, to)?;
        let Some((object, len)) = object else { return Ok(Found { version: native, ..found }) };
        let to = &mut to[..len];
        let read = match object.outside {
            None => self.base.read(&object.key, Part::From(object.from), None, to)?,
            Some((source, check)) => source.read(&object.key, object.from, (check, version), to)?,
        };
        let read = read.ok_or_else(|| gone(&object))?;
        Ok(Found { version: native.or(read.version), ..found })
    }
}

impl Store for LocalRepository {
    fn location(&self) -> &str {
        &self.repository.location
    }

    fn read(&self, key: &str, part: Part, version: Option<&Arc<str>>, to: &mut [u8]) -> Result<Option<Found>> {
        let read = |to: &mut [u8]| match self.repository.find(key) {
            None => Ok(None),
            Some(Named::Document(bytes)) => self.fetch(Chunk::Inline(bytes), part, version, to).map(Some),
            Some(Named::Chunk(node, coords, file)) => {
                self.chunk(node, &coords, file)?.map(|chunk| self.fetch(chunk, part, version, to)).transpose()
            }
        };
        read(to).map_err(|e| self.repository.within(key, &e))
    }

    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>> {
        if let Some(Named::Chunk(node, coords, file)) = self.repository.find(key) {
            let get = || {
                let Some(chunk) = self.chunk(node, &coords, file)? else { return Ok(None) };
                let mut bytes = whole(self.location(), key, chunk, most)?;
                self.fetch(chunk, Part::Whole, None, &mut bytes).map(|_| Some(bytes))
            };
            return get().map_err(|e: Error| self.repository.within(key, &e));
        }
        self.repository.document(key, most)
    }

    fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.repository.snapshot.document(key).is_some())
    }

    fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        Ok(Some(self.repository.snapshot.children(prefix)))
    }

    fn snapshot(&self) -> Option<String> {
        Some(file::name(&self.repository.id))
    }
}

/// A repository on a server.
struct RemoteRepository {
    repository: Repository,
    base: Arc<dyn AsyncStore>,
    /// By the places of the manifests.
    failed: Vec<Failed>,
}

impl RemoteRepository {
    async fn chunk(&self, node: &Node, coords: &Coords, file: usize, phase: Phase) -> Result<Option<Chunk<'_>>> {
        let (began, failed) = (Instant::now(), &self.failed[file]);
        let load = async || match failed.since(began) {
            Some(e) => Err(e),
            None => {
                let bytes = self.base.get(&self.repository.manifest_key(file), MOST, phase).await;
                self.repository.manifest(file, bytes).inspect_err(|e| failed.note(e))
            }
        };
        // Whoever needs it at the same time waits for the same request.
        let manifest = self.repository.manifests[file].get_or_try_init(load).await?;
        Ok(manifest.find(&node.id, coords))
    }

    async fn fetch(
        &self,
        chunk: Chunk<'_>,
        part: Part,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Found> {
        let place = match chunk {
            Chunk::Virtual { url, offset, len, .. } => place(url, offset, len),
            _ => String::new(),
        };
        let native = chunk.native();
        let (found, object) = self.repository.take(chunk, part, to)?;
        let Some((object, len)) = object else { return Ok(Found { version: native, ..found }) };
        let to = &mut to[..len];
        let Some((source, check)) = object.outside else {
            let read = self.base.read(&object.key, Part::From(object.from), None, phase, to).await?;
            read.ok_or_else(|| gone(&object))?;
            return Ok(Found { version: native, ..found });
        };
        let of_file = version.and_then(|v| v.strip_prefix(place.as_str())).map(Arc::from);
        let read = source.read_async(&object.key, object.from, (check, of_file.as_ref()), phase, to).await?;
        let version = read.ok_or_else(|| gone(&object))?.version.map(|v| format!("{place}{v}").into());
        Ok(Found { version, ..found })
    }

    async fn read_chunk(
        &self,
        key: &str,
        part: Part,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        match self.repository.find(key) {
            None => Ok(None),
            Some(Named::Document(bytes)) => self.fetch(Chunk::Inline(bytes), part, version, phase, to).await.map(Some),
            Some(Named::Chunk(node, coords, file)) => match self.chunk(node, &coords, file, phase).await? {
                Some(chunk) => self.fetch(chunk, part, version, phase, to).await.map(Some),
                None => Ok(None),
            },
        }
    }

    async fn get_chunk(&self, key: &str, most: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        let Some(Named::Chunk(node, coords, file)) = self.repository.find(key) else {
            return self.repository.document(key, most);
        };
        let Some(chunk) = self.chunk(node, &coords, file, phase).await? else { return Ok(None) };
        let mut bytes = whole(&self.repository.location, key, chunk, most)?;
        self.fetch(chunk, Part::Whole, None, phase, &mut bytes).await.map(|_| Some(bytes))
    }
}

#[async_trait]
impl AsyncStore for RemoteRepository {
    fn location(&self) -> &str {
        &self.repository.location
    }

    fn io(&self) -> &Arc<Io> {
        self.base.io()
    }

    async fn read(
        &self,
        key: &str,
        part: Part,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        self.read_chunk(key, part, version, phase, to).await.map_err(|e| self.repository.within(key, &e))
    }

    async fn get(&self, key: &str, most: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        self.get_chunk(key, most, phase).await.map_err(|e| self.repository.within(key, &e))
    }

    async fn head(&self, key: &str) -> Result<Option<Found>> {
        let head = async {
            let Some(Named::Chunk(node, coords, file)) = self.repository.find(key) else {
                let document = self.repository.snapshot.document(key);
                return Ok(document.map(|d| Found { size: d.len() as u64, version: None }));
            };
            match self.chunk(node, &coords, file, Phase::Running).await? {
                None => Ok(None),
                Some(Chunk::Native { object, offset, len }) => {
                    Ok(Some(Found { size: len, version: Some(native(&object, offset, len)) }))
                }
                // It is in the manifest: no cache is better.
                Some(Chunk::Inline(bytes)) => Ok(Some(Found { size: bytes.len() as u64, version: None })),
                Some(Chunk::Virtual { url, offset, len, .. }) => {
                    let (source, key) = outside::find(&self.repository.sources, url)?;
                    let version = source.head_async(&key).await?.and_then(|found| found.version);
                    let version = version.map(|v| format!("{}{v}", place(url, offset, len)).into());
                    Ok(Some(Found { size: len, version }))
                }
            }
        };
        head.await.map_err(|e: Error| self.repository.within(key, &e))
    }

    async fn confirm(&self, key: &str) -> Result<bool> {
        Ok(self.repository.snapshot.document(key).is_some())
    }

    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        Ok(Some(self.repository.snapshot.children(prefix)))
    }

    fn snapshot(&self) -> Option<String> {
        Some(file::name(&self.repository.id))
    }
}
