//! Assembly: moves boxes of elements from decoded chunks into outputs, with byte order, missing values, scale, replaced NaNs,
//! normalisation and cast in one pass. This module does it on the CPU, the kernel in `src/kernels` on the GPU. Both
//! give the same bits.

mod cast;
mod cpu;

pub use cpu::run;

use std::ops::Deref;
use std::sync::Arc;

use dali_zarr_kernels::{MAX_INLINE, Op};

use crate::dtype::DType;
use crate::geometry::Norm;

/// What decoding by CF conventions does to an array's elements before anything else; see `dataset::Cf`.
#[derive(Clone, Debug, Default)]
pub struct Decoding {
    /// Bits of the values that mean "missing".
    pub missing: Vec<u64>,
    /// Multiplied by.
    pub scale: Option<f64>,
    /// Multiplied by as int64, without any of the others.
    pub int_scale: Option<i64>,
    /// Added after it.
    pub offset: Option<f64>,
    /// The type that results, to which each step is rounded; `None`: nothing is decoded.
    pub decoded: Option<DType>,
}

/// The operations that jobs name by their numbers.
#[derive(Clone, Debug)]
pub struct Ops {
    all: Vec<Op>,
    /// The missing values of operations that have more than fit them, to which these have addresses.
    missing: Arc<[f64]>,
}

impl Ops {
    /// The operations, each with its missing values in ascending order if it has more than fit it.
    pub fn new(list: impl IntoIterator<Item = (Op, Vec<f64>)>) -> Self {
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        for (mut op, values) in list {
            if values.len() > MAX_INLINE {
                op.missing = [missing.len() as u64 * 8, 0];
                missing.extend(values);
            }
            all.push(op);
        }
        let all = Self { all, missing: missing.into() };
        let ops = all.moved(0, all.missing.as_ptr() as u64);
        Self { all: ops, ..all }
    }

    /// The missing values of operations that have more than fit them.
    pub fn missing(&self) -> &[f64] {
        &self.missing
    }

    /// The same operations for missing values that lie at the address `to` instead of here.
    pub fn at(&self, to: u64) -> Vec<Op> {
        self.moved(self.missing.as_ptr() as u64, to)
    }

    /// Whether any of them replaces NaNs.
    pub fn fill(&self) -> bool {
        self.all.iter().any(|op| op.has_fillna != 0)
    }

    fn moved(&self, from: u64, to: u64) -> Vec<Op> {
        let moved = |op: &Op| match op.num_missing as usize {
            ..=MAX_INLINE => *op,
            _ => Op { missing: [op.missing[0] - from + to, 0], ..*op },
        };
        self.all.iter().map(moved).collect()
    }
}

impl Deref for Ops {
    type Target = [Op];

    fn deref(&self) -> &[Op] {
        &self.all
    }
}

/// Whether an operation only moves elements, swapping their bytes perhaps.
pub const fn is_copy(op: &Op) -> bool {
    op.src_dtype == op.dst_dtype
        && op.num_missing == 0
        && op.has_scale == 0
        && op.has_offset == 0
        && op.has_norm == 0
        && op.has_fillna == 0
        && op.src_dtype != DType::Bool as i32
}

/// The operation for elements of type `src` in native (`swap` false) or the other byte order, and its missing values if they
/// are more than fit it, for [`Ops::new`].
pub fn op(src: DType, fill: u64, decoding: &Decoding, norm: &Norm, swap: bool) -> (Op, Vec<f64>) {
    let mut missing = [0; MAX_INLINE];
    let mut listed = Vec::new();
    if decoding.missing.len() > MAX_INLINE {
        listed.extend(decoding.missing.iter().map(|&bits| cast::value(bits, src)));
        listed.sort_by(f64::total_cmp);
    } else {
        missing[..decoding.missing.len()].copy_from_slice(&decoding.missing);
    }
    let (mean, stddev) = norm.mean_stddev.unwrap_or((0.0, 1.0));
    let scale = match decoding.int_scale {
        Some(factor) => Some(f64::from_bits(factor as u64)),
        None => decoding.scale,
    };
    let op = Op {
        src_dtype: src as i32,
        dst_dtype: norm.dtype as i32,
        swap: i32::from(swap),
        num_missing: decoding.missing.len() as i32,
        has_scale: i32::from(scale.is_some()),
        has_offset: i32::from(decoding.offset.is_some()),
        has_norm: i32::from(norm.mean_stddev.is_some()),
        decoded: decoding.decoded.map_or(0, |d| d as i32),
        missing,
        fill,
        scale: scale.unwrap_or(1.0),
        offset: decoding.offset.unwrap_or(0.0),
        mean,
        stddev,
        pad: norm.fill,
        fillna: norm.fillna.unwrap_or(0.0),
        has_fillna: i32::from(norm.fillna.is_some()),
        counter: norm.array as i32,
    };
    (op, listed)
}

#[cfg(test)]
mod tests;
