//! The two loops that take most of the time, compiled once more for AVX2 where the processor has it. They are the same
//! code with the same results.

#![allow(unsafe_code, reason = "a function for AVX2 may be called where the processor has AVX2")]

use super::idct;
use super::sample::{Convert, Plane, Scaling};

/// See [`idct::block`].
#[inline]
pub(super) fn block(coefficients: &[i16; 64], quantization: &[u16; 64], plane: &mut [u8], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { block_avx2(coefficients, quantization, plane, stride) };
    }
    idct::block(coefficients, quantization, plane, stride);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn block_avx2(coefficients: &[i16; 64], quantization: &[u16; 64], plane: &mut [u8], stride: usize) {
    idct::block(coefficients, quantization, plane, stride);
}

/// Fills `out` with rows of pixels of `width`, of `planes` with their scalings.
pub(super) fn pixels(planes: &[Plane], scalings: &[Scaling], convert: Convert, width: usize, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { pixels_avx2(planes, scalings, convert, width, out) };
    }
    every_row(planes, scalings, convert, width, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pixels_avx2(planes: &[Plane], scalings: &[Scaling], convert: Convert, width: usize, out: &mut [u8]) {
    every_row(planes, scalings, convert, width, out);
}

#[inline(always)]
fn every_row(planes: &[Plane], scalings: &[Scaling], convert: Convert, width: usize, out: &mut [u8]) {
    let mut rows = vec![vec![0; width]; planes.len()];
    let mut sums = Vec::new();
    for (y, pixels) in out.chunks_exact_mut(width * convert.channels(planes.len())).enumerate() {
        for ((plane, scaling), row) in planes.iter().zip(scalings).zip(&mut rows) {
            plane.pixels(y, *scaling, &mut sums, row);
        }
        convert.row(&rows, pixels);
    }
}
