//! Random worlds for the scheduler: random data sets, readers and memory limits, run in
//! [`crate::scheduler::simulation`], which checks what the scheduler promises. Some readers are dropped, at any moment or
//! after any batch. A new reader with another memory limit then restores their checkpoint and goes on. The order of some
//! is a caller's, who pushes some batches ahead. In some, chunks are bad, and the reader goes on without them.
//!
//! [`scheduler_speed`] measures the scheduler in a world that isn't random.
//!
//! A world is a function of its seed: the same seed gives the same world again. This module stands above the reader,
//! because it prepares readers and divides their memory as for users.

pub(crate) mod documents;
mod speed;
mod stores;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::budget::MachineMemory;
use crate::explain::memory::simulated;
use crate::reader::opening::UnstartedReader;
use crate::scheduler::simulation::random::{self, Caller, Life, Random, SimulatedReader};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::random::key;
use dali_zarr_samples::order::{Order, Sample};
use dali_zarr_samples::spec::{OnBadChunk, OrderSource};
use stores::RandomReader;

pub use speed::{Speed, scheduler_speed};

/// Number of consecutive seeds whose worlds share their readers: to prepare a reader takes as long as some worlds.
const SHARED: u64 = 1 << 13;
/// Number of readers from which these worlds choose.
const READERS: usize = 96;

/// Prepares the readers for the worlds that share them with the world of `seed`.
fn readers(seed: u64, unusual: bool) -> Vec<RandomReader> {
    let mut random = Random::new(key(&[seed / SHARED]));
    let mut readers = Vec::with_capacity(READERS);
    while readers.len() < READERS {
        readers.extend(RandomReader::new(&mut random, unusual).ok());
    }
    readers
}

/// Runs the world of `seed`.
fn live(seed: u64, readers: &[RandomReader], unusual: bool) -> Result<()> {
    let mut random = Random::new(seed);
    let drawn = &readers[random.below(readers.len() as u64) as usize];
    let unstarted = &drawn.unstarted;
    let batch = drawn.spec.batch_size as u64;
    let first = random.below(3) * random.below(unstarted.order.samples());
    let batches = 1 + random.below(10);
    let (mut order, mut delivered, mut taken) = (unstarted.order.clone(), first, 0);
    let mut expected = unstarted.order.clone();
    let is_pushed = drawn.spec.order.order == OrderSource::Pushed;
    let caller = is_pushed.then(|| Caller { seed, samples: unstarted.order.samples() });
    let on_bad_chunk = [OnBadChunk::Error, OnBadChunk::Nan, OnBadChunk::Skip][random.below(3) as usize];
    let bad = if random.chance(0.5) { 0.0 } else { random.below(50) as f64 / 100.0 };
    for number in 0.. {
        let (batches_left, work) = (batches - taken, u64::MAX);
        let mut life = Life { seed, unusual, batches: batches_left, taken: batches_left, work, bad, on_bad_chunk };
        // After two checkpoints the reader lives to the end.
        match random.below(if number < 2 { 8 } else { 0 }) {
            1 => life.work = random.below(60),
            2 => life.taken = random.below(life.batches),
            _ => {}
        }
        let reader = SimulatedReader { caller, ..reader(drawn, &mut random, order.clone(), delivered)? };
        let lived = random::live(&life, Random::new(key(&[seed, number])), reader)?;
        for (sample, k) in lived.samples.into_iter().zip(first + taken * batch..) {
            let Some(sample) = sample else { continue };
            let wanted = match caller {
                Some(caller) => {
                    let begin = k - (k - first) % batch;
                    let others = (k..begin + batch).chain(begin..k);
                    replaced(&life, unstarted, others.map(|k| caller.sample(k)))
                }
                None => replaced(&life, unstarted, of_epoch(&mut expected, k)),
            };
            if Some(sample) != wanted {
                return Err(Error::runtime(format!("expected {wanted:?}, but sample {k} is {sample:?}")));
            }
        }
        taken += lived.batches;
        if lived.broken || taken == batches {
            return Ok(());
        }
        delivered += lived.batches * batch;
        let checkpoint = unstarted.identity.write(&order, drawn.spec.order.shard_id, delivered);
        (order, delivered) = unstarted.order.resume(&unstarted.identity.read(&checkpoint)?)?;
    }
    Ok(())
}

/// Returns the first of these samples; if samples are replaced, the first that needs no bad chunk.
fn replaced(life: &Life, reader: &UnstartedReader, mut samples: impl Iterator<Item = Sample>) -> Option<Sample> {
    let replaces = life.on_bad_chunk == OnBadChunk::Skip && life.bad > 0.0;
    samples.find(|&sample| !replaces || !life.needs_bad(&reader.chunk_index, sample))
}

/// Returns the samples of the epoch of sample `k`, from this one on, and then those before it.
fn of_epoch(order: &mut Order, k: u64) -> impl Iterator<Item = Sample> {
    let epoch = order.locate(k).0;
    let mut first = k;
    while first > 0 && order.locate(first - 1).0 == epoch {
        first -= 1;
    }
    let end = (k..).find(|&at| order.locate(at).0 != epoch).unwrap_or(k);
    (k..end).chain(first..k).map(|at| order.sample(at))
}

/// Makes a reader of samples in this order that has delivered some of them, with random limits on memory.
fn reader(drawn: &RandomReader, random: &mut Random, order: Order, delivered: u64) -> Result<SimulatedReader> {
    let RandomReader { spec, unstarted, smallest } = drawn;
    // Draws a limit: the least that is possible, up to twice that, or several times that.
    let mut more = |least: u64| match random.below(3) {
        0 => least,
        1 => least + random.below(least),
        _ => least.saturating_mul(1 + random.below(8)),
    };
    let spec = spec.clone().with(|s| {
        s.resources.host_memory_limit = Some(more(smallest.host));
        s.resources.device_memory_limit = (smallest.device > 0).then(|| more(smallest.device));
    });
    let mut config = simulated(&spec, &unstarted.needs, &MachineMemory::default())?;
    config.rules.shared_tasks = random.below(4) as usize;
    config.rules.several_shards = random.below(2) == 0;
    // Some readers share host memory with others. What is reserved is as for users' readers.
    let shares = (config.gpu.is_none() && random.below(2) == 0).then(|| {
        let batches = unstarted.needs.least_batches(spec.resources.prefetch_queue_depth);
        (unstarted.needs.cpu_chunk(), batches, random.below(2 * config.staging as u64))
    });
    Ok(SimulatedReader {
        shares,
        chunk_index: Arc::clone(&unstarted.chunk_index),
        ops: unstarted.ops.clone(),
        order,
        caller: None,
        first_sample: delivered,
        batch_size: spec.batch_size,
        output_bytes: unstarted.outputs.iter().map(|o| o.batch_bytes(spec.batch_size)).collect(),
        config,
    })
}

/// A world that broke a promise.
#[derive(Debug)]
pub struct Failure {
    /// The seed of the world.
    pub seed: u64,
    /// A description of what was broken.
    pub what: String,
}

/// Runs the worlds of these seeds on `threads` threads. Ends at the first failure. In `unusual` worlds some chunks are
/// oversized, and some stores tell where chunks lie in larger objects.
///
/// # Errors
/// The first failure.
pub fn search(seeds: Range<u64>, threads: usize, unusual: bool) -> Result<(), Failure> {
    let next = AtomicU64::new(seeds.start / SHARED);
    let failed = AtomicBool::new(false);
    let work = || -> Result<(), Failure> {
        loop {
            let group = next.fetch_add(1, Relaxed);
            let of_group = (group * SHARED).max(seeds.start)..((group + 1) * SHARED).min(seeds.end);
            if of_group.is_empty() || failed.load(Relaxed) {
                return Ok(());
            }
            let readers = readers(of_group.start, unusual);
            for seed in of_group {
                let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| live(seed, &readers, unusual)));
                let what = match lived {
                    Ok(Ok(())) => continue,
                    Ok(Err(e)) => e.message().to_owned(),
                    Err(panic) => format!("a panic: {}", dali_zarr_base::error::panic_text(&*panic)),
                };
                failed.store(true, Relaxed);
                return Err(Failure { seed, what });
            }
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        all.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `DALI_ZARR_WORLDS` is the number of each kind.
    #[test]
    fn thousands_of_worlds() {
        let given = std::env::var("DALI_ZARR_WORLDS").ok();
        let count = given.map_or(10_000, |count| count.parse().expect("DALI_ZARR_WORLDS: expected a number"));
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        for (unusual, switch) in [(false, ""), (true, "--unusual ")] {
            if let Err(Failure { seed, what }) = search(0..count, threads, unusual) {
                panic!(
                    "world {seed}: {what}; again: cargo run --release --example simulate -- {switch}--seed {seed} --worlds 1"
                );
            }
        }
    }
}
