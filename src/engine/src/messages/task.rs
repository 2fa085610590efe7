//! Work for the decode threads.

use dali_zarr_kernels::{Job, Layout};

use super::Handle;
use crate::error::Result;
use crate::memory::Span;
use crate::plan::ChunkId;

/// Who decodes on the CPU for the scheduler, and assembles there what is delivered there.
pub(crate) trait Decode: Send {
    /// Starts a task; [`crate::messages::Event::Decoded`] follows.
    fn run(&self, task: Task);
}

/// One use of a chunk by a batch (its number in the reader's sequence), whose jobs have been handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub batch: u64,
    /// How many uses.
    pub uses: u32,
}

/// Jobs, and what it means to batches that they have run.
#[derive(Default)]
pub(crate) struct Assembly {
    pub jobs: Vec<Job>,
    pub served: Vec<Served>,
    /// Raw `CUevent`s after which the outputs may be written.
    pub after: Vec<u64>,
}

impl Assembly {
    /// The jobs that were just added serve one use of a batch, whose outputs may be written after `ready`.
    pub fn serves(&mut self, batch: u64, ready: Option<u64>) {
        match self.served.last_mut() {
            Some(last) if last.batch == batch => last.uses += 1,
            _ => {
                self.served.push(Served { batch, uses: 1 });
                self.after.extend(ready);
            }
        }
    }
}

/// One chunk for a decode thread.
pub(crate) struct Item {
    pub id: ChunkId,
    pub handle: Handle,
    pub encoded: Span,
    pub decoded: Span,
    /// Uncompressed and read to where it belongs: there is nothing to decode.
    pub in_place: bool,
    /// Into [`Assembly::jobs`], to be run once the chunk is decoded.
    pub jobs: std::ops::Range<usize>,
}

/// Work for one decode thread: chunks to be decoded, jobs to be run after them, and jobs that need no decoding.
#[derive(Default)]
pub(crate) struct Task {
    pub items: Vec<Item>,
    pub assembly: Assembly,
    /// Jobs that run after all items, whatever became of them.
    pub ready_jobs: std::ops::Range<usize>,
    /// Chunks whose memory the loose jobs read.
    pub pinned: Vec<Handle>,
}

/// What became of one chunk: the order in which its decoded bytes lie in memory, or why there are none.
pub(crate) struct Outcome {
    pub handle: Handle,
    pub result: Result<Layout>,
}
