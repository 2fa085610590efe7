//! Plans the batches that the scheduler asks for, in order.

use std::sync::Arc;

use crossbeam_channel::{Receiver, bounded};

use super::progress::Start;
use crate::chunk_index::{Foresight, Plan, Sources, Upcoming};
use crate::messages::{Event, Shared, spawn};
use dali_zarr_samples::order::Pushes;

/// The body of the planner's thread. Waits for the order and the number of the first sample, then plans a batch of
/// `batch` samples for each request. With `pushes` it plans what the caller pushes, and waits for it.
///
/// Planning a batch of thousands of small samples takes milliseconds. So a second thread plans the next batch at the
/// same time, if it was requested already and its samples are known.
pub(super) fn plan_batches(
    start: &Receiver<Start>,
    batch: u64,
    pushes: Option<Arc<Pushes>>,
    shared: &Shared,
    requests: &Receiver<()>,
) {
    let Ok((mut order, first)) = start.recv() else { return };
    let foresight = match pushes {
        None => {
            shared.bad.begins(&order);
            Foresight::new(&shared.chunk_index, order, first, move |k| k + batch)
        }
        Some(pushes) => Foresight::over(&shared.chunk_index, &mut order, pushes),
    };
    let mut foresight = foresight.without(&shared.bad);
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
    // Requests that were received and not answered.
    let mut owed = 0usize;
    loop {
        if owed == 0 {
            if requests.recv().is_err() {
                break;
            }
            owed = 1;
        }
        if shared.stopped() {
            owed = 0;
            continue;
        }
        // Without a batch there is none any more: the reader is being dropped, and its scheduler asks for nothing.
        let Some(first) = foresight.next(&shared.chunk_index, true) else {
            owed = 0;
            continue;
        };
        owed += requests.try_iter().count();
        owed -= 1;
        let other = (owed > 0 && second.is_some()).then(|| foresight.next(&shared.chunk_index, false)).flatten();
        let has_second = other.is_some_and(|other| to_second.send(other).is_ok());
        owed -= usize::from(has_second);
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
