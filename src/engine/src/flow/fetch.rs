//! What reads: ranges of objects into memory that the scheduler reserved, and shard indexes.
//!
//! Local stores are read by threads, each by one call at a time ([`Threads`]); remote ones by requests, of which many are
//! under way for each thread ([`super::requests`]).
//!
//! One of the places where `unsafe` is allowed: a read's span belongs to its thread until the event is sent.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::catalog::{Catalog, Location};
use super::requests::Requests;
use super::shards::{Index, ShardId};
use super::stats::Stats;
use super::tasks::{GroupId, PastHost, Read, Shared};
use super::wave::{Lanes, Storage, Upload};
use super::{Event, spawn};
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::nvtx;
use crate::plan::ChunkId;
use crate::store::Part;

enum Work {
    Read(Read),
    Index(ShardId, String),
}

/// All that reads for one reader. Dropping it ends reads that are under way, and waits until nothing of them is left.
pub(crate) struct FetchPool {
    threads: Threads,
    requests: Option<Requests>,
    shared: Shared,
}

impl FetchPool {
    /// `threads` for local stores (none are started if there are none), each with a way to the device of `lanes`, and
    /// `requests` at a time for remote ones.
    ///
    /// # Errors
    /// If the system refuses to start a thread, or the device a stream.
    pub fn new(threads: usize, requests: usize, lanes: Option<&dyn Lanes>, shared: &Shared) -> Result<Self> {
        let stores = &shared.catalog.dataset.stores;
        let local = stores.iter().any(|s| s.remote().is_none());
        let io = stores.iter().find_map(|s| s.remote()).map(|s| Arc::clone(s.io()));
        Ok(Self {
            threads: Threads::new(if local { threads } else { 0 }, lanes, shared)?,
            requests: io.map(|io| Requests::new(io, requests, shared)),
            shared: shared.clone(),
        })
    }

    /// Starts a read; its end is an event.
    pub fn read(&mut self, read: Read) {
        match (self.shared.catalog.store(read.array, read.part).remote(), &mut self.requests) {
            (Some(store), Some(requests)) => requests.read(Arc::clone(store), read),
            _ => self.threads.send(Work::Read(read)),
        }
    }

    /// Starts to read the index of a shard; its end is an event.
    pub fn index(&mut self, shard: ShardId, key: String) {
        match (self.shared.catalog.store(shard.array, shard.part).remote(), &mut self.requests) {
            (Some(store), Some(requests)) => requests.index(Arc::clone(store), shard, key),
            _ => self.threads.send(Work::Index(shard, key)),
        }
    }
}

/// The threads that read local stores. Dropping it lets them finish what they began, and waits.
struct Threads {
    work: Option<Sender<Work>>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// With `lanes` each thread gets a way to their device.
    fn new(threads: usize, lanes: Option<&dyn Lanes>, shared: &Shared) -> Result<Self> {
        let (work, receiver) = unbounded();
        let threads = (0..threads)
            .map(|i| {
                let (work, shared) = (receiver.clone(), shared.clone());
                let upload = lanes.filter(|_| shared.catalog.uploads()).map(Lanes::upload).transpose()?;
                let storage = lanes.map(Lanes::storage).transpose()?.flatten();
                let thread = Thread { work, shared, upload, storage, copying: None, failed: None };
                spawn(&format!("fetch-{i}"), thread.shared.events.clone(), move || thread.run())
            })
            .collect::<Result<_>>()?;
        Ok(Self { work: Some(work), threads })
    }

    fn send(&self, work: Work) {
        // The receivers live as long as the threads, which end only when `work` is dropped (a panic is reported apart).
        let _ = self.work.as_ref().expect("until dropped").send(work);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.work = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// How often a thread without work looks whether its copy is done.
const POLL: Duration = Duration::from_micros(100);

/// One fetch thread. It copies a chunk to the device while it reads the next one: so no more page-locked memory is in use
/// than two reads a thread, which stays in the caches between its reader and the copy engine.
struct Thread {
    work: Receiver<Work>,
    shared: Shared,
    upload: Option<Box<dyn Upload>>,
    /// Its way from files to the device, if this reader uses it.
    storage: Option<Box<dyn Storage>>,
    /// The read whose uploads are under way, and its bytes.
    copying: Option<(GroupId, usize)>,
    /// Why they could not be started.
    failed: Option<Error>,
}

impl Thread {
    fn run(mut self) {
        loop {
            let work = match self.copying {
                None => self.work.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => self.work.recv_timeout(POLL),
            };
            let going_on = match work {
                Ok(_) if self.shared.stopped() => continue,
                Ok(work) => self.handle(work),
                Err(RecvTimeoutError::Timeout) => match self.upload.as_ref().map_or(Ok(true), |u| u.is_done()) {
                    Ok(false) => true,
                    _ => self.finish_copy(),
                },
                // The memory may be freed when this thread is gone: dropping `upload` waits.
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !going_on {
                return;
            }
        }
    }

    /// Reads, and starts what follows. False if nobody listens any more.
    fn handle(&mut self, work: Work) -> bool {
        let start = Instant::now();
        let range = nvtx::range(c"dali_zarr read");
        let (event, uploads) = match work {
            Work::Read(read) => {
                let past_host = read.past_host.zip(self.storage.as_deref());
                let result = match past_host {
                    Some((way, storage)) => fetch_past_host(&read, way, &self.shared, storage),
                    None => fetch(&read, &self.shared),
                };
                let copies = read.uploads.iter().map(|&(offset, len, to)| (read.to.part(offset, len), to)).collect();
                let uploads = match &result {
                    Ok(Some(len)) if !read.uploads.is_empty() && past_host.is_none() => {
                        Some((read.group, *len, copies))
                    }
                    _ => None,
                };
                (Event::Fetched(read.group, result), uploads)
            }
            Work::Index(shard, key) => (Event::Index(shard, index(shard, &key, &self.shared)), None),
        };
        drop(range);
        Stats::time(&self.shared.stats.read_ns, start.elapsed());
        // It has long been done: the bus is faster than one thread.
        if !self.finish_copy() {
            return false;
        }
        let event = match uploads {
            None => event,
            Some((group, len, copies)) => {
                self.start_copy(group, len, copies);
                Event::Uploading
            }
        };
        self.shared.events.send(event).is_ok()
    }

    fn start_copy(&mut self, group: GroupId, len: usize, copies: Vec<(Span, u64)>) {
        let Some(upload) = &mut self.upload else { return };
        // SAFETY: the scheduler keeps the spans and the slots until it hears `Uploaded`, which is sent when all is done; if
        // this thread ends before, dropping `upload` waits.
        if let Err(e) = unsafe { upload.start(&copies) } {
            self.failed.get_or_insert(e);
        }
        self.copying = Some((group, len));
    }

    /// Waits for the uploads under way, if any, and reports them. False if nobody listens any more.
    fn finish_copy(&mut self) -> bool {
        let (Some((group, len)), Some(upload)) = (self.copying.take(), &self.upload) else { return true };
        let result = upload.wait();
        if let Ok(seconds) = result {
            Stats::seconds(&self.shared.stats.copy_ns, seconds);
        }
        let result = match self.failed.take() {
            None => result.map(|_| Some(len)),
            Some(e) => Err(e),
        };
        self.shared.events.send(Event::Uploaded(group, result)).is_ok()
    }
}

/// What to call a value in messages.
pub(super) fn place(shared: &Shared, array: u16, part: u16, key: &str) -> String {
    let name = &shared.catalog.dataset.arrays[array as usize].name;
    format!("store {}, array '{name}', chunk {key}", shared.catalog.store(array, part).location())
}

fn fetch(read: &Read, shared: &Shared) -> Result<Option<usize>> {
    let within = |e: Error| e.within(place(shared, read.array, read.part, &read.key));
    // SAFETY: the scheduler reserved the span for this read alone, until it hears of its end.
    let to = unsafe { read.to.bytes_mut() };
    let store = shared.catalog.store(read.array, read.part);
    let found = store.read(&read.key, read.part(), read.version.as_ref(), to).map_err(within)?;
    let Some(found) = found else {
        shared.catalog.confirm_missing(read.array, read.part)?;
        return Ok(None);
    };
    let len = read.fits(found.size).map_err(within)?;
    shared.stats.read(len);
    Ok(Some(len))
}

/// [`fetch`] to the device.
fn fetch_past_host(read: &Read, way: PastHost, shared: &Shared, storage: &dyn Storage) -> Result<Option<usize>> {
    let within = |e: Error| e.within(place(shared, read.array, read.part, &read.key));
    let store = shared.catalog.store(read.array, read.part);
    let Some(value) = store.in_file(&read.key, read.version.as_ref()).map_err(within)? else {
        shared.catalog.confirm_missing(read.array, read.part)?;
        return Ok(None);
    };
    let len = read.fits(value.size).map_err(within)?;
    let from = match read.part() {
        Part::From(offset) => offset,
        Part::Whole | Part::Last => 0,
    };
    if from + len as u64 > value.size {
        return Err(within(Error::runtime(format!(
            "expected {len} bytes at offset {from}, but the value has {}; it is truncated or being rewritten",
            value.size
        ))));
    }
    let begin = value.start + from;
    // SAFETY: the scheduler reserved the slots, the landing place and the span for this read alone, until it hears of its end.
    let result = unsafe {
        match way {
            PastHost::Slots => {
                let part = |&(offset, len, slot): &(usize, usize, u64)| (begin + offset as u64, len, slot);
                storage.read(&value.file, &read.uploads.iter().map(part).collect::<Vec<_>>())
            }
            PastHost::Landing(address) => storage
                .read(&value.file, &[(begin, len, address)])
                .and_then(|()| storage.copy_back(address, read.to.part(0, len))),
        }
    };
    result.map_err(within)?;
    shared.stats.read(len);
    Stats::add(&shared.stats.reads_gds, 1);
    Ok(Some(len))
}

fn index(shard: ShardId, key: &str, shared: &Shared) -> Result<Option<Arc<Index>>> {
    let within = |e: Error| e.within(place(shared, shard.array, shard.part, key));
    let sharding = shared.catalog.sharding(shard);
    let mut bytes = vec![0; sharding.index_bytes];
    let store = shared.catalog.store(shard.array, shard.part);
    let Some(found) = store.read(key, sharding.index_part(), None, &mut bytes).map_err(within)? else {
        shared.catalog.confirm_missing(shard.array, shard.part)?;
        return Ok(None);
    };
    let entries = sharding.decode_index(&bytes, found.size).map_err(within)?;
    Stats::add(&shared.stats.index_reads, 1);
    Ok(Some(Arc::new(Index { entries, version: found.version })))
}

/// The encoded bytes of a chunk, read from the store once more, into memory of its own.
///
/// # Errors
/// If they can't be read any more.
pub(crate) fn reread(catalog: &Catalog, id: ChunkId) -> Result<Vec<u8>> {
    let gone = || Error::runtime("it vanished while it was read");
    let (key, store) = (catalog.key(id), catalog.store(id.array, id.part));
    let most = catalog.part(id).format.max_encoded_bytes(catalog.decoded_bytes(id)) as u64;
    let (Location::Shard(_, slot), Some(sharding)) = (catalog.location(id), &catalog.part(id).sharding) else {
        return store.get(&key, most)?.ok_or_else(gone);
    };
    let mut index = vec![0; sharding.index_bytes];
    let found = store.read(&key, sharding.index_part(), None, &mut index)?.ok_or_else(gone)?;
    let (offset, len) = sharding.decode_index(&index, found.size)?.get(slot).copied().flatten().ok_or_else(gone)?;
    if len > most {
        return Err(Error::runtime(format!("expected at most {most} encoded bytes, found {len}")));
    }
    let mut bytes = vec![0; len as usize];
    store.read(&key, Part::From(offset), found.version.as_ref(), &mut bytes)?.ok_or_else(gone)?;
    Ok(bytes)
}
