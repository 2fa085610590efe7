//! The steps of an operation, from a tile of stored elements to one of the output.
//!
//! Only a cast has a loop for each pair of types. All else is computed in float64: one loop for each type reads a tile,
//! loops without types compute, and one for each type stores. Loops for each pair were half of the engine's machine
//! code, and those with many steps weren't vectorised.
//!
//! `unsafe` is allowed here: tiles are addresses, and buffers that their readers have filled.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use dali_zarr_kernels::{MAX_INLINE, Op};

use super::cast::{Element, convert, value, with_type};
use dali_zarr_base::dtype::{DType, half_from_f64};

/// Most elements of a tile.
pub(super) const TILE: usize = 256;

/// Goes over the elements of a tile. Takes the address of the source, that of the destination, and the number of
/// elements, which are contiguous and in native byte order.
type Pass = fn(&Op, *const u8, *mut u8, usize);

/// What an operation does with the elements of a tile.
pub(super) struct Steps<'a> {
    op: &'a Op,
    how: How,
    /// Missing values, compared as float64, as in xarray: 64-bit integers beyond 2^53 equal their neighbours.
    few: [f64; MAX_INLINE],
    /// Missing values that don't fit in the operation, in ascending order.
    many: &'a [f64],
    buffer: MaybeUninit<[f64; TILE]>,
}

enum How {
    /// One pass: a cast, or normalisation of what is stored to float32.
    Once(Pass),
    /// A pass that multiplies in int64, and one that casts the products.
    Integers(Pass, Pass),
    /// A pass to float64, steps there, and a pass that casts the results.
    Numbers(Pass, Pass),
}

impl<'a> Steps<'a> {
    pub(super) fn new(op: &'a Op) -> Self {
        let [src, dst] = [op.src_dtype, op.dst_dtype].map(|dtype| DType::ALL[dtype as usize]);
        let is_stored = op.num_missing == 0 && op.has_scale == 0 && op.has_offset == 0 && op.has_fillna == 0;
        let how = if is_stored && op.has_norm == 0 {
            How::Once(with_type!(src, S => with_type!(dst, D => cast::<S, D>)))
        } else if is_stored && dst == DType::F32 {
            How::Once(with_type!(src, S => normalise::<S, f32>))
        } else if op.has_scale != 0 && op.decoded == DType::I64 as i32 {
            How::Integers(with_type!(src, S => multiply::<S>), with_type!(dst, D => store_products::<D>))
        } else {
            How::Numbers(with_type!(src, S => cast::<S, f64>), with_type!(dst, D => store_numbers::<D>))
        };
        let many: &[f64] = match op.num_missing as usize {
            ..=MAX_INLINE => &[],
            // SAFETY: the operation holds the address of `n` values, which live as long as it does: the caller of
            // `run_plain` promises it.
            n => unsafe { std::slice::from_raw_parts(op.missing[0] as *const f64, n) },
        };
        Self { op, how, few: op.missing.map(|bits| value(bits, src)), many, buffer: MaybeUninit::uninit() }
    }

    /// Applies the operation to `count` elements, at most [`TILE`], that are contiguous and in native byte order.
    /// Returns how many NaNs were replaced.
    #[inline(always)]
    pub(super) fn run(&mut self, src: *const u8, dst: *mut u8, count: usize) -> u64 {
        let buffer = self.buffer.as_mut_ptr().cast::<f64>();
        match self.how {
            How::Once(pass) => {
                pass(self.op, src, dst, count);
                0
            }
            How::Integers(multiplied, stored) => {
                multiplied(self.op, src, buffer.cast(), count);
                stored(self.op, buffer.cast(), dst, count);
                0
            }
            How::Numbers(read, stored) => {
                read(self.op, src, buffer.cast(), count);
                // SAFETY: `read` has written them, as float64.
                let numbers = unsafe { std::slice::from_raw_parts_mut(buffer, count) };
                self.decode(numbers);
                stored(self.op, buffer.cast(), dst, count);
                if self.op.has_fillna == 0 { 0 } else { numbers.iter().map(|x| u64::from(x.is_nan())).sum() }
            }
        }
    }

    /// Decodes by CF conventions.
    fn decode(&self, numbers: &mut [f64]) {
        let op = self.op;
        if !self.many.is_empty() {
            numbers.iter_mut().filter(|x| is_listed(**x, self.many)).for_each(|x| *x = f64::NAN);
        } else {
            for &missing in &self.few[..op.num_missing as usize] {
                numbers.iter_mut().for_each(|x| *x = if *x == missing { f64::NAN } else { *x });
            }
        }
        if op.has_scale != 0 {
            numbers.iter_mut().for_each(|x| *x *= op.scale);
            round(numbers, op.decoded);
        }
        if op.has_offset != 0 {
            numbers.iter_mut().for_each(|x| *x += op.offset);
            round(numbers, op.decoded);
        }
    }
}

#[inline(always)]
fn each<S: Element, D: Element>(src: *const u8, dst: *mut u8, count: usize, f: impl Fn(S) -> D) {
    for i in 0..count {
        f(S::load(src.wrapping_add(i * S::SIZE))).store(dst.wrapping_add(i * D::SIZE));
    }
}

fn cast<S: Element, D: Element>(_: &Op, src: *const u8, dst: *mut u8, count: usize) {
    each(src, dst, count, convert::<S, D>);
}

fn normalise<S: Element, D: Element>(op: &Op, src: *const u8, dst: *mut u8, count: usize) {
    let (mean, stddev) = (op.mean, op.stddev);
    each(src, dst, count, |v: S| D::from_f64((v.to_f64() - mean) / stddev));
}

fn multiply<S: Element>(op: &Op, src: *const u8, dst: *mut u8, count: usize) {
    let factor = op.scale.to_bits() as i64;
    each(src, dst, count, |v: S| v.to_i64().wrapping_mul(factor));
}

fn store_products<D: Element>(op: &Op, src: *const u8, dst: *mut u8, count: usize) {
    if op.has_norm != 0 {
        return normalise::<i64, D>(op, src, dst, count);
    }
    cast::<i64, D>(op, src, dst, count);
}

/// Replaces NaNs, normalises and casts.
fn store_numbers<D: Element>(op: &Op, src: *const u8, dst: *mut u8, count: usize) {
    let (fillna, mean, stddev) = (op.fillna, op.mean, op.stddev);
    let filled = |x: f64| if x.is_nan() { fillna } else { x };
    match (op.has_fillna != 0, op.has_norm != 0) {
        (false, false) => cast::<f64, D>(op, src, dst, count),
        (false, true) => normalise::<f64, D>(op, src, dst, count),
        (true, false) => each(src, dst, count, |x| D::from_f64(filled(x))),
        (true, true) => each(src, dst, count, |x| D::from_f64((filled(x) - mean) / stddev)),
    }
}

fn is_listed(x: f64, missing: &[f64]) -> bool {
    missing.get(missing.partition_point(|&v| v < x)) == Some(&x)
}

/// Rounds to the type that CF decoding yields, if that is float32 or float16.
fn round(numbers: &mut [f64], decoded: i32) {
    if decoded == DType::F32 as i32 {
        numbers.iter_mut().for_each(|x| *x = f64::from(*x as f32));
    } else if decoded == DType::F16 as i32 {
        numbers.iter_mut().for_each(|x| *x = half_from_f64(*x).to_f64());
    }
}
