//! Work for the decode threads.

use dali_zarr_kernels::{Job, Layout};

use super::{Handle, Payload};
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::Lease;
use dali_zarr_samples::plan::ChunkId;

/// Decodes on the CPU for the scheduler, and assembles batches that are delivered there.
pub(crate) trait Decode: Send {
    /// Starts a task. [`crate::messages::Event::Decoded`] follows.
    fn run(&self, task: Task);
}

/// Uses of chunks by one batch whose jobs have been handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// The batch's number in the reader's sequence.
    pub batch: u64,
    /// Number of uses.
    pub uses: u32,
}

/// Jobs to be run, and the uses that are served when the jobs have run.
#[derive(Default)]
pub(crate) struct Assembly {
    pub jobs: Vec<Job>,
    pub served: Vec<Served>,
    /// Raw `CUevent`s after which the outputs may be written.
    pub after: Vec<u64>,
}

impl Assembly {
    /// Records that the jobs just added serve one use of a batch. Its outputs may be written after the event `ready`
    /// (`None`: at once).
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
    /// Its encoded bytes. `None`: it is uncompressed and was read to `decoded`, so nothing is decoded.
    pub encoded: Option<Payload>,
    /// Where its decoded bytes go.
    pub decoded: Lease,
    /// The chunk's jobs, as a range in [`Assembly::jobs`]. They run once the chunk is decoded.
    pub jobs: std::ops::Range<usize>,
}

/// Work for one decode thread: chunks to be decoded, their jobs, and jobs that need no decoding.
#[derive(Default)]
pub(crate) struct Task {
    pub items: Vec<Item>,
    pub assembly: Assembly,
    /// Jobs of chunks that were decoded before, or are missing. They run after all items, also when items fail.
    pub ready_jobs: std::ops::Range<usize>,
    /// Chunks whose memory the ready jobs read.
    pub pinned: Vec<Handle>,
}

impl Task {
    /// Ends the task. `results` has the result of each item, in the order of the items.
    pub fn ended(self, results: impl IntoIterator<Item = Result<Layout>>) -> TaskDone {
        let mut results = results.into_iter();
        let item = |Item { handle, encoded, decoded, .. }: Item| {
            let result = results.next().expect("each item has a result");
            ItemDone { outcome: Outcome { handle, result }, encoded, decoded }
        };
        let items = self.items.into_iter().map(item).collect();
        TaskDone { items, served: self.assembly.served, pinned: self.pinned }
    }
}

/// The end of an [`Item`]: its result, and its memory.
pub(crate) struct ItemDone {
    pub outcome: Outcome,
    pub encoded: Option<Payload>,
    pub decoded: Lease,
}

/// The end of a [`Task`].
pub(crate) struct TaskDone {
    pub items: Vec<ItemDone>,
    pub served: Vec<Served>,
    pub pinned: Vec<Handle>,
}

/// The result of decoding one chunk: the order of its decoded bytes in memory, or the error.
pub(crate) struct Outcome {
    pub handle: Handle,
    pub result: Result<Layout>,
}
