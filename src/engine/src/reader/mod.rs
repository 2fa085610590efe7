//! The reader as hosts use it: they open it, ask for its outputs, and take finished batches.

mod breaks;
pub mod calendar;
mod checkpoint;
pub(crate) mod coordinates;
mod distances;
mod division;
pub(crate) mod inputs;
mod missing;
pub(crate) mod needs;
pub(crate) mod notices;
pub(crate) mod opening;
pub mod openings;
mod operations;
pub(crate) mod ordering;
mod places;
mod planning;
mod progress;
pub(crate) mod pusher;
mod reserve;
mod routing;
mod rows;
pub(crate) mod shapes;
mod shared_memory;
mod tables;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_damage;
#[cfg(test)]
mod tests_faults;
#[cfg(test)]
mod tests_icechunk;
#[cfg(test)]
mod tests_oversized;
#[cfg(test)]
mod tests_pushed;
pub(crate) mod text;
mod times;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use crate::budget::{MachineMemory, smallest};
use crate::cache::Cache;
use crate::chunk_index::BadChunks;
use crate::cpu::DecodePool;
use crate::gpu;
use crate::gpu::driver;
use crate::io::FetchPool;
use crate::messages::{Event, Shared, Take, spawn};
use crate::scheduler::{Finished, Scheduler, Setup};
use crate::stats::Stats;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::first_log::is_first_log_of;
pub use dali_zarr_base::memory::HostBuffer;
use dali_zarr_base::memory::Machine;
use dali_zarr_base::nvtx;
pub use dali_zarr_samples::batch::{Batch, DeviceBuffers, Names, OutputInfo};
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::geometry::Rows;
use dali_zarr_samples::spec::{Device, OnBadChunk, Spec};
#[doc(no_inline)]
pub use dali_zarr_stores::credentials;
use needs::{gds_buffer, rules};
use opening::UnstartedReader;
use planning::plan_batches;
use progress::Progress;
pub use pusher::Pusher;
use reserve::Reserved;

/// Bytes of host memory of [`Reader::small`].
const SMALL: u64 = 64 << 20;

/// The numbers that DALI's iterators ask of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderMeta {
    /// Samples in an epoch, over all shards.
    pub epoch_size: i64,
    /// The same; with `pad_last_batch`, rounded up to a multiple of the number of shards.
    pub epoch_size_padded: i64,
    /// As in the spec.
    pub number_of_shards: i64,
    /// As in the spec.
    pub shard_id: i64,
    /// As in the spec.
    pub pad_last_batch: bool,
    /// Whether the reader keeps its shard.
    pub stick_to_shard: bool,
}

/// A running reader: its threads, memory and devices. Dropping it stops the threads and gives back the rest.
pub struct Reader {
    outputs: Vec<OutputInfo>,
    batch_size: usize,
    rows: Option<Rows>,
    meta: ReaderMeta,
    /// Number of sets of device buffers that the host must lend, see [`Reader::buffers_wanted`]; 0 with
    /// [`Device::Cpu`].
    buffers: usize,
    /// Most batches in preparation.
    batches: usize,
    finished: Receiver<Finished>,
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
    scheduler: Option<JoinHandle<()>>,
    stats: Arc<Stats>,
    progress: Progress,
    /// Takes the caller's pushes, if the order is the caller's.
    pusher: Option<Arc<Pusher>>,
    /// When the last batch was taken.
    taken: Mutex<Instant>,
}

impl Reader {
    /// Opens the stores, checks the spec against them, reserves memory and starts to prepare batches.
    ///
    /// # Errors
    /// If the arguments or the metadata are wrong.
    pub fn open(spec: Spec) -> Result<Self> {
        let reader = Self::prepare(spec)?;
        reader.progress.start();
        Ok(reader)
    }

    /// As [`Self::open`], but batches are prepared only after the first is asked for, or after [`Self::restore`].
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn prepare(spec: Spec) -> Result<Self> {
        let spec = &*inputs::resolved(&spec)?;
        let unstarted = UnstartedReader::new(spec)?;
        coordinates::check_in_step(spec, &unstarted)?;
        Self::start(spec, unstarted)
    }

    /// Opens a reader of values that another reader needs before it is open, such as coordinates and tables. It takes
    /// [`SMALL`] bytes of host memory, or the smallest amount that will do if that is more.
    ///
    /// # Errors
    /// If the arguments or the metadata are wrong.
    pub(crate) fn small(mut spec: Spec, dataset: Dataset) -> Result<Self> {
        let unstarted = UnstartedReader::of(&spec, dataset)?;
        let least = smallest(&unstarted.needs, spec.resources.prefetch_queue_depth).host;
        spec.resources.host_memory_limit = Some(SMALL.max(least));
        Self::start(&spec, unstarted)
    }

    /// Reserves the memory and starts the threads.
    pub(crate) fn start(spec: &Spec, mut unstarted: UnstartedReader) -> Result<Self> {
        let device = match spec.device {
            Device::Cpu => None,
            Device::Gpu(ordinal) => Some(driver::Device::open(ordinal)?),
        };
        if let Some(device) = &device {
            unstarted.ask_for_images(spec, device)?;
        }
        let cufile = match &device {
            Some(_) => gpu::gds::choose(spec, &unstarted.chunk_index)?,
            None => None,
        };
        if let (Some(_), Some(of)) = (cufile, &mut unstarted.needs.device) {
            of.gds_buffer = gds_buffer(spec, unstarted.needs.encoded);
        }
        let free = device.as_ref().map(|d| d.memory_info()).transpose()?;
        let there = MachineMemory {
            host: Machine::find(),
            share: None,
            device: free.map(|(free, total)| (free as u64, total as u64)),
        };
        let (events, event_receiver) = unbounded();
        let (budget, part) = shared_memory::divide(spec, &mut unstarted, there, &events)?;
        let decoded = notices::decoded_by_default(spec, &unstarted.chunk_index.dataset);
        let unmasked: Vec<String> = notices::unmasked(&unstarted.chunk_index.dataset).collect();
        let left_out = notices::left_out(spec, &unstarted.chunk_index);
        let too_small = notices::too_small(&unstarted.chunk_index);
        let grown: Vec<String> = notices::grown(&unstarted.chunk_index.dataset).collect();
        let UnstartedReader { chunk_index, order, ops, outputs, meta, identity, notes, needs, fill: _ } = unstarted;
        let (finished_sender, finished) = unbounded();
        let runtime = chunk_index.dataset.stores.iter().find_map(|s| s.runtime());
        let requests = runtime.map(|r| Arc::clone(&r.counters)).unwrap_or_default();
        let cache = Cache::open(spec, &chunk_index.dataset.stores)?;
        let counters = cache.as_ref().map(|c| Arc::clone(&c.counters)).unwrap_or_default();
        let nans_replaced = operations::nans_replaced(&chunk_index);
        let stats = Arc::new(Stats { nans_replaced, cache: counters, remote: requests, ..Stats::default() });
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Shared {
            chunk_index,
            ops: Arc::new(if spec.resources.on_bad_chunk == OnBadChunk::Nan { ops.with_bad() } else { ops }),
            stats: Arc::clone(&stats),
            cache,
            bad: Arc::new(BadChunks::new(spec.resources.on_bad_chunk)),
            events: events.clone(),
            stop: Arc::clone(&stop),
        };
        let Reserved { lanes, mut memory } = match &device {
            None => reserve::on_host(spec, &budget, &needs, &outputs, part.account.as_ref())?,
            Some(device) => reserve::on_device(device, &budget, &needs, &shared, cufile)?,
        };
        memory.owned.push(Box::new(part));
        let rules = rules(spec, &needs, &budget);
        let copy_lanes = lanes.as_deref().filter(|_| memory.gds || shared.chunk_index.uploads());
        let (plan, plan_requests) = unbounded();
        // A model that trains on the GPU has threads of its own, to which ours leave the cores.
        let background = spec.device != Device::Cpu;
        let setup = Setup {
            rules,
            fetch: Box::new(FetchPool::new(rules.reads, background, copy_lanes, &shared)?),
            decode: Box::new(DecodePool::new(budget.host.threads, background, &shared)?),
            lanes,
            memory,
            plan,
            finished: finished_sender,
            shared: shared.clone(),
        };
        let (planner, started) = bounded(1);
        let pusher = Pusher::new(spec, &shared.chunk_index);
        let progress = Progress::new(identity, spec, Arc::clone(&shared.chunk_index), order, planner);
        let planner = {
            let shared = shared.clone();
            let batch = spec.batch_size as u64;
            let pushes = pusher.as_ref().map(|pusher| Arc::clone(pusher.pushes()));
            spawn("plan", events.clone(), move || plan_batches(&started, batch, pushes, &shared, &plan_requests))?
        };
        let scheduler = spawn("schedule", events.clone(), move || {
            Scheduler::new(setup).run(&event_receiver);
            // The planner's channel is closed, so it has ended or is about to end.
            let _ = planner.join();
        })?;
        let buffers = if matches!(spec.device, Device::Gpu(_)) { budget.batches } else { 0 };
        for text in notes.into_iter().map(|note| note.text).chain(unmasked).filter(|text| is_first_log_of(text)) {
            tracing::warn!("{text}");
        }
        for text in
            decoded.into_iter().chain(left_out).chain(too_small).chain(grown).filter(|text| is_first_log_of(text))
        {
            tracing::info!("{text}");
        }
        let stores: Vec<_> = shared.chunk_index.dataset.stores.iter().map(|store| store.location()).collect();
        tracing::debug!(
            "{}: opened; an epoch has {} samples in batches of {}, and {} batches are in preparation",
            Site::stores(&stores),
            meta.epoch_size,
            spec.batch_size,
            budget.batches
        );
        let (batch_size, rows) = (spec.batch_size, shared.chunk_index.planner.geometry().rows.clone());
        Ok(Self {
            outputs,
            batch_size,
            rows,
            meta,
            buffers,
            batches: budget.batches,
            finished,
            events,
            stop,
            scheduler: Some(scheduler),
            stats,
            progress,
            pusher,
            taken: Mutex::new(Instant::now()),
        })
    }

    /// Returns the outputs of each batch, in order.
    pub fn outputs(&self) -> &[OutputInfo] {
        &self.outputs
    }

    /// Returns the number of samples of each batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Returns the rows of ragged arrays; `None` if no array is ragged.
    pub fn rows(&self) -> Option<&Rows> {
        self.rows.as_ref()
    }

    /// Returns what takes the caller's pushes; `None` if the order is the reader's own.
    pub fn pusher(&self) -> Option<&Arc<Pusher>> {
        self.pusher.as_ref()
    }

    /// Returns the number of batches that the reader prepares at a time, at most.
    pub fn batches_ahead(&self) -> usize {
        self.batches
    }

    /// Returns the numbers that DALI's iterators ask for.
    pub fn meta(&self) -> ReaderMeta {
        self.meta
    }

    /// Returns the counters, which go on counting as long as the reader runs.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// With [`Device::Gpu`], returns how many sets of device buffers the host must lend before the first batch. After
    /// that, one set for each batch taken keeps the reader running at full speed. 0 with [`Device::Cpu`].
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
        for (output, &address) in self.outputs.iter().zip(&set.outputs) {
            // An output without elements, such as the index of samples that have no dimension, needs no memory.
            let is_missing = address == 0 && output.batch_bytes(self.batch_size) > 0;
            if is_missing || address % 8 != 0 {
                return Err(Error::value(format!("expected device addresses aligned to 8 bytes, found {address:#x}")));
            }
        }
        self.events.send(Event::Lent(set)).map_err(|_| stopped())
    }

    /// Waits for the next batch, in order, and returns it. In the caller's order, it also waits until there is a push, which
    /// another thread may do.
    ///
    /// # Errors
    /// If a chunk that the batch needs could not be read or decoded. The next call gives the next batch.
    pub fn next_batch(&self) -> Result<Batch> {
        self.next_batch_while(&mut || Ok(()))
    }

    /// As [`Self::next_batch`]. While it waits, it calls `go_on` twenty times a second. An error of `go_on` ends the wait, and the next
    /// call waits for the same batch.
    ///
    /// # Errors
    /// Those of [`Self::next_batch`] and of `go_on`.
    pub fn next_batch_while(&self, go_on: &mut dyn FnMut() -> Result<()>) -> Result<Batch> {
        self.progress.start();
        let mut waited = Duration::ZERO;
        let finished = match self.finished.try_recv() {
            Ok(finished) => finished,
            Err(_) => {
                Stats::add(&self.stats.waits, 1);
                let _range = nvtx::range(c"dali_zarr wait");
                let start = Instant::now();
                let finished = self.wait(go_on);
                waited = start.elapsed();
                Stats::time(&self.stats.wait_ns, waited);
                finished?
            }
        };
        self.progress.advance();
        let samples = self.pusher.as_ref().and_then(|pusher| pusher.pushes().take_size());
        let now = Instant::now();
        let before = std::mem::replace(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner), now);
        let take = Take { waited, interval: now.saturating_duration_since(before) };
        self.events.send(Event::Taken(take)).map_err(|_| stopped())?;
        finished.map(|batch| Batch { samples: samples.unwrap_or(batch.samples), ..batch })
    }

    fn wait(&self, go_on: &mut dyn FnMut() -> Result<()>) -> Result<Finished> {
        loop {
            match self.finished.recv_timeout(Duration::from_millis(50)) {
                Ok(finished) => return Ok(finished),
                Err(RecvTimeoutError::Timeout) => go_on()?,
                Err(RecvTimeoutError::Disconnected) => return Err(stopped()),
            }
        }
    }

    /// Returns how many samples this reader has handed out. Those of a restored state count, unless the restore changed
    /// the shards. Batches that ended in errors count.
    pub fn delivered(&self) -> u64 {
        self.progress.delivered()
    }

    /// Returns the state after `delivered` samples, from which [`Self::restore`] goes on. See
    /// [`crate::reader::checkpoint`].
    pub fn state_at(&self, delivered: u64) -> String {
        self.progress.state(delivered)
    }

    /// Returns the state after the last batch that was handed out.
    pub fn state(&self) -> String {
        self.state_at(self.delivered())
    }

    /// Continues where a reader of the same samples was when `state` was taken. If this reader has other shards,
    /// batches or padding, the rest of the epoch is divided anew (see `order`). Starts to prepare batches.
    ///
    /// # Errors
    /// If the state is not that of a reader of the same samples, if the shards can't be changed there, or if this
    /// reader has begun. Only a reader from [`Self::prepare`] has not begun.
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
        if let Some(pusher) = &self.pusher {
            // The planner may be waiting for a push.
            pusher.pushes().close();
        }
        if let Some(scheduler) = self.scheduler.take() {
            let _ = scheduler.join();
        }
    }
}
