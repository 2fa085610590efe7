//! Decides what is read, decoded and assembled when. It alone has state; it never blocks on anything but events.
//!
//! A batch is *planned*, becomes *active* when it gets memory for its outputs, and is delivered, in order, when all its
//! uses of chunks have been served. Chunks are admitted in the order in which active batches need them, and only with
//! all the memory that they will need until they are decoded: whatever is admitted can finish, so there is no deadlock.
//! A decoded chunk stays while a planned batch needs it, unless memory is short: then the one needed last goes first.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender};
use dali_zarr_kernels::{Job, Source};

use super::catalog::{Location, Route};
use super::chunks::{Chunk, Group, Planned, State};
use super::shards::{Known, Shards};
use super::stats::Stats;
use super::tasks::{GroupId, Item, Outcome, Served, Shared, Task};
use super::wave::{Lanes, Wave, WaveDone};
use super::{DecodePool, Event, FetchPool};
use crate::error::{Error, Result};
use crate::memory::{Pool, arena, arena::Arena};
use crate::plan::{ChunkId, ChunkMap};
use crate::reader::{Batch, DeviceBuffers};

/// Decode tasks hold about this many decoded bytes: enough to make handing them over cheap.
const TASK_BYTES: usize = 256 << 10;

/// What the consumer receives.
pub(crate) type Finished = Result<Batch>;

/// Memory that chunks live in: an arena and the address of its first byte.
pub(crate) struct Block {
    pub arena: Arena,
    pub base: u64,
}

/// Everything that the scheduler works with.
pub(crate) struct Setup {
    pub shared: Shared,
    pub fetch: FetchPool,
    pub decode: DecodePool,
    /// `Some` if batches are delivered to a GPU.
    pub lanes: Option<Box<dyn Lanes>>,
    /// Encoded bytes, in host memory (page-locked for a GPU).
    pub staging: Block,
    /// Decoded chunks, where batches are assembled; `None`: in `staging`.
    pub slots: Option<Block>,
    /// Buffers for outputs, if batches are delivered to the CPU.
    pub pools: Vec<Arc<Pool>>,
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
    /// Whether the last output is the samples' index.
    pub index_output: bool,
    /// Asks the planner for one more batch.
    pub plan: Sender<()>,
    pub finished: Sender<Finished>,
    #[expect(dead_code, reason = "owned for its Drop")]
    /// The memory behind `staging` and `slots`. Last, so that all threads are gone before it is freed.
    pub memory: Vec<Box<dyn Send>>,
}

/// Planned jobs that are kept in memory at most (208 bytes each), but always those of two batches.
const MAX_PLANNED_JOBS: usize = 1 << 18;

/// See the module.
pub(crate) struct Scheduler {
    pub(super) s: Setup,
    /// Number of the first batch in `batches`.
    pub(super) first: u64,
    pub(super) batches: VecDeque<Planned>,
    /// Batches of `batches` (a prefix) that are active.
    pub(super) active: usize,
    pub(super) planned_jobs: usize,
    pub(super) plans_asked: usize,
    /// Batches delivered but not taken.
    pub(super) untaken: usize,
    pub(super) lent: VecDeque<DeviceBuffers>,
    pub(super) chunks: ChunkMap<Chunk>,
    /// By first user, then by order of wanting.
    pub(super) want: BTreeSet<(u64, u64, ChunkId)>,
    pub(super) wanted: u64,
    pub(super) groups: HashMap<GroupId, Group>,
    pub(super) next_group: GroupId,
    pub(super) reads_in_flight: usize,
    /// Reads of indexes, which hold none of the memory of chunks.
    pub(super) index_reads_in_flight: usize,
    pub(super) cpu_tasks_in_flight: usize,
    pub(super) shards: Shards,
    /// What the next read in the queue lacked: bytes of staging and of slots.
    pub(super) lacking: Option<(usize, usize)>,
    /// Fetched chunks that wait for a lane, and the bytes that the GPU must decode or copy for them.
    pub(super) pending: VecDeque<ChunkId>,
    pub(super) pending_encoded: usize,
    pub(super) pending_raw: usize,
    pub(super) loose: Wave,
    pub(super) idle_lanes: Vec<usize>,
    /// Decoded chunks that are kept for batches to come, by the first of them: what may be dropped for others.
    pub(super) kept: BTreeSet<(u64, ChunkId)>,
    /// Set when a lane or thread died: every batch from then on fails with it.
    pub(super) broken: Option<Error>,
    /// Batches that failed while threads may still have been writing them: their memory lives as long as the threads.
    pub(super) graveyard: Vec<Planned>,
}

impl Scheduler {
    pub fn new(setup: Setup) -> Self {
        let lanes = setup.lanes.as_ref().map_or(0, |l| l.count());
        let (index_limit, largest_index) = (setup.index_limit, setup.largest_index);
        Self {
            s: setup,
            first: 0,
            batches: VecDeque::new(),
            active: 0,
            planned_jobs: 0,
            plans_asked: 0,
            untaken: 0,
            lent: VecDeque::new(),
            chunks: ChunkMap::default(),
            want: BTreeSet::new(),
            wanted: 0,
            groups: HashMap::new(),
            next_group: 0,
            reads_in_flight: 0,
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
            let Ok(event) = events.recv() else { break };
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

    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Planned(plan, shards) => {
                // Indexes are read long before their chunks are wanted.
                for (shard, of) in shards {
                    if self.shards.expect(shard) {
                        self.index_reads_in_flight += 1;
                        self.s.fetch.index(shard, self.s.shared.catalog.key(of));
                    }
                }
                self.planned(plan);
            }
            Event::Fetched(group, result) => self.fetched(group, result),
            Event::Index(shard, result) => {
                self.index_reads_in_flight -= 1;
                let (known, error) = match result {
                    Ok(Some(index)) => (Some(Known::Index(index)), None),
                    Ok(None) => (Some(Known::Missing), None),
                    Err(e) => (None, Some(e)),
                };
                for id in self.shards.set(shard, known) {
                    match &error {
                        Some(e) => self.settle(id, State::Failed(e.clone())),
                        None => self.requeue(id),
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
            Event::Copied(groups) => groups.into_iter().for_each(|g| self.release_group(g)),
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
            self.launch();
            if !self.deliver() {
                return;
            }
        }
    }

    // ---- batches ----

    pub(super) fn ask_for_plans(&mut self) {
        loop {
            let plans = self.batches.len() + self.plans_asked;
            let jobs = self.planned_jobs + self.plans_asked * self.s.batch_jobs;
            if plans >= self.s.window + self.s.lookahead || (plans >= 2 && jobs >= MAX_PLANNED_JOBS) {
                return;
            }
            self.plans_asked += 1;
            // The planner lives as long as this scheduler.
            let _ = self.s.plan.send(());
        }
    }

    pub(super) fn planned(&mut self, plan: crate::plan::BatchPlan) {
        self.plans_asked -= 1;
        let batch = self.first + self.batches.len() as u64;
        for (i, chunk_use) in plan.uses.iter().enumerate() {
            let id = chunk_use.chunk;
            let chunk = self.chunks.entry(id).or_insert_with(|| {
                self.wanted += 1;
                self.want.insert((batch, self.wanted, id));
                Chunk::wanted(self.wanted)
            });
            chunk.users.push_back((batch, i as u32));
        }
        self.planned_jobs += plan.jobs.len();
        let extra = u32::from(!plan.pads.is_empty()) + u32::from(self.s.index_output && self.s.lanes.is_some());
        let remaining = plan.uses.len() as u32 + extra;
        self.batches.push_back(Planned {
            plan,
            outputs: Vec::new(),
            host: Vec::new(),
            lent: None,
            remaining,
            error: self.broken.clone(),
        });
    }

    /// Gives outputs to batches while there are any, and serves them with what is there already.
    pub(super) fn activate(&mut self) {
        while self.broken.is_none() && self.active < self.batches.len() && self.active + self.untaken < self.s.window {
            let at = self.active;
            let batch = &mut self.batches[at];
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
            self.active += 1;
            let number = self.first + at as u64;
            let mut loose = std::mem::take(&mut self.loose);
            self.start(at, number, &mut loose);
            self.loose = loose;
            self.flush_loose();
        }
    }

    /// The pads, the index, and the chunks that are there.
    pub(super) fn start(&mut self, at: usize, number: u64, loose: &mut Wave) {
        let batch = &mut self.batches[at];
        if let Some(lent) = &batch.lent
            && lent.ready != 0
        {
            loose.after.push(lent.ready);
        }
        if self.s.index_output {
            let bytes: Vec<u8> = batch.plan.starts.iter().flat_map(|s| s.to_ne_bytes()).collect();
            let to = *batch.outputs.last().expect("the index is an output");
            if self.s.lanes.is_some() {
                loose.uploads.push((to, bytes));
                loose.served.push(Served { batch: number, uses: 1 });
            } else if let Some(buffer) = batch.host.last_mut() {
                buffer.fill_from(&bytes);
            }
        }
        if !batch.plan.pads.is_empty() {
            loose.served.push(Served { batch: number, uses: 1 });
            let outputs = &batch.outputs;
            loose.jobs.extend(batch.plan.pads.iter().map(|job| resolved(job, outputs, Some(0))));
        }
        let uses: Vec<(u32, ChunkId)> = batch.plan.uses.iter().enumerate().map(|(i, u)| (i as u32, u.chunk)).collect();
        for (i, id) in uses {
            let Some(chunk) = self.chunks.get_mut(&id) else { continue };
            if !matches!(chunk.state, State::Ready | State::Missing | State::Failed(_)) {
                continue;
            }
            // Users are in order and earlier batches were served when they became active, so this one is the first.
            debug_assert_eq!(chunk.users.front(), Some(&(number, i)));
            self.serve_settled(id, loose);
        }
    }

    /// Serves the active users of a chunk whose fate is known.
    pub(super) fn serve_settled(&mut self, id: ChunkId, loose: &mut Wave) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let slots = self.s.slots.as_ref().unwrap_or(&self.s.staging);
        if let Some(&(batch, _)) = chunk.users.front() {
            self.kept.remove(&(batch, id));
        }
        let mut pinned = false;
        while let Some(&(number, i)) = chunk.users.front() {
            let at = number.wrapping_sub(self.first) as usize;
            if at >= self.active {
                break;
            }
            chunk.users.pop_front();
            let batch = &mut self.batches[at];
            let src = match &chunk.state {
                State::Failed(e) => {
                    batch.error.get_or_insert_with(|| e.clone());
                    batch.remaining -= 1;
                    continue;
                }
                State::Missing => None,
                _ => chunk.slot.map(|slot| slots.base + slot.offset as u64),
            };
            let jobs = batch.plan.uses[i as usize].jobs.clone();
            loose.jobs.extend(batch.plan.jobs[jobs].iter().map(|job| resolved(job, &batch.outputs, src)));
            loose.served.push(Served { batch: number, uses: 1 });
            if let Some(lent) = &batch.lent
                && lent.ready != 0
            {
                loose.after.push(lent.ready);
            }
            if !pinned {
                pinned = true;
                chunk.pins += 1;
                loose.pinned.push(id);
            }
        }
        self.retire(id);
    }

    /// On the CPU loose jobs go to a decode thread at once; on the GPU they wait for the next wave.
    pub(super) fn flush_loose(&mut self) {
        if self.s.lanes.is_some() || self.loose.served.is_empty() {
            return;
        }
        let loose = std::mem::take(&mut self.loose);
        let n = loose.jobs.len();
        self.cpu_tasks_in_flight += 1;
        self.s.decode.run(Task {
            items: Vec::new(),
            jobs: loose.jobs,
            loose: 0..n,
            served: loose.served,
            pinned: loose.pinned,
        });
    }

    /// Hands out finished batches, in order; true if there was one.
    pub(super) fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(batch) = self.batches.front() {
            let done = batch.remaining == 0 && batch.active();
            if !done && self.broken.is_none() {
                break;
            }
            if !done && self.untaken >= self.s.window {
                break;
            }
            let Some(mut batch) = self.batches.pop_front() else { break };
            self.first += 1;
            self.active = self.active.saturating_sub(1);
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
        if self.batches.is_empty()
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
    pub(super) fn breaks(&mut self, error: Error) {
        self.broken.get_or_insert(error);
    }

    // ---- chunks ----

    /// Puts a chunk back in the queue, if anyone needs it still.
    pub(super) fn requeue(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        chunk.state = State::Wanted;
        match chunk.users.front() {
            Some(&(batch, _)) => {
                // In its old place: whoever is first stays first, however often it has to wait.
                self.want.insert((batch, chunk.order, id));
            }
            None => {
                self.chunks.remove(&id);
            }
        }
    }

    /// A chunk's fate is known before it was decoded: it is missing, or failed.
    pub(super) fn settle(&mut self, id: ChunkId, state: State) {
        if matches!(state, State::Missing) {
            Stats::add(&self.s.shared.stats.chunks_missing, 1);
        }
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let serving = std::mem::take(&mut chunk.serving);
        let (slot, bounce, payload) = (chunk.slot.take(), chunk.bounce.take(), chunk.payload.take());
        chunk.direct = None;
        if let State::Failed(e) = &state {
            for number in serving {
                let at = (number.wrapping_sub(self.first)) as usize;
                if let Some(batch) = self.batches.get_mut(at) {
                    batch.error.get_or_insert_with(|| e.clone());
                }
            }
        }
        chunk.state = state;
        if let Some(slot) = slot {
            self.slots().arena.release(slot);
        }
        if let Some(bounce) = bounce {
            self.s.staging.arena.release(bounce);
        }
        if let Some((group, _)) = payload {
            self.release_group(group);
        }
        let mut loose = std::mem::take(&mut self.loose);
        self.serve_settled(id, &mut loose);
        self.loose = loose;
        self.flush_loose();
    }

    /// Frees a settled chunk that nobody needs any more; one that only batches to come need is kept.
    pub(super) fn retire(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get(&id) else { return };
        if chunk.pins > 0 || !matches!(chunk.state, State::Ready | State::Missing | State::Failed(_)) {
            return;
        }
        if let Some(&(batch, _)) = chunk.users.front() {
            if chunk.slot.is_some() {
                self.kept.insert((batch, id));
            }
        } else {
            let slot = chunk.slot;
            self.chunks.remove(&id);
            if let Some(slot) = slot {
                self.slots().arena.release(slot);
            }
        }
    }

    pub(super) fn slots(&mut self) -> &mut Block {
        self.s.slots.as_mut().unwrap_or(&mut self.s.staging)
    }

    pub(super) fn release_group(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.remaining -= 1;
        if group.remaining == 0
            && let Some(Group { staging: Some(staging), .. }) = self.groups.remove(&id)
        {
            self.s.staging.arena.release(staging);
        }
    }

    /// Memory for `bytes` from an arena.
    pub(super) fn reserve(&mut self, slots: bool, bytes: usize) -> Option<arena::Range> {
        let block = if slots { self.slots() } else { &mut self.s.staging };
        block.arena.take(bytes)
    }

    /// Makes room for a chunk that batch `before` needs by dropping the decoded chunk that is needed last, if that is
    /// later. False if there is none.
    pub(super) fn evict(&mut self, before: u64) -> bool {
        let active_end = self.first + self.active as u64;
        let Some(&victim) = self.kept.last().filter(|(batch, _)| *batch > before && *batch >= active_end) else {
            return false;
        };
        self.kept.remove(&victim);
        Stats::add(&self.s.shared.stats.evictions, 1);
        if let Some(slot) = self.chunks.get_mut(&victim.1).and_then(|c| c.slot.take()) {
            self.slots().arena.release(slot);
        }
        self.requeue(victim.1);
        true
    }

    // ---- after reading ----

    pub(super) fn fetched(&mut self, id: GroupId, result: Result<Option<usize>>) {
        self.reads_in_flight -= 1;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let members = std::mem::take(&mut group.chunks);
        let to = group.to;
        let read = match result {
            Ok(Some(read)) => read,
            other => {
                for (chunk, ..) in members {
                    self.release_group(id);
                    let state = match &other {
                        Err(e) => State::Failed(e.clone()),
                        _ => State::Missing,
                    };
                    // A shard that vanished after its index was read: its chunks are no fill values.
                    let vanished = !matches!(self.s.shared.catalog.location(chunk), Location::Key);
                    let state = match state {
                        State::Missing if vanished => State::Failed(Error::runtime(format!(
                            "{}: the shard vanished while it was read",
                            self.s.shared.catalog.name(chunk)
                        ))),
                        state => state,
                    };
                    self.settle(chunk, state);
                }
                return;
            }
        };
        Stats::add(&self.s.shared.stats.chunks_read, members.len() as u64);
        if let Some(staging) = group.staging {
            group.staging = Some(self.s.staging.arena.shrink(staging, read));
        }
        for &(chunk, offset, len) in &members {
            let span = to.part(offset, len.unwrap_or(read));
            if let Some(chunk) = self.chunks.get_mut(&chunk) {
                chunk.payload = Some((id, span));
            }
        }
        let on_gpu = self.s.lanes.is_some();
        let mut items: Vec<ChunkId> = Vec::new();
        let mut bytes = 0;
        for (chunk, ..) in members {
            if on_gpu && self.s.shared.catalog.route(chunk) != Route::Cpu {
                self.queue_for_lane(chunk);
                continue;
            }
            bytes += self.s.shared.catalog.decoded_bytes(chunk);
            items.push(chunk);
            if bytes >= TASK_BYTES {
                self.decode(std::mem::take(&mut items));
                bytes = 0;
            }
        }
        if !items.is_empty() {
            self.decode(items);
        }
    }

    /// Gives chunks to a decode thread; if batches are delivered to the CPU, with the jobs of their active users.
    pub(super) fn decode(&mut self, ids: Vec<ChunkId>) {
        let catalog = Arc::clone(&self.s.shared.catalog);
        let mut task =
            Task { items: Vec::new(), jobs: Vec::new(), loose: 0..0, served: Vec::new(), pinned: Vec::new() };
        for id in ids {
            let shape = catalog.planner.chunk_shape(id);
            let decoded = self.decoded_span(id, catalog.decoded_bytes(id));
            let Some(encoded) = self.chunks[&id].payload.map(|p| p.1) else { continue };
            let first = task.jobs.len();
            if self.s.lanes.is_none() {
                self.serve_decoding(id, &mut task.jobs, &mut task.served, None);
            } else if let Some(chunk) = self.chunks.get_mut(&id) {
                chunk.state = State::Decoding;
                chunk.pins += 1;
            }
            let in_place = encoded == decoded;
            // A chunk that is decoded straight to its place needs no job.
            if self.chunks[&id].direct.is_some() {
                task.jobs.truncate(first);
            }
            task.items.push(Item { id, shape, encoded, decoded, in_place, jobs: first..task.jobs.len() });
        }
        let n = task.jobs.len();
        task.loose = n..n;
        self.cpu_tasks_in_flight += 1;
        self.s.decode.run(task);
    }

    /// Marks a chunk as being decoded, with the jobs of its active users.
    pub(super) fn serve_decoding(
        &mut self,
        id: ChunkId,
        jobs: &mut Vec<Job>,
        served: &mut Vec<Served>,
        after: Option<&mut Vec<u64>>,
    ) {
        let slots = self.s.slots.as_ref().unwrap_or(&self.s.staging);
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        chunk.state = State::Decoding;
        chunk.pins += 1;
        let src = chunk.slot.map_or(0, |slot| slots.base + slot.offset as u64);
        let mut events = Vec::new();
        while let Some(&(number, i)) = chunk.users.front() {
            let at = number.wrapping_sub(self.first) as usize;
            if at >= self.active {
                break;
            }
            // What goes straight to one place serves the one user that it was admitted for.
            if chunk.direct.is_some() && !chunk.serving.is_empty() {
                break;
            }
            chunk.users.pop_front();
            chunk.serving.push(number);
            let batch = &self.batches[at];
            let range = batch.plan.uses[i as usize].jobs.clone();
            jobs.extend(batch.plan.jobs[range].iter().map(|job| resolved(job, &batch.outputs, Some(src))));
            served.push(Served { batch: number, uses: 1 });
            events.extend(batch.lent.as_ref().map(|l| l.ready).filter(|&e| e != 0));
        }
        if let Some(after) = after {
            after.extend(events);
        }
    }

    /// Tasks or waves ended: chunks are there or failed, batches have been served.
    pub(super) fn completed(&mut self, outcomes: Vec<Outcome>, served: &[Served], pinned: &[ChunkId]) {
        for Served { batch, uses } in served {
            let at = batch.wrapping_sub(self.first) as usize;
            if let Some(batch) = self.batches.get_mut(at) {
                batch.remaining -= uses;
            }
        }
        for id in pinned {
            if let Some(chunk) = self.chunks.get_mut(id) {
                chunk.pins -= 1;
                self.retire(*id);
            }
        }
        for Outcome { id, result } in outcomes {
            let Some(chunk) = self.chunks.get_mut(&id) else { continue };
            chunk.pins -= 1;
            if let Err(e) = result {
                self.settle(id, State::Failed(e));
                continue;
            }
            chunk.serving.clear();
            chunk.direct = None;
            chunk.state = State::Ready;
            let (payload, bounce, slot) = (chunk.payload.take(), chunk.bounce.take(), chunk.slot);
            if let Some(bounce) = bounce {
                self.s.staging.arena.release(bounce);
            }
            if let Some((group, _)) = payload {
                self.release_group(group);
            }
            if slot.is_none() {
                self.requeue(id);
                continue;
            }
            let mut loose = std::mem::take(&mut self.loose);
            self.serve_settled(id, &mut loose);
            self.loose = loose;
        }
        self.flush_loose();
    }
}

/// A planned job with its addresses: of the outputs, and of the decoded chunk (`None`: it is missing, which makes it a
/// job that writes the fill value).
fn resolved(job: &Job, outputs: &[u64], src: Option<u64>) -> Job {
    let mut job = *job;
    job.dst += outputs[job.reserved as usize];
    job.reserved = 0;
    match src {
        Some(base) => job.src += base,
        None => {
            job.source = Source::Fill as u32;
            job.src = 0;
        }
    }
    job
}
