//! Random worlds: work takes any time, ends in any order and sometimes fails, with any amount of memory. At each step
//! these promises of the scheduler are checked:
//! - it never waits when nothing is under way;
//! - no two pieces of work write to the same memory, and memory in use is not overwritten;
//! - each element of a delivered batch was written once, from the chunk that it lies in;
//! - a batch fails only if one of its chunks did;
//! - with bad chunks, their elements are filled, or the samples that need them are replaced;
//! - all memory is given back;
//! - a reader that is dropped at any moment ends, and delivers no batch with work that was skipped.
//!
//! A world is a function of its seed: the same seed gives the same world again.
//!
//! - [`world`]: what surrounds the scheduler.
//! - [`faults`]: what goes wrong in it.

mod faults;
mod world;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::faults::{Faults, MissingKeys};
use self::world::RandomWorld;
use super::expected::Batched;
use super::memory::Memory;
use super::shutdown::Late;
use super::{Config, Simulation, shared};
use crate::chunk_index::{BadChunks, ChunkIndex, Foresight};
use crate::messages::Shared;
use crate::scheduler::chunks::ChunkState;
use crate::scheduler::memory::MemoryKind;
use crate::scheduler::{BatchAccount, Scheduler};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::arena::Range;
use dali_zarr_base::memory::{Lease, Ledger};
use dali_zarr_base::random::{GOLDEN, below, key, mix};
use dali_zarr_samples::assemble::Ops;
use dali_zarr_samples::order::{Batches, Order, Sample};
use dali_zarr_samples::spec::OnBadChunk;

/// Random numbers from a seed.
pub(crate) struct Random(u64);

impl Random {
    /// Makes the sequence of numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(key(&[seed]))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        below(self.next(), n)
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }
}

/// A reader to be simulated, and what it has to work with.
pub(crate) struct SimulatedReader {
    pub chunk_index: Arc<ChunkIndex>,
    pub ops: Ops,
    pub order: Order,
    /// Who says which samples come; `None`: `order`.
    pub caller: Option<Caller>,
    /// The number in `order` of the first sample that the reader delivers.
    pub first_sample: u64,
    /// Number of samples of a batch.
    pub batch_size: usize,
    /// Bytes of each output of a batch.
    pub output_bytes: Vec<usize>,
    pub config: Config,
    /// If host memory is shared with other readers: the bytes of the block for chunks and the number of batches that are
    /// reserved, and the bytes of the share.
    pub shares: Option<(usize, usize, u64)>,
}

/// A caller who pushes samples: near each other for a while, then somewhere else, and some several times.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub seed: u64,
    /// Number of samples that there are.
    pub samples: u64,
}

impl Caller {
    /// Returns the `k`-th sample.
    pub fn sample(self, k: u64) -> Sample {
        let Self { seed, samples } = self;
        let stays = 1 + key(&[seed]) % 7;
        let index = (key(&[seed, k / stays]) % samples + key(&[seed, k]) % 3) % samples;
        Sample { epoch: 0, index, draw: k }
    }
}

/// The batches of a caller. Some are pushed ahead.
struct RandomPushes {
    caller: Caller,
    next: u64,
    batch: u64,
    /// Batches from this sample on are empty.
    end: u64,
    /// The probability that a batch is pushed before it is needed.
    ahead: f64,
    random: Random,
}

impl Batches for RandomPushes {
    fn next(&mut self, waits: bool) -> Option<Vec<Sample>> {
        if !waits && !self.random.chance(self.ahead) {
            return None;
        }
        let next = if self.next < self.end { self.next + self.batch } else { self.next };
        let samples = (self.next..next).map(|k| self.caller.sample(k)).collect();
        self.next = next;
        Some(samples)
    }
}

/// What a world does with its reader.
pub(crate) struct Life {
    /// The world's seed.
    pub seed: u64,
    /// Whether some chunks are oversized.
    pub unusual: bool,
    /// Number of batches that have samples.
    pub batches: u64,
    /// Number of batches that are taken before the reader is dropped.
    pub taken: u64,
    /// Number of pieces of work that may begin before the reader is dropped.
    pub work: u64,
    /// The share of chunks that are bad.
    pub bad: f64,
    /// What becomes of them.
    pub on_bad_chunk: OnBadChunk,
}

impl Life {
    /// Whether a sample needs a bad chunk. Only in worlds whose store lacks nothing: those that replace samples.
    pub fn needs_bad(&self, chunk_index: &ChunkIndex, sample: Sample) -> bool {
        let keys = MissingKeys { seed: self.seed, chunk_index, share: 0.0, bad: self.bad };
        chunk_index.planner.chunks_of_samples(&[sample]).into_iter().any(|id| keys.bad(id))
    }
}

/// What came of a reader.
#[derive(Default)]
pub(crate) struct Lived {
    /// The samples of the batches that were taken; `None` for those of batches that failed, if samples are replaced.
    pub samples: Vec<Option<Sample>>,
    /// Number of batches that were taken.
    pub batches: u64,
    /// Whether a lane or a thread died. Then `samples` may not have all samples of all batches.
    pub broken: bool,
}

/// Runs the reader in a world, until it is dropped. `random` gives the world's next random numbers.
///
/// # Errors
/// If the scheduler breaks a promise.
pub(crate) fn live(life: &Life, mut random: Random, reader: SimulatedReader) -> Result<Lived> {
    let SimulatedReader { chunk_index, ops, mut order, caller, first_sample, .. } = reader;
    let SimulatedReader { batch_size, output_bytes, config, shares, .. } = reader;
    let bad = Arc::new(BadChunks::new(life.on_bad_chunk));
    if caller.is_none() {
        bad.begins(&order);
    }
    let (replaces, tolerates) = (bad.replaces(), life.on_bad_chunk != OnBadChunk::Error);
    let shared = Shared { bad, ..shared(&chunk_index, ops.with_bad()) };
    let sound = random.chance(0.4);
    let mut rate = |most: f64| if sound || random.chance(0.5) { 0.0 } else { most * random.below(100) as f64 / 100.0 };
    let faults = Faults { read: rate(0.2), index: rate(0.2), decode: rate(0.2), lane: rate(0.01), died: rate(0.01) };
    let share = if random.chance(0.5) || replaces { 0.0 } else { random.below(100) as f64 / 100.0 };
    let (batch, end) = (batch_size as u64, first_sample + life.batches * batch_size as u64);
    // Batches after the last one are empty.
    let end_of = move |k: u64| if k < end { k + batch } else { k };
    let foresight = match caller {
        None => Foresight::new(&chunk_index, order, first_sample, end_of),
        Some(caller) => {
            let ahead = random.below(101) as f64 / 100.0;
            let random = Random::new(life.seed);
            let pushes = RandomPushes { caller, next: first_sample, batch, end, ahead, random };
            Foresight::over(&chunk_index, &mut order, pushes)
        }
    };
    let foresight = foresight.without(&shared.bad);
    let ledger = Arc::new(Ledger::default());
    let drawn = shares.map(|(reserved, batches, share)| {
        ledger.set_share(share);
        let bytes = output_bytes.iter().sum::<usize>() as u64;
        (BatchAccount { account: ledger.open(0, || ()), bytes, reserved: batches, drawn: 0 }, reserved)
    });
    let others = drawn.as_ref().map(|(batches, _)| (Arc::clone(&batches.account), ledger.open(0, || ())));
    let mut world = RandomWorld {
        others,
        unusual: life.unusual,
        chunk_index: &chunk_index,
        missing: MissingKeys { seed: life.seed, chunk_index: &chunk_index, share, bad: life.bad },
        tolerates,
        replaces,
        faults,
        foresight,
        times: std::array::from_fn(|_| 1 << random.below(12)),
        planner_takes_time: random.chance(0.6),
        eager: random.below(101) as f64 / 100.0,
        memory: Memory::new(config.staging, config.gpu.map_or(0, |gpu| gpu.slots)),
        batches: Batched::new(output_bytes.iter().map(|&bytes| bytes as u64).collect()),
        reads: HashMap::new(),
        in_place: HashMap::new(),
        failed: HashSet::new(),
        failed_shards: HashSet::new(),
        broken: false,
        left: life.work,
        dropped: false,
        random,
    };
    let mut simulation = Simulation::sharing(&shared, config, &output_bytes, drawn);
    let mut lived = Lived::default();
    let result = take(&mut simulation, &mut world, life, &mut lived);
    if !world.dropped {
        result?;
    }
    // What is under way may still begin its second step.
    world.left = u64::MAX;
    let late = Late { handled: world.random.below(8), heard: world.random.below(8) };
    for finished in simulation.shut_down(&mut world, &late)? {
        world.delivered(&finished)?;
    }
    lived.broken = world.broken;
    Ok(lived)
}

/// Takes the batches. If it takes all of them, it checks that all memory is given back.
fn take(simulation: &mut Simulation, world: &mut RandomWorld<'_>, life: &Life, lived: &mut Lived) -> Result<()> {
    for _ in 0..life.taken {
        let finished = simulation.next_batch(world)?;
        lived.samples.extend(world.delivered(&finished)?);
        lived.batches += 1;
    }
    if life.taken < life.batches {
        return Ok(());
    }
    simulation.run_until_idle(world)?;
    if world.broken { Ok(()) } else { balance(&simulation.scheduler) }
}

/// Checks that all memory was given back.
fn balance(scheduler: &Scheduler) -> Result<()> {
    if let Some(read) = scheduler.reads.iter().next() {
        return Err(Error::runtime(format!("nothing is under way, but a read holds memory: {read:?}")));
    }
    let (mut staging, mut slots) = (0, 0);
    for chunk in scheduler.chunks.iter() {
        if chunk.is_pinned()
            || chunk.payload().is_some()
            || chunk.output().is_some()
            || (chunk.decoded().is_some() && scheduler.memory.has_slots())
            || matches!(chunk.state(), ChunkState::Fetching | ChunkState::Decoding)
        {
            return Err(Error::runtime(format!("nothing is under way, but a chunk waits: {chunk:?}")));
        }
        staging += chunk.decoded().map_or(0, Lease::reserved);
        slots += chunk.slot().map_or(0, Range::bytes);
    }
    if let Some((number, _)) = scheduler.batches.iter().find(|(_, batch)| !batch.is_whole()) {
        return Err(Error::runtime(format!("nothing is under way, but a part of batch {number} is lent")));
    }
    if !scheduler.memory.has_slots() {
        slots = staging;
    }
    for (kind, held) in [(MemoryKind::Staging, staging), (MemoryKind::Slots, slots)] {
        let free = scheduler.memory.available(kind);
        let all = scheduler.memory.capacity(kind) - scheduler.memory.withheld(kind);
        if free + held != all {
            return Err(Error::runtime(format!("of {all} bytes {free} are free and {held} are held: some are lost")));
        }
    }
    Ok(())
}
