//! The end of a simulated reader, at any moment: its owner drops it while work is under way.
//!
//! The owner sets the flag `stop` and sends [`Event::Stop`]. From the flag on, threads skip queued work and end only what
//! they have begun. Until the scheduler comes to the event, it still handles others and hands out work. After it the
//! scheduler is dropped, and its workers with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crossbeam_channel::unbounded;

use super::{SimulatedWork, Simulation, World};
use crate::messages::Event;
use crate::scheduler::Finished;
use dali_zarr_base::error::{Error, Result};

/// How the threads of a reader and the device memory of chunks came to their ends.
#[derive(Default)]
pub(super) struct Ending {
    freed: AtomicBool,
    /// Whether the memory was freed while there were threads.
    freed_early: AtomicBool,
}

/// Takes the place of the device memory that chunks lie in.
pub(super) struct Block(pub Arc<Ending>);

impl Drop for Block {
    fn drop(&mut self) {
        self.0.freed.store(true, Relaxed);
    }
}

/// Takes the place of threads that use the memory.
pub(super) struct Threads(pub Arc<Ending>);

impl Drop for Threads {
    fn drop(&mut self) {
        if self.0.freed.load(Relaxed) {
            self.0.freed_early.store(true, Relaxed);
        }
    }
}

/// How much is heard before [`Event::Stop`].
pub(crate) struct Late {
    /// Pieces of work that end while the scheduler goes on.
    pub handled: u64,
    /// Pieces of work whose events the scheduler hears in the same turn as [`Event::Stop`], before it.
    pub heard: u64,
}

impl Simulation {
    /// Drops the reader. Returns the batches that were finished and not taken.
    ///
    /// # Errors
    /// If the scheduler goes on after [`Event::Stop`], or frees memory before its workers have ended, or never.
    pub fn shut_down(mut self, world: &mut impl World, late: &Late) -> Result<Vec<Finished>> {
        self.stop.store(true, Relaxed);
        self.skip();
        for _ in 0..late.handled {
            if !self.step(world)? {
                break;
            }
            self.scheduler.pump();
            self.skip();
        }
        let (sender, events) = unbounded();
        let mut unheard = None;
        for ended in 0.. {
            if ended == late.heard || (unheard.is_none() && self.under_way.is_empty()) {
                let _ = sender.send(Event::Stop);
                unheard = Some(sender.len());
            }
            let Some(((end, _), work)) = self.under_way.pop_first() else { break };
            self.now = end;
            let (ends, then) = match work {
                SimulatedWork::Plan => (vec![Event::Planned(Box::new(world.plan()))], None),
                SimulatedWork::Lend(_) => continue,
                work => world.end(work, &self.scheduler)?,
            };
            ends.into_iter().for_each(|event| drop(sender.send(event)));
            if let Some(work) = then {
                self.start(world, work)?;
            }
        }
        // If the scheduler missed the event, it would wait for the next one without end.
        let unheard = sender.len() - unheard.unwrap_or(0);
        drop(sender);
        self.scheduler.run(&events);
        if events.len() != unheard {
            return Err(Error::runtime(format!(
                "expected {unheard} events after the last, but found {}",
                events.len()
            )));
        }
        if self.ending.freed_early.load(Relaxed) {
            return Err(Error::runtime("device memory was freed before the threads ended"));
        }
        if !self.ending.freed.load(Relaxed) {
            return Err(Error::runtime("the scheduler is gone, but not its device memory"));
        }
        // Threads that had queued work drop it, and the channel drops the events that nobody heard.
        drop((events, self.handed_out));
        if self.staging.strong_count() > 0 {
            return Err(Error::runtime("the reader is gone, but somebody keeps its host memory"));
        }
        Ok(self.finished.try_iter().collect())
    }

    /// Lets the threads skip all work that they have not begun.
    fn skip(&self) {
        self.handed_out.try_iter().for_each(drop);
    }
}
