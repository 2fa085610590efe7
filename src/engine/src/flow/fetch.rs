//! What reads: ranges of objects into memory that the scheduler reserved, and shard indexes.
//!
//! Local stores are read by threads, each by one call at a time ([`super::threads`]); remote ones by requests, of which many are
//! under way for each thread ([`super::requests`]).

use std::sync::Arc;

use super::catalog::{Catalog, Location};
use super::requests::Requests;
use super::shards::{Entries, Index, ShardId};
use super::stats::Stats;
use super::tasks::{Fetch, Read, Shared};
use super::threads::{Threads, Work};
use super::wave::Lanes;
use crate::error::{Error, Result};
use crate::plan::ChunkId;
use crate::store::{Found, Part, Phase};

/// All that reads for one reader. Dropping it ends reads that are under way, and waits until nothing of them is left.
pub(crate) struct FetchPool {
    threads: Threads,
    requests: Option<Requests>,
    shared: Shared,
}

impl FetchPool {
    /// As many threads for local stores (none are started if there are none), each with a way to the device of `lanes`, and as
    /// many requests at a time for remote ones, as reads may be under way.
    ///
    /// # Errors
    /// If the system refuses to start a thread, or the device a stream.
    pub fn new([threads, requests]: [usize; 2], lanes: Option<&dyn Lanes>, shared: &Shared) -> Result<Self> {
        let stores = &shared.catalog.dataset.stores;
        let local = stores.iter().any(|s| s.remote().is_none());
        let io = stores.iter().find_map(|s| s.remote()).map(|s| Arc::clone(s.io()));
        Ok(Self {
            threads: Threads::new(if local { threads } else { 0 }, lanes, shared)?,
            requests: io.map(|io| Requests::new(io, requests, shared)).transpose()?,
            shared: shared.clone(),
        })
    }
}

impl Fetch for FetchPool {
    fn read(&mut self, read: Read) {
        match (self.shared.catalog.store(read.array, read.part).remote(), &mut self.requests) {
            (Some(store), Some(requests)) => requests.read(Arc::clone(store), read),
            _ => self.threads.send(Work::Read(read)),
        }
    }

    fn index(&mut self, shard: ShardId, key: String) {
        match (self.shared.catalog.store(shard.array, shard.part).remote(), &mut self.requests) {
            (Some(store), Some(requests)) => requests.index(Arc::clone(store), shard, key),
            _ => self.threads.send(Work::Index(shard, key)),
        }
    }

    fn report_copies(&self) {
        self.threads.report_copies(&self.shared);
    }
}

/// A value, or a piece of one, that came.
pub(super) struct Came {
    pub found: Found,
    /// Whether the store was asked for it, and not a cache.
    pub read: bool,
}

/// What to call a value in messages.
pub(super) fn place(shared: &Shared, array: u16, part: u16, key: &str) -> String {
    let name = &shared.catalog.dataset.arrays[array as usize].name;
    format!("store {}, array '{name}', chunk {key}", shared.catalog.store(array, part).location())
}

/// The length of a value that was found, if it is one that this read can be of; else the cache doesn't keep it.
///
/// # Errors
/// As [`Read::fits`], with the place.
pub(super) fn fits(shared: &Shared, read: &Read, size: u64) -> Result<usize> {
    read.fits(size).map_err(|e| {
        if let Some(cache) = &shared.cache {
            let number = shared.catalog.store_number(read.array, read.part);
            cache.forget(&cache.name(number, &read.key, read.part(), read.to.len));
        }
        e.within(place(shared, read.array, read.part, &read.key))
    })
}

/// The length of what came for a read, which is counted. If it is longer than the read's span, nothing came.
///
/// # Errors
/// As [`fits`].
pub(super) fn ended(shared: &Shared, read: &Read, came: &Came) -> Result<usize> {
    let len = fits(shared, read, came.found.size)?;
    if came.read && len <= read.to.len {
        shared.stats.read(len);
    }
    Ok(len)
}

/// The index that came as these bytes of the shard `key`, which is counted. The cache keeps none that is damaged.
///
/// # Errors
/// If it is damaged.
pub(super) fn opened_index(shared: &Shared, shard: ShardId, key: &str, bytes: &[u8], came: Came) -> Result<Arc<Index>> {
    let Came { found, read } = came;
    let entries = shared.catalog.sharding(shard).decode_index(bytes, found.size).map_err(|e| {
        forget_index(shared, shard.array, shard.part, key);
        e.within(place(shared, shard.array, shard.part, key))
    })?;
    Stats::add(&shared.stats.index_reads, u64::from(read));
    Ok(Arc::new(Index { entries: Entries::Read(entries), version: found.version }))
}

/// The index that told of a range is of no use any more.
pub(super) fn forget_index(shared: &Shared, array: u16, part: u16, key: &str) {
    let catalog = &shared.catalog;
    if let (Some(cache), Some(sharding)) = (&shared.cache, catalog.sharded(array, part)) {
        let number = catalog.store_number(array, part);
        cache.forget(&cache.name(number, key, sharding.index_part(), sharding.index_bytes));
    }
}

/// The encoded bytes of a chunk, of which there were `len`, read from the store once more, into memory of its own.
///
/// # Errors
/// If they can't be read any more.
pub(crate) fn reread(catalog: &Catalog, id: ChunkId, len: usize) -> Result<Vec<u8>> {
    let gone = || Error::runtime("it vanished while it was read");
    let (key, store) = (catalog.key(id), catalog.store(id.array, id.part));
    let most = catalog.part(id).format.usual_encoded_bytes(catalog.decoded_bytes(id)).max(len) as u64;
    let (Location::Shard(_, slot), Some(sharding)) = (catalog.location(id), &catalog.part(id).sharding) else {
        let whole = match store.remote() {
            Some(remote) => remote.io().block_on(remote.get(&key, most, Phase::Running))?,
            None => store.get(&key, most)?,
        };
        return whole.ok_or_else(gone);
    };
    let mut index = vec![0; sharding.index_bytes];
    let found = store.read(&key, sharding.index_part(), None, &mut index)?.ok_or_else(gone)?;
    let (offset, len) = sharding.decode_index(&index, found.size)?.get(slot).copied().flatten().ok_or_else(gone)?;
    if len > most {
        return Err(Error::runtime(format!("expected at most {most} encoded bytes, but found {len}; it was replaced")));
    }
    let mut bytes = vec![0; len as usize];
    store.read(&key, Part::From(offset), found.version.as_ref(), &mut bytes)?.ok_or_else(gone)?;
    Ok(bytes)
}
