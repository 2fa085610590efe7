//! Tests of what the scheduler's parts promise. The [`Bench`] is a scheduler whose workers only record what they get: the
//! test says how each piece of work ends.

mod batches;
mod eviction;
mod gds;
mod lanes;
mod reads;
mod store_indexes;
mod uploads;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use super::memory::MemoryKind;
use super::simulation::{Config, GpuConfig, SimulatedWork, Simulation, shared, task_events, wave_events};
use super::{Finished, Rules};
use crate::budget::MachineMemory;
use crate::chunk_index::Foresight;
use crate::explain::memory::simulated;
use crate::messages::{Event, Read, ReadDone, Take, Task, Wave, WaveLimits};
use crate::reader::opening::UnstartedReader;
use crate::stats::Stats;
use crate::worlds::documents::{ChunkLocations, Documents};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::Lease;
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::plan::ChunkId;
use dali_zarr_samples::spec::{Device, DimKey, Spec};
use dali_zarr_stores::{Extent, Latency};

/// Elements of a row, of type float32, unless a test asks for others.
const WIDTH: u64 = 64;

/// How the chunks of [`Rows`] are compressed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Compressor {
    /// By zstd, which GPUs decode too.
    #[default]
    Zstd,
    /// By bzip2, which only the CPU decodes.
    Bzip2,
    None,
}

/// An array of rows, one for each sample.
#[derive(Clone, Default)]
struct Rows {
    /// Rows of a chunk.
    chunk: u64,
    /// Chunks of a shard. 0: there are no shards.
    shard: u64,
    /// For each chunk that is a range of an object: the object, the offset and the bytes.
    ranges: Vec<(&'static str, u64, u64)>,
    /// Whether the store must read its indexes before it tells these ranges. It has read them once this is true.
    indexes_are_read: Option<Arc<AtomicBool>>,
    /// Samples of a batch.
    batch: usize,
    /// Elements of a row. 0: [`WIDTH`].
    width: u64,
    compressor: Compressor,
    /// Whether chunks are files.
    files: bool,
    /// The offsets of the rows that a sample has. Empty: only its own row.
    offsets: Vec<i64>,
}

impl Rows {
    fn metadata(&self) -> Value {
        let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let codecs = match self.compressor {
            Compressor::Zstd => json!([bytes, {"name": "zstd", "configuration": {"level": 1, "checksum": false}}]),
            Compressor::Bzip2 => json!([bytes, {"name": "numcodecs.bz2", "configuration": {"level": 1}}]),
            Compressor::None => json!([bytes]),
        };
        let width = if self.width > 0 { self.width } else { WIDTH };
        let (mut grid, mut outer) = ([self.chunk, width], codecs.clone());
        if self.shard > 0 {
            grid[0] *= self.shard;
            outer = json!([{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [self.chunk, width], "codecs": codecs, "index_location": "end",
                "index_codecs": [bytes, {"name": "crc32c"}],
            }}]);
        }
        json!({
            "zarr_format": 3, "node_type": "array", "shape": [12, width], "data_type": "float32", "fill_value": 0.0,
            "dimension_names": ["t", "x"], "codecs": outer, "attributes": {},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        })
    }

    fn open(&self, device: Device) -> (Spec, UnstartedReader) {
        let extent = |(i, &(object, offset, len)): (usize, &(&str, u64, u64))| {
            (format!("a/c/{i}/0"), Extent { object: object.into(), version: None, offset, len })
        };
        let ranges: HashMap<_, _> = self.ranges.iter().enumerate().map(extent).collect();
        let indexes_are_read = self.indexes_are_read.clone().unwrap_or_else(|| Arc::new(AtomicBool::new(true)));
        let locations = match ranges.is_empty() {
            true => ChunkLocations::Keys,
            false => ChunkLocations::Listed { ranges, indexes_are_read },
        };
        let mut store = Documents::new(Latency::Local, self.files);
        store.add("a", &self.metadata(), locations);
        let spec = Spec::default().with(|s| {
            s.source.paths = vec!["test".into()];
            s.source.arrays = vec!["a".into()];
            s.samples.dims = vec![DimKey::parse("t")];
            s.samples.offsets.clone_from(&self.offsets);
            s.batch_size = self.batch;
            s.device = device;
        });
        let dataset = Dataset::of_stores(&spec, vec![Arc::new(store)], None).unwrap();
        let unstarted = UnstartedReader::of(&spec, dataset).unwrap();
        (spec, unstarted)
    }
}

/// Returns rules with two active batches, two planned ones, and six reads at a time.
fn with_few_batches(rules: Rules) -> Rules {
    Rules { reads: [6, 6], max_active: 2, lookahead: 2, ..rules }
}

/// Returns such rules for the tests of one part.
fn some_rules() -> Rules {
    let (spec, unstarted) = Rows { chunk: 1, batch: 1, ..Rows::default() }.open(Device::Cpu);
    with_few_batches(simulated(&spec, &unstarted.needs, &MachineMemory::default()).unwrap().rules)
}

/// The limits of waves in tests of a GPU: none that matters.
const WAVES: WaveLimits = WaveLimits { encoded: 1 << 30, decoded: 1 << 30, chunks: 64 };

/// A GPU with one lane, and this many bytes for decoded chunks and for encoded ones that GPUDirect Storage reads.
fn gpu(slots: usize, gds_buffer: usize) -> GpuConfig {
    GpuConfig { slots, gds_buffer, lanes: 1, limits: WAVES }
}

/// A scheduler with workers that only record what they get.
struct Bench {
    simulation: Simulation,
    stats: Arc<Stats>,
    foresight: Foresight,
}

impl Bench {
    /// Makes a reader of the rows on the CPU, with this many bytes of memory for chunks.
    fn new(rows: &Rows, staging: usize) -> Self {
        Self::with(rows, staging, None, |_| {})
    }

    /// Makes a reader of the rows on a GPU, with a MiB of page-locked memory, and with the rules that `change` changes.
    /// The CPU doesn't decode in the GPU's place, unless `change` says so.
    fn on_gpu(rows: &Rows, gpu: GpuConfig, change: impl FnOnce(&mut Rules)) -> Self {
        Self::with(rows, 1 << 20, Some(gpu), change)
    }

    fn with(rows: &Rows, staging: usize, gpu: Option<GpuConfig>, change: impl FnOnce(&mut Rules)) -> Self {
        let (spec, unstarted) = rows.open(if gpu.is_some() { Device::Gpu(0) } else { Device::Cpu });
        let config = simulated(&spec, &unstarted.needs, &MachineMemory::default()).unwrap();
        let mut rules = Rules { shared_tasks: 0, ..with_few_batches(config.rules) };
        change(&mut rules);
        let config = Config { staging, gpu, rules, ..config };
        let shared = shared(&unstarted.chunk_index, unstarted.ops);
        let output_bytes: Vec<_> = unstarted.outputs.iter().map(|o| o.batch_bytes(spec.batch_size)).collect();
        let simulation = Simulation::new(&shared, config, &output_bytes);
        let batch = spec.batch_size as u64;
        let foresight = Foresight::new(&unstarted.chunk_index, unstarted.order, 0, move |k| k + batch);
        Self { simulation, stats: shared.stats, foresight }
    }

    /// Returns the bytes that are reserved for the encoded bytes of a chunk.
    fn encoded(&self) -> usize {
        let chunk_index = &self.simulation.chunk_index;
        let id = ChunkId { array: 0, part: 0, index: 0 };
        chunk_index.part(id).format.usual_encoded_bytes(chunk_index.decoded_bytes(id))
    }

    /// Lets the scheduler do what it can, and returns the work that it hands out.
    fn work(&mut self) -> Vec<SimulatedWork> {
        self.simulation.scheduler.pump();
        while !self.simulation.plan_requests.is_empty() {
            self.plan();
            self.simulation.scheduler.pump();
        }
        self.simulation.handed_out.try_iter().collect()
    }

    /// Plans all batches that the scheduler has asked for.
    fn plan(&mut self) {
        while self.simulation.plan_requests.try_recv().is_ok() {
            let chunk_index = &self.simulation.chunk_index;
            let plan = chunk_index.plan_upcoming(self.foresight.next(chunk_index, true).expect("an order never ends"));
            self.handle(Event::Planned(Box::new(plan)));
        }
    }

    /// Like [`Self::work`]. All work must be reads.
    fn reads(&mut self) -> Vec<(Read, Lease)> {
        let read = |work| match work {
            SimulatedWork::Read { read, to, .. } => (read, to),
            _ => panic!("expected reads only"),
        };
        self.work().into_iter().map(read).collect()
    }

    /// Like [`Self::work`]. Returns the waves, all of lane 0, and drops other work.
    fn waves(&mut self) -> Vec<Wave> {
        let wave = |work| match work {
            SimulatedWork::Wave { lane, wave, .. } => {
                assert_eq!(lane, 0);
                Some(wave)
            }
            _ => None,
        };
        self.work().into_iter().filter_map(wave).collect()
    }

    /// Like [`Self::waves`]. There must be one wave.
    fn wave(&mut self) -> Wave {
        let mut waves = self.waves();
        assert_eq!(waves.len(), 1);
        waves.remove(0)
    }

    /// Like [`Self::work`]. Returns the tasks, and drops other work.
    fn tasks(&mut self) -> Vec<Task> {
        let task = |work| match work {
            SimulatedWork::Task(task) => Some(task),
            _ => None,
        };
        self.work().into_iter().filter_map(task).collect()
    }

    fn handle(&mut self, event: Event) {
        self.simulation.scheduler.handle(event);
    }

    /// Returns the free bytes of a kind of memory.
    fn free(&self, kind: MemoryKind) -> usize {
        self.simulation.scheduler.memory.available(kind)
    }

    fn end_read(&mut self, (read, to): (Read, Lease), result: Result<Option<usize>>) {
        self.handle(Event::Fetched(ReadDone { id: read.id, to, result }));
    }

    /// Ends a task. Its chunks are decoded, or fail with `error`.
    fn end_task(&mut self, task: Task, error: Option<&Error>) {
        let chunks = error.map_or(Ok(()), |e| Err(e.clone()));
        task_events(task, chunks).into_iter().for_each(|event| self.handle(event));
    }

    /// Ends a wave after its bytes were copied. Its chunks are decoded, or fail with `error`.
    fn end_wave(&mut self, wave: Wave, error: Option<&Error>) {
        let chunks = error.map_or(Ok(()), |e| Err(e.clone()));
        wave_events(0, wave, chunks, Ok(())).into_iter().for_each(|event| self.handle(event));
    }

    /// Ends a wave whose lane failed, as a lane does: all its chunks fail.
    fn fail_lane(&mut self, wave: Wave, error: &Error) {
        let failed = || Err(error.clone());
        wave_events(0, wave, failed(), failed()).into_iter().for_each(|event| self.handle(event));
    }

    /// Takes a batch that must be finished. Its device memory is lent again.
    fn take(&mut self) -> Finished {
        self.simulation.scheduler.pump();
        let finished = self.simulation.finished.try_recv().expect("a batch is finished");
        self.handle(Event::Taken(Take::default()));
        if let Ok(batch) = &finished
            && let Some(set) = batch.buffers
        {
            self.simulation.lend(set);
        }
        finished
    }

    /// Whether no batch is finished.
    fn waits(&mut self) -> bool {
        self.simulation.scheduler.pump();
        self.simulation.finished.is_empty()
    }
}
