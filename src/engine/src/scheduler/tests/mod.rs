//! Tests of what the scheduler's parts promise. The [`Bench`] is a scheduler whose workers only record what they get: the
//! test says how each piece of work ends.

mod batches;
mod reads;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use super::simulation::{Config, SimulatedWork, Simulation};
use super::{Finished, Rules};
use crate::budget::MachineMemory;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::explain::memory::simulated;
use crate::memory::Lease;
use crate::messages::{Event, Item, ItemDone, Outcome, Read, ReadDone, Shared, Take, Task, TaskDone};
use crate::order::{Order, Sample};
use crate::plan::ChunkId;
use crate::reader::opening::UnstartedReader;
use crate::spec::{DimKey, Spec};
use crate::stats::Stats;
use crate::store::{Extent, Latency};
use crate::worlds::documents::{ChunkLocations, Documents};

/// Elements of a row, of type float32.
const WIDTH: u64 = 64;

/// An array of rows, one for each sample.
#[derive(Clone, Default)]
struct Rows {
    /// Rows of a chunk.
    chunk: u64,
    /// Chunks of a shard. 0: there are no shards.
    shard: u64,
    /// For each chunk that is a range of an object: the object, the offset and the bytes.
    ranges: Vec<(&'static str, u64, u64)>,
    /// Samples of a batch.
    batch: usize,
}

impl Rows {
    fn metadata(&self) -> Value {
        let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let codecs = json!([bytes, {"name": "zstd", "configuration": {"level": 1, "checksum": false}}]);
        let (mut grid, mut outer) = ([self.chunk, WIDTH], codecs.clone());
        if self.shard > 0 {
            grid[0] *= self.shard;
            outer = json!([{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [self.chunk, WIDTH], "codecs": codecs, "index_location": "end",
                "index_codecs": [bytes, {"name": "crc32c"}],
            }}]);
        }
        json!({
            "zarr_format": 3, "node_type": "array", "shape": [12, WIDTH], "data_type": "float32", "fill_value": 0.0,
            "dimension_names": ["t", "x"], "codecs": outer, "attributes": {},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        })
    }

    fn open(&self) -> (Spec, UnstartedReader) {
        let extent = |(i, &(object, offset, len)): (usize, &(&str, u64, u64))| {
            (format!("a/c/{i}/0"), Extent { object: object.into(), version: None, offset, len })
        };
        let ranges: HashMap<_, _> = self.ranges.iter().enumerate().map(extent).collect();
        let locations = match ranges.is_empty() {
            true => ChunkLocations::Keys,
            false => ChunkLocations::Listed { ranges, indexes_are_read: Arc::new(AtomicBool::new(true)) },
        };
        let mut store = Documents::new(Latency::Local, false);
        store.add("a", &self.metadata(), locations);
        let spec = Spec::default().with(|s| {
            s.source.paths = vec!["test".into()];
            s.source.arrays = vec!["a".into()];
            s.samples.dims = vec![DimKey::parse("t")];
            s.batch_size = self.batch;
        });
        let dataset = Dataset::of_stores(&spec, vec![Arc::new(store)]).unwrap();
        let unstarted = UnstartedReader::of(&spec, dataset).unwrap();
        (spec, unstarted)
    }
}

/// Returns rules with two active batches, two planned ones, and six reads at a time.
fn with_few_batches(rules: Rules) -> Rules {
    Rules { reads: [6, 6], max_active: 2, lookahead: 2, waits_for_plans: false, ..rules }
}

/// Returns such rules for the tests of one part.
fn some_rules() -> Rules {
    let (spec, unstarted) = Rows { chunk: 1, batch: 1, ..Rows::default() }.open();
    with_few_batches(simulated(&spec, &unstarted.needs, &unstarted.order, &MachineMemory::default()).unwrap().rules)
}

/// A scheduler on the CPU, with workers that only record what they get.
struct Bench {
    simulation: Simulation,
    order: Order,
    next_sample: u64,
    batch: u64,
}

impl Bench {
    /// Makes a reader of the rows, with this many bytes of memory for chunks.
    fn new(rows: &Rows, staging: usize) -> Self {
        let (spec, unstarted) = rows.open();
        let config = simulated(&spec, &unstarted.needs, &unstarted.order, &MachineMemory::default()).unwrap();
        let config = Config { staging, rules: with_few_batches(config.rules), ..config };
        let shared = Shared {
            chunk_index: Arc::clone(&unstarted.chunk_index),
            ops: Arc::new(unstarted.ops),
            stats: Arc::new(Stats::default()),
            cache: None,
            events: crossbeam_channel::unbounded().0,
            stop: Arc::new(AtomicBool::new(false)),
        };
        let output_bytes: Vec<_> = unstarted.outputs.iter().map(|o| o.batch_bytes(spec.batch_size)).collect();
        let simulation = Simulation::new(&shared, config, &output_bytes);
        Self { simulation, order: unstarted.order, next_sample: 0, batch: spec.batch_size as u64 }
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
            let last = self.next_sample + self.batch;
            let samples: Vec<Sample> = (self.next_sample..last).map(|k| self.order.sample(k)).collect();
            self.next_sample = last;
            let plan = self.simulation.chunk_index.plan(&samples);
            self.simulation.scheduler.handle(Event::Planned(Box::new(plan)));
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

    /// Like [`Self::work`]. Returns the tasks, and drops other work.
    fn tasks(&mut self) -> Vec<Task> {
        let task = |work| match work {
            SimulatedWork::Task(task) => Some(task),
            _ => None,
        };
        self.work().into_iter().filter_map(task).collect()
    }

    fn end_read(&mut self, (read, to): (Read, Lease), result: Result<Option<usize>>) {
        self.simulation.scheduler.handle(Event::Fetched(ReadDone { id: read.id, to, result }));
    }

    /// Ends a task. Its chunks are decoded, or fail with `error`.
    fn end_task(&mut self, task: Task, error: Option<&Error>) {
        let result = || error.map_or(Ok(dali_zarr_kernels::Layout::NONE), |e| Err(e.clone()));
        let item = |i: Item| ItemDone {
            outcome: Outcome { handle: i.handle, result: result() },
            encoded: i.encoded,
            decoded: i.decoded,
        };
        let items = task.items.into_iter().map(item).collect();
        let done = TaskDone { items, served: task.assembly.served, pinned: task.pinned };
        self.simulation.scheduler.handle(Event::Decoded(done));
    }

    /// Takes a batch that must be finished.
    fn take(&mut self) -> Finished {
        self.simulation.scheduler.pump();
        let finished = self.simulation.finished.try_recv().expect("a batch is finished");
        self.simulation.scheduler.handle(Event::Taken(Take::default()));
        finished
    }

    /// Whether no batch is finished.
    fn waits(&mut self) -> bool {
        self.simulation.scheduler.pump();
        self.simulation.finished.is_empty()
    }
}
