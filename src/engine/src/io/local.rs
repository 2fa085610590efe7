//! The threads that read local stores. With a GPU each has its own copy stream to the device.
//!
//! `unsafe` is allowed here: device memory is written by address.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::fetch::{fetch, index, look};
use super::gds::fetch_by_gds;
use crate::chunk_index::ShardId;
use crate::messages::{Event, Lanes, Read, ReadDone, ReadId, Shared, Storage, Upload, Workers};
use crate::stats::Stats;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::Lease;
use dali_zarr_base::nvtx;
use dali_zarr_stores::block_on;

/// A read for a thread.
pub(super) enum LocalRead {
    Read(Read, Lease),
    Index(ShardId, String),
}

/// The threads that read local stores. Dropping it waits until they have finished what they began.
pub(super) struct Threads {
    workers: Workers<LocalRead>,
    /// One for each thread. Dropping a copy stream waits for its copies. So they are dropped after the threads, and
    /// before any memory is freed.
    copy_streams: Vec<Arc<Mutex<CopyStream>>>,
}

impl Threads {
    /// Starts the threads. With `lanes`, each gets a copy stream to their device. With `background`, they leave the
    /// cores to the threads of the training process.
    ///
    /// # Errors
    /// If the system refuses to start a thread, or the device a stream.
    pub fn new(threads: usize, background: bool, lanes: Option<&dyn Lanes>, shared: &Shared) -> Result<Self> {
        let mut copy_streams = Vec::new();
        let body = || {
            let upload = lanes.map(Lanes::upload).transpose()?;
            let storage = lanes.map(Lanes::storage).transpose()?.flatten();
            let copies = upload.map(|upload| Arc::new(Mutex::new(CopyStream { upload, copying: None, failed: None })));
            copy_streams.extend(copies.clone());
            let shared = shared.clone();
            Ok(move |work| Thread { work, shared, copies, storage }.run())
        };
        let workers = Workers::new("fetch", threads, background, shared, body)?;
        Ok(Self { workers, copy_streams })
    }

    /// Gives work to the next thread that is free.
    pub fn send(&self, work: LocalRead) {
        self.workers.send(work);
    }

    /// See [`crate::messages::Fetch::report_copies`].
    pub fn report_copies(&self, shared: &Shared) {
        for stream in &self.copy_streams {
            // A thread that holds the lock is about to report, or to start a copy.
            if let Ok(mut stream) = stream.try_lock()
                && stream.is_done()
            {
                stream.finish(shared);
            }
        }
    }
}

/// A thread with a copy under way waits for another read for this time. Then it sleeps until the copy has ended. It
/// doesn't poll: each query would wake the thread and take a lock of the driver. While there is enough to read, a read
/// comes sooner.
const NEXT_READ: Duration = Duration::from_micros(100);

/// The copy stream of a thread, and the copy under way.
struct CopyStream {
    /// While uploads are under way, it has the lease of the read's bytes.
    upload: Box<dyn Upload>,
    /// The read whose uploads are under way, and the number of its bytes. `None`: no uploads are under way.
    copying: Option<(ReadId, usize)>,
    /// Why these uploads could not be started.
    failed: Option<Error>,
}

impl CopyStream {
    /// Starts the uploads of a read that brought `len` bytes. Sends [`Event::Uploading`] before anything can report
    /// their end. False if the scheduler has ended.
    fn start(&mut self, read: &Read, from: Lease, len: usize, shared: &Shared) -> bool {
        // SAFETY: the scheduler keeps the slots until it hears `Uploaded`, which is sent when all copies have ended; if
        // the thread ends before, dropping `upload` waits.
        if let Err(e) = unsafe { self.upload.start(from, &read.uploads) } {
            self.failed.get_or_insert(e);
        }
        self.copying = Some((read.id, len));
        shared.events.send(Event::Uploading).is_ok()
    }

    /// Whether uploads have ended but are not reported yet.
    fn is_done(&self) -> bool {
        self.copying.is_some() && self.upload.is_done().unwrap_or(true)
    }

    /// Waits for the uploads under way, if any, and reports them. False if the scheduler has ended.
    fn finish(&mut self, shared: &Shared) -> bool {
        let Some((id, len)) = self.copying.take() else { return true };
        let (to, result) = self.upload.wait();
        let to = to.expect("uploads are under way");
        if let Ok(seconds) = result {
            Stats::seconds(&shared.stats.copy_ns, seconds);
        }
        let result = match self.failed.take() {
            None => result.map(|_| Some(len)),
            Some(e) => Err(e),
        };
        shared.events.send(Event::Uploaded(ReadDone { id, to, result })).is_ok()
    }
}

/// What follows a read.
enum Next {
    /// It has ended, and this event tells the scheduler.
    Report(Event),
    /// It brought this number of bytes. Parts of them are copied to the device.
    Upload(Read, Lease, usize),
}

/// One thread. It reads the next chunk while the device copies the last one. So at most two reads for each thread use
/// page-locked memory, and the memory stays in the CPU's caches between the read and the copy.
struct Thread {
    work: Receiver<LocalRead>,
    shared: Shared,
    /// Its copy stream to the device. `None` without a device.
    copies: Option<Arc<Mutex<CopyStream>>>,
    /// Reads files to the device, if this reader uses GPUDirect Storage.
    storage: Option<Box<dyn Storage>>,
}

impl Thread {
    fn copies(&self) -> Option<MutexGuard<'_, CopyStream>> {
        self.copies.as_ref().map(|copies| copies.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn run(self) {
        loop {
            let is_copying = self.copies().is_some_and(|copies| copies.copying.is_some());
            let work = if is_copying {
                self.work.recv_timeout(NEXT_READ)
            } else {
                self.work.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            // A copy that has ended is reported before the next read begins.
            let nothing_to_read = matches!(work, Err(RecvTimeoutError::Timeout));
            if is_copying
                && !matches!(work, Err(RecvTimeoutError::Disconnected))
                && let Some(mut copies) = self.copies().filter(|copies| nothing_to_read || copies.is_done())
                && !copies.finish(&self.shared)
            {
                return;
            }
            let going_on = match work {
                Ok(_) if self.shared.stopped() => continue,
                Ok(work) => self.handle(work),
                Err(RecvTimeoutError::Timeout) => true,
                // Dropping the copy streams, which happens after this, waits for copies.
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if !going_on {
                return;
            }
        }
    }

    /// Executes a read and starts its uploads. False if the scheduler has ended.
    fn handle(&self, work: LocalRead) -> bool {
        let range = nvtx::range(c"dali_zarr read");
        let next = match work {
            LocalRead::Read(read, mut to) => {
                let gds = read.gds.zip(self.storage.as_deref());
                let result = match gds {
                    Some((target, storage)) => fetch_by_gds(&read, &mut to, target, &self.shared, storage),
                    None => self.fetch(&read, &mut to),
                };
                match result {
                    Ok(Some(len)) if !read.uploads.is_empty() && gds.is_none() => Next::Upload(read, to, len),
                    result => Next::Report(Event::Fetched(ReadDone { id: read.id, to, result })),
                }
            }
            LocalRead::Index(shard, key) => {
                let store = self.shared.chunk_index.store(shard.array, shard.part);
                Next::Report(Event::Index(shard, block_on(&**store, index(shard, &key, &self.shared, None))))
            }
        };
        drop(range);
        let mut stream = self.copies();
        // This does not wait long: the bus copies faster than one thread reads.
        if stream.as_mut().is_some_and(|stream| !stream.finish(&self.shared)) {
            return false;
        }
        let event = match (next, &mut stream) {
            (Next::Upload(read, from, len), Some(stream)) => return stream.start(&read, from, len, &self.shared),
            // Without a device there are no uploads.
            (Next::Upload(read, to, len), None) => Event::Fetched(ReadDone { id: read.id, to, result: Ok(Some(len)) }),
            (Next::Report(event), _) => event,
        };
        self.shared.events.send(event).is_ok()
    }

    fn fetch(&self, read: &Read, to: &mut [u8]) -> Result<Option<usize>> {
        match look(read, to, &self.shared) {
            Ok(len) => len.map(Some),
            Err(miss) => {
                let store = self.shared.chunk_index.store(read.array, read.part);
                block_on(&**store, fetch(read, to, miss, &self.shared, None))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crossbeam_channel::unbounded;

    use super::*;
    use crate::messages::{ReadObject, ReadRange, UploadPart, Wave, WaveLimits};
    use crate::reader::opening::UnstartedReader;
    use dali_zarr_base::memory::{HostArena, HostBlock};
    use dali_zarr_samples::spec::Spec;
    use dali_zarr_stores::testing::Hooked;

    /// All bytes of a read.
    const WHOLE: UploadPart = UploadPart { offset: 0, len: 16, to: 0 };

    /// An upload that copies nothing. It is done when the flag is set.
    struct FlagUpload {
        done: Arc<AtomicBool>,
        from: Option<Lease>,
    }

    impl Upload for FlagUpload {
        unsafe fn start(&mut self, from: Lease, parts: &[UploadPart]) -> Result<()> {
            assert_eq!((&from[..], parts), (&[7; 16][..], &[WHOLE][..]));
            assert!(self.from.replace(from).is_none(), "the copies before were not waited for");
            Ok(())
        }
        fn is_done(&self) -> Result<bool> {
            Ok(self.done.load(Ordering::SeqCst))
        }
        fn wait(&mut self) -> (Option<Lease>, Result<f64>) {
            while !self.is_done().unwrap() {
                std::thread::yield_now();
            }
            (self.from.take(), Ok(0.0))
        }
    }

    impl Lanes for FlagUpload {
        fn count(&self) -> usize {
            0
        }
        fn limits(&self) -> WaveLimits {
            WaveLimits { encoded: 0, decoded: 0, chunks: 0 }
        }
        fn upload(&self) -> Result<Box<dyn Upload>> {
            Ok(Box::new(Self { done: Arc::clone(&self.done), from: None }))
        }
        fn storage(&self) -> Result<Option<Box<dyn Storage>>> {
            Ok(None)
        }
        fn launch(&self, _: usize, _: Wave) {}
    }

    /// Waits for an event, and returns it as text with the number of its read. Checks that memory comes back.
    fn next(events: &Receiver<Event>) -> String {
        match events.recv_timeout(Duration::from_secs(20)).expect("nothing happened") {
            Event::Uploading => "uploading".into(),
            Event::Uploaded(ReadDone { id, to, result: Ok(Some(16)) }) => {
                format!("uploaded {id} of {}", to.len())
            }
            Event::Fetched(ReadDone { id, result: Err(e), .. }) => format!("failed {id}: {e}"),
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
        // Whether the copy of the first chunk has ended before the thread begins with the second read, which hangs.
        for before in [true, false] {
            let (allow, allowed) = unbounded();
            let mut unstarted =
                UnstartedReader::new(&Spec::default().with(|s| s.source.paths = vec![path.to_owned()])).unwrap();
            Arc::get_mut(&mut unstarted.chunk_index).unwrap().dataset.stores[0] =
                Arc::new(Hooked::open(path, move |key| {
                    if key == "1" {
                        // The read hangs until the test lets it go on.
                        allowed.recv().unwrap();
                    }
                    None
                }));
            let (sender, events) = unbounded();
            let shared = Shared {
                cache: None,
                bad: Arc::default(),
                chunk_index: unstarted.chunk_index,
                ops: Arc::new(unstarted.ops),
                stats: Arc::new(Stats::default()),
                events: sender,
                stop: Arc::new(AtomicBool::new(false)),
            };
            let mut memory = HostArena::new(HostBlock::map(4096).unwrap());
            let done = Arc::new(AtomicBool::new(before));
            let lanes = FlagUpload { done: Arc::clone(&done), from: None };
            let threads = Threads::new(1, false, Some(&lanes), &shared).unwrap();
            for id in [0, 1] {
                let to = memory.take(16).unwrap();
                let read = Read {
                    id,
                    array: 0,
                    part: 0,
                    key: id.to_string(),
                    object: ReadObject::default(),
                    range: ReadRange::Exact,
                    len: 16,
                    uploads: vec![WHOLE],
                    pieces: Vec::new(),
                    gds: None,
                };
                threads.send(LocalRead::Read(read, to));
            }
            assert_eq!(next(&events), "uploading");
            if !before {
                // The thread and the copy are both busy, so there is nothing to report.
                while !threads.workers.is_taken() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(5));
                threads.report_copies(&shared);
                assert!(events.try_recv().is_err());
                done.store(true, Ordering::SeqCst);
                threads.report_copies(&shared);
            }
            assert_eq!(next(&events), "uploaded 0 of 16");
            threads.report_copies(&shared);
            assert!(events.try_recv().is_err(), "it is told once");
            allow.send(()).unwrap();
            assert_eq!((next(&events), next(&events)), ("uploading".into(), "uploaded 1 of 16".into()));
        }
    }
}
