//! The rehearsal for `explain`: it runs the scheduler on an ordinary machine on which nothing fails. It counts the
//! chunks that a reader with a given amount of memory would read, by the scheduler's own decisions.
//!
//! Times matter only for the order of events. Another order may change the number of reads a little, as between two
//! runs of a reader.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::{Config, OUTPUT_SPACE, SimulatedWork, Simulation, World, task_events, wave_events};
use crate::chunk_index::{ChunkIndex, Entries, Plan, ShardId, ShardIndex};
use crate::messages::{Event, Item, Read, ReadDone, ReadRange, Shared};
use crate::route::Route;
use crate::scheduler::{Scheduler, WantedChunk};
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::Lease;

/// When batches are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// It waits for each batch.
    Waits,
    /// Batches wait for it: it takes one only when nothing else can be done.
    IsLate,
}

/// Workers of one kind, by the times when each will be free.
struct WorkerPool(BinaryHeap<Reverse<u64>>);

impl WorkerPool {
    fn new(workers: usize) -> Self {
        Self((0..workers.max(1)).map(|_| Reverse(0)).collect())
    }

    /// Gives a worker work that takes `takes`. It begins as soon as a worker is free. Returns when it ends.
    fn busy(&mut self, now: u64, takes: u64) -> u64 {
        let free = self.0.pop().map_or(0, |Reverse(free)| free);
        let end = free.max(now) + takes;
        self.0.push(Reverse(end));
        end
    }
}

/// Returns the nanoseconds that a read takes. Local: 20 us for the call, and 2 GB/s. Remote: 20 ms for the request, and
/// 100 MB/s.
const fn read_time(bytes: usize, remote: bool) -> u64 {
    if remote { 20_000_000 + bytes as u64 * 10 } else { 20_000 + bytes as u64 / 2 }
}

/// Returns the nanoseconds that one thread takes to decode: 2 us, and 1 GB/s.
const fn decode_time(bytes: usize) -> u64 {
    2_000 + bytes as u64
}

/// Returns the nanoseconds that a wave takes: 100 us for a few launches, and 20 GB/s.
const fn wave_time(bytes: usize) -> u64 {
    100_000 + bytes as u64 / 20
}

/// Returns the assumed encoded bytes of a compressed chunk: half of the decoded ones. The true ratio is unknown.
const fn encoded(decoded: usize) -> usize {
    decoded.div_ceil(2)
}

/// The workers of the ordinary machine.
struct Machine {
    chunk_index: Arc<ChunkIndex>,
    local: WorkerPool,
    remote: WorkerPool,
    decoders: WorkerPool,
    lanes: WorkerPool,
}

/// The machine with a planner and a listener for reads.
struct Ordinary<'a, P, R> {
    machine: &'a mut Machine,
    consumer: Consumer,
    plan: &'a mut P,
    read: &'a mut R,
}

/// A simulated reader on the ordinary machine.
pub(crate) struct Rehearsal {
    simulation: Simulation,
    machine: Machine,
}

impl Rehearsal {
    /// Makes a reader of `shared` before its first batch.
    pub fn new(shared: &Shared, config: Config) -> Self {
        let outputs = shared.chunk_index.planner.geometry().outputs.len();
        let machine = Machine {
            chunk_index: Arc::clone(&shared.chunk_index),
            local: WorkerPool::new(config.rules.reads[0]),
            remote: WorkerPool::new(config.rules.reads[1]),
            decoders: WorkerPool::new(config.threads),
            lanes: WorkerPool::new(config.gpu.map_or(0, |gpu| gpu.lanes)),
        };
        // Outputs are addresses only, so they may be larger than any batch.
        Self { simulation: Simulation::new(shared, config, &vec![OUTPUT_SPACE as usize; outputs]), machine }
    }

    /// Simulates until the next batch that `plan` plans is taken. `read` is called for each chunk that is read.
    ///
    /// # Errors
    /// If the scheduler fails, or waits when nothing is under way.
    pub fn next_batch(
        &mut self,
        consumer: Consumer,
        plan: &mut impl FnMut() -> Plan,
        read: &mut impl FnMut(WantedChunk),
    ) -> Result<()> {
        let mut world = Ordinary { machine: &mut self.machine, consumer, plan, read };
        self.simulation.next_batch(&mut world)?.map(|_| ())
    }
}

impl<P: FnMut() -> Plan, R: FnMut(WantedChunk)> World for Ordinary<'_, P, R> {
    fn begin(&mut self, now: u64, work: &SimulatedWork, _: &Scheduler) -> Result<u64> {
        Ok(self.machine.end(now, work))
    }

    fn end(&mut self, work: SimulatedWork, scheduler: &Scheduler) -> Result<(Vec<Event>, Option<SimulatedWork>)> {
        let events = match work {
            SimulatedWork::Read { read, to, .. } => {
                scheduler.chunks_of(read.id).for_each(|chunk| (self.read)(chunk));
                let decoded = scheduler.chunks_of(read.id).map(|chunk| chunk.decoded).sum();
                read_events(&read, to, decoded)
            }
            SimulatedWork::Index(shard) => vec![Event::Index(shard, Ok(Some(Arc::new(self.machine.index(shard)))))],
            SimulatedWork::Task(task) => task_events(task, Ok(())),
            SimulatedWork::Wave { lane, wave, .. } => wave_events(lane, wave, Ok(()), Ok(())),
            SimulatedWork::Plan | SimulatedWork::Lend(_) => Vec::new(),
        };
        Ok((events, None))
    }

    fn plan(&mut self) -> Plan {
        (self.plan)()
    }

    fn planner_takes_time(&self) -> bool {
        false
    }

    fn takes_now(&mut self) -> bool {
        self.consumer == Consumer::Waits
    }
}

fn read_events(read: &Read, to: Lease, decoded: usize) -> Vec<Event> {
    let len = match read.range {
        ReadRange::Whole => encoded(decoded).min(to.len()),
        ReadRange::Exact | ReadRange::From(_) => to.len(),
    };
    let done = ReadDone { id: read.id, to, result: Ok(Some(len)) };
    match read.uploads.is_empty() {
        true => vec![Event::Fetched(done)],
        false => vec![Event::Uploading, Event::Uploaded(done)],
    }
}

impl Machine {
    /// Returns when work that begins now ends.
    fn end(&mut self, now: u64, work: &SimulatedWork) -> u64 {
        match work {
            SimulatedWork::Read { read, to, .. } => {
                let bytes = if matches!(read.range, ReadRange::Whole) { encoded(to.len()) } else { to.len() };
                self.read_end(now, read.array, read.part, bytes)
            }
            SimulatedWork::Index(ShardId { array, part, .. }) => self.read_end(now, *array, *part, 1 << 10),
            SimulatedWork::Task(task) => {
                let time = |i: &Item| i.encoded.as_ref().map_or(1_000, |_| decode_time(i.decoded.len()));
                let takes = task.items.iter().map(time);
                self.decoders.busy(now, takes.sum::<u64>().max(1_000))
            }
            SimulatedWork::Wave { wave, .. } => {
                let bytes = wave.chunks.iter().map(|c| c.decoded_bytes).sum();
                self.lanes.busy(now, wave_time(bytes))
            }
            SimulatedWork::Plan | SimulatedWork::Lend(_) => now,
        }
    }

    fn read_end(&mut self, now: u64, array: u16, part: u16, bytes: usize) -> u64 {
        let remote = self.chunk_index.is_remote(array, part);
        let workers = if remote { &mut self.remote } else { &mut self.local };
        workers.busy(now, read_time(bytes, remote))
    }

    /// Makes the index of a shard: no chunk is missing, and chunks lie one after the other.
    fn index(&self, shard: ShardId) -> ShardIndex {
        let Some(sharding) = self.chunk_index.sharded(shard.array, shard.part) else {
            // An index of the store itself, which is not read.
            return ShardIndex { entries: Entries::Read(Vec::new()), version: None };
        };
        let part = &self.chunk_index.dataset.arrays[shard.array as usize].parts[shard.part as usize];
        // All inner chunks have the same size.
        let decoded = part.largest_bytes;
        let len = match self.chunk_index.route_of(shard.array, shard.part) {
            Route::Raw => decoded,
            Route::Cpu | Route::Gpu => encoded(decoded).min(part.format.usual_encoded_bytes(decoded)),
        };
        let slots = sharding.entries();
        ShardIndex { entries: Entries::Even { count: slots, len: len as u64 }, version: None }
    }
}
