//! Global values of which each process has its own. A forked child inherits the memory of its parent, but none of the
//! threads. Locks that those held stay locked for ever, and what they counted isn't there any more.
//!
//! `unsafe` is allowed here, to find the value of the current process after a fork.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

/// A global value of which each process has its own.
pub struct PerProcess<T: 'static>(AtomicPtr<(u32, T)>);

impl<T: Default> PerProcess<T> {
    /// A value that is made by `T::default()` when it is first used, in each process anew.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Returns the value of the current process.
    pub fn get(&self) -> &'static T {
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a leaked value, which is never freed.
        if let Some((_, value)) = unsafe { found.as_ref() }.filter(|(process, _)| *process == std::process::id()) {
            return value;
        }
        let new = Box::leak(Box::new((std::process::id(), T::default())));
        match self.0.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => &new.1,
            // SAFETY: another thread stored its value first. That value is leaked too.
            Err(other) => unsafe { &(*other).1 },
        }
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn another_process_begins_with_a_value_of_its_own() {
        let of_parent = Box::leak(Box::new((std::process::id() + 1, Mutex::new(7))));
        let _locked_for_ever = of_parent.1.lock().unwrap();
        let inherited = PerProcess::<Mutex<i32>>(AtomicPtr::new(std::ptr::from_ref(of_parent).cast_mut()));
        *inherited.get().lock().unwrap() += 1;
        assert_eq!(*inherited.get().lock().unwrap(), 1);
    }
}
