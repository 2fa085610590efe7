//! The reader as its hosts see it: open, ask what it delivers, take finished batches.

pub(crate) mod needs;
pub(crate) mod opening;
mod progress;
mod reserve;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_damage;
#[cfg(test)]
mod tests_faults;
#[cfg(test)]
mod tests_longer;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::budget::There;
use crate::cache::Cache;
use crate::cuda;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::flow::stats::Stats;
use crate::flow::tasks::Shared;
use crate::flow::{DecodePool, Event, FetchPool, Finished, Scheduler, Setup, spawn};
use crate::gpu;
pub use crate::memory::HostBuffer;
use crate::memory::Machine;
use crate::nvtx;
use crate::order::Sample;
use crate::spec::{Device, Spec};
use needs::{landing, rules};
use opening::Opened;
use progress::{Progress, Start};
use reserve::Memory;

/// One output of every batch: the same for all samples, since all samples have one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputInfo {
    /// The shape of one sample; empty for scalars.
    pub shape: Vec<i64>,
    /// The element type.
    pub dtype: DType,
    /// DALI's layout, one letter per dimension; empty where the dimensions have no known letters.
    pub layout: String,
    /// What it holds, for messages: the array's name, or the names of the stacked ones.
    pub name: String,
}

impl OutputInfo {
    /// Bytes of one sample.
    pub fn sample_bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.dtype.size()
    }
}

/// The numbers that DALI's iterators ask of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderMeta {
    /// Samples in an epoch, over all shards.
    pub epoch_size: i64,
    /// The same, padded so that all shards are equal.
    pub epoch_size_padded: i64,
    /// As in the spec.
    pub number_of_shards: i64,
    /// As in the spec.
    pub shard_id: i64,
    /// As in the spec.
    pub pad_last_batch: bool,
    /// As in the spec.
    pub stick_to_shard: bool,
}

/// Device memory for all outputs of one batch, lent by the host; the reader writes it and gives it back with a batch.
#[derive(Clone, Debug)]
pub struct DeviceBuffers {
    /// The host's name for this set; comes back in [`Batch::buffers`].
    pub id: u64,
    /// For each output the device address of `batch_size * sample_bytes` contiguous bytes, aligned to 8.
    pub outputs: Vec<u64>,
    /// A `CUevent` after which the memory may be written (0: at once). It must live until the set comes back.
    pub ready: u64,
}

/// A finished batch: full, dense, and complete in memory (nothing is pending on any stream).
#[derive(Debug)]
pub struct Batch {
    /// With [`Device::Cpu`]: one buffer per output. Empty otherwise.
    pub host: Vec<HostBuffer>,
    /// With [`Device::Gpu`]: the lent set that was filled. `None` otherwise.
    pub buffers: Option<u64>,
}

/// A running reader: its threads, memory and devices. Dropping it ends all of them.
pub struct Reader {
    outputs: Vec<OutputInfo>,
    meta: ReaderMeta,
    notes: Vec<String>,
    /// With [`Device::Gpu`]: sets to be lent. 0 otherwise.
    buffers: usize,
    finished: Receiver<Finished>,
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
    scheduler: Option<JoinHandle<()>>,
    stats: Arc<Stats>,
    progress: Progress,
}

/// Names a file that every reader, when dropped, replaces by its counters as JSON: for tests and measurements.
const STATS_FILE: &str = "DALI_ZARR_STATS_FILE";

impl Reader {
    /// Opens the store, checks the spec against it, reserves the memory and starts to prepare batches.
    ///
    /// # Errors
    /// Whatever is wrong with the arguments or the metadata, named.
    pub fn open(spec: Spec) -> Result<Self> {
        let reader = Self::prepare(spec)?;
        reader.progress.start();
        Ok(reader)
    }

    /// As [`Self::open`], but no batch is prepared before the first is asked for, or [`Self::restore`] says which.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn prepare(spec: Spec) -> Result<Self> {
        Self::start(&spec, Opened::new(&spec)?)
    }

    /// Reserves the memory and starts the threads.
    pub(crate) fn start(spec: &Spec, mut opened: Opened) -> Result<Self> {
        let device = match spec.device {
            Device::Cpu => None,
            Device::Gpu(ordinal) => Some(cuda::Device::open(ordinal)?),
        };
        let cufile = match &device {
            Some(device) => gpu::storage::choose(spec, &opened.catalog, device)?,
            None => None,
        };
        if let (Some(_), Some(of)) = (cufile, &mut opened.needs.device) {
            of.landing = landing(spec, opened.needs.encoded);
        }
        let free = device.as_ref().map(|d| d.memory_info()).transpose()?;
        let there = There { host: Machine::find(), device: free.map(|(free, total)| (free as u64, total as u64)) };
        let budget = opened.divide(spec, &there)?.accepted()?;
        let Opened { catalog, order, ops, outputs, meta, identity, notes, needs } = opened;
        let (events, event_receiver) = unbounded();
        let (finished_sender, finished) = unbounded();
        let runtime = catalog.dataset.stores.iter().find_map(|s| s.runtime());
        let requests = runtime.map(|r| Arc::clone(&r.counters)).unwrap_or_default();
        let cache = Cache::open(spec, &catalog.dataset.stores)?;
        let counters = cache.as_ref().map(|c| Arc::clone(&c.counters)).unwrap_or_default();
        let stats = Arc::new(Stats { cache: counters, remote: requests, ..Stats::default() });
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Shared {
            catalog,
            ops: Arc::new(ops),
            stats: Arc::clone(&stats),
            cache,
            events: events.clone(),
            stop: Arc::clone(&stop),
        };
        let memory = match &device {
            None => Memory::on_host(&budget, &outputs, spec.batch_size)?,
            Some(device) => Memory::on_device(device, &budget, &needs, &shared, cufile)?,
        };
        let rules = rules(spec, &needs, &order, &budget);
        let ways = memory.lanes.as_deref().filter(|_| memory.past_host || shared.catalog.uploads());
        let (plan, plan_requests) = unbounded();
        let setup = Setup {
            rules,
            fetch: Box::new(FetchPool::new(rules.reads, ways, &shared)?),
            decode: Box::new(DecodePool::new(budget.host.threads, &shared)?),
            lanes: memory.lanes,
            staging: memory.staging,
            slots: memory.slots,
            landing: memory.landing,
            past_host: memory.past_host,
            pools: memory.pools,
            plan,
            finished: finished_sender,
            memory: memory.owned,
            shared: shared.clone(),
        };
        let (planner, started) = bounded(1);
        let progress = Progress::new(identity, spec, order, planner);
        let planner = {
            let shared = shared.clone();
            let batch = spec.batch_size as u64;
            spawn("plan", events.clone(), move || plan_batches(&started, batch, &shared, &plan_requests))?
        };
        let scheduler = spawn("schedule", events.clone(), move || {
            Scheduler::new(setup).run(&event_receiver);
            // Its channel is closed now, so it has ended or is about to.
            let _ = planner.join();
        })?;
        let buffers = if matches!(spec.device, Device::Gpu(_)) { budget.window } else { 0 };
        let notes = notes.into_iter().map(|n| n.text).collect();
        Ok(Self { outputs, meta, notes, buffers, finished, events, stop, scheduler: Some(scheduler), stats, progress })
    }

    /// What each batch holds, in order.
    pub fn outputs(&self) -> &[OutputInfo] {
        &self.outputs
    }

    /// For DALI's iterators.
    pub fn meta(&self) -> ReaderMeta {
        self.meta
    }

    /// What the user should be told, once: arrays that the GPU can't decode, for example.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The counters, which go on counting as long as the reader runs.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// With [`Device::Gpu`]: how many sets of device buffers the host must lend before the first batch. After that, one
    /// for each batch taken keeps the reader running at full speed. 0 with [`Device::Cpu`].
    pub fn buffers_wanted(&self) -> usize {
        self.buffers
    }

    /// Lends a set of device buffers.
    ///
    /// # Errors
    /// If the set doesn't fit [`Self::outputs`], or the reader delivers to the CPU.
    pub fn lend(&self, set: DeviceBuffers) -> Result<()> {
        if self.buffers == 0 {
            return Err(Error::value("device buffers were lent to a reader that delivers to the CPU"));
        }
        if set.outputs.len() != self.outputs.len() {
            return Err(Error::value(format!(
                "expected device buffers for {} outputs, found {}",
                self.outputs.len(),
                set.outputs.len()
            )));
        }
        if let Some(bad) = set.outputs.iter().find(|&&a| a == 0 || a % 8 != 0) {
            return Err(Error::value(format!("expected device addresses aligned to 8 bytes, found {bad:#x}")));
        }
        self.events.send(Event::Lent(set)).map_err(|_| stopped())
    }

    /// The next batch, in order; waits for it.
    ///
    /// # Errors
    /// What failed for a chunk that the batch needs. The next call gives the next batch.
    pub fn next_batch(&self) -> Result<Batch> {
        self.progress.start();
        let finished = match self.finished.try_recv() {
            Ok(finished) => finished,
            Err(_) => {
                Stats::add(&self.stats.waits, 1);
                let _range = nvtx::range(c"dali_zarr wait");
                let start = Instant::now();
                let finished = self.finished.recv().map_err(|_| stopped())?;
                Stats::time(&self.stats.wait_ns, start.elapsed());
                finished
            }
        };
        self.progress.advance();
        self.events.send(Event::Taken).map_err(|_| stopped())?;
        finished
    }

    /// How many samples of its order this reader has handed out, those of a restored state included unless its shards
    /// were changed. Batches that ended in errors count.
    pub fn delivered(&self) -> u64 {
        self.progress.delivered()
    }

    /// The state after `delivered` samples: what [`Self::restore`] needs to go on there. See [`crate::state`].
    pub fn state_at(&self, delivered: u64) -> String {
        self.progress.state(delivered)
    }

    /// The state after the last batch that was handed out.
    pub fn state(&self) -> String {
        self.state_at(self.delivered())
    }

    /// Goes on where `state` was taken, by a reader of the same samples. If this reader has other shards, batches or padding,
    /// what was left of the epoch is divided anew (see [`crate::order`]). Starts to prepare batches.
    ///
    /// # Errors
    /// If the state isn't one of a reader of the same samples, the shards can't be changed there, or the reader has begun
    /// already: only one from [`Self::prepare`] hasn't.
    pub fn restore(&mut self, state: &str) -> Result<()> {
        self.progress.restore(state)?;
        self.progress.start();
        Ok(())
    }
}

fn stopped() -> Error {
    Error::runtime("the reader's scheduler has stopped after an internal error")
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = self.events.send(Event::Stop);
        self.progress.cancel();
        if let Some(scheduler) = self.scheduler.take() {
            let _ = scheduler.join();
        }
        if let Some(file) = std::env::var_os(STATS_FILE)
            && let Err(e) = std::fs::write(&file, self.stats.to_json().to_string())
        {
            eprintln!("dali_zarr: {STATS_FILE}: can't write {}: {e}", file.display());
        }
    }
}

/// The planner's thread: one batch for each request, once it is known where to begin.
fn plan_batches(start: &Receiver<Start>, batch: u64, shared: &Shared, requests: &Receiver<()>) {
    let Ok((mut order, mut next)) = start.recv() else { return };
    for () in requests {
        if shared.stopped() {
            continue;
        }
        let samples: Vec<Sample> = (next..next + batch).map(|k| order.sample(k)).collect();
        next += batch;
        let plan = Box::new(shared.catalog.plan(&samples));
        if shared.events.send(Event::Planned(plan)).is_err() {
            return;
        }
    }
}
