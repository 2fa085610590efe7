//! A pool of threads with one queue.
//!
//! `unsafe` is allowed here: a system call sets the priority of a thread.

#![allow(unsafe_code)]

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{Event, Shared};
use dali_zarr_base::error::{Error, Result};

/// Starts a named thread. If it panics, the scheduler gets [`Event::Died`].
pub(crate) fn spawn(
    name: &str,
    events: crossbeam_channel::Sender<Event>,
    body: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>> {
    let label = name.to_owned();
    std::thread::Builder::new()
        .name(format!("dali-zarr-{name}"))
        .spawn(move || {
            dali_zarr_base::nvtx::name_thread(&format!("dali-zarr-{label}"));
            if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
                // The receiver may be gone already: then nobody waits for this thread's work.
                let _ = events.send(Event::Died(Error::panicked(&format!("in thread {label}"), &*panic)));
            }
        })
        .map_err(|e| Error::runtime(format!("the system refuses to start a thread ({name}): {e}")).caused_by(e))
}

/// The `nice` value (see sched(7)) of threads that work beside a model: a low priority.
const BACKGROUND: i32 = 10;

/// Lets the calling thread leave the cores to the training process's own threads, above all the one that launches kernels.
fn work_in_background() {
    // SAFETY: it changes a number of the calling thread alone. If the system refuses, nothing changes.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, BACKGROUND) };
}

/// A pool of threads with one queue. Dropping it waits until all work that was queued is done.
pub(crate) struct Workers<W> {
    work: Option<Sender<W>>,
    threads: Vec<JoinHandle<()>>,
}

impl<W: Send + 'static> Workers<W> {
    /// Starts `count` threads, named `name` and a number. Each runs a closure that `body` makes, until the queue is
    /// closed. With `background` they have a low priority, so that the threads of the training process get the cores
    /// first.
    ///
    /// # Errors
    /// If the system refuses to start a thread, or if `body` fails.
    pub fn new<B: FnOnce(Receiver<W>) + Send + 'static>(
        name: &str,
        count: usize,
        background: bool,
        shared: &Shared,
        mut body: impl FnMut() -> Result<B>,
    ) -> Result<Self> {
        let (work, receiver) = unbounded();
        // If a thread can't be started, dropping `all` waits for the others.
        let mut all = Self { work: Some(work), threads: Vec::new() };
        for i in 0..count {
            let (body, receiver) = (body()?, receiver.clone());
            all.threads.push(spawn(&format!("{name}-{i}"), shared.events.clone(), move || {
                if background {
                    work_in_background();
                }
                body(receiver);
            })?);
        }
        Ok(all)
    }

    /// Queues work for the next free thread.
    pub fn send(&self, work: W) {
        // The receivers live as long as the threads, which end only when `work` is dropped. (A panic of a thread is
        // reported to the scheduler by [`spawn`].)
        let _ = self.work.as_ref().expect("until dropped").send(work);
    }

    /// Whether the queue is empty.
    #[cfg(test)]
    pub fn is_taken(&self) -> bool {
        self.work.as_ref().is_none_or(Sender::is_empty)
    }
}

impl<W> Drop for Workers<W> {
    fn drop(&mut self) {
        self.work = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dali_zarr_base::error::Code;

    #[test]
    fn a_thread_that_panics_is_a_bug_that_the_scheduler_hears_of() {
        let (events, received) = unbounded();
        spawn("test", events, || panic!("too bad")).unwrap().join().unwrap();
        let Ok(Event::Died(error)) = received.recv() else { panic!("no error arrived") };
        assert_eq!((error.code(), error.message()), (Code::Internal, "internal error in thread test: too bad"));
    }
}
