//! Ends waits of operators for batches: at the end of the process, when nobody will take the batch, and when a signal
//! handler of Python raises an exception.
//!
//! Python's own handlers of signals only set a flag. The main thread runs what the program has for the signal when it
//! runs Python code. While it waits in an operator ([`watch`]), this module lets Python run it, in the short pauses of the
//! wait. DALI runs operators on its own threads, unless the pipeline is a synchronous one or the dynamic mode is used.
//! Where it does, the host waits elsewhere ([`crate::runs`]).
//!
//! `unsafe` is allowed here, to call Python.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dali_zarr_base::error::{Code, Error, Result};

use crate::runs::Runs;

/// While this is set, all waits end.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Functions of Python's C API.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Python {
    /// `PyGILState_Ensure`
    pub ensure: extern "C" fn() -> c_int,
    /// `PyGILState_Release`
    pub release: extern "C" fn(c_int),
    /// `PyErr_CheckSignals`
    pub check_signals: extern "C" fn() -> c_int,
    /// `PyErr_Fetch`
    pub fetch: unsafe extern "C" fn(*mut *mut c_void, *mut *mut c_void, *mut *mut c_void),
}

/// An exception of Python: its type, its value and its traceback, each owned or null.
pub type Exception = [*mut c_void; 3];

static PYTHON: OnceLock<Python> = OnceLock::new();

thread_local! {
    /// Whether handlers of signals may run in the waits of this thread.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    /// The exception that a handler raised in a wait of this thread.
    static RAISED: Cell<Exception> = const { Cell::new([null_mut(); 3]) };
}

/// Stores Python's functions. Only the first call counts: a process has one Python.
pub fn set_python(python: Python) {
    let _ = PYTHON.set(python);
}

/// Sets whether Python's handlers of signals run in the waits of this thread. Returns what was set before.
pub fn watch(watched: bool) -> bool {
    WATCHED.try_with(|now| now.replace(watched)).unwrap_or(false)
}

/// Takes the exception that a handler raised in a wait of this thread; nulls if there is none.
pub fn take_raised() -> Exception {
    RAISED.try_with(|raised| raised.replace([null_mut(); 3])).unwrap_or([null_mut(); 3])
}

/// Ends all waits from now on.
pub fn end_all() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Whether a handler of a signal raised an exception. Runs the handlers, if this thread is watched.
fn handlers_raise() -> bool {
    let Some(python) = PYTHON.get().filter(|_| WATCHED.try_with(Cell::get) == Ok(true)) else { return false };
    let state = (python.ensure)();
    let raises = (python.check_signals)() != 0;
    if raises {
        let mut exception: Exception = [null_mut(); 3];
        let [kind, value, traceback] = &mut exception;
        // SAFETY: Python's lock is held, and the pointers are valid for writes.
        unsafe { (python.fetch)(kind, value, traceback) };
        let _ = RAISED.try_with(|raised| raised.set(exception));
    }
    (python.release)(state);
    raises
}

/// Checks whether an operator may wait on for a batch. Must be called again and again during a wait.
///
/// # Errors
/// If the wait must end.
pub fn check(runs: &Runs) -> Result<()> {
    if ENDS.load(Ordering::Relaxed) || runs.must_end() || handlers_raise() {
        return Err(Error::coded(
            Code::Interrupted,
            "interrupted by a signal, or by the end of the process or the pipeline, while waiting for the store",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::{Listed, end};
    use std::sync::atomic::AtomicUsize;

    static ASKED: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn ensure() -> c_int {
        5
    }
    extern "C" fn release(state: c_int) {
        assert_eq!(state, 5);
    }
    /// The second signal's handler raises.
    extern "C" fn check_signals() -> c_int {
        if ASKED.fetch_add(1, Ordering::Relaxed) == 1 { -1 } else { 0 }
    }
    unsafe extern "C" fn fetch(kind: *mut *mut c_void, value: *mut *mut c_void, _traceback: *mut *mut c_void) {
        // SAFETY: the caller's promise.
        unsafe {
            kind.write(8 as *mut c_void);
            value.write(16 as *mut c_void);
        }
    }

    /// A single test, because the end is that of the process.
    #[test]
    fn handlers_run_in_waits_of_watched_threads_and_waits_end() {
        set_python(Python { ensure, release, check_signals, fetch });
        let (one, two) = (Listed::default(), Listed::default());
        assert!(check(&one.runs).is_ok());
        assert_eq!(ASKED.load(Ordering::Relaxed), 0, "the thread isn't watched");
        assert!(!watch(true));
        assert!(check(&one.runs).is_ok());
        assert_eq!(check(&one.runs).unwrap_err().code(), Code::Interrupted);
        assert_eq!(take_raised(), [8 as *mut c_void, 16 as *mut c_void, null_mut()]);
        assert_eq!(take_raised(), [null_mut(); 3]);
        assert!(check(&one.runs).is_ok());
        assert!(std::thread::spawn(|| check(&Listed::default().runs).is_ok()).join().unwrap());
        assert_eq!(ASKED.load(Ordering::Relaxed), 3, "another thread isn't watched");
        assert!(watch(false));
        end(one.number);
        assert!(check(&one.runs).is_err() && check(&two.runs).is_ok());
        end_all();
        assert!(check(&two.runs).is_err());
    }
}
