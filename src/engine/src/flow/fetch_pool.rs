//! All that reads for one reader: threads for local stores, tasks for remote ones.

use super::catalog::{Catalog, Location};
use super::requests::Requests;
use super::shards::ShardId;
use super::tasks::{Fetch, Read, Shared};
use super::threads::{Threads, Work};
use super::wave::Lanes;
use crate::error::{Error, Result};
use crate::memory::Lease;
use crate::plan::ChunkId;
use crate::store::{ByteRange, Latency, Phase, block_on};

/// Dropping it ends the reads under way, and waits until none of them uses its memory any more.
pub(crate) struct FetchPool {
    threads: Threads,
    requests: Option<Requests>,
    shared: Shared,
}

impl FetchPool {
    /// With so many threads for local stores and so many requests at a time to remote ones; nothing is started for a kind of
    /// store that there is none of. Each thread gets a way to the device of `lanes`.
    ///
    /// # Errors
    /// If the system refuses to start a thread, or the device a stream.
    pub fn new([threads, requests]: [usize; 2], lanes: Option<&dyn Lanes>, shared: &Shared) -> Result<Self> {
        let stores = &shared.catalog.dataset.stores;
        let local = stores.iter().any(|s| s.latency() == Latency::Local);
        let remote = stores.iter().filter(|s| s.latency() == Latency::Remote);
        let runtime = remote.filter_map(|s| s.runtime()).next().cloned();
        Ok(Self {
            threads: Threads::new(if local { threads } else { 0 }, lanes, shared)?,
            requests: runtime.map(|runtime| Requests::new(runtime, requests, shared)).transpose()?,
            shared: shared.clone(),
        })
    }

    /// What reads this part of this array, if its store is a remote one.
    fn requests(&self, array: u16, part: u16) -> Option<&Requests> {
        self.requests.as_ref().filter(|_| self.shared.catalog.is_remote(array, part))
    }
}

impl Fetch for FetchPool {
    fn read(&mut self, read: Read, to: Lease) {
        match self.requests(read.array, read.part) {
            Some(requests) => requests.read(read, to),
            None => self.threads.send(Work::Read(read, to)),
        }
    }

    fn index(&mut self, shard: ShardId, key: String) {
        match self.requests(shard.array, shard.part) {
            Some(requests) => requests.index(shard, key),
            None => self.threads.send(Work::Index(shard, key)),
        }
    }

    fn report_copies(&self) {
        self.threads.report_copies(&self.shared);
    }
}

/// The encoded bytes of a chunk, of which there were `len`, read once more to new memory. Blocks.
///
/// # Errors
/// If they can't be read any more.
pub(crate) fn reread(catalog: &Catalog, id: ChunkId, len: usize) -> Result<Vec<u8>> {
    let (key, store) = (catalog.key(id), &**catalog.store(id.array, id.part));
    let max = catalog.part(id).format.usual_encoded_bytes(catalog.decoded_bytes(id)).max(len) as u64;
    let gone = || Error::runtime("it vanished while it was read");
    block_on(store, async {
        let (Location::Shard(_, slot), Some(sharding)) = (catalog.location(id), &catalog.part(id).sharding) else {
            return store.get(&key, max, Phase::Running).await?.ok_or_else(gone);
        };
        let mut index = vec![0; sharding.index_bytes];
        let found =
            store.read(&key, sharding.index_range(), None, Phase::Running, &mut index).await?.ok_or_else(gone)?;
        let (offset, len) = sharding.decode_index(&index, found.size)?.get(slot).copied().flatten().ok_or_else(gone)?;
        if len > max {
            return Err(Error::runtime(format!(
                "expected at most {max} encoded bytes, but found {len}; it was replaced"
            )));
        }
        let mut bytes = vec![0; len as usize];
        let range = ByteRange::From(offset);
        store.read(&key, range, found.version.as_ref(), Phase::Running, &mut bytes).await?.ok_or_else(gone)?;
        Ok(bytes)
    })
}
