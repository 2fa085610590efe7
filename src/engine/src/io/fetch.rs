//! Executes one read: copies encoded bytes from a store or the cache to the memory that was leased to the read. Also
//! reads shard indexes. The code is the same for all stores: threads run it for local stores ([`crate::io::local`]),
//! tasks for remote ones ([`crate::io::requests`]).

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::try_join_all;

use super::merge::{MERGE_LOCAL, MERGE_REMOTE};
use super::pieces::{Pieces, whole};
use super::request_limiter::{RequestLimiter, RequestPermit};
use crate::cache::{Cache, CacheLookup, Name, Unvalidated};
use crate::chunk_index::{Entries, ShardId, ShardIndex};
use crate::messages::{Read, ReadRange, Shared};
use crate::stats::Stats;
use dali_zarr_base::error::{Code, Error, Result};
use dali_zarr_stores::{ByteRange, Extent, Found, Latency, ObjectVersion, Phase, Store};

/// The parts of a read that the cache does not have.
pub(super) enum CacheMiss {
    /// Everything: there is no cache.
    NoCache,
    /// The one piece of the read. The disk cache may have it in a version that the store must confirm.
    Piece(Name, Option<Unvalidated>),
    /// Some pieces of a merged read that begins at this offset.
    Pieces(u64, Pieces),
}

/// The result of reading a value or a piece of one.
struct Fetched {
    found: Found,
    /// Whether it came from the store, and not from the cache.
    from_store: bool,
}

/// Copies what the cache has of a read. Returns the number of bytes of the read if the cache has all of it, otherwise
/// what is missing. Makes no requests, but may block on a disk.
pub(super) fn look(read: &Read, to: &mut [u8], shared: &Shared) -> std::result::Result<Result<usize>, CacheMiss> {
    let Some(cache) = &shared.cache else { return Err(CacheMiss::NoCache) };
    let number = shared.chunk_index.store_number(read.array, read.part);
    if let ReadRange::From(from) = read.range
        && (read.object.version.is_some() || read.object.name.is_some())
    {
        let mut pieces = Pieces::new(cache, number, read, from);
        pieces.get_from_memory(cache, read, to);
        if !pieces.complete() {
            pieces.get_from_disk(cache, read, to);
        }
        return if pieces.complete() { Ok(Ok(read.len)) } else { Err(CacheMiss::Pieces(from, pieces)) };
    }
    let name = cache.name(number, read.name(), read.byte_range(), read.len);
    match cache.look(&name, read.object.version.as_ref(), to) {
        CacheLookup::Found(found) => Ok(fits(shared, read, found.size)),
        CacheLookup::Unvalidated(piece) => Err(CacheMiss::Piece(name, Some(piece))),
        CacheLookup::Missing => Err(CacheMiss::Piece(name, None)),
    }
}

/// Reads from the store what the cache does not have. Returns the number of bytes of the read, or `None` if the key
/// does not exist.
///
/// # Errors
/// If the value is damaged, or the store fails.
pub(super) async fn fetch(
    read: &Read,
    to: &mut [u8],
    miss: CacheMiss,
    shared: &Shared,
    limiter: Option<&RequestLimiter>,
) -> Result<Option<usize>> {
    let (key, object) = (&read.key, read.object.name.as_ref());
    let source = Source { shared, array: read.array, part: read.part, key, object, limiter };
    if let (CacheMiss::Pieces(from, pieces), Some(cache)) = (&miss, &shared.cache) {
        let reads = source.pieces(cache, read, *from, pieces, to).await;
        if !matches!(reads, Ok(Some(_))) {
            source.forget_index();
        }
        let Some(reads) = reads.map_err(|e| source.within(&e))? else { return source.missing().await };
        reads.into_iter().for_each(|len| shared.stats.read(len));
        return Ok(Some(read.len));
    }
    let version = read.object.version.as_ref();
    let fetched = source.piece(read.byte_range(), version, Some(miss), to).await;
    let Some(Fetched { found, from_store }) = fetched.map_err(|e| source.within(&e))? else {
        return source.missing().await;
    };
    let len = fits(shared, read, found.size)?;
    if from_store && len <= read.len {
        shared.stats.read(len);
    }
    Ok(Some(len))
}

/// Reads the index of the shard at `key`; `None` if there is no such shard.
///
/// # Errors
/// If the index is damaged, or can't be read.
pub(super) async fn index(
    shard: ShardId,
    key: &str,
    shared: &Shared,
    limiter: Option<&RequestLimiter>,
) -> Result<Option<Arc<ShardIndex>>> {
    let Some(sharding) = shared.chunk_index.sharded(shard.array, shard.part) else {
        // An index of the store itself (a manifest, a reference file): the store keeps it in memory.
        let _permit = acquire(limiter, 0).await;
        shared.chunk_index.store(shard.array, shard.part).read_index(key).await?;
        return Ok(Some(Arc::new(ShardIndex { entries: Entries::Read(Vec::new()), version: None })));
    };
    let source = Source { shared, array: shard.array, part: shard.part, key, object: None, limiter };
    let mut bytes = vec![0; sharding.index_bytes];
    let fetched = source.piece(sharding.index_range(), None, None, &mut bytes).await;
    let Some(Fetched { found, from_store }) = fetched.map_err(|e| source.within(&e))? else {
        return source.missing().await;
    };
    let entries = sharding.decode_index(&bytes, found.size).map_err(|e| {
        source.forget_index();
        source.within(&e)
    })?;
    Stats::add(&shared.stats.index_reads, u64::from(from_store));
    Ok(Some(Arc::new(ShardIndex { entries: Entries::Read(entries), version: found.version })))
}

/// Checks the size of a value that was read. Returns the number of bytes of the read. A value of a wrong size is
/// removed from the cache.
///
/// # Errors
/// As [`Read::fits`], with the place.
pub(super) fn fits(shared: &Shared, read: &Read, size: u64) -> Result<usize> {
    read.fits(size).map_err(|e| {
        if let Some(cache) = &shared.cache {
            let number = shared.chunk_index.store_number(read.array, read.part);
            cache.forget(&cache.name(number, read.name(), read.byte_range(), read.len));
        }
        e.at(shared.chunk_index.site_of(read.array, read.part, &*read.key))
    })
}

fn vanished(object: &str) -> Error {
    Error::runtime(format!("expected the object {object}, but found nothing; chunks lie in it"))
        .with_code(Code::NotFound)
}

/// Waits until a read of `bytes` bytes may begin. Without a limiter it may begin at once.
async fn acquire(limiter: Option<&RequestLimiter>, bytes: usize) -> Option<RequestPermit<'_>> {
    match limiter {
        Some(limiter) => Some(limiter.acquire(bytes).await),
        None => None,
    }
}

/// The source of one value: its store, with the cache in front of it.
struct Source<'a> {
    shared: &'a Shared,
    array: u16,
    part: u16,
    key: &'a str,
    /// As [`ReadObject::name`](crate::messages::ReadObject::name).
    object: Option<&'a Arc<str>>,
    /// Limits the requests to a remote store; `None` for a local one.
    limiter: Option<&'a RequestLimiter>,
}

impl Source<'_> {
    fn store(&self) -> &dyn Store {
        &**self.shared.chunk_index.store(self.array, self.part)
    }

    fn number(&self) -> usize {
        self.shared.chunk_index.store_number(self.array, self.part)
    }

    fn within(&self, e: &Error) -> Error {
        e.at(self.shared.chunk_index.site_of(self.array, self.part, self.key))
    }

    /// The result for a key that doesn't exist.
    ///
    /// # Errors
    /// If the array doesn't exist any more either.
    async fn missing<T>(&self) -> Result<Option<T>> {
        self.shared.chunk_index.confirm_missing(self.array, self.part).await?;
        Ok(None)
    }

    /// Removes the shard's index from the cache: its ranges may be wrong.
    fn forget_index(&self) {
        if let (Some(cache), Some(sharding)) =
            (&self.shared.cache, self.shared.chunk_index.sharded(self.array, self.part))
        {
            cache.forget(&cache.name(self.number(), self.key, sharding.index_range(), sharding.index_bytes));
        }
    }

    /// Reads from the store, as soon as the limiter allows.
    async fn read(&self, range: ByteRange, version: Option<&ObjectVersion>, to: &mut [u8]) -> Result<Option<Found>> {
        let _permit = acquire(self.limiter, to.len()).await;
        let start = Instant::now();
        let found = match (self.object, range) {
            (Some(object), ByteRange::From(offset)) => {
                let (object, version, len) = (Arc::clone(object), version.cloned(), to.len() as u64);
                let extent = Extent { object, version, offset, len };
                let found = self.store().read_extent(&extent, Phase::Running, to).await;
                // A reference says that chunks lie in this object. So a missing object is an error, and its chunks are
                // not fill values.
                found.and_then(|found| found.ok_or_else(|| vanished(&extent.object)).map(Some))
            }
            _ => self.store().read(self.key, range, version, Phase::Running, to).await,
        };
        Stats::time(&self.shared.stats.read_ns, start.elapsed());
        found
    }

    /// Reads one piece of a value, from the cache or the store. `None` if the key does not exist. `miss` is the result
    /// of an earlier look-up in the cache, if there was one.
    async fn piece(
        &self,
        range: ByteRange,
        version: Option<&ObjectVersion>,
        miss: Option<CacheMiss>,
        to: &mut [u8],
    ) -> Result<Option<Fetched>> {
        let Some(cache) = &self.shared.cache else {
            return Ok(self.read(range, version, to).await?.map(|found| Fetched { found, from_store: true }));
        };
        let requests = self.limiter.map(RequestLimiter::requests);
        let (name, cached) = match (miss, requests) {
            (Some(CacheMiss::Piece(name, Some(piece))), Some(requests)) => {
                let found = cache.get_if_confirmed(&name, &piece, self.key, self.store(), requests, to).await?;
                (name, found)
            }
            (Some(CacheMiss::Piece(name, _)), _) => (name, None),
            (_, requests) => {
                let name = cache.name(self.number(), self.key, range, to.len());
                let found = match (cache.get_from_memory(&name, version, to), requests) {
                    (None, Some(requests)) => {
                        cache.get_current_from_disk(&name, self.key, self.store(), requests, to).await?
                    }
                    (found, _) => found,
                };
                (name, found)
            }
        };
        if let Some(found) = cached {
            return Ok(Some(Fetched { found, from_store: false }));
        }
        let Some(found) = self.read(range, version, to).await? else { return Ok(None) };
        if let Some(len) = whole(range, &found, to.len()) {
            cache.keep(&name, &found, &to[..len]);
        }
        Ok(Some(Fetched { found, from_store: true }))
    }

    /// Reads the pieces that the cache does not have, in as few reads as [`super::Merge`] allows. Returns the bytes of
    /// each read, or `None` if the key does not exist.
    async fn pieces(
        &self,
        cache: &Cache,
        read: &Read,
        from: u64,
        pieces: &Pieces,
        to: &mut [u8],
    ) -> Result<Option<Vec<usize>>> {
        let merge = match self.store().latency() {
            Latency::Local => &MERGE_LOCAL,
            Latency::Remote => &MERGE_REMOTE,
        };
        let (mut rest, mut at) = (&mut *to, 0);
        let reads = pieces.missing(read, merge).into_iter().map(|run| {
            let (_, after) = std::mem::take(&mut rest).split_at_mut(run.start - at);
            let (here, after) = after.split_at_mut(run.len());
            (rest, at) = (after, run.end);
            async move {
                let found =
                    self.read(ByteRange::From(from + run.start as u64), read.object.version.as_ref(), here).await?;
                Ok::<_, Error>(found.map(|found| (run, found)))
            }
        });
        let reads: Vec<_> = reads.collect();
        let Some(fetched) = try_join_all(reads).await?.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        pieces.keep(cache, read, &fetched, to);
        Ok(Some(fetched.into_iter().map(|(run, _)| run.len()).collect()))
    }
}
