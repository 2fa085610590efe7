//! Reads of remote stores: a task for each, of which many wait for servers at the same time.
//!
//! Whoever comes first is served first: the scheduler asks in the order of need, and so many reads as may be under way
//! begin in that order. All bytes of chunks and indexes come through [`Requests::bytes`].
//!
//! One of the places where `unsafe` is allowed: a read's span belongs to its task until the event is sent.

#![allow(unsafe_code)]

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Event;
use super::fetch::place;
use super::shards::{Index, ShardId};
use super::stats::Stats;
use super::tasks::{Read, Shared};
use crate::error::{Error, Result, panic_text};
use crate::store::remote::Io;
use crate::store::{AsyncStore, Found, Part};

/// Reads under way. Dropping it breaks them off, and waits until none of them touches memory any more.
pub(super) struct Requests {
    io: Arc<Io>,
    shared: Shared,
    turns: Arc<Semaphore>,
    tasks: JoinSet<()>,
}

impl Requests {
    /// At most `at_once` of them wait for a server at the same time.
    pub fn new(io: Arc<Io>, at_once: usize, shared: &Shared) -> Self {
        let turns = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        Self { io, shared: shared.clone(), turns, tasks: JoinSet::new() }
    }

    pub fn read(&mut self, store: Arc<dyn AsyncStore>, read: Read) {
        let group = read.group;
        self.spawn(
            move |shared, turns| async move { Event::Fetched(group, fetch(&*store, read, &shared, &turns).await) },
        );
    }

    pub fn index(&mut self, store: Arc<dyn AsyncStore>, shard: ShardId, key: String) {
        self.spawn(move |shared, turns| async move {
            Event::Index(shard, index(&*store, shard, &key, &shared, &turns).await)
        });
    }

    fn spawn<F: Future<Output = Event> + Send>(
        &mut self,
        task: impl FnOnce(Shared, Arc<Semaphore>) -> F + Send + 'static,
    ) {
        while self.tasks.try_join_next().is_some() {}
        let (shared, turns) = (self.shared.clone(), Arc::clone(&self.turns));
        let ended = async move {
            let (events, stats) = (shared.events.clone(), Arc::clone(&shared.stats));
            let start = Instant::now();
            let event = AssertUnwindSafe(async move { task(shared, turns).await }).catch_unwind().await;
            Stats::time(&stats.read_ns, start.elapsed());
            // The receiver may be gone already: then nobody waits for this read.
            let _ = events.send(event.unwrap_or_else(|panic| {
                Event::Died(Error::runtime(format!("internal error in a read: {}", panic_text(&*panic))))
            }));
        };
        self.tasks.spawn_on(ended, self.io.handle());
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.tasks.abort_all();
        self.io.block_on(async { while self.tasks.join_next().await.is_some() {} });
    }
}

/// Bytes of a value, when it is their turn: the one way from a remote store to memory, and where a cache would stand.
async fn bytes(
    store: &dyn AsyncStore,
    turns: &Semaphore,
    key: &str,
    part: Part,
    version: Option<&Arc<str>>,
    to: &mut [u8],
) -> Result<Option<Found>> {
    // Never closed.
    let _turn = turns.acquire().await;
    store.read(key, part, version, to).await
}

async fn fetch(store: &dyn AsyncStore, read: Read, shared: &Shared, turns: &Semaphore) -> Result<Option<usize>> {
    let within = |e: Error| e.within(place(shared, read.array, read.part, &read.key));
    // SAFETY: the scheduler reserved the span for this read alone, until it hears of its end; and it frees no memory before
    // this task has ended (`Requests::drop`).
    let to = unsafe { read.to.bytes_mut() };
    let found = bytes(store, turns, &read.key, read.part(), read.version.as_ref(), to).await.map_err(within)?;
    let Some(found) = found else {
        confirm_missing(store, read.array, read.part, shared).await?;
        return Ok(None);
    };
    let len = read.fits(found.size).map_err(within)?;
    shared.stats.read(len);
    Ok(Some(len))
}

async fn index(
    store: &dyn AsyncStore,
    shard: ShardId,
    key: &str,
    shared: &Shared,
    turns: &Semaphore,
) -> Result<Option<Arc<Index>>> {
    let within = |e: Error| e.within(place(shared, shard.array, shard.part, key));
    let sharding = shared.catalog.sharding(shard);
    let mut encoded = vec![0; sharding.index_bytes];
    let found = bytes(store, turns, key, sharding.index_part(), None, &mut encoded).await.map_err(within)?;
    let Some(found) = found else {
        confirm_missing(store, shard.array, shard.part, shared).await?;
        return Ok(None);
    };
    let entries = sharding.decode_index(&encoded, found.size).map_err(within)?;
    Stats::add(&shared.stats.index_reads, 1);
    Ok(Some(Arc::new(Index { entries, version: found.version })))
}

async fn confirm_missing(store: &dyn AsyncStore, array: u16, part: u16, shared: &Shared) -> Result<()> {
    let catalog = &shared.catalog;
    if store.confirm(catalog.metadata_key(array, part)).await? { Ok(()) } else { Err(catalog.gone(array, part)) }
}
