//! The failure of a request that several wait for.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::error::Error;

/// The last failure of something that is asked for once for all who wait. Those who began to wait before it take it too:
/// else each would try as long again, one after the other, and what came of it would be known after hours.
#[derive(Default)]
pub(super) struct Failed(Mutex<Option<(Instant, Error)>>);

impl Failed {
    /// The failure, for whoever has waited since `began`; else `None`.
    pub fn since(&self, began: Instant) -> Option<Error> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| *at > began).map(|(_, e)| e.clone())
    }

    /// Takes note of a failure.
    pub fn note(&self, error: &Error) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), error.clone()));
    }
}
