//! Reads of remote stores: a task for each, of which many wait for servers at the same time.
//!
//! Whoever comes first is served first: the scheduler asks in the order of need, and so many reads as may be under way
//! begin in that order ([`Turns`]). Where there is a cache, its threads look there for chunks first ([`super::cached`]); all
//! other bytes of chunks and indexes come through [`Source`]. What a cache has waits for no turn.
//!
//! One of the places where `unsafe` is allowed: a read's span belongs to its task until the event is sent.

#![allow(unsafe_code)]

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::try_join_all;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;

use super::Event;
use super::cached::{CacheThreads, Sought};
use super::fetch::{Came, ended, forget_index, opened_index, place};
use super::merging::MERGE_REMOTE;
use super::pieces::{Pieces, whole};
use super::shards::{Index, ShardId};
use super::stats::Stats;
use super::tasks::{Read, Shared};
use crate::cache::{Cache, Name, Unsure};
use crate::error::{Error, Result, panic_text};
use crate::store::remote::Io;
use crate::store::{AsyncStore, Found, Part, Phase};

/// What the first requests may bring together. All requests share the way to the server, so that the first batch would come
/// as late as all that is asked for with it.
const FIRST_BYTES: usize = 32 << 20;
/// What [`Turns::window`] counts in.
const UNIT: usize = 64 << 10;

/// Who may ask now: so many requests at a time, and at the beginning no more than [`FIRST_BYTES`]. What has arrived may be
/// asked for twice over, so that this limit is soon far away, unless the server gives so little.
struct Turns {
    requests: Semaphore,
    window: Semaphore,
}

impl Turns {
    fn new(at_once: usize) -> Self {
        Self {
            requests: Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)),
            window: Semaphore::new(FIRST_BYTES / UNIT),
        }
    }

    async fn take(&self, bytes: usize) -> Turn<'_> {
        let units = bytes.div_ceil(UNIT).min(FIRST_BYTES / UNIT) as u32;
        // Neither is ever closed.
        let window = self.window.acquire_many(units).await.ok();
        Turn { _request: self.requests.acquire().await.ok(), window, turns: self, units }
    }
}

/// One request's turn.
struct Turn<'a> {
    _request: Option<SemaphorePermit<'a>>,
    window: Option<SemaphorePermit<'a>>,
    turns: &'a Turns,
    units: u32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.window.take());
        if self.turns.window.available_permits() < Semaphore::MAX_PERMITS / 4 {
            self.turns.window.add_permits(self.units as usize);
        }
    }
}

/// Reads under way. Dropping it breaks them off, and waits until none of them touches memory any more.
pub(super) struct Requests {
    /// Those that look in the cache, if there is one.
    cached: Option<CacheThreads>,
    tasks: Arc<Tasks>,
}

impl Requests {
    /// At most `at_once` of them wait for a server at the same time.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(io: Arc<Io>, at_once: usize, shared: &Shared) -> Result<Self> {
        let turns = Arc::new(Turns::new(at_once));
        let tasks = Arc::new(Tasks { io, shared: shared.clone(), turns, running: Mutex::default() });
        let to_tasks = Arc::clone(&tasks);
        let ask = move |store, read, sought| to_tasks.read(store, read, Some(sought));
        Ok(Self { cached: CacheThreads::new(shared, ask)?, tasks })
    }

    pub fn read(&mut self, store: Arc<dyn AsyncStore>, read: Read) {
        match &self.cached {
            Some(threads) => threads.read(store, read),
            None => self.tasks.read(store, read, None),
        }
    }

    pub fn index(&mut self, store: Arc<dyn AsyncStore>, shard: ShardId, key: String) {
        self.tasks.spawn(move |shared, turns| async move {
            Event::Index(shard, index(&*store, shard, &key, &shared, &turns).await)
        });
    }
}

/// Those that wait for servers.
struct Tasks {
    io: Arc<Io>,
    shared: Shared,
    turns: Arc<Turns>,
    running: Mutex<JoinSet<()>>,
}

impl Tasks {
    fn read(&self, store: Arc<dyn AsyncStore>, read: Read, sought: Option<Sought>) {
        let group = read.group;
        self.spawn(move |shared, turns| async move {
            Event::Fetched(group, fetch(&*store, read, sought, &shared, &turns).await)
        });
    }

    fn running(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn<F: Future<Output = Event> + Send>(&self, task: impl FnOnce(Shared, Arc<Turns>) -> F + Send + 'static) {
        let (shared, turns) = (self.shared.clone(), Arc::clone(&self.turns));
        let ended = async move {
            let events = shared.events.clone();
            let event = AssertUnwindSafe(async move { task(shared, turns).await }).catch_unwind().await;
            // The receiver may be gone already: then nobody waits for this read.
            let _ = events.send(event.unwrap_or_else(|panic| {
                Event::Died(Error::runtime(format!("internal error in a read: {}", panic_text(&*panic))))
            }));
        };
        let mut running = self.running();
        while running.try_join_next().is_some() {}
        running.spawn_on(ended, self.io.handle());
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // After that nobody starts another one.
        self.cached = None;
        let mut running = std::mem::take(&mut *self.tasks.running());
        running.abort_all();
        self.tasks.io.block_on(async { while running.join_next().await.is_some() {} });
    }
}

/// Where bytes come from: the one way from a remote store to memory, with a cache before it.
struct Source<'a> {
    store: &'a dyn AsyncStore,
    number: usize,
    key: &'a str,
    cache: Option<&'a Cache>,
    turns: &'a Turns,
    stats: &'a Stats,
}

impl Source<'_> {
    /// Bytes of the store, when it is their turn.
    async fn read(&self, part: Part, version: Option<&Arc<str>>, to: &mut [u8]) -> Result<Option<Found>> {
        let _turn = self.turns.take(to.len()).await;
        let start = Instant::now();
        let found = self.store.read(self.key, part, version, Phase::Running, to).await;
        Stats::time(&self.stats.read_ns, start.elapsed());
        found
    }

    /// One piece, which the cache's threads may have looked for.
    async fn piece(
        &self,
        part: Part,
        version: Option<&Arc<str>>,
        sought: Option<(Name, Option<Unsure>)>,
        to: &mut [u8],
    ) -> Result<Option<Came>> {
        let Some(cache) = self.cache else {
            return Ok(self.read(part, version, to).await?.map(|found| Came { found, read: true }));
        };
        let (key, turns) = (self.key, &self.turns.requests);
        let (name, cached) = match sought {
            Some((name, None)) => (name, None),
            Some((name, Some(piece))) => {
                let found = cache.stored_if_same(&name, &piece, key, self.store, turns, to).await?;
                (name, found)
            }
            None => {
                let name = cache.name(self.number, key, part, to.len());
                let found = match cache.remembered(&name, version, to) {
                    Some(found) => Some(found),
                    None => cache.stored_now(&name, key, self.store, turns, to).await?,
                };
                (name, found)
            }
        };
        if let Some(found) = cached {
            return Ok(Some(Came { found, read: false }));
        }
        let Some(found) = self.read(part, version, to).await? else { return Ok(None) };
        if let Some(len) = whole(part, &found, to.len()) {
            cache.keep(&name, &found, &to[..len]);
        }
        Ok(Some(Came { found, read: true }))
    }

    /// Those pieces of a range that the cache lacks: so many bytes in so many reads.
    async fn pieces(
        &self,
        cache: &Cache,
        read: &Read,
        from: u64,
        pieces: &Pieces,
        to: &mut [u8],
    ) -> Result<Option<Vec<usize>>> {
        let lacking = pieces.lacking(read, &MERGE_REMOTE);
        let (mut rest, mut at) = (&mut *to, 0);
        let reads = lacking.into_iter().map(|run| {
            let (_, after) = std::mem::take(&mut rest).split_at_mut(run.start - at);
            let (here, after) = after.split_at_mut(run.len());
            (rest, at) = (after, run.end);
            async move {
                let found = self.read(Part::From(from + run.start as u64), read.version.as_ref(), here).await?;
                Ok::<_, Error>(found.map(|found| (run, found)))
            }
        });
        let reads: Vec<_> = reads.collect();
        let Some(came) = try_join_all(reads).await?.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        pieces.keep(cache, read, &came, to);
        Ok(Some(came.into_iter().map(|(run, _)| run.len()).collect()))
    }
}

async fn fetch(
    store: &dyn AsyncStore,
    read: Read,
    sought: Option<Sought>,
    shared: &Shared,
    turns: &Turns,
) -> Result<Option<usize>> {
    let within = |e: Error| e.within(place(shared, read.array, read.part, &read.key));
    // SAFETY: the scheduler reserved the span for this read alone, until it hears of its end; and it frees no memory before
    // this task has ended (`Requests::drop`).
    let to = unsafe { read.to.bytes_mut() };
    let number = shared.catalog.store_number(read.array, read.part);
    let source = Source { store, number, key: &read.key, cache: shared.cache.as_deref(), turns, stats: &shared.stats };
    let sought = match (sought, &shared.cache) {
        (Some(Sought::Pieces(from, pieces)), Some(cache)) => {
            let reads = source.pieces(cache, &read, from, &pieces, to).await;
            if !matches!(reads, Ok(Some(_))) {
                forget_index(shared, read.array, read.part, &read.key);
            }
            let Some(reads) = reads.map_err(within)? else {
                confirm_missing(store, read.array, read.part, shared).await?;
                return Ok(None);
            };
            reads.into_iter().for_each(|len| shared.stats.read(len));
            return Ok(Some(read.to.len));
        }
        (Some(Sought::Piece(name, piece)), _) => Some((name, piece)),
        _ => None,
    };
    let came = source.piece(read.part(), read.version.as_ref(), sought, to).await.map_err(within)?;
    let Some(came) = came else {
        confirm_missing(store, read.array, read.part, shared).await?;
        return Ok(None);
    };
    ended(shared, &read, &came).map(Some)
}

async fn index(
    store: &dyn AsyncStore,
    shard: ShardId,
    key: &str,
    shared: &Shared,
    turns: &Turns,
) -> Result<Option<Arc<Index>>> {
    let within = |e: Error| e.within(place(shared, shard.array, shard.part, key));
    let sharding = shared.catalog.sharding(shard);
    let mut encoded = vec![0; sharding.index_bytes];
    let number = shared.catalog.store_number(shard.array, shard.part);
    let source = Source { store, number, key, cache: shared.cache.as_deref(), turns, stats: &shared.stats };
    let came = source.piece(sharding.index_part(), None, None, &mut encoded).await.map_err(within)?;
    let Some(came) = came else {
        confirm_missing(store, shard.array, shard.part, shared).await?;
        return Ok(None);
    };
    opened_index(shared, shard, key, &encoded, came).map(Some)
}

async fn confirm_missing(store: &dyn AsyncStore, array: u16, part: u16, shared: &Shared) -> Result<()> {
    let catalog = &shared.catalog;
    if store.confirm(catalog.metadata_key(array, part)).await? { Ok(()) } else { Err(catalog.gone(array, part)) }
}
