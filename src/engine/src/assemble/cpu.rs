//! Runs jobs on the CPU.
//!
//! `unsafe` is allowed here: jobs carry addresses, which the plan computed to lie inside the decoded chunk and the
//! output. The tests of the plan check both against the buffers.

#![allow(unsafe_code)]

use dali_zarr_kernels::{Job, Layout, MAX_INLINE, NORM_TABLE, Op, Source};

use super::cast::{Bool, Element, convert};
use super::is_copy;
use crate::dtype::{DType, half_from_f64};
use half::{bf16, f16};

/// Runs one job, whose `src` and `dst` are addresses, and whose operation has no table of channels. Returns how many
/// NaNs it replaced.
///
/// # Safety
/// The job's boxes must lie in memory that is alive. Meanwhile nobody else may touch the destination or write the
/// source. The operation belongs to [`super::Ops`] that are alive.
pub(super) unsafe fn run_plain(job: &Job, op: &Op) -> u64 {
    debug_assert!(job.layout == Layout::NONE, "decoders of the CPU undo shuffles themselves");
    debug_assert!(op.has_norm != NORM_TABLE, "channels.rs takes one channel after the other");
    if is_copy(op) && job.source == Source::Chunk as u32 {
        match (DType::ALL[op.src_dtype as usize].size(), op.swap != 0) {
            (1, _) => rows::<1>(job, copy::<1>),
            (2, false) => rows::<2>(job, copy::<2>),
            (4, false) => rows::<4>(job, copy::<4>),
            (_, false) => rows::<8>(job, copy::<8>),
            (2, true) => rows::<2>(job, swap::<u16>),
            (4, true) => rows::<4>(job, swap::<u32>),
            (_, true) => rows::<8>(job, swap::<u64>),
        }
        return 0;
    }
    macro_rules! dispatch {
        ($job:ident, $op:ident, $of:expr, $f:ident $(, $fixed:ty)?) => {
            match DType::ALL[$of as usize] {
                DType::Bool => $f::<$($fixed,)? Bool>($job, $op),
                DType::I8 => $f::<$($fixed,)? i8>($job, $op),
                DType::I16 => $f::<$($fixed,)? i16>($job, $op),
                DType::I32 => $f::<$($fixed,)? i32>($job, $op),
                DType::I64 => $f::<$($fixed,)? i64>($job, $op),
                DType::U8 => $f::<$($fixed,)? u8>($job, $op),
                DType::U16 => $f::<$($fixed,)? u16>($job, $op),
                DType::U32 => $f::<$($fixed,)? u32>($job, $op),
                DType::U64 => $f::<$($fixed,)? u64>($job, $op),
                DType::F16 => $f::<$($fixed,)? f16>($job, $op),
                DType::F32 => $f::<$($fixed,)? f32>($job, $op),
                DType::F64 => $f::<$($fixed,)? f64>($job, $op),
                DType::BF16 => $f::<$($fixed,)? bf16>($job, $op),
            }
        };
    }
    fn from<S: Element>(job: &Job, op: &Op) -> u64 {
        dispatch!(job, op, op.dst_dtype, elements, S)
    }
    dispatch!(job, op, op.src_dtype, from)
}

/// Processes one innermost row. Takes the source address and the distance of its elements in bytes, the same for the
/// destination, and the number of elements.
type Row = fn(*const u8, isize, *mut u8, isize, usize);

/// Calls `row` for every innermost row of the box.
fn rows<const SIZE: usize>(job: &Job, row: Row) {
    walk(job, SIZE, SIZE, row);
}

/// As [`rows`], with separate element sizes of source and destination, in bytes.
#[inline(always)]
fn walk(job: &Job, src_size: usize, dst_size: usize, mut row: impl FnMut(*const u8, isize, *mut u8, isize, usize)) {
    let inner = job.ndim as usize - 1;
    let outer: u64 = job.extent[..inner].iter().map(|&e| u64::from(e)).product();
    let (src_step, dst_step) =
        (job.src_stride[inner] as isize * src_size as isize, job.dst_stride[inner] as isize * dst_size as isize);
    for r in 0..outer {
        let (mut rest, mut src, mut dst) = (r, 0i64, 0i64);
        for d in (0..inner).rev() {
            let i = (rest % u64::from(job.extent[d])) as i64;
            rest /= u64::from(job.extent[d]);
            src += i * job.src_stride[d];
            dst += i * job.dst_stride[d];
        }
        let src = (job.src as i64).wrapping_add(src * src_size as i64) as *const u8;
        let dst = (job.dst as i64).wrapping_add(dst * dst_size as i64) as *mut u8;
        row(src, src_step, dst, dst_step, job.extent[inner] as usize);
    }
}

fn copy<const SIZE: usize>(src: *const u8, src_step: isize, dst: *mut u8, dst_step: isize, n: usize) {
    // SAFETY: `run`'s caller promises that both rows lie in their buffers, which don't overlap.
    unsafe {
        if src_step == SIZE as isize && dst_step == SIZE as isize {
            std::ptr::copy_nonoverlapping(src, dst, n * SIZE);
            return;
        }
        for i in 0..n as isize {
            let v = src.offset(i * src_step).cast::<[u8; SIZE]>().read();
            dst.offset(i * dst_step).cast::<[u8; SIZE]>().write(v);
        }
    }
}

fn swap<T: Swap>(src: *const u8, src_step: isize, dst: *mut u8, dst_step: isize, n: usize) {
    for i in 0..n as isize {
        // SAFETY: as for `copy`.
        unsafe {
            let v = src.offset(i * src_step).cast::<T>().read_unaligned();
            dst.offset(i * dst_step).cast::<T>().write_unaligned(v.swapped());
        }
    }
}

trait Swap: Copy {
    fn swapped(self) -> Self;
}
impl Swap for u16 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}
impl Swap for u32 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}
impl Swap for u64 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}

/// The general path from one type to another. Returns how many NaNs were replaced.
fn elements<S: Element, D: Element>(job: &Job, op: &Op) -> u64 {
    if op.has_fillna != 0 {
        return filled_elements::<S, D>(job, op);
    }
    if op.num_missing as usize > MAX_INLINE || scales_integers(op) {
        rare_elements::<S, D>(job, op);
        return 0;
    }
    // Missing values are compared as float64, as in xarray: 64-bit integers beyond 2^53 equal their neighbours.
    let missing: [f64; MAX_INLINE] = op.missing.map(|bits| S::from_bits64(bits).to_f64());
    let missing = &missing[..op.num_missing as usize];
    let decode = |v: S| -> D {
        let x = v.to_f64();
        finished(if missing.contains(&x) { f64::NAN } else { x }, op)
    };
    let plain = missing.is_empty() && op.has_scale == 0 && op.has_offset == 0 && op.has_norm == 0;
    let only_norm = missing.is_empty() && op.has_scale == 0 && op.has_offset == 0;
    let fill = S::from_bits64(op.fill);
    let swap = op.swap != 0;
    // One loop for each common case, so that each is simple enough to be vectorised.
    if job.source == Source::Pad as u32 {
        let v = D::from_f64(op.pad);
        map::<S, D>(job, |_| v);
    } else if job.source == Source::Fill as u32 {
        let v = if plain { convert(fill) } else { decode(fill) };
        map::<S, D>(job, |_| v);
    } else if plain && !swap {
        map::<S, D>(job, |p| convert(S::load(p, false)));
    } else if only_norm && !swap {
        let (mean, stddev) = (op.mean, op.stddev);
        map::<S, D>(job, |p| D::from_f64((S::load(p, false).to_f64() - mean) / stddev));
    } else if plain {
        map::<S, D>(job, |p| convert(S::load(p, true)));
    } else {
        map::<S, D>(job, |p| decode(S::load(p, swap)));
    }
    0
}

/// Applies everything that follows after missing values became NaN: scale, offset, normalisation and cast.
#[inline(always)]
fn finished<D: Element>(x: f64, op: &Op) -> D {
    normalised(scaled(x, op), op)
}

#[inline(always)]
fn scaled(mut x: f64, op: &Op) -> f64 {
    if op.has_scale != 0 {
        x = rounded(x * op.scale, op.decoded);
    }
    if op.has_offset != 0 {
        x = rounded(x + op.offset, op.decoded);
    }
    x
}

#[inline(always)]
fn normalised<D: Element>(x: f64, op: &Op) -> D {
    D::from_f64(if op.has_norm != 0 { (x - op.mean) / op.stddev } else { x })
}

/// Whether an operation multiplies in int64.
fn scales_integers(op: &Op) -> bool {
    op.has_scale != 0 && op.decoded == DType::I64 as i32
}

/// [`elements`] for operations that multiply in int64, or have more missing values than fit in them.
fn rare_elements<S: Element, D: Element>(job: &Job, op: &Op) {
    let missing = listed(op);
    let decode = |v: S| -> D {
        if scales_integers(op) {
            let product = v.to_i64().wrapping_mul(op.scale.to_bits() as i64);
            return if op.has_norm != 0 { normalised(product as f64, op) } else { convert(product) };
        }
        let x = v.to_f64();
        finished(if is_listed(x, missing) { f64::NAN } else { x }, op)
    };
    if job.source == Source::Pad as u32 {
        let v = D::from_f64(op.pad);
        map::<S, D>(job, |_| v);
    } else if job.source == Source::Fill as u32 {
        let v = decode(S::from_bits64(op.fill));
        map::<S, D>(job, |_| v);
    } else {
        map::<S, D>(job, |p| decode(S::load(p, op.swap != 0)));
    }
}

/// [`elements`] for operations that replace NaNs. Returns how many NaNs were replaced.
fn filled_elements<S: Element, D: Element>(job: &Job, op: &Op) -> u64 {
    let own: [f64; MAX_INLINE] = op.missing.map(|bits| S::from_bits64(bits).to_f64());
    let many = listed(op);
    let few = if many.is_empty() { &own[..op.num_missing as usize] } else { &[] };
    let decode = |v: S| -> f64 {
        let x = v.to_f64();
        scaled(if few.contains(&x) || is_listed(x, many) { f64::NAN } else { x }, op)
    };
    let (mut replaced, fillna) = (0, op.fillna);
    let mut fill = |x: f64| -> f64 {
        replaced += u64::from(x.is_nan());
        if x.is_nan() { fillna } else { x }
    };
    let is_stored = op.num_missing == 0 && op.has_scale == 0 && op.has_offset == 0 && op.swap == 0;
    if job.source == Source::Pad as u32 {
        let v = D::from_f64(op.pad);
        map::<S, D>(job, |_| v);
    } else if job.source == Source::Fill as u32 {
        let v = normalised(fill(decode(S::from_bits64(op.fill))), op);
        map::<S, D>(job, |_| v);
        replaced *= job.extent[..job.ndim as usize].iter().map(|&e| u64::from(e)).product::<u64>();
    } else if is_stored && op.has_norm == 0 {
        map::<S, D>(job, |p| D::from_f64(fill(S::load(p, false).to_f64())));
    } else if is_stored {
        let (mean, stddev) = (op.mean, op.stddev);
        map::<S, D>(job, |p| D::from_f64((fill(S::load(p, false).to_f64()) - mean) / stddev));
    } else {
        map::<S, D>(job, |p| normalised(fill(decode(S::load(p, op.swap != 0))), op));
    }
    replaced
}

/// Returns the missing values of an operation, in ascending order, if they don't fit in it. Otherwise returns none.
fn listed(op: &Op) -> &[f64] {
    match op.num_missing as usize {
        ..=MAX_INLINE => &[],
        // SAFETY: the operation holds the address of `n` values, which live as long as it does: `run`'s caller promises
        // it.
        n => unsafe { std::slice::from_raw_parts(op.missing[0] as *const f64, n) },
    }
}

#[inline(always)]
fn is_listed(x: f64, missing: &[f64]) -> bool {
    missing.get(missing.partition_point(|&v| v < x)) == Some(&x)
}

/// Rounds to the type that CF decoding yields, if that is float32 or float16.
#[inline(always)]
fn rounded(x: f64, decoded: i32) -> f64 {
    match decoded {
        d if d == DType::F32 as i32 => f64::from(x as f32),
        d if d == DType::F16 as i32 => half_from_f64(x).to_f64(),
        _ => x,
    }
}

/// Calls `f` with the address of each source element, and stores the results. If the source is a constant, the address
/// means nothing, and `f` must not read it.
#[inline(always)]
fn map<S: Element, D: Element>(job: &Job, mut f: impl FnMut(*const u8) -> D) {
    walk(job, S::SIZE, D::SIZE, |src, src_step, dst, dst_step, n| {
        if src_step == S::SIZE as isize && dst_step == D::SIZE as isize {
            for i in 0..n {
                f(src.wrapping_add(i * S::SIZE)).store(dst.wrapping_add(i * D::SIZE));
            }
        } else {
            for i in 0..n as isize {
                f(src.wrapping_offset(i * src_step)).store(dst.wrapping_offset(i * dst_step));
            }
        }
    });
}
