//! The threads that drive requests, and counters of requests.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::error::{Error, Result};

/// Counters of all requests of the stores that share a [`Runtime`].
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests sent, including those for credentials.
    pub requests: AtomicU64,
    /// Of these, tries after a failure.
    pub retries: AtomicU64,
    /// Of these, second requests that race slow ones.
    pub hedges: AtomicU64,
    /// Bytes of bodies that arrived.
    pub bytes: AtomicU64,
}

/// A tokio runtime for the remote stores of one reader. Its threads and connections end when the last of these stores is
/// dropped. A forked process inherits neither, and can start its own.
#[derive(Debug)]
pub struct Runtime {
    runtime: Option<tokio::runtime::Runtime>,
    /// What its stores did.
    pub counters: Arc<Counters>,
}

/// How long dropping a runtime waits for what can't be interrupted, such as the resolution of a host name.
const SHUTDOWN: Duration = Duration::from_secs(1);

impl Runtime {
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
            .map_err(|e| {
                Error::runtime(format!("the system refuses to start the threads for requests: {e}")).caused_by(e)
            })?;
        Ok(Arc::new(Self { runtime: Some(runtime), counters: Arc::default() }))
    }

    fn runtime(&self) -> &tokio::runtime::Runtime {
        self.runtime.as_ref().expect("until dropped")
    }

    /// Where tasks are spawned.
    pub fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    /// Waits for `future`, which the calling thread drives. Not for the runtime's own threads.
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

/// Makes a blocking call in a task; other threads take over the tasks that wait for this one. The call can't be cancelled.
pub(crate) fn blocking<T>(act: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|h| h.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(act),
        _ => act(),
    }
}
