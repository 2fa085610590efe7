//! Reads encoded chunks and shard indexes: by threads from local stores, by tasks from remote ones.

mod fetch;
mod gds;
mod local;
mod merge;
mod pieces;
mod request_limiter;
mod requests;

pub(crate) use merge::{MERGE_LOCAL, MERGE_REMOTE, Merge};

use crate::chunk_index::{ChunkIndex, Location, ShardId};
use crate::messages::{Fetch, Lanes, Read, Shared};
use dali_zarr_base::error::{Code, Error, Result};
use dali_zarr_base::memory::Lease;
use dali_zarr_samples::plan::ChunkId;
use dali_zarr_stores::{ByteRange, Latency, ObjectVersion, Phase, block_on};
use local::{LocalRead, Threads};
use requests::Requests;

/// The I/O of one reader. Dropping it ends the reads under way, and waits until none uses its memory any more.
pub(crate) struct FetchPool {
    /// They read local stores.
    threads: Threads,
    /// They read remote stores. `None` if there are none.
    requests: Option<Requests>,
    shared: Shared,
}

impl FetchPool {
    /// Starts `threads` threads for local stores, and allows `requests` requests to remote stores at a time. Nothing is
    /// started for a kind of store that the dataset does not have. With `lanes`, each thread gets a copy stream to
    /// their device. With `background`, the threads leave the cores to the threads of the training process.
    ///
    /// # Errors
    /// If the system refuses to start a thread, or the device a stream.
    pub fn new(
        [threads, requests]: [usize; 2],
        background: bool,
        lanes: Option<&dyn Lanes>,
        shared: &Shared,
    ) -> Result<Self> {
        let stores = &shared.chunk_index.dataset.stores;
        let local = stores.iter().any(|s| s.latency() == Latency::Local);
        let remote = stores.iter().filter(|s| s.latency() == Latency::Remote);
        let runtime = remote.filter_map(|s| s.runtime()).next().cloned();
        Ok(Self {
            threads: Threads::new(if local { threads } else { 0 }, background, lanes, shared)?,
            requests: runtime.map(|runtime| Requests::new(runtime, requests, background, shared)).transpose()?,
            shared: shared.clone(),
        })
    }

    /// Returns the remote reads if this part of the array lies in a remote store.
    fn requests(&self, array: u16, part: u16) -> Option<&Requests> {
        self.requests.as_ref().filter(|_| self.shared.chunk_index.is_remote(array, part))
    }
}

impl Fetch for FetchPool {
    fn read(&mut self, read: Read, to: Lease) {
        match self.requests(read.array, read.part) {
            Some(requests) => requests.read(read, to),
            None => self.threads.send(LocalRead::Read(read, to)),
        }
    }

    fn index(&mut self, shard: ShardId, key: String) {
        match self.requests(shard.array, shard.part) {
            Some(requests) => requests.index(shard, key),
            None => self.threads.send(LocalRead::Index(shard, key)),
        }
    }

    fn report_copies(&self) {
        self.threads.report_copies(&self.shared);
    }
}

/// Reads the encoded bytes of a chunk again, to new memory. `len` is the number of bytes that were read before, and
/// `version` the version of the shard that they were read from. Blocks.
///
/// # Errors
/// If the chunk can't be read any more, or its shard was replaced.
pub(crate) fn reread(
    chunk_index: &ChunkIndex,
    id: ChunkId,
    len: usize,
    version: Option<&ObjectVersion>,
) -> Result<Vec<u8>> {
    let (key, store) = (chunk_index.key(id), &**chunk_index.store(id.array, id.part));
    let max = chunk_index.part(id).format.usual_encoded_bytes(chunk_index.decoded_bytes(id)).max(len) as u64;
    let gone = || Error::coded(Code::Replaced, "it vanished while it was read");
    block_on(store, async {
        let (Location::Shard(_, slot), Some(sharding)) = (chunk_index.location(id), &chunk_index.part(id).sharding)
        else {
            return store.get(&key, max, Phase::Running).await?.ok_or_else(gone);
        };
        let mut index = vec![0; sharding.index_bytes];
        let found =
            store.read(&key, sharding.index_range(), version, Phase::Running, &mut index).await?.ok_or_else(gone)?;
        let (offset, len) = sharding.decode_index(&index, found.size)?.get(slot).copied().flatten().ok_or_else(gone)?;
        if len > max {
            return Err(Error::coded(
                Code::Replaced,
                format!("expected at most {max} encoded bytes, but found {len}; it was replaced"),
            ));
        }
        let mut bytes = vec![0; len as usize];
        let range = ByteRange::From(offset);
        store.read(&key, range, found.version.as_ref(), Phase::Running, &mut bytes).await?.ok_or_else(gone)?;
        Ok(bytes)
    })
}
