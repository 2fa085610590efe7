//! Decides when a second request races a slow one (hedging), by how long the server took to answer lately.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Number of recent answers with a time that is kept.
const REMEMBERED: usize = 256;
/// No request counts as slow before there were this many answers.
const ENOUGH: usize = 64;
/// A request is slow if it takes this many times as long as the 95th percentile of recent answers.
const FACTOR: u32 = 4;
/// No request counts as slow before this time: a busy machine on our side delays answers by as much.
const MIN_SLOW: Duration = Duration::from_millis(100);
/// At most one request in this many is raced: a server that is slow as a whole must not get twice the load.
const REQUESTS_PER_HEDGE: usize = 20;

#[derive(Debug, Default)]
struct AnswerTimes {
    /// The times of the last [`REMEMBERED`] answers, as a ring.
    recent: Vec<Duration>,
    /// Number of answers so far. It gives the place in the ring for the next one.
    answers: usize,
    /// Number of requests that were sent to race others.
    hedges: usize,
    /// From this time on a request is slow. `None` until there were [`ENOUGH`] answers.
    slow: Option<Duration>,
}

/// The times of the last answers of one server, and how many requests were raced.
#[derive(Debug, Default)]
pub(super) struct Hedging(Mutex<AnswerTimes>);

impl Hedging {
    /// Records how long the server took to answer.
    pub fn answered(&self, after: Duration) {
        let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if s.recent.len() < REMEMBERED {
            s.recent.push(after);
        } else {
            let at = s.answers % REMEMBERED;
            s.recent[at] = after;
        }
        s.answers += 1;
        if s.recent.len() >= ENOUGH && s.answers.is_multiple_of(ENOUGH / 2) {
            let mut sorted = s.recent.clone();
            sorted.sort_unstable();
            s.slow = Some((sorted[sorted.len() * 19 / 20] * FACTOR).max(MIN_SLOW));
        }
    }

    /// Returns how long to wait for an answer before a second request is sent. `None`: too few answers yet, send none.
    pub fn slow(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).slow
    }

    /// Whether a second request may be sent now. If so, it is counted.
    pub fn allow(&self) -> bool {
        let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may = (s.hedges + 1) * REQUESTS_PER_HEDGE <= s.answers;
        s.hedges += usize::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_percent_of_requests_are_slow_at_most() {
        let hedging = Hedging::default();
        (0..63).for_each(|_| hedging.answered(Duration::from_millis(50)));
        assert_eq!(hedging.slow(), None, "not known yet");
        (0..33).for_each(|_| hedging.answered(Duration::from_millis(50)));
        assert_eq!(hedging.slow(), Some(Duration::from_millis(200)));
        assert_eq!((0..96).filter(|_| hedging.allow()).count(), 4, "a twentieth");
        (0..320).for_each(|_| hedging.answered(Duration::from_millis(1)));
        assert_eq!(hedging.slow(), Some(MIN_SLOW));
    }
}
