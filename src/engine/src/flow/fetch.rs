//! Threads that read: ranges of objects into memory that the scheduler reserved, and shard indexes.
//!
//! One of the places where `unsafe` is allowed: a read's span belongs to its thread until the event is sent.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::catalog::{Catalog, Location};
use super::shards::{Index, ShardId};
use super::stats::Stats;
use super::tasks::{GroupId, Read, ReadRange, Shared};
use super::wave::{Lanes, Upload};
use super::{Event, spawn};
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::nvtx;
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
    /// With `lanes` each thread gets a way to their device.
    pub fn new(threads: usize, lanes: Option<&dyn Lanes>, shared: &Shared) -> Result<Self> {
        let (work, receiver) = unbounded();
        let threads = (0..threads)
            .map(|i| {
                let (work, shared) = (receiver.clone(), shared.clone());
                let upload = lanes.map(Lanes::upload).transpose()?;
                let thread = Thread { work, shared, upload, copying: None, failed: None };
                spawn(&format!("fetch-{i}"), thread.shared.events.clone(), move || thread.run())
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

/// How often a thread without work looks whether its copy is done.
const POLL: Duration = Duration::from_micros(100);

/// One fetch thread. It copies a chunk to the device while it reads the next one: so no more page-locked memory is in use
/// than two reads a thread, which stays in the caches between its reader and the copy engine.
struct Thread {
    work: Receiver<Work>,
    shared: Shared,
    upload: Option<Box<dyn Upload>>,
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
                let result = fetch(&read, &self.shared);
                let copies = read.uploads.iter().map(|&(offset, len, to)| (read.to.part(offset, len), to)).collect();
                let uploads = match &result {
                    Ok(Some(len)) if !read.uploads.is_empty() => Some((read.group, *len, copies)),
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
