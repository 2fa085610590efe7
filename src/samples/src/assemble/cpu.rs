//! Runs jobs on the CPU, row by row. Rows are taken in tiles, which stay in the L1 cache while the steps of [`Steps`]
//! go over them.
//!
//! `unsafe` is allowed here: jobs carry addresses, which the plan computed to lie inside the decoded chunk and the
//! output. The tests of the plan check both against the buffers.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use dali_zarr_kernels::{Job, Layout, NORM_TABLE, Op, Source};

use super::cast::{Element, with_type};
use super::is_copy;
use super::steps::{Steps, TILE};
use dali_zarr_base::dtype::DType;

/// Runs one job, whose `src` and `dst` are addresses, and whose operation has no table of channels. Returns how many
/// NaNs it replaced.
///
/// # Safety
/// The job's boxes must lie in memory that is alive. Meanwhile nobody else may touch the destination or write the
/// source. The operation belongs to [`super::Ops`] that are alive.
pub(super) unsafe fn run_plain(job: &Job, op: &Op) -> u64 {
    debug_assert!(job.layout == Layout::NONE, "decoders of the CPU undo shuffles themselves");
    debug_assert!(op.has_norm != NORM_TABLE, "channels.rs takes one channel after the other");
    if job.source == Source::Chunk as u32 {
        let (from, to) = (dtype(op.src_dtype).size(), dtype(op.dst_dtype).size());
        let moved = row_mover(from, op.swap != 0);
        if is_copy(op) {
            walk(job, from, to, moved);
            return 0;
        }
        return convert_rows(job, op, moved);
    }
    let mut element = [0; 8];
    let replaced = if job.source == Source::Pad as u32 {
        with_type!(dtype(op.dst_dtype), D => D::from_f64(op.pad).store(element.as_mut_ptr()));
        0
    } else {
        let mut fill = [0; 8];
        with_type!(dtype(op.src_dtype), S => S::from_bits64(op.fill).store(fill.as_mut_ptr()));
        Steps::new(op).run(fill.as_ptr(), element.as_mut_ptr(), 1)
    };
    match dtype(op.dst_dtype).size() {
        1 => spread::<1>(job, &element),
        2 => spread::<2>(job, &element),
        4 => spread::<4>(job, &element),
        _ => spread::<8>(job, &element),
    }
    replaced * job.extent[..job.ndim as usize].iter().map(|&e| u64::from(e)).product::<u64>()
}

fn dtype(discriminant: i32) -> DType {
    DType::ALL[discriminant as usize]
}

/// Processes one innermost row. Takes the source address and the distance of its elements in bytes, the same for the
/// destination, and the number of elements.
type Row = fn(*const u8, isize, *mut u8, isize, usize);

/// Calls `row` for every innermost row of the box. Takes the sizes of an element of source and destination, in bytes.
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

fn copy_row<const SIZE: usize>(src: *const u8, src_step: isize, dst: *mut u8, dst_step: isize, n: usize) {
    // SAFETY: `run_plain`'s caller promises that both rows lie in their buffers, which don't overlap.
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

fn swap_row<T: Swap>(src: *const u8, src_step: isize, dst: *mut u8, dst_step: isize, n: usize) {
    for i in 0..n as isize {
        // SAFETY: as for `copy_row`.
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

/// Returns the function that moves elements of this size, with their bytes reversed if `swap`.
fn row_mover(size: usize, swap: bool) -> Row {
    match (size, swap) {
        (1, _) => copy_row::<1>,
        (2, false) => copy_row::<2>,
        (4, false) => copy_row::<4>,
        (_, false) => copy_row::<8>,
        (2, true) => swap_row::<u16>,
        (4, true) => swap_row::<u32>,
        (_, true) => swap_row::<u64>,
    }
}

/// Writes the first `SIZE` bytes of `element` to all elements of the destination.
fn spread<const SIZE: usize>(job: &Job, element: &[u8; 8]) {
    let element: [u8; SIZE] = std::array::from_fn(|i| element[i]);
    walk(job, SIZE, SIZE, |_, _, dst, dst_step, n| {
        let dst = dst.cast::<[u8; SIZE]>();
        // SAFETY: `run_plain`'s caller promises that the row lies in the output, which nobody else touches.
        unsafe {
            if dst_step == SIZE as isize {
                std::slice::from_raw_parts_mut(dst, n).fill(element);
                return;
            }
            for i in 0..n as isize {
                dst.byte_offset(i * dst_step).write(element);
            }
        }
    });
}

/// Applies the operation to a box of a chunk. Returns how many NaNs were replaced. `moved` moves elements of the source
/// in native byte order.
fn convert_rows(job: &Job, op: &Op, moved: Row) -> u64 {
    let (from, to) = (dtype(op.src_dtype).size(), dtype(op.dst_dtype).size());
    let stored = row_mover(to, false);
    let (mut native, mut results) = (MaybeUninit::<[u64; TILE]>::uninit(), MaybeUninit::<[u64; TILE]>::uninit());
    let (native, results) = (native.as_mut_ptr().cast::<u8>(), results.as_mut_ptr().cast::<u8>());
    let mut steps = Steps::new(op);
    let mut replaced = 0;
    walk(job, from, to, |src, src_step, dst, dst_step, n| {
        let is_native = src_step == from as isize && (op.swap == 0 || from == 1);
        let is_direct = dst_step == to as isize;
        let (mut src, mut dst, mut left) = (src, dst, n);
        while left > 0 {
            let count = left.min(TILE);
            let from_tile = if is_native {
                src
            } else {
                moved(src, src_step, native, from as isize, count);
                native
            };
            replaced += steps.run(from_tile, if is_direct { dst } else { results }, count);
            if !is_direct {
                stored(results, to as isize, dst, dst_step, count);
            }
            src = src.wrapping_offset(count as isize * src_step);
            dst = dst.wrapping_offset(count as isize * dst_step);
            left -= count;
        }
    });
    replaced
}
