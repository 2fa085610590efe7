//! Values between two elements are those of the formula in float64: in this module, and in the kernel's source.
//!
//! `unsafe` is allowed here: jobs hold addresses of the tests' vectors.

#![allow(unsafe_code)]

use super::cast::{Element, with_type};
use super::*;
use crate::geometry::Norm;
use dali_zarr_kernels::host;

/// A generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((self.0 >> 7) ^ (self.0 << 23)) >> 11) % n
    }
}

const CHANNELS: usize = 600;

fn pair(channel: usize) -> (f64, f64) {
    (channel as f64 * 7.25 - 300.0, 0.3 + channel as f64 / 9.0)
}

/// Makes a random box with a dimension of channels. Returns the job, the elements of its source and of its output, and the
/// dimension. Strides of the source may be zero or leave gaps.
fn random_box(random: &mut Random) -> (Job, usize, usize, usize) {
    let ndim = 1 + random.below(4) as usize;
    let dim = random.below(ndim as u64) as usize;
    let mut job = Job::new(0, 0, (0..ndim).map(|_| (1, 0, 0)));
    let (mut src, mut dst) = (1i64, 1i64);
    for d in (0..ndim).rev() {
        let most = if d + 1 == ndim { [3, 40, 600][random.below(3) as usize] } else { 5 };
        let n = 1 + random.below(most) as i64;
        let step = [src, src, src, 2 * src, 0][random.below(5) as usize];
        (job.extent[d], job.src_stride[d], job.dst_stride[d]) = (n as u32, step, dst);
        src += step * (n - 1);
        dst = dst * n + random.below(2) as i64;
    }
    (job, src as usize, dst as usize, dim)
}

#[test]
fn values_between_are_those_of_the_formula() {
    let mut random = Random(5);
    let floats = |d: &DType| d.is_float();
    let pairs = DType::ALL.iter().filter(|d| **d != DType::Bool);
    let pairs = pairs.flat_map(|s| DType::ALL.iter().filter(|d| **d != DType::Bool).map(move |d| (*s, *d)));
    for (round, (src, dst)) in pairs.cycle().take(720).enumerate() {
        let (mut job, read, written, dim) = random_box(&mut random);
        let (first, step) = ([0, 2][random.below(2) as usize], [1, 0][random.below(2) as usize]);
        let apart = read as i64 + random.below(5) as i64;
        let is_back = random.below(2) == 0;
        let weight = [0.0, 0.25, 1.0 / 3.0, 0.7, 1.0][random.below(5) as usize];
        let of = |i: usize| (i * 37 % 211) as f64 * 0.75 - if src.name().starts_with('u') { 0.0 } else { 60.0 };
        let is_nan = |i: usize| floats(&src) && i % 13 == 5;
        let elements = read + apart as usize;
        let mut stored = vec![0u8; elements * src.size()];
        for i in 0..elements {
            let x = if is_nan(i) { f64::NAN } else { of(i) };
            with_type!(src, S => <S as Element>::from_f64(x).store(stored[i * src.size()..].as_mut_ptr()));
        }
        let value = |i: usize| with_type!(src, S => S::load(stored[i * src.size()..].as_ptr()).to_f64());
        let fillna = (random.below(2) == 0).then_some(-3.5);
        let normed = random.below(3);
        let of_norm = |channel: usize| Norm {
            array: 0,
            fillna,
            mean_stddev: (normed > 0).then(|| pair(channel)),
            fill: 0.0,
            dtype: dst,
            imaginary: false,
        };
        // The stored type isn't that of the elements, which were decoded before.
        let decoding =
            Decoding { missing: vec![7, 9, 11], scale: Some(3.0), decoded: Some(src), ..Decoding::default() };
        let (op, missing) = op(DType::I16, 0, &decoding, &of_norm(0), true);
        let table = if normed == 2 { (0..CHANNELS + 10).map(pair).collect() } else { Vec::new() };
        let ops = Ops::with_tables([(op, missing, table)]);
        job.set_channels(dim, first, step);
        let apart = if is_back { -apart } else { apart };
        job.set_between(apart, weight);
        let begin = if is_back { apart.unsigned_abs() as usize } else { 0 };
        let mut outs = [0, 1].map(|_| vec![0xcdu8; written * dst.size()]);
        let mut replaced = [0u64; 2];
        let place = |out: &mut [u8]| {
            let mut placed = job;
            placed.src = stored.as_ptr() as u64 + (begin * src.size()) as u64;
            placed.dst = out.as_mut_ptr() as u64;
            placed
        };
        // SAFETY: both vectors have room for the box and for the other elements; the table has all channels that the job names.
        unsafe {
            replaced[0] = run(&place(&mut outs[0]), &ops[0]);
            host::assemble(&[place(&mut outs[1])], &ops, &mut replaced[1..]);
        }
        let mut want = vec![0xcdu8; written * dst.size()];
        let mut filled = 0;
        let total: u64 = job.extent[..job.ndim as usize].iter().map(|&n| u64::from(n)).product();
        for i in 0..total {
            let (mut rest, mut at, mut to, mut channel) = (i, begin as i64, 0i64, first);
            for d in (0..job.ndim as usize).rev() {
                let index = (rest % u64::from(job.extent[d])) as i64;
                rest /= u64::from(job.extent[d]);
                at += index * job.src_stride[d];
                to += index * job.dst_stride[d];
                channel += if d == dim { index * step } else { 0 };
            }
            let (a, b) = (value(at as usize), value((at + apart) as usize));
            let mut x = if weight == 0.0 { a } else { a + weight * (b - a) };
            if x.is_nan()
                && let Some(fillna) = fillna
            {
                (x, filled) = (fillna, filled + 1);
            }
            if normed > 0 {
                let (mean, stddev) = pair(if normed == 2 { channel as usize } else { 0 });
                x = (x - mean) / stddev;
            }
            with_type!(dst, D => <D as Element>::from_f64(x).store(want[to as usize * dst.size()..].as_mut_ptr()));
        }
        let what = format!("round {round}: {src} to {dst}, {job:?}, weight {weight}, fillna {fillna:?}");
        assert_eq!(replaced, [filled; 2], "{what}");
        for (name, out) in ["the CPU", "the kernel's source"].into_iter().zip(&outs) {
            for (i, (a, b)) in out.chunks(dst.size()).zip(want.chunks(dst.size())).enumerate() {
                let is_nan = |bytes: &[u8]| with_type!(dst, D => D::load(bytes.as_ptr()).to_f64()).is_nan();
                assert!(
                    a == b || floats(&dst) && is_nan(a) && is_nan(b),
                    "{name}, {what}: element {i}: {a:02x?}, expected {b:02x?}"
                );
            }
        }
    }
}
