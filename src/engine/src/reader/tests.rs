//! Tests of a running reader in which something dies.

use std::path::Path;

use super::Reader;
use crate::messages::{Event, spawn};
use dali_zarr_base::error::Error;
use dali_zarr_samples::spec::{DimKey, Spec};

/// An array of 64 int32 in chunks of 4, uncompressed.
fn store(folder: &Path) {
    let metadata = serde_json::json!({
        "zarr_format": 3, "node_type": "array", "shape": [64], "data_type": "int32", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    });
    std::fs::write(folder.join("zarr.json"), metadata.to_string()).unwrap();
    std::fs::create_dir(folder.join("c")).unwrap();
    for chunk in 0..16i32 {
        let bytes: Vec<u8> = (0..4).flat_map(|i| (chunk * 4 + i).to_le_bytes()).collect();
        std::fs::write(folder.join("c").join(chunk.to_string()), bytes).unwrap();
    }
}

/// Writes an array of Zarr v2 with one row for each of `chunks`, which are stored as they are. A row has `len` elements
/// of the type `dtype`. `codecs` has the compressor, or a list of filters and the compressor.
pub(super) fn write_v2(folder: &Path, dtype: &str, len: usize, codecs: &serde_json::Value, chunks: &[Vec<u8>]) {
    let (filters, compressor) = match codecs.as_array().map(Vec::as_slice) {
        Some([filters @ .., compressor]) => (serde_json::json!(filters), compressor),
        _ => (serde_json::Value::Null, codecs),
    };
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [chunks.len(), len], "chunks": [1, len], "dtype": dtype, "fill_value": 0,
        "order": "C", "filters": filters, "compressor": compressor,
    });
    std::fs::write(folder.join(".zarray"), metadata.to_string()).unwrap();
    for (i, chunk) in chunks.iter().enumerate() {
        std::fs::write(folder.join(format!("{i}.0")), chunk).unwrap();
    }
}

fn spec(folder: &Path) -> Spec {
    Spec::default().with(|s| {
        s.source.paths = vec![folder.to_str().unwrap().to_owned()];
        s.samples.dims = vec![DimKey::parse("0")];
        s.samples.window = vec![4].into();
        s.batch_size = 2;
        s.resources.prefetch_queue_depth = Some(2);
    })
}

fn open(folder: &Path) -> Reader {
    Reader::open(spec(folder)).unwrap()
}

#[test]
fn a_thread_that_dies_ends_every_wait_with_its_error() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    let reader = open(folder.path());
    assert_eq!(reader.next_batch().unwrap().host[0].as_slice()[4..8], 1i32.to_le_bytes());
    let dead = spawn("plan", reader.events.clone(), || panic!("out of ideas")).unwrap();
    dead.join().unwrap();
    // Batches that were finished before may still come. After them every call gives an error, and none waits for ever.
    let results: Vec<_> = (0..20).map(|_| reader.next_batch()).collect();
    let errors = results.iter().skip_while(|r| r.is_ok()).collect::<Vec<_>>();
    assert!(errors.len() >= 10, "{results:?}");
    for error in errors {
        let message = error.as_ref().unwrap_err().message().to_owned();
        assert!(message.contains("plan") && message.contains("out of ideas"), "{message}");
    }
}

#[test]
fn a_reader_whose_planner_never_answers_again_still_ends() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    let reader = open(folder.path());
    // Perhaps no batch was planned yet. The error must come without one.
    reader.events.send(Event::Died(Error::runtime("gone"))).unwrap();
    let failed = (0..20).map(|_| reader.next_batch()).filter(Result::is_err).count();
    assert!(failed >= 10);
    drop(reader);
}

#[test]
fn chunks_that_arrive_after_the_end_are_no_end_of_the_world() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    for delay in 0..200 {
        let spec = spec(folder.path()).with(|s| {
            s.samples.window = vec![16].into();
            s.samples.step = vec![1].into();
            s.batch_size = 16;
            s.resources.io_threads = Some(1);
        });
        let reader = Reader::open(spec).unwrap();
        // Most of the time, some of the chunks that the first batch needs have arrived and some are under way.
        std::thread::sleep(std::time::Duration::from_micros(5 * delay));
        reader.events.send(Event::Died(Error::runtime("gone"))).unwrap();
        let results: Vec<_> = (0..12).map(|_| reader.next_batch()).collect();
        for error in results.iter().filter_map(|r| r.as_ref().err()) {
            assert!(error.message().contains("gone"), "{error}");
        }
        assert!(results.last().unwrap().is_err());
    }
}
