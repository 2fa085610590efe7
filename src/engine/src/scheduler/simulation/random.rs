//! Random worlds: work takes any time, ends in any order and sometimes fails, with any amount of memory. At each step
//! these promises of the scheduler are checked:
//! - it never waits when nothing is under way;
//! - no two pieces of work write to the same memory, and memory in use is not overwritten;
//! - each element of a delivered batch was written once, from the chunk that it lies in;
//! - a batch fails only if one of its chunks did;
//! - all memory is given back.
//!
//! A world is a function of its seed: the same seed gives the same world again.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dali_zarr_kernels::{Job, Layout};

use super::expected::Batched;
use super::memory::{Content, Memory};
use super::{Config, SimulatedWork, Simulation, World};
use crate::assemble::Ops;
use crate::chunk_index::{ChunkIndex, Entries, Location, Plan, Route, ShardId, ShardIndex};
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::messages::{
    Content as Bytes, Event, GroupId, Handle, Outcome, Read, ReadRange, Shared, Task, Wave, WaveDone,
};
use crate::order::{Order, Sample};
use crate::plan::ChunkId;
use crate::random::{GOLDEN, below, key, mix};
use crate::scheduler::Scheduler;
use crate::scheduler::chunks::ChunkState;
use crate::scheduler::memory::MemoryKind;
use crate::stats::Stats;

/// Random numbers from a seed.
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(key(&[seed]))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        below(self.next(), n)
    }

    /// Whether something happens that has this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }
}

/// The probabilities of faults in one world.
#[derive(Clone, Copy, Default)]
struct Faults {
    read: f64,
    index: f64,
    decode: f64,
    lane: f64,
    died: f64,
}

/// The keys that the store of a world lacks.
#[derive(Clone, Copy)]
struct MissingKeys<'a> {
    seed: u64,
    chunk_index: &'a ChunkIndex,
    /// The share of chunks that have keys of their own, and of whole shards.
    share: f64,
}

impl MissingKeys<'_> {
    fn bits(&self, numbers: [u64; 4]) -> u64 {
        key(&[self.seed, numbers[0], numbers[1], numbers[2], numbers[3]])
    }

    fn is(&self, numbers: [u64; 4]) -> bool {
        ((self.bits(numbers) >> 11) as f64 / (1u64 << 53) as f64) < self.share
    }

    fn shard(&self, shard: ShardId) -> bool {
        self.is([1, shard.array.into(), shard.part.into(), shard.index])
    }

    fn chunk(&self, id: ChunkId) -> bool {
        match self.chunk_index.location(id) {
            Location::Shard(shard, _) => self.shard(shard),
            Location::Key | Location::Range(_) | Location::Unread(_) => {
                self.is([0, id.array.into(), id.part.into(), id.index])
            }
        }
    }
}

/// The surroundings of one scheduler.
struct RandomWorld<'a> {
    random: Random,
    unusual: bool,
    chunk_index: &'a ChunkIndex,
    missing: MissingKeys<'a>,
    faults: Faults,
    order: Order,
    next_sample: u64,
    batch_size: u64,
    /// Batches that are still to be planned. Those after them are empty.
    to_plan: u64,
    /// Longest times of each kind of work.
    times: [u64; 6],
    planner_takes_time: bool,
    eager: f64,
    memory: Memory,
    batches: Batched,
    /// The chunks of reads, and where their bytes go.
    reads: HashMap<GroupId, Vec<(ChunkId, u64)>>,
    failed: HashSet<ChunkId>,
    failed_shards: HashSet<ShardId>,
    /// Whether a lane or a thread died. Then only the end of all batches is checked.
    broken: bool,
    /// How much work may still begin before the reader is dropped.
    left: u64,
    dropped: bool,
}

impl RandomWorld<'_> {
    fn begin_read(&mut self, read: &Read, to: Span, scheduler: &Scheduler) -> Result<()> {
        let group = scheduler.reads.get(read.group).ok_or_else(|| Error::runtime("a read without a group"))?;
        let chunk = |handle: Handle| scheduler.chunks[handle].id;
        let members = group.chunks.iter().map(|&(handle, offset, _)| (chunk(handle), to.address + offset as u64));
        self.reads.insert(read.group, members.collect());
        self.memory.begin(to, Content::Reading(read.group))?;
        for (&(handle, ..), &(_, bytes, address)) in group.chunks.iter().zip(&read.uploads) {
            self.memory.begin(Span { address, len: bytes }, Content::Decoding(chunk(handle)))?;
        }
        Ok(())
    }

    fn end_read(&mut self, read: Read, to: Span, copying: bool) -> Result<(Vec<Event>, Option<SimulatedWork>)> {
        let members = self.reads.get(&read.group).cloned().unwrap_or_default();
        if copying {
            for (&(id, _), &(_, bytes, address)) in members.iter().zip(&read.uploads) {
                let slot = Span { address, len: bytes };
                self.memory.change(slot, Content::Decoding(id), Content::Decoded(id))?;
            }
            return Ok((vec![Event::Uploaded(read.group, Ok(Some(to.len)))], None));
        }
        let abandon = |world: &mut Self| -> Result<()> {
            world.memory.change(to, Content::Reading(read.group), Content::Nothing)?;
            for (&(id, _), &(_, bytes, address)) in members.iter().zip(&read.uploads) {
                let slot = Span { address, len: bytes };
                world.memory.change(slot, Content::Decoding(id), Content::Nothing)?;
            }
            Ok(())
        };
        let in_shard = matches!(read.range, ReadRange::From(_));
        if self.random.chance(self.faults.read) {
            abandon(self)?;
            self.failed.extend(members.iter().map(|m| m.0));
            // A shard that vanishes while it is read is a failure. For other objects the reads report it.
            let result = if in_shard && read.object.is_none() && self.random.chance(0.3) {
                Ok(None)
            } else {
                Err(fault("a read"))
            };
            return Ok((vec![Event::Fetched(read.group, result)], None));
        }
        if !in_shard && self.missing.chunk(members[0].0) {
            abandon(self)?;
            return Ok((vec![Event::Fetched(read.group, Ok(None))], None));
        }
        let len = match read.range {
            ReadRange::Whole => self.whole(members[0].0),
            ReadRange::Exact | ReadRange::From(_) => to.len,
        };
        if len > to.len {
            // Nothing is read. The memory may be too small for an oversized chunk.
            self.failed.insert(members[0].0);
            abandon(self)?;
            return Ok((vec![Event::Fetched(read.group, Ok(Some(len)))], None));
        }
        self.memory.change(to, Content::Reading(read.group), Content::Read(read.group))?;
        Ok(match read.uploads.is_empty() {
            true => (vec![Event::Fetched(read.group, Ok(Some(len)))], None),
            false => (vec![Event::Uploading], Some(SimulatedWork::Read { read, to, copying: true })),
        })
    }

    /// Encoded bytes of a chunk that has a key of its own. A few have more than is usual.
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
    fn expect_encoded(&mut self, id: ChunkId, group: GroupId, bytes: Span) -> Result<()> {
        if !self.memory.holds(bytes) {
            return Ok(());
        }
        let members = self.reads.get(&group).ok_or_else(|| Error::runtime("bytes of an unknown read"))?;
        if !members.contains(&(id, bytes.address)) {
            return Err(Error::runtime(format!(
                "{id:?} is decoded from {bytes:?}, but read {group} brought it elsewhere"
            )));
        }
        self.memory.expect(bytes, Content::Read(group))
    }

    /// Checks that jobs would read the right chunks now.
    fn expect_jobs(&mut self, jobs: &[Job], scheduler: &Scheduler) -> Result<()> {
        for job in jobs {
            if let Some(chunk) = self.batches.chunk_of(job, &scheduler.batches, |id| self.missing.chunk(id))? {
                self.memory.expect(Span { address: job.src, len: 1 }, Content::Decoded(chunk))?;
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
            let payload = scheduler.chunks[item.handle].payload;
            let (group, _) = payload.ok_or_else(|| Error::runtime("a chunk without bytes is decoded"))?;
            self.expect_encoded(item.id, group, item.encoded)?;
            if !item.in_place {
                self.memory.begin(item.decoded, Content::Decoding(item.id))?;
            }
        }
        self.expect_jobs(&task.assembly.jobs[task.ready_jobs.clone()], scheduler)
    }

    fn end_task(&mut self, task: Task, scheduler: &Scheduler) -> Result<Vec<Event>> {
        let mut outcomes = Vec::new();
        let mut run: Vec<Range<usize>> = Vec::new();
        for item in &task.items {
            let (group, _) =
                scheduler.chunks[item.handle].payload.ok_or_else(|| Error::runtime("bytes were given back"))?;
            self.expect_encoded(item.id, group, item.encoded)?;
            let good = !self.random.chance(self.faults.decode);
            let before = if item.in_place { Content::Read(group) } else { Content::Decoding(item.id) };
            let after = if good { Content::Decoded(item.id) } else { Content::Nothing };
            self.memory.change(item.decoded, before, after)?;
            let result = if good {
                if !self.memory.holds(item.decoded) {
                    // It is decoded to an output.
                    self.batches.done(item.decoded.address, &scheduler.batches)?;
                }
                run.push(item.jobs.clone());
                Ok(Layout::NONE)
            } else {
                self.failed.insert(item.id);
                Err(fault("a decoder"))
            };
            outcomes.push(Outcome { handle: item.handle, result });
        }
        run.push(task.ready_jobs.clone());
        run.into_iter().try_for_each(|jobs| self.run_jobs(&task.assembly.jobs[jobs], scheduler))?;
        Ok(vec![Event::Decoded(outcomes, task.assembly.served, task.pinned)])
    }

    fn expect_wave(&mut self, wave: &Wave) -> Result<()> {
        for chunk in &wave.chunks {
            match (chunk.content, self.reads.contains_key(&chunk.group)) {
                (Bytes::Encoded, _) | (Bytes::Decoded, true) => {
                    self.expect_encoded(chunk.id, chunk.group, chunk.bytes)?
                }
                (Bytes::Decoded, false) => self.memory.expect(chunk.bytes, Content::Decoded(chunk.id))?,
            }
        }
        Ok(())
    }

    fn begin_wave(&mut self, wave: &Wave, scheduler: &Scheduler) -> Result<()> {
        self.expect_wave(wave)?;
        for chunk in &wave.chunks {
            let slot = Span { address: chunk.slot, len: chunk.decoded_bytes };
            self.memory.begin(slot, Content::Decoding(chunk.id))?;
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
            let after = if good { Content::Decoded(chunk.id) } else { Content::Nothing };
            self.memory.change(slot, Content::Decoding(chunk.id), after)?;
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

    /// The events of work that ends after a thread died.
    fn end_broken(&mut self, work: SimulatedWork) -> Vec<Event> {
        let failed = |handle| Outcome { handle, result: Err(fault("everything")) };
        match work {
            SimulatedWork::Read { read, copying: true, .. } => {
                vec![Event::Uploaded(read.group, Err(fault("everything")))]
            }
            SimulatedWork::Read { read, .. } => vec![Event::Fetched(read.group, Err(fault("everything")))],
            SimulatedWork::Index(shard) => vec![Event::Index(shard, Err(fault("everything")))],
            SimulatedWork::Task(task) => {
                let outcomes = task.items.iter().map(|i| failed(i.handle)).collect();
                vec![Event::Decoded(outcomes, task.assembly.served, task.pinned)]
            }
            SimulatedWork::Wave { lane, wave, copied } => {
                let outcomes = wave.chunks.iter().map(|c| failed(c.handle)).collect();
                let groups = Event::Copied(wave.groups());
                let (served, pinned) = (wave.assembly.served, wave.pinned);
                let done = Event::Wave(WaveDone { lane, outcomes, served, pinned, result: Err(fault("everything")) });
                if copied { vec![done] } else { vec![groups, done] }
            }
            SimulatedWork::Plan | SimulatedWork::Lend(_) => Vec::new(),
        }
    }
}

fn fault(what: &str) -> Error {
    Error::runtime(format!("{what} fails in this world"))
}

impl World for RandomWorld<'_> {
    fn begin(&mut self, now: u64, work: &SimulatedWork, scheduler: &Scheduler) -> Result<u64> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.dropped = true;
            return Err(fault("the reader's life"));
        }
        let kind = match work {
            SimulatedWork::Plan => 0,
            SimulatedWork::Read { read, to, copying } => {
                if !copying {
                    self.begin_read(read, *to, scheduler)?;
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
            SimulatedWork::Read { read, to, copying } => self.end_read(read, to, copying)?,
            SimulatedWork::Index(shard) => (vec![self.index(shard)], None),
            SimulatedWork::Task(task) => (self.end_task(task, scheduler)?, None),
            SimulatedWork::Wave { lane, wave, copied: false } => {
                self.expect_wave(&wave)?;
                let copied = Event::Copied(wave.groups());
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
        self.batches.plan(&plan.batch);
        plan
    }

    fn planner_takes_time(&self) -> bool {
        self.planner_takes_time
    }

    fn takes_now(&mut self) -> bool {
        self.random.chance(self.eager)
    }
}

/// A reader to be simulated, and what it has to work with.
pub(crate) struct SimulatedReader {
    pub chunk_index: Arc<ChunkIndex>,
    pub ops: Ops,
    pub order: Order,
    /// Samples of a batch.
    pub batch_size: usize,
    /// Bytes of each output of a batch.
    pub output_bytes: Vec<usize>,
    pub config: Config,
}

/// Runs the world of `seed`, whose next random numbers are those of `random`, with this reader. In an `unusual` world
/// some chunks are oversized.
///
/// # Errors
/// If the scheduler breaks a promise.
pub(crate) fn live(seed: u64, mut random: Random, reader: SimulatedReader, unusual: bool) -> Result<()> {
    let SimulatedReader { chunk_index, ops, order, batch_size, output_bytes, config } = reader;
    let samples = order.samples();
    let shared = Shared {
        chunk_index: Arc::clone(&chunk_index),
        ops: Arc::new(ops),
        stats: Arc::new(Stats::default()),
        cache: None,
        events: crossbeam_channel::unbounded().0,
        stop: Arc::new(AtomicBool::new(false)),
    };
    let sound = random.chance(0.4);
    let mut rate = |most: f64| if sound || random.chance(0.5) { 0.0 } else { most * random.below(100) as f64 / 100.0 };
    let faults = Faults { read: rate(0.2), index: rate(0.2), decode: rate(0.2), lane: rate(0.01), died: rate(0.01) };
    let share = if random.chance(0.5) { 0.0 } else { random.below(100) as f64 / 100.0 };
    let batches = 1 + random.below(10);
    let mut world = RandomWorld {
        unusual,
        chunk_index: &chunk_index,
        missing: MissingKeys { seed, chunk_index: &chunk_index, share },
        faults,
        order,
        next_sample: random.below(3) * random.below(samples),
        batch_size: batch_size as u64,
        to_plan: batches,
        times: std::array::from_fn(|_| 1 << random.below(12)),
        planner_takes_time: random.chance(0.6),
        eager: random.below(101) as f64 / 100.0,
        memory: Memory::new(config.staging, config.gpu.map_or(0, |gpu| gpu.slots)),
        batches: Batched::new(output_bytes.iter().map(|&bytes| bytes as u64).collect()),
        reads: HashMap::new(),
        failed: HashSet::new(),
        failed_shards: HashSet::new(),
        broken: false,
        left: if random.chance(0.1) { 1 + random.below(60) } else { u64::MAX },
        dropped: false,
        random,
    };
    let mut simulation = Simulation::new(&shared, config, &output_bytes);
    let result = last(&mut simulation, &mut world, batches);
    if world.dropped { Ok(()) } else { result }
}

/// Takes all batches, and checks that all memory was given back.
fn last(simulation: &mut Simulation, world: &mut RandomWorld<'_>, batches: u64) -> Result<()> {
    for _ in 0..batches {
        let finished = simulation.next_batch(world)?;
        if !world.broken {
            let (failed, shards, chunk_index) = (&world.failed, &world.failed_shards, world.chunk_index);
            let failed = |id: ChunkId| {
                let index = match chunk_index.location(id) {
                    Location::Shard(shard, _) | Location::Unread(shard) => shards.contains(&shard),
                    Location::Key | Location::Range(_) => false,
                };
                failed.contains(&id) || index
            };
            world.batches.deliver(finished.as_ref().err(), failed)?;
        }
    }
    simulation.run_until_idle(world)?;
    if world.broken { Ok(()) } else { balance(&simulation.scheduler) }
}

/// Checks that all memory was given back.
fn balance(scheduler: &Scheduler) -> Result<()> {
    if let Some(group) = scheduler.reads.iter().next() {
        return Err(Error::runtime(format!("nothing is under way, but a read holds memory: {group:?}")));
    }
    let (mut staging, mut slots) = (0, 0);
    for chunk in scheduler.chunks.iter() {
        if chunk.pins > 0
            || chunk.host_decoded.is_some()
            || matches!(chunk.state, ChunkState::Fetching | ChunkState::Decoding)
        {
            return Err(Error::runtime(format!("nothing is under way, but a chunk waits: {chunk:?}")));
        }
        let of = if scheduler.memory.has_slots() { &mut slots } else { &mut staging };
        *of += chunk.slot.map_or(0, |slot| slot.len);
    }
    if !scheduler.memory.has_slots() {
        slots = staging;
    }
    for (kind, held) in [(MemoryKind::Staging, staging), (MemoryKind::Slots, slots)] {
        let (free, all) = (scheduler.memory.available(kind), scheduler.memory.capacity(kind));
        if free + held != all {
            return Err(Error::runtime(format!("of {all} bytes {free} are free and {held} are held: some are lost")));
        }
    }
    Ok(())
}
