//! What belongs to one process. A forked child inherits the parent's memory, but none of its threads, and locks that
//! those threads held stay locked for ever. So the child begins with state of its own, refuses to use the parent's
//! readers, and never drops them.
//!
//! `unsafe` is allowed here, to find the state of the current process after a fork.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

use dali_zarr_engine::error::{Error, Result};

/// A global value of which each process has its own.
pub struct PerProcess<T: 'static>(AtomicPtr<(Process, T)>);

impl<T: Default> PerProcess<T> {
    /// A value that is made by `T::default()` when it is first used, in each process anew.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the value of the current process.
    pub fn get(&self) -> &'static T {
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a leaked value, which is never freed.
        if let Some((_, value)) = unsafe { found.as_ref() }.filter(|(process, _)| process.is_current()) {
            return value;
        }
        let new = Box::leak(Box::new((Process::current(), T::default())));
        match self.0.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => &new.1,
            // SAFETY: another thread stored its value first. That value is leaked too.
            Err(other) => unsafe { &(*other).1 },
        }
    }
}

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The process that calls this.
    pub fn current() -> Self {
        Self(std::process::id())
    }

    /// Whether this is the process that calls this. It isn't in a forked child.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// # Errors
    /// In a forked child of this process.
    pub fn check(self) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(Error::runtime(format!(
            "the reader was made in process {}, before this process ({}) was forked, and a forked process has no copy of its \
             threads; make the reader in the process that uses it",
            self.0,
            std::process::id()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn another_process_begins_with_a_value_of_its_own() {
        let of_parent = Box::leak(Box::new((Process(std::process::id() + 1), Mutex::new(7))));
        let _locked_for_ever = of_parent.1.lock().unwrap();
        let inherited = PerProcess::<Mutex<i32>>(AtomicPtr::new(std::ptr::from_ref(of_parent).cast_mut()));
        *inherited.get().lock().unwrap() += 1;
        assert_eq!(*inherited.get().lock().unwrap(), 1);
    }

    #[test]
    fn what_another_process_made_is_refused() {
        assert!(Process::current().check().is_ok());
        let error = Process(std::process::id() + 1).check().unwrap_err();
        assert!(error.message().contains("before this process") && error.message().contains("was forked"), "{error}");
    }
}
