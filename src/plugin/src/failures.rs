//! The last errors of this process's DALI operators, with their details.
//!
//! DALI catches an operator's exception, on whatever thread the operator runs, and raises another one whose text has
//! the operator's message in the middle. So a host that catches DALI's exception can't ask its own thread for the
//! details. It asks here, with the text. The message is a value that the operator gave to DALI, so nothing about DALI's
//! texts has to be known but that they hold it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::process::PerProcess;

/// The most errors that are kept. After an error a pipeline can't go on, so there are few.
const KEPT: usize = 64;

/// An error of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The message, as DALI got it.
    message: String,
    /// The details: a JSON object.
    pub details: String,
}

static FAILURES: PerProcess<Failures> = PerProcess::new();

#[derive(Default)]
struct Failures(Mutex<VecDeque<Failure>>);

impl Failures {
    fn keep(&self, message: &str, details: String) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One bad chunk may fail every batch.
        kept.retain(|failure| failure.message != message);
        kept.truncate(KEPT - 1);
        kept.push_front(Failure { message: message.to_owned(), details });
    }

    fn find(&self, text: &str) -> Option<Failure> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A message may begin with another one. Of all that are in the text, the longest is the whole message.
        let found = kept.iter().filter(|failure| text.contains(&failure.message));
        found.max_by_key(|failure| failure.message.len()).cloned()
    }
}

/// Keeps an error that is passed to DALI.
pub fn keep(message: &str, details: String) {
    FAILURES.get().keep(message, details);
}

/// Returns the error whose message is in the text of DALI's exception; `None` if there is none among the last errors.
pub fn find(text: &str) -> Option<Failure> {
    FAILURES.get().find(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_found_in_the_text_of_the_exception() {
        let kept = Failures(Mutex::default());
        kept.keep("zarr_reader: a: no", "1".into());
        kept.keep("zarr_reader: a: no bytes", "2".into());
        let found = |text: &str| kept.find(text).map(|failure| failure.details);
        assert_eq!(found("Error in CPU operator `x`\nencountered:\nzarr_reader: a: no bytes\nStack"), Some("2".into()));
        assert_eq!(found("zarr_reader: a: no\n"), Some("1".into()));
        assert_eq!(found("ImageDecoder: no bytes"), None);
        kept.keep("zarr_reader: a: no", "3".into());
        assert_eq!(found("zarr_reader: a: no"), Some("3".into()), "the last one with this message");
    }

    #[test]
    fn only_the_last_errors_are_kept() {
        let kept = Failures(Mutex::default());
        (0..100).for_each(|i| kept.keep(&format!("error {i}."), String::new()));
        assert!(
            kept.find("error 35.").is_none() && kept.find("error 36.").is_some() && kept.find("error 99.").is_some()
        );
    }
}
