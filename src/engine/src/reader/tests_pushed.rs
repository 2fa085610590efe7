//! Tests of readers in the caller's order: what is pushed comes, in this order, and nothing hangs.

use std::path::Path;
use std::sync::Arc;

use super::Reader;
use super::tests::write_v2;
use crate::explain::explain;
use dali_zarr_base::error::{ErrorKind, Result};
use dali_zarr_base::random::below;
use dali_zarr_base::random::key;
use dali_zarr_samples::order::{Draws, MOST_BATCHES};
use dali_zarr_samples::spec::{DimKey, OrderSource, OutOfBounds, Spec};

const ROWS: usize = 40;

/// An array of [`ROWS`] rows of 3 int32, each a chunk: row `i` has the numbers from `3 * i` on.
fn store(folder: &Path) {
    let row = |i: usize| (0..3).flat_map(|k| (3 * i as i32 + k).to_le_bytes()).collect();
    write_v2(folder, "<i4", 3, &serde_json::Value::Null, &(0..ROWS).map(row).collect::<Vec<_>>());
}

fn spec(folder: &Path, change: impl FnOnce(&mut Spec)) -> Spec {
    Spec::default().with(|s| {
        s.source.paths = vec![folder.to_str().unwrap().to_owned()];
        s.samples.dims = vec![DimKey::parse("0")];
        s.samples.return_index = true;
        s.order.order = OrderSource::Pushed;
        s.batch_size = 4;
        s.resources.prefetch_queue_depth = Some(3);
        change(s);
    })
}

fn open(change: impl FnOnce(&mut Spec)) -> (tempfile::TempDir, Reader) {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    let reader = Reader::open(spec(folder.path(), change)).unwrap();
    (folder, reader)
}

fn push(reader: &Reader, numbers: &[i64]) -> Result<bool> {
    reader.pusher().unwrap().push(numbers, 0, Draws::GoOn)
}

/// Takes a batch. Returns the first element of each sample, all of which the batch has, and how many count.
fn take(reader: &Reader) -> (Vec<i32>, usize) {
    let batch = reader.next_batch().unwrap();
    let row = |bytes: &[u8]| i32::from_le_bytes(bytes[..4].try_into().unwrap());
    (batch.host[0].as_slice().chunks(12).map(row).collect(), batch.samples)
}

#[test]
fn batches_come_as_they_are_pushed() {
    for seed in 0..300 {
        let (_folder, reader) = open(|s| s.batch_size = 1 + seed as usize % 5);
        let mut random = (0..).map(|i| key(&[seed, i]));
        let mut next = |n: u64| below(random.next().unwrap(), n);
        let (mut pushed, mut taken) = (Vec::new(), 0);
        for _ in 0..next(60) {
            if next(3) > 0 {
                let numbers: Vec<i64> =
                    (0..1 + next(reader.batch_size() as u64)).map(|_| next(ROWS as u64) as i64).collect();
                assert!(push(&reader, &numbers).unwrap());
                pushed.push(numbers);
            } else if taken < pushed.len() {
                let (mut rows, count) = take(&reader);
                assert_eq!(rows.len(), reader.batch_size());
                assert_eq!(count, pushed[taken].len());
                assert!(rows[count..].iter().all(|row| *row == rows[count - 1]), "the last sample fills it up");
                rows.truncate(count);
                assert_eq!(rows, pushed[taken].iter().map(|n| 3 * *n as i32).collect::<Vec<_>>());
                taken += 1;
            }
        }
        // The reader is dropped with batches that were pushed and not taken.
    }
}

#[test]
fn a_reader_without_pushes_ends_and_one_that_is_waited_for_gets_them() {
    let (_folder, reader) = open(|_| {});
    let pusher = Arc::clone(reader.pusher().unwrap());
    let taking = std::thread::spawn(move || (take(&reader), reader));
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert!(!taking.is_finished(), "nothing was pushed");
    pusher.push(&[7], 0, Draws::GoOn).unwrap();
    let ((rows, count), reader) = taking.join().unwrap();
    assert_eq!((rows, count), (vec![21; 4], 1));
    drop(reader);
    assert!(pusher.push(&[7], 0, Draws::GoOn).unwrap_err().message().contains("closed"));
}

#[test]
fn pushes_are_checked_and_bounded() {
    let (_folder, reader) = open(|_| {});
    for (numbers, kind, text) in [
        (&[0, 40][..], ErrorKind::Index, "from 0 to 39, but found 40 as number 1 of the batch"),
        (&[-1], ErrorKind::Index, "found -1"),
        (&[], ErrorKind::Value, "from 1 to 4 samples in a batch (batch_size), but 0"),
        (&[1; 5], ErrorKind::Value, "but 5 were pushed"),
    ] {
        let error = push(&reader, numbers).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.message().contains(text), "{error}");
    }
    let mut waiting = 0;
    while push(&reader, &[waiting % 40]).unwrap() {
        waiting += 1;
    }
    assert!(waiting >= MOST_BATCHES as i64, "{waiting}");
    for i in 0..waiting {
        assert_eq!(take(&reader).0[0], 3 * (i as i32 % 40), "what was refused changes nothing");
    }
    assert!(push(&reader, &[5]).unwrap());
    assert_eq!(take(&reader), (vec![15; 4], 1));
}

#[test]
fn what_contradicts_the_callers_order_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    type Change = fn(&mut Spec);
    let changes: [(&str, Change); 6] = [
        ("random_shuffle", |s| s.order.random_shuffle = true),
        ("shuffle_after_epoch", |s| s.order.shuffle_after_epoch = true),
        ("num_shards", |s| s.order.num_shards = 2),
        ("stick_to_shard", |s| s.order.stick_to_shard = true),
        ("pad_last_batch", |s| s.order.pad_last_batch = true),
        ("initial_fill", |s| s.order.initial_fill = Some(5)),
    ];
    for (what, change) in changes {
        let error = Reader::open(spec(folder.path(), change)).map(|_| ()).unwrap_err();
        assert!(error.message().contains(what) && error.message().contains("the caller's order"), "{error}");
    }
    let own = Reader::open(spec(folder.path(), |s| s.order.order = OrderSource::Own)).unwrap();
    assert!(own.pusher().is_none());
    assert_eq!(own.next_batch().unwrap().samples, 4);
}

#[test]
fn samples_are_found_by_their_starts() {
    let (_folder, reader) = open(|s| {
        s.samples.window = vec![3].into();
        s.samples.step = vec![2].into();
        s.samples.breaks.at = vec![10];
        s.samples.out_of_bounds_policy = OutOfBounds::Pad;
        s.samples.pad_before = vec![2].into();
    });
    let samples = reader.meta().epoch_size;
    let mut rows = Vec::new();
    for number in 0..samples {
        push(&reader, &[number]).unwrap();
        let batch = reader.next_batch().unwrap();
        rows.extend(batch.host[1].as_slice()[..16].chunks(8).map(|b| i64::from_ne_bytes(b.try_into().unwrap())));
    }
    let pusher = reader.pusher().unwrap();
    assert_eq!(pusher.find(&rows, 2).unwrap(), (0..samples).collect::<Vec<_>>());
    let error = pusher.find(&[1, -100], 2).unwrap_err();
    assert!(error.message().contains("there is no sample that starts at [1, -100] (segment, "), "{error}");
    assert!(pusher.find(&[1], 1).unwrap_err().message().contains("by 2 numbers each"), "without the segment");
}

#[test]
fn chunks_of_pushes_ahead_are_read_once() {
    let (_folder, reader) = open(|s| {
        s.samples.window = vec![8].into();
        s.samples.step = vec![1].into();
        s.batch_size = 1;
    });
    // Neighbouring windows share seven of eight chunks.
    for number in (0..33).rev() {
        push(&reader, &[number]).unwrap();
    }
    for _ in 0..33 {
        reader.next_batch().unwrap();
    }
    assert_eq!(reader.stats().to_json()["chunks_read"], 40);
    // Also without pushes ahead, as long as there is memory.
    for number in 0..33 {
        push(&reader, &[number]).unwrap();
        reader.next_batch().unwrap();
    }
    assert!(reader.stats().to_json()["chunks_read"].as_u64().unwrap() <= 80);
}

#[test]
fn explain_names_the_order() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    let explained = explain(&spec(folder.path(), |_| {})).unwrap().to_json();
    assert_eq!(explained["order"], "pushed");
    assert_eq!(explained["samples"], 40);
    assert_eq!(explained["reads"]["shuffled"]["reads_per_chunk"], 1.0);
}

#[test]
fn a_state_names_the_samples_only() {
    let (folder, reader) = open(|_| {});
    push(&reader, &[3, 4]).unwrap();
    take(&reader);
    let state = reader.state();
    let mut other = Reader::prepare(spec(folder.path(), |s| s.batch_size = 7)).unwrap();
    other.restore(&state).unwrap();
    push(&other, &[9]).unwrap();
    assert_eq!(take(&other).0, [27; 7], "the caller knows the place");
    let mut own = Reader::prepare(spec(folder.path(), |s| s.order.order = OrderSource::Own)).unwrap();
    assert!(own.restore(&state).unwrap_err().message().contains("order"));
}

#[test]
fn random_windows_depend_on_the_place_in_the_epoch() {
    let starts = |pushes: &[(&[i64], u64, Draws)]| -> Vec<i64> {
        let (_folder, reader) = open(|s| {
            s.samples.window = vec![3].into();
            s.samples.random_crop = vec![DimKey::parse("0")];
            s.samples.samples_per_volume = 10;
        });
        let pusher = reader.pusher().unwrap();
        let take = |&(numbers, epoch, draws): &(&[i64], u64, Draws)| {
            pusher.push(numbers, epoch, draws).unwrap();
            let index = reader.next_batch().unwrap();
            let bytes = &index.host[1].as_slice()[..8 * numbers.len()];
            bytes.chunks(8).map(|b| i64::from_ne_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
        };
        pushes.iter().flat_map(take).collect()
    };
    let all = starts(&[(&[1, 1, 1, 1], 0, Draws::GoOn), (&[1, 1, 1, 1], 0, Draws::GoOn)]);
    assert!(all.iter().any(|start| *start != all[0]), "{all:?}");
    assert_eq!(starts(&[(&[1, 1, 1, 1], 0, Draws::From(4))]), all[4..]);
    assert_ne!(starts(&[(&[1, 1, 1, 1], 1, Draws::From(4))]), all[4..], "another epoch");
    let same = starts(&[(&[1, 1, 1, 1], 0, Draws::BySample)]);
    assert!(same.iter().all(|start| *start == same[0]), "{same:?}");
    let (_folder, reader) = open(|s| {
        s.samples.window = vec![3].into();
        s.samples.random_crop = vec![DimKey::parse("0")];
    });
    assert!(reader.pusher().unwrap().find(&[0], 1).unwrap_err().message().contains("random_crop"));
}
