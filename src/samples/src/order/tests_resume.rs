//! Tests of orders that stop and go on, with the same shards and with others.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::schedule::MAX_CHANGES;
use super::{Blocks, Order, Run, Segment};
use crate::spec::Spec;
use dali_zarr_base::error::Result;

fn spec(shards: u64, shard: u64, batch: u64, mode: u8, stick: bool, pad: bool) -> Spec {
    Spec::default().with(|s| {
        s.order.num_shards = shards as i64;
        s.order.shard_id = shard as i64;
        s.batch_size = batch as usize;
        s.order.random_shuffle = mode == 1 || mode == 3;
        // Mode 3 knows chunks: see `new`.
        s.order.initial_fill = Some(if mode == 3 { 7 } else { 1024 });
        s.order.shuffle_after_epoch = mode == 2 && !stick;
        s.order.stick_to_shard = stick;
        s.order.pad_last_batch = pad;
        s.order.seed = 5;
    })
}

/// Makes an order of `n` samples. With a small `initial_fill`, three samples share a chunk, the next one has a chunk of
/// its own, and so on.
fn new(spec: &Spec, n: u64) -> Result<Order> {
    if spec.order.initial_fill == Some(1024) {
        return Order::new(spec, n);
    }
    let runs = (0..n / 4).flat_map(|_| [3, 1]).chain((!n.is_multiple_of(4)).then_some(n % 4));
    Order::by_chunks(spec, Blocks::new(&[runs.map(|size| Run { size, count: 1 }).collect()]))
}

fn resume(spec: &Spec, n: u64, segments: &[Segment]) -> Result<(Order, u64)> {
    new(spec, n)?.resume(segments)
}

/// For each epoch, how often each sample was delivered.
type Seen = BTreeMap<u64, Vec<u64>>;

/// Delivers samples from where `segments` stopped, on all shards in lockstep, as long as `going` is true for the epoch
/// and the number of samples delivered. Counts them in `seen`, without repetitions. Returns where it stopped and the
/// epoch; `None` if the shards aren't in the same one.
fn deliver(
    spec: &Spec,
    n: u64,
    segments: &[Segment],
    seen: &mut Seen,
    going: &dyn Fn(u64, u64) -> bool,
) -> Option<(Vec<Segment>, u64)> {
    let shards = spec.order.num_shards as u64;
    let (mut stops, mut epochs) = (Vec::new(), Vec::new());
    for shard in 0..shards {
        let (mut order, next) = resume(&spec.clone().with(|s| s.order.shard_id = shard as i64), n, segments).unwrap();
        let begun = order.locate(next).0;
        let segment = *order.segments(next).last().unwrap();
        let in_rest = spec.order.pad_last_batch && segment.rest > 0 && begun == segment.epoch;
        let empty = in_rest && segment.rest * shard / shards == segment.rest * (shard + 1) / shards;
        let stop = (next..).find(|&k| !going(order.locate(k).0, k - next)).unwrap();
        // Includes the sample before, since the first one may repeat it.
        let from = next.saturating_sub(1);
        let mut mine: Vec<(u64, u64)> = (from..stop).map(|k| (order.locate(k).0, order.sample(k).index)).collect();
        mine.dedup();
        for (epoch, sample) in mine.into_iter().skip((next - from) as usize) {
            // If a short rest leaves a shard empty, the shard repeats a sample of another shard to stay in step.
            if !(empty && epoch == begun) {
                seen.entry(epoch).or_insert_with(|| vec![0; n as usize])[sample as usize] += 1;
            }
        }
        stops.push(order.segments(stop));
        epochs.push(order.locate(stop).0);
    }
    let same = stops.windows(2).all(|w| w[0] == w[1]) && epochs.windows(2).all(|w| w[0] == w[1]);
    if same {
        seen.entry(epochs[0]).or_insert_with(|| vec![0; n as usize]);
    }
    same.then(|| (stops.swap_remove(0), epochs[0]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// After a stop at any step of a small epoch, the samples are those of a run without a stop.
    #[test]
    fn resumed_with_the_same_shards_equals_the_straight_run(
        n in 1u64..40, shards in 1u64..5, batch in 1u64..6, mode in 0u8..4, stick: bool, pad: bool,
    ) {
        prop_assume!(n >= shards);
        for shard in 0..shards {
            let s = spec(shards, shard, batch, mode, stick, pad);
            let mut straight = new(&s, n).unwrap();
            let whole: Vec<u64> = (0..120).map(|k| straight.sample(k).index).collect();
            for delivered in 0..60 {
                // The state of any of the readers is the state of all.
                let other = spec(shards, (shard + 1) % shards, batch, mode, stick, pad);
                let segments = Order::new(&other, n).unwrap().segments(delivered);
                let (mut order, next) = resume(&s, n, &segments).unwrap();
                let found: Vec<u64> = (next..next + 60).map(|k| order.sample(k).index).collect();
                prop_assert_eq!(&found[..], &whole[delivered as usize..delivered as usize + 60]);
            }
        }
    }

    /// Whatever the shards are changed to, and how often, each sample comes once in every epoch.
    #[test]
    fn changed_shards_deliver_each_remaining_sample_once(
        n in 1u64..60, mode in 0u8..4, stick: bool, pad in prop::bool::weighted(0.8), first in 0u64..3,
        changes in prop::collection::vec((1u64..7, 1u64..5, 0u64..6), 2..6),
    ) {
        prop_assume!(changes.iter().all(|c| n >= c.0));
        let (mut segments, mut seen) = (vec![], Seen::new());
        for (i, &(shards, batch, batches)) in changes.iter().enumerate() {
            let s = spec(shards, 0, batch, mode, stick, pad);
            if let Err(error) = resume(&s, n, &segments) {
                prop_assert!(!pad && error.message().contains("pad_last_batch"), "padded shards are in step, but {}", error);
                return Ok(());
            }
            // The first segment goes on for some epochs before it is interrupted.
            let whole = if i == 0 { n.div_ceil(shards).next_multiple_of(batch) * first } else { 0 };
            let stopped = deliver(&s, n, &segments, &mut seen, &|_, k| k < whole + batches * batch);
            let Some((at, _)) = stopped else {
                prop_assert!(!pad, "padded shards are in step");
                return Ok(());
            };
            segments = at;
        }
        let s = spec(1 + n % 3, 0, 2, mode, stick, pad);
        let current = *seen.last_key_value().unwrap().0;
        if resume(&s, n, &segments).is_ok() {
            deliver(&s, n, &segments, &mut seen, &|epoch, _| epoch <= current);
            for (epoch, counts) in seen.range(..=current) {
                prop_assert!(counts.iter().all(|&c| c == 1), "epoch {}: {:?} after {:?}", epoch, counts, segments);
            }
        }
    }

    /// Random segments give errors or samples, and lookups end.
    #[test]
    fn legs_that_contradict_each_other_are_refused_or_harmless(
        n in 1u64..40, shards in 1u64..5,
        segments in prop::collection::vec((1u64..6, 1u64..5, any::<bool>(), any::<bool>(), 0u64..5, 0u64..40, 0u64..99), 1..5),
    ) {
        prop_assume!(n >= shards);
        let segments: Vec<Segment> = segments
            .into_iter()
            .filter(|l| l.0 <= n)
            .map(|(s, b, stick, pad, epoch, rest, delivered)| {
                let sharding = super::SampleSharding::new(&spec(s, 0, b, 0, stick, pad), n).unwrap();
                Segment { sharding, epoch, rest: rest.min(n), delivered }
            })
            .collect();
        for shard in 0..shards {
            if let Ok((mut order, next)) = resume(&spec(shards, shard, 2, 1, true, true), n, &segments) {
                prop_assert!((next..next + 50).all(|k| order.sample(k).index < n));
            }
        }
    }
}

#[test]
fn the_rest_goes_to_the_new_shards_in_order() {
    // Ten samples on two shards; four of each were delivered of [0, 1, 2, 3, 4] and [5, 6, 7, 8, 9].
    let segments = Order::new(&spec(2, 0, 2, 0, false, true), 10).unwrap().segments(4);
    let found = |shard| {
        let (mut order, next) = resume(&spec(3, shard, 2, 0, false, true), 10, &segments).unwrap();
        (next..next + 8).map(|k| order.sample(k).index).collect::<Vec<_>>()
    };
    // The rest is [4, 9]. Shard 0 of 3 has no sample of it and repeats the sample that comes next. The epoch after it
    // is divided as usual, each reader one shard further.
    assert_eq!(found(0), [4, 4, 3, 4, 5, 5, 6, 7]);
    assert_eq!(found(1), [4, 4, 6, 7, 8, 9, 0, 1]);
    assert_eq!(found(2), [9, 9, 0, 1, 2, 2, 3, 4]);
}

#[test]
fn a_whole_epoch_begins_with_the_new_shards() {
    let old = spec(2, 0, 5, 1, true, true);
    let segments = Order::new(&old, 10).unwrap().segments(5);
    for shard in 0..5 {
        let s = spec(5, shard, 2, 1, true, true);
        let (mut order, next) = resume(&s, 10, &segments).unwrap();
        let mut fresh = Order::new(&s, 10).unwrap();
        assert_eq!(order.locate(next), (1, fresh.locate(2).1));
        assert_eq!(order.sample(next), fresh.sample(2), "the second epoch, as if the shards had always been these");
    }
}

#[test]
fn shards_in_different_epochs_cannot_change() {
    // 13, 13 and 14 samples: after 13 one shard is still in the first epoch.
    let segments = Order::new(&spec(3, 0, 13, 0, false, false), 40).unwrap().segments(13);
    let error = resume(&spec(2, 0, 13, 0, false, false), 40, &segments).unwrap_err();
    assert!(error.message().contains("epoch 0") && error.message().contains("pad_last_batch"), "{error}");
    // With the same shards it goes on.
    assert_eq!(resume(&spec(3, 0, 13, 0, false, false), 40, &segments).unwrap().1, 13);
}

#[test]
fn changes_within_one_epoch_are_bounded() {
    let mut segments = vec![];
    let of = |i: u64| spec(1 + i % 2, 0, 1, 0, false, true);
    let refused = (0..2 * MAX_CHANGES as u64).find_map(|i| match resume(&of(i), 10_000, &segments) {
        Ok((order, next)) => {
            segments = order.segments(next + 3);
            None
        }
        Err(error) => Some((i, error)),
    });
    let (i, error) = refused.unwrap();
    assert_eq!(i, MAX_CHANGES as u64 + 1);
    assert!(error.message().contains("finish the epoch"), "{error}");
    // As the message says: the shards of the checkpoint go on, and in the next epoch they may change again.
    let (order, next) = resume(&of(i - 1), 10_000, &segments).unwrap();
    let end = (next..).find(|&k| order.locate(k).0 == 1).unwrap();
    assert!(resume(&of(i), 10_000, &order.segments(end - 1)).is_err());
    for delivered in [end, end + 3] {
        assert!(resume(&of(i), 10_000, &order.segments(delivered)).is_ok(), "{delivered}");
    }
    // More segments than any reader writes.
    let many = vec![segments[0]; MAX_CHANGES + 2];
    assert!(resume(&of(0), 10_000, &many).unwrap_err().message().contains("contradicts itself"));
}

#[test]
fn huge_epochs_resume_at_once() {
    let n = 1_000_000_000_000_000;
    let segments = Order::new(&spec(7, 0, 16, 1, true, true), n).unwrap().segments(123_456_789 * 16);
    let (mut order, next) = resume(&spec(1000, 3, 16, 1, true, true), n, &segments).unwrap();
    assert!(order.sample(next + 1).index < n);
}
