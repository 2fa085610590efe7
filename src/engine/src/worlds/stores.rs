//! Random data sets and readers of them. Only the metadata exist, in memory.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use crate::budget::{Limits, smallest};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::reader::opening::UnstartedReader;
use crate::scheduler::simulation::random::Random;
use crate::spec::{Device, DimKey, OutOfBounds, Spec};
use crate::store::{ByteRange, Extent, Found, Latency, Phase, Store};

/// A store that holds metadata documents, and tells where the chunks of arrays lie.
struct Documents {
    documents: HashMap<String, Vec<u8>>,
    latency: Latency,
    /// For each array, by its name, where its chunks lie.
    places: HashMap<String, Places>,
}

/// Where the chunks of an array lie.
#[derive(Clone, Copy)]
enum Places {
    /// Each chunk has a key of its own.
    Keys,
    /// Most chunks are ranges of a few objects: the bytes of each chunk, and the bytes between two neighbours.
    Ranges(u64, u64),
    /// The store must read an index before it knows where chunks lie. It then finds that each has a key of its own.
    Indexed,
}

impl Documents {
    /// Returns where the chunks of a key's array lie, and a number for the key's chunk. Chunks near each other have
    /// numbers near each other.
    fn places(&self, key: &str) -> Option<(Places, u64)> {
        let (array, chunk) = key.split_once("/c/")?;
        let number = chunk.split('/').filter_map(|c| c.parse().ok()).fold(0u64, |n, c: u64| 5 * n + c);
        Some((*self.places.get(array)?, number))
    }
}

#[async_trait]
impl Store for Documents {
    fn location(&self) -> &str {
        "simulated"
    }
    fn latency(&self) -> Latency {
        self.latency
    }
    async fn read(
        &self,
        key: &str,
        _: ByteRange,
        _: Option<&Arc<str>>,
        _: Phase,
        _: &mut [u8],
    ) -> Result<Option<Found>> {
        Err(Error::runtime(format!("a simulation reads no bytes, but {key:?} is read")))
    }
    async fn get(&self, key: &str, _: u64, _: Phase) -> Result<Option<Vec<u8>>> {
        Ok(self.documents.get(key).cloned())
    }
    async fn head(&self, key: &str) -> Result<Option<Found>> {
        Ok(self.documents.get(key).map(|d| Found { size: d.len() as u64, version: None }))
    }
    async fn children(&self, _: &str) -> Result<Option<Vec<String>>> {
        Ok(None)
    }
    fn has_extents(&self) -> bool {
        self.places.values().any(|places| !matches!(places, Places::Keys))
    }
    fn locate(&self, key: &str) -> Option<Extent> {
        let (Places::Ranges(len, gap), number) = self.places(key)? else { return None };
        // One chunk in eight has no range, as if it were inline or all of a file.
        let object = || format!("object {}", number % 16 / 12).into();
        (number % 8 != 3).then(|| Extent { object: object(), version: None, offset: number * (len + gap), len })
    }
    fn unread_index(&self, key: &str) -> Option<u64> {
        let (places, number) = self.places(key)?;
        matches!(places, Places::Indexed).then_some(number / 10)
    }
}

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
        let mut places = HashMap::new();
        for (i, array) in described.iter().enumerate() {
            let chunk = array["chunk_grid"]["configuration"]["chunk_shape"].as_array().into_iter().flatten();
            let bytes = 4 * chunk.filter_map(serde_json::Value::as_u64).product::<u64>();
            let gap = [0, 100, 1 << 20][random.below(3) as usize];
            let of_array = match if unusual { random.below(6) } else { 3 } {
                0 => Places::Indexed,
                1 | 2 => Places::Ranges(bytes, gap),
                _ => Places::Keys,
            };
            places.insert(format!("a{i}"), of_array);
        }
        let store = || -> Arc<dyn Store> {
            let mut documents = HashMap::new();
            documents.insert("zarr.json".into(), br#"{"zarr_format": 3, "node_type": "group"}"#.to_vec());
            for (i, array) in described.iter().enumerate() {
                documents.insert(format!("a{i}/zarr.json"), array.to_string().into_bytes());
            }
            let latency = if remote { Latency::Remote } else { Latency::Local };
            Arc::new(Documents { documents, latency, places: places.clone() })
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
            s.order.initial_fill = 1 + random.below(12);
            s.order.seed = random.below(1000) as i64;
            s.order.num_shards = 1 + random.below(3) as i64;
            s.batch_size = 1 + random.below(4) as usize;
            s.resources.prefetch_queue_depth = random.chance(0.7).then(|| 1 + random.below(3) as usize);
            s.resources.io_threads = Some(1 + random.below(4) as usize);
            s.resources.io_concurrency = Some(1 + random.below(8) as usize);
            s.resources.decode_threads = Some(1 + random.below(3) as usize);
            s.device = if gpu { Device::Gpu(0) } else { Device::Cpu };
        });
        let dataset = Dataset::of_stores(&spec, (0..stores).map(|_| store()).collect())?;
        let unstarted = UnstartedReader::of(&spec, dataset)?;
        if unstarted.order.samples() == 0 {
            return Err(Error::value("no samples"));
        }
        let smallest = smallest(&unstarted.needs, spec.resources.prefetch_queue_depth);
        Ok(Self { spec, unstarted, smallest })
    }
}

/// Makes the metadata of an array along `t` (if there are `steps`) and `x`.
fn array(random: &mut Random, steps: Option<u64>, width: u64) -> serde_json::Value {
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
