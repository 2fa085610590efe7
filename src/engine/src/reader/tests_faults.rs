//! Tests of a running reader with a server that injects faults of all kinds into requests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Reader;
use dali_zarr_samples::spec::{DimKey, Spec};
use dali_zarr_stores::testing::{Act, Random, Server, publish};

/// Elements of an array, of a shard and of a chunk.
const ELEMENTS: usize = 64;
const SHARD: usize = 16;
const CHUNK: usize = 4;

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Returns the encoded chunk whose first element is number `at`. The value of each element is its number.
fn chunk(at: usize) -> Vec<u8> {
    with_checksum((at..at + CHUNK).flat_map(|i| (i as i32).to_le_bytes()).collect())
}

fn array(chunk: usize, codecs: &Value) -> Value {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": [ELEMENTS], "data_type": "int32", "fill_value": -1,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": codecs, "dimension_names": ["x"],
    })
}

/// Makes a server that has the same values twice: `a` in chunks, `b` in shards. Every byte is covered by a checksum.
fn server() -> Arc<Server> {
    let server = Arc::new(Server::default());
    let inner = json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]);
    let shards = json!([{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [CHUNK], "codecs": inner, "index_codecs": inner, "index_location": "end",
    }}]);
    let nodes = json!({"a": array(CHUNK, &inner), "b": array(SHARD, &shards)});
    let root = json!({
        "zarr_format": 3, "node_type": "group",
        "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": nodes},
    });
    server.put("/store/zarr.json", root.to_string().into_bytes());
    for at in (0..ELEMENTS).step_by(CHUNK) {
        server.put(&format!("/store/a/c/{}", at / CHUNK), chunk(at));
    }
    for first in (0..ELEMENTS).step_by(SHARD) {
        let chunks: Vec<_> = (first..first + SHARD).step_by(CHUNK).map(chunk).collect();
        let lens = chunks.iter().map(|c| c.len() as u64);
        let index = lens.enumerate().flat_map(|(i, len)| [i as u64 * len, len]).flat_map(u64::to_le_bytes).collect();
        server.put(&format!("/store/b/c/{}", first / SHARD), [chunks.concat(), with_checksum(index)].concat());
    }
    server
}

/// Reads batches under the faults that `seed` gives. Returns how many batches were right, and how many were errors.
fn schedule(seed: u64) -> (usize, usize) {
    let mut random = Random(seed);
    let server = server();
    let options = [("timeout", "30ms"), ("retry_timeout", "1s"), ("max_retries", "4")];
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::open(Spec::default().with(|s| {
        s.source.paths = vec![publish(&server)];
        s.source.storage_options = options.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec();
        s.source.arrays = vec!["a".into(), "b".into()];
        s.samples.dims = vec![DimKey::parse("x")];
        s.samples.window = vec![2].into();
        s.samples.step = vec![2].into();
        s.batch_size = 8;
        s.order.random_shuffle = seed.is_multiple_of(2);
        s.samples.return_index = true;
        s.resources.prefetch_queue_depth = Some(2);
        s.resources.io_concurrency = Some(1 + random.below(20) as usize);
        s.resources.io_threads = Some(1);
        s.resources.decode_threads = Some(1);
        s.resources.host_memory_limit = Some(1 << 20);
        s.resources.cache_size = if seed % 3 == 1 { 1 << 20 } else { 0 };
        s.resources.cache_dir = (seed % 5 < 2).then(|| dir.path().to_owned());
        s.resources.cache_validate = seed.is_multiple_of(5);
    }))
    .unwrap();
    let acts = (0..random.below(60)).map(|_| match random.act(100) {
        // The reader believes a store that says that a key is missing, so another fault takes the place of 404.
        Act::Status(404) => Act::Flip(random.below(1000) as usize),
        Act::Delay(time) => Act::Delay(time / 1000),
        act => act,
    });
    let acts: Vec<_> = acts.collect();
    server.acts.lock().unwrap().extend(acts);
    let (mut right, mut wrong) = (0, 0);
    // Some readers are dropped while reads are under way.
    for _ in 0..random.below(30) {
        match reader.next_batch() {
            Ok(batch) => {
                let numbers =
                    |i: usize| batch.host[i].as_slice().as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b));
                let starts = batch.host[2].as_slice().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as i32);
                let expected: Vec<i32> = starts.flat_map(|s| [s, s + 1]).collect();
                for i in 0..2 {
                    assert_eq!(numbers(i).collect::<Vec<_>>(), expected, "seed {seed}, output {i}");
                }
                right += 1;
            }
            Err(e) => {
                let named = e.message().contains("http://fake-") && e.message().contains("/c/");
                assert!(named, "seed {seed}: {e}");
                wrong += 1;
            }
        }
    }
    (right, wrong)
}

/// DALI_ZARR_SCHEDULES=5000 runs 5000 schedules. The default of 240 is enough to see that the test works.
#[test]
fn every_schedule_ends_in_right_values_or_an_error_that_names_the_chunk() {
    let many: u64 = std::env::var("DALI_ZARR_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(240);
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            std::thread::spawn(move || {
                (t..many).step_by(8).map(schedule).fold((0, 0), |sum, (r, w)| (sum.0 + r, sum.1 + w))
            })
        })
        .collect();
    let (mut right, mut wrong) = (0, 0);
    for thread in threads {
        let (r, w) = thread.join().unwrap();
        (right, wrong) = (right + r, wrong + w);
    }
    println!("{right} batches were right, {wrong} were errors");
    // Many batches are errors: an object that was replaced stays replaced, and every batch that needs it fails.
    assert!(right as u64 > many && wrong > 0, "{right} right, {wrong} wrong");
}
