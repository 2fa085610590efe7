//! Decides when a failed read is tried again: which failures are temporary, how long the pauses are, and when to give
//! up. Does no I/O.
//!
//! This is no store around a store: such an adapter sees only the result of a read. It couldn't resume a broken body, see
//! the answers that decide whether to try again, or let two requests race (see `DESIGN.md`).

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use dali_zarr_base::error::{Code, Error, Result, Site};

/// The longest pause between tries, unless the server asks for more. Pauses double from failure to failure up to this.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause that a server can ask for (`Retry-After`).
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Most tries of a read with requests that can't even be sent, for lack of credentials for example.
const MAX_UNSENT: u32 = 3;
/// The time limit of a read grows by one second each time this many bytes have arrived.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;

/// How often and how long a read is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// Time limit of one request, including its body. A request that takes longer has failed.
    pub request: Duration,
    /// Time limit of a read: no request is repeated after it. Grows with the bytes that arrive
    /// ([`MIN_BYTES_PER_SECOND`]).
    pub total: Duration,
    /// The read fails after this many failed requests in a row that brought no new bytes.
    pub tries: u32,
    /// The first pause between two requests; doubled from failure to failure.
    pub pause: Duration,
    /// Whether a second request races a slow one (hedging).
    pub hedge: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(30),
            total: Duration::from_secs(180),
            tries: 11,
            pause: Duration::from_millis(100),
            hedge: true,
        }
    }
}

impl Policy {
    /// Returns the policy of [`Phase::Building`](crate::Phase): at most 5 tries and 30 seconds, even if the
    /// options allow more.
    pub fn building(&self) -> Self {
        Self { total: self.total.min(Duration::from_secs(30)), tries: self.tries.min(5), ..self.clone() }
    }
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The store says that there is no such key.
    Missing,
    /// The value has another version than the one that was read before.
    Replaced,
    /// The next request would fail too.
    Permanent(Error),
    /// Access is denied, and would be for the next request too. Some stores also answer this way for a key that doesn't
    /// exist.
    Refused(Error),
    /// A later request may succeed. With the pause that the server asks for, if it does (`Retry-After`).
    Transient(Error, Option<Duration>),
    /// The request wasn't sent.
    Unsent(Error),
}

impl Fault {
    /// Makes a [`Fault::Transient`] without a pause that the server asks for.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::Transient(Error::coded(Code::Unavailable, message), None)
    }

    /// Makes the fault of a request that took longer than `limit`.
    pub fn late(limit: Duration) -> Self {
        Self::transient(format!("no answer, or no end of it, within {limit:?}"))
    }
}

/// Counts the tries of one read.
pub(super) struct Retries<'a> {
    policy: &'a Policy,
    /// The store and the key, for the log.
    of: (&'a str, &'a str),
    began: Instant,
    /// Number of tries, all of which failed.
    tries: u32,
    /// Failures in a row that brought no new byte.
    failures: u32,
    /// Number of tries of [`Fault::Unsent`].
    unsent: u32,
    /// The most bytes of the value that had arrived after any try.
    best: u64,
}

impl<'a> Retries<'a> {
    pub fn new(policy: &'a Policy, location: &'a str, key: &'a str) -> Self {
        Self { policy, of: (location, key), began: Instant::now(), tries: 0, failures: 0, unsent: 0, best: 0 }
    }

    /// Records a failure after `have` bytes have arrived. Returns how long to wait before the next try.
    ///
    /// # Errors
    /// If there is no next try. The error has the number of tries and the last answer.
    pub fn next_pause(&mut self, fault: Fault, have: u64) -> Result<Duration> {
        self.tries += 1;
        self.failures = if have > self.best { 1 } else { self.failures + 1 };
        self.best = self.best.max(have);
        let tries = Site { tries: Some(self.tries), ..Site::default() };
        let (last, wait) = match fault {
            Fault::Permanent(e) | Fault::Refused(e) => return Err(e.placed(tries)),
            Fault::Missing => {
                return Err(Error::coded(Code::Replaced, "it vanished while it was read").placed(tries));
            }
            Fault::Replaced => (Error::coded(Code::Replaced, "the value was replaced while it was read"), None),
            Fault::Transient(e, wait) => (e, wait),
            Fault::Unsent(e) => {
                self.unsent += 1;
                (e, None)
            }
        };
        let doubled = self.policy.pause.saturating_mul(1 << (self.failures - 1).min(20)).min(MAX_PAUSE);
        // Half to all of the pause, at random: clients that failed together shouldn't return together.
        let pause = doubled.mul_f64(0.5 + 0.5 * random()).max(wait.unwrap_or_default().min(MAX_RETRY_AFTER));
        let allowed = self.policy.total + Duration::from_secs(self.best / MIN_BYTES_PER_SECOND);
        let elapsed = self.began.elapsed();
        if self.failures >= self.policy.tries || self.unsent >= MAX_UNSENT || elapsed + pause > allowed {
            let number = if self.tries == 1 { "try" } else { "tries" };
            let failed = format!("{} {number} failed within {:.1} s", self.tries, elapsed.as_secs_f64());
            return Err(last.within(format!("{failed}; the last answer")).placed(tries));
        }
        let (location, key) = self.of;
        tracing::debug!(
            "store {location}: key {key:?}: try {} failed: {last}; the next follows in {pause:.1?}",
            self.tries
        );
        Ok(pause)
    }
}

/// Returns a random number from 0 up to, but not including, 1.
fn random() -> f64 {
    (RandomState::new().hash_one(0u8) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transient() -> Fault {
        Fault::transient("503")
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_are_counted_anew_after_progress() {
        let policy = Policy { tries: 3, ..Policy::default() };
        let mut retries = Retries::new(&policy, "s3://b", "k");
        assert!(retries.next_pause(transient(), 0).is_ok() && retries.next_pause(transient(), 0).is_ok());
        assert!(retries.next_pause(transient(), 10).is_ok(), "ten bytes more");
        assert!(retries.next_pause(transient(), 5).is_ok());
        let error = retries.next_pause(transient(), 10).unwrap_err();
        assert_eq!((error.site().tries, error.code()), (Some(5), Code::Unavailable));
        assert!(error.message().starts_with("5 tries failed") && error.message().ends_with("503"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_servers_may_ask_for_more() {
        let policy = Policy { tries: 100, total: Duration::from_secs(1000), ..Policy::default() };
        let mut retries = Retries::new(&policy, "s3://b", "k");
        let pauses: Vec<_> = (0..10).map(|_| retries.next_pause(transient(), 0).unwrap().as_millis()).collect();
        for (i, pause) in pauses.iter().enumerate() {
            let most = (100 << i).min(10_000);
            assert!((most / 2..=most).contains(pause), "{pauses:?}");
        }
        let asked =
            retries.next_pause(Fault::Transient(Error::runtime("429"), Some(Duration::from_secs(20))), 0).unwrap();
        assert_eq!(asked.as_secs(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_up_unless_bytes_came() {
        let policy = Policy { total: Duration::from_secs(10), ..Policy::default() };
        let mut retries = Retries::new(&policy, "s3://b", "k");
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(retries.next_pause(transient(), 64 << 14).is_ok(), "1 MiB allows for 16 seconds more");
        tokio::time::advance(Duration::from_secs(16)).await;
        assert!(retries.next_pause(transient(), 64 << 14).is_err());
    }
}
