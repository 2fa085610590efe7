//! The C ABI; `include/dali_zarr.h` is its documentation and must agree with it.
//!
//! Every function is fenced against panics and checks its pointers for null; whatever else a pointer may be is the
//! caller's promise, which the header states. Here is how errors, text and pointers cross; the functions are in the modules.

mod batches;
mod inspect;
mod process;
mod readers;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use dali_zarr_engine::error::{Error, ErrorKind, Result};

use serde_json::{Value, json};

use crate::unwind::guard;

/// What `dali_zarr_last_error` and its like give.
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

/// Text for C; a NUL inside, which C can't hold, becomes `\0`.
fn c_text(text: &str) -> CString {
    CString::new(shown(text)).unwrap_or_default()
}

/// Text that ends where its first NUL stands once it is C's, with its NULs written as `\0`.
pub(crate) fn shown(text: &str) -> String {
    text.replace('\0', "\\0")
}

/// The text of a call on this thread, which lives until the next such call.
fn keep_text(text: &str) -> *const c_char {
    let kept = TEXT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        *kept = c_text(text);
        kept.as_ptr()
    });
    kept.unwrap_or(c"".as_ptr())
}

/// Runs `work` behind the fence, and keeps its error for `dali_zarr_last_error`.
fn call(work: impl FnOnce() -> Result<()>) -> i32 {
    match guard(work) {
        Ok(()) => 0,
        Err(error) => {
            remember(&error);
            error.kind() as i32
        }
    }
}

/// Keeps an error for `dali_zarr_last_error`. A thread that is ending has no place for it any more.
pub(crate) fn remember(error: &Error) {
    keep_error(error, details(error));
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
/// `pointer` is null or good to read for as long as the result is used.
unsafe fn deref<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// `pointer` is null or good to write.
unsafe fn put<T>(pointer: *mut T, value: T, what: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller's promise. What was there before is not read.
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

/// What is known of the last error on this thread, as a JSON object.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_last_error_details() -> *const c_char {
    LAST.try_with(|last| last.borrow().details.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The status of the last error on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_last_error_status() -> i32 {
    LAST.try_with(|last| last.borrow().status).unwrap_or(0)
}
