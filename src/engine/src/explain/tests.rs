//! Compares what is explained with what a reader does.

use std::path::Path;
use std::time::{Duration, Instant};

use super::explain;
use super::memory::simulated;
use super::reads::reads_per_chunk;
use crate::budget::MachineMemory;
use crate::reader::Reader;
use crate::reader::opening::UnstartedReader;
use crate::scheduler::simulation::rehearsal::Consumer;
use dali_zarr_samples::spec::{DimKey, Spec};

/// An array of `steps` x 16 int32 in chunks of `chunk` steps, uncompressed.
pub(super) fn store(folder: &Path, steps: usize, chunk: usize) {
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [steps, 16], "chunks": [chunk, 16], "dtype": "<i4", "fill_value": 0, "order": "C",
        "filters": null, "compressor": null,
    });
    std::fs::write(folder.join(".zarray"), metadata.to_string()).unwrap();
    for c in 0..steps.div_ceil(chunk) {
        std::fs::write(folder.join(format!("{c}.0")), vec![0u8; chunk * 64]).unwrap();
    }
}

pub(super) fn spec(folder: &Path, batch: usize) -> Spec {
    Spec::default().with(|s| {
        s.source.paths = vec![folder.to_str().unwrap().to_owned()];
        s.samples.dims = vec![DimKey::parse("0")];
        s.batch_size = batch;
        s.resources.prefetch_queue_depth = Some(1);
        s.resources.host_memory_limit = Some(4 << 20);
        s.resources.io_threads = Some(2);
        s.resources.decode_threads = Some(2);
    })
}

/// Returns the number of chunks that a reader reads for `batches` batches. It prepares one batch at a time; the last
/// one isn't taken.
fn read_by_a_reader(spec: &Spec, batches: usize) -> u64 {
    let count = |reader: &Reader, name: &str| reader.stats().to_json()[name].as_u64().unwrap();
    // Waits until the reader has finished this number of batches and reads nothing more.
    let settled = |reader: &Reader, finished: usize| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while count(reader, "batches") < finished as u64 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut last = count(reader, "chunks_read");
        loop {
            std::thread::sleep(Duration::from_millis(30));
            let now = count(reader, "chunks_read");
            if now == last {
                return now;
            }
            last = now;
        }
    };
    let reader = Reader::open(spec.clone()).unwrap();
    for batch in 1..batches {
        // Wait between batches, so that plans come before chunks are dropped.
        settled(&reader, batch);
        reader.next_batch().unwrap();
    }
    settled(&reader, batches)
}

#[test]
fn reads_are_those_of_a_reader() {
    // Steps, chunk, batch, window, step, shuffle.
    for (steps, chunk, batch, window, step, random_shuffle) in [
        (24, 1, 2, 1, 1, false),
        (24, 4, 2, 1, 1, false),
        (24, 5, 2, 3, 1, false),
        (24, 24, 4, 1, 1, false),
        (24, 2, 11, 4, 2, false),
        (24, 1, 3, 1, 1, true),
        (96, 8, 2, 1, 1, true),
        (96, 6, 4, 3, 3, true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        store(folder.path(), steps, chunk);
        let spec = spec(folder.path(), batch).with(|s| {
            s.samples.window = vec![window].into();
            s.samples.step = vec![step].into();
            s.order.random_shuffle = random_shuffle;
        });
        let unstarted = UnstartedReader::new(&spec).unwrap();
        let config = simulated(&spec, &unstarted.needs, &MachineMemory::default()).unwrap();
        let reads = reads_per_chunk(&unstarted, &spec, &unstarted.order, config, Consumer::IsLate).unwrap();
        assert_eq!(reads.looked_at, reads.samples);
        assert!(reads.samples.is_multiple_of(batch as u64), "the last batch would need chunks of the next epoch");
        let expected = reads.total().reads as u64;
        // If the planner's thread doesn't get a core in time, a chunk may be dropped before it is known to be needed
        // again.
        let found: Vec<u64> = std::iter::repeat_with(|| read_by_a_reader(&spec, reads.samples as usize / batch))
            .take(6)
            .scan(false, |done, n| (!std::mem::replace(done, n == expected)).then_some(n))
            .collect();
        assert!(
            found.contains(&expected),
            "{steps} steps in chunks of {chunk}, batches of {batch}, windows of {window}: {found:?} reads, explained \
             {expected}"
        );
    }
}

/// Writes an array of fields of 8 KiB, with `chunk` fields in a chunk, uncompressed or as zstd frames.
fn fields(folder: &Path, steps: usize, chunk: usize, compressed: bool) {
    let compressor = if compressed { serde_json::json!({"id": "zstd", "level": 1}) } else { serde_json::Value::Null };
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [steps, 2048], "chunks": [chunk, 2048], "dtype": "<i4", "fill_value": 0, "order": "C",
        "filters": null, "compressor": compressor,
    });
    std::fs::write(folder.join(".zarray"), metadata.to_string()).unwrap();
    let values: Vec<u8> =
        (0..chunk as u64 * 2048).flat_map(|i| (dali_zarr_base::random::mix(i) as u32 % 99).to_le_bytes()).collect();
    let mut encoded = vec![0; zstd_safe::compress_bound(values.len())];
    let len = zstd_safe::compress(&mut encoded[..], &values, 1).unwrap();
    for c in 0..steps.div_ceil(chunk) {
        let bytes = if compressed { &encoded[..len] } else { &values[..] };
        std::fs::write(folder.join(format!("{c}.0")), bytes).unwrap();
    }
}

/// Returns the number of chunks that a reader reads in an epoch of `batches` batches, if it waits for each batch: the
/// average over three epochs, after a first one.
fn read_in_an_epoch(spec: &Spec, batches: usize) -> f64 {
    let reader = Reader::open(spec.clone()).unwrap();
    let mut read = [0; 2];
    for (count, epochs) in read.iter_mut().zip([1, 3]) {
        for _ in 0..epochs * batches {
            reader.next_batch().unwrap();
        }
        *count = reader.stats().to_json()["chunks_read"].as_u64().unwrap();
    }
    (read[1] - read[0]) as f64 / 3.0
}

/// Memory holds fewer chunks than are shuffled at a time. The explained reads are the scheduler's own for two opposite
/// orders of events; a reader whose threads get a core only now and then is somewhere between.
#[test]
fn reads_are_nearly_those_of_a_reader_without_memory() {
    let shuffled = |initial_fill| {
        Spec::default().with(|s| {
            s.order.random_shuffle = true;
            s.order.initial_fill = Some(initial_fill);
        })
    };
    let mut wrong = Vec::new();
    // Chunk, zstd, batch, how many more chunks memory holds than the smallest limit, the order and the windows.
    for (chunk, compressed, batch, more, how) in [
        (8, false, 4, 12, shuffled(240)),
        (8, true, 4, 12, shuffled(240)),
        (8, true, 16, 20, shuffled(240)),
        (8, true, 4, 20, shuffled(1024)),
        (24, true, 8, 6, shuffled(240)),
        (24, false, 8, 6, shuffled(120)),
        (4, true, 16, 40, shuffled(256)),
        (
            8,
            true,
            4,
            12,
            shuffled(128).with(|s| {
                s.samples.window = vec![4].into();
                s.samples.step = vec![1].into();
            }),
        ),
        (8, true, 4, 16, shuffled(240).with(|s| s.samples.offsets = vec![0, 3])),
        (8, true, 2, 5, shuffled(64).with(|s| s.resources.prefetch_queue_depth = Some(2))),
        (8, true, 8, 30, shuffled(64)),
        (
            24,
            true,
            4,
            4,
            Spec::default().with(|s| {
                s.samples.window = vec![4].into();
                s.samples.step = vec![1].into();
                s.samples.offsets = vec![0, 60];
            }),
        ),
        (
            8,
            true,
            4,
            12,
            shuffled(240).with(|s| {
                s.resources.io_threads = Some(1);
                s.resources.decode_threads = Some(1);
            }),
        ),
        (8, true, 4, 12, shuffled(240).with(|s| s.resources.prefetch_queue_depth = Some(1))),
        (8, true, 4, 40, shuffled(480)),
        // Memory for hardly more than one chunk and one batch.
        (60, true, 8, 0, shuffled(480).with(|s| s.resources.prefetch_queue_depth = Some(1))),
        (60, true, 8, 1, shuffled(480).with(|s| s.resources.prefetch_queue_depth = Some(1))),
        (60, true, 2, 2, shuffled(480).with(|s| s.resources.prefetch_queue_depth = Some(1))),
        (60, false, 2, 1, shuffled(480).with(|s| s.resources.prefetch_queue_depth = Some(1))),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fields(folder.path(), 480, chunk, compressed);
        let spec = how.with(|s| {
            s.source.paths = vec![folder.path().to_str().unwrap().to_owned()];
            s.batch_size = batch;
        });
        let smallest = explain(&spec).unwrap().memory.division.smallest.host;
        let spec = spec.with(|s| s.resources.host_memory_limit = Some(smallest + (more * chunk * 8192) as u64));
        let e = explain(&spec).unwrap();
        let (reads, unhurried) = (e.reads().total().reads, e.unhurried.total().reads);
        let batches = e.reads().samples as usize / batch;
        let near = |n: f64, by: f64| n / reads.min(unhurried) > 1.0 - by && n / reads.max(unhurried) < 1.0 + by;
        let found: Vec<f64> = std::iter::repeat_with(|| read_in_an_epoch(&spec, batches))
            .take(3)
            .scan(false, |done, n| (!std::mem::replace(done, near(n, 0.15))).then_some(n))
            .collect();
        let told =
            format!("{chunk} {compressed} {batch} {more}: {found:.0?}, explained {reads:.0}, unhurried {unhurried:.0}");
        println!("{told}");
        if !near(found[found.len() - 1], 0.3) {
            wrong.push(told);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the explained chunks and reads in order, for `samples` samples in batches of one, in chunks of `chunk`.
fn told(samples: u64, chunk: u64) -> (f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [samples, 16], "chunks": [chunk, 16], "dtype": "<i4", "fill_value": 0,
        "order": "C", "filters": null, "compressor": null,
    });
    std::fs::write(folder.path().join(".zarray"), metadata.to_string()).unwrap();
    let e = explain(&spec(folder.path(), 1).with(|s| s.resources.host_memory_limit = None)).unwrap();
    assert!(e.in_order.looked_at < samples);
    (e.in_order.total().chunks, e.in_order.total().reads)
}

#[test]
fn chunks_longer_than_what_is_looked_at() {
    assert_eq!(told(1_000_000, 15_000), (67.0, 67.0));
    assert_eq!(told(1_000_000, 20_000), (50.0, 50.0));
    assert_eq!(told(20_000, 20_000), (1.0, 1.0));
    let (chunks, reads) = told(1_000_000, 3);
    assert!((chunks - 333_334.0).abs() < 40.0 && (reads - chunks).abs() < 40.0, "{chunks} {reads}");
}

/// What is explained about an order doesn't depend on the order that the spec asks for.
#[test]
fn orders_are_explained_as_for_their_own_readers() {
    for (limit, window) in [(30_738 << 4, 1), (200_530 << 4, 1), (60_000 << 4, 3)] {
        let folder = tempfile::tempdir().unwrap();
        fields(folder.path(), 400, 24, true);
        let base = Spec::default().with(|s| {
            s.source.paths = vec![folder.path().to_str().unwrap().to_owned()];
            s.batch_size = 4;
            s.samples.window = vec![window].into();
            s.resources.prefetch_queue_depth = Some(1);
            s.order.initial_fill = Some(1 << 30);
        });
        let told = |random_shuffle| {
            let e = explain(&base.clone().with(|s| {
                s.order.random_shuffle = random_shuffle;
                s.resources.host_memory_limit = Some(limit);
            }))
            .unwrap();
            (e.in_order.total(), e.shuffled.total())
        };
        assert_eq!(told(false), told(true));
    }
}

/// Nobody has read the shard's index, so the sizes of its chunks are assumed: half of the decoded bytes. With some
/// codecs chunks are always smaller than that.
#[test]
fn shards_with_codecs_that_always_shrink() {
    let folder = tempfile::tempdir().unwrap();
    let metadata = serde_json::json!({
        "zarr_format": 3, "node_type": "array", "shape": [4_000_000_000u64, 64], "data_type": "float64", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1_000_000_000, 64]}},
        "chunk_key_encoding": {"name": "default"}, "attributes": {},
        "codecs": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [1000, 64],
            "codecs": [
                {"name": "numcodecs.fixedscaleoffset",
                 "configuration": {"offset": 0, "scale": 1, "dtype": "<f8", "astype": "|u1"}},
                {"name": "bytes", "configuration": {"endian": "little"}}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }}],
    });
    std::fs::write(folder.path().join("zarr.json"), metadata.to_string()).unwrap();
    let e = explain(&spec(folder.path(), 16).with(|s| s.resources.host_memory_limit = None)).unwrap();
    assert_eq!(e.in_order.total().per_chunk(), 1.0);
}

#[test]
fn an_epoch_with_many_samples_is_judged_by_its_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [40_000_000_000u64, 16], "chunks": [8, 16], "dtype": "<i4", "fill_value": 0,
        "order": "C", "filters": null, "compressor": null,
    });
    std::fs::write(folder.path().join(".zarray"), metadata.to_string()).unwrap();
    // With the default, a window is longer than what is looked at. Memory holds it.
    let large = spec(folder.path(), 16).with(|s| s.resources.host_memory_limit = Some(256 << 20));
    let e = explain(&large).unwrap().to_json();
    assert_eq!(e["reads"]["shuffled"]["reads_per_chunk"], 1.0);
    assert!(e["shuffle"]["initial_fill"].as_u64().unwrap() > 1 << 18 && e["shuffle"]["is_uniform"] == false, "{e}");
    let e = explain(&spec(folder.path(), 16).with(|s| s.order.initial_fill = Some(1024))).unwrap().to_json();
    assert_eq!(e["reads"]["in_order"]["estimated"], true);
    assert_eq!(e["reads"]["in_order"]["chunks"], 5e9);
    assert_eq!(e["reads"]["in_order"]["reads_per_chunk"], 1.0);
    // Samples that share a chunk come from one window, unless the whole epoch is one.
    let shuffled = e["reads"]["shuffled"]["reads_per_chunk"].as_f64().unwrap();
    assert!((1.0..1.02).contains(&shuffled), "{shuffled}");
    let whole = spec(folder.path(), 16).with(|s| s.order.initial_fill = Some(1 << 40));
    let e = explain(&whole).unwrap().to_json();
    let shuffled = e["reads"]["shuffled"]["reads_per_chunk"].as_f64().unwrap();
    assert!((7.9..=8.0).contains(&shuffled), "each of eight samples needs its own read: {shuffled}");
    // Chunks that don't depend on the sample are read once, however long the epoch is.
    let mask = serde_json::json!({
        "zarr_format": 2, "shape": [16], "chunks": [4], "dtype": "<i4", "fill_value": 0, "order": "C",
        "filters": null, "compressor": null,
    });
    let group = tempfile::tempdir().unwrap();
    std::fs::write(group.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    for (name, metadata, dims) in [
        ("a", std::fs::read(folder.path().join(".zarray")).unwrap(), r#"["t", "x"]"#),
        ("m", mask.to_string().into_bytes(), r#"["x"]"#),
    ] {
        std::fs::create_dir(group.path().join(name)).unwrap();
        std::fs::write(group.path().join(name).join(".zarray"), metadata).unwrap();
        let attributes = format!(r#"{{"_ARRAY_DIMENSIONS": {dims}}}"#);
        std::fs::write(group.path().join(name).join(".zattrs"), attributes).unwrap();
    }
    let spec = spec(group.path(), 16).with(|s| s.source.arrays = vec!["a".into(), "m".into()]);
    let e = explain(&spec).unwrap().to_json();
    assert_eq!(e["arrays"][1]["reads_per_chunk"], serde_json::json!({"in_order": 1.0, "shuffled": 1.0}));
    assert_eq!(e["arrays"][1]["chunks_per_sample"], 4.0);
}
