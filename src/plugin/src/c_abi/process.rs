//! Functions for the whole process or thread: the version, tables that are kept, the log, and how
//! DALI's operators are opened and interrupted.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::table::kept::{self, AnyTable};
use dali_zarr_base::table::{Element, Table};
use dali_zarr_engine::reader::credentials;
use dali_zarr_engine::reader::openings;

use super::{call, deref, details, keep_error, keep_text, null, put, text};
use crate::interrupts::{Exception, Python};
use crate::unwind::guard;
use crate::{interrupts, log, opening, registry, runs};

/// Values of `enum dali_zarr_dtype`.
const INT64: i32 = 4;
const FLOAT64: i32 = 11;

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Keeps a copy of a table.
///
/// # Safety
/// `data` points to `rows * columns` elements of the type, aligned for it; `name` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_table_keep(
    data: *const c_void,
    rows: usize,
    columns: usize,
    dtype: i32,
    name: *mut *const c_char,
) -> i32 {
    call(|| {
        let count =
            rows.checked_mul(columns).filter(|n| n.checked_mul(8).is_some_and(|bytes| bytes < isize::MAX as usize));
        let count = count.ok_or_else(|| Error::value("the table has more elements than can be addressed"))?;
        if data.is_null() && count > 0 {
            return Err(null("data"));
        }
        let table = match dtype {
            // SAFETY: the caller's promise, for elements of this type.
            INT64 => AnyTable::Int64(Arc::new(Table::new(unsafe { copied(data.cast(), count) }?, columns)?)),
            // SAFETY: as above.
            FLOAT64 => AnyTable::Float64(Arc::new(Table::new(unsafe { copied(data.cast(), count) }?, columns)?)),
            other => {
                return Err(Error::dtype(format!("expected DALI_ZARR_INT64 or DALI_ZARR_FLOAT64, but found {other}")));
            }
        };
        // SAFETY: the caller's promise.
        unsafe { put(name, keep_text(&kept::keep(table)), "name") }
    })
}

/// Returns a copy of `count` elements.
///
/// # Safety
/// `data` points to `count` elements, or `count` is 0.
unsafe fn copied<T: Element>(data: *const T, count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    if values.try_reserve_exact(count).is_err() {
        return Err(Error::memory(format!("a table of {count} numbers needs more memory than the system gives")));
    }
    if count > 0 {
        // SAFETY: not null, as was checked, and the caller's promise.
        values.extend_from_slice(unsafe { std::slice::from_raw_parts(data, count) });
    }
    Ok(values)
}

/// Forgets a table.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_table_release(name: *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        kept::release(unsafe { text(name, "name") }?);
        Ok(())
    })
}

/// Keeps credentials of remote stores.
///
/// # Safety
/// `json` is a string, and `name` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_credentials_keep(json: *const c_char, name: *mut *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let kept = credentials::keep(unsafe { text(json, "json") }?)?;
        // SAFETY: as above.
        unsafe { put(name, keep_text(&kept), "name") }
    })
}

/// Forgets credentials.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_credentials_release(name: *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        credentials::release(unsafe { text(name, "name") }?);
        Ok(())
    })
}

/// Makes a name under which an opening is kept.
///
/// # Safety
/// `name` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_opening_keep(name: *mut *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { put(name, keep_text(&openings::keep()), "name") })
}

/// Forgets an opening.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_opening_release(name: *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        openings::release(unsafe { text(name, "name") }?);
        Ok(())
    })
}

/// Sets how much the library logs.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_log_level(level: i32) -> i32 {
    call(|| {
        let known = u8::try_from(level).ok().filter(|&level| level <= log::MAX_LEVEL);
        log::set_level(known.ok_or_else(|| {
            Error::value(format!("level: expected a number from 0 to {}, but found {level}", log::MAX_LEVEL))
        })?);
        Ok(())
    })
}

/// Sets whether log records are kept for the host.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_keep_log(kept: i32) -> i32 {
    call(|| {
        log::keep(kept != 0);
        Ok(())
    })
}

/// Waits for a log record. Returns 1 if there is one, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_wait_log(timeout_ms: u32) -> i32 {
    guard(|| Ok(i32::from(log::wait(Duration::from_millis(timeout_ms.into()))))).unwrap_or(0)
}

/// Takes the log records.
///
/// # Safety
/// `json` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_take_log(json: *mut *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise. Checked before records are taken, so that none is lost.
        unsafe { put(json, std::ptr::null(), "json") }?;
        let records = log::take().to_string();
        // SAFETY: as above.
        unsafe { put(json, keep_text(&records), "json") }
    })
}

/// Takes the number of the reader that last described its epoch to DALI on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_take_described() -> u64 {
    registry::take_described()
}

/// Sets whether DALI's operators open their stores on threads of the library.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_defer_opening(deferred: i32) -> i32 {
    call(|| {
        opening::defer(deferred != 0);
        Ok(())
    })
}

/// Waits for the stores of this thread's operators.
///
/// # Safety
/// `opened` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_wait_opened(timeout_ms: u32, opened: *mut i32) -> i32 {
    let mut operator = None;
    let status = call(|| {
        // SAFETY: the caller's promise.
        unsafe { put(opened, 0, "opened") }?;
        let all = opening::wait(Duration::from_millis(timeout_ms.into())).map_err(|(error, place)| {
            operator = Some((error.within("zarr_reader"), place));
            error
        })?;
        // SAFETY: as above.
        unsafe { put(opened, all.into(), "opened") }
    });
    if let Some((error, place)) = operator {
        let mut details = details(&error);
        details["operator"] = place.into();
        keep_error(&error, details);
    }
    status
}

/// Returns the numbers of this thread's operators.
///
/// # Safety
/// `count` is null or valid for reads and writes, and `numbers` points to room for `*count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operators(numbers: *mut u64, count: *mut usize) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let room = *unsafe { deref(count, "count") }?;
        let found = opening::operators();
        if room > 0 && numbers.is_null() {
            return Err(null("numbers"));
        }
        for (i, number) in found.iter().take(room).enumerate() {
            // SAFETY: not null, and the caller promises room for `room` numbers.
            unsafe { numbers.add(i).write(*number) };
        }
        // SAFETY: as above.
        unsafe { put(count, found.len(), "count") }
    })
}

/// Waits until an operator has ended a number of runs.
///
/// # Safety
/// `outlook` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_wait_runs(operator: u64, ended: u64, timeout_ms: u32, outlook: *mut i32) -> i32 {
    call(|| {
        let found = runs::wait(operator, ended, Duration::from_millis(timeout_ms.into()));
        // SAFETY: the caller's promise.
        unsafe { put(outlook, found as i32, "outlook") }
    })
}

/// Ends the waits of an operator.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_end_waits(operator: u64) -> i32 {
    call(|| {
        runs::end(operator);
        Ok(())
    })
}

/// Stores functions of Python.
///
/// # Safety
/// `python` is null or points to functions of the process's Python.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_set_python(python: *const Python) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        interrupts::set_python(*unsafe { deref(python, "python") }?);
        Ok(())
    })
}

/// Sets whether Python's handlers of signals run in waits of this thread. Returns what was set before.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_watch_signals(watched: i32) -> i32 {
    interrupts::watch(watched != 0).into()
}

/// Takes the exception that a handler raised in a wait of this thread.
///
/// # Safety
/// `exception` is null or has room for three pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_take_raised(exception: *mut Exception) -> i32 {
    call(|| {
        if exception.is_null() {
            return Err(null("exception"));
        }
        // SAFETY: not null, and the caller's promise.
        unsafe { put(exception, interrupts::take_raised(), "exception") }
    })
}

/// Ends all waits for batches.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_interrupt() -> i32 {
    call(|| {
        interrupts::end_all();
        Ok(())
    })
}
