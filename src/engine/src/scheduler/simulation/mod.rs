//! Runs the scheduler in a simulated world, where reads, decoders, lanes, planner and consumer only take time.
//!
//! The scheduler does no I/O. It hands out work and is told when the work ends, so it also runs without threads and
//! devices. A [`World`] says how long each piece of work takes and how it ends. There are two worlds:
//! - [`rehearsal`]: an ordinary machine on which nothing fails. `explain` counts a reader's reads with it.
//! - [`random`]: anything happens, in any order, and everything that the scheduler promises is checked.
//!
//! [`shutdown`] drops the reader while work is under way.

mod expected;
mod memory;
pub(crate) mod random;
pub(crate) mod rehearsal;
mod shutdown;

use std::collections::BTreeMap;
use std::iter::repeat;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use dali_zarr_kernels::Layout;

use crate::budget::{Budget, DeviceBudget};
use crate::chunk_index::{ChunkIndex, Plan, ShardId};
use crate::messages::{Decode, Event, Fetch, Lanes, Read, Shared, Storage, Take, Task, Upload, Wave, WaveLimits};
use crate::scheduler::{BatchAccount, DeviceArena, Finished, ReaderMemory, Rules, Scheduler, Setup};
use crate::stats::Stats;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::arena::Arena;
use dali_zarr_base::memory::{HostArena, HostBlock, Lease, Pool};
use dali_zarr_samples::assemble::Ops;
use dali_zarr_samples::batch::DeviceBuffers;
use shutdown::{Block, Ending, Threads};

/// The memory and the workers of a simulated reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub rules: Rules,
    /// Bytes of host memory for chunks.
    pub staging: usize,
    /// Decode threads.
    pub threads: usize,
    /// If batches are delivered to a GPU.
    pub gpu: Option<GpuConfig>,
}

impl Config {
    /// Returns the memory and the workers of a reader with this budget.
    pub fn new(rules: Rules, budget: &Budget) -> Self {
        let gpu =
            |d: &DeviceBudget| GpuConfig { slots: d.slots, gds_buffer: 0, lanes: d.lanes, limits: WaveLimits::from(d) };
        let Budget { host, device, .. } = budget;
        Self { rules, staging: host.block, threads: host.threads, gpu: device.as_ref().map(gpu) }
    }
}

/// The memory and the lanes of a simulated GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GpuConfig {
    /// Bytes for decoded chunks.
    pub slots: usize,
    /// Bytes of the buffer to which GPUDirect Storage reads. 0: it isn't used.
    pub gds_buffer: usize,
    pub lanes: usize,
    pub limits: WaveLimits,
}

/// First addresses of staging, slots, GDS buffer and outputs. There is no memory: to read or write there is a panic.
const STAGING: u64 = 1 << 50;
const SLOTS: u64 = 2 << 50;
const GDS_BUFFER: u64 = 3 << 50;
const OUTPUTS: u64 = 4 << 50;
/// Bytes of address space for one output of one batch.
const OUTPUT_SPACE: u64 = 1 << 40;
/// Bytes of address space for all buffers of one output in host memory.
const POOL_SPACE: u64 = 1 << 52;

/// Returns the addresses of a set of device buffers for this number of outputs.
fn lent(id: u64, outputs: usize) -> impl Iterator<Item = u64> {
    let first = id * outputs as u64;
    (first..first + outputs as u64).map(|output| OUTPUTS + output * OUTPUT_SPACE)
}

/// Work under way.
pub(crate) enum SimulatedWork {
    /// The planner plans a batch.
    Plan,
    /// A read. First its bytes come to the lease. Then, if it has uploads, they are `copying` to the device.
    Read { read: Read, to: Lease, copying: bool },
    /// The index of a shard is read.
    Index(ShardId),
    /// Decode threads work.
    Task(Task),
    /// A lane works. First it copies the bytes of the wave. After that they are `copied`, and it decodes.
    Wave { lane: usize, wave: Wave, copied: bool },
    /// The host lends this set of device buffers again.
    Lend(u64),
}

/// Makes what the threads of a simulated reader share: there is no cache, and nobody hears events.
pub(crate) fn shared(chunk_index: &Arc<ChunkIndex>, ops: Ops) -> Shared {
    Shared {
        chunk_index: Arc::clone(chunk_index),
        ops: Arc::new(ops),
        stats: Arc::new(Stats::default()),
        cache: None,
        bad: Arc::default(),
        events: unbounded().0,
        stop: Arc::new(AtomicBool::new(false)),
    }
}

/// Returns the events with which a task ends whose chunks all have this result.
pub(crate) fn task_events(task: Task, chunks: Result<()>) -> Vec<Event> {
    vec![Event::Decoded(task.ended(repeat(chunks.map(|()| Layout::NONE))))]
}

/// Returns the events with which a wave ends: first its bytes are copied. `chunks` is the result of all its chunks, and
/// `result` that of the lane.
pub(crate) fn wave_events(lane: usize, mut wave: Wave, chunks: Result<()>, result: Result<()>) -> Vec<Event> {
    let copied = Event::Copied(std::mem::take(&mut wave.payloads));
    vec![copied, Event::Wave(wave.ended(lane, repeat(chunks.map(|()| Layout::NONE)), result))]
}

/// The surroundings of a scheduler: how long work takes, and how it ends.
pub(crate) trait World {
    /// Called when work begins. Returns the time when the work ends, or when its first step ends.
    ///
    /// # Errors
    /// If the scheduler should not have handed it out.
    fn begin(&mut self, now: u64, work: &SimulatedWork, scheduler: &Scheduler) -> Result<u64>;

    /// Called when work, or its first step, ends. Returns the events for the scheduler, and the second step if there is
    /// one.
    ///
    /// # Errors
    /// If it broke a promise of the scheduler.
    fn end(&mut self, work: SimulatedWork, scheduler: &Scheduler) -> Result<(Vec<Event>, Option<SimulatedWork>)>;

    /// Plans the next batch.
    fn plan(&mut self) -> Plan;

    /// Whether the planner takes time. Otherwise it is faster than anything else.
    fn planner_takes_time(&self) -> bool;

    /// Whether the consumer takes a finished batch now. It always does when nothing is under way.
    fn takes_now(&mut self) -> bool;
}

/// Hands work to the simulation, in place of threads and devices.
struct Backend {
    work: Sender<SimulatedWork>,
    gpu: Option<GpuConfig>,
    /// Dropped with this backend, like the threads of a reader.
    #[expect(dead_code, reason = "used when it is dropped")]
    threads: Threads,
}

impl Fetch for Backend {
    fn read(&mut self, read: Read, to: Lease) {
        let _ = self.work.send(SimulatedWork::Read { read, to, copying: false });
    }
    fn index(&mut self, shard: ShardId, _: String) {
        let _ = self.work.send(SimulatedWork::Index(shard));
    }
    fn report_copies(&self) {}
}

impl Decode for Backend {
    fn run(&self, task: Task) {
        let _ = self.work.send(SimulatedWork::Task(task));
    }
}

impl Lanes for Backend {
    fn count(&self) -> usize {
        self.gpu.map_or(0, |gpu| gpu.lanes)
    }
    fn limits(&self) -> WaveLimits {
        self.gpu.map_or(WaveLimits { encoded: 0, decoded: 0, chunks: 0 }, |gpu| gpu.limits)
    }
    fn upload(&self) -> Result<Box<dyn Upload>> {
        Err(Error::runtime("a simulation has no device"))
    }
    fn storage(&self) -> Result<Option<Box<dyn Storage>>> {
        Ok(None)
    }
    fn launch(&self, lane: usize, wave: Wave) {
        let _ = self.work.send(SimulatedWork::Wave { lane, wave, copied: false });
    }
}

/// A scheduler and all work that is under way for it.
pub(crate) struct Simulation {
    pub scheduler: Scheduler,
    pub chunk_index: Arc<ChunkIndex>,
    pub(in crate::scheduler) plan_requests: Receiver<()>,
    pub(in crate::scheduler) handed_out: Receiver<SimulatedWork>,
    pub(in crate::scheduler) finished: Receiver<Finished>,
    /// The flag with which the owner stops the reader's threads.
    stop: Arc<AtomicBool>,
    /// The host memory of chunks.
    staging: Weak<HostBlock>,
    /// What became of the threads and of the device memory.
    ending: Arc<Ending>,
    /// The simulated time: nanoseconds since the beginning.
    now: u64,
    /// When the consumer last took a batch.
    taken: u64,
    /// The work under way, by the time when it ends. Work that ends at the same time ends in the order in which it
    /// began.
    under_way: BTreeMap<(u64, u64), SimulatedWork>,
    number: u64,
}

impl Simulation {
    /// Makes a reader of `shared` before its first batch. `output_bytes` has the bytes of each output of a batch.
    pub fn new(shared: &Shared, config: Config, output_bytes: &[usize]) -> Self {
        Self::sharing(shared, config, output_bytes, None)
    }

    /// As [`Self::new`]. Memory for chunks and batches beyond what is reserved is drawn from the account.
    pub fn sharing(
        shared: &Shared,
        config: Config,
        output_bytes: &[usize],
        drawn: Option<(BatchAccount, usize)>,
    ) -> Self {
        let (plan, plan_requests) = unbounded();
        let (sender, handed_out) = unbounded();
        let (finished_sender, finished) = unbounded();
        let ending = Arc::new(Ending::default());
        let threads = || Threads(Arc::clone(&ending));
        let backend = || Backend { work: sender.clone(), gpu: config.gpu, threads: threads() };
        let pool = |(base, &bytes): (u64, &usize)| Pool::invented(bytes, config.rules.max_active, base);
        let pools = match config.gpu {
            Some(_) => Vec::new(),
            None => (OUTPUTS..).step_by(POOL_SPACE as usize).zip(output_bytes).map(pool).collect(),
        };
        let arena = |bytes: usize, base: u64| DeviceArena { arena: Arena::new(bytes), base };
        let gds_buffer = config.gpu.map(|gpu| gpu.gds_buffer).filter(|&bytes| bytes > 0);
        let block = HostBlock::invented(STAGING, config.staging);
        let staging = match &drawn {
            None => HostArena::new(block),
            Some((batches, reserved)) => HostArena::growing(block, *reserved, Arc::clone(&batches.account)),
        };
        let block = staging.block();
        let scheduler = Scheduler::new(Setup {
            shared: shared.clone(),
            rules: Rules { index_output: false, ..config.rules },
            fetch: Box::new(backend()),
            decode: Box::new(backend()),
            lanes: config.gpu.map(|_| Box::new(backend()) as Box<dyn Lanes>),
            memory: ReaderMemory {
                staging,
                slots: config.gpu.map(|gpu| arena(gpu.slots, SLOTS)),
                gds_buffer: gds_buffer.map(|bytes| arena(bytes, GDS_BUFFER)),
                gds: gds_buffer.is_some(),
                pools,
                batches: drawn.map(|(batches, _)| batches),
                owned: vec![Box::new(Block(Arc::clone(&ending)))],
            },
            plan,
            finished: finished_sender,
        });
        let mut simulation = Self {
            scheduler,
            chunk_index: Arc::clone(&shared.chunk_index),
            plan_requests,
            handed_out,
            finished,
            stop: Arc::clone(&shared.stop),
            staging: block,
            ending,
            now: 0,
            taken: 0,
            under_way: BTreeMap::new(),
            number: 0,
        };
        if config.gpu.is_some() {
            (0..config.rules.max_active as u64).for_each(|id| simulation.lend(id));
        }
        simulation
    }

    /// Lends the set of device buffers with this number to the scheduler.
    pub(in crate::scheduler) fn lend(&mut self, id: u64) {
        let outputs = lent(id, self.chunk_index.planner.geometry().outputs.len()).collect();
        // Every other set may be written at once.
        let ready = if id.is_multiple_of(2) { id + 1 } else { 0 };
        self.scheduler.handle(Event::Lent(DeviceBuffers { id, outputs, ready }));
    }

    fn start(&mut self, world: &mut impl World, work: SimulatedWork) -> Result<()> {
        let end = world.begin(self.now, &work, &self.scheduler)?;
        self.number += 1;
        self.under_way.insert((end, self.number), work);
        Ok(())
    }

    /// Simulates until the consumer takes the next batch.
    ///
    /// # Errors
    /// If the scheduler breaks a promise, or waits though nothing is under way.
    pub fn next_batch(&mut self, world: &mut impl World) -> Result<Finished> {
        // When the consumer began to wait.
        let mut asked = None;
        loop {
            self.act(world)?;
            let idle = self.under_way.is_empty();
            if idle || world.takes_now() {
                asked.get_or_insert(self.now);
            }
            if let Some(asked) = asked
                && let Ok(finished) = self.finished.try_recv()
            {
                let before = std::mem::replace(&mut self.taken, self.now);
                let [waited, interval] = [asked, before].map(|since| Duration::from_nanos(self.now - since));
                self.scheduler.handle(Event::Taken(Take { waited, interval }));
                if let Ok(batch) = &finished
                    && let Some(id) = batch.buffers
                {
                    self.start(world, SimulatedWork::Lend(id))?;
                }
                return Ok(finished);
            }
            if !self.step(world)? {
                return Err(Error::runtime(format!(
                    "the scheduler waits though nothing is under way: {}",
                    self.scheduler.summary()
                )));
            }
        }
    }

    /// Simulates until nothing is under way. No batch is taken.
    ///
    /// # Errors
    /// If the scheduler breaks a promise.
    pub fn run_until_idle(&mut self, world: &mut impl World) -> Result<()> {
        self.act(world)?;
        while self.step(world)? {
            self.act(world)?;
        }
        Ok(())
    }

    /// Ends the next piece of work. Returns false if nothing is under way.
    fn step(&mut self, world: &mut impl World) -> Result<bool> {
        let Some(((end, _), work)) = self.under_way.pop_first() else { return Ok(false) };
        self.now = end;
        match work {
            SimulatedWork::Plan => {
                let plan = Event::Planned(Box::new(world.plan()));
                self.scheduler.handle(plan);
            }
            SimulatedWork::Lend(id) => self.lend(id),
            work => {
                let (events, then) = world.end(work, &self.scheduler)?;
                events.into_iter().for_each(|event| self.scheduler.handle(event));
                if let Some(work) = then {
                    self.start(world, work)?;
                }
            }
        }
        Ok(true)
    }

    /// Lets the scheduler start all work that is possible, and begins it.
    fn act(&mut self, world: &mut impl World) -> Result<()> {
        self.scheduler.pump();
        while self.plan_requests.try_recv().is_ok() {
            if world.planner_takes_time() {
                self.start(world, SimulatedWork::Plan)?;
                continue;
            }
            let plan = Event::Planned(Box::new(world.plan()));
            self.scheduler.handle(plan);
            if self.plan_requests.is_empty() {
                self.scheduler.pump();
            }
        }
        while let Ok(work) = self.handed_out.try_recv() {
            self.start(world, work)?;
        }
        Ok(())
    }
}
