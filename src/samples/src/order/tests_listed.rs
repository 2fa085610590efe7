//! Tests of listed blocks: each sample comes once and blocks stay together, whatever the blocks' sizes and samples.

use std::sync::Arc;

use proptest::prelude::*;

use super::tests_windows::assert_uniform;
use super::*;
use dali_zarr_base::random::key;

fn spec(shards: i64, shard: i64, fill: u64) -> Spec {
    Spec::default().with(|s| {
        s.order.random_shuffle = true;
        s.order.initial_fill = Some(fill);
        s.order.num_shards = shards;
        s.order.shard_id = shard;
        s.order.seed = 5;
    })
}

/// The samples of one epoch of one reader, without padding.
fn epoch_of(order: &mut Order, epoch: u64) -> Vec<u64> {
    let first = (0..).find(|&k| order.locate(k).0 == epoch).unwrap();
    let mut samples = Vec::new();
    for k in first.. {
        if order.locate(k).0 != epoch {
            return samples;
        }
        samples.push(order.sample(k).index);
    }
    unreachable!()
}

fn ends(sizes: &[u64]) -> Vec<u64> {
    let sum = |end: &mut u64, size: &u64| {
        *end += size;
        Some(*end)
    };
    sizes.iter().scan(0, sum).collect()
}

/// Returns blocks of these sizes. Their samples are in order, or with `anywhere` shuffled.
fn blocks(sizes: &[u64], anywhere: bool) -> Blocks {
    let n = sizes.iter().sum();
    match anywhere {
        false => Blocks::listed(ends(sizes)),
        true => Blocks::listed_rows(ends(sizes), Arc::new(rows(n))),
    }
}

/// Returns the samples of shuffled blocks, in the order of their places.
fn rows(n: u64) -> Numbers {
    Numbers::shuffled(n, key(&[n, 8]))
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    // Some blocks are far larger than others, some are empty.
    prop::collection::vec(prop_oneof![4 => 0u64..6, 1 => 20u64..200], 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_sample_once_per_epoch(
        sizes in sizes(), anywhere: bool, fill in 1u64..300, shards in 1i64..6, stick: bool, after: bool, epoch in 0u64..4,
    ) {
        let blocks = blocks(&sizes, anywhere);
        let n = blocks.samples();
        prop_assert_eq!(n, sizes.iter().sum::<u64>());
        prop_assert_eq!(blocks.count(), sizes.iter().filter(|&&s| s > 0).count() as u64);
        prop_assume!(n >= shards as u64);
        let mut seen = vec![0; n as usize];
        for shard in 0..shards {
            let s = spec(shards, shard, fill).with(|s| {
                s.order.random_shuffle = !after || stick;
                s.order.shuffle_after_epoch = after && !stick;
                s.order.stick_to_shard = stick;
            });
            let mut order = Order::by_chunks(&s, blocks.clone()).unwrap();
            epoch_of(&mut order, epoch).iter().for_each(|&i| seen[i as usize] += 1);
        }
        prop_assert!(seen.iter().all(|&c| c == 1), "{:?}", seen);
    }

    /// Any position can be entered at once, in any order, and shards divide one order.
    #[test]
    fn positions_are_independent(sizes in sizes(), fill in 1u64..80, ks in prop::collection::vec(0u64..900, 20)) {
        let blocks = blocks(&sizes, true);
        prop_assume!(blocks.samples() >= 3);
        let mut order = Order::by_chunks(&spec(3, 1, fill), blocks.clone()).unwrap();
        for k in ks {
            let mut fresh = Order::by_chunks(&spec(3, 1, fill), blocks.clone()).unwrap();
            prop_assert_eq!(order.sample(k), fresh.sample(k));
            let (epoch, position) = order.locate(k);
            let mut whole = Order::by_chunks(&spec(1, 0, fill), blocks.clone()).unwrap();
            prop_assert_eq!(order.sample(k).index, whole.sample(epoch * blocks.samples() + position).index);
        }
    }

    /// Between the first and the last sample of a block, there are at most about as many other samples as a window
    /// holds.
    #[test]
    fn blocks_stay_together(sizes in sizes(), anywhere: bool, fill in 1u64..100) {
        let all = blocks(&sizes, anywhere);
        prop_assume!(all.samples() > 0);
        let largest = all.largest();
        let samples = epoch_of(&mut Order::by_chunks(&spec(1, 0, fill), all.clone()).unwrap(), 0);
        let mut places: Vec<u64> = (0..all.samples()).collect();
        if anywhere {
            rows(all.samples()).iter().enumerate().for_each(|(place, row)| places[row as usize] = place as u64);
        }
        let ends = ends(&sizes);
        let mut extent = vec![(u64::MAX, 0); sizes.len()];
        for (at, &sample) in samples.iter().enumerate() {
            let block = ends.partition_point(|&end| end <= places[sample as usize]);
            let extent: &mut (u64, u64) = &mut extent[block];
            *extent = (extent.0.min(at as u64), at as u64);
        }
        // A stretch holds at most half more than `fill`, or an average block. A block may reach beyond it.
        let stretch = (fill + fill / 2 + 1).max(all.samples().div_ceil(all.count()));
        let most = if fill >= all.samples() { all.samples() } else { stretch + largest };
        for (first, last) in extent.into_iter().filter(|e| e.0 != u64::MAX) {
            prop_assert!(last - first <= most, "{} samples apart", last - first);
        }
    }
}

/// The order must be the same on every platform and in every later version.
#[test]
fn golden() {
    let take = |spec: &Spec, blocks: Blocks, from: u64| {
        let mut order = Order::by_chunks(spec, blocks).unwrap();
        (from..from + 10).map(|k| order.sample(k).index).collect::<Vec<_>>()
    };
    let irregular: Vec<u64> = (0..50).map(|i| 1 + i * i % 7).collect();
    let got = [
        take(&spec(1, 0, 8), blocks(&irregular, false), 0),
        take(&spec(1, 0, 8), blocks(&irregular, true), 333),
        take(&spec(3, 1, 8).with(|s| s.order.stick_to_shard = true), blocks(&irregular, false), 50),
    ];
    assert_eq!(got, GOLDEN);
    assert_eq!(
        [blocks(&irregular, false).layout(), blocks(&irregular, true).layout()],
        [
            Layout::Listed(50, "2bc0e9212c107c4777dd3e36b3ee4d68".into()),
            Layout::Listed(50, "51939afd6d9795255ca8ff30b69c30ae".into())
        ]
    );
}
const GOLDEN: [[u64; 10]; 3] = [
    [88, 27, 91, 28, 89, 26, 87, 90, 25, 24],
    [112, 12, 117, 69, 92, 55, 141, 99, 94, 105],
    [93, 92, 77, 79, 78, 94, 84, 80, 56, 57],
];

/// Over many epochs, a sample of any block is equally likely at all positions: chi-squared over the fifths of an epoch,
/// 5 sigma. Counts one sample of each block, since samples of one block come together.
#[test]
fn uniform_over_epochs() {
    const EPOCHS: u64 = 4000;
    let sizes: Vec<u64> = (0..80).map(|i| 1 + i % 9).collect();
    let (n, ends) = (sizes.iter().sum::<u64>(), ends(&sizes));
    let mut order = Order::by_chunks(&spec(1, 0, 40), Blocks::listed(ends.clone())).unwrap();
    let mut count = vec![[0u32; 5]; sizes.len()];
    for k in 0..EPOCHS * n {
        if let Ok(block) = ends.binary_search(&(order.sample(k).index + 1)) {
            count[block][(k % n * 5 / n) as usize] += 1;
        }
    }
    assert_uniform(&count, n, EPOCHS);
}

#[test]
fn memory_is_told() {
    let listed = blocks(&[7; 1000], false);
    assert_eq!(Order::by_chunks(&spec(1, 0, 100), listed.clone()).unwrap().bytes(), 20 * 1000);
    let in_order = spec(1, 0, 100).with(|s| s.order.random_shuffle = false);
    assert_eq!(Order::by_chunks(&in_order, listed).unwrap().bytes(), 8000);
    let rows = Order::by_chunks(&spec(1, 0, 100), blocks(&[7; 1000], true)).unwrap();
    assert_eq!(rows.bytes(), 20 * 1000 + 4 * 7000);
    assert_eq!(Order::by_chunks(&spec(1, 0, 100), Blocks::single(7000)).unwrap().bytes(), 0);
}

#[test]
fn no_sample_is_an_error() {
    assert!(Order::by_chunks(&spec(1, 0, 8), Blocks::listed(vec![0, 0])).unwrap_err().message().contains("no sample"));
}
