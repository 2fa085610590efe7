//! What belongs to one process. A forked child inherits the parent's memory, but none of its threads, and locks that
//! those threads held stay locked for ever. So the child begins with state of its own ([`PerProcess`]), refuses to use the
//! parent's readers, and never drops them.

use dali_zarr_base::error::{Error, Result};
pub use dali_zarr_base::memory::PerProcess;

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

    #[test]
    fn what_another_process_made_is_refused() {
        assert!(Process::current().check().is_ok());
        let error = Process(std::process::id() + 1).check().unwrap_err();
        assert!(error.message().contains("before this process") && error.message().contains("was forked"), "{error}");
    }
}
