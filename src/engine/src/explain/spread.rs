//! How far the samples of a shuffled batch are spread over the data set: from how many blocks of samples that share chunks
//! they come, such as episodes that have a chunk each.

use serde_json::{Value, json};

use dali_zarr_samples::order::Blocks;
use dali_zarr_samples::spec::Spec;

/// Numbers about shuffling, which hold whether or not the reader shuffles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    /// Samples of a shuffle window; at most those of the epoch.
    pub fill: u64,
    /// Whether all samples are shuffled together, or share no chunks.
    pub is_uniform: bool,
    /// The number of different blocks from which the samples of a batch come, on average.
    pub blocks: f64,
    /// The same, if all samples are shuffled together.
    pub uniform: f64,
    /// Bytes of all decoded chunks of an epoch.
    pub bytes: u64,
}

impl Spread {
    /// `bytes` are those of all decoded chunks of an epoch, over all shards.
    pub fn new(spec: &Spec, blocks: &Blocks, fill: u64, bytes: u128) -> Self {
        let (of_all, batch) = (blocks.samples(), spec.batch_size as u64);
        // A shard that keeps its samples shuffles them alone. Other shards divide windows of all samples.
        let shards = if spec.order.stick_to_shard { spec.order.num_shards.max(1) as u64 } else { 1 };
        let samples = of_all.div_ceil(shards);
        // Samples that are drawn by weights may be any of the epoch.
        let is_cut = spec.order.weights.is_none() && fill < samples && blocks.affect_order(fill);
        let windows = if is_cut { blocks.windows(fill).div_ceil(shards) } else { 1 };
        let sizes: Vec<_> = blocks.sizes().into_iter().map(|(size, n)| (size, n as f64 / shards as f64)).collect();
        let different = |windows| expected(&sizes, samples, windows, batch);
        let bytes = u64::try_from(bytes / u128::from(shards)).unwrap_or(u64::MAX);
        Self {
            fill: fill.min(samples),
            is_uniform: windows == 1,
            blocks: different(windows),
            uniform: different(1),
            bytes,
        }
    }

    /// Returns the object `shuffle` of the explanation.
    pub fn to_json(self) -> Value {
        let Self { fill, is_uniform, blocks, uniform, bytes } = self;
        let rounded = |x: f64| (x * 10.0).round() / 10.0;
        json!({
            "initial_fill": fill,
            "is_uniform": is_uniform,
            "blocks_of_batch": rounded(blocks),
            "blocks_of_batch_if_uniform": rounded(uniform),
            "chunk_bytes_if_uniform": bytes,
        })
    }
}

/// Returns the expected number of different blocks in a batch. `sizes` has the number of samples of each block, and how many
/// blocks have this size. Each of `windows` windows has its part of them. The first batches of the epoch are looked at.
fn expected(sizes: &[(u64, f64)], samples: u64, windows: u64, batch: u64) -> f64 {
    const BATCHES: u32 = 64;
    let of_window = samples as f64 / windows as f64;
    let batch = (batch as f64).min(samples as f64);
    let of_part = |drawn: f64| {
        let blocks = sizes.iter().map(|&(size, count)| count * (1.0 - chance_of_none(size, of_window, drawn)));
        blocks.sum::<f64>() / windows as f64
    };
    if windows == 1 {
        return of_part(batch);
    }
    let of_whole = of_part(of_window);
    let beginning_at = |place: f64| {
        let first = batch.min(of_window - place);
        let whole = ((batch - first) / of_window).floor();
        of_part(first) + whole * of_whole + of_part(batch - first - whole * of_window)
    };
    let batches = (samples as f64 / batch).min(f64::from(BATCHES)) as u32;
    (0..batches).map(|k| beginning_at(f64::from(k) * batch % of_window)).sum::<f64>() / f64::from(batches.max(1))
}

/// Returns the probability that none of the `size` samples of a block are among `drawn` of `all` samples.
fn chance_of_none(size: u64, all: f64, drawn: f64) -> f64 {
    // Of both numbers the smaller one is the number of factors.
    const MOST: u64 = 4096;
    let (few, many) = if (size as f64) < drawn { (size, drawn) } else { (drawn.round() as u64, size as f64) };
    if few > MOST {
        return (-(few as f64 * many / all)).exp();
    }
    (0..few).map(|i| ((all - many - i as f64) / (all - i as f64)).max(0.0)).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 0.05, "expected {expected}, but found {found}");
    }

    #[test]
    fn different_blocks_are_counted() {
        // A hundred episodes of 200 steps, in batches of 64.
        let episodes = [(200, 100.0)];
        near(expected(&episodes, 20_000, 1, 64), 47.5);
        // One batch in sixteen lies in two windows.
        near(expected(&episodes, 20_000, 20, 64), 5.0 + 64.0 / 1000.0 * 4.7);
        near(expected(&episodes, 20_000, 1, 1), 1.0);
        near(expected(&episodes, 20_000, 20, 1), 1.0);
        near(expected(&episodes, 20_000, 1, 20_000), 100.0);
        // Two windows; or parts of two, or of three.
        near(expected(&episodes, 20_000, 20, 2000), 10.0);
        near(expected(&episodes, 20_000, 20, 1500), (5.0 + 5.0 + 5.0 + 5.0) / 2.0);
        near(expected(&[(1, 500.0)], 500, 1, 64), 64.0);
        // One of three samples of the large block, and one of two small ones, by counting.
        near(expected(&[(3, 1.0), (1, 2.0)], 5, 1, 2), 0.9 + 2.0 * 0.4);
    }

    #[test]
    fn shards_and_weights_change_what_is_shuffled_together() {
        let blocks = Blocks::new(&[vec![dali_zarr_samples::order::Run { size: 1000, count: 20 }]]);
        let spec = |shards: i64| {
            Spec::default().with(|s| {
                s.batch_size = 64;
                s.order.num_shards = shards;
                s.order.stick_to_shard = true;
            })
        };
        let of = |shards, fill| Spread::new(&spec(shards), &blocks, fill, 20_000);
        near(of(10, 20_000).blocks, 2.0);
        assert_eq!((of(10, 20_000).bytes, of(10, 20_000).fill, of(10, 2000).is_uniform), (2000, 2000, true));
        near(of(1, 20_000).blocks, 20.0 * (1.0 - 0.95f64.powi(64)));
        assert!(!of(2, 5000).is_uniform && of(2, 5000).blocks < 6.0);
        let weighted = spec(1).with(|s| s.order.weights = Some("weights".into()));
        assert!(Spread::new(&weighted, &blocks, 1000, 0).is_uniform);
    }

    #[test]
    fn many_factors_are_estimated() {
        near(chance_of_none(5000, 1e7, 4999.0), chance_of_none(5000, 1e7, 4000.0) * 0.607);
    }
}
