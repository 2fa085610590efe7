//! Which failures may pass, how long to wait before another try, and when it is enough.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use super::client::Answer;
use super::options::Policy;
use crate::error::{Error, Result};

/// Pauses are doubled from failure to failure up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// What a server may ask for (`Retry-After`).
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Tries when requests can't even be sent, for want of credentials for example.
const UNSENT_TRIES: u32 = 3;
/// A transfer that is slower than this is given up when its time has passed.
const LEAST_BYTES_PER_SECOND: u64 = 64 << 10;

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The store says that there is no such key.
    Missing,
    /// The value isn't the one that was read before.
    Replaced,
    /// The next request would end alike.
    Lasting(String),
    /// Access isn't allowed, and won't be to the next request; or there is no such key, and the store doesn't say so.
    Refused(String),
    /// The next request may do better; not before the time that the server asks for.
    Passing(String, Option<Duration>),
    /// It wasn't sent.
    Unsent(String),
}

impl Fault {
    /// A request that took longer than `limit`.
    pub fn late(limit: Duration) -> Self {
        Self::Passing(format!("no answer, or no end of it, within {limit:?}"), None)
    }

    /// A list that wasn't given. Requests for lists carry no [`Answer`]: only the text tells of it.
    pub fn of_list(error: &object_store::Error) -> Self {
        let text = text(error);
        let refused = ["401 Unauthorized", "403 Forbidden"].iter().any(|status| text.contains(status));
        if refused { Self::Refused(text) } else { Self::unsent(error) }
    }

    /// A request of which nothing is known but this error.
    pub fn unsent(error: &object_store::Error) -> Self {
        Self::Unsent(format!(
            "{} (if no credentials were found in the environment, a profile or a role: a public bucket needs the option \
             skip_signature)",
            text(error)
        ))
    }
}

/// What an error means, with the server's answer if there was one.
pub(super) fn judge(error: &object_store::Error, answer: &Answer) -> Fault {
    use object_store::Error as E;
    match *answer {
        Answer::Status(404, _) => Fault::Missing,
        Answer::Status(412, _) => Fault::Replaced,
        Answer::Status(501 | 505, _) => Fault::Lasting(text(error)),
        Answer::Status(408 | 429 | 500..=599, wait) => Fault::Passing(text(error), wait),
        // S3's answer to a request of which it didn't get the end in time.
        Answer::Status(400, wait) if text(error).contains("RequestTimeout") => Fault::Passing(text(error), wait),
        Answer::Status(401 | 403, _) => Fault::Refused(format!(
            "{} (credentials come from the environment, a profile or a role; some stores say this also of keys that \
             are missing, if listing isn't allowed)",
            text(error)
        )),
        Answer::Status(300..=399, _) => {
            Fault::Lasting(format!("{} (is the region, or the endpoint, the bucket's?)", text(error)))
        }
        Answer::Status(..) => Fault::Lasting(text(error)),
        Answer::Failed => Fault::Passing(text(error), None),
        Answer::None => match error {
            E::NotSupported { .. } | E::InvalidPath { .. } | E::NotImplemented { .. } => Fault::Lasting(text(error)),
            _ if text(error).contains("URL scheme is not allowed") => {
                Fault::Lasting(format!("{} (an endpoint with http:// needs the option allow_http)", text(error)))
            }
            _ => Fault::unsent(error),
        },
    }
}

/// An error with its causes, short enough for a message.
pub(super) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    let flat = hidden(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match flat.char_indices().nth(500) {
        Some((at, _)) => format!("{}...", &flat[..at]),
        None => flat,
    }
}

/// A text without what S3's answers repeat of a request's credentials and signature.
fn hidden(text: &str) -> String {
    let mut rest = text;
    let mut shown = String::with_capacity(text.len());
    while let Some(begin) = rest.find('<') {
        let (before, element) = rest.split_at(begin);
        shown += before;
        let secret =
            ["<Token", "<AWSAccessKeyId", "<StringToSign", "<SignatureProvided", "<CanonicalRequest", "<X-Amz"];
        let inside = element.find('>').filter(|_| secret.iter().any(|s| element.starts_with(s)));
        let at = inside.map_or(1, |end| end + 1);
        shown += &element[..at];
        rest = &element[at..];
        if inside.is_some() {
            shown += "...";
            rest = rest.find("</").map_or("", |end| &rest[end..]);
        }
    }
    shown + rest
}

/// The tries of one read.
pub(super) struct Patience<'a> {
    policy: &'a Policy,
    began: Instant,
    tries: u32,
    /// In a row, without a byte more.
    failures: u32,
    unsent: u32,
    /// The most bytes that have been there at a time.
    best: u64,
}

impl<'a> Patience<'a> {
    pub fn new(policy: &'a Policy) -> Self {
        Self { policy, began: Instant::now(), tries: 0, failures: 0, unsent: 0, best: 0 }
    }

    /// How long to wait before the next try, `have` bytes being there.
    ///
    /// # Errors
    /// If there is to be none: how many there were, and the last answer.
    pub fn another(&mut self, fault: Fault, have: u64) -> Result<Duration> {
        self.tries += 1;
        self.failures = if have > self.best { 1 } else { self.failures + 1 };
        self.best = self.best.max(have);
        let (last, wait) = match fault {
            Fault::Lasting(text) => return Err(Error::runtime(text)),
            Fault::Refused(text) => return Err(Error::refused(text)),
            Fault::Missing => return Err(Error::runtime("it vanished while it was read")),
            Fault::Replaced => ("the value was replaced while it was read".to_owned(), None),
            Fault::Passing(text, wait) => (text, wait),
            Fault::Unsent(text) => {
                self.unsent += 1;
                (text, None)
            }
        };
        let doubled = self.policy.pause.saturating_mul(1 << (self.failures - 1).min(20)).min(LONGEST_PAUSE);
        // Between half of it and all: clients that failed together shouldn't come back together.
        let pause = doubled.mul_f64(0.5 + 0.5 * random()).max(wait.unwrap_or_default().min(LONGEST_WAIT));
        let allowed = self.policy.total + Duration::from_secs(self.best / LEAST_BYTES_PER_SECOND);
        let elapsed = self.began.elapsed();
        if self.failures >= self.policy.tries || self.unsent >= UNSENT_TRIES || elapsed + pause > allowed {
            return Err(Error::runtime(format!(
                "{} {} failed within {:.1} s; the last answer: {last}",
                self.tries,
                if self.tries == 1 { "try" } else { "tries" },
                elapsed.as_secs_f64()
            )));
        }
        Ok(pause)
    }
}

/// From 0 to 1.
fn random() -> f64 {
    (RandomState::new().hash_one(0u8) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing() -> Fault {
        Fault::Passing("503".into(), None)
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_are_counted_and_progress_forgives() {
        let policy = Policy { tries: 3, ..Policy::default() };
        let mut patience = Patience::new(&policy);
        assert!(patience.another(passing(), 0).is_ok() && patience.another(passing(), 0).is_ok());
        assert!(patience.another(passing(), 10).is_ok(), "ten bytes more");
        assert!(patience.another(passing(), 5).is_ok());
        let error = patience.another(passing(), 10).unwrap_err();
        assert!(error.message().starts_with("5 tries failed") && error.message().ends_with("503"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_servers_are_heard() {
        let policy = Policy { tries: 100, total: Duration::from_secs(1000), ..Policy::default() };
        let mut patience = Patience::new(&policy);
        let pauses: Vec<_> = (0..10).map(|_| patience.another(passing(), 0).unwrap().as_millis()).collect();
        for (i, pause) in pauses.iter().enumerate() {
            let most = (100 << i).min(10_000);
            assert!((most / 2..=most).contains(pause), "{pauses:?}");
        }
        let asked = patience.another(Fault::Passing("429".into(), Some(Duration::from_secs(20))), 0).unwrap();
        assert_eq!(asked.as_secs(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_up_unless_bytes_came() {
        let policy = Policy { total: Duration::from_secs(10), ..Policy::default() };
        let mut patience = Patience::new(&policy);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(patience.another(passing(), 64 << 14).is_ok(), "1 MiB allows for 16 seconds more");
        tokio::time::advance(Duration::from_secs(16)).await;
        assert!(patience.another(passing(), 64 << 14).is_err());
    }

    #[test]
    fn answers_dont_tell_secrets() {
        let found =
            hidden("400: <Error><Code>ExpiredToken</Code><Token-0>FwoG</Token-0><X>1 < 2</X><AWSAccessKeyId>AKIA");
        assert_eq!(found, "400: <Error><Code>ExpiredToken</Code><Token-0>...</Token-0><X>1 < 2</X><AWSAccessKeyId>...");
    }

    #[test]
    fn answers() {
        let error = || object_store::Error::Generic { store: "test", source: "words".into() };
        let status = |code| judge(&error(), &Answer::Status(code, None));
        assert_eq!(status(404), Fault::Missing);
        assert_eq!(status(412), Fault::Replaced);
        for code in [408, 429, 500, 502, 503, 504] {
            assert!(matches!(status(code), Fault::Passing(..)), "{code}");
        }
        for code in [200, 206, 301, 400, 405, 410, 416, 501] {
            assert!(matches!(status(code), Fault::Lasting(_)), "{code}");
        }
        assert!(matches!(status(401), Fault::Refused(_)) && matches!(status(403), Fault::Refused(_)));
        assert!(matches!(judge(&error(), &Answer::Failed), Fault::Passing(..)));
        assert!(matches!(judge(&error(), &Answer::None), Fault::Unsent(_)));
    }
}
