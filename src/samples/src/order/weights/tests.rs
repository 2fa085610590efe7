//! Tests of draws by weights: samples are as likely as their weights say, come once without replacement, and are the
//! same however a position is reached.

use super::super::{Order, SampleSharding, Segment};
use super::*;
use crate::spec::Spec;

fn table(weights: &[f64]) -> Arc<Table<f64>> {
    Arc::new(Table::new(weights.to_vec(), 1).unwrap())
}

fn weights(of: &[f64], draws: Option<u64>, replacement: bool) -> Result<Weights> {
    Weights::new(table(of), of.len() as u64, draws, replacement, None)
}

fn spec(shards: i64, shard: i64) -> Spec {
    Spec::default().with(|s| {
        s.order.num_shards = shards;
        s.order.shard_id = shard;
        s.order.seed = 9;
    })
}

fn order(of: &[f64], draws: Option<u64>, replacement: bool, shards: i64, shard: i64) -> Order {
    let weights = weights(of, draws, replacement).unwrap();
    Order::drawn(&spec(shards, shard), of.len() as u64, weights).unwrap()
}

/// Returns how many standard deviations the chi-squared of the counts lies above its mean, if counts should be in
/// proportion to `expected`.
fn deviation(counts: &[u64], expected: &[f64]) -> f64 {
    let (n, sum) = (counts.iter().sum::<u64>() as f64, expected.iter().sum::<f64>());
    let cells = counts.iter().zip(expected).filter(|(_, e)| **e > 0.0);
    let chi2: f64 = cells.map(|(&c, e)| (c as f64 - n * e / sum).powi(2) / (n * e / sum)).sum();
    let freedom = (expected.iter().filter(|e| **e > 0.0).count() - 1) as f64;
    (chi2 - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn samples_are_drawn_in_proportion_to_their_weights() {
    // Weights of very different sizes: the sums must keep the smallest beside the largest.
    for (of, scale) in [(vec![1.0, 0.0, 2.0, 3.5, 0.0, 0.25, 1e-3, 7.0], 1.0), (vec![0.0, 5.0, 1.0, 0.0], 1e305)] {
        let scaled: Vec<f64> = of.iter().map(|w| w * scale).collect();
        let mut order = order(&scaled, Some(100_000), true, 1, 0);
        let mut counts = vec![0; of.len()];
        (0..400_000).for_each(|k| counts[order.sample(k).index as usize] += 1);
        assert!(of.iter().zip(&counts).all(|(&w, &c)| (w > 0.0) == (c > 0)), "{counts:?}");
        assert!(deviation(&counts, &of).abs() < 5.0, "{counts:?}");
    }
    // Weights that are subnormal numbers.
    let mut order = order(&[f64::MIN_POSITIVE / 8.0, 0.0, f64::MIN_POSITIVE / 4.0], Some(1000), true, 1, 0);
    let mut counts = [0; 3];
    (0..30_000).for_each(|k| counts[order.sample(k).index as usize] += 1);
    assert!(deviation(&counts, &[1.0, 0.0, 2.0]).abs() < 5.0, "{counts:?}");
}

#[test]
fn neighbouring_positions_and_epochs_are_independent() {
    const N: usize = 6;
    let mut order = order(&[1.0; N], Some(1000), true, 1, 0);
    let (mut pairs, mut epochs) = (vec![0u64; N * N], vec![0u64; N * N]);
    for k in 0..99_000 {
        let (now, next, later) = (order.sample(k).index, order.sample(k + 1).index, order.sample(k + 1000).index);
        pairs[now as usize * N + next as usize] += 1;
        epochs[now as usize * N + later as usize] += 1;
    }
    for counts in [pairs, epochs] {
        assert!(deviation(&counts, &[1.0; N * N]).abs() < 5.0, "{counts:?}");
    }
}

/// The first draw is in proportion to the weights, and each later one in proportion to the weights that are left.
/// Counts all sequences of three of four samples.
#[test]
fn without_replacement_draws_are_those_of_a_sequence() {
    const EPOCHS: u64 = 60_000;
    let of = [1.0, 2.0, 4.0, 0.5];
    let mut order = order(&of, Some(3), false, 1, 0);
    let mut counts = vec![0u64; 64];
    for epoch in 0..EPOCHS {
        let drawn: Vec<usize> = (0..3).map(|i| order.sample(epoch * 3 + i).index as usize).collect();
        counts[drawn[0] * 16 + drawn[1] * 4 + drawn[2]] += 1;
    }
    let mut expected = vec![0.0; 64];
    for a in 0..4 {
        for b in (0..4).filter(|&b| b != a) {
            for c in (0..4).filter(|&c| c != a && c != b) {
                let sum: f64 = of.iter().sum();
                expected[a * 16 + b * 4 + c] = of[a] / sum * of[b] / (sum - of[a]) * of[c] / (sum - of[a] - of[b]);
            }
        }
    }
    assert!(counts.iter().zip(&expected).all(|(&c, &e)| (c > 0) == (e > 0.0)));
    assert!(deviation(&counts, &expected).abs() < 5.0, "{counts:?}");
}

#[test]
fn without_replacement_each_sample_comes_once() {
    let of: Vec<f64> = (0..300).map(|i| f64::from(i % 7) * 1e-300).collect();
    let positive = of.iter().filter(|&&w| w > 0.0).count();
    for draws in [1, 100, positive] {
        let mut order = order(&of, Some(draws as u64), false, 1, 0);
        for epoch in 0..3 {
            let first = epoch * draws as u64;
            let mut drawn: Vec<u64> = (first..first + draws as u64).map(|k| order.sample(k).index).collect();
            assert!(drawn.iter().all(|&i| of[i as usize] > 0.0));
            drawn.sort_unstable();
            drawn.dedup();
            assert_eq!(drawn.len(), draws);
        }
    }
}

#[test]
fn shards_divide_one_order_and_positions_are_independent() {
    let of: Vec<f64> = (0..57).map(|i| f64::from(i % 5)).collect();
    for replacement in [true, false] {
        let mut whole = order(&of, Some(40), replacement, 1, 0);
        let all: Vec<u64> = (0..40).map(|k| whole.sample(k).index).collect();
        assert_eq!(whole.samples(), 40);
        let mut joined = Vec::new();
        for shard in 0..3 {
            let mut order = order(&of, Some(40), replacement, 3, shard);
            let mine = order.epoch_samples();
            // Reads backwards, after a sample of a later epoch.
            let _ = order.sample(500);
            let mut drawn: Vec<u64> = (0..mine).rev().map(|k| order.sample(k).index).collect();
            drawn.reverse();
            joined.extend(drawn);
        }
        assert_eq!(joined, all);
    }
}

/// The rest of an epoch that two shards left is divided among three.
#[test]
fn an_epoch_goes_on_with_other_shards() {
    let of: Vec<f64> = (0..57).map(|i| f64::from(1 + i % 5)).collect();
    for replacement in [true, false] {
        let mut whole = order(&of, Some(48), replacement, 1, 0);
        let mut expected: Vec<u64> = (0..48).map(|k| whole.sample(k).index).collect();
        let mut found = Vec::new();
        for shard in 0..2 {
            let mut order = order(&of, Some(48), replacement, 2, shard);
            found.extend((0..9).map(|k| order.sample(k).index));
        }
        let sharding = SampleSharding { num_shards: 2, batch_size: 1, pad_last_batch: false, stick_to_shard: false };
        let segment = Segment { sharding, epoch: 0, rest: 0, delivered: 9 };
        for shard in 0..3 {
            let (mut order, delivered) = order(&of, Some(48), replacement, 3, shard).resume(&[segment]).unwrap();
            assert_eq!(delivered, 0);
            found.extend((0..10).map(|k| order.sample(k).index));
        }
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}

/// Draws must be the same on every platform and in every later version.
#[test]
fn golden() {
    let of: Vec<f64> = (0..20).map(|i| f64::from(i * i % 11) + 0.1).collect();
    let take = |replacement| {
        let mut order = order(&of, Some(8), replacement, 1, 0);
        (4..14).map(|k| order.sample(k).index).collect::<Vec<_>>()
    };
    assert_eq!([take(true), take(false)], GOLDEN_DRAWS);
}
const GOLDEN_DRAWS: [[u64; 10]; 2] = [[19, 8, 14, 18, 18, 15, 7, 3, 15, 16], [9, 8, 4, 13, 5, 14, 16, 2, 3, 15]];

#[test]
fn logarithms_are_near_the_systems() {
    let mut x = 1e-320;
    while x < 1e308 {
        assert!((ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0), "ln {x}: {} {}", ln(x), x.ln());
        x *= 1.37;
    }
    for x in [1.0, 0.5, 2.0, 1.0 - f64::EPSILON, 1.0 + f64::EPSILON, std::f64::consts::SQRT_2, f64::MAX] {
        assert!((ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs(), "ln {x}");
    }
}

#[test]
fn what_are_no_weights_is_said() {
    let wrong = |of: &[f64], draws, replacement, part: &str| {
        let e = weights(of, draws, replacement).unwrap_err();
        assert!(e.message().contains(part), "{e} lacks {part:?}");
    };
    wrong(&[1.0, 2.0, -0.5, -1.0], None, true, "that of sample 2 is -0.5");
    wrong(&[1.0, f64::NAN], None, true, "sample 1 is NaN");
    wrong(&[f64::INFINITY], None, true, "sample 0 is inf");
    wrong(&[0.0, 0.0], None, true, "all 2 are 0");
    wrong(&[0.0, 1.0, 2.0], None, false, "only 2 have a positive weight; use num_samples=2");
    wrong(&[0.0, 1.0, 2.0], Some(3), false, "3 samples are to be drawn");
    let e = Weights::new(table(&[1.0; 4]), 5, None, true, None).unwrap_err();
    assert!(e.message().contains("each of the 5 samples, but found 4"), "{e}");
    let two = Arc::new(Table::new(vec![1.0; 4], 2).unwrap());
    assert!(Weights::new(two, 4, None, true, None).unwrap_err().message().contains("in 2 columns"));
    for change in [|s: &mut Spec| s.order.random_shuffle = true, |s: &mut Spec| s.order.shuffle_after_epoch = true] {
        let e = Order::drawn(&spec(1, 0).with(change), 1, weights(&[1.0], None, true).unwrap()).unwrap_err();
        assert!(e.message().contains("contradict"), "{e}");
    }
    assert!(weights(&[-0.0, 1.0], None, true).is_ok());
}
