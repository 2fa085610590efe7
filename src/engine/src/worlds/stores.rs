//! Random data sets and readers of them.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::documents::{ChunkLocations, Documents};
use crate::budget::{Limits, smallest};
use crate::reader::opening::UnstartedReader;
use crate::scheduler::simulation::random::Random;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::spec::{Device, DimKey, OrderArguments, OrderSource, OutOfBounds, Spec};
use dali_zarr_stores::{Latency, Store};

/// A random reader of a random data set, not started yet.
pub(super) struct RandomReader {
    pub spec: Spec,
    pub unstarted: UnstartedReader,
    /// The least memory with which it runs.
    pub smallest: Limits,
}

impl RandomReader {
    /// Makes a random reader of a random data set. With `unusual`, some stores tell where chunks lie in larger objects.
    ///
    /// # Errors
    /// If its arguments don't fit together. The caller then draws another one.
    pub fn new(random: &mut Random, unusual: bool) -> Result<Self> {
        let steps = 1 + random.below(24);
        let width = 1 + random.below(3) * random.below(600);
        let arrays = 1 + random.below(3);
        let stores = 1 + random.below(5) / 4;
        let remote = random.chance(0.3);
        let described: Vec<_> =
            (0..arrays).map(|i| array(random, if i == 2 { None } else { Some(steps) }, width)).collect();
        let locations: Vec<_> = described.iter().map(|array| locations(random, array, unusual)).collect();
        let store = || -> Arc<dyn Store> {
            let mut store = Documents::new(if remote { Latency::Remote } else { Latency::Local }, false);
            for (i, (array, locations)) in described.iter().zip(&locations).enumerate() {
                store.add(&format!("a{i}"), array, locations.clone());
            }
            Arc::new(store)
        };
        let gpu = random.chance(0.5);
        let crop = random.chance(0.15);
        let window = random.below(4) as i64;
        let spec = Spec::default().with(|s| {
            s.source.paths = vec!["simulated".into(); stores as usize];
            s.source.arrays = (0..arrays).map(|i| format!("a{i}").as_str().into()).collect();
            s.samples.dims = vec![DimKey::parse("t")];
            s.samples.window = vec![window].into();
            s.samples.step = vec![if crop { 0 } else { 1 + random.below(3) as i64 }].into();
            s.samples.random_crop = if crop { vec![DimKey::parse("t")] } else { Vec::new() };
            s.samples.offsets = if random.chance(0.3) { vec![0, random.below(4) as i64] } else { Vec::new() };
            s.samples.out_of_bounds_policy = if random.chance(0.4) { OutOfBounds::Pad } else { OutOfBounds::Drop };
            s.order.random_shuffle = random.chance(0.6);
            s.order.initial_fill = Some(1 + random.below(12));
            s.order.seed = random.below(1000) as i64;
            s.order.num_shards = 1 + random.below(3) as i64;
            if random.chance(0.25) {
                s.order =
                    OrderArguments { order: OrderSource::Pushed, seed: s.order.seed, ..OrderArguments::default() };
            }
            s.batch_size = 1 + random.below(4) as usize;
            s.resources.prefetch_queue_depth = random.chance(0.7).then(|| 1 + random.below(3) as usize);
            s.resources.io_threads = Some(1 + random.below(4) as usize);
            s.resources.io_concurrency = Some(1 + random.below(8) as usize);
            s.resources.decode_threads = Some(1 + random.below(3) as usize);
            s.device = if gpu { Device::Gpu(0) } else { Device::Cpu };
        });
        let dataset = Dataset::of_stores(&spec, (0..stores).map(|_| store()).collect(), None)?;
        let unstarted = UnstartedReader::of(&spec, dataset)?;
        if unstarted.order.samples() == 0 {
            return Err(Error::value("no samples"));
        }
        let smallest = smallest(&unstarted.needs, spec.resources.prefetch_queue_depth);
        Ok(Self { spec, unstarted, smallest })
    }
}

/// Chooses where the chunks of an array with these metadata lie.
fn locations(random: &mut Random, metadata: &Value, unusual: bool) -> ChunkLocations {
    let chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"].as_array().into_iter().flatten();
    let len = 4 * chunk.filter_map(Value::as_u64).product::<u64>();
    let gap = [0, 100, 1 << 20][random.below(3) as usize];
    match if unusual { random.below(6) } else { 3 } {
        // No index is ever read, so the scheduler asks for each again and again.
        0 => ChunkLocations::Listed { ranges: HashMap::new(), indexes_are_read: Arc::default() },
        1 | 2 => ChunkLocations::Objects { len, gap },
        _ => ChunkLocations::Keys,
    }
}

/// Makes the metadata of an array along `t` (if there are `steps`) and `x`.
fn array(random: &mut Random, steps: Option<u64>, width: u64) -> Value {
    // Some chunks are so large that the threads that read them also copy them to the device.
    let width = if random.chance(0.05) { 70_000 } else { width };
    let (mut shape, mut chunks, mut names) = (vec![width], vec![1 + random.below(width)], vec!["x"]);
    if width == 70_000 {
        chunks = vec![width];
    }
    if let Some(steps) = steps {
        shape.insert(0, steps);
        chunks.insert(0, 1 + random.below(5));
        names.insert(0, "t");
    }
    let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let codecs = match random.below(4) {
        0 => json!([bytes]),
        1 => json!([bytes, {"name": "numcodecs.bz2", "configuration": {"level": 1}}]),
        _ => json!([bytes, {"name": "zstd", "configuration": {"level": 1, "checksum": false}}]),
    };
    let mut grid = chunks.clone();
    let mut outer = codecs.clone();
    if random.chance(0.4) {
        grid = chunks.iter().map(|c| c * (1 + random.below(4))).collect();
        outer = json!([{"name": "sharding_indexed", "configuration": {
            "chunk_shape": chunks, "codecs": codecs, "index_location": "end",
            "index_codecs": [bytes, {"name": "crc32c"}],
        }}]);
    }
    json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "float32", "fill_value": 0.0,
        "dimension_names": names, "codecs": outer, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": grid}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    })
}
