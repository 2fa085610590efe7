//! Runs jobs whose neighbours in the chunk aren't neighbours in the output ([`Job::is_transposed`]), block by block. Rows of a
//! block are converted as they lie in the chunk, to a buffer in the L1 cache. From there they go to the output as they lie in
//! it. So both are read and written by whole cache lines.
//!
//! `unsafe` is allowed here: jobs carry addresses, as in `cpu`.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use dali_zarr_kernels::{Job, Op};

use super::walk::{dtype, each};

/// With at most this many neighbours in the chunk, rows as they lie in the output are fast: the few lines of cache between
/// its elements are still there when the next row needs them.
const FEW: u32 = 4;

/// Most elements of a block along the dimension that is near in the chunk. The rows of the output that a block writes to are
/// then still in the cache when the next block fills their other lines.
const WIDTH: usize = 64;

/// Bytes of a block in the output's type. Half of a small L1 cache.
const BLOCK: usize = 16 << 10;

/// The fewest and the most rows of a block. Eight elements of 8 bytes fill a line of the cache, and more than 64 rows would
/// lie in more pages than a small translation buffer has.
const ROWS: (usize, usize) = (8, 64);

/// Elements between the rows of a block. Without them, elements above one another would share a few sets of the cache.
const APART: usize = 8;

/// Bytes of the buffer.
const BUFFER: usize = BLOCK + ROWS.1 * APART * 8;

/// Whether a job is transposed so that it is faster block by block.
pub(super) fn is_far(job: &Job) -> bool {
    job.is_transposed() && job.extent[job.ndim as usize - 2] > FEW
}

/// Runs one job, block by block. `row` converts a row of a block to contiguous memory. It takes the index of the row along the
/// last dimension, the index of its first element along the last dimension but one, the address of this element and the
/// distance to the next one in bytes, the destination, and the number of elements. It returns a count. The sum of the counts
/// is returned.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run_transposed(
    job: &Job,
    op: &Op,
    mut row: impl FnMut(usize, usize, *const u8, isize, *mut u8, usize) -> u64,
) -> u64 {
    let (from, to) = (dtype(op.src_dtype).size(), dtype(op.dst_dtype).size());
    let last = job.ndim as usize - 1;
    let [near, far] = [last - 1, last].map(|d| {
        let (n, src, dst) = (job.extent[d] as usize, job.src_stride[d] as isize, job.dst_stride[d] as isize);
        (n, src * from as isize, dst * to as isize)
    });
    let width = near.0.min(WIDTH);
    let height = (BLOCK / (width * to)).clamp(ROWS.0, ROWS.1).min(far.0);
    let pitch = (width + APART) * to;
    let mut buffer = MaybeUninit::<[u64; BUFFER / 8]>::uninit();
    let buffer = buffer.as_mut_ptr().cast::<u8>();
    let stored = match to {
        1 => store::<1>,
        2 => store::<2>,
        4 => store::<4>,
        _ => store::<8>,
    };
    let mut sum = 0;
    each(job, last - 1, (from, to), |src, dst| {
        for j in (0..near.0).step_by(width) {
            let columns = width.min(near.0 - j);
            for i in (0..far.0).step_by(height) {
                let rows = height.min(far.0 - i);
                let at = |k: usize, a: (usize, isize, isize)| (k as isize * a.1, k as isize * a.2);
                let src = src.wrapping_offset(at(j, near).0 + at(i, far).0);
                for k in 0..rows {
                    let to = buffer.wrapping_add(k * pitch);
                    sum += row(i + k, j, src.wrapping_offset(k as isize * far.1), near.1, to, columns);
                }
                let dst = dst.wrapping_offset(at(j, near).1 + at(i, far).1);
                stored(buffer, pitch, dst, (columns, near.2), (rows, far.2));
            }
        }
    });
    sum
}

/// Writes the columns of a block as rows. `columns` and `rows` are numbers, each with the distance in the output, in bytes.
fn store<const SIZE: usize>(
    block: *const u8,
    pitch: usize,
    dst: *mut u8,
    columns: (usize, isize),
    rows: (usize, isize),
) {
    for j in 0..columns.0 {
        let (from, to) = (block.wrapping_add(j * SIZE), dst.wrapping_offset(j as isize * columns.1));
        // SAFETY: the buffer has all rows of the block; the caller of `run_transposed` promises that the box lies in the
        // output.
        let of = |i: usize| unsafe { from.add(i * pitch).cast::<[u8; SIZE]>().read() };
        if rows.1 == SIZE as isize {
            for i in 0..rows.0 {
                // SAFETY: as above.
                unsafe { to.cast::<[u8; SIZE]>().add(i).write(of(i)) };
            }
        } else {
            for i in 0..rows.0 {
                // SAFETY: as above.
                unsafe { to.offset(i as isize * rows.1).cast::<[u8; SIZE]>().write(of(i)) };
            }
        }
    }
}
