//! Asks for size and version of a value without its bytes: by `HEAD`, or by the cheapest `GET` that a server allows
//! instead.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use object_store::{GetOptions, GetRange, ObjectStore};

use super::classify::classify;
use super::client::{Answer, Note};
use super::names::ObjectName;
use super::transfer::version;
use crate::Found;
use crate::retry::Fault;

/// A request that tells size and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Head,
    /// `GET` of one byte.
    Byte,
    /// `GET` of the whole value. Its body isn't read.
    Whole,
}

/// All methods, the cheapest first.
const METHODS: [Method; 3] = [Method::Head, Method::Byte, Method::Whole];

impl Method {
    fn options(self) -> GetOptions {
        match self {
            Self::Head => GetOptions { head: true, ..GetOptions::default() },
            Self::Byte => GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() },
            Self::Whole => GetOptions::default(),
        }
    }

    /// Whether to try the next method after this answer.
    fn refused(self, answer: &Answer) -> bool {
        match *answer {
            Answer::Status(status, _) => match self {
                // Some buckets and signatures allow only `GET`. A failed request with status 200 is an answer without
                // the length.
                Self::Head => matches!(status, 200 | 400 | 403 | 405 | 501),
                // The server ignores ranges.
                Self::Byte => status == 200,
                Self::Whole => false,
            },
            _ => false,
        }
    }
}

/// Remembers which method a server answers.
#[derive(Debug, Default)]
pub(super) struct HeadProbe(AtomicUsize);

impl HeadProbe {
    /// Returns size and version of the value with this name. Begins with the method that the server is known to answer.
    /// `missing` are statuses that the user takes for "there is no such key".
    ///
    /// # Errors
    /// Why the last method failed.
    pub async fn head(&self, store: &dyn ObjectStore, name: &ObjectName, missing: &[u16]) -> Result<Found, Fault> {
        let known = self.0.load(Relaxed);
        let mut at = known;
        loop {
            let (method, note) = (METHODS[at], Note::of_value(name));
            let mut options = method.options();
            options.extensions.insert(note.clone());
            let result = store.get_opts(&name.path, options).await;
            let answer = note.answer();
            let result = match result {
                Ok(found) => Ok(Found { size: found.meta.size, version: Some(version(&found.meta)) }),
                Err(_) if method.refused(&answer) => {
                    at += 1;
                    continue;
                }
                // The value is empty: it has no first byte.
                Err(_) if method == Method::Byte && matches!(answer, Answer::Status(416, _)) => {
                    Ok(Found { size: 0, version: None })
                }
                Err(e) => Err(classify(e, &note, missing)),
            };
            // Remembers the method only if it worked. If it failed too, the server may refuse this value only.
            if at > known && matches!(result, Ok(_) | Err(Fault::Missing)) {
                self.0.fetch_max(at, Relaxed);
            }
            return result;
        }
    }
}
