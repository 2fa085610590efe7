//! What a host may know of the runs of an operator: how many have ended, and whether one waits for a batch.
//!
//! A host that runs signal handlers only in its own code, as Python does, must not wait in DALI: it waits here, for a
//! short time again and again, until the operator has made its part of the batch that DALI will give.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::PerProcess;

/// The runs of one operator.
#[derive(Default)]
pub struct Runs {
    counts: Mutex<Counts>,
    changed: Condvar,
    /// Whether its waits end.
    ends: AtomicBool,
}

#[derive(Default)]
struct Counts {
    /// Runs that have ended, with a batch or an error.
    ended: u64,
    /// Whether a run is waiting for a batch.
    waits: bool,
}

impl Runs {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a run, which waits for a batch.
    pub fn begin(&self) -> Run<'_> {
        self.counts().waits = true;
        Run(self)
    }

    /// Whether the operator's waits must end, because nobody will take its batches.
    pub fn must_end(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    fn wait(&self, runs: u64, limit: Duration) -> Outlook {
        let lacking = |counts: &mut Counts| counts.ended < runs;
        let (counts, _) =
            self.changed.wait_timeout_while(self.counts(), limit, lacking).unwrap_or_else(PoisonError::into_inner);
        match (counts.ended >= runs, counts.waits) {
            (true, _) => Outlook::Ended,
            (false, true) => Outlook::Waits,
            (false, false) => Outlook::Idle,
        }
    }
}

/// A run that waits for a batch. It ends when this is dropped.
pub struct Run<'a>(&'a Runs);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut counts = self.0.counts();
        counts.waits = false;
        counts.ended += 1;
        self.0.changed.notify_all();
    }
}

/// What is known of a number of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// The operator has ended so many runs.
    Ended = 0,
    /// It has not, and waits for a batch.
    Waits = 1,
    /// It has not, and doesn't run. DALI may be about to run it, or waits for other operators. Or one of them failed.
    Idle = 2,
}

type Operators = BTreeMap<u64, Arc<Runs>>;

fn operators() -> MutexGuard<'static, Operators> {
    static OPERATORS: PerProcess<Mutex<Operators>> = PerProcess::new();
    OPERATORS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the runs of an operator in the list until it is dropped.
pub struct Listed {
    /// The operator's number in this process.
    pub number: u64,
    pub runs: Arc<Runs>,
}

impl Default for Listed {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (number, runs) = (NEXT.fetch_add(1, Ordering::Relaxed), Arc::<Runs>::default());
        operators().insert(number, Arc::clone(&runs));
        Self { number, runs }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        operators().remove(&self.number);
    }
}

fn found(number: u64) -> Option<Arc<Runs>> {
    operators().get(&number).cloned()
}

/// Waits until an operator has ended `runs` runs, for at most `limit`. An operator that is gone has.
pub fn wait(number: u64, runs: u64, limit: Duration) -> Outlook {
    found(number).map_or(Outlook::Ended, |operator| operator.wait(runs, limit))
}

/// Ends all waits of an operator, those of later runs too.
pub fn end(number: u64) {
    if let Some(operator) = found(number) {
        operator.ends.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn runs_are_waited_for_until_they_have_ended() {
        let listed = Listed::default();
        let number = listed.number;
        assert_eq!(wait(number, 0, NOW), Outlook::Ended);
        assert_eq!(wait(number, 1, NOW), Outlook::Idle);
        let run = listed.runs.begin();
        assert_eq!(wait(number, 1, NOW), Outlook::Waits);
        let waiting = std::thread::spawn(move || wait(number, 1, LONG));
        drop(run);
        assert_eq!(waiting.join().unwrap(), Outlook::Ended);
        assert_eq!(wait(number, 2, NOW), Outlook::Idle);
        drop(listed);
        assert_eq!(wait(number, 2, LONG), Outlook::Ended, "it is gone");
    }

    #[test]
    fn the_waits_of_one_operator_end() {
        let (one, two) = (Listed::default(), Listed::default());
        end(one.number);
        assert!(one.runs.must_end() && !two.runs.must_end());
    }
}
