//! Waits for stores on threads that aren't tasks: those that read metadata while a pipeline is built, and those that
//! read chunks.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures_util::StreamExt;

use super::{Phase, Store};
use dali_zarr_base::error::Result;

/// Most documents that [`get_many`] reads at the same time.
const MAX_CONCURRENT_GETS: usize = 64;

/// Waits for a future of `store`. Must not be called on a thread of the store's runtime.
pub fn block_on<T>(store: &dyn Store, future: impl Future<Output = T>) -> T {
    match store.runtime() {
        Some(runtime) => runtime.block_on(future),
        None => drive(future),
    }
}

/// Calls [`Store::get`] for each of `keys`, with [`Phase::Building`], and returns the results in the order of `keys`.
/// Requests to a server run at the same time.
pub fn get_many(store: &dyn Store, keys: &[String], max: u64) -> Vec<Result<Option<Vec<u8>>>> {
    let gets = keys.iter().map(|key| store.get(key, max, Phase::Building));
    block_on(store, futures_util::stream::iter(gets).buffered(MAX_CONCURRENT_GETS).collect())
}

/// Drives a future that needs no runtime. The first poll nearly always completes it. Otherwise another thread does the
/// work, and wakes this one.
pub(super) fn drive<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return value;
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
