//! Waiting for a store, for callers that aren't tasks: metadata while a pipeline is built, and threads that read.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures_util::StreamExt;

use super::{Phase, Store};
use crate::error::Result;

/// Documents that are read at the same time.
const MAX_CONCURRENT_GETS: usize = 64;

/// Waits for a future of `store`. Not for the threads of its runtime.
pub fn block_on<T>(store: &dyn Store, future: impl Future<Output = T>) -> T {
    match store.runtime() {
        Some(runtime) => runtime.block_on(future),
        None => drive(future),
    }
}

/// [`Store::get`] for each of `keys`, in their order, with [`Phase::Building`]; at the same time where that is faster.
pub fn get_many(store: &dyn Store, keys: &[String], max: u64) -> Vec<Result<Option<Vec<u8>>>> {
    let gets = keys.iter().map(|key| store.get(key, max, Phase::Building));
    block_on(store, futures_util::stream::iter(gets).buffered(MAX_CONCURRENT_GETS).collect())
}

/// Drives a future that needs no runtime. The first poll nearly always completes it. Otherwise another thread is at work for
/// it, and wakes this one.
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
