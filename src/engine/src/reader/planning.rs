//! Plans the batches that the scheduler asks for, in order.

use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};

use super::progress::Start;
use super::sources::Sources;
use crate::chunk_index::{Foresight, Plan, Upcoming};
use crate::messages::{Event, Shared, spawn};

/// The body of the planner's thread. Waits for the order and the number of the first sample, then plans a batch of
/// `batch` samples for each request.
///
/// Planning a batch of thousands of small samples takes milliseconds. So a second thread plans the next batch at the
/// same time, if it was requested already.
pub(super) fn plan_batches(start: &Receiver<Start>, batch: u64, shared: &Shared, requests: &Receiver<()>) {
    let Ok((order, first)) = start.recv() else { return };
    let mut foresight = Foresight::new(&shared.chunk_index, order, first, |k| k + batch);
    let mut upcoming = || foresight.next(&shared.chunk_index);
    let sources = Arc::new(Sources::new(&shared.chunk_index));
    let send = |plan: Box<Plan>| shared.events.send(Event::Planned(plan)).is_ok();
    let (to_second, given) = bounded::<Upcoming>(1);
    let (planned, of_second) = bounded(1);
    let body = {
        let (shared, sources) = (shared.clone(), Arc::clone(&sources));
        move || {
            given.iter().all(|upcoming| planned.send(plan(&shared, &sources, upcoming)).is_ok());
        }
    };
    // Without the second thread, batches are planned one after the other.
    let second = spawn("plan2", shared.events.clone(), body).ok();
    for () in requests {
        if shared.stopped() {
            continue;
        }
        let first = upcoming();
        let has_second = second.is_some() && requests.try_recv().is_ok() && to_second.send(upcoming()).is_ok();
        if !send(plan(shared, &sources, first)) {
            break;
        }
        // A second thread that died sends no plan. The scheduler hears of its death from the thread itself.
        if has_second && !of_second.recv().is_ok_and(send) {
            break;
        }
    }
    drop((to_second, of_second));
    let _ = second.map(std::thread::JoinHandle::join);
}

fn plan(shared: &Shared, sources: &Sources, upcoming: Upcoming) -> Box<Plan> {
    let samples = upcoming.samples.len();
    let mut plan = Box::new(shared.chunk_index.plan_upcoming(upcoming));
    plan.batch.names = sources.names(&plan.batch.index, samples);
    plan
}
