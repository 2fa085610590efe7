//! Whether waits for batches shall end, since somebody pressed Ctrl-C.
//!
//! Python's handler of SIGINT only sets a flag, which the main thread looks at when it runs Python code. While that thread waits
//! in DALI for a batch, nobody looks. So while it is in there ([`watch`]) a handler of this library stands before Python's: it sets
//! a flag too, and calls Python's. Waits that see the flag end with an error, by which the main thread comes back to Python.
//!
//! `unsafe` is allowed here: handlers of signals are installed and called.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dali_zarr_engine::error::{Error, Result};

/// Waits end while this is set.
static RAISED: AtomicBool = AtomicBool::new(false);
/// The handler that was there before, and whether it takes three arguments.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
static TAKES_INFO: AtomicBool = AtomicBool::new(false);
/// How many calls of the main thread are watched: one may be inside of another.
static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// Only atomics: it runs in the middle of anything.
extern "C" fn raise(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    RAISED.store(true, Ordering::Relaxed);
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: the address of a handler that was set for this signal with these flags; this one is set only after it was stored.
    unsafe {
        if TAKES_INFO.load(Ordering::Relaxed) {
            transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(before)(signal, info, context);
        } else {
            transmute::<usize, extern "C" fn(c_int)>(before)(signal);
        }
    }
}

fn current() -> Option<libc::sigaction> {
    // SAFETY: a plain structure of C, which the call fills.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: reads the signal's action into it.
    (unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), &mut action) } == 0).then_some(action)
}

fn set(action: &libc::sigaction) {
    // SAFETY: the handler is good for any thread and any moment: it was the process's, or is ours, and libraries with operators of
    // DALI are never unloaded.
    unsafe { libc::sigaction(libc::SIGINT, action, null_mut()) };
}

/// From here on SIGINT ends waits, until this is called with `false` as often as with `true`. For one thread of the host, which has a
/// handler of SIGINT; without one the signal ends the process anyway. An earlier SIGINT is forgotten.
pub fn watch(watched: bool) {
    let ours = raise as *const () as usize;
    if watched {
        RAISED.store(false, Ordering::Relaxed);
        if DEPTH.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        let Some(mut action) = current() else { return };
        if [libc::SIG_DFL, libc::SIG_IGN, ours].contains(&action.sa_sigaction) {
            return;
        }
        TAKES_INFO.store(action.sa_flags & libc::SA_SIGINFO != 0, Ordering::Relaxed);
        BEFORE.store(action.sa_sigaction, Ordering::Release);
        action.sa_sigaction = ours;
        action.sa_flags |= libc::SA_SIGINFO;
        set(&action);
    } else if DEPTH.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |depth| depth.checked_sub(1)) == Ok(1) {
        // One that was set meanwhile stays.
        if let Some(mut action) = current().filter(|action| action.sa_sigaction == ours) {
            action.sa_sigaction = BEFORE.load(Ordering::Acquire);
            if !TAKES_INFO.load(Ordering::Relaxed) {
                action.sa_flags &= !libc::SA_SIGINFO;
            }
            set(&action);
        }
    }
}

/// Ends waits as the signal does, until the next [`watch`].
pub fn interrupt() {
    RAISED.store(true, Ordering::Relaxed);
}

/// To be called while waiting for a batch.
///
/// # Errors
/// If the wait shall end.
pub fn check() -> Result<()> {
    if RAISED.load(Ordering::Relaxed) {
        return Err(Error::runtime(
            "interrupted by Ctrl-C (SIGINT), or the end of the process, while waiting for the store",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    static HEARD: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn hear(_signal: c_int) {
        HEARD.fetch_add(1, Ordering::Relaxed);
    }

    /// One test, since the handler is the process's.
    #[test]
    fn a_signal_is_seen_while_it_is_watched_for_and_reaches_the_handler_that_was_there() {
        let mut action = current().unwrap();
        action.sa_sigaction = hear as *const () as usize;
        set(&action);
        let signal = || {
            // SAFETY: there is a handler.
            assert_eq!(unsafe { libc::raise(libc::SIGINT) }, 0);
        };
        signal();
        assert!(check().is_ok());
        watch(true);
        watch(true);
        assert!(check().is_ok());
        signal();
        assert!(check().is_err());
        watch(false);
        watch(true);
        assert!(check().is_ok(), "an earlier one is forgotten");
        watch(false);
        watch(false);
        watch(false);
        assert_eq!(current().unwrap().sa_sigaction, hear as *const () as usize);
        signal();
        assert!(check().is_ok());
        assert_eq!(HEARD.load(Ordering::Relaxed), 3);
        interrupt();
        assert!(check().is_err());
        watch(true);
        watch(false);
        assert!(check().is_ok());
    }
}
