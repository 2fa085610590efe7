//! Guards between Rust and foreign code: a panic becomes an error value instead of an abort.
//!
//! `unsafe` is allowed here, to drop a value where a panic of its destructor is caught.

#![allow(unsafe_code)]

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use dali_zarr_base::error::{Error, Result};

use crate::log;
use crate::process::Process;

/// Runs `work`. A panic in it becomes an error of kind `Runtime` that quotes the panic. Every error names the operator.
pub fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    caught(work).map_err(|e| e.within("zarr_reader"))
}

/// As [`guard`], but errors don't name the operator. For work whose result passes through a [`guard`] later.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    log::install();
    // After a panic, half-finished objects are only dropped or called again, and both are guarded too.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let error = Error::panicked("", panic);
    let request = "this is a bug in dali-zarr, please report it with the arguments and the array's metadata";
    Error::coded(error.code(), format!("{error}; {request}"))
}

/// A value that foreign code may drop: a panic of its destructor is caught. In a forked child it isn't dropped: that
/// could wait for threads and locks which only the parent has.
pub struct Fenced<T> {
    value: ManuallyDrop<T>,
    process: Process,
}

impl<T> Fenced<T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: Process::current() }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// In a forked child of the process in which it was made.
    pub fn own(&self) -> Result<&T> {
        self.process.check()?;
        Ok(&self.value)
    }

    /// Whether this is a forked child of the process in which the value was made.
    pub fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }
}

impl<T> Deref for Fenced<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Fenced<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Fenced<T> {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let value = &mut self.value;
        // SAFETY: the field is private and nothing else drops it, so the value is intact here. `self` is not used again
        // after its destructor. A destructor can't return an error; the panic hook has already printed what went wrong.
        let _ = catch_unwind(AssertUnwindSafe(|| unsafe { ManuallyDrop::drop(value) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dali_zarr_base::error::{Code, ErrorKind};

    #[test]
    fn a_panic_becomes_a_runtime_error_with_its_text() {
        let error = guard::<()>(|| panic!("chunk {}", 7)).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::Runtime, Code::Internal));
        assert!(error.message().contains("internal error: chunk 7"), "{error}");
    }

    #[test]
    fn a_panic_in_a_destructor_ends_in_the_fence() {
        struct Bad;
        impl Drop for Bad {
            fn drop(&mut self) {
                panic!("in a destructor");
            }
        }
        drop(Fenced::new(Bad));
    }
}
