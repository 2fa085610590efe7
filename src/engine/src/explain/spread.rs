//! How far the samples of a shuffled batch are spread over the data set: from how many blocks of samples that share chunks
//! they come, such as episodes that have a chunk each.

use serde_json::{Value, json};

use crate::order::Blocks;
use crate::spec::Spec;

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
    pub fn new(spec: &Spec, blocks: &Blocks, fill: u64, bytes: u128) -> Self {
        let (samples, batch) = (blocks.samples(), spec.batch_size as u64);
        let windows = if blocks.affect_order(fill) { blocks.windows(fill) } else { 1 };
        let different = |windows| expected(&blocks.sizes(), samples, windows, batch);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
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
/// blocks have this size. Each of `windows` windows has its part of them. A batch lies in one window, or has whole windows.
fn expected(sizes: &[(u64, u64)], samples: u64, windows: u64, batch: u64) -> f64 {
    let of_window = samples as f64 / windows as f64;
    let drawn = (batch as f64).min(of_window);
    let blocks: f64 =
        sizes.iter().map(|&(size, count)| count as f64 * (1.0 - chance_of_none(size, of_window, drawn))).sum();
    blocks / windows as f64 * (batch as f64 / drawn).min(windows as f64)
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
        let episodes = [(200, 100)];
        near(expected(&episodes, 20_000, 1, 64), 47.5);
        near(expected(&episodes, 20_000, 20, 64), 5.0);
        near(expected(&episodes, 20_000, 1, 1), 1.0);
        near(expected(&episodes, 20_000, 1, 20_000), 100.0);
        near(expected(&episodes, 20_000, 20, 2000), 10.0);
        near(expected(&[(1, 500)], 500, 1, 64), 64.0);
        // One of three samples of the large block, and one of two small ones, by counting.
        near(expected(&[(3, 1), (1, 2)], 5, 1, 2), 0.9 + 2.0 * 0.4);
    }

    #[test]
    fn many_factors_are_estimated() {
        near(chance_of_none(5000, 1e7, 4999.0), chance_of_none(5000, 1e7, 4000.0) * 0.607);
    }
}
