//! Threads that read: ranges of objects into memory that the scheduler reserved, and shard indexes.
//!
//! One of the places where `unsafe` is allowed: a read's span belongs to its thread until the event is sent.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::catalog::{Catalog, Location};
use super::shards::{Index, ShardId};
use super::stats::Stats;
use super::tasks::{Read, ReadRange, Shared};
use super::{Event, spawn};
use crate::error::{Error, Result};
use crate::plan::ChunkId;

enum Work {
    Read(Read),
    Index(ShardId, String),
}

/// The fetch threads. Dropping it lets them finish what they were given, and waits.
pub(crate) struct FetchPool {
    work: Option<Sender<Work>>,
    threads: Vec<JoinHandle<()>>,
}

impl FetchPool {
    pub fn new(threads: usize, shared: &Shared) -> Result<Self> {
        let (work, receiver) = unbounded();
        let threads = (0..threads)
            .map(|i| {
                let (receiver, shared) = (receiver.clone(), shared.clone());
                spawn(&format!("fetch-{i}"), shared.events.clone(), move || run(&receiver, &shared))
            })
            .collect::<Result<_>>()?;
        Ok(Self { work: Some(work), threads })
    }

    fn send(&self, work: Work) {
        // The receivers live as long as the threads, which end only when `work` is dropped (a panic is reported apart).
        let _ = self.work.as_ref().expect("until dropped").send(work);
    }

    pub fn read(&self, read: Read) {
        self.send(Work::Read(read));
    }

    pub fn index(&self, shard: ShardId, key: String) {
        self.send(Work::Index(shard, key));
    }
}

impl Drop for FetchPool {
    fn drop(&mut self) {
        self.work = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(work: &Receiver<Work>, shared: &Shared) {
    for work in work {
        if shared.stopped() {
            continue;
        }
        let start = Instant::now();
        let event = match work {
            Work::Read(read) => Event::Fetched(read.group, fetch(&read, shared)),
            Work::Index(shard, key) => Event::Index(shard, index(shard, &key, shared)),
        };
        Stats::time(&shared.stats.read_ns, start.elapsed());
        if shared.events.send(event).is_err() {
            return;
        }
    }
}

fn place(shared: &Shared, array: u16, part: u16, key: &str) -> String {
    let name = &shared.catalog.dataset.arrays[array as usize].name;
    format!("store {}, array '{name}', chunk {key}", shared.catalog.store(array, part).location())
}

fn fetch(read: &Read, shared: &Shared) -> Result<Option<usize>> {
    let within = |e: Error| e.within(place(shared, read.array, read.part, &read.key));
    let object = shared.catalog.store(read.array, read.part).open(&read.key).map_err(within)?;
    let Some(object) = object else {
        shared.catalog.confirm_missing(read.array, read.part)?;
        return Ok(None);
    };
    let (offset, len) = match read.range {
        ReadRange::From(offset) => (offset, read.to.len),
        ReadRange::Whole if object.len() <= read.to.len as u64 => (0, object.len() as usize),
        ReadRange::Exact if object.len() == read.to.len as u64 => (0, read.to.len),
        ReadRange::Whole | ReadRange::Exact => {
            let (what, hint) = match read.range {
                ReadRange::Exact => ("expected", "the chunk is truncated or isn't what the metadata says"),
                _ => ("expected at most", "no encoding of the chunk's size takes as much; the chunk is corrupt"),
            };
            return Err(within(Error::runtime(format!(
                "{what} {} bytes, found {}; {hint}",
                read.to.len,
                object.len()
            ))));
        }
    };
    // SAFETY: the scheduler reserved the span for this read alone, until it hears of its end.
    let to = unsafe { read.to.part(0, len).bytes_mut() };
    object.read_at(offset, to).map_err(within)?;
    Stats::add(&shared.stats.reads, 1);
    Stats::add(&shared.stats.bytes_read, len as u64);
    Ok(Some(len))
}

fn index(shard: ShardId, key: &str, shared: &Shared) -> Result<Option<Arc<Index>>> {
    let within = |e: Error| e.within(place(shared, shard.array, shard.part, key));
    let part = &shared.catalog.dataset.arrays[shard.array as usize].parts[shard.part as usize];
    let sharding = part.sharding.as_ref().expect("only shards have an index");
    let object = shared.catalog.store(shard.array, shard.part).open(key).map_err(within)?;
    let Some(object) = object else {
        shared.catalog.confirm_missing(shard.array, shard.part)?;
        return Ok(None);
    };
    let entries = sharding.read_index(object.as_ref()).map_err(within)?;
    Stats::add(&shared.stats.index_reads, 1);
    Ok(Some(Arc::new(Index { entries })))
}

/// The encoded bytes of a chunk, read from the store once more, into memory of its own.
///
/// # Errors
/// If they can't be read any more.
pub(crate) fn reread(catalog: &Catalog, id: ChunkId) -> Result<Vec<u8>> {
    let gone = || Error::runtime("it vanished while it was read");
    let key = catalog.key(id);
    let object = catalog.store(id.array, id.part).open(&key)?.ok_or_else(gone)?;
    let (offset, len) = match (catalog.location(id), &catalog.part(id).sharding) {
        (Location::Shard(_, slot), Some(sharding)) => {
            let entries = sharding.read_index(object.as_ref())?;
            entries.get(slot).copied().flatten().ok_or_else(gone)?
        }
        _ => (0, object.len()),
    };
    let most = catalog.part(id).format.max_encoded_bytes(catalog.decoded_bytes(id));
    if len > most as u64 {
        return Err(Error::runtime(format!("expected at most {most} encoded bytes, found {len}")));
    }
    let mut bytes = vec![0; len as usize];
    object.read_at(offset, &mut bytes)?;
    Ok(bytes)
}
