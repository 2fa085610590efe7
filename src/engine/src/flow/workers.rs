//! Threads that take work of one kind, each the next that there is.

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::spawn;
use super::tasks::Shared;
use crate::error::Result;

/// See the module. Dropping it lets them finish what they were given, and waits.
pub(super) struct Workers<W> {
    work: Option<Sender<W>>,
    threads: Vec<JoinHandle<()>>,
}

impl<W: Send + 'static> Workers<W> {
    /// Starts `count` threads with this name and a number, each of which does what `body` gives, until no more work can come.
    ///
    /// # Errors
    /// If the system refuses to start a thread, and those of `body`.
    pub fn new<B: FnOnce(Receiver<W>) + Send + 'static>(
        name: &str,
        count: usize,
        shared: &Shared,
        mut body: impl FnMut() -> Result<B>,
    ) -> Result<Self> {
        let (work, receiver) = unbounded();
        // It waits for the threads that were started, if one can't be.
        let mut all = Self { work: Some(work), threads: Vec::new() };
        for i in 0..count {
            let (body, receiver) = (body()?, receiver.clone());
            all.threads.push(spawn(&format!("{name}-{i}"), shared.events.clone(), move || body(receiver))?);
        }
        Ok(all)
    }

    /// Gives work to the next thread that is free.
    pub fn send(&self, work: W) {
        // The receivers live as long as the threads, which end only when `work` is dropped (a panic is reported apart).
        let _ = self.work.as_ref().expect("until dropped").send(work);
    }

    /// Whether all work was taken by a thread.
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
