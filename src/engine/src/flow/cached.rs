//! Reads of remote stores that a cache may serve: threads look there first, and hand on to requests what it lacks.
//!
//! They are threads of their own, as many as read local stores, because the work is the same: copies from memory, and from
//! files. Those that drive requests are fewer; whatever blocks holds them up, and to have others take over meanwhile takes longer
//! than to copy a small chunk.
//!
//! One of the places where `unsafe` is allowed: a read's span belongs to its thread until the event is sent, or it is handed on.

#![allow(unsafe_code)]

use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::Event;
use super::fetch::fits;
use super::pieces::Pieces;
use super::tasks::{Read, ReadRange, Shared};
use super::workers::Workers;
use crate::cache::{Cache, Looked, Name, Unsure};
use crate::error::Result;
use crate::nvtx;
use crate::store::AsyncStore;

/// What was looked for in the cache, but isn't there, or not all of it, or not surely.
pub(super) enum Sought {
    /// One piece.
    Piece(Name, Option<Unsure>),
    /// Those of a range that begins there.
    Pieces(u64, Pieces),
}

type Work = (Arc<dyn AsyncStore>, Read);

/// See the module.
pub(super) struct CacheThreads(Workers<Work>);

impl CacheThreads {
    /// As many as the cache of `shared` wants, which hand on to `ask` what it lacks; `None` if there is no cache.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(
        shared: &Shared,
        ask: impl Fn(Arc<dyn AsyncStore>, Read, Sought) + Clone + Send + 'static,
    ) -> Result<Option<Self>> {
        let Some(cache) = &shared.cache else { return Ok(None) };
        let body = || {
            let (cache, shared, ask) = (Arc::clone(cache), shared.clone(), ask.clone());
            Ok(move |work| run(&cache, &shared, &work, &ask))
        };
        Workers::new("cached", cache.threads, shared, body).map(|workers| Some(Self(workers)))
    }

    /// Starts a read; its end is an event.
    pub fn read(&self, store: Arc<dyn AsyncStore>, read: Read) {
        self.0.send((store, read));
    }
}

fn run(cache: &Cache, shared: &Shared, work: &Receiver<Work>, ask: &impl Fn(Arc<dyn AsyncStore>, Read, Sought)) {
    for (store, read) in work {
        if shared.stopped() {
            continue;
        }
        let range = nvtx::range(c"dali_zarr cache");
        let looked = look(cache, &read, shared);
        drop(range);
        match looked {
            Ok(len) => {
                // The receiver may be gone already: then nobody waits for this read.
                let _ = shared.events.send(Event::Fetched(read.group, len));
            }
            Err(sought) => ask(store, read, sought),
        }
    }
}

/// The length of what the cache had, or what it lacks.
fn look(cache: &Cache, read: &Read, shared: &Shared) -> std::result::Result<Result<Option<usize>>, Sought> {
    // SAFETY: the scheduler reserved the span for this read alone, until it hears of its end, and frees no memory before this
    // thread has ended; nobody else has the read now.
    let to = unsafe { read.to.bytes_mut() };
    let number = shared.catalog.store_number(read.array, read.part);
    if let (ReadRange::From(from), Some(_)) = (read.range, &read.version) {
        let mut pieces = Pieces::new(cache, number, read, from);
        pieces.remembered(cache, read, to);
        if !pieces.complete() {
            pieces.stored(cache, read, to);
        }
        return if pieces.complete() { Ok(Ok(Some(read.to.len))) } else { Err(Sought::Pieces(from, pieces)) };
    }
    let name = cache.name(number, &read.key, read.part(), to.len());
    match cache.look(&name, read.version.as_ref(), to) {
        Looked::Here(found) => Ok(fits(shared, read, found.size).map(Some)),
        Looked::Perhaps(piece) => Err(Sought::Piece(name, Some(piece))),
        Looked::Nothing => Err(Sought::Piece(name, None)),
    }
}
