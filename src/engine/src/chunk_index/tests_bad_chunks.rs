//! Tests of [`BadChunks`]: which samples take the places of others.

use std::sync::Arc;

use serde_json::json;

use super::{BadChunks, ChunkIndex, Location};
use crate::reader::opening::UnstartedReader;
use crate::stats::Stats;
use crate::worlds::documents::{ChunkLocations, Documents};
use dali_zarr_base::error::{Error, Site};
use dali_zarr_base::random::key;
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::order::{Order, Sample};
use dali_zarr_samples::plan::ChunkId;
use dali_zarr_samples::spec::{DimKey, OnBadChunk, Spec};
use dali_zarr_stores::Latency;

const ROWS: u64 = 40;

/// A reader of rows of which each two share a chunk.
fn open(change: impl FnOnce(&mut Spec)) -> UnstartedReader {
    let array = json!({
        "zarr_format": 3, "node_type": "array", "shape": [ROWS, 4], "data_type": "float32", "fill_value": 0.0,
        "dimension_names": ["t", "x"], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    });
    let mut store = Documents::new(Latency::Local, false);
    store.add("a", &array, ChunkLocations::Keys);
    let spec = Spec::default().with(|s| {
        s.source.paths = vec!["test".into()];
        s.source.arrays = vec!["a".into()];
        s.samples.dims = vec![DimKey::parse("t")];
        s.resources.on_bad_chunk = OnBadChunk::Skip;
        change(s);
    });
    let dataset = Dataset::of_stores(&spec, vec![Arc::new(store)], None).unwrap();
    UnstartedReader::of(&spec, dataset).unwrap()
}

fn add(bad: &BadChunks, index: &ChunkIndex, stats: &Stats, chunk: u64) {
    let id = ChunkId { array: 0, part: 0, index: chunk };
    let error = Error::damaged("it is cut").at(index.site(id));
    bad.add(index, stats, id, None, &error).unwrap();
}

/// The samples of the epoch of sample `k` after it, and then those before it.
fn others(order: &mut Order, k: u64) -> Vec<Sample> {
    let epoch = order.locate(k).0;
    let all: Vec<u64> = (0..10 * ROWS).filter(|&at| order.locate(at).0 == epoch).collect();
    let (before, after): (Vec<u64>, Vec<u64>) = all.into_iter().filter(|&at| at != k).partition(|&at| at < k);
    after.into_iter().chain(before).map(|at| order.sample(at)).collect()
}

#[test]
fn the_next_sample_of_the_epoch_and_shard_takes_the_place() {
    for seed in 0..60u64 {
        let draw = |what: u64, n: u64| key(&[seed, what]) % n;
        let reader = open(|s| {
            s.order.random_shuffle = draw(0, 2) == 0;
            s.order.seed = seed as i64;
            s.order.num_shards = 1 + draw(1, 3) as i64;
            s.order.shard_id = draw(2, s.order.num_shards as u64) as i64;
            s.order.pad_last_batch = draw(3, 2) == 0;
            s.order.stick_to_shard = draw(4, 2) == 0;
            s.batch_size = 3;
        });
        let (index, mut order) = (&reader.chunk_index, reader.order.clone());
        let (bad, stats) = (BadChunks::new(OnBadChunk::Skip), Stats::default());
        bad.begins(&order);
        let mut found = Vec::new();
        // More are found from batch to batch. What came does not depend on it, and none are left in the end.
        for chunk in 0..ROWS / 2 {
            let chunk = (chunk * 7 + draw(5, ROWS)) % (ROWS / 2);
            for batch in 0..draw(6 + chunk, 4) {
                let first = draw(100 + chunk * 10 + batch, 3 * ROWS);
                let asked: Vec<_> = (first..first + 3).map(|k| order.sample(k)).collect();
                let is_bad = |s: &Sample| found.contains(&(s.index / 2));
                let expected: Option<Vec<Sample>> = (first..first + 3)
                    .map(|k| {
                        Some(order.sample(k))
                            .filter(|s| !is_bad(s))
                            .or_else(|| others(&mut order, k).into_iter().find(|s| !is_bad(s)))
                    })
                    .collect();
                match (bad.replaced(index, first, &asked), expected) {
                    (Ok(None), Some(expected)) => assert_eq!(asked, expected, "seed {seed}"),
                    (Ok(Some(samples)), Some(expected)) => assert_eq!(samples, expected, "seed {seed}"),
                    (Err(e), None) => assert!(e.message().contains("in the epoch, but found none"), "{e}"),
                    (other, expected) => panic!("seed {seed}: {other:?} instead of {expected:?}"),
                }
            }
            add(&bad, index, &stats, chunk);
            found.push(chunk);
        }
    }
}

#[test]
fn in_a_callers_order_it_is_the_next_sample_of_the_batch() {
    let reader = open(|_| ());
    let (index, stats) = (&reader.chunk_index, Stats::default());
    let bad = BadChunks::new(OnBadChunk::Skip);
    add(&bad, index, &stats, 1);
    add(&bad, index, &stats, 4);
    let of = |numbers: &[u64]| numbers.iter().map(|&index| Sample::new(0, index)).collect::<Vec<_>>();
    let replaced = |numbers: &[u64]| bad.replaced(index, 0, &of(numbers));
    assert_eq!(replaced(&[0, 1, 4]).unwrap(), None);
    assert_eq!(replaced(&[2, 0, 9, 3, 5]).unwrap().unwrap(), of(&[0, 0, 5, 5, 5]));
    assert_eq!(replaced(&[7, 9, 9]).unwrap().unwrap(), of(&[7, 7, 7]), "the first one follows the last one");
    assert!(replaced(&[2, 9]).unwrap_err().message().contains("larger batches"));
}

#[test]
fn each_is_listed_once() {
    let reader = open(|_| ());
    let (index, stats) = (&reader.chunk_index, Stats::default());
    let bad = BadChunks::new(OnBadChunk::Nan);
    let at = |chunk| (ChunkId { array: 0, part: 0, index: chunk }, Location::Key);
    assert!(!bad.contains(at(3).0, at(3).1));
    for chunk in [3, 5, 3] {
        add(&bad, index, &stats, chunk);
    }
    assert!(bad.contains(at(3).0, at(3).1) && !bad.contains(at(4).0, at(4).1));
    let entry =
        |key: &str| json!({"store": "simulated", "array": "a", "key": key, "inner_chunk": null, "reason": "it is cut"});
    assert_eq!(stats.bad_chunks(), json!([entry("a/c/3/0"), entry("a/c/5/0")]));
    assert_eq!(stats.to_json()["chunks_bad"], 2);
    assert_eq!(
        bad.replaced(index, 0, &[Sample::new(0, 6)]).unwrap(),
        None,
        "elements become NaN, no sample is replaced"
    );
    let other = Error::runtime("the network is down").at(Site::store("test"));
    assert!(!bad.tolerates(&other) && !BadChunks::default().tolerates(&Error::damaged("it is cut")));
}
