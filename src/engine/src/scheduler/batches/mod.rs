//! The batches in preparation, in order: planned, then active (with memory for their outputs), then delivered. A batch
//! is *served* with a chunk when its jobs for this chunk are handed out.

mod outputs;
mod pending;
mod serving;

use std::collections::VecDeque;
use std::sync::Arc;

use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::{HostBuffer, Pool};
use dali_zarr_samples::batch::Batch;
use dali_zarr_samples::order::Sample;
use dali_zarr_samples::plan::BatchPlan;

use super::chunks::Chunk;
use super::{BatchAccount, Finished, Rules};
use crate::chunk_index::Asked;
use crate::messages::Handle;
use outputs::OutputMemory;
pub(super) use pending::PendingBatch;
pub(super) use serving::{JobSource, set_addresses};

/// Limit on planned jobs in memory (208 bytes each). Two batches are always planned, however many jobs they have.
const MAX_PLANNED_JOBS: usize = 1 << 18;

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
}
