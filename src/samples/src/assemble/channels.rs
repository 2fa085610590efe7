//! Runs jobs on the CPU ([`run`]). An operation with a table of channels is taken channel by channel, with the code for a
//! single mean and stddev. Long rows of channels go through a buffer, in three steps. Transposed boxes are taken block by
//! block. All give the same bits.
//!
//! `unsafe` is allowed here: jobs and operations carry addresses, as in `cpu`.

#![allow(unsafe_code)]

use dali_zarr_kernels::{Job, NORM_TABLE, Op, Source};

use super::between::run_between;
use super::cpu::run_plain;
use super::rows::Rows;
use super::transposed::{is_far, run_transposed};
use super::walk::dtype;
use dali_zarr_base::dtype::DType;

/// If the innermost dimension has at most this many channels, and more rows than channels, the channels are taken one
/// after the other, each over all rows.
const FEW: u32 = 16;

/// Elements in the buffer.
const BUFFER: usize = 512;

/// Runs one job, whose `src` and `dst` are addresses. Returns how many NaNs it replaced.
///
/// # Safety
/// The job's boxes must lie in memory that is alive, with the other elements of [`Source::Between`]. Meanwhile nobody else may
/// touch the destination or write the source. The operation belongs to [`super::Ops`] that are alive. Its table, if it has one, has all channels that the
/// job names.
pub unsafe fn run(job: &Job, op: &Op) -> u64 {
    if job.source == Source::Between as u32 {
        // SAFETY: the caller's promise.
        unsafe { run_between(job, op) }
    } else if op.has_norm == NORM_TABLE {
        // SAFETY: the caller's promise.
        unsafe { run_by_channel(job, op) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { run_plain(job, op) }
    }
}

/// Runs one job whose operation has a table. Returns how many NaNs it replaced.
///
/// # Safety
/// As for [`run`].
unsafe fn run_by_channel(job: &Job, op: &Op) -> u64 {
    let (dim, first, step) = job.channels();
    let inner = job.ndim as usize - 1;
    let rows: u64 = job.extent[..inner].iter().map(|&n| u64::from(n)).product();
    let table = op.mean.to_bits() as *const [f64; 2];
    // SAFETY: the caller promises that the table has these channels.
    let of_channel = |i: i64| unsafe { table.offset((first + step * i) as isize).read() };
    if is_far(job) && dim + 1 >= inner {
        // SAFETY: the caller's promise.
        return unsafe { run_blocks(job, op, of_channel) };
    }
    if dim == inner && (job.extent[dim] > FEW || rows <= u64::from(job.extent[dim])) {
        return (0..rows).map(|row| by_row(&of_row(job, op, row), op, of_channel)).sum();
    }
    let one = |i: i64| {
        let [mean, stddev] = of_channel(i);
        let own = Op { has_norm: 1, mean, stddev, ..*op };
        // SAFETY: a part of the job's box.
        unsafe { run_plain(&part(job, op, dim, i, 1), &own) }
    };
    (0..i64::from(job.extent[dim])).map(one).sum()
}

/// Runs one job block by block. Its operation has a table, and its channels lie along the last dimension or the one before.
///
/// # Safety
/// As for [`run`].
unsafe fn run_blocks(job: &Job, op: &Op, of_channel: impl Fn(i64) -> [f64; 2]) -> u64 {
    let (dim, ..) = job.channels();
    let (from, to) = (dtype(op.src_dtype).size(), dtype(op.dst_dtype).size());
    let is_of_row = dim + 1 == job.ndim as usize;
    let row = |i: usize, j: usize, src: *const u8, step: isize, dst: *mut u8, n: usize| {
        if is_of_row {
            let [mean, stddev] = of_channel(i as i64);
            let own = Op { has_norm: 1, mean, stddev, ..*op };
            return Rows::new(&own, 0).row(src, step, dst, to as isize, n);
        }
        let row = Job::new(src as u64, dst as u64, [(n as u32, (step / from as isize) as i64, 1)]);
        by_row(&row, op, |k| of_channel(j as i64 + k))
    };
    // SAFETY: the caller's promise.
    unsafe { run_transposed(job, op, row) }
}

/// Returns the part of a job that has `count` elements along dimension `dim`, from element `from` on.
fn part(job: &Job, op: &Op, dim: usize, from: i64, count: u32) -> Job {
    let mut part = *job;
    let bytes = |dtype: i32| DType::ALL[dtype as usize].size() as i64;
    part.src = (job.src as i64).wrapping_add(from * job.src_stride[dim] * bytes(op.src_dtype)) as u64;
    part.dst = (job.dst as i64).wrapping_add(from * job.dst_stride[dim] * bytes(op.dst_dtype)) as u64;
    part.extent[dim] = count;
    part
}

/// Returns the innermost row number `row` of a job, as a job with one dimension.
fn of_row(job: &Job, op: &Op, row: u64) -> Job {
    let inner = job.ndim as usize - 1;
    let (mut found, mut rest) = (*job, row);
    for d in (0..inner).rev() {
        let n = u64::from(job.extent[d]);
        found = part(&found, op, d, (rest % n) as i64, 1);
        rest /= n;
    }
    let row = Job::new(found.src, found.dst, [(job.extent[inner], job.src_stride[inner], job.dst_stride[inner])]);
    Job { source: job.source, layout: job.layout, ..row }
}

/// Decodes a row of channels to float64, normalises it, and casts it. Returns how many NaNs it replaced.
fn by_row(row: &Job, op: &Op, of_channel: impl Fn(i64) -> [f64; 2]) -> u64 {
    let decode = Op { has_norm: 0, dst_dtype: DType::F64 as i32, ..*op };
    let cast = Op::cast(DType::F64 as i32, op.dst_dtype);
    let mut buffer = [0f64; BUFFER];
    let mut replaced = 0;
    for from in (0..row.extent[0]).step_by(BUFFER) {
        let count = (row.extent[0] - from).min(BUFFER as u32);
        let piece = part(row, op, 0, i64::from(from), count);
        let address = buffer.as_mut_ptr() as u64;
        let decoded = Job::new(piece.src, address, [(count, piece.src_stride[0], 1)]);
        // SAFETY: the source is a part of the job's box, and the buffer has room for `count` elements.
        replaced += unsafe { run_plain(&Job { source: row.source, ..decoded }, &decode) };
        for (i, x) in (i64::from(from)..).zip(&mut buffer[..count as usize]) {
            let [mean, stddev] = of_channel(i);
            *x = (*x - mean) / stddev;
        }
        let stored = Job::new(address, piece.dst, [(count, 1, piece.dst_stride[0])]);
        // SAFETY: as above, with the destination.
        unsafe { run_plain(&Job { source: Source::Chunk as u32, ..stored }, &cast) };
    }
    replaced
}
