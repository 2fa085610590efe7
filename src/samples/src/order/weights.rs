//! Samples drawn by weights: the arguments `weights`, `num_samples` and `replacement`.
//!
//! With replacement, each position of an epoch draws a sample on its own: a random number is looked up among the sums
//! of the weights. Without replacement, samples run a race, and those that arrive first are the samples of the epoch. A
//! sample of weight `w` arrives after the time `E / w`, where `E` is exponentially distributed. So samples are drawn
//! one after the other in proportion to the weights that are left (Efraimidis and Spirakis, 2006), and the epoch's
//! samples are kept as a list. Draws depend only on the seed, the epoch and the position, are the same on every
//! platform, and must never change from one version to another.

use std::sync::Arc;

use super::numbers::Numbers;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::random::{GOLDEN, key, mix};
use dali_zarr_base::table::{Table, room};

/// Weights of all samples, and how many are drawn in an epoch.
#[derive(Clone, Debug)]
pub struct Weights {
    count: u64,
    draws: u64,
    kind: DrawTable,
    /// A hash of the weights, for checkpoints.
    digest: String,
}

#[derive(Clone, Debug)]
enum DrawTable {
    /// With replacement: for each sample the sum of the weights up to it.
    Sums(Arc<Vec<f64>>),
    /// Without replacement: the weights.
    Race(Arc<Table<f64>>),
}

impl Weights {
    /// Makes the weights of `samples` samples. An epoch draws `num_samples`, by default as many as there are. `limit`
    /// is the number of bytes that the user's limit on host memory leaves; `None`: no limit.
    ///
    /// # Errors
    /// If the table isn't one valid weight for each sample, if too few weights are positive, or if memory is lacking.
    pub fn new(
        table: Arc<Table<f64>>,
        samples: u64,
        num_samples: Option<u64>,
        replacement: bool,
        limit: Option<u64>,
    ) -> Result<Self> {
        let weights = table.values();
        if table.columns() != 1 || weights.len() as u64 != samples {
            let columns = if table.columns() == 1 { String::new() } else { format!(" in {} columns", table.columns()) };
            return Err(Error::value(format!(
                "weights: expected one for each of the {samples} samples, but found {}{columns}",
                weights.len()
            )));
        }
        if let Some(i) = weights.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
            return Err(Error::value(format!(
                "weights: expected finite numbers of at least 0, but that of sample {i} is {}",
                weights[i]
            )));
        }
        let positive = weights.iter().filter(|&&w| w > 0.0).count() as u64;
        if positive == 0 {
            return Err(Error::value(format!(
                "weights: expected a positive one, but all {samples} are 0, sample 0's too"
            )));
        }
        let draws = num_samples.unwrap_or(samples);
        if !replacement && draws > positive {
            return Err(Error::value(format!(
                "num_samples: {draws} samples are to be drawn without replacement, but only {positive} have a positive weight; \
                 use num_samples={positive} or less, or replacement=True"
            )));
        }
        let digest = table.digest().to_owned();
        let kind = if replacement { DrawTable::Sums(Arc::new(sums(weights, limit)?)) } else { DrawTable::Race(table) };
        Ok(Self { count: samples, draws, kind, digest })
    }

    /// Returns the number of samples in an epoch.
    pub fn draws(&self) -> u64 {
        self.draws
    }

    /// Returns a text that identifies the weights and how they are used, for checkpoints.
    pub fn described(&self) -> String {
        let how = if self.replacement() { "with" } else { "without" };
        format!("{} with hash {}, {how} replacement", self.count, self.digest)
    }

    /// Whether a sample may come several times in an epoch.
    pub fn replacement(&self) -> bool {
        matches!(self.kind, DrawTable::Sums(_))
    }

    /// Returns the bytes of memory that the weights or their sums take, and without replacement the list of an epoch
    /// while it is made.
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            DrawTable::Sums(sums) => 8 * sums.capacity() as u64,
            DrawTable::Race(table) => {
                let arrivals = size_of::<Arrival>() as u64 * self.count;
                table.bytes() + arrivals + Numbers::bytes_of(self.draws, self.count)
            }
        }
    }
}

/// Returns for each sample the sum of the weights up to its own. Weights are scaled by a power of two, so that sums
/// can't overflow. What rounding loses is added to the next sum (Kahan).
fn sums(weights: &[f64], limit: Option<u64>) -> Result<Vec<f64>> {
    let scale = power_below_one(weights.iter().copied().fold(0.0, f64::max));
    let mut sums = room(weights.len() as u64, limit)?;
    let (mut sum, mut lost) = (0.0f64, 0.0f64);
    for &weight in weights {
        // A weight of 0 must not add what others lost: its sample would be drawn.
        if weight > 0.0 {
            let more = weight * scale + lost;
            let next = (sum + more).max(sum);
            lost = more - (next - sum);
            sum = next;
        }
        sums.push(sum);
    }
    Ok(sums)
}

/// Returns the power of two that scales a positive number to between 1/2 and 1, or as close to that as an `f64` can be.
fn power_below_one(x: f64) -> f64 {
    let exponent = (x.to_bits() >> 52) as i64 - 1022;
    f64::from_bits(((1023 - exponent).clamp(1, 2046) as u64) << 52)
}

/// Makes a number from 0 to below 1 from 53 of the bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the natural logarithm of a positive number, exact to a few units of the last place. Uses only operations
/// that are rounded the same way everywhere. A system's `log` doesn't promise this.
fn ln(x: f64) -> f64 {
    // Scales subnormal numbers up first.
    let (x, less) = if x < f64::MIN_POSITIVE { (x * (1u64 << 54) as f64, 54) } else { (x, 0) };
    let bits = x.to_bits();
    let (mut exponent, mut m) = ((bits >> 52) as i64 - 1023 - less, f64::from_bits(bits << 12 >> 12 | 1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        (exponent, m) = (exponent + 1, m / 2.0);
    }
    // ln m = 2 atanh((m - 1) / (m + 1)), whose series converges fast: the square is at most 0.0295.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = (0..11).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * series
}

/// The logarithm of the time at which a sample arrives (the time itself could overflow), and the sample's number.
#[derive(Clone, Copy)]
struct Arrival(f64, u64);

impl Arrival {
    fn before(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

/// Finds the sample that a position of an epoch draws.
#[derive(Clone, Debug)]
pub(super) struct Draws {
    weights: Weights,
    /// Without replacement: the epoch and its samples.
    current: Option<(u64, Numbers)>,
}

/// Makes the keys of draws differ from those of permutations and crops.
const DRAWS: u64 = 3;

impl Draws {
    pub fn new(weights: Weights) -> Self {
        Self { weights, current: None }
    }

    /// Returns the sample at `position` in `epoch`.
    pub fn at(&mut self, seed: u64, epoch: u64, position: u64) -> u64 {
        match &self.weights.kind {
            DrawTable::Sums(sums) => {
                let drawn = unit(key(&[seed, epoch, DRAWS, position])) * sums[sums.len() - 1];
                sums.partition_point(|&sum| sum <= drawn) as u64
            }
            DrawTable::Race(table) => {
                if self.current.as_ref().is_none_or(|(of, _)| *of != epoch) {
                    // Frees the memory of the last epoch first.
                    self.current = None;
                    let key = key(&[seed, epoch, DRAWS]);
                    self.current = Some((epoch, race(table.values(), self.weights.draws, key)));
                }
                self.current.as_ref().map_or(0, |(_, samples)| samples.at(position as usize))
            }
        }
    }
}

/// Returns the `draws` samples that arrive first, in the order of their arrival.
fn race(weights: &[f64], draws: u64, key: u64) -> Numbers {
    let mut arrivals: Vec<Arrival> = Vec::with_capacity(weights.len());
    arrivals.extend(weights.iter().enumerate().filter(|&(_, &weight)| weight > 0.0).map(|(i, &weight)| {
        let bits = mix(key.wrapping_add(GOLDEN.wrapping_mul(i as u64 + 1)));
        // Above 0, and below 1: the sum for the largest of the 2^53 numbers is rounded to 1.
        let uniform = (unit(bits) + 0.5 / (1u64 << 53) as f64).min(1.0 - f64::EPSILON / 2.0);
        Arrival(ln(-ln(uniform)) - ln(weight), i as u64)
    }));
    let draws = draws as usize;
    if draws < arrivals.len() {
        arrivals.select_nth_unstable_by(draws, Arrival::before);
        arrivals.truncate(draws);
    }
    arrivals.sort_unstable_by(Arrival::before);
    Numbers::collect(draws, weights.len() as u64, arrivals.into_iter().map(|a| a.1))
}

#[cfg(test)]
mod tests;
