//! Ends waits for batches after Ctrl-C.
//!
//! Python's handler of SIGINT only sets a flag. The main thread checks this flag when it runs Python code, but not
//! while it waits in DALI for a batch. So during that time ([`watch`]) this library installs its own handler: it sets a
//! flag of the library, and then calls Python's handler. Waits that see the flag end with an error, so the main thread
//! returns to Python.
//!
//! `unsafe` is allowed here, to install and call signal handlers.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dali_zarr_engine::error::{Code, Error, Result};

/// While this is set, waits end.
static RAISED: AtomicBool = AtomicBool::new(false);
/// Address of the host's handler, which was installed before.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
/// Whether the host's handler takes three arguments (SA_SIGINFO).
static TAKES_INFO: AtomicBool = AtomicBool::new(false);
/// Number of nested calls of [`watch`] with `true`.
static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// The signal handler. It may interrupt any code, so it uses only atomics.
extern "C" fn raise(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    RAISED.store(true, Ordering::Relaxed);
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: `before` is the address of the handler that was installed for this signal with these flags. It was stored
    // before this handler was installed.
    unsafe {
        if TAKES_INFO.load(Ordering::Relaxed) {
            transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(before)(signal, info, context);
        } else {
            transmute::<usize, extern "C" fn(c_int)>(before)(signal);
        }
    }
}

fn current() -> Option<libc::sigaction> {
    // SAFETY: a plain C structure may be all zeros.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: the call only writes the signal's action to `action`.
    (unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), &mut action) } == 0).then_some(action)
}

fn set(action: &libc::sigaction) {
    // SAFETY: the handler may run on any thread at any time. It is either the process's own, or this library's, which
    // is never unloaded (DALI never unloads libraries with operators).
    unsafe { libc::sigaction(libc::SIGINT, action, null_mut()) };
}

/// With `true`: from now on SIGINT ends waits, until this was called with `false` as often as with `true`. An earlier
/// SIGINT is forgotten. Only one thread of the host may call this. Without a handler of the host nothing changes: the
/// signal then ends the process, or is ignored.
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
        // A handler that someone else installed meanwhile stays.
        if let Some(mut action) = current().filter(|action| action.sa_sigaction == ours) {
            action.sa_sigaction = BEFORE.load(Ordering::Acquire);
            if !TAKES_INFO.load(Ordering::Relaxed) {
                action.sa_flags &= !libc::SA_SIGINFO;
            }
            set(&action);
        }
    }
}

/// Ends waits as the signal does, until the next `watch(true)`.
pub fn interrupt() {
    RAISED.store(true, Ordering::Relaxed);
}

/// Checks whether to go on waiting for a batch. Must be called again and again during a wait.
///
/// # Errors
/// If the wait must end.
pub fn check() -> Result<()> {
    if RAISED.load(Ordering::Relaxed) {
        return Err(Error::coded(
            Code::Interrupted,
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

    /// A single test, because the handler belongs to the process.
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
        assert_eq!(check().unwrap_err().code(), Code::Interrupted);
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
