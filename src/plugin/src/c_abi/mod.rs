//! The C ABI. `include/dali_zarr.h` is its documentation and must agree with it.
//!
//! Every function catches panics and checks its pointers for null. Everything else about pointers is the caller's
//! promise, which the header states. This file passes errors, text and pointers; the functions are in the modules.

mod batches;
mod inspect;
mod labels;
mod process;
mod pushes;
mod readers;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use dali_zarr_base::error::{Error, ErrorKind, Result};

use serde_json::{Value, json};

use crate::failures;
use crate::unwind::guard;

/// The values that `dali_zarr_last_error`, `dali_zarr_last_error_details` and `dali_zarr_last_error_status` return.
#[derive(Default)]
struct LastError {
    status: i32,
    message: CString,
    details: CString,
}

thread_local! {
    static LAST: RefCell<LastError> = RefCell::default();
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Converts text for C. NULs, which C strings can't hold, become `\0`.
fn c_text(text: &str) -> CString {
    CString::new(shown(text)).unwrap_or_default()
}

/// Returns text with its NULs written as `\0`. As a C string, it would otherwise end at the first NUL.
pub(crate) fn shown(text: &str) -> String {
    text.replace('\0', "\\0")
}

/// Keeps a text that is returned to C. It is valid until the next call of this function on this thread.
fn keep_text(text: &str) -> *const c_char {
    let kept = TEXT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        *kept = c_text(text);
        kept.as_ptr()
    });
    kept.unwrap_or(c"".as_ptr())
}

/// Runs `work` and catches its panics. Keeps its error for `dali_zarr_last_error`. Returns the status.
fn call(work: impl FnOnce() -> Result<()>) -> i32 {
    match guard(work) {
        Ok(()) => 0,
        Err(error) => {
            remember(&error);
            error.kind() as i32
        }
    }
}

/// Like [`call`], for work that may end otherwise than with success or an error. Returns the work's status.
fn call_with(work: impl FnOnce() -> Result<i32>) -> i32 {
    let mut status = 0;
    let failed = call(|| {
        status = work()?;
        Ok(())
    });
    if failed == 0 { status } else { failed }
}

/// Keeps an error for `dali_zarr_last_error`. On a thread that is ending, the error is lost.
fn remember(error: &Error) {
    keep_error(error, details(error));
}

/// Keeps an error of a DALI operator: for `dali_zarr_last_error`, and for `dali_zarr_operator_error` on any thread.
/// Returns the message for DALI.
pub(crate) fn remember_operator(error: &Error) -> String {
    let (message, details) = (shown(error.message()), details(error));
    failures::keep(&message, details.to_string());
    keep_error(error, details);
    message
}

fn keep_error(error: &Error, details: Value) {
    let (status, message, details) = (error.kind() as i32, c_text(error.message()), c_text(&details.to_string()));
    let _ = LAST.try_with(|last| *last.borrow_mut() = LastError { status, message, details });
}

fn details(error: &Error) -> Value {
    let (site, unknown) = (error.site(), error.unknown_name());
    json!({
        "kind": match error.kind() {
            ErrorKind::Value => "value",
            ErrorKind::Type => "type",
            ErrorKind::Index => "index",
            ErrorKind::Runtime => "runtime",
            ErrorKind::Memory => "memory",
        },
        "code": error.code().name(),
        "message": error.message(),
        "store": site.store,
        "array": site.array,
        "chunk": site.chunk,
        "inner_chunk": site.inner_chunk,
        "key": site.key,
        "range": site.range.as_ref().map(|range| [range.start, range.end]),
        "tries": site.tries,
        "name": unknown.and_then(|unknown| unknown.name.as_ref()),
        "known": unknown.map(|unknown| &unknown.known),
        "source": std::error::Error::source(error).map(ToString::to_string),
        "operator": null,
    })
}

fn null(what: &str) -> Error {
    Error::value(format!("{what}: expected a pointer, but found NULL"))
}

/// # Safety
/// `pointer` is null or valid for reads as long as the result is used.
unsafe fn deref<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// `pointer` is null or valid for writes.
unsafe fn put<T>(pointer: *mut T, value: T, what: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller's promise. The old value is neither read nor dropped.
    unsafe { pointer.write(value) };
    Ok(())
}

/// # Safety
/// `pointer` is null or a string that ends with a NUL.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Error::value(format!("{what}: expected UTF-8")))
}

/// The message of the last error on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The details of the last error on this thread, as a JSON object.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_last_error_details() -> *const c_char {
    LAST.try_with(|last| last.borrow().details.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The details of the error of a DALI operator whose message is in `text`.
///
/// # Safety
/// `text` is a string; `details` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_error(text: *const c_char, details: *mut *const c_char) -> i32 {
    call(|| {
        if text.is_null() {
            return Err(null("text"));
        }
        // SAFETY: not null, and the caller's promise. The text may quote anything, so it may be no UTF-8.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        let found = failures::find(&text).map_or(String::new(), |failure| failure.details);
        // SAFETY: the caller's promise.
        unsafe { put(details, keep_text(&found), "details") }
    })
}

/// The status of the last error on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_last_error_status() -> i32 {
    LAST.try_with(|last| last.borrow().status).unwrap_or(0)
}
