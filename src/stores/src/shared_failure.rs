//! The failure of a request that several tasks wait for.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use dali_zarr_base::error::Error;

/// The last failure of a read that one task makes for all tasks that wait for it. A task that began to wait before the
/// failure gets the same error. Otherwise the waiting tasks would retry one after the other, each until its own time
/// limit: for hours.
#[derive(Debug, Default)]
pub(super) struct SharedFailure(Mutex<Option<(Instant, Error)>>);

impl SharedFailure {
    /// Returns the last failure, if it came after `began`.
    pub fn since(&self, began: Instant) -> Option<Error> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| *at > began).map(|(_, e)| e.clone())
    }

    /// Records a failure.
    pub fn note(&self, error: &Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), error.clone()));
    }
}
