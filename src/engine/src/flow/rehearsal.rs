//! The scheduler at work with nothing behind it: what it hands out is over after a time that is computed, no byte is read, and
//! nothing is decoded. So it tells by the scheduler's own decisions what a reader with so much memory would read.
//!
//! Times matter only in that they bring what happens into an order. They are those of an ordinary machine: another order of
//! events may lead to a few reads more or less, as it does from one run of a reader to the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dali_zarr_kernels::Layout;

use super::catalog::{Catalog, Route};
use super::scheduler::{Block, Finished, Rules, Scheduler, Setup};
use super::shards::{Entries, Index, ShardId};
use super::tasks::{Decode, Fetch, GroupId, Outcome, Read, ReadRange, Shared, Task};
use super::wave::{Lanes, Storage, Upload, Wave, WaveDone, WaveLimits};
use super::{Event, Plan};
use crate::error::{Error, Result};
use crate::memory::arena::Arena;
use crate::memory::{Lease, Pool};
use crate::plan::ChunkId;
use crate::reader::DeviceBuffers;

/// The memory and the workers of the reader that is rehearsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cast {
    pub rules: Rules,
    /// Bytes of host memory for chunks.
    pub staging: usize,
    /// Decode threads.
    pub threads: usize,
    /// If batches are delivered to a GPU.
    pub gpu: Option<CastGpu>,
}

/// What a GPU has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CastGpu {
    /// Bytes for decoded chunks.
    pub slots: usize,
    pub lanes: usize,
    pub limits: WaveLimits,
}

/// When batches are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    /// As soon as they are finished: they are waited for.
    AtOnce,
    /// When nothing is left to be done without: they wait.
    Late,
}

/// What the scheduler handed out.
enum Handed {
    Read(Read),
    Index(ShardId),
    Task(Task),
    Wave(usize, Wave),
}

/// Stands for all who work for the scheduler.
struct Players(Sender<Handed>, Option<CastGpu>);

impl Fetch for Players {
    fn read(&mut self, read: Read, _: Lease) {
        let _ = self.0.send(Handed::Read(read));
    }
    fn index(&mut self, shard: ShardId, _: String) {
        let _ = self.0.send(Handed::Index(shard));
    }
    fn report_copies(&self) {}
}

impl Decode for Players {
    fn run(&self, task: Task) {
        let _ = self.0.send(Handed::Task(task));
    }
}

impl Lanes for Players {
    fn count(&self) -> usize {
        self.1.map_or(0, |gpu| gpu.lanes)
    }
    fn limits(&self) -> WaveLimits {
        self.1.map_or(WaveLimits { encoded: 0, decoded: 0, chunks: 0 }, |gpu| gpu.limits)
    }
    fn upload(&self) -> Result<Box<dyn Upload>> {
        Err(Error::runtime("a rehearsal has no device"))
    }
    fn storage(&self) -> Result<Option<Box<dyn Storage>>> {
        Ok(None)
    }
    fn launch(&self, lane: usize, wave: Wave) {
        let _ = self.0.send(Handed::Wave(lane, wave));
    }
}

/// Workers of one kind, each of which does one thing at a time: when each will be free.
struct Crew(BinaryHeap<Reverse<u64>>);

impl Crew {
    fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| Reverse(0)).collect())
    }

    /// When something is over that takes so long and begins as soon as a worker is free.
    fn busy(&mut self, now: u64, takes: u64) -> u64 {
        let free = self.0.pop().map_or(0, |Reverse(free)| free);
        let end = free.max(now) + takes;
        self.0.push(Reverse(end));
        end
    }
}

/// Nanoseconds that reading takes: a call, and 2 GB/s; a request, and 100 MB/s.
const fn read_time(bytes: usize, remote: bool) -> u64 {
    if remote { 20_000_000 + bytes as u64 * 10 } else { 20_000 + bytes as u64 / 2 }
}

/// Nanoseconds that decoding takes one thread: 1 GB/s.
const fn decode_time(bytes: usize) -> u64 {
    2_000 + bytes as u64
}

/// Nanoseconds that a wave takes: a few launches, and 20 GB/s.
const fn wave_time(bytes: usize) -> u64 {
    100_000 + bytes as u64 / 20
}

/// Encoded bytes of a compressed chunk, of which nobody knows how well it is compressed.
const fn encoded(decoded: usize) -> usize {
    decoded.div_ceil(2)
}

/// See the module.
pub(crate) struct Rehearsal {
    scheduler: Scheduler,
    catalog: Arc<Catalog>,
    plans: Receiver<()>,
    handed: Receiver<Handed>,
    finished: Receiver<Finished>,
    /// Since the beginning, in nanoseconds.
    now: u64,
    /// By the time when it will be over; what is over at the same time, in the order in which it was handed out.
    under_way: BTreeMap<(u64, u64), Handed>,
    number: u64,
    local: Crew,
    remote: Crew,
    decoders: Crew,
    lanes: Crew,
}

impl Rehearsal {
    /// A reader of `catalog` before its first batch.
    pub fn new(shared: &Shared, cast: Cast) -> Self {
        let (plan, plans) = unbounded();
        let (sender, handed) = unbounded();
        let (finished_sender, finished) = unbounded();
        let players = || Players(sender.clone(), cast.gpu);
        let outputs = shared.catalog.planner.geometry().outputs.len();
        // Nothing is ever written to an address.
        let block = |bytes| Block { arena: Arena::new(bytes), base: 1 << 40 };
        let scheduler = Scheduler::new(Setup {
            shared: shared.clone(),
            rules: Rules { index_output: false, ..cast.rules },
            fetch: Box::new(players()),
            decode: Box::new(players()),
            lanes: cast.gpu.map(|_| Box::new(players()) as Box<dyn Lanes>),
            staging: block(cast.staging),
            slots: cast.gpu.map(|gpu| block(gpu.slots)),
            landing: None,
            past_host: false,
            // One for all: a page gives an address.
            pools: if cast.gpu.is_some() {
                Vec::new()
            } else {
                vec![Pool::new(1, cast.rules.window * outputs); outputs]
            },
            plan,
            finished: finished_sender,
            memory: Vec::new(),
        });
        let mut rehearsal = Self {
            scheduler,
            catalog: Arc::clone(&shared.catalog),
            plans,
            handed,
            finished,
            now: 0,
            under_way: BTreeMap::new(),
            number: 0,
            local: Crew::new(cast.rules.reads[0]),
            remote: Crew::new(cast.rules.reads[1]),
            decoders: Crew::new(cast.threads),
            lanes: Crew::new(cast.gpu.map_or(0, |gpu| gpu.lanes)),
        };
        if cast.gpu.is_some() {
            (0..cast.rules.window as u64).for_each(|id| rehearsal.lend(id, outputs));
        }
        rehearsal
    }

    fn lend(&mut self, id: u64, outputs: usize) {
        self.scheduler.handle(Event::Lent(DeviceBuffers { id, outputs: vec![1 << 40; outputs], ready: 0 }));
    }

    /// Goes on until the next batch is taken, of those that `plan` plans. `read` hears of each chunk that is read: the number of
    /// the first batch that waits for it, the chunk, and its decoded bytes.
    ///
    /// # Errors
    /// If the scheduler ends, or stands still.
    pub fn next_batch(
        &mut self,
        taking: Taking,
        plan: &mut impl FnMut() -> Plan,
        read: &mut impl FnMut(u64, ChunkId, usize),
    ) -> Result<()> {
        loop {
            self.act(plan);
            while let Ok(handed) = self.handed.try_recv() {
                let end = self.end(&handed);
                self.number += 1;
                self.under_way.insert((end, self.number), handed);
            }
            if taking == Taking::AtOnce || self.under_way.is_empty() {
                if let Ok(finished) = self.finished.try_recv() {
                    let batch = finished?;
                    self.scheduler.handle(Event::Taken);
                    if let Some(id) = batch.buffers {
                        self.lend(id, self.catalog.planner.geometry().outputs.len());
                    }
                    return Ok(());
                }
                if self.under_way.is_empty() {
                    return Err(Error::runtime("internal error: the scheduler waits for nothing"));
                }
            }
            if let Some(((end, _), handed)) = self.under_way.pop_first() {
                self.now = end;
                self.over(handed, read);
            }
        }
    }

    /// Lets the scheduler do what it can. The planner is faster than all others.
    fn act(&mut self, plan: &mut impl FnMut() -> Plan) {
        self.scheduler.pump();
        while !self.plans.is_empty() {
            while self.plans.try_recv().is_ok() {
                self.scheduler.handle(Event::Planned(Box::new(plan())));
            }
            self.scheduler.pump();
        }
    }

    /// When it will be over.
    fn end(&mut self, handed: &Handed) -> u64 {
        match handed {
            Handed::Read(Read { array, part, len, range, .. }) => {
                let bytes = if matches!(range, ReadRange::Whole) { encoded(*len) } else { *len };
                self.read_end(*array, *part, bytes)
            }
            Handed::Index(ShardId { array, part, .. }) => self.read_end(*array, *part, 1 << 10),
            Handed::Task(task) => {
                let takes = task.items.iter().map(|i| if i.in_place { 1_000 } else { decode_time(i.decoded.len) });
                self.decoders.busy(self.now, takes.sum::<u64>().max(1_000))
            }
            Handed::Wave(_, wave) => {
                let bytes = wave.chunks.iter().map(|c| c.decoded_bytes).sum();
                self.lanes.busy(self.now, wave_time(bytes))
            }
        }
    }

    fn read_end(&mut self, array: u16, part: u16, bytes: usize) -> u64 {
        let remote = self.catalog.is_remote(array, part);
        let crew = if remote { &mut self.remote } else { &mut self.local };
        crew.busy(self.now, read_time(bytes, remote))
    }

    /// Tells the scheduler.
    fn over(&mut self, handed: Handed, read: &mut impl FnMut(u64, ChunkId, usize)) {
        let done = |handle| Outcome { handle, result: Ok(Layout::NONE) };
        match handed {
            Handed::Read(r) => {
                self.scheduler.chunks_of(r.group).for_each(|(id, bytes, batch)| read(batch, id, bytes));
                self.read_over(r.group, &r);
            }
            Handed::Index(shard) => {
                let index = self.index(shard);
                self.scheduler.handle(Event::Index(shard, Ok(Some(Arc::new(index)))));
            }
            Handed::Task(task) => {
                let outcomes = task.items.iter().map(|i| done(i.handle)).collect();
                self.scheduler.handle(Event::Decoded(outcomes, task.work.served, task.pinned));
            }
            Handed::Wave(lane, wave) => {
                self.scheduler.handle(Event::Copied(wave.groups()));
                let outcomes = wave.chunks.iter().map(|c| done(c.handle)).collect();
                let (served, pinned) = (wave.work.served, wave.pinned);
                self.scheduler.handle(Event::Wave(WaveDone { lane, outcomes, served, pinned, result: Ok(()) }));
            }
        }
    }

    fn read_over(&mut self, group: GroupId, read: &Read) {
        let len = match read.range {
            ReadRange::Whole => encoded(self.scheduler.chunks_of(group).map(|c| c.1).sum()).min(read.len),
            ReadRange::Exact | ReadRange::From(_) => read.len,
        };
        if read.uploads.is_empty() {
            self.scheduler.handle(Event::Fetched(group, Ok(Some(len))));
        } else {
            self.scheduler.handle(Event::Uploading);
            self.scheduler.handle(Event::Uploaded(group, Ok(Some(len))));
        }
    }

    /// An index of a shard whose chunks are all there, one after the other.
    fn index(&self, shard: ShardId) -> Index {
        let Some(sharding) = self.catalog.sharded(shard.array, shard.part) else {
            // One of the store's own, which isn't read.
            return Index { entries: Entries::Read(Vec::new()), version: None };
        };
        let part = &self.catalog.dataset.arrays[shard.array as usize].parts[shard.part as usize];
        // Inner chunks are all alike.
        let decoded = part.largest_bytes;
        let len = match self.catalog.routes[shard.array as usize][shard.part as usize] {
            Route::Raw => decoded,
            Route::Cpu | Route::Gpu => encoded(decoded).min(part.format.max_encoded_bytes(decoded)),
        };
        let slots = sharding.slots();
        Index { entries: Entries::Even { slots, len: len as u64 }, version: None }
    }
}
