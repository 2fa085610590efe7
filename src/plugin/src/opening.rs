//! Opens stores on threads of the library, while the thread that makes an operator continues.
//!
//! When DALI calls an operator's constructor, it holds the lock of its operator registry. If Python builds the
//! pipeline, Python's lock (the GIL) is held too. A constructor that waits there blocks all other Python threads.
//! Releasing the GIL in the constructor leads to a deadlock: another thread that builds a pipeline takes the GIL and
//! waits for the registry's lock, while this thread holds the registry's lock and waits for the GIL.
//!
//! So a constructor must not wait. Instead, a host that asked for this waits after DALI has returned, without locks. It
//! waits several times for a short time, so that it can check for interrupts in between.
//!
//! The operators that a thread makes for one pipeline are opened one after the other, because each reserves part of the
//! memory that the ones before have left.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dali_zarr_base::error::{Error, Result};
use dali_zarr_engine::reader::Reader;

use crate::registry::Registered;
use crate::unwind::{Fenced, caught};

/// A reader that is open. The first field is dropped first: the reader leaves the registry before it ends.
pub struct OpenReader {
    pub registered: Registered,
    pub reader: Fenced<Reader>,
}

thread_local! {
    /// The openings of this thread's operators since [`defer`]; `None` while constructors wait themselves.
    static DEFERRED: RefCell<Option<Vec<Arc<Opening>>>> = const { RefCell::new(None) };
}

/// A reader that is being opened, and then the reader or the error.
pub struct Opening {
    /// Where in the host's program the operator was made.
    place: String,
    /// The operator's number (see [`crate::runs`]).
    operator: u64,
    /// Whether nobody will use the reader.
    is_abandoned: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

enum State {
    Pending,
    Opened(Box<OpenReader>),
    Taken,
    Failed(Error),
}

impl Opening {
    /// Opens a reader by `work` on a new thread, if the host asked for it with [`defer`]. Otherwise gives `work` back.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn start<F>(work: F, place: String, operator: u64) -> Result<std::result::Result<Arc<Self>, F>>
    where
        F: FnOnce() -> Result<OpenReader> + Send + 'static,
    {
        let Some(before) = DEFERRED.with_borrow(|list| list.as_ref().map(|list| list.last().map(Arc::clone))) else {
            return Ok(Err(work));
        };
        let (is_abandoned, state) = (AtomicBool::new(false), Mutex::new(State::Pending));
        let opening = Arc::new(Self { place, operator, is_abandoned, state, ended: Condvar::new() });
        let shared = Arc::clone(&opening);
        std::thread::Builder::new()
            .name("dali-zarr-open".into())
            .spawn(move || {
                let opened = before.map_or(Ok(()), |before| before.wait(None).map(|_| ())).and_then(|()| {
                    if shared.is_abandoned.load(Ordering::Relaxed) {
                        return Err(Error::runtime("nobody waits for the reader any more"));
                    }
                    caught(work)
                });
                *shared.lock() = opened.map_or_else(State::Failed, |opened| State::Opened(Box::new(opened)));
                shared.ended.notify_all();
            })
            .map_err(|e| Error::runtime(format!("no thread could be started: {e}")).caused_by(e))?;
        DEFERRED.with_borrow_mut(|list| list.get_or_insert_default().push(Arc::clone(&opening)));
        Ok(Ok(opening))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the reader is open, but not beyond `until` if that is given. Returns whether the reader is open.
    ///
    /// # Errors
    /// If the reader can't be opened.
    fn wait(&self, until: Option<Instant>) -> Result<bool> {
        let mut state = self.lock();
        loop {
            match (&*state, until.map(|until| until.saturating_duration_since(Instant::now()))) {
                (State::Opened(_) | State::Taken, _) => return Ok(true),
                (State::Failed(error), _) => return Err(error.clone()),
                (State::Pending, None) => {
                    state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                (State::Pending, Some(Duration::ZERO)) => return Ok(false),
                (State::Pending, Some(left)) => {
                    (state, _) = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Waits until the reader is open, and takes it. It can be taken only once.
    ///
    /// # Errors
    /// If the reader can't be opened, or was already taken.
    pub fn take(&self) -> Result<OpenReader> {
        self.wait(None)?;
        match std::mem::replace(&mut *self.lock(), State::Taken) {
            State::Opened(opened) => Ok(*opened),
            _ => Err(Error::runtime("internal error: the reader was taken before")),
        }
    }

    /// Declares that nobody will take the reader. If opening it hasn't begun, it won't be opened.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

/// Sets whether constructors of operators on this thread return at once. Forgets all earlier openings.
pub fn defer(deferred: bool) {
    // Ignores a failure: a thread that is ending makes no operators. Dropping the old list may end threads, so it
    // happens after the list was replaced.
    let _forgotten = DEFERRED.try_with(|list| list.replace(deferred.then(Vec::new)));
}

/// Waits at most `limit` until all of this thread's operators since [`defer`] are open. Returns whether all are open.
///
/// # Errors
/// The error of the first operator that can't be opened, and where that operator was made.
pub fn wait(limit: Duration) -> std::result::Result<bool, (Error, String)> {
    let until = Instant::now() + limit;
    let openings = DEFERRED.try_with(|list| list.borrow().clone()).ok().flatten().unwrap_or_default();
    for opening in openings {
        if !opening.wait(Some(until)).map_err(|error| (error, opening.place.clone()))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the numbers of this thread's operators since [`defer`].
pub fn operators() -> Vec<u64> {
    let numbers = |list: &Option<Vec<Arc<Opening>>>| list.iter().flatten().map(|opening| opening.operator).collect();
    DEFERRED.try_with(|list| numbers(&list.borrow())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn failing(what: &'static str) -> impl FnOnce() -> Result<OpenReader> + Send + 'static {
        move || Err(Error::value(what))
    }

    #[test]
    fn a_constructor_waits_unless_the_host_does() {
        assert!(Opening::start(failing("a"), String::new(), 1).unwrap().is_err(), "the work comes back");
        assert!(wait(Duration::ZERO).unwrap());
        defer(true);
        assert!(Opening::start(failing("a"), "here".into(), 5).unwrap().is_ok());
        let (error, place) = wait(Duration::from_secs(100)).unwrap_err();
        assert_eq!((error.message(), place.as_str()), ("a", "here"));
        assert_eq!(operators(), [5]);
        defer(false);
        assert!(wait(Duration::ZERO).unwrap(), "it is forgotten");
        assert!(operators().is_empty());
        assert!(Opening::start(failing("a"), String::new(), 1).unwrap().is_err());
    }

    #[test]
    fn readers_are_opened_one_after_the_other_and_the_first_error_is_told() {
        let (go, wanted) = channel::<()>();
        defer(true);
        let slow = move || {
            let _ = wanted.recv();
            panic!("the first")
        };
        let first = Opening::start(slow, "one".into(), 1).unwrap().ok().unwrap();
        let second = Opening::start(|| unreachable!("the first failed"), "two".into(), 2).unwrap().ok().unwrap();
        assert!(!wait(Duration::from_millis(20)).unwrap());
        second.abandon();
        drop(go);
        let (error, place) = wait(Duration::from_secs(100)).unwrap_err();
        assert!(error.message().contains("internal error: the first"), "{error}");
        assert_eq!(place, "one");
        assert!(first.take().is_err() && second.take().is_err());
        defer(false);
    }
}
