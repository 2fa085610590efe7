//! The scheduler decides what is read, decoded and assembled, and when. It owns all state of a running reader. It does
//! no I/O and waits for events only.
//!
//! A batch is *planned*, becomes *active* when it gets memory for its outputs, and is delivered, in order, when all its
//! uses of chunks have been served. Chunks are admitted in the order in which active batches need them. A chunk is
//! admitted only with all the memory that it needs until it is decoded. So each admitted chunk can finish, and there is
//! no deadlock. A decoded chunk is kept while a planned batch needs it, or a later one of the same epoch that is foreseen
//! ([`crate::chunk_index::Foresight`]). When memory is short, the chunk that is needed last is dropped first.
//!
//! Each part of the state has an owner, with private fields and tests of its own: [`Chunks`] (table, queue, kept
//! chunks), [`Batches`], [`ChunkMemory`], [`Reads`], [`Shards`] (indexes), [`Waves`] with [`Sharing`]. The owners don't
//! know each other: they get what they need as arguments. The [`Scheduler`] moves chunks between them: this file
//! handles events and starts batches, [`admission`] decides what is read ([`merging`]: of chunks in one object),
//! [`completion`] handles chunks that were read or decoded, [`bad_chunks`] those that can't be decoded, [`oversized`] those for which too little memory was
//! reserved, [`lanes`] hands waves to the GPU, and [`give_back`] gives memory to other readers. [`setup`] has what a
//! scheduler is made of.

mod admission;
mod aligned_bursts;
mod bad_chunks;
mod batches;
mod chunks;
mod completion;
mod give_back;
mod lanes;
mod memory;
mod merging;
pub(crate) mod oversized;
mod reads;
mod setup;
mod shard_indexes;
mod sharing;
pub mod simulation;
#[cfg(test)]
mod tests;
mod waves;

use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dali_zarr_kernels::Layout;

use crate::chunk_index::{NEVER, Plan};
use crate::messages::{Decode, Event, Fetch, Lanes, ReadId, Served, Shared, TaskDone, Wave, WaveDone, WaveLimits};
use crate::stats::Stats;
use batches::{Batches, JobSource, set_addresses};
use chunks::{ChunkState, Chunks};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::batch::Batch;
use dali_zarr_samples::plan::{BatchPlan, ChunkId};
use memory::{ChunkMemory, MemoryKind, MemoryShortage};
use reads::{ReadChunk, Reads};
pub(crate) use setup::{BatchAccount, DeviceArena, ReaderMemory, Rules, Setup};
use shard_indexes::{Known, Shards};
use sharing::Sharing;
use waves::Waves;

/// What the consumer receives: a finished batch, or the error with which it failed.
pub(crate) type Finished = Result<Batch>;

/// A chunk that is being read, for a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedChunk {
    pub id: ChunkId,
    /// Bytes of the decoded chunk.
    pub decoded: usize,
    /// The number of the first batch that needs it.
    pub batch: u64,
}

/// After this time without an event, the scheduler asks the device whether copies under way have ended.
const QUIET: Duration = Duration::from_millis(5);

/// After this time without an event, nobody uses the reader at present.
const UNUSED: Duration = Duration::from_secs(5);
/// The threads and the device that work for the scheduler. Dropping it waits for their end.
struct Backends {
    fetch: Box<dyn Fetch>,
    decode: Box<dyn Decode>,
    /// `Some` if batches are delivered to a GPU.
    lanes: Option<Box<dyn Lanes>>,
}

/// The scheduler of one reader. Its methods are spread over the files of this module, by subject.
pub(crate) struct Scheduler {
    // The first field is dropped first: threads use the memory of the other fields until they have ended.
    backends: Backends,
    shared: Shared,
    rules: Rules,
    /// Whether GPUDirect Storage reads local files to the device.
    gds: bool,
    plan: Sender<()>,
    finished: Sender<Finished>,
    chunks: Chunks,
    batches: Batches,
    reads: Reads,
    shards: Shards,
    memory: ChunkMemory,
    /// The memory that the first chunk in the queue could not get.
    shortage: Option<MemoryShortage>,
    waves: Waves,
    /// Number of tasks of the decode threads under way.
    tasks: usize,
    /// Jobs that need no decoding, because their chunks are decoded already or missing. On the CPU they go to a decode
    /// thread at once. On the GPU they wait for the next wave.
    ready_jobs: Wave,
    /// Set when a lane or thread died. Every batch that isn't finished then fails with it.
    broken: Option<Error>,
    #[expect(dead_code, reason = "owned for its Drop")]
    /// Owns the device memory to which `memory` refers. The last field is dropped last.
    blocks: Vec<Box<dyn Send>>,
}

impl Scheduler {
    pub fn new(setup: Setup) -> Self {
        let Setup { shared, rules, fetch, decode, lanes, memory, plan, finished } = setup;
        let ReaderMemory { staging, slots, gds_buffer, gds, pools, batches, owned } = memory;
        let limits = lanes.as_ref().map_or(WaveLimits { encoded: 0, decoded: 0, chunks: 0 }, |l| l.limits());
        let max_waiting = if lanes.is_some() { rules.max_active } else { 0 };
        let sharing = Sharing::new(rules.shared_tasks, max_waiting, rules.several_shards);
        Self {
            chunks: Chunks::default(),
            batches: Batches::new(rules, lanes.is_none().then_some(pools), batches),
            reads: Reads::new(rules.reads),
            shards: Shards::new(rules.index_limit, rules.largest_index),
            memory: ChunkMemory::new(staging, slots, gds_buffer),
            shortage: None,
            waves: Waves::new(lanes.as_ref().map_or(0, |l| l.count()), limits, sharing),
            tasks: 0,
            ready_jobs: Wave::default(),
            broken: None,
            backends: Backends { fetch, decode, lanes },
            shared,
            rules,
            gds,
            plan,
            finished,
            blocks: owned,
        }
    }

    /// Whether batches are delivered to a GPU.
    fn on_gpu(&self) -> bool {
        self.backends.lanes.is_some()
    }

    /// Handles events until [`Event::Stop`]. When it returns, all threads that work for the scheduler have ended.
    pub fn run(mut self, events: &Receiver<Event>) {
        // How often nothing happened for the time `UNUSED`, in a row.
        let mut quiet = 0;
        loop {
            self.pump();
            let event = match (self.reads.uploads(), self.memory.account()) {
                (0, None) => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                (0, Some(_)) => events.recv_timeout(UNUSED),
                _ => events.recv_timeout(QUIET),
            };
            let event = match event {
                Ok(event) => {
                    quiet = if matches!(event, Event::GiveBack) { quiet } else { 0 };
                    event
                }
                Err(RecvTimeoutError::Timeout) if self.reads.uploads() > 0 => {
                    self.backends.fetch.report_copies();
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    quiet += 1;
                    self.unused(quiet);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut next = Some(event);
            while let Some(event) = next {
                if matches!(event, Event::Stop) {
                    self.shared.stop.store(true, Ordering::Relaxed);
                    return;
                }
                self.handle(event);
                next = events.try_recv().ok();
            }
        }
    }

    /// Returns the chunks of a read under way.
    pub fn chunks_of(&self, read: ReadId) -> impl Iterator<Item = WantedChunk> + '_ {
        let chunks = self.reads.get(read).map_or(&[][..], |read| &read.chunks);
        chunks.iter().filter_map(|&ReadChunk { handle, .. }| {
            let chunk = &self.chunks[handle];
            Some(WantedChunk { id: chunk.id(), decoded: chunk.info().decoded, batch: chunk.first_batch()? })
        })
    }

    /// Describes what the scheduler waits for, for the error of a simulation that stands still.
    fn summary(&self) -> String {
        let memory = |kind| format!("{} of {} bytes free", self.memory.available(kind), self.memory.capacity(kind));
        let waiting: Vec<_> = self.chunks.iter().filter(|c| !c.state().is_resolved()).take(3).collect();
        let (planned, active_end) = (self.batches.next_number(), self.batches.active_end());
        format!(
            "{} reads, {} indexes and {} tasks in flight; {} uses of decoded chunks ready; batches are active up to {active_end} and \
             planned up to {planned}, {} untaken; staging: {}; slots: {}; shortage: {:?}; {:?}; unresolved chunks: {waiting:?}",
            self.reads.in_flight(),
            self.shards.reading(),
            self.tasks,
            self.ready_jobs.assembly.served.len(),
            self.batches.untaken(),
            memory(MemoryKind::Staging),
            memory(MemoryKind::Slots),
            self.shortage,
            self.waves,
        )
    }

    /// Updates the state after an event.
    fn handle(&mut self, event: Event) {
        match event {
            Event::Planned(plan) => self.planned(*plan),
            Event::Fetched(done) => {
                self.reads.ended(done.id);
                self.fetched(done);
            }
            Event::Uploading => self.reads.uploading(),
            Event::Uploaded(done) => {
                self.reads.uploaded();
                self.fetched(done);
            }
            Event::Index(shard, result) => {
                let (known, error) = match result {
                    Ok(Some(index)) => (Some(Known::Index(index)), None),
                    Ok(None) => (Some(Known::Missing), None),
                    Err(e) => (None, Some(e)),
                };
                if error.is_none() {
                    self.locate(shard);
                }
                for handle in self.shards.set(shard, known) {
                    match &error {
                        // An index of the store itself isn't a shard's.
                        Some(e) if self.shared.chunk_index.sharded(shard.array, shard.part).is_none() => {
                            self.resolve(handle, ChunkState::Failed(e.clone()));
                        }
                        Some(e) => self.broken_chunk(handle, e.clone(), Some(shard)),
                        None => self.requeue(handle),
                    }
                }
            }
            Event::Decoded(TaskDone { items, served, pinned }) => {
                self.tasks -= 1;
                self.served(&served, &pinned);
                for item in items {
                    let outcome = self.take_back(item);
                    if self.on_gpu() { self.host_decoded(outcome) } else { self.completed(outcome) }
                }
            }
            Event::Copied(payloads) => {
                payloads.into_iter().for_each(|payload| self.reads.release(payload, &mut self.memory));
            }
            Event::Wave(WaveDone { lane, outcomes, served, pinned, result }) => {
                self.waves.ended(lane);
                if let Err(e) = result {
                    // The jobs of these batches may not have run. A batch may have had no chunk in the wave.
                    served.iter().for_each(|Served { batch, .. }| self.batches.fail_batch(*batch, &e));
                    self.breaks(e);
                }
                self.served(&served, &pinned);
                outcomes.into_iter().for_each(|outcome| self.completed(outcome));
            }
            Event::Lent(buffers) => self.batches.lend(buffers),
            Event::GiveBack => self.give_back(),
            Event::Taken(take) => {
                if let Some(account) = self.memory.account() {
                    account.set_unused(false);
                }
                self.batches.taken();
                let sharing = &mut self.waves.sharing;
                sharing.taken(take, self.batches.untaken());
                let stats = &self.shared.stats;
                Stats::add(&stats.batches_shared, u64::from(sharing.cpu_helps()));
                stats.shared_threads.store(sharing.max_tasks() as u64, Ordering::Relaxed);
                if let Some(reserve) = sharing.reserve() {
                    stats.shared_reserve.store(reserve as u64, Ordering::Relaxed);
                }
            }
            Event::Died(e) => self.breaks(e),
            Event::Stop => {}
        }
    }

    /// Starts all work that is possible now, and delivers finished batches.
    fn pump(&mut self) {
        loop {
            while self.batches.ask() {
                // The planner's thread lives as long as this scheduler, so the message arrives.
                let _ = self.plan.send(());
            }
            self.activate();
            self.admit();
            self.interpolate();
            self.flush_ready_jobs();
            let cpu_lacks_memory = self.decode_on_idle_cores();
            self.launch(cpu_lacks_memory);
            let replaced = self.replace_samples();
            if !self.deliver() && !replaced {
                return;
            }
        }
    }

    fn planned(&mut self, plan: Plan) {
        let Plan { batch: plan, chunks, shards, next, asked, samples } = plan;
        // Shard indexes are read ahead of their chunks.
        for (shard, of) in shards {
            if self.shards.begin_read_ahead(shard) {
                self.backends.fetch.index(shard, self.shared.chunk_index.key(of));
            }
        }
        let batch = self.batches.next_number();
        self.chunks.plan_batch();
        let uses = plan.uses.iter().zip(chunks).zip(0..);
        let mut known = Vec::new();
        for ((u, info), i) in uses {
            let handle = self.chunks.need(u.chunk, info, batch, i);
            // A chunk that only this batch needs is not read before the batch is active.
            let chunk = &self.chunks[handle];
            if chunk.users().len() > 1 || !matches!(chunk.state(), ChunkState::Wanted) {
                known.push((i, handle));
            }
            if let Some(&next) = next.get(i as usize)
                && next != NEVER
            {
                self.chunks.foresee(handle, next);
            }
        }
        let all = self.uses_of(&plan);
        self.batches.add(plan, known, all, self.broken.clone());
        self.batches.ask_for(batch, asked, samples);
    }

    /// Returns the number of uses of a planned batch.
    fn uses_of(&self, plan: &BatchPlan) -> u32 {
        let extra = u32::from(!plan.pads.is_empty()) + u32::from(self.rules.index_output && self.on_gpu());
        plan.uses.len() as u32 + extra
    }

    /// Activates planned batches while there is memory for outputs, and serves them with the chunks that are decoded
    /// already.
    fn activate(&mut self) {
        while self.broken.is_none() {
            match self.batches.activate() {
                Ok(Some(number)) => self.start(number),
                Ok(None) => return,
                Err(e) => self.breaks(e),
            }
        }
    }

    /// Writes the padding and the sample index of a batch that became active, and serves it with the chunks that are
    /// decoded already.
    fn start(&mut self, number: u64) {
        let on_gpu = self.on_gpu();
        let batch = self.batches.get_mut(number).expect("the batch is active");
        if self.rules.index_output {
            let bytes: Vec<u8> = batch.plan.index.iter().flat_map(|s| s.to_ne_bytes()).collect();
            if on_gpu {
                let to = *batch.outputs.last().expect("the index is an output");
                self.ready_jobs.uploads.push((to, bytes));
                self.ready_jobs.assembly.serves(number, batch.ready());
            } else {
                batch.fill_last_output(&bytes);
            }
        }
        if !batch.plan.pads.is_empty() {
            self.ready_jobs.assembly.serves(number, batch.ready());
            let jobs = &mut self.ready_jobs.assembly.jobs;
            let first = jobs.len();
            jobs.extend_from_slice(&batch.plan.pads);
            let nowhere = JobSource::Slot(0, Layout::NONE);
            jobs[first..].iter_mut().for_each(|job| set_addresses(job, &batch.outputs, nowhere));
        }
        for (i, handle) in std::mem::take(&mut batch.known) {
            let chunk = &self.chunks[handle];
            if chunk.state().is_resolved() {
                // Users are sorted, and earlier batches were served when they became active. So this batch is the first
                // user.
                debug_assert_eq!(chunk.users().first(), Some(&(number, i)));
                self.serve_resolved(handle);
            }
        }
    }

    /// Delivers finished batches, in order. Returns whether there was one.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(finished) = self.batches.deliver(self.broken.as_ref()) {
            self.chunks.deliver_batch();
            if self.batches.is_full() {
                self.waves.sharing.queue_is_full();
            }
            Stats::add(&self.shared.stats.batches, finished.is_ok().into());
            Stats::add(&self.shared.stats.samples_replaced, self.batches.take_replaced());
            let _ = self.finished.send(finished);
            any = true;
        }
        if let Some(e) = &self.broken
            && self.batches.deliver_error()
        {
            let _ = self.finished.send(Err(e.clone()));
        }
        any
    }

    /// Marks the reader as broken, because no result can be trusted any more. All batches that aren't finished fail
    /// with the first such error.
    fn breaks(&mut self, error: Error) {
        self.broken.get_or_insert(error);
    }
}
