//! Tests that a state is written and read, and what is refused. Also what the other tests of states need.

use std::path::Path;

use super::*;
use crate::reader::Reader;
use crate::reader::opening::UnstartedReader;
use dali_zarr_samples::spec::ArrayArgument;

fn order() -> Order {
    Order::new(
        &Spec::default().with(|s| {
            s.order.num_shards = 2;
            s.order.pad_last_batch = true;
            s.batch_size = 8;
        }),
        100,
    )
    .unwrap()
}

/// Writes an array of int16 with `lens` elements along time, level and x, in chunks of `chunk` along time.
pub(super) fn array(folder: &Path, lens: [u64; 3], chunk: u64, attributes: &Value) {
    std::fs::create_dir_all(folder).unwrap();
    let metadata = json!({
        "zarr_format": 2, "shape": lens, "chunks": [chunk, lens[1], lens[2]], "dtype": "<i2", "fill_value": null, "order": "C",
        "filters": null, "compressor": null,
    });
    let mut all = json!({"_ARRAY_DIMENSIONS": ["time", "level", "x"]});
    all.as_object_mut().unwrap().extend(attributes.as_object().unwrap().clone());
    std::fs::write(folder.join(".zarray"), metadata.to_string()).unwrap();
    std::fs::write(folder.join(".zattrs"), all.to_string()).unwrap();
}

/// Makes a store with a group `g`, which has the arrays `a` and `b`.
pub(super) fn store() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for group in ["", "g"] {
        std::fs::create_dir_all(folder.path().join(group)).unwrap();
        std::fs::write(folder.path().join(group).join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    }
    for name in ["a", "b"] {
        array(&folder.path().join("g").join(name), [100, 3, 5], 7, &json!({}));
    }
    folder
}

pub(super) fn at(path: &Path) -> Spec {
    Spec::default().with(|s| s.source.paths = vec![path.to_str().unwrap().to_owned()])
}

pub(super) fn named(names: &[&str]) -> Vec<ArrayArgument> {
    names.iter().map(|&n| n.into()).collect()
}

pub(super) fn identity(spec: &Spec) -> Identity {
    UnstartedReader::new(spec).unwrap_or_else(|e| panic!("{e}: {spec:?}")).identity
}

pub(super) fn state(spec: &Spec) -> String {
    identity(spec).write(&order(), 0, 8)
}

/// Returns why a reader with `now` refuses the state of one with `then`.
pub(super) fn refusal(then: &Spec, now: &Spec) -> String {
    identity(now).read(&state(then)).expect_err("it should be refused").message().to_owned()
}

#[test]
fn a_state_comes_back_as_it_went() {
    let folder = store();
    let spec = at(folder.path()).with(|s| {
        s.source.arrays = named(&["g/a"]);
        s.order.seed = 3;
        s.values.mean = vec![0.1].into();
        s.values.stddev = vec![1e300].into();
    });
    let it = identity(&spec);
    let text = it.write(&order(), 0, 64);
    assert_eq!(it.read(&text).unwrap(), order().segments(64));
    let state: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&state["epoch"], &state["position"]), (&json!(1), &json!(58)), "for people");
    assert_eq!((&state["arrays"][0]["mean"], &state["arrays"][0]["stddev"]), (&json!(0.1), &json!(1e300)));
}

#[test]
fn what_is_no_state_is_refused() {
    let folder = store();
    let it = identity(&at(folder.path()).with(|s| s.source.arrays = named(&["g/a"])));
    let good: Value = serde_json::from_str(&it.write(&order(), 0, 8)).unwrap();
    let with = |pointer: &str, value: Value| {
        let mut state = good.clone();
        *state.pointer_mut(pointer).unwrap() = value;
        it.read(&state.to_string()).unwrap_err().message().to_owned()
    };
    assert!(with("/version", json!(1)).contains("version 1 of the format"));
    assert!(with("/format", json!("other")).contains("expected the state"));
    for (pointer, value) in [
        ("/legs", json!([])),
        ("/legs/0/num_shards", json!(0)),
        ("/legs/0/num_shards", json!(1u64 << 40)),
        ("/legs/0/batch_size", json!(0)),
        ("/legs/0/delivered", json!(u64::MAX)),
        ("/legs/0/delivered", json!(-1)),
        ("/legs/0/delivered", json!(16)),
        ("/epoch", json!(1)),
        ("/position", json!(9)),
        ("/position", json!("8")),
        ("/shard_id", json!(1)),
        ("/shard_id", json!(2)),
        ("/legs/0/epoch", json!(1.5)),
        ("/legs/0/pad_last_batch", json!(1)),
        // These lead to the same epoch and position.
        ("/legs/0/num_shards", json!(3)),
        ("/legs/0/batch_size", json!(9)),
        ("/legs/0/stick_to_shard", json!(true)),
        ("/check", json!("0")),
        ("/check", json!(null)),
        ("/cut", json!([])),
        ("/folder", json!(1)),
        ("/arrays", json!({})),
        ("/arrays/0", json!(3)),
    ] {
        let message = with(pointer, value);
        assert!(message.contains("damaged"), "{pointer}: {message}");
    }
    for text in ["", "{", "[]", "\u{1F980}", &"[".repeat(100_000), &" ".repeat(MAX_BYTES + 1)] {
        assert!(it.read(text).unwrap_err().message().contains("expected the state"), "{text}");
    }
}

/// A state that was written by an older version. It must stay readable in every later version.
#[test]
fn golden() {
    let text = r#"{"format":"dali_zarr.reader","version":2,"package":"0.1.0","epoch":0,"position":8,"shard_id":0,
        "legs":[{"num_shards":2,"batch_size":8,"pad_last_batch":true,"stick_to_shard":false,"epoch":0,"rest":0,
        "delivered":8}],"samples":100,"cut":{"stack_arrays":false,"dims":["time"],"window":[0],"stride":[1],"step":[1],
        "starts":[["100 from 0"]],"random_crop":[],"offsets":[0],"region and breaks":null,"fill_value":null,
        "random_shuffle":true,"shuffle_after_epoch":false,"seed":3,"initial_fill":20,
        "samples that share chunks":[["14 times 7","1 times 2"]],"return_index":false},"folder":"g","arrays":[{"name":"a",
        "dims":["time","level","x"],"shape":["time",3,5],"stored dtype":"int16","mask_and_scale":null,"dtype":"int16",
        "mean":null,"stddev":null}]}"#;
    let folder = store();
    let spec = at(folder.path()).with(|s| {
        s.source.arrays = named(&["g/a"]);
        s.order.seed = 3;
        s.order.random_shuffle = true;
        s.order.initial_fill = Some(20);
    });
    assert_eq!(identity(&spec).read(text).unwrap(), order().segments(8));
    let (mut now, then): (Value, Value) =
        (serde_json::from_str(&state(&spec)).unwrap(), serde_json::from_str(text).unwrap());
    // An entry that was added later.
    let check = now.as_object_mut().unwrap().remove("check");
    assert_eq!(check, Some(json!("d439e08d3743bd20e93046dbc015e08f")));
    assert_eq!(now, then);
}

#[test]
fn readers_of_a_store_that_moved_agree() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let readers = folders.each_ref().map(|folder| {
        array(&folder.path().join("a"), [100, 3, 5], 7, &json!({}));
        Reader::open(at(&folder.path().join("a"))).unwrap()
    });
    identity(&at(&folders[1].path().join("a"))).read(&readers[0].state()).unwrap();
}

/// Returns the sample indexes of the next `batches` batches.
fn next(reader: &Reader, batches: usize) -> Vec<i64> {
    let of = |_| {
        let batch = reader.next_batch().unwrap();
        let bytes = batch.host.last().unwrap().as_slice();
        bytes.chunks_exact(8).map(|index| i64::from_ne_bytes(index.try_into().unwrap())).collect::<Vec<_>>()
    };
    (0..batches).flat_map(of).collect()
}

#[test]
fn a_reader_without_a_window_takes_over_that_of_the_state() {
    let folder = store();
    let with = |fill: Option<u64>| {
        at(folder.path()).with(|s| {
            s.source.arrays = named(&["g/a"]);
            (s.order.random_shuffle, s.order.initial_fill, s.order.seed) = (true, fill, 3);
            s.samples.return_index = true;
            s.batch_size = 10;
        })
    };
    // By default, all of these few samples are shuffled together.
    let (windows, whole) = (Reader::open(with(Some(20))).unwrap(), Reader::open(with(None)).unwrap());
    assert_ne!(next(&windows, 3), next(&whole, 3));
    for then in [windows, whole] {
        let state = then.state();
        let mut now = Reader::prepare(with(None)).unwrap();
        now.restore(&state).unwrap();
        assert_eq!(now.state(), state);
        assert_eq!(next(&now, 12), next(&then, 12));
        // One with a window of its own must have that of the state.
        let refused = Reader::prepare(with(Some(21))).unwrap().restore(&state).unwrap_err();
        assert!(refused.message().contains("initial_fill"), "{refused}");
    }
    let state = Reader::prepare(with(Some(20))).unwrap().state().replace("\"initial_fill\":20", "\"initial_fill\":0");
    let refused = Reader::prepare(with(None)).unwrap().restore(&state).unwrap_err();
    assert!(refused.message().contains("initial_fill: 0 in the checkpoint"), "{refused}");
}
