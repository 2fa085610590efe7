//! The threads that drive requests, and what is counted of them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime, RuntimeFlavor};

use crate::error::{Error, Result};

/// Counters of all requests of the stores that share an [`Io`].
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests sent, those for credentials included.
    pub requests: AtomicU64,
    /// Of these, repetitions of failed ones.
    pub retries: AtomicU64,
    /// Of these, seconds to slow ones.
    pub hedges: AtomicU64,
    /// Bytes of bodies that arrived.
    pub bytes: AtomicU64,
}

/// A runtime of its own for the remote stores of one reader: when the last of them is dropped, its threads and
/// connections are gone. A process that was forked before has none of them, and can have its own.
#[derive(Debug)]
pub struct Io {
    runtime: Option<Runtime>,
    /// What its stores did.
    pub counters: Arc<Counters>,
}

/// How long a name that is being resolved, which can't be interrupted, may hold up the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Io {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(threads: usize) -> Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("dali-zarr-io")
            .enable_all()
            .build()
            .map_err(|e| Error::runtime(format!("the system refuses to start the threads for requests: {e}")))?;
        Ok(Arc::new(Self { runtime: Some(runtime), counters: Arc::default() }))
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("until dropped")
    }

    /// Where tasks are spawned.
    pub fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    /// Waits for `future`, which the calling thread drives. Not for its own threads.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime().block_on(future)
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LAST_WORDS);
        }
    }
}

/// Calls what blocks, from a task, whose other tasks go on elsewhere meanwhile. The task can't be broken off in the middle.
pub(crate) fn blocking<T>(act: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|h| h.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(act),
        _ => act(),
    }
}
