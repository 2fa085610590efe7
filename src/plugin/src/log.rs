//! Keeps the engine's log records for a host that takes them, or writes them to stderr.
//!
//! The library never calls the host. A callback that needs Python's lock might wait for a thread that holds this lock
//! and waits for the library. So records wait in a queue, and a thread of the host takes them.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Metadata, Subscriber, callsite};

use crate::process::PerProcess;

/// Most records in the queue. Further records push the oldest ones out.
const MAX_RECORDS: usize = 1000;
/// The level with all records.
pub const MAX_LEVEL: u8 = 4;
/// Filters by level number, from no records to all.
const LEVELS: [LevelFilter; 5] =
    [LevelFilter::OFF, LevelFilter::ERROR, LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG];

/// The current level: an index into [`LEVELS`].
static LEVEL: AtomicU8 = AtomicU8::new(2);

/// The records of one process. A forked child has its own queue, because the lock may be held when the process is
/// forked.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether records are kept for the host. Otherwise they go to stderr.
    kept: bool,
    records: VecDeque<Value>,
    /// Number of records that were pushed out since the host last took records.
    dropped: u64,
}

impl Queue {
    fn current() -> &'static Self {
        static QUEUE: PerProcess<Queue> = PerProcess::new();
        QUEUE.get()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, record: Value) {
        let mut state = self.state();
        if !state.kept {
            drop(state);
            let line = format!("dali_zarr: {}\n", record["message"].as_str().unwrap_or_default());
            // A single write, so that lines of several threads don't mix. Errors are ignored: the host may have closed
            // its stderr.
            let _ = std::io::stderr().write_all(line.as_bytes());
            return;
        }
        if state.records.len() == MAX_RECORDS {
            state.records.pop_front();
            state.dropped += 1;
        }
        state.records.push_back(record);
        self.changed.notify_all();
    }
}

/// Installs the collector of the engine's events. Further calls do nothing.
pub fn install() {
    static ONCE: Once = Once::new();
    // Ignores a failure: no other code of this library sets a subscriber.
    ONCE.call_once(|| drop(set_global_default(Collector)));
}

/// Sets which records are made: 0 none, 1 errors, 2 also warnings, 3 also information, [`MAX_LEVEL`] all.
pub fn set_level(level: u8) {
    let level = level.min(MAX_LEVEL);
    if LEVEL.swap(level, Ordering::Relaxed) != level {
        callsite::rebuild_interest_cache();
    }
}

/// Sets whether records are kept for [`take`], or written to stderr. Drops all records that are in the queue.
pub fn keep(kept: bool) {
    let queue = Queue::current();
    *queue.state() = State { kept, ..State::default() };
    queue.changed.notify_all();
}

/// Waits for a record, for at most `limit`. Returns at once if records aren't kept. Returns whether there is a record.
pub fn wait(limit: Duration) -> bool {
    let queue = Queue::current();
    let waits = |state: &mut State| state.kept && state.records.is_empty();
    let (state, _) =
        queue.changed.wait_timeout_while(queue.state(), limit, waits).unwrap_or_else(PoisonError::into_inner);
    !state.records.is_empty()
}

/// Takes all records, the oldest first, as a JSON array.
pub fn take() -> Value {
    let mut state = Queue::current().state();
    let dropped = std::mem::take(&mut state.dropped);
    let lost = (dropped > 0).then(|| {
        json!({"level": "warning", "target": module_path!(), "message": format!("{dropped} older records of the log were dropped")})
    });
    lost.into_iter().chain(state.records.drain(..)).collect()
}

/// Collects the events of this project, but not those of the crates that it uses.
struct Collector;

impl Subscriber for Collector {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = LEVELS[usize::from(LEVEL.load(Ordering::Relaxed))];
        metadata.is_event() && metadata.target().starts_with("dali_zarr") && *metadata.level() <= level
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LEVELS[usize::from(LEVEL.load(Ordering::Relaxed))])
    }
    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warning",
            tracing::Level::INFO => "info",
            _ => "debug",
        };
        Queue::current().push(json!({"level": level, "target": event.metadata().target(), "message": message.0}));
    }
    // This project has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The text of an event: its message. Events of this project have no other fields.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single test, because the queue and the level belong to the process.
    #[test]
    fn records_are_kept_within_bounds_and_given_once() {
        install();
        tracing::warn!("nobody takes this");
        assert!(!wait(Duration::from_secs(100)), "nothing is kept, so nothing is waited for");
        keep(true);
        for i in 0..MAX_RECORDS + 5 {
            tracing::warn!("record {i}");
        }
        tracing::info!("below the level");
        assert!(wait(Duration::ZERO));
        let taken = take();
        let message = |i: usize| taken[i]["message"].as_str().unwrap();
        assert_eq!(taken.as_array().unwrap().len(), MAX_RECORDS + 1);
        assert_eq!((message(0), message(1)), ("5 older records of the log were dropped", "record 5"));
        assert_eq!((&taken[1]["level"], &taken[1]["target"]), (&json!("warning"), &json!("dali_zarr::log::tests")));
        assert!(!wait(Duration::ZERO));
        assert_eq!(take(), json!([]));

        set_level(MAX_LEVEL);
        tracing::debug!("all is made");
        tracing::debug!(target: "hyper", "not ours");
        assert_eq!(take()[0]["message"], "all is made");
        set_level(0);
        tracing::error!("nothing is made");
        assert_eq!(take(), json!([]));
        set_level(2);

        let waiting = std::thread::spawn(|| wait(Duration::from_secs(100)));
        keep(false);
        assert!(!waiting.join().unwrap());
    }
}
