//! The planned batches, in order, and what serving them with a chunk means.

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
    /// The chunks of the plan's uses.
    pub handles: Vec<Handle>,
    /// Addresses of its outputs; empty until it gets them.
    pub outputs: Vec<u64>,
    pub host: Vec<HostBuffer>,
    pub lent: Option<DeviceBuffers>,
    /// Uses (and pads, and the index) that haven't been served.
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

/// Where the jobs that a chunk serves take their elements from.
#[derive(Clone, Copy)]
pub(super) enum JobSource {
    /// The decoded chunk at this address, with its bytes in this order.
    Slot(u64, Layout),
    /// Nothing: it is missing, which makes its jobs write the fill value.
    Missing,
}

/// See the module.
#[derive(Default)]
pub(super) struct Batches {
    /// Number of the first batch in `list`.
    pub first: u64,
    pub list: VecDeque<Planned>,
    /// How many of `list`, from the first on, are active.
    pub active: usize,
}

impl Batches {
    /// The number of the first batch that isn't active.
    pub fn active_end(&self) -> u64 {
        self.first + self.active as u64
    }

    /// A batch, unless it was delivered.
    fn get(&self, number: u64) -> Option<&Planned> {
        self.list.get(number.wrapping_sub(self.first) as usize)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Planned> {
        self.list.get_mut(number.wrapping_sub(self.first) as usize)
    }

    /// Hands the jobs of a chunk's active users to `assembly`; `most` users at the most. How many there were. Users that failed with
    /// everything else are forgotten.
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

    /// Tells a chunk's active users that it can't be had.
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

    /// Takes note of what was served.
    pub fn served(&mut self, served: &[Served]) {
        for Served { batch, uses } in served {
            if let Some(batch) = self.get_mut(*batch) {
                batch.remaining -= uses;
            }
        }
    }
}

/// A planned job with its addresses: of the outputs, and of the decoded chunk.
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

/// Whether these jobs, all that a batch does with a chunk of `decoded` bytes, are one that copies the whole chunk as it is
/// to one place: then the CPU may decode it there.
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
