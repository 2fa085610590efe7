//! Reads of remote stores. Each is a task, so that many can wait for servers at the same time.
//!
//! Requests begin in the order in which the scheduler asks for them, as many at a time as the [`RequestLimiter`]
//! allows. With a cache, threads first look for the chunks there and start tasks for what is missing. So chunks in the
//! cache wait for no request.
//!
//! These threads are not those of the runtime. There are as many as would read a local store, because they do the same:
//! copies from memory and files. The runtime has fewer threads, and a blocking call would hold up its requests.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Receiver;
use futures_util::FutureExt;
use tokio::task::JoinSet;

use super::fetch::{CacheMiss, fetch, index, look};
use super::request_limiter::RequestLimiter;
use crate::cache::Cache;
use crate::chunk_index::ShardId;
use crate::messages::{Event, Read, ReadDone, Shared, Workers};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::Lease;
use dali_zarr_base::nvtx;
use dali_zarr_stores::Runtime;

/// The remote reads of one reader. Dropping it cancels them and waits until none uses its memory any more.
pub(super) struct Requests {
    /// The threads that look in the cache, if there is one.
    cache_threads: Option<Workers<(Read, Lease)>>,
    tasks: Arc<Tasks>,
}

impl Requests {
    /// Allows `max_requests` requests under way at a time. With `background`, the threads that look in the cache leave
    /// the cores to the threads of the training process.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(runtime: Arc<Runtime>, max_requests: usize, background: bool, shared: &Shared) -> Result<Self> {
        let limiter = Arc::new(RequestLimiter::new(max_requests));
        let tasks = Arc::new(Tasks { runtime, shared: shared.clone(), limiter, running: Mutex::default() });
        let looking = |cache: &Arc<Cache>| {
            let body = || {
                let tasks = Arc::clone(&tasks);
                Ok(move |reads| tasks.look(&reads))
            };
            Workers::new("cached", cache.threads, background, shared, body)
        };
        Ok(Self { cache_threads: shared.cache.as_ref().map(looking).transpose()?, tasks })
    }

    pub fn read(&self, read: Read, to: Lease) {
        match &self.cache_threads {
            Some(threads) => threads.send((read, to)),
            None => self.tasks.read(read, to, CacheMiss::NoCache),
        }
    }

    pub fn index(&self, shard: ShardId, key: String) {
        self.tasks.spawn(move |shared, limiter| async move {
            Event::Index(shard, index(shard, &key, &shared, Some(&limiter)).await)
        });
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // After these threads have ended, no task is started any more.
        self.cache_threads = None;
        let mut running = std::mem::take(&mut *self.tasks.running());
        running.abort_all();
        self.tasks.runtime.block_on(async { while running.join_next().await.is_some() {} });
    }
}

/// The tasks that wait for servers.
struct Tasks {
    runtime: Arc<Runtime>,
    shared: Shared,
    limiter: Arc<RequestLimiter>,
    running: Mutex<JoinSet<()>>,
}

impl Tasks {
    /// The body of a cache thread: looks in the cache for each read, and starts a task for what is missing.
    fn look(&self, reads: &Receiver<(Read, Lease)>) {
        for (read, mut to) in reads {
            if self.shared.stopped() {
                continue;
            }
            let range = nvtx::range(c"dali_zarr cache");
            let looked = look(&read, &mut to, &self.shared);
            drop(range);
            match looked {
                Ok(len) => {
                    let done = ReadDone { id: read.id, to, result: len.map(Some) };
                    // The receiver may be gone already: then nobody waits for this read.
                    let _ = self.shared.events.send(Event::Fetched(done));
                }
                Err(miss) => self.read(read, to, miss),
            }
        }
    }

    fn read(&self, read: Read, mut to: Lease, miss: CacheMiss) {
        self.spawn(move |shared, limiter| async move {
            let result = fetch(&read, &mut to, miss, &shared, Some(&limiter)).await;
            Event::Fetched(ReadDone { id: read.id, to, result })
        });
    }

    fn running(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn<F: Future<Output = Event> + Send>(
        &self,
        task: impl FnOnce(Shared, Arc<RequestLimiter>) -> F + Send + 'static,
    ) {
        let (shared, limiter) = (self.shared.clone(), Arc::clone(&self.limiter));
        let ended = async move {
            let events = shared.events.clone();
            let event = AssertUnwindSafe(async move { task(shared, limiter).await }).catch_unwind().await;
            // The receiver may be gone already: then nobody waits for this read.
            let _ = events.send(event.unwrap_or_else(|panic| Event::Died(Error::panicked("in a read", &*panic))));
        };
        let mut running = self.running();
        while running.try_join_next().is_some() {}
        running.spawn_on(ended, self.runtime.handle());
    }
}
