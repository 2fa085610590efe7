//! The cache: encoded chunks and shard indexes, kept so that the next epoch does not read them again. They are in host
//! memory ([`memory`]) and, for remote stores, on a local disk ([`disk`]).
//!
//! The cache keeps *pieces* of values: whole values, ranges of shards that are one inner chunk each, and shard indexes.
//! A piece does not depend on how ranges were merged into a read, so an epoch in another order finds the same pieces.
//!
//! A piece is kept with the version of its value, and is used only for that version. The memory cache belongs to one
//! reader, and assumes that its pieces are current. The disk cache outlives readers. So each reader asks the store once
//! for the current version of each object, unless another read has shown it.
//!
//! The cache is not a wrapper of a store, for two reasons. Pieces in the cache must not wait behind requests. And only
//! the code that reads knows the pieces of a merged read ([`crate::io`]).

mod arguments;
mod disk;
mod file;
mod folder;
mod memory;
mod table;
#[cfg(test)]
mod tests_disk;
mod usage;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) use arguments::{check, disk_limit};
use dali_zarr_base::error::Result;
use dali_zarr_samples::spec::Spec;
use dali_zarr_stores::{ByteRange, Found, Latency, ObjectVersion, Store, blocking};
use disk::Disk;
use file::PieceFile;
use memory::Memory;

/// The first byte of the names of whole values.
const WHOLE: u8 = 0;

/// Counters of the caches of a reader.
#[derive(Debug, Default)]
pub struct Counters {
    /// Pieces that came from memory.
    pub hits: AtomicU64,
    /// Pieces that were not in memory, or in another version.
    pub misses: AtomicU64,
    /// Bytes that came from memory.
    pub bytes: AtomicU64,
    /// Pieces that were dropped from memory to make room.
    pub evictions: AtomicU64,
    /// Pieces that came from the disk.
    pub disk_hits: AtomicU64,
    /// Pieces that were not on the disk, or in another version.
    pub disk_misses: AtomicU64,
    /// Bytes that came from the disk.
    pub disk_bytes: AtomicU64,
    /// Pieces that were written to the disk.
    pub disk_writes: AtomicU64,
    /// Pieces that weren't written because the disk was too slow, or failed.
    pub disk_dropped: AtomicU64,
    /// Pieces that this reader removed from the disk to make room.
    pub disk_evictions: AtomicU64,
    /// Damaged files, and failed writes.
    pub disk_errors: AtomicU64,
    /// How often the store was asked for the version of an object.
    pub disk_checks: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The name of a piece: the store, the key, and the range of the value.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    hash: u64,
    /// A hash of store and key: the same for all pieces of a value.
    object: u64,
    bytes: Vec<u8>,
    /// Whether the piece may be on the disk.
    remote: bool,
    /// Whether the store must confirm the version that the disk has.
    confirm: bool,
}

impl Name {
    /// Whether the piece is a whole value.
    fn is_whole(&self) -> bool {
        self.bytes.first() == Some(&WHOLE)
    }
}

/// A piece to be written to the disk.
struct Piece {
    name: Name,
    version: Option<ObjectVersion>,
    /// Bytes of the whole value.
    size: u64,
    bytes: Vec<u8>,
    /// Whether any other pieces may be removed for it.
    admitted: bool,
}

/// How names of pieces identify a store.
struct Origin {
    identity: String,
    remote: bool,
    /// Whether the store has references to values, which may lead elsewhere when it is opened again.
    refers: bool,
}

/// The result of looking for a piece without a request.
pub(crate) enum CacheLookup {
    /// The piece was copied. If a whole value is longer than the destination, nothing was copied, but its size is
    /// known.
    Found(Found),
    /// The disk has it, in a version that may not be current.
    Unvalidated(Unvalidated),
    /// The cache does not have it.
    Missing,
}

/// A piece on the disk whose version the store must confirm. It stays readable if other processes remove it.
pub(crate) struct Unvalidated(Box<PieceFile>);

/// The caches of a reader.
pub(crate) struct Cache {
    /// How many threads copy from the cache for remote stores: as many as would read a local store.
    pub threads: usize,
    memory: Option<Memory>,
    disk: Option<Disk>,
    /// Whether stores are asked for the current version of the pieces on the disk.
    validate: bool,
    origins: Vec<Origin>,
    pub counters: Arc<Counters>,
}

impl Cache {
    /// Opens the caches that `spec` asks for. `None` if it asks for none.
    ///
    /// # Errors
    /// [`Error::value`](dali_zarr_base::error::Error::value) if a cache can't be opened.
    pub fn open(spec: &Spec, stores: &[Arc<dyn Store>]) -> Result<Option<Arc<Self>>> {
        let counters = Arc::<Counters>::default();
        let memory =
            (spec.resources.cache_size > 0).then(|| Memory::new(spec.resources.cache_size, &counters)).transpose()?;
        let disk = Disk::open(spec, &counters)?;
        if memory.is_none() && disk.is_none() {
            return Ok(None);
        }
        let how = hash(access(spec));
        let origin = |store: &Arc<dyn Store>| match store.latency() {
            Latency::Remote => {
                // If the store isn't asked for versions, names contain the snapshot. Otherwise an old state of a branch
                // would be taken for the current one.
                let snapshot = store.snapshot().filter(|_| !spec.resources.cache_validate).unwrap_or_default();
                // References on a local disk count as remote if they lead to remote files. Their path may be relative.
                let location = store.location();
                let location = match std::path::absolute(location) {
                    Ok(path) if !location.contains("://") => path.to_string_lossy().into_owned(),
                    _ => location.to_owned(),
                };
                Origin {
                    identity: format!("{location}\0{how:016x}{snapshot}"),
                    remote: true,
                    refers: store.has_extents(),
                }
            }
            Latency::Local => Origin { identity: store.location().to_owned(), remote: false, refers: false },
        };
        let origins = stores.iter().map(origin).collect();
        let threads = spec.copying_threads();
        Ok(Some(Arc::new(Self { threads, memory, disk, validate: spec.resources.cache_validate, origins, counters })))
    }

    /// Whether it keeps pieces on a disk.
    pub fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Returns the name of a piece of `len` bytes. For a whole value, `len` doesn't matter.
    pub fn name(&self, store: usize, key: &str, range: ByteRange, len: usize) -> Name {
        let (tag, offset, len) = match range {
            ByteRange::Whole => (WHOLE, 0, 0),
            ByteRange::From(offset) => (1, offset, len as u64),
            ByteRange::Last => (2, 0, len as u64),
        };
        let Origin { identity, remote, refers } = &self.origins[store];
        let mut bytes = Vec::with_capacity(18 + identity.len() + key.len());
        bytes.push(tag);
        bytes.extend(offset.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        let object = bytes.len();
        bytes.extend(identity.as_bytes());
        bytes.push(0);
        bytes.extend(key.as_bytes());
        let confirm = self.validate || *refers;
        Name { hash: hash(&bytes), object: hash(&bytes[object..]), bytes, remote: *remote, confirm }
    }

    /// Copies a piece to the front of `to`, if the memory cache has it in the given version (`None`: in any). If a
    /// whole value is longer than `to`, copies nothing and only returns its size, as a store does.
    pub fn get_from_memory(&self, name: &Name, version: Option<&ObjectVersion>, to: &mut [u8]) -> Option<Found> {
        let memory = self.memory.as_ref()?;
        let accept = |found: Option<&ObjectVersion>| version.is_none_or(|v| found == Some(v));
        let held = memory.get(name, accept, to).filter(|held| held.len <= to.len() || name.is_whole());
        let Some(held) = held else {
            add(&self.counters.misses, 1);
            return None;
        };
        if held.len <= to.len() {
            add(&self.counters.hits, 1);
            add(&self.counters.bytes, held.len as u64);
        }
        Some(Found { size: held.size, version: held.version })
    }

    /// Waits for a permit to read the disk. `None` without a disk cache.
    async fn turn_of_disk(&self) -> Option<SemaphorePermit<'_>> {
        self.disk.as_ref()?.permits.acquire().await.ok()
    }

    /// Copies a piece of this version to `to`, if the disk cache has it. Blocks.
    pub fn get_from_disk(&self, name: &Name, version: &ObjectVersion, to: &mut [u8]) -> bool {
        let Some(disk) = self.disk.as_ref().filter(|_| name.remote) else { return false };
        let Some(piece) = disk.look(name) else { return false };
        if piece.version.as_ref() != Some(version) {
            disk.outdated();
            return false;
        }
        piece.len == to.len() && self.fill(disk, name, &piece, to)
    }

    /// Copies a piece to the front of `to`, if the memory cache has it in the given version (`None`: in any), or the
    /// disk cache has it in the version that is known to be current. Makes no request, but blocks.
    pub fn look(&self, name: &Name, version: Option<&ObjectVersion>, to: &mut [u8]) -> CacheLookup {
        match self.get_from_memory(name, version, to) {
            Some(found) => CacheLookup::Found(found),
            None => self.look_on_disk(name, to),
        }
    }

    fn look_on_disk(&self, name: &Name, to: &mut [u8]) -> CacheLookup {
        let Some(disk) = self.disk.as_ref().filter(|_| name.remote) else { return CacheLookup::Missing };
        let Some(piece) = disk.look(name) else { return CacheLookup::Missing };
        let current = match &piece.version {
            None => Some(false),
            Some(_) if !name.confirm => Some(true),
            Some(held) => disk.knows(name.object, held),
        };
        match current {
            None => return CacheLookup::Unvalidated(Unvalidated(Box::new(piece))),
            Some(true) if self.fill(disk, name, &piece, to) => {
                return CacheLookup::Found(Found { size: piece.size, version: piece.version });
            }
            Some(true) => {}
            Some(false) => disk.outdated(),
        }
        CacheLookup::Missing
    }

    /// Copies a piece to the front of `to`, if the disk cache has it in the current version. If the current version is
    /// not known, asks the store, with a permit of `permits`.
    ///
    /// # Errors
    /// If the store doesn't answer.
    pub async fn get_current_from_disk(
        &self,
        name: &Name,
        key: &str,
        store: &dyn Store,
        permits: &Semaphore,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let looked = match self.turn_of_disk().await {
            Some(_turn) => blocking(|| self.look_on_disk(name, to)),
            None => CacheLookup::Missing,
        };
        match looked {
            CacheLookup::Found(found) => Ok(Some(found)),
            CacheLookup::Unvalidated(piece) => self.get_if_confirmed(name, &piece, key, store, permits, to).await,
            CacheLookup::Missing => Ok(None),
        }
    }

    /// Copies a piece to the front of `to` if the store confirms, with a permit of `permits`, that its version is
    /// current.
    ///
    /// # Errors
    /// If the store doesn't answer.
    pub async fn get_if_confirmed(
        &self,
        name: &Name,
        Unvalidated(piece): &Unvalidated,
        key: &str,
        store: &dyn Store,
        permits: &Semaphore,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let (Some(disk), Some(held)) = (&self.disk, &piece.version) else { return Ok(None) };
        // Another read may have shown the version meanwhile.
        let current = match disk.knows(name.object, held) {
            Some(known) => known,
            None if !self.validate => {
                let same = store.is_version_of_current_target(key, held).await?;
                if same {
                    disk.saw(name.object, held);
                }
                same
            }
            None => {
                let _turn = permits.acquire().await;
                add(&self.counters.disk_checks, u64::from(store.head_needs_io(key)));
                // Some servers don't answer such requests. Then no version is known to be current.
                let version = store.head(key).await.ok().flatten().and_then(|found| found.version);
                version.as_ref().inspect(|v| disk.saw(name.object, v)) == Some(held)
            }
        };
        if !current {
            disk.outdated();
            return Ok(None);
        }
        let _turn = disk.permits.acquire().await;
        let filled = blocking(|| self.fill(disk, name, piece, to));
        Ok(filled.then(|| Found { size: piece.size, version: piece.version.clone() }))
    }

    /// Copies a piece from the disk to the front of `to`, and puts it into the memory cache. False if it can't be read,
    /// or is too long. A whole value that is longer than `to` isn't copied, but gives true: its size is known, as from
    /// a store.
    fn fill(&self, disk: &Disk, name: &Name, piece: &PieceFile, to: &mut [u8]) -> bool {
        if piece.len > to.len() {
            return name.is_whole() && piece.len as u64 == piece.size;
        }
        let filled = disk.fill(name, piece, to);
        if filled {
            self.remember(name, piece.version.as_ref(), piece.size, &to[..piece.len]);
        }
        filled
    }

    fn remember(&self, name: &Name, version: Option<&ObjectVersion>, size: u64, bytes: &[u8]) {
        if let Some(memory) = &self.memory {
            memory.put(name, version, size, bytes);
        }
    }

    /// Puts a piece that was read into the caches.
    pub fn keep(&self, name: &Name, found: &Found, bytes: &[u8]) {
        self.remember(name, found.version.as_ref(), found.size, bytes);
        if let (Some(disk), Some(version)) = (&self.disk, &found.version)
            && name.remote
            && version.is_dated_or_tagged()
        {
            disk.saw(name.object, version);
            disk.keep(name, version, found.size, bytes);
        }
    }

    /// Removes a piece from the caches.
    pub fn forget(&self, name: &Name) {
        if let Some(memory) = &self.memory {
            memory.forget(name);
        }
        if let Some(disk) = self.disk.as_ref().filter(|_| name.remote) {
            disk.forget(name);
        }
    }
}

/// Returns the settings that identify a store besides its URL: options, and servers and accounts in the environment.
fn access(spec: &Spec) -> Vec<(String, String)> {
    let ours = ["max_retries", "retry_timeout", "hedge", "timeout", dali_zarr_stores::credentials::OPTION];
    let options = spec.source.storage_options.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    let mut all: Vec<_> = options.filter(|(name, _)| !ours.contains(&name.as_str())).collect();
    all.extend(std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let cloud = ["AWS_", "AZURE_", "AZURITE_", "GOOGLE_"].iter().any(|p| name.starts_with(p));
        let server = ["ENDPOINT", "URL", "EMULATOR"].iter().any(|what| name.contains(what));
        let which = server || name.ends_with("ACCOUNT_NAME") || name.ends_with("_PROFILE");
        (cloud && which).then(|| (name, value.to_string_lossy().into_owned()))
    }));
    all.sort();
    all
}
