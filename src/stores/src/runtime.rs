//! The threads that drive requests, and counters of requests.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

use dali_zarr_base::error::{Error, Result};

/// Counters of all requests of the stores that share a [`Runtime`].
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests sent, including those for credentials.
    pub requests: AtomicU64,
    /// Tries after a failure. Their requests count in `requests` too.
    pub retries: AtomicU64,
    /// Second requests that race slow ones. They count in `requests` too.
    pub hedges: AtomicU64,
    /// Bytes of bodies that arrived.
    pub bytes: AtomicU64,
}

/// A tokio runtime for the remote stores of one reader. Its threads and connections end when the last of these stores
/// is dropped. A forked process inherits neither, and can start its own.
#[derive(Debug)]
pub struct Runtime {
    runtime: Option<tokio::runtime::Runtime>,
    /// Counts the requests of the stores that share this runtime.
    pub counters: Arc<Counters>,
}

/// How long dropping a runtime waits for calls that can't be interrupted, such as the resolution of a host name.
const SHUTDOWN: Duration = Duration::from_secs(1);

impl Runtime {
    /// Starts `threads` threads, at least one.
    ///
    /// # Errors
    /// If the system refuses to start threads.
    pub fn new(threads: usize) -> Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("dali-zarr-io")
            .enable_all()
            .build()
            .map_err(|e| {
                Error::runtime(format!("the system refuses to start the threads for requests: {e}")).caused_by(e)
            })?;
        Ok(Arc::new(Self { runtime: Some(runtime), counters: Arc::default() }))
    }

    fn runtime(&self) -> &tokio::runtime::Runtime {
        self.runtime.as_ref().expect("until dropped")
    }

    /// Returns the handle that spawns tasks.
    pub fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    /// Drives `future` on the calling thread until it is done. Must not be called on the runtime's own threads.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime().block_on(future)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN);
        }
    }
}

/// Makes a blocking call in a task. Meanwhile other threads take over the tasks that wait for this thread. The call
/// can't be cancelled.
pub fn blocking<T>(act: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|h| h.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(act),
        _ => act(),
    }
}
