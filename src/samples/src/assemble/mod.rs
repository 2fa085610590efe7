//! Assembly: moves boxes of elements from decoded chunks into outputs, and applies byte order, missing values, scale,
//! replacement of NaNs, normalisation and cast in one pass. This module does it on the CPU, the kernels in
//! `src/kernels` do it on the GPU. Both give the same bits.

mod between;
mod cast;
mod channels;
mod cpu;
mod rows;
mod steps;
mod transposed;
mod walk;

pub use channels::run;

use std::ops::Deref;
use std::sync::Arc;

use dali_zarr_kernels::{Job, MAX_INLINE, NORM_TABLE, Op, Shuffle, Source};

use crate::geometry::Norm;
use dali_zarr_base::dtype::DType;

/// Decoding by CF conventions, which is applied to an array's elements before anything else; see `dataset::Cf`.
#[derive(Clone, Debug, Default)]
pub struct Decoding {
    /// Bits of the values that mean "missing".
    pub missing: Vec<u64>,
    /// Factor.
    pub scale: Option<f64>,
    /// Factor in int64, modulo 2^64. With it, there are no missing values, no `scale` and no `offset`.
    pub int_scale: Option<i64>,
    /// Summand, added after scaling.
    pub offset: Option<f64>,
    /// The resulting type, to which each step is rounded; `None`: nothing is decoded.
    pub decoded: Option<DType>,
}

/// The operations of a reader. A job names one by its index.
#[derive(Clone, Debug)]
pub struct Ops {
    all: Vec<Op>,
    /// Values that don't fit in the operations, which hold their addresses: long lists of missing values, and tables of
    /// channels (mean and stddev of each channel).
    numbers: Arc<[f64]>,
    /// Number of operations for chunks that can be decoded. Behind them are as many for bad chunks, if there are any.
    plain: usize,
}

impl Ops {
    /// Takes operations. If an operation has more than [`MAX_INLINE`] missing values, they come with it, in ascending
    /// order.
    pub fn new(list: impl IntoIterator<Item = (Op, Vec<f64>)>) -> Self {
        Self::with_tables(list.into_iter().map(|(op, missing)| (op, missing, Vec::new())))
    }

    /// As [`Self::new`]. With each operation comes its table, the mean and stddev of each channel; none if it is empty.
    pub fn with_tables(list: impl IntoIterator<Item = (Op, Vec<f64>, Vec<(f64, f64)>)>) -> Self {
        let (mut all, mut numbers) = (Vec::new(), Vec::new());
        for (mut op, missing, table) in list {
            if missing.len() > MAX_INLINE {
                op.missing = [numbers.len() as u64 * 8, 0];
                numbers.extend(missing);
            }
            if !table.is_empty() {
                (op.has_norm, op.mean) = (NORM_TABLE, f64::from_bits(numbers.len() as u64 * 8));
                numbers.extend(table.into_iter().flat_map(|(mean, stddev)| [mean, stddev]));
            }
            all.push(op);
        }
        let plain = all.len();
        let all = Self { all, numbers: numbers.into(), plain };
        let ops = all.moved(0, all.numbers.as_ptr() as u64);
        Self { all: ops, ..all }
    }

    /// Adds an operation for bad chunks for each operation: that of operation `i` is operation `i +`[`Self::bad_from`]. Jobs with
    /// [`Source::Fill`] have it.
    #[must_use]
    pub fn with_bad(mut self) -> Self {
        let bad: Vec<Op> = self.all[..self.plain].iter().map(of_bad_chunk).collect();
        self.all.truncate(self.plain);
        self.all.extend(bad);
        self
    }

    /// Returns the number of the first operation for bad chunks, if there are any.
    pub fn bad_from(&self) -> u32 {
        self.plain as u32
    }

    /// The values that don't fit in the operations, to be copied to a device.
    pub fn numbers(&self) -> &[f64] {
        &self.numbers
    }

    /// Returns the operations for a copy of [`Self::numbers()`] at the address `to`.
    pub fn at(&self, to: u64) -> Vec<Op> {
        self.moved(self.numbers.as_ptr() as u64, to)
    }

    /// Whether any operation replaces NaNs.
    pub fn fill(&self) -> bool {
        self.all.iter().any(|op| op.has_fillna != 0)
    }

    /// Whether a job's operation has a table of channels.
    pub fn is_by_channel(&self, job: &Job) -> bool {
        self.all[job.op as usize].has_norm == NORM_TABLE
    }

    /// Returns the operations with their addresses moved by the distance between `from` and `to`.
    fn moved(&self, from: u64, to: u64) -> Vec<Op> {
        let moved = |op: &Op| {
            let mut op = *op;
            if op.num_missing as usize > MAX_INLINE {
                op.missing = [op.missing[0] - from + to, 0];
            }
            if op.has_norm == NORM_TABLE {
                op.mean = f64::from_bits(op.mean.to_bits() - from + to);
            }
            op
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

/// Returns the operation that writes the elements of a bad chunk, whose fill value stands for each of them: NaN, which goes
/// through all that follows decoding. An output without NaN has the fill value of a missing chunk.
fn of_bad_chunk(op: &Op) -> Op {
    if !DType::ALL[op.dst_dtype as usize].is_float() {
        return *op;
    }
    // The type of the stored elements may have no NaN.
    let decoded = DType::F64 as i32;
    Op {
        src_dtype: decoded,
        decoded,
        swap: 0,
        num_missing: 0,
        missing: [0; MAX_INLINE],
        has_scale: 0,
        has_offset: 0,
        fill: f64::NAN.to_bits(),
        ..*op
    }
}

/// Whether an operation only copies elements. It may swap their bytes. Bool is never copied: values other than 0 and 1
/// become 1.
pub const fn is_copy(op: &Op) -> bool {
    op.src_dtype == op.dst_dtype
        && op.num_missing == 0
        && op.has_scale == 0
        && op.has_offset == 0
        && op.has_norm == 0
        && op.has_fillna == 0
        && op.src_dtype != DType::Bool as i32
}

/// Returns how many bytes a job copies, if it only copies contiguous bytes of a chunk unchanged. Otherwise returns
/// `None`. A shuffled chunk has its bytes in another order, so they can't be copied unchanged.
pub fn copied_bytes(job: &Job, op: &Op) -> Option<usize> {
    let contiguous = job.ndim == 1 && job.src_stride[0] == 1 && job.dst_stride[0] == 1;
    let of_chunk = job.source == Source::Chunk as u32 && job.layout.shuffle == Shuffle::None as u8;
    (contiguous && of_chunk && is_copy(op) && op.swap == 0)
        .then(|| job.extent[0] as usize * DType::ALL[op.dst_dtype as usize].size())
}

/// Makes the operation for elements of type `src`, in native byte order or, with `swap`, in the other one. Also returns
/// its missing values if there are more than [`MAX_INLINE`], for [`Ops::new`].
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
#[cfg(test)]
mod tests_between;
#[cfg(test)]
mod tests_channels;
#[cfg(test)]
mod tests_transposed;
