//! A batch between its plan and its delivery.

use dali_zarr_base::error::Error;
use dali_zarr_base::memory::HostBuffer;
use dali_zarr_samples::batch::DeviceBuffers;
use dali_zarr_samples::order::Sample;
use dali_zarr_samples::plan::BatchPlan;

use crate::chunk_index::Asked;
use crate::messages::Handle;

/// A batch that was planned and not delivered yet.
pub(in crate::scheduler) struct PendingBatch {
    pub(in crate::scheduler) plan: BatchPlan,
    /// Uses of chunks that may be decoded before the batch is active: the use in the plan, and the chunk. Empty when the
    /// batch is active.
    pub(in crate::scheduler) known: Vec<(u32, Handle)>,
    /// Addresses of its outputs. Empty until the batch is active.
    pub(in crate::scheduler) outputs: Vec<u64>,
    /// Delivery to the CPU: the memory of its outputs.
    pub(super) host: Vec<HostBuffer>,
    /// Delivery to a GPU: the device memory of its outputs, which the host program has lent.
    pub(super) lent: Option<DeviceBuffers>,
    /// Number of uses. Padding and the index output count as one use each.
    pub(super) uses: u32,
    /// Whether the jobs between elements still have to run, after all uses.
    pub(super) has_between: bool,
    /// Number of uses whose jobs have not run yet.
    pub(super) remaining: u32,
    /// The error with which it will be delivered.
    pub(super) error: Option<Error>,
    /// If samples that need bad chunks are replaced: the samples that were asked for.
    pub(super) asked: Asked,
    /// If samples may be replaced: those of the plan.
    pub(in crate::scheduler) samples: Vec<Sample>,
    /// Whether a sample of it needs a bad chunk. Then it is planned again when all its jobs have run.
    pub(super) needs_bad: bool,
    /// How often it was planned again.
    pub(in crate::scheduler) replans: u32,
}

impl PendingBatch {
    /// Whether it has memory for its outputs.
    pub(super) fn active(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Returns the `CUevent` after which its outputs may be written, if there is one.
    pub(in crate::scheduler) fn ready(&self) -> Option<u64> {
        self.lent.as_ref().map(|l| l.ready).filter(|&event| event != 0)
    }

    /// Shortens its outputs to those of its samples.
    pub(super) fn shorten(&mut self) {
        self.host.iter_mut().zip(&self.plan.bytes).for_each(|(buffer, &bytes)| buffer.shorten(bytes));
    }

    /// Whether it waits for other samples.
    pub(super) fn waits_for_samples(&self) -> bool {
        self.needs_bad && self.error.is_none()
    }

    /// Returns how many of its samples took the places of others.
    pub(super) fn replaced(&self) -> u64 {
        self.asked.samples.iter().zip(&self.samples).filter(|(asked, sample)| asked != sample).count() as u64
    }

    /// Whether no part of its outputs is lent.
    pub(in crate::scheduler) fn is_whole(&self) -> bool {
        self.host.iter().all(HostBuffer::is_whole)
    }

    /// Writes `bytes` to the last output, if it lies in host memory.
    pub(in crate::scheduler) fn fill_last_output(&mut self, bytes: &[u8]) {
        if let Some(buffer) = self.host.last_mut() {
            buffer.fill_from(bytes);
        }
    }
}
