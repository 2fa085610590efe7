//! The memory of outputs: where it comes from, and parts of it that chunks are decoded to without a slot.

use std::collections::VecDeque;
use std::sync::Arc;

use dali_zarr_base::memory::{Lease, Pool};
use dali_zarr_kernels::{Job, Op};
use dali_zarr_samples::assemble::copied_bytes;
use dali_zarr_samples::batch::DeviceBuffers;

use super::Batches;
use crate::scheduler::chunks::{OutputPart, OutputPlace};

/// The memory for outputs of batches.
pub(super) enum OutputMemory {
    /// Host memory: a pool for each output.
    Pools(Vec<Arc<Pool>>),
    /// Device memory that the host program has lent.
    Lent(VecDeque<DeviceBuffers>),
}

impl Batches {
    /// Adds device memory for the outputs of one batch, which the host program lends.
    pub fn lend(&mut self, buffers: DeviceBuffers) {
        if let OutputMemory::Lent(lent) = &mut self.memory {
            lent.push_back(buffers);
        }
    }

    /// Frees buffers of outputs that wait to be used again.
    pub fn shrink(&self) {
        if let OutputMemory::Pools(pools) = &self.memory {
            pools.iter().for_each(|pool| pool.shrink());
        }
    }

    /// Returns the place of a decoded chunk in an output, if the only job of a use copies the whole chunk of `decoded`
    /// bytes. `None` on a GPU while nobody has lent the output.
    pub fn whole_copy(&self, (number, chunk_use): (u64, u32), ops: &[Op], decoded: usize) -> Option<OutputPart> {
        let batch = self.get(number)?;
        let plan = &batch.plan;
        let jobs = &plan.jobs[plan.uses.get(chunk_use as usize)?.jobs.clone()];
        if !is_whole_copy(jobs, ops, decoded) {
            return None;
        }
        let (output, offset) = (jobs[0].output, jobs[0].dst as usize);
        let place = match &self.memory {
            OutputMemory::Lent(_) => OutputPlace::Device(batch.outputs.get(output as usize)? + offset as u64),
            OutputMemory::Pools(_) => OutputPlace::Host { output, offset },
        };
        Some(OutputPart { batch: number, place })
    }

    /// Leases `bytes` bytes of an output in host memory. `None` if some of them are leased already.
    pub fn lend_part(&mut self, part: OutputPart, bytes: usize) -> Option<Lease> {
        let OutputPlace::Host { output, offset } = part.place else { return None };
        self.get_mut(part.batch)?.host.get_mut(output as usize)?.lend(offset, bytes)
    }

    /// Takes the lease of a part of an output back.
    pub fn give_back(&mut self, part: OutputPart, lease: Lease) {
        let OutputPlace::Host { output, .. } = part.place else { return };
        // A batch that was delivered before all its chunks were decoded has failed. Nobody uses its memory again.
        if let Some(buffer) = self.get_mut(part.batch).and_then(|batch| batch.host.get_mut(output as usize)) {
            buffer.give_back(lease);
        }
    }
}

/// Whether `jobs`, all of one batch for one chunk of `decoded` bytes, are a single copy of the whole chunk to one
/// place. Then the chunk may be decoded there.
fn is_whole_copy(jobs: &[Job], ops: &[Op], decoded: usize) -> bool {
    matches!(jobs, [job] if job.src == 0 && copied_bytes(job, &ops[job.op as usize]) == Some(decoded))
}
