//! Runs jobs on the CPU, row by row.
//!
//! `unsafe` is allowed here: jobs carry addresses, which the plan computed to lie inside the decoded chunk and the
//! output. The tests of the plan check both against the buffers.

#![allow(unsafe_code)]

use dali_zarr_kernels::{Job, Layout, NORM_TABLE, Op, Source};

use super::cast::{Element, with_type};
use super::rows::Rows;
use super::steps::Steps;
use super::transposed::{is_far, run_transposed};
use super::walk::{dtype, elements, walk};

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
        let mut rows = Rows::new(op, elements(job));
        if is_far(job) {
            let run = |_, _, src, src_step, dst, n| rows.row(src, src_step, dst, to as isize, n);
            // SAFETY: the caller's promise.
            return unsafe { run_transposed(job, op, run) };
        }
        let mut replaced = 0;
        walk(job, from, to, |src, src_step, dst, dst_step, n| replaced += rows.row(src, src_step, dst, dst_step, n));
        return replaced;
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
    replaced * elements(job)
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
