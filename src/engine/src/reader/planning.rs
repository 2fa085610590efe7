//! Plans the batches that the scheduler asks for, in order.

use std::panic::resume_unwind;
use std::thread;

use crossbeam_channel::{Receiver, bounded};

use super::progress::Start;
use super::sources::Sources;
use crate::chunk_index::Plan;
use crate::messages::{Event, Shared};
use crate::order::Sample;

/// The body of the planner's thread: plans a batch of so many samples for each request, once the first sample is known.
///
/// A batch of thousands of small samples takes milliseconds. So a second thread plans the next batch meanwhile, if that is asked
/// for already.
pub(super) fn plan_batches(start: &Receiver<Start>, batch: u64, shared: &Shared, requests: &Receiver<()>) {
    let Ok((mut order, mut next)) = start.recv() else { return };
    let mut samples = || -> Vec<Sample> {
        let first = next;
        next += batch;
        (first..next).map(|k| order.sample(k)).collect()
    };
    let sources = Sources::new(&shared.chunk_index);
    let plan = |samples: &[Sample]| {
        let mut plan = Box::new(shared.chunk_index.plan(samples));
        plan.batch.names = sources.names(&plan.batch.index, samples.len());
        plan
    };
    let send = |plan: Box<Plan>| shared.events.send(Event::Planned(plan)).is_ok();
    thread::scope(|scope| {
        let (to_second, given) = bounded::<Vec<Sample>>(1);
        let (planned, of_second) = bounded(1);
        let body = move || given.iter().map(|samples| plan(&samples)).all(|plan| planned.send(plan).is_ok());
        // Without it, batches are planned one after the other.
        let second = thread::Builder::new().name("dali-zarr-plan2".to_owned()).spawn_scoped(scope, body).ok();
        for () in requests {
            if shared.stopped() {
                continue;
            }
            let first = samples();
            let has_second = second.is_some() && requests.try_recv().is_ok() && to_second.send(samples()).is_ok();
            if !send(plan(&first)) {
                return;
            }
            if has_second {
                // Nothing comes if it died.
                let Ok(plan) = of_second.recv() else { break };
                if !send(plan) {
                    return;
                }
            }
        }
        drop(to_second);
        if let Some(Err(panic)) = second.map(|second| second.join()) {
            resume_unwind(panic);
        }
    });
}
