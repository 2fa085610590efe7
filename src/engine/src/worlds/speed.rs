//! Measures what the scheduler costs for each inner chunk: a reader of shards for a GPU runs in a world where all work
//! that the scheduler hands out takes simulated time only. What the world itself does for each read and each wave counts
//! too, but is little. Plans are made before, because a reader has a thread for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::json;

use super::documents::{ChunkLocations, Documents};
use crate::budget::MachineMemory;
use crate::chunk_index::{Entries, Foresight, Plan, ShardIndex};
use crate::explain::memory::simulated;
use crate::messages::{Event, ReadDone};
use crate::reader::opening::UnstartedReader;
use crate::scheduler::Scheduler;
use crate::scheduler::simulation::{SimulatedWork, Simulation, World, shared, wave_events};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::spec::{Device, DimKey, Spec};
use dali_zarr_stores::Latency;

/// A field of 721 x 1440 is a shard of 63 inner chunks of about 64 KiB.
const FIELD: [u64; 3] = [1, 721, 1440];
const INNER: [u64; 3] = [1, 103, 160];
const FIELDS: u64 = 2048;
const BATCH: usize = 16;
/// Encoded bytes of each inner chunk.
const ENCODED: u64 = 36_000;
/// Simulated nanoseconds of a read and of a wave.
const READ: u64 = 500_000;
const WAVE: u64 = 5_000_000;

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// CPU time of the scheduler for each inner chunk, in nanoseconds.
    pub nanoseconds: f64,
    /// Inner chunks in a wave, on average.
    pub in_wave: f64,
}

/// Runs a reader that delivers `batches` batches, after as many that are not counted. Fewer than a hundred are not
/// enough: memory holds tens of batches.
///
/// # Errors
/// If the scheduler waits when nothing is under way, which is a bug, or if the system doesn't tell the CPU time.
pub fn scheduler_speed(batches: u64) -> Result<Speed> {
    let spec = Spec::default().with(|s| {
        s.source.paths = vec!["simulated".into()];
        s.source.arrays = vec!["t2m".into()];
        s.samples.dims = vec![DimKey::parse("time")];
        s.batch_size = BATCH;
        s.resources.io_threads = Some(16);
        s.resources.decode_threads = Some(16);
        s.resources.device_memory_limit = Some(8 << 30);
        s.device = Device::Gpu(0);
    });
    let mut store = Documents::new(Latency::Local, false);
    store.add("t2m", &array(), ChunkLocations::Keys);
    let reader = UnstartedReader::of(&spec, Dataset::of_stores(&spec, vec![Arc::new(store)], None)?)?;
    let config = simulated(&spec, &reader.needs, &MachineMemory::default())?;
    let shared = shared(&reader.chunk_index, reader.ops.clone());
    let bytes: Vec<_> = reader.outputs.iter().map(|output| output.batch_bytes(BATCH)).collect();
    let mut simulation = Simulation::new(&shared, config, &bytes);
    let foresight = Foresight::new(&reader.chunk_index, reader.order.clone(), 0, |k| k + BATCH as u64);
    let mut world = Prompt { reader: &reader, foresight, plans: VecDeque::new() };
    for _ in 0..batches {
        simulation.next_batch(&mut world)??;
    }
    let plans: VecDeque<_> = (0..2 * batches).map(|_| world.plan()).collect();
    world.plans = plans;
    let waves = || shared.stats.waves.load(Relaxed);
    let (began, before) = (cpu_time()?, waves());
    for _ in 0..batches {
        simulation.next_batch(&mut world)??;
    }
    let ended = cpu_time()?;
    let chunks = batches * BATCH as u64 * reader.chunk_index.sharded(0, 0).map_or(1, |s| s.entries() as u64);
    Ok(Speed {
        nanoseconds: (ended - began) as f64 / chunks as f64,
        in_wave: chunks as f64 / (waves() - before) as f64,
    })
}

/// Returns the nanoseconds for which this thread has run, so that other programs are not counted.
///
/// # Errors
/// If the system doesn't tell.
fn cpu_time() -> Result<u64> {
    let path = "/proc/thread-self/schedstat";
    let stat = std::fs::read_to_string(path).unwrap_or_default();
    let first = stat.split(' ').next().and_then(|n| n.parse().ok());
    first.ok_or_else(|| Error::runtime(format!("{path} has no number")))
}

fn array() -> serde_json::Value {
    let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let codecs = json!([bytes, {"name": "zstd", "configuration": {"level": 3, "checksum": false}}]);
    json!({
        "zarr_format": 3, "node_type": "array", "shape": [FIELDS, FIELD[1], FIELD[2]], "data_type": "float32", "fill_value": 0.0,
        "dimension_names": ["time", "latitude", "longitude"], "attributes": {},
        "codecs": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": INNER, "codecs": codecs, "index_location": "end", "index_codecs": [bytes, {"name": "crc32c"}],
        }}],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": FIELD}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    })
}

/// A world without faults, whose consumer waits for each batch.
struct Prompt<'a> {
    reader: &'a UnstartedReader,
    foresight: Foresight,
    /// Plans that were made before.
    plans: VecDeque<Plan>,
}

impl World for Prompt<'_> {
    fn begin(&mut self, now: u64, work: &SimulatedWork, _: &Scheduler) -> Result<u64> {
        Ok(match work {
            SimulatedWork::Read { .. } | SimulatedWork::Index(_) => now + READ,
            SimulatedWork::Wave { .. } => now + WAVE,
            _ => now,
        })
    }

    fn end(&mut self, work: SimulatedWork, _: &Scheduler) -> Result<(Vec<Event>, Option<SimulatedWork>)> {
        let events = match work {
            SimulatedWork::Read { read, to, .. } => {
                let len = to.len();
                vec![Event::Fetched(ReadDone { id: read.id, to, result: Ok(Some(len)) })]
            }
            SimulatedWork::Index(shard) => {
                let count = self.reader.chunk_index.sharding(shard).entries() as u64;
                // Writers store inner chunks in another order than that of the grid.
                let entry = |i: u64| Some((i * 37 % count * ENCODED, ENCODED));
                let index = ShardIndex { entries: Entries::Read((0..count).map(entry).collect()), version: None };
                vec![Event::Index(shard, Ok(Some(Arc::new(index))))]
            }
            SimulatedWork::Wave { lane, wave, .. } => wave_events(lane, wave, Ok(()), Ok(())),
            SimulatedWork::Task(_) | SimulatedWork::Plan | SimulatedWork::Lend(_) => Vec::new(),
        };
        Ok((events, None))
    }

    fn plan(&mut self) -> Plan {
        if let Some(plan) = self.plans.pop_front() {
            return plan;
        }
        let upcoming = self.foresight.next(&self.reader.chunk_index, true).unwrap_or_default();
        self.reader.chunk_index.plan_upcoming(upcoming)
    }

    fn planner_takes_time(&self) -> bool {
        false
    }

    fn takes_now(&mut self) -> bool {
        true
    }
}
