//! The planned batches, in order. A batch is *served* with a chunk when its jobs for this chunk are handed out.

use std::collections::VecDeque;

use dali_zarr_kernels::{Job, Layout, Op, Source};

use super::chunk_table::{Chunk, ChunkState};
use crate::assemble::is_copy;
use crate::batch::DeviceBuffers;
use crate::dtype::DType;
use crate::error::Error;
use crate::memory::HostBuffer;
use crate::messages::{Assembly, Handle, Served};
use crate::plan::BatchPlan;

/// A batch that was planned and not delivered yet.
pub(super) struct Planned {
    pub plan: BatchPlan,
    /// The chunk of each use in the plan.
    pub handles: Vec<Handle>,
    /// Addresses of its outputs. Empty until the batch is active.
    pub outputs: Vec<u64>,
    pub host: Vec<HostBuffer>,
    pub lent: Option<DeviceBuffers>,
    /// Uses that have not run yet. Padding and the index output count as one use each.
    pub remaining: u32,
    pub error: Option<Error>,
}

impl Planned {
    /// Whether it has memory for its outputs.
    pub fn active(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// The event after which its outputs may be written, if there is one.
    pub fn ready(&self) -> Option<u64> {
        self.lent.as_ref().map(|l| l.ready).filter(|&event| event != 0)
    }
}

/// Where the jobs of a chunk read their elements.
#[derive(Clone, Copy)]
pub(super) enum JobSource {
    /// The decoded chunk at this address, whose bytes lie in this order.
    Slot(u64, Layout),
    /// The chunk is missing: its jobs write the fill value.
    Missing,
}

/// The batches that are planned and not delivered.
#[derive(Default)]
pub(super) struct Batches {
    /// Number of the first batch in `list`.
    pub first: u64,
    pub list: VecDeque<Planned>,
    /// How many of `list` are active. They are the first ones.
    pub active: usize,
}

impl Batches {
    /// The number of the first batch that isn't active.
    pub fn active_end(&self) -> u64 {
        self.first + self.active as u64
    }

    /// The batch of this number. `None` after it was delivered.
    fn get(&self, number: u64) -> Option<&Planned> {
        self.list.get(number.wrapping_sub(self.first) as usize)
    }

    /// As [`Self::get`], mutable.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Planned> {
        self.list.get_mut(number.wrapping_sub(self.first) as usize)
    }

    /// Adds the jobs of a chunk's active users to `assembly`, for `most` users at most. Returns how many users were
    /// served. Users whose batch was delivered with an error are dropped.
    pub fn serve(&mut self, chunk: &mut Chunk, from: JobSource, most: usize, assembly: &mut Assembly) -> usize {
        let end = self.active_end();
        let n = chunk.users.iter().take(most).take_while(|(number, _)| *number < end).count();
        let mut served = 0;
        for &(number, i) in &chunk.users[..n] {
            let Some(batch) = self.get(number) else { continue };
            let range = batch.plan.uses[i as usize].jobs.clone();
            assembly.jobs.extend(batch.plan.jobs[range].iter().map(|job| addressed(job, &batch.outputs, from)));
            assembly.serves(number, batch.ready());
            chunk.serving.push(number);
            served += 1;
        }
        chunk.users.drain(..n);
        served
    }

    /// Fails the active batches that need a chunk which failed.
    pub fn fail(&mut self, chunk: &mut Chunk) {
        let ChunkState::Failed(error) = &chunk.state else { return };
        let end = self.active_end();
        let n = chunk.users.iter().take_while(|(number, _)| *number < end).count();
        for &(number, _) in &chunk.users[..n] {
            let Some(batch) = self.get_mut(number) else { continue };
            batch.error.get_or_insert_with(|| error.clone());
            batch.remaining -= 1;
        }
        chunk.users.drain(..n);
    }

    /// Counts uses whose jobs have run.
    pub fn served(&mut self, served: &[Served]) {
        for Served { batch, uses } in served {
            if let Some(batch) = self.get_mut(*batch) {
                batch.remaining -= uses;
            }
        }
    }
}

/// A planned job with the addresses of the outputs and of the decoded chunk filled in.
pub(super) fn addressed(job: &Job, outputs: &[u64], from: JobSource) -> Job {
    let mut job = *job;
    job.dst += outputs[job.reserved as usize];
    job.reserved = 0;
    match from {
        JobSource::Slot(base, layout) => {
            job.src += base;
            job.arrange(base, layout);
        }
        JobSource::Missing => {
            job.source = Source::Fill as u32;
            job.src = 0;
        }
    }
    job
}

/// Whether `jobs`, all of one batch for one chunk of `decoded` bytes, are a single copy of the whole chunk to one
/// place. Then the CPU may decode the chunk there.
pub(super) fn is_whole_copy(jobs: &[Job], ops: &[Op], decoded: usize) -> bool {
    let [job] = jobs else { return false };
    let op = &ops[job.op as usize];
    let size = DType::ALL[op.dst_dtype as usize].size();
    let contiguous = job.ndim == 1
        && job.src == 0
        && job.dst_stride[0] == 1
        && job.src_stride[0] == 1
        && job.extent[0] as usize * size == decoded;
    contiguous && is_copy(op) && op.swap == 0
}
