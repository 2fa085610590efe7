//! Texts that are logged once in a process.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::memory::PerProcess;

/// Whether this is the first call of the process with `text`. A text that was logged isn't repeated: each reader of an
/// epoch or a split would log the same. After ten thousand texts, every text counts as new.
pub fn is_first_log_of(text: &str) -> bool {
    static TOLD: PerProcess<Mutex<BTreeSet<String>>> = PerProcess::new();
    let mut told = TOLD.get().lock().unwrap_or_else(PoisonError::into_inner);
    told.len() >= 10_000 || told.insert(text.to_owned())
}

/// Logs a warning, unless it was logged before.
pub fn warn_once(text: String) {
    if is_first_log_of(&text) {
        tracing::warn!("{text}");
    }
}
