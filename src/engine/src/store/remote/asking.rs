//! What there is of a value, without its bytes: by `HEAD`, or what comes closest to it on servers that refuse that.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::client::{Answer, Note};
use super::patience::{Fault, judge};
use super::transfer::version;
use crate::store::Found;

/// How to ask, from what costs least on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Head,
    /// For one byte.
    Byte,
    /// For all of the value, of which the beginning of the answer is enough.
    Whole,
}

const ALL: [How; 3] = [How::Head, How::Byte, How::Whole];

impl How {
    fn options(self) -> GetOptions {
        match self {
            Self::Head => GetOptions { head: true, ..GetOptions::default() },
            Self::Byte => GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() },
            Self::Whole => GetOptions::default(),
        }
    }

    /// Whether the next way may do, when this one had such an answer.
    fn refused(self, answer: &Answer) -> bool {
        match *answer {
            Answer::Status(status, _) => match self {
                // Also where only `GET` is allowed: to everyone, or by a signature.
                // And where the answer lacks the length.
                Self::Head => matches!(status, 200 | 400 | 403 | 405 | 501),
                // Ranges are ignored.
                Self::Byte => status == 200,
                Self::Whole => false,
            },
            _ => false,
        }
    }
}

/// The way that a server was found to answer.
#[derive(Debug, Default)]
pub(super) struct Asking(AtomicUsize);

impl Asking {
    /// Asks.
    ///
    /// # Errors
    /// What the server, or the way to it, says.
    pub async fn ask(&self, store: &dyn ObjectStore, path: &Path) -> Result<Found, Fault> {
        let known = self.0.load(Relaxed);
        let mut at = known;
        loop {
            let (how, note) = (ALL[at], Note::default());
            let mut options = how.options();
            options.extensions.insert(note.clone());
            let result = store.get_opts(path, options).await;
            let answer = note.get();
            let result = match result {
                Ok(found) => Ok(Found { size: found.meta.size, version: Some(version(&found.meta)) }),
                Err(_) if how.refused(&answer) => {
                    at += 1;
                    continue;
                }
                // It has no first byte.
                Err(_) if how == How::Byte && matches!(answer, Answer::Status(416, _)) => {
                    Ok(Found { size: 0, version: None })
                }
                Err(e) => Err(judge(&e, &answer)),
            };
            // A server that refuses the next way too may just not give this value.
            if at > known && matches!(result, Ok(_) | Err(Fault::Missing)) {
                self.0.fetch_max(at, Relaxed);
            }
            return result;
        }
    }
}
