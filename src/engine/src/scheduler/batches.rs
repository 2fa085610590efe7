//! The batches in preparation, in order: planned, then active (with memory for their outputs), then delivered. A batch
//! is *served* with a chunk when its jobs for this chunk are handed out.

use std::collections::VecDeque;
use std::sync::Arc;

use dali_zarr_kernels::{Job, Layout, Op, Source};

use super::chunks::{Chunk, ChunkState, OutputPart, OutputPlace};
use super::{BatchAccount, Finished, Rules};
use crate::chunk_index::Asked;
use crate::messages::{Assembly, Handle, Served};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::{HostBuffer, Lease, Pool};
use dali_zarr_samples::assemble::copied_bytes;
use dali_zarr_samples::batch::{Batch, DeviceBuffers};
use dali_zarr_samples::order::Sample;
use dali_zarr_samples::plan::BatchPlan;

/// Limit on planned jobs in memory (208 bytes each). Two batches are always planned, however many jobs they have.
const MAX_PLANNED_JOBS: usize = 1 << 18;

/// A batch that was planned and not delivered yet.
pub(super) struct PendingBatch {
    pub plan: BatchPlan,
    /// Uses of chunks that may be decoded before the batch is active: the use in the plan, and the chunk. Empty when the
    /// batch is active.
    pub known: Vec<(u32, Handle)>,
    /// Addresses of its outputs. Empty until the batch is active.
    pub outputs: Vec<u64>,
    /// Delivery to the CPU: the memory of its outputs.
    host: Vec<HostBuffer>,
    /// Delivery to a GPU: the device memory of its outputs, which the host program has lent.
    lent: Option<DeviceBuffers>,
    /// Number of uses. Padding and the index output count as one use each.
    uses: u32,
    /// Whether the jobs between elements still have to run, after all uses.
    has_between: bool,
    /// Number of uses whose jobs have not run yet.
    remaining: u32,
    /// The error with which it will be delivered.
    error: Option<Error>,
    /// If samples that need bad chunks are replaced: the samples that were asked for.
    asked: Asked,
    /// If samples may be replaced: those of the plan.
    pub samples: Vec<Sample>,
    /// Whether a sample of it needs a bad chunk. Then it is planned again when all its jobs have run.
    needs_bad: bool,
    /// How often it was planned again.
    pub replans: u32,
}

impl PendingBatch {
    /// Whether it has memory for its outputs.
    fn active(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Returns the `CUevent` after which its outputs may be written, if there is one.
    pub fn ready(&self) -> Option<u64> {
        self.lent.as_ref().map(|l| l.ready).filter(|&event| event != 0)
    }

    /// Shortens its outputs to those of its samples.
    fn shorten(&mut self) {
        self.host.iter_mut().zip(&self.plan.bytes).for_each(|(buffer, &bytes)| buffer.shorten(bytes));
    }

    /// Whether it waits for other samples.
    fn waits_for_samples(&self) -> bool {
        self.needs_bad && self.error.is_none()
    }

    /// Returns how many of its samples took the places of others.
    fn replaced(&self) -> u64 {
        self.asked.samples.iter().zip(&self.samples).filter(|(asked, sample)| asked != sample).count() as u64
    }

    /// Whether no part of its outputs is lent.
    pub fn is_whole(&self) -> bool {
        self.host.iter().all(HostBuffer::is_whole)
    }

    /// Writes `bytes` to the last output, if it lies in host memory.
    pub fn fill_last_output(&mut self, bytes: &[u8]) {
        if let Some(buffer) = self.host.last_mut() {
            buffer.fill_from(bytes);
        }
    }
}

/// Where the jobs of a chunk read their elements.
#[derive(Clone, Copy)]
pub(super) enum JobSource {
    /// The decoded chunk at this address. Its bytes are in this order.
    Slot(u64, Layout),
    /// The chunk is missing: its jobs write the fill value.
    Missing,
    /// The chunk is bad: its jobs write what the operations from this number on make of it.
    Bad { ops: u32 },
}

/// The memory for outputs of batches.
enum OutputMemory {
    /// Host memory: a pool for each output.
    Pools(Vec<Arc<Pool>>),
    /// Device memory that the host program has lent.
    Lent(VecDeque<DeviceBuffers>),
}

/// The batches that are planned and not delivered.
pub(super) struct Batches {
    /// Number of the first batch in `list`.
    first: u64,
    list: VecDeque<PendingBatch>,
    /// Number of active batches. They are the first ones in `list`.
    active: usize,
    /// Number of plans that were requested and have not arrived.
    plans_asked: usize,
    /// Number of jobs of all batches in `list`.
    planned_jobs: usize,
    /// Number of batches that were delivered and that the consumer has not taken.
    untaken: usize,
    /// Number of batches that need a bad chunk.
    needing_bad: usize,
    /// Number of samples of delivered batches that took the places of others, and were not counted.
    replaced: u64,
    memory: OutputMemory,
    account: Option<BatchAccount>,
    /// Batches that failed while threads may still write to them. Their memory is kept until the threads have ended.
    failed: Vec<PendingBatch>,
    rules: Rules,
}

impl Batches {
    /// Makes an empty list. Batches are delivered to host memory from `pools`, or to lent device memory if `pools` is
    /// `None`.
    pub fn new(rules: Rules, pools: Option<Vec<Arc<Pool>>>, account: Option<BatchAccount>) -> Self {
        Self {
            first: 0,
            list: VecDeque::new(),
            active: 0,
            plans_asked: 0,
            planned_jobs: 0,
            untaken: 0,
            needing_bad: 0,
            replaced: 0,
            memory: pools.map_or_else(|| OutputMemory::Lent(VecDeque::new()), OutputMemory::Pools),
            account,
            failed: Vec::new(),
            rules,
        }
    }

    // ---- plans ----

    /// Whether to request one more batch from the planner. If true, the request is counted.
    pub fn ask(&mut self) -> bool {
        let plans = self.list.len() + self.plans_asked;
        let jobs = self.planned_jobs + self.plans_asked * self.rules.batch_jobs;
        let enough = plans >= self.rules.max_active + self.rules.lookahead || (plans >= 2 && jobs >= MAX_PLANNED_JOBS);
        self.plans_asked += usize::from(!enough);
        !enough
    }

    /// Returns the number of the next batch to be planned.
    pub fn next_number(&self) -> u64 {
        self.first + self.list.len() as u64
    }

    /// Records the samples that were asked for as a planned batch, and those of its plan.
    pub fn ask_for(&mut self, number: u64, asked: Asked, samples: Vec<Sample>) {
        if let Some(batch) = self.get_mut(number) {
            (batch.asked, batch.samples) = (asked, samples);
        }
    }

    /// Records that a chunk may be decoded before the batches that need it and aren't active yet.
    pub fn know(&mut self, chunk: &Chunk, handle: Handle) {
        let end = self.active_end();
        for &(number, i) in chunk.users().iter().filter(|user| user.0 >= end) {
            if let Some(batch) = self.get_mut(number)
                && (i as usize) < batch.plan.uses.len()
                && !batch.known.contains(&(i, handle))
            {
                batch.known.push((i, handle));
            }
        }
    }

    /// Returns the next batch that needs a bad chunk and whose jobs have all run, and what was asked for.
    pub fn to_be_planned_again(&self) -> Option<(u64, Asked)> {
        let mut of = (self.first..).zip(self.list.iter().take(if self.needing_bad > 0 { self.active } else { 0 }));
        let found = of.find(|(_, batch)| batch.waits_for_samples() && batch.remaining == 0);
        found.map(|(number, batch)| (number, batch.asked.clone()))
    }

    /// Gives an active batch another plan, with these samples.
    pub fn plan_again(
        &mut self,
        number: u64,
        plan: BatchPlan,
        known: Vec<(u32, Handle)>,
        uses: u32,
        samples: Vec<Sample>,
    ) {
        let Some(batch) = self.list.get_mut(number.wrapping_sub(self.first) as usize) else { return };
        self.needing_bad -= usize::from(std::mem::take(&mut batch.needs_bad));
        self.planned_jobs += plan.jobs.len() + plan.between.len();
        self.planned_jobs -= batch.plan.jobs.len() + batch.plan.between.len();
        batch.has_between = !plan.between.is_empty();
        (batch.plan, batch.known, batch.samples) = (plan, known, samples);
        (batch.uses, batch.remaining) = (uses, uses);
        batch.replans += 1;
        batch.host.iter_mut().for_each(HostBuffer::lengthen);
        if !batch.has_between {
            batch.shorten();
        }
    }

    /// Adds a planned batch. It is delivered when all its `uses` have run. With an `error` it fails.
    pub fn add(&mut self, plan: BatchPlan, known: Vec<(u32, Handle)>, uses: u32, error: Option<Error>) {
        self.plans_asked -= 1;
        self.planned_jobs += plan.jobs.len() + plan.between.len();
        let has_between = !plan.between.is_empty();
        let (outputs, host) = (Vec::new(), Vec::new());
        self.list.push_back(PendingBatch {
            plan,
            known,
            outputs,
            host,
            lent: None,
            uses,
            has_between,
            remaining: uses,
            error,
            asked: Asked::default(),
            samples: Vec::new(),
            needs_bad: false,
            replans: 0,
        });
    }

    /// Whether the batch after the active ones was requested, but is not planned yet.
    pub fn planner_is_late(&self) -> bool {
        self.plans_asked > 0 && self.list.len() <= self.active
    }

    // ---- active batches ----

    /// Returns the number of the first batch that isn't active.
    pub fn active_end(&self) -> u64 {
        self.first + self.active as u64
    }

    /// Adds device memory for the outputs of one batch, which the host program lends.
    pub fn lend(&mut self, buffers: DeviceBuffers) {
        if let OutputMemory::Lent(lent) = &mut self.memory {
            lent.push_back(buffers);
        }
    }

    /// Activates the next planned batch and returns its number. `None` if there is no batch, or no memory for its
    /// outputs now.
    ///
    /// # Errors
    /// If the system refuses host memory.
    pub fn activate(&mut self) -> Result<Option<u64>> {
        if self.active >= self.list.len() || self.active + self.untaken >= self.rules.max_active {
            return Ok(None);
        }
        let active = self.active + self.untaken;
        if self.account.as_mut().is_some_and(|account| !account.add_to(active)) {
            return Ok(None);
        }
        let batch = &mut self.list[self.active];
        match &mut self.memory {
            OutputMemory::Lent(lent) => {
                let Some(lent) = lent.pop_front() else { return Ok(None) };
                batch.outputs.clone_from(&lent.outputs);
                batch.lent = Some(lent);
            }
            OutputMemory::Pools(pools) => {
                batch.host = pools.iter().map(Pool::take).collect::<Result<_>>()?;
                batch.outputs = batch.host.iter().map(|buffer| buffer.as_ptr() as u64).collect();
                if !batch.has_between {
                    batch.shorten();
                }
            }
        }
        self.active += 1;
        Ok(Some(self.active_end() - 1))
    }

    /// Returns the batch with this number. `None` before it is planned and after it was delivered.
    pub fn get(&self, number: u64) -> Option<&PendingBatch> {
        self.list.get(number.wrapping_sub(self.first) as usize)
    }

    /// Like [`Self::get`], mutable.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut PendingBatch> {
        self.list.get_mut(number.wrapping_sub(self.first) as usize)
    }

    /// The batches with their numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &PendingBatch)> {
        (self.first..).zip(&self.list)
    }

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

    /// Returns the number of uses of the next batch to be delivered; 0 if none is planned.
    pub fn uses_of_next(&self) -> u32 {
        self.list.front().map_or(0, |batch| batch.uses)
    }

    // ---- delivery ----

    /// Returns how many samples of delivered batches took the places of others since the last call.
    pub fn take_replaced(&mut self) -> u64 {
        std::mem::take(&mut self.replaced)
    }

    /// Returns the number of batches that were delivered and that the consumer has not taken.
    pub fn untaken(&self) -> usize {
        self.untaken
    }

    /// Returns how many batches the consumer takes before it takes the batch with this number.
    pub fn due_after(&self, number: u64) -> usize {
        self.untaken + number.saturating_sub(self.first) as usize
    }

    /// Whether no more batches may wait for the consumer.
    pub fn is_full(&self) -> bool {
        self.untaken >= self.rules.max_active
    }

    /// Records that the consumer took a batch.
    pub fn taken(&mut self) {
        self.untaken -= 1;
        let active = self.active + self.untaken;
        if let Some(account) = &mut self.account {
            account.settle(active);
        }
    }

    /// Frees buffers of outputs that wait to be used again.
    pub fn shrink(&self) {
        if let OutputMemory::Pools(pools) = &self.memory {
            pools.iter().for_each(|pool| pool.shrink());
        }
    }

    /// Removes and returns the next batch, if it is finished. If the reader is `broken`, a batch that isn't finished
    /// fails.
    pub fn deliver(&mut self, broken: Option<&Error>) -> Option<Finished> {
        let next = self.list.front()?;
        let ran = next.remaining == 0 && (!next.has_between || next.error.is_some());
        let done = ran && next.active() && !next.waits_for_samples();
        if !done && (broken.is_none() || self.is_full()) {
            return None;
        }
        let mut batch = self.list.pop_front()?;
        self.first += 1;
        self.active = self.active.saturating_sub(1);
        self.planned_jobs -= batch.plan.jobs.len() + batch.plan.between.len();
        self.untaken += 1;
        self.needing_bad -= usize::from(batch.needs_bad);
        debug_assert!(!done || batch.is_whole(), "a batch is finished while a part of it is lent");
        match batch.error.take().or_else(|| if done { None } else { broken.cloned() }) {
            None => {
                batch.shorten();
                self.replaced += batch.replaced();
                let BatchPlan { samples, lengths, shapes, names, .. } = batch.plan;
                let buffers = batch.lent.map(|l| l.id);
                Some(Ok(Batch { host: batch.host, buffers, samples, lengths, shapes, names }))
            }
            Some(e) if done => {
                // The batch failed, so nobody sees its outputs, and they can be used again.
                batch.lent.into_iter().for_each(|lent| self.lend(lent));
                Some(Err(e))
            }
            Some(e) => {
                self.failed.push(batch);
                Some(Err(e))
            }
        }
    }

    /// Whether to send the consumer an error, because no batch is planned and none was delivered. The planner may have
    /// died, and the consumer must not wait forever. If true, the error counts as delivered.
    pub fn deliver_error(&mut self) -> bool {
        let waits = self.list.is_empty() && self.untaken == 0;
        self.untaken += usize::from(waits);
        waits
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

/// Fills the addresses of the outputs and of the decoded chunk in a planned job.
pub(super) fn set_addresses(job: &mut Job, outputs: &[u64], from: JobSource) {
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

/// Whether `jobs`, all of one batch for one chunk of `decoded` bytes, are a single copy of the whole chunk to one
/// place. Then the chunk may be decoded there.
fn is_whole_copy(jobs: &[Job], ops: &[Op], decoded: usize) -> bool {
    matches!(jobs, [job] if job.src == 0 && copied_bytes(job, &ops[job.op as usize]) == Some(decoded))
}
