//! Stores that are opened by threads of the library, while the thread that makes an operator goes on.
//!
//! DALI calls an operator's constructor with the lock of its registry of operators, and, when Python builds a pipeline, with Python's
//! lock. Whoever waits there keeps the other threads of Python from running. Letting go of Python's lock inside of the constructor is
//! no way out: another thread that builds a pipeline then holds Python's lock and waits for the registry's, and this one waits for
//! Python's. So a constructor must not wait. A host that has asked for it waits after DALI has returned: for a while at a
//! time, without locks, so that it can look for an interrupt meanwhile.
//!
//! The operators that a thread makes for one pipeline are opened one after the other, since each divides the memory that the others
//! leave.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dali_zarr_engine::error::{Error, Result};
use dali_zarr_engine::reader::Reader;

use crate::registry::Registered;
use crate::unwind::{Fenced, caught};

/// A reader that is open.
pub type Opened = (Registered, Fenced<Reader>);

thread_local! {
    /// What this thread's operators open since [`defer`]; `None` while constructors wait.
    static DEFERRED: RefCell<Option<Vec<Arc<Opening>>>> = const { RefCell::new(None) };
}

/// A reader that is being opened, or the error that this ended in.
pub struct Opening {
    /// Where in the host's program the operator was made.
    place: String,
    /// Nobody will use the reader.
    is_abandoned: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
}

enum State {
    Pending,
    Opened(Opened),
    Taken,
    Failed(Error),
}

impl Opening {
    /// Opens a reader on a thread of its own, if this thread's constructors shall not wait; else gives `work` back.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn start<F>(work: F, place: String) -> Result<std::result::Result<Arc<Self>, F>>
    where
        F: FnOnce() -> Result<Opened> + Send + 'static,
    {
        let Some(before) = DEFERRED.with_borrow(|list| list.as_ref().map(|list| list.last().map(Arc::clone))) else {
            return Ok(Err(work));
        };
        let (is_abandoned, state) = (AtomicBool::new(false), Mutex::new(State::Pending));
        let opening = Arc::new(Self { place, is_abandoned, state, ended: Condvar::new() });
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
                *shared.lock() = opened.map_or_else(State::Failed, State::Opened);
                shared.ended.notify_all();
            })
            .map_err(|e| Error::runtime(format!("no thread could be started: {e}")).caused_by(e))?;
        DEFERRED.with_borrow_mut(|list| list.get_or_insert_default().push(Arc::clone(&opening)));
        Ok(Ok(opening))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the reader is open, up to `until` if that is given. Returns whether it is.
    ///
    /// # Errors
    /// If it can't be opened.
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

    /// The reader, which can be taken once; waits for it.
    ///
    /// # Errors
    /// If it can't be opened, or was taken.
    pub fn take(&self) -> Result<Opened> {
        self.wait(None)?;
        match std::mem::replace(&mut *self.lock(), State::Taken) {
            State::Opened(opened) => Ok(opened),
            _ => Err(Error::runtime("internal error: the reader was taken before")),
        }
    }

    /// Nobody will take the reader. If it is not being opened yet, it never will be.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

/// Whether constructors of operators on this thread return at once. Forgets what earlier ones opened.
pub fn defer(deferred: bool) {
    // A thread that is ending makes no operators. What is forgotten may end threads, so the list isn't borrowed meanwhile.
    let _forgotten = DEFERRED.try_with(|list| list.replace(deferred.then(Vec::new)));
}

/// Waits so long at most for all that this thread's operators open. Returns whether all are open.
///
/// # Errors
/// That of the first operator that can't be opened, and where it was made.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn failing(what: &'static str) -> impl FnOnce() -> Result<Opened> + Send + 'static {
        move || Err(Error::value(what))
    }

    #[test]
    fn a_constructor_waits_unless_the_host_does() {
        assert!(Opening::start(failing("a"), String::new()).unwrap().is_err(), "the work comes back");
        assert!(wait(Duration::ZERO).unwrap());
        defer(true);
        assert!(Opening::start(failing("a"), "here".into()).unwrap().is_ok());
        let (error, place) = wait(Duration::from_secs(100)).unwrap_err();
        assert_eq!((error.message(), place.as_str()), ("a", "here"));
        defer(false);
        assert!(wait(Duration::ZERO).unwrap(), "it is forgotten");
        assert!(Opening::start(failing("a"), String::new()).unwrap().is_err());
    }

    #[test]
    fn readers_are_opened_one_after_the_other_and_the_first_error_is_told() {
        let (go, wanted) = channel::<()>();
        defer(true);
        let slow = move || {
            let _ = wanted.recv();
            panic!("the first")
        };
        let first = Opening::start(slow, "one".into()).unwrap().ok().unwrap();
        let second = Opening::start(|| unreachable!("the first failed"), "two".into()).unwrap().ok().unwrap();
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
