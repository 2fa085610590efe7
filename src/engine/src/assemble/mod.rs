//! Moves boxes of elements from decoded chunks into outputs: byte order, missing values, scale, normalisation, cast and
//! scatter in one pass. This is the CPU's half; the kernel in `src/kernels` is the GPU's, and both give the same bits.

mod cast;
mod cpu;

pub use cpu::run;

use dali_zarr_kernels::Op;

use crate::dtype::DType;
use crate::geometry::Norm;

/// What decoding by CF conventions does to an array's elements before anything else; see `dataset::Cf`.
#[derive(Clone, Debug, Default)]
pub struct Decoding {
    /// Bits of the values that mean "missing".
    pub missing: Vec<u64>,
    /// Multiplied by.
    pub scale: Option<f64>,
    /// Added after it.
    pub offset: Option<f64>,
    /// The type that results, to which each step is rounded; `None`: nothing is decoded.
    pub decoded: Option<DType>,
}

/// Whether an operation only moves elements, swapping their bytes perhaps.
pub const fn is_copy(op: &Op) -> bool {
    op.src_dtype == op.dst_dtype
        && op.num_missing == 0
        && op.has_scale == 0
        && op.has_offset == 0
        && op.has_norm == 0
        && op.src_dtype != DType::Bool as i32
}

/// The operation for elements of type `src` in native (`swap` false) or the other byte order.
pub fn op(src: DType, fill: u64, decoding: &Decoding, norm: &Norm, pad: f64, swap: bool) -> Op {
    let mut missing = [0; 2];
    for (to, from) in missing.iter_mut().zip(&decoding.missing) {
        *to = *from;
    }
    let (mean, stddev) = norm.mean_stddev.unwrap_or((0.0, 1.0));
    Op {
        src_dtype: src as i32,
        dst_dtype: norm.dtype as i32,
        swap: i32::from(swap),
        num_missing: decoding.missing.len().min(2) as i32,
        has_scale: i32::from(decoding.scale.is_some()),
        has_offset: i32::from(decoding.offset.is_some()),
        has_norm: i32::from(norm.mean_stddev.is_some()),
        decoded: decoding.decoded.map_or(0, |d| d as i32),
        missing,
        fill,
        scale: decoding.scale.unwrap_or(1.0),
        offset: decoding.offset.unwrap_or(0.0),
        mean,
        stddev,
        pad,
    }
}

#[cfg(test)]
mod tests;
