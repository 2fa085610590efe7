//! The scheduler decides what is read, decoded and assembled, and when. It owns all state of a running reader. It does
//! no I/O and waits for events only.
//!
//! A batch is *planned*, becomes *active* when it gets memory for its outputs, and is delivered, in order, when all its
//! uses of chunks have been served. Chunks are admitted in the order in which active batches need them. A chunk is
//! admitted only with all the memory that it needs until it is decoded. So each admitted chunk can finish, and there is
//! no deadlock. A decoded chunk is kept while a planned batch needs it. When memory is short, the chunk that is needed
//! last is dropped first.
//!
//! This file holds the state, handles events, and plans, activates and delivers batches. [`admission`] decides what is
//! read ([`merging`]: of chunks in one object). [`completion`] handles chunks that were read or decoded, [`oversized`]
//! those for which too little memory was reserved. [`waves`] sends chunks to the lanes of a GPU; [`sharing`] decides what
//! of them the CPU decodes instead.

mod admission;
mod batches;
mod chunk_table;
mod completion;
mod merging;
pub(crate) mod oversized;
mod queue;
mod shard_indexes;
mod sharing;
pub mod simulation;
mod waves;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dali_zarr_kernels::Layout;

use crate::batch::{Batch, DeviceBuffers};
use crate::budget::Room;
use crate::chunk_index::Plan;
use crate::error::{Error, Result};
use crate::memory::{Pool, arena::Arena};
use crate::messages::Handle;
use crate::messages::{Decode, Event, Fetch, GroupId, Lanes, Shared, Wave, WaveDone};
use crate::plan::{ChunkId, IdHasher};
use crate::stats::Stats;
use admission::MemoryShortage;
use batches::{Batches, JobSource, Planned, addressed};
use chunk_table::{ChunkState, Group, Table};
use queue::{Queue, Wanted};
use shard_indexes::{Known, Shards};
use sharing::Sharing;
use waves::Pending;

/// What the consumer receives: a finished batch, or why it failed.
pub(crate) type Finished = Result<Batch>;

/// A block of memory for chunks: its allocator, and the address of its first byte.
pub(crate) struct Block {
    pub arena: Arena,
    pub base: u64,
}

/// The limits and sizes that the scheduler works with. They are fixed when the reader is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Reads under way at a time: of local stores, and of remote stores. More local reads than threads would spread
    /// over more memory and leave the CPU's caches. Many remote reads wait for servers at the same time.
    pub reads: [usize; 2],
    /// Batches that may be active, or finished and not taken yet.
    pub max_active: usize,
    /// Batches that are planned beyond the active ones. Chunks that they need are kept.
    pub lookahead: usize,
    /// Bytes of shard indexes that may be kept.
    pub index_limit: usize,
    /// Bytes of the largest shard index.
    pub largest_index: usize,
    /// Jobs (see [`dali_zarr_kernels::Job`]) of a typical batch.
    pub batch_jobs: usize,
    /// Bytes of all decoded chunks that a typical batch needs.
    pub working_set: usize,
    /// With chunk-aware shuffling: bytes of all decoded chunks in one shuffle window.
    pub shuffled: Option<usize>,
    /// Whether the last output is the index of each sample.
    pub index_output: bool,
    /// Chunks that decode threads may decode at a time although the GPU could, to spare a model's time on the GPU. 0: none.
    pub shared_tasks: usize,
    /// Tells which `host_memory_limit` would hold an oversized chunk.
    pub room: Room,
}

/// What the scheduler works with: its rules, its workers and its memory.
pub(crate) struct Setup {
    pub shared: Shared,
    pub rules: Rules,
    pub fetch: Box<dyn Fetch>,
    pub decode: Box<dyn Decode>,
    /// `Some` if batches are delivered to a GPU.
    pub lanes: Option<Box<dyn Lanes>>,
    /// Memory for encoded chunks, in host memory (page-locked for a GPU).
    pub staging: Block,
    /// Memory for decoded chunks, where batches are assembled. `None`: they are in `staging`.
    pub slots: Option<Block>,
    /// Device memory for encoded chunks, if GPUDirect Storage reads them.
    pub gds_buffer: Option<Block>,
    /// Whether GPUDirect Storage reads local files to the device.
    pub gds: bool,
    /// Buffers for outputs, if batches are delivered to the CPU.
    pub pools: Vec<Arc<Pool>>,
    /// Each message asks the planner for one more batch.
    pub plan: Sender<()>,
    pub finished: Sender<Finished>,
    #[expect(dead_code, reason = "owned for its Drop")]
    /// The memory behind `staging` and `slots`. It is the last field, because all threads must end before it is freed.
    pub memory: Vec<Box<dyn Send>>,
}

/// Limit on planned jobs in memory (208 bytes each). Two batches are always planned, whatever their jobs.
const MAX_PLANNED_JOBS: usize = 1 << 18;

/// With chunk-aware shuffling: batches that are planned beyond the lookahead, so that the scheduler rarely waits for
/// the planner.
const PLANS_TO_SPARE: usize = 2;

/// After this time without an event, the scheduler asks the device whether copies under way have ended.
const QUIET: Duration = Duration::from_millis(5);

/// The scheduler of one reader. Its methods are spread over the files of this module, by subject.
pub(crate) struct Scheduler {
    s: Setup,
    batches: Batches,
    planned_jobs: usize,
    plans_asked: usize,
    /// Batches that were delivered and not taken.
    untaken: usize,
    lent: VecDeque<DeviceBuffers>,
    chunks: Table,
    queue: Queue,
    /// Counts how often a chunk was queued. The count orders the queue within a batch.
    wanted: u64,
    groups: HashMap<GroupId, Group, BuildHasherDefault<IdHasher>>,
    next_group: GroupId,
    /// Reads under way: of local stores, and of remote stores.
    reads_in_flight: [usize; 2],
    /// Reads that have ended and whose bytes the reading thread copies to the device.
    uploads_in_flight: usize,
    /// Reads of shard indexes. They hold none of the memory for chunks.
    index_reads_in_flight: usize,
    cpu_tasks_in_flight: usize,
    shards: Shards,
    /// The memory that the first chunk in the queue could not get.
    shortage: Option<MemoryShortage>,
    /// Chunks that were read and wait for a lane.
    pending: Pending,
    sharing: Sharing,
    /// Jobs that need no decoding, because their chunks are decoded already or missing. On the CPU they go to a decode
    /// thread at once. On the GPU they wait for the next wave.
    ready_jobs: Wave,
    idle_lanes: Vec<usize>,
    /// Decoded chunks that no active batch needs, with the first planned batch that does (`completion::NOT_YET` if none
    /// is known yet). They may be dropped when memory is short.
    evictable: BTreeSet<(u64, Handle)>,
    /// Set when a lane or thread died. Every later batch fails with it.
    broken: Option<Error>,
    /// Batches that failed while threads may still write to them. Their memory is kept until the threads have ended.
    failed_batches: Vec<Planned>,
}

impl Scheduler {
    pub fn new(setup: Setup) -> Self {
        let lanes = setup.lanes.as_ref().map_or(0, |l| l.count());
        let Rules { index_limit, largest_index, shared_tasks, max_active, .. } = setup.rules;
        Self {
            s: setup,
            batches: Batches::default(),
            planned_jobs: 0,
            plans_asked: 0,
            untaken: 0,
            lent: VecDeque::new(),
            chunks: Table::default(),
            queue: Queue::default(),
            wanted: 0,
            groups: HashMap::default(),
            next_group: 0,
            reads_in_flight: [0; 2],
            uploads_in_flight: 0,
            index_reads_in_flight: 0,
            cpu_tasks_in_flight: 0,
            shards: Shards::new(index_limit, largest_index),
            shortage: None,
            pending: Pending::default(),
            sharing: Sharing::new(shared_tasks, max_active),
            ready_jobs: Wave::default(),
            idle_lanes: (0..lanes).rev().collect(),
            evictable: BTreeSet::new(),
            broken: None,
            failed_batches: Vec::new(),
        }
    }

    /// Handles events until [`Event::Stop`]. When it returns, all threads that it used have ended.
    pub fn run(mut self, events: &Receiver<Event>) {
        loop {
            self.pump();
            let event = match self.uploads_in_flight {
                0 => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => events.recv_timeout(QUIET),
            };
            let event = match event {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    self.s.fetch.report_copies();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut next = Some(event);
            while let Some(event) = next {
                if matches!(event, Event::Stop) {
                    self.s.shared.stop.store(true, Ordering::Relaxed);
                    return;
                }
                self.handle(event);
                next = events.try_recv().ok();
            }
        }
    }

    /// The chunks of a read under way, each with its decoded bytes and the number of the first batch that needs it.
    pub fn chunks_of(&self, group: GroupId) -> impl Iterator<Item = (ChunkId, usize, u64)> + '_ {
        let members = self.groups.get(&group).map_or(&[][..], |g| &g.chunks);
        members.iter().filter_map(|&(handle, ..)| {
            let chunk = &self.chunks[handle];
            Some((chunk.id, chunk.place.decoded, chunk.users.first()?.0))
        })
    }

    /// What the scheduler waits for, as text, for a simulation that stands still.
    fn summary(&self) -> String {
        let memory = |block: &Block| format!("{} of {} bytes free", block.arena.available(), block.arena.capacity());
        let waiting: Vec<_> = self.chunks.iter().filter(|c| !c.state.is_resolved()).take(3).collect();
        format!(
            "{:?} reads, {} uploads, {} indexes and {} tasks in flight, {} lanes idle, {} uses of decoded chunks ready; {} \
             batches, {} active, {} untaken; staging: {}; slots: {:?}; shortage: {:?}; evictable: {:?}; pending: {:?}; \
             unresolved chunks: {waiting:?}",
            self.reads_in_flight,
            self.uploads_in_flight,
            self.index_reads_in_flight,
            self.cpu_tasks_in_flight,
            self.idle_lanes.len(),
            self.ready_jobs.assembly.served.len(),
            self.batches.list.len(),
            self.batches.active,
            self.untaken,
            memory(&self.s.staging),
            self.s.slots.as_ref().map(memory),
            self.shortage,
            self.evictable,
            self.pending,
        )
    }

    /// Updates the state after an event.
    fn handle(&mut self, event: Event) {
        match event {
            Event::Planned(plan) => self.planned(*plan),
            Event::Fetched(group, result) => {
                let remote = self.groups.get(&group).is_some_and(|g| g.remote);
                self.reads_in_flight[usize::from(remote)] -= 1;
                self.fetched(group, result);
            }
            Event::Uploading => {
                // Only threads upload, and threads read local stores only.
                self.reads_in_flight[0] -= 1;
                self.uploads_in_flight += 1;
            }
            Event::Uploaded(group, result) => {
                self.uploads_in_flight -= 1;
                self.fetched(group, result);
            }
            Event::Index(shard, result) => {
                self.index_reads_in_flight -= 1;
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
                        Some(e) => self.resolve(handle, ChunkState::Failed(e.clone())),
                        None => self.requeue(handle),
                    }
                }
            }
            Event::Decoded(outcomes, served, pinned) => {
                self.cpu_tasks_in_flight -= 1;
                if self.s.lanes.is_some() {
                    outcomes.into_iter().for_each(|o| self.host_decoded(o));
                } else {
                    self.completed(outcomes, &served, &pinned);
                }
            }
            Event::Copied(groups) => groups.into_iter().for_each(|(group, n)| self.release_group(group, n)),
            Event::Wave(WaveDone { lane, outcomes, served, pinned, result }) => {
                self.idle_lanes.push(lane);
                self.sharing.ended(lane);
                if let Err(e) = result {
                    self.breaks(e);
                }
                self.completed(outcomes, &served, &pinned);
            }
            Event::Lent(buffers) => self.lent.push_back(buffers),
            Event::Taken => {
                self.untaken -= 1;
                self.sharing.taken(self.untaken);
                if self.sharing.is_on() {
                    let stats = &self.s.shared.stats;
                    Stats::add(&stats.batches_shared, 1);
                    stats.shared_reserve.store(self.sharing.reserve() as u64, Ordering::Relaxed);
                }
            }
            Event::Died(e) => self.breaks(e),
            Event::Stop => {}
        }
    }

    /// Starts all work that is possible now, and delivers finished batches.
    fn pump(&mut self) {
        loop {
            self.ask_for_plans();
            self.activate();
            self.admit();
            self.flush_ready_jobs();
            self.share();
            self.launch();
            if !self.deliver() {
                return;
            }
        }
    }

    fn ask_for_plans(&mut self) {
        loop {
            let plans = self.batches.list.len() + self.plans_asked;
            let jobs = self.planned_jobs + self.plans_asked * self.s.rules.batch_jobs;
            let spare = if self.s.rules.shuffled.is_some() { PLANS_TO_SPARE } else { 0 };
            if plans >= self.s.rules.max_active + self.s.rules.lookahead + spare
                || (plans >= 2 && jobs >= MAX_PLANNED_JOBS)
            {
                return;
            }
            self.plans_asked += 1;
            // The planner's thread lives as long as this scheduler, so the message arrives.
            let _ = self.s.plan.send(());
        }
    }

    fn planned(&mut self, plan: Plan) {
        let Plan { batch: plan, places, shards } = plan;
        self.plans_asked -= 1;
        // Shard indexes are read ahead of their chunks.
        for (shard, of) in shards {
            if self.shards.expect(shard) {
                self.index_reads_in_flight += 1;
                self.s.fetch.index(shard, self.s.shared.chunk_index.key(of));
            }
        }
        let batch = self.batches.first + self.batches.list.len() as u64;
        self.queue.plan();
        let mut handles = Vec::with_capacity(plan.uses.len());
        for (i, (chunk_use, place)) in plan.uses.iter().zip(places).enumerate() {
            let (handle, new) = self.chunks.entry(chunk_use.chunk, place, self.wanted + 1);
            if new {
                self.wanted += 1;
                self.queue.push(Wanted { batch, order: self.wanted, handle });
            }
            if !new {
                self.keep_for(handle, batch);
            }
            self.chunks[handle].users.push((batch, i as u32));
            handles.push(handle);
        }
        self.planned_jobs += plan.jobs.len();
        let extra = u32::from(!plan.pads.is_empty()) + u32::from(self.s.rules.index_output && self.s.lanes.is_some());
        let remaining = plan.uses.len() as u32 + extra;
        self.batches.list.push_back(Planned {
            plan,
            handles,
            outputs: Vec::new(),
            host: Vec::new(),
            lent: None,
            remaining,
            error: self.broken.clone(),
        });
    }

    /// Whether enough batches are planned beyond the next one to become active. With shuffling, a chunk is needed by
    /// many batches in no order. If these were not planned yet, the chunk would be dropped too early. Without shuffling
    /// there is no need to wait for the planner.
    fn planned_ahead(&self) -> bool {
        self.s.rules.shuffled.is_none()
            || self.plans_asked == 0
            || self.batches.list.len() > self.batches.active + self.s.rules.lookahead
    }

    /// Whether the batch after the active ones was requested, but is not planned yet.
    fn planner_is_late(&self) -> bool {
        self.plans_asked > 0 && self.batches.list.len() <= self.batches.active
    }

    /// Activates planned batches while there is memory for outputs, and serves them with the chunks that are decoded
    /// already.
    fn activate(&mut self) {
        while self.broken.is_none()
            && self.batches.active < self.batches.list.len()
            && self.batches.active + self.untaken < self.s.rules.max_active
            && self.planned_ahead()
        {
            let at = self.batches.active;
            let batch = &mut self.batches.list[at];
            if self.s.lanes.is_some() {
                let Some(lent) = self.lent.pop_front() else { return };
                batch.outputs.clone_from(&lent.outputs);
                batch.lent = Some(lent);
            } else {
                match self.s.pools.iter().map(Pool::take).collect::<Result<Vec<_>>>() {
                    Ok(host) => {
                        batch.outputs = host.iter().map(|b| b.span().address).collect();
                        batch.host = host;
                    }
                    Err(e) => {
                        self.breaks(e);
                        return;
                    }
                }
            }
            self.batches.active += 1;
            self.start(at);
        }
    }

    /// Writes the padding and the sample index of the batch at `at`, and serves it with the chunks that are decoded
    /// already.
    fn start(&mut self, at: usize) {
        let number = self.batches.first + at as u64;
        let batch = &mut self.batches.list[at];
        if self.s.rules.index_output {
            let bytes: Vec<u8> = batch.plan.starts.iter().flat_map(|s| s.to_ne_bytes()).collect();
            let to = *batch.outputs.last().expect("the index is an output");
            if self.s.lanes.is_some() {
                self.ready_jobs.uploads.push((to, bytes));
                self.ready_jobs.assembly.serves(number, batch.ready());
            } else if let Some(buffer) = batch.host.last_mut() {
                buffer.fill_from(&bytes);
            }
        }
        if !batch.plan.pads.is_empty() {
            self.ready_jobs.assembly.serves(number, batch.ready());
            let pads =
                batch.plan.pads.iter().map(|job| addressed(job, &batch.outputs, JobSource::Slot(0, Layout::NONE)));
            self.ready_jobs.assembly.jobs.extend(pads);
        }
        for i in 0..batch.plan.uses.len() {
            let handle = self.batches.list[at].handles[i];
            let chunk = &self.chunks[handle];
            if chunk.state.is_resolved() {
                // Users are sorted, and earlier batches were served when they became active. So this batch is the first
                // user.
                debug_assert_eq!(chunk.users.first(), Some(&(number, i as u32)));
                self.serve_resolved(handle);
            }
        }
    }

    /// Delivers finished batches, in order. Returns whether there was one.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(batch) = self.batches.list.front() {
            let done = batch.remaining == 0 && batch.active();
            if !done && (self.broken.is_none() || self.untaken >= self.s.rules.max_active) {
                break;
            }
            let Some(mut batch) = self.batches.list.pop_front() else { break };
            self.batches.first += 1;
            self.batches.active = self.batches.active.saturating_sub(1);
            self.queue.deliver();
            self.planned_jobs -= batch.plan.jobs.len();
            self.untaken += 1;
            if self.untaken >= self.s.rules.max_active {
                self.sharing.full();
            }
            let error = batch.error.take().or_else(|| if done { None } else { self.broken.clone() });
            let finished = match error {
                None => {
                    Stats::add(&self.s.shared.stats.batches, 1);
                    Ok(Batch { host: batch.host, buffers: batch.lent.map(|l| l.id) })
                }
                Some(e) if done => {
                    // The batch failed, so nobody sees its outputs, and they can be used again.
                    self.lent.extend(batch.lent);
                    Err(e)
                }
                Some(e) => {
                    self.failed_batches.push(batch);
                    Err(e)
                }
            };
            let _ = self.s.finished.send(finished);
            any = true;
        }
        if self.batches.list.is_empty()
            && self.untaken == 0
            && let Some(e) = &self.broken
        {
            // The planner may have died, so that no plan comes any more. Whoever waits must get the error.
            self.untaken += 1;
            let _ = self.s.finished.send(Err(e.clone()));
        }
        any
    }

    /// Nothing can be trusted any more: all batches fail with `error`.
    fn breaks(&mut self, error: Error) {
        self.broken.get_or_insert(error);
    }
}
