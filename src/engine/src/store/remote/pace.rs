//! How long servers usually take to answer, and from when on a request is slow enough for a second one. Pure but for a lock.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Answers that are remembered.
const REMEMBERED: usize = 256;
/// Answers before anything is said of what is usual.
const ENOUGH: usize = 64;
/// A request is slow beyond this many times what all but a twentieth take.
const FACTOR: u32 = 4;
/// Faster than this nothing is gained: a busy machine of one's own is slow by as much.
const LEAST: Duration = Duration::from_millis(100);
/// One request in so many may be raced at most: a server that is slow altogether must not get twice the load.
const SHARE: u64 = 20;

#[derive(Debug, Default)]
struct State {
    recent: Vec<Duration>,
    next: usize,
    requests: u64,
    hedges: u64,
    slow: Option<Duration>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<State>);

impl Pace {
    /// Takes note of how long a server took to answer.
    pub fn answered(&self, after: Duration) {
        let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        s.requests += 1;
        if s.recent.len() < REMEMBERED {
            s.recent.push(after);
        } else {
            let at = s.next % REMEMBERED;
            s.recent[at] = after;
        }
        s.next += 1;
        if s.recent.len() >= ENOUGH && s.next.is_multiple_of(ENOUGH / 2) {
            let mut sorted = s.recent.clone();
            sorted.sort_unstable();
            s.slow = Some((sorted[sorted.len() * 19 / 20] * FACTOR).max(LEAST));
        }
    }

    /// How long to wait before a second request; `None`: for ever.
    pub fn slow(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).slow
    }

    /// Whether a second request may be sent now; if so, it counts.
    pub fn hedge(&self) -> bool {
        let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may = (s.hedges + 1) * SHARE <= s.requests;
        s.hedges += u64::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_what_hardly_any_are() {
        let pace = Pace::default();
        (0..63).for_each(|_| pace.answered(Duration::from_millis(50)));
        assert_eq!(pace.slow(), None, "not known yet");
        (0..33).for_each(|_| pace.answered(Duration::from_millis(50)));
        assert_eq!(pace.slow(), Some(Duration::from_millis(200)));
        assert_eq!((0..96).filter(|_| pace.hedge()).count(), 4, "a twentieth");
        (0..320).for_each(|_| pace.answered(Duration::from_millis(1)));
        assert_eq!(pace.slow(), Some(LEAST));
    }
}
