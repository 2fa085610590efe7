//! The disk cache of one reader. The threads that look for pieces read files themselves. One thread writes new pieces.
//!
//! The queue of pieces to be written is limited. When it is full, new pieces are not kept: a disk that is slower than
//! the network must not delay batches. Any failure here counts as a miss.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::Semaphore;

use super::file::{FileLookup, PieceFile};
use super::folder::{ADMITTED, Evictions, Folder, WriteResult, charge};
use super::{Counters, Name, Piece, add};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::random::{below, mix};
use dali_zarr_samples::spec::Spec;
use dali_zarr_stores::ObjectVersion;

/// Limit on bytes in the queue. If the queue is empty, a piece of any size is accepted.
const QUEUE: u64 = 64 << 20;

/// A reader that ends waits up to this time for the pieces in the queue to be written.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// After a failed write, no piece is written for this time.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Limit on the objects whose versions are remembered, in a table of 18 MB. When it is reached, all are forgotten, and
/// the store is asked again.
const REMEMBERED: usize = (1 << 20) / 8 * 7;

/// A piece that this reader has not used counts as unused after this many look-ups for each piece that the folder has
/// room for.
const LOOKUPS_PER_SLOT: u64 = 3;

/// How often a running reader looks for files that other processes left behind.
const TIDY_INTERVAL: Duration = Duration::from_secs(1800);

/// The disk cache of one reader.
pub(super) struct Disk {
    folder: Arc<Folder>,
    /// Limit on the bytes of the folder.
    pub limit: u64,
    queue: Option<Sender<WriterTask>>,
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
    /// Permits for reads of the disk. Each read blocks a thread.
    pub permits: Semaphore,
    /// The current versions of objects, as far as this reader knows them: hash of the object to hash of the version.
    seen: Mutex<HashMap<u64, u64>>,
    /// When the reader began.
    began: SystemTime,
    counters: Arc<Counters>,
}

enum WriterTask {
    Keep(Piece),
    Forget(Name),
}

/// State that the look-ups and the writer thread share.
#[derive(Default)]
struct Shared {
    /// Bytes in the queue.
    waiting: AtomicU64,
    /// Whether the folder was full at the last write.
    full: AtomicBool,
    /// Whether unused pieces were removed for the last write.
    unused: AtomicBool,
    /// The number of look-ups.
    lookups: AtomicU64,
    /// The state of the random choice of pieces that are kept when the folder is full.
    dice: AtomicU64,
    /// Set when the reader ends: pieces that are not written at this time are dropped.
    until: Mutex<Option<Instant>>,
    /// The hashes of the names whose removal is queued, each with the number of its removals. They aren't looked up.
    forgotten: Mutex<HashMap<u64, usize>>,
}

impl Shared {
    fn forgotten(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.forgotten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// Opens the folder of `spec`, if it names one.
    ///
    /// # Errors
    /// [`Error::value`] if it can't be made or written.
    pub fn open(spec: &Spec, counters: &Arc<Counters>) -> Result<Option<Self>> {
        let Some(root) = &spec.resources.cache_dir else { return Ok(None) };
        let folder = Arc::new(Folder::open(root)?);
        let limit = match spec.resources.cache_dir_size {
            Some(limit) => limit,
            None => default_limit(free(root)?, folder.bytes()),
        };
        let (queue, works) = unbounded();
        let began = SystemTime::now();
        let shared = Arc::<Shared>::default();
        let writer = {
            let (folder, shared, counters) = (Arc::clone(&folder), Arc::clone(&shared), Arc::clone(counters));
            let write = move || write(&folder, limit, began, &works, &shared, &counters);
            std::thread::Builder::new().name("dali-zarr-cache".into()).spawn(write)
        };
        let writer = writer
            .map_err(|e| Error::runtime(format!("the system refuses to start a thread (cache): {e}")).caused_by(e))?;
        Ok(Some(Self {
            folder,
            limit,
            queue: Some(queue),
            shared,
            writer: Some(writer),
            permits: Semaphore::new(spec.io_threads().min(Semaphore::MAX_PERMITS)),
            seen: Mutex::default(),
            began,
            counters: Arc::clone(counters),
        }))
    }

    /// Looks for the piece of this name.
    pub fn look(&self, name: &Name) -> Option<PieceFile> {
        self.shared.lookups.fetch_add(1, Relaxed);
        if self.shared.forgotten().contains_key(&name.hash) {
            add(&self.counters.disk_misses, 1);
            return None;
        }
        match self.folder.look(name) {
            FileLookup::Piece(piece) => return Some(piece),
            FileLookup::Missing => {}
            FileLookup::Damaged => self.damaged(name),
        }
        add(&self.counters.disk_misses, 1);
        None
    }

    /// Reads a piece to the front of `to`. False if it can't be read.
    pub fn fill(&self, name: &Name, piece: &PieceFile, to: &mut [u8]) -> bool {
        let len = piece.len;
        let filled = len <= to.len() && {
            let filled = piece.fill(&mut to[..len]);
            if !filled {
                self.damaged(name);
            }
            filled
        };
        if filled {
            // Each reader marks a piece at its first use only: later uses write nothing.
            if piece.used < self.began {
                piece.touch();
            }
            add(&self.counters.disk_hits, 1);
            add(&self.counters.disk_bytes, len as u64);
        } else {
            add(&self.counters.disk_misses, 1);
        }
        filled
    }

    fn damaged(&self, name: &Name) {
        add(&self.counters.disk_errors, 1);
        self.folder.discard(name);
    }

    /// Counts a miss: the piece that was found has another version than the current one.
    pub fn outdated(&self) {
        add(&self.counters.disk_misses, 1);
    }

    /// Queues the removal of a piece.
    pub fn forget(&self, name: &Name) {
        // If the queue is full, the piece stays. The next reader that can't use it queues its removal.
        if self.reserve(cost(name, 0)) {
            *self.shared.forgotten().entry(name.hash).or_default() += 1;
            self.send(WriterTask::Forget(name.clone()));
        }
    }

    /// Queues a piece to be written, if the queue has room, and the folder has room or may make some.
    pub fn keep(&self, name: &Name, version: &ObjectVersion, size: u64, bytes: &[u8]) {
        let len = bytes.len() as u64;
        if len > self.limit {
            return;
        }
        let full = self.shared.full.load(Relaxed);
        let chosen = || below(mix(self.shared.dice.fetch_add(dali_zarr_base::random::GOLDEN, Relaxed)), ADMITTED) == 0;
        // Unused pieces may be removed for every new piece, pieces in use only for a few random ones. This is decided
        // here, so that only accepted pieces are copied to the queue.
        let admitted = full && !self.shared.unused.load(Relaxed);
        if admitted && !chosen() {
            return;
        }
        if !self.reserve(cost(name, bytes.len())) {
            add(&self.counters.disk_dropped, 1);
            return;
        }
        let (name, version) = (name.clone(), Some(version.clone()));
        self.send(WriterTask::Keep(Piece { name, version, size, bytes: bytes.to_vec(), admitted }));
    }

    /// Reserves `cost` bytes in the queue. False if there is no room.
    fn reserve(&self, cost: u64) -> bool {
        let waiting = self.shared.waiting.fetch_add(cost, Relaxed);
        let fits = waiting == 0 || waiting + cost <= QUEUE;
        if !fits {
            self.shared.waiting.fetch_sub(cost, Relaxed);
        }
        fits
    }

    fn send(&self, work: WriterTask) {
        if let Some(queue) = &self.queue {
            // If the writer thread has died, nothing is written any more.
            let _ = queue.send(work);
        }
    }

    /// Records the current version of an object.
    pub fn saw(&self, object: u64, version: &ObjectVersion) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= REMEMBERED && !seen.contains_key(&object) {
            seen.clear();
        }
        seen.insert(object, super::hash(version.to_bytes()));
    }

    /// Whether an object is known to have this version. `None` if its version is unknown.
    pub fn knows(&self, object: u64, version: &ObjectVersion) -> Option<bool> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&object).map(|known| *known == super::hash(version.to_bytes()))
    }
}

/// Returns the bytes that a piece takes in the queue.
fn cost(name: &Name, bytes: usize) -> u64 {
    (size_of::<WriterTask>() + name.bytes.len() + bytes) as u64 + 64
}

/// Returns half of the free space of the disk, in bytes. The bytes that the folder holds count as free.
pub(super) fn default_limit(free: u64, held: u64) -> u64 {
    free.saturating_add(held) / 2
}

fn free(root: &Path) -> Result<u64> {
    super::folder::free(root).map_err(|e| {
        Error::value(format!(
            "cache_dir: the disk of {} doesn't tell how much is free: {e}; give cache_dir_size",
            root.display()
        ))
    })
}

impl Drop for Disk {
    fn drop(&mut self) {
        *self.shared.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + SHUTDOWN_TIMEOUT);
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// The body of the writer's thread: writes and removes pieces until the queue is closed.
fn write(
    folder: &Folder,
    limit: u64,
    began: SystemTime,
    works: &Receiver<WriterTask>,
    shared: &Shared,
    counters: &Counters,
) {
    folder.tidy();
    let mut tidied = Instant::now();
    let mut failed: Option<Instant> = None;
    for work in works {
        let piece = match work {
            WriterTask::Keep(piece) => piece,
            WriterTask::Forget(name) => {
                folder.remove(&name);
                let mut forgotten = shared.forgotten();
                if let Some(queued) = forgotten.get_mut(&name.hash) {
                    *queued -= 1;
                    if *queued == 0 {
                        forgotten.remove(&name.hash);
                    }
                }
                drop(forgotten);
                shared.waiting.fetch_sub(cost(&name, 0), Relaxed);
                continue;
            }
        };
        let len = piece.bytes.len() as u64;
        let late = |at: &Instant| *at < Instant::now();
        let over = shared.until.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(late);
        if over || failed.is_some_and(|at| at.elapsed() < RETRY_DELAY) {
            add(&counters.disk_dropped, 1);
        } else {
            if tidied.elapsed() > TIDY_INTERVAL {
                folder.tidy();
                tidied = Instant::now();
            }
            // After so many look-ups the reader has used all of its pieces, or more than there is room for.
            let seen = shared.lookups.load(Relaxed) > LOOKUPS_PER_SLOT * (limit / charge(len).max(1));
            let mut room =
                Evictions { admitted: piece.admitted, unused_since: seen.then_some(began), ..Evictions::default() };
            let put = folder.put(&piece, limit, &mut room);
            add(&counters.disk_evictions, room.evicted);
            shared.unused.store(room.unused, Relaxed);
            failed = None;
            match put {
                Ok(WriteResult::Written(full)) => {
                    add(&counters.disk_writes, 1);
                    shared.full.store(full, Relaxed);
                }
                Ok(WriteResult::Full) => shared.full.store(true, Relaxed),
                Ok(WriteResult::Present) => {}
                Err(_) => {
                    add(&counters.disk_errors, 1);
                    add(&counters.disk_dropped, 1);
                    failed = Some(Instant::now());
                    // The recorded usage may be wrong.
                    folder.tidy();
                }
            }
        }
        shared.waiting.fetch_sub(cost(&piece.name, piece.bytes.len()), Relaxed);
    }
}
