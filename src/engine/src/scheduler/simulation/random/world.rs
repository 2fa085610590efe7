//! The store, the threads and the lanes of a random world: how long each piece of work takes, how it ends, and what
//! memory must hold before and after it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use dali_zarr_kernels::{Job, Layout};

use super::Random;
use super::faults::{Faults, MissingKeys};
use crate::chunk_index::{ChunkIndex, Entries, Location, Plan, Route, ShardId, ShardIndex};
use crate::error::{Error, Result};
use crate::memory::Lease;
use crate::messages::{
    Content, Event, Handle, Item, ItemDone, Outcome, Payload, Read, ReadDone, ReadId, ReadRange, Task, TaskDone, Wave,
    WaveDone,
};
use crate::order::{Order, Sample};
use crate::plan::ChunkId;
use crate::random::{below, mix};
use crate::scheduler::simulation::expected::Batched;
use crate::scheduler::simulation::memory::{Held, Memory, Span};
use crate::scheduler::simulation::{SimulatedWork, World};
use crate::scheduler::{Finished, Scheduler};

/// The surroundings of one scheduler.
pub(super) struct RandomWorld<'a> {
    pub random: Random,
    pub unusual: bool,
    pub chunk_index: &'a ChunkIndex,
    pub missing: MissingKeys<'a>,
    pub faults: Faults,
    pub order: Order,
    pub next_sample: u64,
    pub batch_size: u64,
    /// Number of batches that are still to be planned. Batches after them are empty.
    pub to_plan: u64,
    /// Usual longest duration of each kind of work, in nanoseconds. The order of the kinds is in [`World::begin`].
    pub times: [u64; 6],
    pub planner_takes_time: bool,
    pub eager: f64,
    pub memory: Memory,
    pub batches: Batched,
    /// For each read its chunks, and the address to which the bytes of each chunk go.
    pub reads: HashMap<ReadId, Vec<(ChunkId, u64)>>,
    /// The last read of each chunk that was read in place.
    pub in_place: HashMap<ChunkId, ReadId>,
    pub failed: HashSet<ChunkId>,
    pub failed_shards: HashSet<ShardId>,
    /// Whether a lane or a thread died. Then the world only checks that every batch comes to an end.
    pub broken: bool,
    /// Number of pieces of work that may still begin before the reader is dropped.
    pub left: u64,
    /// Whether the reader was dropped because of this number.
    pub dropped: bool,
}

impl RandomWorld<'_> {
    /// Checks the next batch, which was delivered, and returns its samples: none after a thread died.
    ///
    /// # Errors
    /// If it is incomplete, or failed though none of its chunks did.
    pub fn delivered(&mut self, finished: &Finished) -> Result<Vec<Sample>> {
        if self.broken {
            return Ok(Vec::new());
        }
        let (failed, shards, chunk_index) = (&self.failed, &self.failed_shards, self.chunk_index);
        self.batches.deliver(finished, |id| {
            let index = match chunk_index.location(id) {
                Location::Shard(shard, _) | Location::Unread(shard) => shards.contains(&shard),
                Location::Key | Location::Range(_) => false,
            };
            failed.contains(&id) || index
        })
    }

    fn begin_read(&mut self, read: &Read, to: Span, scheduler: &Scheduler) -> Result<()> {
        let state =
            scheduler.reads.get(read.id).ok_or_else(|| Error::runtime("a read that the scheduler doesn't know"))?;
        let chunk = |handle: Handle| scheduler.chunks[handle].id();
        let members = state.chunks.iter().map(|c| (chunk(c.handle), to.address + c.offset as u64));
        let members: Vec<_> = members.collect();
        if state.in_place {
            self.in_place.extend(members.iter().map(|&(id, _)| (id, read.id)));
        }
        self.reads.insert(read.id, members);
        self.memory.begin(to, Held::Reading(read.id))?;
        for (id, slot) in uploaded(read, scheduler) {
            self.memory.begin(slot, Held::Decoding(id))?;
        }
        Ok(())
    }

    fn end_read(
        &mut self,
        read: Read,
        lease: Lease,
        copying: bool,
        scheduler: &Scheduler,
    ) -> Result<(Vec<Event>, Option<SimulatedWork>)> {
        let members = self.reads.get(&read.id).cloned().unwrap_or_default();
        let (id, to) = (read.id, Span::from(&lease));
        if copying {
            for (id, slot) in uploaded(&read, scheduler) {
                self.memory.change(slot, Held::Decoding(id), Held::Decoded(id))?;
            }
            return Ok((vec![Event::Uploaded(ReadDone { id, to: lease, result: Ok(Some(to.len)) })], None));
        }
        let abandon = |world: &mut Self| -> Result<()> {
            world.memory.change(to, Held::Reading(read.id), Held::Nothing)?;
            for (id, slot) in uploaded(&read, scheduler) {
                world.memory.change(slot, Held::Decoding(id), Held::Nothing)?;
            }
            Ok(())
        };
        let in_shard = matches!(read.range, ReadRange::From(_));
        if self.random.chance(self.faults.read) {
            abandon(self)?;
            self.failed.extend(members.iter().map(|m| m.0));
            // A shard that vanishes while it is read is a failure. If another object vanishes, the read itself is an
            // error.
            let result = if in_shard && read.object.name.is_none() && self.random.chance(0.3) {
                Ok(None)
            } else {
                Err(fault("a read"))
            };
            return Ok((vec![Event::Fetched(ReadDone { id, to: lease, result })], None));
        }
        if !in_shard && self.missing.chunk(members[0].0) {
            abandon(self)?;
            return Ok((vec![Event::Fetched(ReadDone { id, to: lease, result: Ok(None) })], None));
        }
        let len = match read.range {
            ReadRange::Whole => self.whole(members[0].0),
            ReadRange::Exact | ReadRange::From(_) => to.len,
        };
        if len > to.len {
            // Nothing is read. The memory may be too small for an oversized chunk.
            self.failed.insert(members[0].0);
            abandon(self)?;
            return Ok((vec![Event::Fetched(ReadDone { id, to: lease, result: Ok(Some(len)) })], None));
        }
        self.memory.change(to, Held::Reading(read.id), Held::Read(read.id))?;
        Ok(match read.uploads.is_empty() {
            true => (vec![Event::Fetched(ReadDone { id, to: lease, result: Ok(Some(len)) })], None),
            false => (vec![Event::Uploading], Some(SimulatedWork::Read { read, to: lease, copying: true })),
        })
    }

    /// Returns the encoded bytes of a chunk that has a key of its own. In an unusual world, one chunk in 16 has more
    /// than is usual.
    fn whole(&self, id: ChunkId) -> usize {
        let (format, decoded) = (&self.chunk_index.part(id).format, self.chunk_index.decoded_bytes(id));
        let (usual, most) = (format.usual_encoded_bytes(decoded), format.max_encoded_bytes(decoded));
        let bits = self.missing.bits([2, id.array.into(), id.part.into(), id.index]);
        let oversized = self.unusual && bits.is_multiple_of(16);
        let least = if oversized { usual + 1 } else { 1 };
        let end = if oversized { most.min(2 * usual) } else { usual };
        least + below(mix(bits), (end + 1).saturating_sub(least) as u64) as usize
    }

    fn index(&mut self, shard: ShardId) -> Event {
        if self.random.chance(self.faults.index) {
            self.failed_shards.insert(shard);
            return Event::Index(shard, Err(fault("an index")));
        }
        if self.chunk_index.sharded(shard.array, shard.part).is_some() && self.missing.shard(shard) {
            return Event::Index(shard, Ok(None));
        }
        if self.chunk_index.sharded(shard.array, shard.part).is_none() {
            // An index of the store itself.
            return Event::Index(
                shard,
                Ok(Some(Arc::new(ShardIndex { entries: Entries::Read(Vec::new()), version: None }))),
            );
        }
        let part = &self.chunk_index.dataset.arrays[shard.array as usize].parts[shard.part as usize];
        let route = self.chunk_index.routes[shard.array as usize][shard.part as usize];
        let (slots, decoded) = (self.chunk_index.sharding(shard).entries(), part.largest_bytes);
        let usual = part.format.usual_encoded_bytes(decoded) as u64;
        let most = (part.format.max_encoded_bytes(decoded) as u64).min(2 * usual);
        let gap = [0, 100, 1 << 20][self.random.below(3) as usize];
        let mut at = self.random.below(1000);
        let mut places: Vec<(u64, u64)> = (0..slots)
            .map(|_| {
                let oversized = self.unusual && most > usual && self.random.chance(0.03);
                let len = match route {
                    Route::Raw => decoded as u64,
                    _ if oversized => {
                        // The memory may be too small for such a chunk.
                        self.failed_shards.insert(shard);
                        usual + 1 + self.random.below(most - usual)
                    }
                    _ => 1 + self.random.below(usual),
                };
                at += len + self.random.below(gap + 1);
                (at - len, len)
            })
            .collect();
        // Writers that encode in parallel store the chunks of a shard in any order. Chunks of one length may change
        // places.
        for i in (1..places.len()).rev() {
            places.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        let entries = places.into_iter().map(Some).collect();
        Event::Index(shard, Ok(Some(Arc::new(ShardIndex { entries: Entries::Read(entries), version: None }))))
    }

    /// Checks that encoded bytes are those of the chunk.
    fn expect_encoded(&mut self, id: ChunkId, read: ReadId, bytes: Span) -> Result<()> {
        if !self.memory.holds(bytes) {
            return Ok(());
        }
        let members = self.reads.get(&read).ok_or_else(|| Error::runtime("bytes of an unknown read"))?;
        if !members.contains(&(id, bytes.address)) {
            return Err(Error::runtime(format!(
                "{id:?} is decoded from {bytes:?}, but read {read} brought it elsewhere"
            )));
        }
        self.memory.expect(bytes, Held::Read(read))
    }

    /// Checks that the bytes of an item are those of its chunk. Returns the read that brought them.
    fn expect_item(&mut self, item: &Item) -> Result<ReadId> {
        let (read, bytes) = match &item.encoded {
            Some(Payload { read, bytes }) => (*read, Span::from(bytes)),
            None => {
                let read = self.in_place.get(&item.id).copied();
                (read.ok_or_else(|| Error::runtime("a chunk without bytes is decoded"))?, Span::from(&item.decoded))
            }
        };
        self.expect_encoded(item.id, read, bytes)?;
        Ok(read)
    }

    /// Checks that jobs would read the right chunks now.
    fn expect_jobs(&mut self, jobs: &[Job], scheduler: &Scheduler) -> Result<()> {
        for job in jobs {
            if let Some(chunk) = self.batches.chunk_of(job, &scheduler.batches, |id| self.missing.chunk(id))? {
                self.memory.expect(Span { address: job.src, len: 1 }, Held::Decoded(chunk))?;
            }
        }
        Ok(())
    }

    fn run_jobs(&mut self, jobs: &[Job], scheduler: &Scheduler) -> Result<()> {
        self.expect_jobs(jobs, scheduler)?;
        jobs.iter().try_for_each(|job| self.batches.done(job.dst, &scheduler.batches))
    }

    fn begin_task(&mut self, task: &Task, scheduler: &Scheduler) -> Result<()> {
        for item in &task.items {
            self.expect_item(item)?;
            if item.encoded.is_some() {
                self.memory.begin(Span::from(&item.decoded), Held::Decoding(item.id))?;
            }
        }
        self.expect_jobs(&task.assembly.jobs[task.ready_jobs.clone()], scheduler)
    }

    fn end_task(&mut self, task: Task, scheduler: &Scheduler) -> Result<Vec<Event>> {
        let mut items = Vec::new();
        let mut run: Vec<Range<usize>> = Vec::new();
        for item in task.items {
            let read = self.expect_item(&item)?;
            let good = !self.random.chance(self.faults.decode);
            let before = if item.encoded.is_none() { Held::Read(read) } else { Held::Decoding(item.id) };
            let after = if good { Held::Decoded(item.id) } else { Held::Nothing };
            let decoded = Span::from(&item.decoded);
            self.memory.change(decoded, before, after)?;
            let result = if good {
                if !self.memory.holds(decoded) {
                    // It is decoded to an output.
                    self.batches.done(decoded.address, &scheduler.batches)?;
                }
                run.push(item.jobs.clone());
                Ok(Layout::NONE)
            } else {
                self.failed.insert(item.id);
                Err(fault("a decoder"))
            };
            let outcome = Outcome { handle: item.handle, result };
            items.push(ItemDone { outcome, encoded: item.encoded, decoded: item.decoded });
        }
        run.push(task.ready_jobs.clone());
        run.into_iter().try_for_each(|jobs| self.run_jobs(&task.assembly.jobs[jobs], scheduler))?;
        Ok(vec![Event::Decoded(TaskDone { items, served: task.assembly.served, pinned: task.pinned })])
    }

    fn expect_wave(&mut self, wave: &Wave) -> Result<()> {
        if wave.chunks.len() != wave.payloads.len() {
            return Err(Error::runtime("a wave has chunks without bytes"));
        }
        for (chunk, Payload { read, bytes }) in wave.chunks.iter().zip(&wave.payloads) {
            match (chunk.content, self.reads.contains_key(read)) {
                (Content::Encoded, _) | (Content::Decoded, true) => {
                    self.expect_encoded(chunk.id, *read, bytes.into())?;
                }
                (Content::Decoded, false) => self.memory.expect(bytes.into(), Held::Decoded(chunk.id))?,
            }
        }
        Ok(())
    }

    fn begin_wave(&mut self, wave: &Wave, scheduler: &Scheduler) -> Result<()> {
        self.expect_wave(wave)?;
        for chunk in &wave.chunks {
            let slot = Span { address: chunk.slot, len: chunk.decoded_bytes };
            self.memory.begin(slot, Held::Decoding(chunk.id))?;
        }
        self.expect_jobs(&wave.assembly.jobs[wave.ready_jobs.clone()], scheduler)
    }

    fn end_wave(&mut self, lane: usize, wave: Wave, scheduler: &Scheduler) -> Result<Event> {
        if self.random.chance(self.faults.lane) {
            self.broken = true;
            let failed = |c: &crate::messages::WaveChunk| Outcome { handle: c.handle, result: Err(fault("a lane")) };
            let outcomes = wave.chunks.iter().map(failed).collect();
            let (served, pinned) = (wave.assembly.served, wave.pinned);
            return Ok(Event::Wave(WaveDone { lane, outcomes, served, pinned, result: Err(fault("a lane")) }));
        }
        let mut outcomes = Vec::new();
        let mut run = vec![wave.ready_jobs.clone()];
        for chunk in &wave.chunks {
            let good = !self.random.chance(self.faults.decode);
            let slot = Span { address: chunk.slot, len: chunk.decoded_bytes };
            let after = if good { Held::Decoded(chunk.id) } else { Held::Nothing };
            self.memory.change(slot, Held::Decoding(chunk.id), after)?;
            let result = if good {
                run.push(chunk.jobs.clone());
                Ok(Layout::NONE)
            } else {
                self.failed.insert(chunk.id);
                Err(fault("a decoder"))
            };
            outcomes.push(Outcome { handle: chunk.handle, result });
        }
        run.into_iter().try_for_each(|jobs| self.run_jobs(&wave.assembly.jobs[jobs], scheduler))?;
        let (served, pinned) = (wave.assembly.served, wave.pinned);
        Ok(Event::Wave(WaveDone { lane, outcomes, served, pinned, result: Ok(()) }))
    }

    /// Returns the events of work that ends after a thread died.
    fn end_broken(&mut self, work: SimulatedWork) -> Vec<Event> {
        let failed = |handle| Outcome { handle, result: Err(fault("everything")) };
        match work {
            SimulatedWork::Read { read, to, copying } => {
                let done = ReadDone { id: read.id, to, result: Err(fault("everything")) };
                vec![if copying { Event::Uploaded(done) } else { Event::Fetched(done) }]
            }
            SimulatedWork::Index(shard) => vec![Event::Index(shard, Err(fault("everything")))],
            SimulatedWork::Task(task) => {
                let item = |i: Item| ItemDone { outcome: failed(i.handle), encoded: i.encoded, decoded: i.decoded };
                let items = task.items.into_iter().map(item).collect();
                vec![Event::Decoded(TaskDone { items, served: task.assembly.served, pinned: task.pinned })]
            }
            SimulatedWork::Wave { lane, wave, .. } => {
                let outcomes = wave.chunks.iter().map(|c| failed(c.handle)).collect();
                let copied = Event::Copied(wave.payloads);
                let (served, pinned) = (wave.assembly.served, wave.pinned);
                let done = Event::Wave(WaveDone { lane, outcomes, served, pinned, result: Err(fault("everything")) });
                vec![copied, done]
            }
            SimulatedWork::Plan | SimulatedWork::Lend(_) => Vec::new(),
        }
    }
}

/// Returns the chunks that a read copies to the device, and where. Other chunks of a merged read may be decoded from
/// host memory.
fn uploaded<'a>(read: &'a Read, scheduler: &'a Scheduler) -> impl Iterator<Item = (ChunkId, Span)> + 'a {
    let chunks = scheduler.reads.get(read.id).map_or(&[][..], |state| &state.chunks);
    let handles = chunks.iter().map(|chunk| chunk.handle).filter(|&handle| scheduler.is_uploaded(handle));
    handles
        .zip(&read.uploads)
        .map(|(handle, part)| (scheduler.chunks[handle].id(), Span { address: part.to, len: part.len }))
}

fn fault(what: &str) -> Error {
    Error::runtime(format!("{what} fails in this world"))
}

impl World for RandomWorld<'_> {
    fn begin(&mut self, now: u64, work: &SimulatedWork, scheduler: &Scheduler) -> Result<u64> {
        let begun = matches!(
            work,
            SimulatedWork::Lend(_)
                | SimulatedWork::Read { copying: true, .. }
                | SimulatedWork::Wave { copied: true, .. }
        );
        if !begun && self.left == 0 {
            self.dropped = true;
            return Err(Error::runtime("the reader is dropped in this world"));
        }
        self.left -= u64::from(!begun);
        let kind = match work {
            SimulatedWork::Plan => 0,
            SimulatedWork::Read { read, to, copying } => {
                if !copying {
                    self.begin_read(read, to.into(), scheduler)?;
                }
                1
            }
            SimulatedWork::Index(_) => 2,
            SimulatedWork::Task(task) => {
                if !self.broken {
                    self.begin_task(task, scheduler)?;
                }
                3
            }
            SimulatedWork::Wave { wave, copied, .. } => {
                if !copied && !self.broken {
                    self.begin_wave(wave, scheduler)?;
                }
                4
            }
            SimulatedWork::Lend(_) => 5,
        };
        let long = if self.random.chance(0.03) { 50 } else { 1 };
        Ok(now + long * (1 + self.random.below(self.times[kind])))
    }

    fn end(&mut self, work: SimulatedWork, scheduler: &Scheduler) -> Result<(Vec<Event>, Option<SimulatedWork>)> {
        let died = !self.broken && self.random.chance(self.faults.died);
        self.broken |= died;
        if self.broken {
            let mut events = self.end_broken(work);
            if died {
                events.insert(0, Event::Died(fault("a thread")));
            }
            return Ok((events, None));
        }
        Ok(match work {
            SimulatedWork::Read { read, to, copying } => self.end_read(read, to, copying, scheduler)?,
            SimulatedWork::Index(shard) => (vec![self.index(shard)], None),
            SimulatedWork::Task(task) => (self.end_task(task, scheduler)?, None),
            SimulatedWork::Wave { lane, mut wave, copied: false } => {
                self.expect_wave(&wave)?;
                let copied = Event::Copied(std::mem::take(&mut wave.payloads));
                (vec![copied], Some(SimulatedWork::Wave { lane, wave, copied: true }))
            }
            SimulatedWork::Wave { lane, wave, copied: true } => (vec![self.end_wave(lane, wave, scheduler)?], None),
            SimulatedWork::Plan | SimulatedWork::Lend(_) => (Vec::new(), None),
        })
    }

    fn plan(&mut self) -> Plan {
        let batch = if self.to_plan > 0 { self.batch_size } else { 0 };
        self.to_plan = self.to_plan.saturating_sub(1);
        let samples: Vec<Sample> = (self.next_sample..self.next_sample + batch).map(|k| self.order.sample(k)).collect();
        self.next_sample += batch;
        let plan = self.chunk_index.plan(&samples);
        self.batches.plan(samples, &plan.batch);
        plan
    }

    fn planner_takes_time(&self) -> bool {
        self.planner_takes_time
    }

    fn takes_now(&mut self) -> bool {
        self.random.chance(self.eager)
    }
}
