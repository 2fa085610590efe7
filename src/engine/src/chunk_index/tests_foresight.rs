//! Tests of [`Foresight`]: what it foresees is what comes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Foresight, LATER, NEVER, Upcoming};
use crate::reader::opening::UnstartedReader;
use crate::worlds::documents::{ChunkLocations, Documents};
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::plan::ChunkId;
use dali_zarr_samples::spec::{DimKey, Spec};
use dali_zarr_stores::Latency;

/// An array of rows in chunks of `chunk` rows.
fn array(rows: u64, chunk: u64) -> Value {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": [rows, 4], "data_type": "float32", "fill_value": 0.0,
        "dimension_names": ["t", "x"], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    })
}

fn open(rows: u64, chunk: u64, change: impl FnOnce(&mut Spec)) -> (Spec, UnstartedReader) {
    let mut store = Documents::new(Latency::Local, false);
    store.add("a", &array(rows, chunk), ChunkLocations::Keys);
    let spec = Spec::default().with(|s| {
        s.source.paths = vec!["test".into()];
        s.source.arrays = vec!["a".into()];
        s.samples.dims = vec![DimKey::parse("t")];
        change(s);
    });
    let dataset = Dataset::of_stores(&spec, vec![Arc::new(store)], None).unwrap();
    let unstarted = UnstartedReader::of(&spec, dataset).unwrap();
    (spec, unstarted)
}

/// Returns the first `batches` batches, and the chunks of each.
fn batches(spec: &Spec, reader: &UnstartedReader, batches: usize) -> Vec<(Upcoming, Vec<ChunkId>)> {
    let (index, batch) = (&reader.chunk_index, spec.batch_size as u64);
    let mut foresight = Foresight::new(index, reader.order.clone(), 0, move |k| k + batch);
    let one = |_| {
        let upcoming = foresight.next(index, true).expect("an order never ends");
        let chunks: Vec<_> = index.planner.plan(&upcoming.samples).uses.iter().map(|u| u.chunk).collect();
        assert_eq!(index.planner.chunks_of_samples(&upcoming.samples), chunks);
        (upcoming, chunks)
    };
    (0..batches).map(one).collect()
}

#[test]
fn the_next_batch_that_needs_a_chunk_is_found() {
    let window = |s: &mut Spec| s.samples.window = vec![5].into();
    let shuffled = |s: &mut Spec| {
        (s.order.random_shuffle, s.order.initial_fill) = (true, Some(40));
    };
    let of = |batch: usize, change: &dyn Fn(&mut Spec)| {
        open(203, 6, |s| {
            window(s);
            s.batch_size = batch;
            change(s);
        })
    };
    for (spec, reader) in [
        of(1, &shuffled),
        of(3, &shuffled),
        of(2, &|s| (s.order.random_shuffle, s.order.initial_fill) = (true, Some(1000))),
        of(4, &|s| s.samples.offsets = vec![0, 60]),
        of(3, &|s| {
            shuffled(s);
            (s.order.num_shards, s.order.shard_id) = (3, 1);
        }),
    ] {
        let all = batches(&spec, &reader, 450 / spec.batch_size);
        for (i, (upcoming, chunks)) in all.iter().enumerate() {
            assert_eq!(upcoming.next.len(), chunks.len(), "it looks ahead");
            let epoch = upcoming.samples[0].epoch;
            let same_epoch = all[i + 1..].iter().take_while(|later| later.0.samples[0].epoch == epoch);
            let later: Vec<&Vec<ChunkId>> = same_epoch.map(|(_, chunks)| chunks).collect();
            // The last batches that were looked at may not show the end of their epoch.
            if i + 1 + later.len() == all.len() {
                break;
            }
            for (chunk, &next) in chunks.iter().zip(&upcoming.next) {
                let found = later.iter().position(|chunks| chunks.contains(chunk));
                assert_eq!(next, found.map_or(NEVER, |at| (i + 1 + at) as u64), "batch {i}, {chunk:?}");
            }
        }
    }
}

#[test]
fn it_looks_ahead_only_where_chunks_return() {
    let looks = |rows, chunk, change: &dyn Fn(&mut Spec)| {
        let (spec, reader) = open(rows, chunk, |s| change(s));
        !batches(&spec, &reader, 1)[0].0.next.is_empty()
    };
    assert!(!looks(100, 10, &|_| ()), "the samples of a chunk follow each other");
    assert!(!looks(100, 1, &|s| s.order.random_shuffle = true), "a chunk for each sample");
    assert!(!looks(100, 100, &|s| s.order.random_shuffle = true), "all samples need the one chunk");
    assert!(looks(100, 10, &|s| s.order.random_shuffle = true));
    assert!(looks(100, 10, &|s| s.samples.offsets = vec![0, 50]));
    // Each shard has whole chunks, though fewer samples than there are chunks.
    assert!(looks(100, 4, &|s| (s.order.random_shuffle, s.order.num_shards) = (true, 20)));
}

#[test]
fn what_may_come_after_all_that_was_looked_at_is_told() {
    let (spec, reader) = open(600_000, 300, |s| (s.order.random_shuffle, s.order.initial_fill) = (true, Some(1 << 20)));
    let all = batches(&spec, &reader, 3000);
    let later = all.iter().filter(|(upcoming, _)| upcoming.next == [LATER]).count();
    let never = all.iter().filter(|(upcoming, _)| upcoming.next == [NEVER]).count();
    // 300 samples of each of 2000 chunks come in any order. FIRST is enough for 8192 samples, soon more are looked at.
    assert!(never == 0 && later < 40, "{later} {never}");
    let distinct: BTreeSet<ChunkId> = all.iter().map(|(_, chunks)| chunks[0]).collect();
    assert!(distinct.len() > 1400, "{}", distinct.len());
}

/// The default of `initial_fill` follows from the bytes of the chunks alone.
#[test]
fn small_data_are_shuffled_as_a_whole_by_default() {
    let fill = |rows: u64, chunk: u64, change: &dyn Fn(&mut Spec)| open(rows, chunk, |s| change(s)).1.fill;
    // A row has 16 bytes, and 7710 chunks of 4096 rows, of which each counts 4 KiB more, have nearly 512 MiB.
    let (chunk, whole) = (1 << 12, 7710 << 12);
    for limit in [None, Some(1 << 22)] {
        let limited = |s: &mut Spec| s.resources.host_memory_limit = limit;
        assert_eq!([fill(100, 10, &limited), fill(whole, chunk, &limited)], [1024, whole]);
        assert_eq!(fill(whole + 1, chunk, &limited), 15_788_273, "as many as have 256 MiB");
        assert_eq!(fill(10, 1 << 25, &limited), 1024);
    }
    assert_eq!(fill(4 * whole, chunk, &|s| s.samples.roi_end = vec![whole as i64].into()), whole, "the chunks in use");
    assert_eq!(fill(4 * whole, chunk, &|s| s.order.initial_fill = Some(7)), 7);
}
