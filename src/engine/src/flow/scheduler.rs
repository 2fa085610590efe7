//! Decides what is read, decoded and assembled when. It alone has state; it never blocks on anything but events.
//!
//! A batch is *planned*, becomes *active* when it gets memory for its outputs, and is delivered, in order, when all its
//! uses of chunks have been served. Chunks are admitted in the order in which active batches need them, and only with
//! all the memory that they will need until they are decoded: whatever is admitted can finish, so there is no deadlock.
//! A decoded chunk stays while a planned batch needs it, unless memory is short: then the one needed last goes first.
//!
//! This file has its state, its events and its dealings with batches; [`super::admission`] decides what is read (and
//! [`super::merging`], of shards), [`super::arrival`] what becomes of chunks that were read or decoded ([`super::longer`], if there was too little room for them), and
//! [`super::launch`] what goes to a GPU's lanes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dali_zarr_kernels::Layout;

use super::admission::Lacking;
use super::batches::{Batches, From, Planned, resolved};
use super::chunks::{Group, Handle, State, Table};
use super::queue::{Queue, Wanted};
use super::shards::{Known, Shards};
use super::stats::Stats;
use super::tasks::{Decode, Fetch, GroupId, Shared};
use super::wave::{Lanes, Wave, WaveDone};
use super::{Event, Plan};
use crate::budget::Room;
use crate::error::{Error, Result};
use crate::memory::{Pool, arena::Arena};
use crate::plan::{ChunkId, IdHasher};
use crate::reader::{Batch, DeviceBuffers};

/// What the consumer receives.
pub(crate) type Finished = Result<Batch>;

/// Memory that chunks live in: an arena and the address of its first byte.
pub(crate) struct Block {
    pub arena: Arena,
    pub base: u64,
}

/// What the scheduler goes by: fixed when its reader is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Reads under way at a time, of local stores and of remote ones. Of local ones more than the threads can do would only
    /// spread over more memory what caches hold of less; of remote ones many wait for servers.
    pub reads: [usize; 2],
    /// Batches that may be active or waiting to be taken.
    pub window: usize,
    /// Batches that are planned ahead of the active ones, so that chunks are kept for them.
    pub lookahead: usize,
    /// Bytes of shard indexes that are kept.
    pub index_limit: usize,
    /// Bytes of the largest index.
    pub largest_index: usize,
    /// Jobs of a typical batch.
    pub batch_jobs: usize,
    /// Bytes of all decoded chunks that a typical batch needs.
    pub working_set: usize,
    /// With chunk-aware shuffling: bytes of all decoded chunks that samples are drawn from at a time.
    pub shuffled: Option<usize>,
    /// Whether the last output is the samples' index.
    pub index_output: bool,
    /// Which limits on host memory have room for chunks that are longer than others.
    pub room: Room,
}

/// Everything that the scheduler works with.
pub(crate) struct Setup {
    pub shared: Shared,
    pub rules: Rules,
    pub fetch: Box<dyn Fetch>,
    pub decode: Box<dyn Decode>,
    /// `Some` if batches are delivered to a GPU.
    pub lanes: Option<Box<dyn Lanes>>,
    /// Encoded bytes, in host memory (page-locked for a GPU).
    pub staging: Block,
    /// Decoded chunks, where batches are assembled; `None`: in `staging`.
    pub slots: Option<Block>,
    /// Encoded bytes on the device, if files are read to it.
    pub landing: Option<Block>,
    /// Whether chunks of files are read to the device.
    pub past_host: bool,
    /// Buffers for outputs, if batches are delivered to the CPU.
    pub pools: Vec<Arc<Pool>>,
    /// Asks the planner for one more batch.
    pub plan: Sender<()>,
    pub finished: Sender<Finished>,
    #[expect(dead_code, reason = "owned for its Drop")]
    /// The memory behind `staging` and `slots`. Last, so that all threads are gone before it is freed.
    pub memory: Vec<Box<dyn Send>>,
}

/// Planned jobs that are kept in memory at most (208 bytes each), but always those of two batches.
const MAX_PLANNED_JOBS: usize = 1 << 18;

/// With chunk-aware shuffling: batches that are planned beyond those that are looked at, so that the planner is hardly waited for.
const PLANS_TO_SPARE: usize = 2;

/// If nothing happens for so long while chunks are being copied to the device, it is asked whether they are there.
const QUIET: Duration = Duration::from_millis(5);

/// See the module.
pub(crate) struct Scheduler {
    pub(super) s: Setup,
    pub(super) batches: Batches,
    planned_jobs: usize,
    plans_asked: usize,
    /// Batches delivered but not taken.
    pub(super) untaken: usize,
    lent: VecDeque<DeviceBuffers>,
    pub(super) chunks: Table,
    pub(super) queue: Queue,
    /// How often a chunk began to be wanted.
    pub(super) wanted: u64,
    pub(super) groups: HashMap<GroupId, Group, BuildHasherDefault<IdHasher>>,
    pub(super) next_group: GroupId,
    /// Of local stores, and of remote ones.
    pub(super) reads_in_flight: [usize; 2],
    /// Reads that are over and being copied to the device by the threads that read them.
    pub(super) uploads_in_flight: usize,
    /// Reads of indexes, which hold none of the memory of chunks.
    pub(super) index_reads_in_flight: usize,
    pub(super) cpu_tasks_in_flight: usize,
    pub(super) shards: Shards,
    /// What the next read in the queue lacked.
    pub(super) lacking: Option<Lacking>,
    /// Fetched chunks that wait for a lane, and the bytes that the GPU must decode or copy for them.
    pub(super) pending: VecDeque<Handle>,
    pub(super) pending_encoded: usize,
    pub(super) pending_raw: usize,
    /// What can be served without decoding anything. On the CPU it goes to a decode thread as soon as possible; on the GPU
    /// it waits for the next wave.
    pub(super) loose: Wave,
    pub(super) idle_lanes: Vec<usize>,
    /// Decoded chunks that are kept for batches to come, by the first of them (`arrival::NOT_YET` if it isn't known): what may
    /// be dropped for others.
    pub(super) kept: BTreeSet<(u64, Handle)>,
    /// Set when a lane or thread died: every batch from then on fails with it.
    pub(super) broken: Option<Error>,
    /// Batches that failed while threads may still have been writing them: their memory lives as long as the threads.
    graveyard: Vec<Planned>,
}

impl Scheduler {
    pub fn new(setup: Setup) -> Self {
        let lanes = setup.lanes.as_ref().map_or(0, |l| l.count());
        let Rules { index_limit, largest_index, .. } = setup.rules;
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
            lacking: None,
            pending: VecDeque::new(),
            pending_encoded: 0,
            pending_raw: 0,
            loose: Wave::default(),
            idle_lanes: (0..lanes).rev().collect(),
            kept: BTreeSet::new(),
            broken: None,
            graveyard: Vec::new(),
        }
    }

    /// Runs until told to stop. Afterwards all threads that it used are gone.
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

    /// The chunks that a read under way is for, each with its decoded bytes and the number of the first batch that waits for it.
    pub fn chunks_of(&self, group: GroupId) -> impl Iterator<Item = (ChunkId, usize, u64)> + '_ {
        let members = self.groups.get(&group).map_or(&[][..], |g| &g.chunks);
        members.iter().filter_map(|&(handle, ..)| {
            let chunk = &self.chunks[handle];
            Some((chunk.id, chunk.place.decoded, chunk.users.first()?.0))
        })
    }

    /// Takes note of what happened.
    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Planned(plan) => self.planned(*plan),
            Event::Fetched(group, result) => {
                let remote = self.groups.get(&group).is_some_and(|g| g.remote);
                self.reads_in_flight[usize::from(remote)] -= 1;
                self.fetched(group, result);
            }
            Event::Uploading => {
                // Threads upload, which read local stores.
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
                        Some(e) => self.settle(handle, State::Failed(e.clone())),
                        None => self.requeue(handle),
                    }
                }
            }
            Event::Decoded(outcomes, served, pinned) => {
                self.cpu_tasks_in_flight -= 1;
                if self.s.lanes.is_some() {
                    outcomes.into_iter().for_each(|o| self.bounced(o));
                } else {
                    self.completed(outcomes, &served, &pinned);
                }
            }
            Event::Copied(groups) => groups.into_iter().for_each(|(group, n)| self.release_group(group, n)),
            Event::Wave(WaveDone { lane, outcomes, served, pinned, result }) => {
                self.idle_lanes.push(lane);
                if let Err(e) = result {
                    self.breaks(e);
                }
                self.completed(outcomes, &served, &pinned);
            }
            Event::Lent(buffers) => self.lent.push_back(buffers),
            Event::Taken => self.untaken -= 1,
            Event::Died(e) => self.breaks(e),
            Event::Stop => {}
        }
    }

    /// Does all that can be done now.
    pub(super) fn pump(&mut self) {
        loop {
            self.ask_for_plans();
            self.activate();
            self.admit();
            self.flush_loose();
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
            if plans >= self.s.rules.window + self.s.rules.lookahead + spare || (plans >= 2 && jobs >= MAX_PLANNED_JOBS)
            {
                return;
            }
            self.plans_asked += 1;
            // The planner lives as long as this scheduler.
            let _ = self.s.plan.send(());
        }
    }

    fn planned(&mut self, plan: Plan) {
        let Plan { batch: plan, places, shards } = plan;
        self.plans_asked -= 1;
        // Indexes are read long before their chunks are wanted.
        for (shard, of) in shards {
            if self.shards.expect(shard) {
                self.index_reads_in_flight += 1;
                self.s.fetch.index(shard, self.s.shared.catalog.key(of));
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

    /// Whether as many batches are planned as the next one to become active should have behind it. Chunks that many batches
    /// need in no order are dropped too early if the planner is late; otherwise it needn't be waited for.
    fn planned_ahead(&self) -> bool {
        self.s.rules.shuffled.is_none()
            || self.plans_asked == 0
            || self.batches.list.len() > self.batches.active + self.s.rules.lookahead
    }

    /// Whether the batch after the active ones was asked for, but isn't known yet.
    pub(super) fn planner_is_late(&self) -> bool {
        self.plans_asked > 0 && self.batches.list.len() <= self.batches.active
    }

    /// Gives outputs to batches while there are any, and serves them with what is there already.
    fn activate(&mut self) {
        while self.broken.is_none()
            && self.batches.active < self.batches.list.len()
            && self.batches.active + self.untaken < self.s.rules.window
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

    /// The pads, the index, and the chunks that are there.
    fn start(&mut self, at: usize) {
        let number = self.batches.first + at as u64;
        let batch = &mut self.batches.list[at];
        if self.s.rules.index_output {
            let bytes: Vec<u8> = batch.plan.starts.iter().flat_map(|s| s.to_ne_bytes()).collect();
            let to = *batch.outputs.last().expect("the index is an output");
            if self.s.lanes.is_some() {
                self.loose.uploads.push((to, bytes));
                self.loose.work.serves(number, batch.ready());
            } else if let Some(buffer) = batch.host.last_mut() {
                buffer.fill_from(&bytes);
            }
        }
        if !batch.plan.pads.is_empty() {
            self.loose.work.serves(number, batch.ready());
            let pads = batch.plan.pads.iter().map(|job| resolved(job, &batch.outputs, From::Slot(0, Layout::NONE)));
            self.loose.work.jobs.extend(pads);
        }
        for i in 0..batch.plan.uses.len() {
            let handle = self.batches.list[at].handles[i];
            let chunk = &self.chunks[handle];
            if chunk.state.settled() {
                // Users are in order and earlier batches were served when they became active, so this one is the first.
                debug_assert_eq!(chunk.users.first(), Some(&(number, i as u32)));
                self.serve_settled(handle);
            }
        }
    }

    /// Hands out finished batches, in order; true if there was one.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(batch) = self.batches.list.front() {
            let done = batch.remaining == 0 && batch.active();
            if !done && (self.broken.is_none() || self.untaken >= self.s.rules.window) {
                break;
            }
            let Some(mut batch) = self.batches.list.pop_front() else { break };
            self.batches.first += 1;
            self.batches.active = self.batches.active.saturating_sub(1);
            self.queue.deliver();
            self.planned_jobs -= batch.plan.jobs.len();
            self.untaken += 1;
            let error = batch.error.take().or_else(|| if done { None } else { self.broken.clone() });
            let finished = match error {
                None => {
                    Stats::add(&self.s.shared.stats.batches, 1);
                    Ok(Batch { host: batch.host, buffers: batch.lent.map(|l| l.id) })
                }
                Some(e) if done => {
                    // The outputs stay: nobody is going to see what is in them.
                    self.lent.extend(batch.lent);
                    Err(e)
                }
                Some(e) => {
                    self.graveyard.push(batch);
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
            // No plan may ever come any more; whoever waits must hear of it.
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
