//! Serving batches with chunks: the jobs of a use get their addresses and are handed out, or the use fails or is let go.

use dali_zarr_base::error::Error;
use dali_zarr_kernels::{Job, Layout, Source};

use super::{Batches, PendingBatch};
use crate::messages::{Assembly, Served};
use crate::scheduler::chunks::{Chunk, ChunkState};

/// Where the jobs of a chunk read their elements.
#[derive(Clone, Copy)]
pub(in crate::scheduler) enum JobSource {
    /// The decoded chunk at this address. Its bytes are in this order.
    Slot(u64, Layout),
    /// The chunk is missing: its jobs write the fill value.
    Missing,
    /// The chunk is bad: its jobs write what the operations from this number on make of it.
    Bad { ops: u32 },
}

impl Batches {
    /// Adds the jobs of a chunk's active users to `assembly`. Returns how many users were served. Users whose batch was
    /// delivered with an error are dropped.
    pub fn serve(&mut self, chunk: &mut Chunk, from: JobSource, assembly: &mut Assembly) -> usize {
        let n = chunk.uses_before(self.active_end());
        let mut served = 0;
        for at in 0..n {
            let (number, i) = chunk.users()[at];
            served += usize::from(self.serve_use(chunk, from, number, i, assembly));
        }
        chunk.remove_uses(n);
        served
    }

    /// As [`Self::serve`], for the use of one batch.
    pub fn serve_batch(&mut self, chunk: &mut Chunk, from: JobSource, number: u64, assembly: &mut Assembly) -> usize {
        let of_batch = chunk.take_use_of(number);
        of_batch.map_or(0, |i| usize::from(self.serve_use(chunk, from, number, i, assembly)))
    }

    /// Adds the jobs of one use to `assembly`. Returns whether its batch is there.
    fn serve_use(&self, chunk: &mut Chunk, from: JobSource, number: u64, i: u32, assembly: &mut Assembly) -> bool {
        let Some(batch) = self.get(number) else { return false };
        let range = batch.plan.uses[i as usize].jobs.clone();
        let first = assembly.jobs.len();
        assembly.jobs.extend_from_slice(&batch.plan.jobs[range]);
        assembly.jobs[first..].iter_mut().for_each(|job| set_addresses(job, &batch.outputs, from));
        assembly.serves(number, batch.ready());
        chunk.serves(number);
        true
    }

    /// Takes back what a chunk served to these batches: it was not decoded, so its jobs did not run.
    pub fn take_back(&mut self, chunk: &mut Chunk, serving: &[u64]) {
        for &number in serving {
            let Some(batch) = self.get_mut(number) else { continue };
            let of_chunk = batch.plan.uses.iter().position(|u| u.chunk == chunk.id());
            if let Some(i) = of_chunk {
                batch.remaining += 1;
                chunk.need_before(number, i as u32);
            }
        }
    }

    /// Removes the uses of a bad chunk by active batches, which will be planned again without it.
    pub fn let_go(&mut self, chunk: &mut Chunk) {
        let n = chunk.uses_before(self.active_end());
        for &(number, _) in &chunk.users()[..n] {
            if let Some(batch) = self.get_mut(number) {
                batch.remaining -= 1;
                let is_first = !std::mem::replace(&mut batch.needs_bad, true);
                self.needing_bad += usize::from(is_first);
            }
        }
        chunk.remove_uses(n);
    }

    /// If the chunk failed, fails the active batches that need it.
    pub fn fail(&mut self, chunk: &mut Chunk) {
        let ChunkState::Failed(error) = chunk.state() else { return };
        let n = chunk.uses_before(self.active_end());
        for &(number, _) in &chunk.users()[..n] {
            self.fail_batch(number, error);
            if let Some(batch) = self.get_mut(number) {
                batch.remaining -= 1;
            }
        }
        chunk.remove_uses(n);
    }

    /// Fails the batch with this number, unless it was delivered or has failed already.
    pub fn fail_batch(&mut self, number: u64, error: &Error) {
        if let Some(batch) = self.get_mut(number) {
            batch.error.get_or_insert_with(|| error.clone());
        }
    }

    /// Counts uses whose jobs have run.
    pub fn served(&mut self, served: &[Served]) {
        for Served { batch, uses } in served {
            if let Some(batch) = self.get_mut(*batch) {
                batch.remaining -= uses;
            }
        }
    }

    /// Adds the jobs between elements of a batch whose other jobs have run to `assembly`, so that they count as `uses` uses. Returns false
    /// if there is no such batch.
    pub fn serve_between(&mut self, uses: u32, assembly: &mut Assembly) -> bool {
        let is_due = |batch: &PendingBatch| {
            batch.has_between && batch.remaining == 0 && batch.error.is_none() && !batch.needs_bad
        };
        let mut active = (self.first..).zip(self.list.iter_mut().take(self.active));
        let Some((number, batch)) = active.find(|(_, batch)| is_due(batch)) else { return false };
        (batch.has_between, batch.remaining) = (false, uses);
        let first = assembly.jobs.len();
        assembly.jobs.extend_from_slice(&batch.plan.between);
        assembly.jobs[first..].iter_mut().for_each(|job| {
            job.src += batch.outputs[job.output as usize];
            set_addresses(job, &batch.outputs, JobSource::Slot(0, Layout::NONE));
        });
        let ready = batch.ready();
        (0..uses).for_each(|_| assembly.serves(number, ready));
        true
    }

    /// Sets in how many parts the jobs between elements of a batch run.
    pub fn set_remaining(&mut self, number: u64, parts: u32) {
        if let Some(batch) = self.get_mut(number) {
            batch.remaining = parts;
        }
    }
}

/// Fills the addresses of the outputs and of the decoded chunk in a planned job.
pub(in crate::scheduler) fn set_addresses(job: &mut Job, outputs: &[u64], from: JobSource) {
    job.dst += outputs[job.output as usize];
    job.output = 0;
    match from {
        JobSource::Slot(base, layout) => {
            job.src += base;
            job.arrange(base, layout);
        }
        JobSource::Missing => {
            job.source = Source::Fill as u32;
            job.src = 0;
        }
        JobSource::Bad { ops } => {
            job.op += ops;
            job.source = Source::Fill as u32;
            job.src = 0;
        }
    }
}
