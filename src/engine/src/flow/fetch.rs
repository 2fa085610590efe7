//! What reads: ranges of objects into memory that the scheduler reserved, and shard indexes.
//!
//! Local stores are read by threads, each by one call at a time ([`Threads`]); remote ones by requests, of which many are
//! under way for each thread ([`super::requests`]).
//!
//! One of the places where `unsafe` is allowed: a read's span belongs to its thread until the event is sent.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::admission::MERGE_LOCAL;
use super::catalog::{Catalog, Location};
use super::pieces::{Pieces, same_version, whole};
use super::requests::Requests;
use super::shards::{Index, ShardId};
use super::stats::Stats;
use super::tasks::{Fetch, GroupId, PastHost, Read, ReadRange, Shared};
use super::wave::{Lanes, Storage, Upload};
use super::{Event, spawn};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::nvtx;
use crate::plan::ChunkId;
use crate::store::{Found, Part, Phase};

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
            requests: io.map(|io| Requests::new(io, requests, shared)),
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
        for way in &self.threads.ways {
            // A thread that has it is about to report, or to start a copy.
            if let Ok(mut way) = way.try_lock()
                && way.is_done()
            {
                way.finish(&self.shared);
            }
        }
    }
}

/// The threads that read local stores. Dropping it lets them finish what they began, and waits.
struct Threads {
    work: Option<Sender<Work>>,
    threads: Vec<JoinHandle<()>>,
    /// Those of the threads. Memory may be freed when they are dropped too: that waits for their copies.
    ways: Vec<Arc<Mutex<Way>>>,
}

impl Threads {
    /// With `lanes` each thread gets a way to their device.
    fn new(threads: usize, lanes: Option<&dyn Lanes>, shared: &Shared) -> Result<Self> {
        let (work, receiver) = unbounded();
        // It waits for the threads that were started, if one can't be.
        let mut all = Self { work: Some(work), threads: Vec::new(), ways: Vec::new() };
        for i in 0..threads {
            let (work, shared) = (receiver.clone(), shared.clone());
            let upload = lanes.map(Lanes::upload).transpose()?;
            let storage = lanes.map(Lanes::storage).transpose()?.flatten();
            let way = upload.map(|upload| Arc::new(Mutex::new(Way { upload, copying: None, failed: None })));
            all.ways.extend(way.clone());
            let thread = Thread { work, shared, way, storage };
            all.threads.push(spawn(&format!("fetch-{i}"), thread.shared.events.clone(), move || thread.run())?);
        }
        Ok(all)
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

/// A thread's way to the device, and what is on it.
struct Way {
    upload: Box<dyn Upload>,
    /// The read whose uploads are under way, and its bytes.
    copying: Option<(GroupId, usize)>,
    /// Why they could not be started.
    failed: Option<Error>,
}

impl Way {
    /// Starts uploads, and says so before anyone can say that they are done. False if nobody listens any more.
    fn start(&mut self, group: GroupId, len: usize, copies: &[(Span, u64)], shared: &Shared) -> bool {
        // SAFETY: the scheduler keeps the spans and the slots until it hears `Uploaded`, which is sent when all is done; if
        // the thread ends before, dropping `upload` waits.
        if let Err(e) = unsafe { self.upload.start(copies) } {
            self.failed.get_or_insert(e);
        }
        self.copying = Some((group, len));
        shared.events.send(Event::Uploading).is_ok()
    }

    /// Whether there are uploads to be reported that needn't be waited for.
    fn is_done(&self) -> bool {
        self.copying.is_some() && self.upload.is_done().unwrap_or(true)
    }

    /// Waits for the uploads under way, if any, and reports them. False if nobody listens any more.
    fn finish(&mut self, shared: &Shared) -> bool {
        let Some((group, len)) = self.copying.take() else { return true };
        let result = self.upload.wait();
        if let Ok(seconds) = result {
            Stats::seconds(&shared.stats.copy_ns, seconds);
        }
        let result = match self.failed.take() {
            None => result.map(|_| Some(len)),
            Some(e) => Err(e),
        };
        shared.events.send(Event::Uploaded(group, result)).is_ok()
    }
}

/// One fetch thread. It copies a chunk to the device while it reads the next one: so no more page-locked memory is in use
/// than two reads a thread, which stays in the caches between its reader and the copy engine.
struct Thread {
    work: Receiver<Work>,
    shared: Shared,
    way: Option<Arc<Mutex<Way>>>,
    /// Its way from files to the device, if this reader uses it.
    storage: Option<Box<dyn Storage>>,
}

impl Thread {
    fn way(&self) -> Option<MutexGuard<'_, Way>> {
        self.way.as_ref().map(|way| way.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn run(self) {
        loop {
            let is_copying = self.way().is_some_and(|way| way.copying.is_some());
            let work = if is_copying {
                self.work.recv_timeout(POLL)
            } else {
                self.work.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            // What is there by now needn't wait for the next read.
            if is_copying
                && !matches!(work, Err(RecvTimeoutError::Disconnected))
                && let Some(mut way) = self.way().filter(|way| way.is_done())
                && !way.finish(&self.shared)
            {
                return;
            }
            let going_on = match work {
                Ok(_) if self.shared.stopped() => continue,
                Ok(work) => self.handle(work),
                Err(RecvTimeoutError::Timeout) => true,
                // The memory may be freed when all threads are gone and their ways dropped: that waits.
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !going_on {
                return;
            }
        }
    }

    /// Reads, and starts what follows. False if nobody listens any more.
    fn handle(&self, work: Work) -> bool {
        let start = Instant::now();
        let range = nvtx::range(c"dali_zarr read");
        let (event, uploads) = match work {
            Work::Read(read) => {
                let past_host = read.past_host.zip(self.storage.as_deref());
                let result = match past_host {
                    Some((way, storage)) => fetch_past_host(&read, way, &self.shared, storage),
                    None => fetch(&read, &self.shared),
                };
                let uploads = match &result {
                    Ok(Some(len)) if !read.uploads.is_empty() && past_host.is_none() => {
                        let copies = read.uploads.iter().map(|&(offset, len, to)| (read.to.part(offset, len), to));
                        Some((read.group, *len, copies.collect::<Vec<_>>()))
                    }
                    _ => None,
                };
                (Event::Fetched(read.group, result), uploads)
            }
            Work::Index(shard, key) => (Event::Index(shard, index(shard, &key, &self.shared)), None),
        };
        drop(range);
        Stats::time(&self.shared.stats.read_ns, start.elapsed());
        let Some(mut way) = self.way() else { return self.shared.events.send(event).is_ok() };
        // It has long been done: the bus is faster than one thread.
        if !way.finish(&self.shared) {
            return false;
        }
        match uploads {
            None => self.shared.events.send(event).is_ok(),
            Some((group, len, copies)) => way.start(group, len, &copies, &self.shared),
        }
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
    if let (ReadRange::From(from), Some(cache), Some(_)) = (read.range, &shared.cache, &read.version) {
        let found = pieces(cache, read, from, shared, to);
        if !matches!(found, Ok(true)) {
            forget_index(shared, read.array, read.part, &read.key);
        }
        if found.map_err(within)? {
            return Ok(Some(read.to.len));
        }
        shared.catalog.confirm_missing(read.array, read.part)?;
        return Ok(None);
    }
    let came = piece(shared, read.array, read.part, &read.key, read.part(), read.version.as_ref(), to);
    let Some((found, from_store)) = came.map_err(within)? else {
        shared.catalog.confirm_missing(read.array, read.part)?;
        return Ok(None);
    };
    let len = read.fits(found.size).map_err(within)?;
    if from_store {
        shared.stats.read(len);
    }
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
    if from.saturating_add(len as u64) > value.size {
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

/// One piece, and whether the store was asked for it.
fn piece(
    shared: &Shared,
    array: u16,
    part: u16,
    key: &str,
    which: Part,
    version: Option<&Arc<str>>,
    to: &mut [u8],
) -> Result<Option<(Found, bool)>> {
    let store = shared.catalog.store(array, part);
    let Some(cache) = &shared.cache else { return Ok(store.read(key, which, version, to)?.map(|found| (found, true))) };
    let name = cache.name(shared.catalog.store_number(array, part), key, which, to.len());
    if let Some(found) = cache.remembered(&name, version, to) {
        return Ok(Some((found, false)));
    }
    let Some(found) = store.read(key, which, version, to)? else { return Ok(None) };
    if let Some(len) = whole(which, &found, to.len()) {
        cache.keep(&name, &found, &to[..len]);
    }
    Ok(Some((found, true)))
}

/// The pieces of a range, of which those that the cache lacks are read; false if there is no such key.
fn pieces(cache: &Cache, read: &Read, from: u64, shared: &Shared, to: &mut [u8]) -> Result<bool> {
    let store = shared.catalog.store(read.array, read.part);
    let mut pieces = Pieces::new(cache, shared.catalog.store_number(read.array, read.part), read, from);
    pieces.remembered(to);
    let mut came = Vec::new();
    for run in pieces.lacking(&MERGE_LOCAL) {
        let found =
            store.read(&read.key, Part::From(from + run.start as u64), read.version.as_ref(), &mut to[run.clone()])?;
        let Some(found) = found else { return Ok(false) };
        same_version(read, &found)?;
        shared.stats.read(run.len());
        came.push((run, found));
    }
    pieces.keep(&came, to);
    Ok(true)
}

/// The index that told of a range is of no use any more.
pub(super) fn forget_index(shared: &Shared, array: u16, part: u16, key: &str) {
    let catalog = &shared.catalog;
    if let (Some(cache), Some(sharding)) = (&shared.cache, catalog.sharded(array, part)) {
        let number = catalog.store_number(array, part);
        cache.forget(&cache.name(number, key, sharding.index_part(), sharding.index_bytes));
    }
}

fn index(shard: ShardId, key: &str, shared: &Shared) -> Result<Option<Arc<Index>>> {
    let within = |e: Error| e.within(place(shared, shard.array, shard.part, key));
    let sharding = shared.catalog.sharding(shard);
    let mut bytes = vec![0; sharding.index_bytes];
    let part = sharding.index_part();
    let Some((found, from_store)) =
        piece(shared, shard.array, shard.part, key, part, None, &mut bytes).map_err(within)?
    else {
        shared.catalog.confirm_missing(shard.array, shard.part)?;
        return Ok(None);
    };
    let entries = sharding.decode_index(&bytes, found.size).map_err(|e| {
        forget_index(shared, shard.array, shard.part, key);
        within(e)
    })?;
    Stats::add(&shared.stats.index_reads, u64::from(from_store));
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
        return Err(Error::runtime(format!("expected at most {most} encoded bytes, found {len}")));
    }
    let mut bytes = vec![0; len as usize];
    store.read(&key, Part::From(offset), found.version.as_ref(), &mut bytes)?.ok_or_else(gone)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::tasks::ReadRange;
    use super::super::wave::{Wave, WaveLimits};
    use super::*;
    use crate::memory::HostBlock;
    use crate::reader::opening::Opened;
    use crate::spec::Spec;
    use crate::store::{Found, LocalStore, ReadFiles, Store};

    /// A store in which reads of the key `1` take until they are allowed.
    struct Hanging(LocalStore, Receiver<()>);

    impl Store for Hanging {
        fn location(&self) -> &str {
            self.0.location()
        }
        fn read(&self, key: &str, part: Part, version: Option<&Arc<str>>, to: &mut [u8]) -> Result<Option<Found>> {
            if key == "1" {
                self.1.recv().unwrap();
            }
            self.0.read(key, part, version, to)
        }
        fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>> {
            self.0.get(key, most)
        }
        fn exists(&self, key: &str) -> Result<bool> {
            self.0.exists(key)
        }
        fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
            self.0.children(prefix)
        }
    }

    /// Copies nothing, and says that it is done when it is told to.
    struct Told(Arc<AtomicBool>);

    impl Upload for Told {
        unsafe fn start(&mut self, copies: &[(Span, u64)]) -> Result<()> {
            assert_eq!(copies.len(), 1);
            Ok(())
        }
        fn is_done(&self) -> Result<bool> {
            Ok(self.0.load(Ordering::SeqCst))
        }
        fn wait(&self) -> Result<f64> {
            while !self.is_done()? {
                std::thread::yield_now();
            }
            Ok(0.0)
        }
    }

    impl Lanes for Told {
        fn count(&self) -> usize {
            0
        }
        fn limits(&self) -> WaveLimits {
            WaveLimits { encoded: 0, decoded: 0, chunks: 0 }
        }
        fn upload(&self) -> Result<Box<dyn Upload>> {
            Ok(Box::new(Self(Arc::clone(&self.0))))
        }
        fn storage(&self) -> Result<Option<Box<dyn Storage>>> {
            Ok(None)
        }
        fn launch(&self, _: usize, _: Wave) {}
    }

    /// What happened, as text: the event and its read.
    fn next(events: &Receiver<Event>) -> String {
        match events.recv_timeout(Duration::from_secs(20)).expect("nothing happened") {
            Event::Uploading => "uploading".into(),
            Event::Uploaded(group, Ok(Some(16))) => format!("uploaded {group}"),
            Event::Fetched(group, Err(e)) => format!("failed {group}: {e}"),
            _ => "something else".into(),
        }
    }

    #[test]
    fn what_is_on_the_device_waits_for_no_other_read() {
        let folder = tempfile::tempdir().unwrap();
        let metadata = r#"{"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "<i4", "fill_value": 0, "order": "C",
            "filters": null, "compressor": null}"#;
        std::fs::write(folder.path().join(".zarray"), metadata).unwrap();
        for key in ["0", "1"] {
            std::fs::write(folder.path().join(key), [7; 16]).unwrap();
        }
        let path = folder.path().to_str().unwrap();
        // Whether the first chunk is copied before the thread begins with the second one, which hangs.
        for before in [true, false] {
            let (allow, allowed) = unbounded();
            let mut opened = Opened::new(&Spec { paths: vec![path.to_owned()], ..Spec::default() }).unwrap();
            Arc::get_mut(&mut opened.catalog).unwrap().dataset.stores[0] =
                Arc::new(Hanging(LocalStore::open(path, ReadFiles::default()).unwrap(), allowed));
            let (sender, events) = unbounded();
            let shared = Shared {
                cache: None,
                catalog: opened.catalog,
                ops: Arc::new(opened.ops),
                stats: Arc::new(Stats::default()),
                events: sender,
                stop: Arc::new(AtomicBool::new(false)),
            };
            let memory = HostBlock::map(512).unwrap();
            let done = Arc::new(AtomicBool::new(before));
            let mut pool = FetchPool::new([1, 1], Some(&Told(Arc::clone(&done))), &shared).unwrap();
            for group in [0, 1] {
                pool.read(Read {
                    group,
                    array: 0,
                    part: 0,
                    key: group.to_string(),
                    range: ReadRange::Exact,
                    version: None,
                    to: Span { address: memory.address() + 256 * group, len: 16 },
                    uploads: vec![(0, 16, 0)],
                    pieces: Vec::new(),
                    past_host: None,
                });
            }
            assert_eq!(next(&events), "uploading");
            if !before {
                // Both the thread and the copy are busy: nothing is to be told, however often it is asked.
                while !pool.threads.work.as_ref().unwrap().is_empty() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(5));
                pool.report_copies();
                assert!(events.try_recv().is_err());
                done.store(true, Ordering::SeqCst);
                pool.report_copies();
            }
            assert_eq!(next(&events), "uploaded 0");
            pool.report_copies();
            assert!(events.try_recv().is_err(), "it is told once");
            allow.send(()).unwrap();
            assert_eq!((next(&events), next(&events)), ("uploading".into(), "uploaded 1".into()));
        }
    }
}
