//! Tests of chunk-aware shuffling: each sample comes once, blocks stay together, and the order is as random as
//! documented.

use proptest::prelude::*;

use super::*;

fn spec(shards: i64, shard: i64, fill: u64) -> Spec {
    Spec::default().with(|s| {
        s.order.random_shuffle = true;
        s.order.initial_fill = Some(fill);
        s.order.num_shards = shards;
        s.order.shard_id = shard;
        s.order.seed = 5;
    })
}

/// Returns the runs of an axis of `samples` samples in blocks of `size`.
fn regular(samples: u64, size: u64) -> Vec<Run> {
    let runs = [Run { size, count: samples / size }, Run { size: samples % size, count: 1 }];
    runs.into_iter().filter(|r| r.size > 0 && r.count > 0).collect()
}

/// The samples of one epoch of one reader, without padding.
fn epoch_of(order: &mut Order, epoch: u64) -> Vec<u64> {
    let mut k = 0;
    while order.locate(k).0 < epoch {
        k += 1;
    }
    (k..)
        .take_while(|&k| order.locate(k).0 == epoch)
        .collect::<Vec<_>>()
        .into_iter()
        .map(|k| order.sample(k).index)
        .collect()
}

fn runs() -> impl Strategy<Value = Vec<Vec<Run>>> {
    let run = (1u64..6, 1u64..5).prop_map(|(size, count)| Run { size, count });
    prop::collection::vec(prop::collection::vec(run, 1..4), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_sample_once_per_epoch(
        axes in runs(), fill in 1u64..80, shards in 1i64..6, stick: bool, after: bool, epoch in 0u64..4, seed in 0i64..9,
    ) {
        let blocks = Blocks::new(&axes);
        let n = blocks.samples();
        prop_assume!(n >= shards as u64 && n < 3000);
        let mut seen = vec![0; n as usize];
        for shard in 0..shards {
            let s = spec(shards, shard, fill).with(|s| { s.order.random_shuffle = !after || stick; s.order.shuffle_after_epoch = after && !stick; s.order.stick_to_shard = stick; s.order.seed = seed; });
            let mut order = Order::by_chunks(&s, blocks.clone()).unwrap();
            let samples = epoch_of(&mut order, epoch);
            samples.iter().for_each(|&i| seen[i as usize] += 1);
        }
        prop_assert!(seen.iter().all(|&c| c == 1), "{:?}", seen);
    }

    /// Any position can be entered at once, in any order.
    #[test]
    fn positions_are_independent(axes in runs(), fill in 1u64..80, ks in prop::collection::vec(0u64..9000, 20)) {
        let blocks = Blocks::new(&axes);
        prop_assume!(blocks.samples() >= 3);
        let s = spec(3, 1, fill);
        let mut order = Order::by_chunks(&s, blocks.clone()).unwrap();
        for k in ks {
            let mut fresh = Order::by_chunks(&s, blocks.clone()).unwrap();
            prop_assert_eq!(order.sample(k), fresh.sample(k));
        }
    }

    /// Between the first and the last sample of a block, there are at most about as many other samples as a window
    /// holds.
    #[test]
    fn blocks_stay_together(n in 500u64..3000, size in 2u64..40, fill in 1u64..400) {
        let blocks = Blocks::new(&[regular(n, size)]);
        let mut order = Order::by_chunks(&spec(1, 0, fill), blocks).unwrap();
        let samples = epoch_of(&mut order, 0);
        let mut ends = vec![(u64::MAX, 0); n.div_ceil(size) as usize];
        for (at, sample) in samples.iter().enumerate() {
            let end = &mut ends[(sample / size) as usize];
            *end = (end.0.min(at as u64), at as u64);
        }
        // A window has as many blocks as its share, rounded up, and perhaps the short one.
        let most = if fill >= n { n } else { fill + fill / 2 + 3 * size };
        prop_assert!(ends.iter().all(|&(first, last)| last - first <= most), "{:?}", ends);
    }
}

/// The order must be the same on every platform and in every later version.
#[test]
fn golden() {
    let blocks = || Blocks::new(&[regular(10, 4), regular(5, 2)]);
    let take = |spec: &Spec, blocks: Blocks, from: u64, n: u64| {
        let mut order = Order::by_chunks(spec, blocks).unwrap();
        (from..from + n).map(|k| order.sample(k).index).collect::<Vec<_>>()
    };
    let large = Blocks::new(&[regular(1_000_000_000_003, 24), regular(9, 3)]);
    let got = [
        take(&spec(1, 0, 8), blocks(), 0, 12),
        take(&spec(3, 1, 8).with(|s| s.order.stick_to_shard = true), blocks(), 20, 8),
        take(&spec(1, 0, 1024), large, 123_456_789_012, 6),
    ];
    assert_eq!(got, [&GOLDEN_SMALL[..], &GOLDEN_SHARD, &GOLDEN_LARGE]);
}
const GOLDEN_SMALL: [u64; 12] = [0, 10, 47, 6, 15, 48, 16, 5, 1, 11, 42, 43];
const GOLDEN_SHARD: [u64; 8] = [32, 27, 36, 31, 26, 22, 35, 25];
const GOLDEN_LARGE: [u64; 6] =
    [5_873_089_379_770, 8_736_502_700_087, 3_242_152_154_394, 4_043_695_739_655, 1_974_506_713_616, 7_486_771_678_868];

/// If samples share no chunk, or if the window is the whole epoch, the order is one permutation of all samples.
#[test]
fn without_blocks_it_is_one_permutation() {
    let plain = epoch_of(&mut Order::new(&spec(1, 0, 8), 200).unwrap(), 3);
    for (size, fill) in [(1, 8), (10, 200), (10, 1024)] {
        let blocks = Blocks::new(&[regular(200, size)]);
        assert_eq!(epoch_of(&mut Order::by_chunks(&spec(1, 0, fill), blocks).unwrap(), 3), plain);
    }
}

#[test]
fn sticking_to_a_shard_keeps_whole_blocks() {
    // 6 x 6 blocks of 4 x 4 samples; each of four shards has nine of them.
    let blocks = Blocks::new(&[regular(24, 4), regular(24, 4)]);
    for shard in 0..4 {
        let s = spec(4, shard, 32).with(|s| s.order.stick_to_shard = true);
        let mut order = Order::by_chunks(&s, blocks.clone()).unwrap();
        let mut held: Option<Vec<u64>> = None;
        for epoch in 0..3 {
            let mut samples = epoch_of(&mut order, epoch);
            samples.sort_unstable();
            let mut of: Vec<u64> = samples.iter().map(|s| s / 24 / 4 * 6 + s % 24 / 4).collect();
            of.sort_unstable();
            of.dedup();
            assert_eq!((samples.len(), of.len()), (144, 9));
            assert_eq!(held.get_or_insert_with(|| samples.clone()), &samples);
        }
    }
}

/// Over many epochs, a sample is equally likely at all positions, also one of the short block: chi-squared over the
/// fifths of an epoch, 5 sigma. Counts one sample of each block, since samples of one block come together.
#[test]
fn uniform_over_epochs() {
    const N: u64 = 402;
    const EPOCHS: u64 = 4000;
    let mut order = Order::by_chunks(&spec(1, 0, 40), Blocks::new(&[regular(N, 4)])).unwrap();
    let mut count = [[0u32; 5]; N.div_ceil(4) as usize];
    for k in 0..EPOCHS * N {
        let sample = order.sample(k).index;
        if sample.is_multiple_of(4) {
            count[(sample / 4) as usize][(k % N * 5 / N) as usize] += 1;
        }
    }
    assert_uniform(&count, N, EPOCHS);
}

/// Asserts that samples are equally likely at all positions (chi-squared, 5 sigma). For each sample, `count` has how
/// often it came in each fifth of the `n` positions, over `epochs` epochs.
pub(super) fn assert_uniform(count: &[[u32; 5]], n: u64, epochs: u64) {
    let places = |fifth: usize| (0..n).filter(|p| p * 5 / n == fifth as u64).count() as f64;
    let mut chi2 = 0.0;
    for row in count {
        for (fifth, &c) in row.iter().enumerate() {
            let expected = epochs as f64 * places(fifth) / n as f64;
            chi2 += (f64::from(c) - expected).powi(2) / expected;
        }
    }
    let freedom = count.len() as f64 * 4.0;
    assert!((chi2 - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(), "chi2 {chi2} at {freedom} degrees of freedom");
}

/// Tests what the documentation says. With `b` samples in a block, `f` in a window and `B` in a batch, a sample shares
/// its block with (B - 1) (b - 1) / (f - 1) other samples of its batch. Its position in the epoch says nothing about
/// its number.
#[test]
fn as_random_as_documented() {
    for (b, f, batch) in [(8u64, 1024u64, 16usize), (24, 1024, 32), (24, 4096, 32)] {
        let n = 300_000 / b * b;
        let mut order = Order::by_chunks(&spec(1, 0, f), Blocks::new(&[regular(n, b)])).unwrap();
        let samples = epoch_of(&mut order, 1);
        let pairs: usize = samples
            .chunks_exact(batch)
            .map(|batch| {
                batch
                    .iter()
                    .enumerate()
                    .map(|(i, s)| batch[..i].iter().filter(|t| *t / b == s / b).count())
                    .sum::<usize>()
            })
            .sum();
        let found = 2.0 * pairs as f64 / (samples.len() / batch * batch) as f64;
        let expected = (batch as f64 - 1.0) * (b as f64 - 1.0) / (f as f64 - 1.0);
        assert!((found / expected - 1.0).abs() < 0.05, "{found}, expected {expected}");

        // Position and number correlate no more than for n / b random blocks.
        let mean = (n as f64 - 1.0) / 2.0;
        let covariance: f64 = samples.iter().enumerate().map(|(at, &s)| (at as f64 - mean) * (s as f64 - mean)).sum();
        let correlation = covariance / (n as f64 * (n as f64 * n as f64 - 1.0) / 12.0);
        assert!(correlation.abs() < 5.0 / (n as f64 / b as f64).sqrt(), "{correlation}");

        // Neighbours are as far apart as random pairs, except for those of one window.
        let apart: f64 = samples.windows(2).map(|w| w[0].abs_diff(w[1]) as f64 / n as f64).sum::<f64>() / n as f64;
        assert!((apart - 1.0 / 3.0).abs() < 0.01, "{apart}");
    }
}

#[test]
fn windows_are_as_large_as_asked_for() {
    let order = Order::by_chunks(&spec(1, 0, 1024), Blocks::new(&[regular(100_000, 24)])).unwrap();
    let (samples, blocks) = order.window().unwrap();
    assert!((1000..1050).contains(&samples) && (42..45).contains(&blocks), "{samples} {blocks}");
    // A block larger than a window is a window of its own.
    let order = Order::by_chunks(&spec(1, 0, 10), Blocks::new(&[regular(100_000, 1000)])).unwrap();
    assert_eq!(order.window(), Some((1000, 1)));
    assert_eq!(Order::by_chunks(&spec(1, 0, 10), Blocks::single(100)).unwrap().window(), None);
    assert!(Order::new(&spec(1, 0, 0), 5).unwrap_err().message().contains("initial_fill"));
}
