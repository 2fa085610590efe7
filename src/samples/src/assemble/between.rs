//! Runs jobs whose values lie between two decoded elements ([`Source::Between`](dali_zarr_kernels::Source::Between)), row by
//! row. Rows are taken in tiles, which stay in the L1 cache while loops without types go over them.
//!
//! `unsafe` is allowed here: jobs carry addresses, as in `cpu`.

#![allow(unsafe_code)]

use dali_zarr_kernels::{Job, NORM_TABLE, Op};

use super::cast::{Element, with_type};
use super::steps::TILE;
use super::walk::dtype;

/// Reads elements as float64. Takes the address of the first one and their distance in bytes.
type Read = fn(*const u8, isize, &mut [f64]);
/// Writes elements. Takes the address of the first one and their distance in bytes.
type Store = fn(&[f64], *mut u8, isize);

/// Runs one job. Returns how many NaNs it replaced.
///
/// # Safety
/// As for [`super::run`].
pub(super) unsafe fn run_between(job: &Job, op: &Op) -> u64 {
    let (values, output) = (dtype(op.decoded), dtype(op.dst_dtype));
    let read: Read = with_type!(values, S => read::<S>);
    let store: Store = with_type!(output, D => store::<D>);
    let (from, to) = (values.size() as isize, output.size() as isize);
    let inner = job.ndim as usize - 1;
    let (apart, weight) = job.between();
    let (src_step, dst_step) = (job.src_stride[inner] as isize * from, job.dst_stride[inner] as isize * to);
    let by_channel = op.has_norm == NORM_TABLE;
    let (channels, first, step) = job.channels();
    let table = op.mean.to_bits() as *const [f64; 2];
    // SAFETY: the caller promises that the table has these channels.
    let of_channel = |channel: i64| unsafe { table.offset(channel as isize).read() };
    let rows: u64 = job.extent[..inner].iter().map(|&n| u64::from(n)).product();
    let (mut one, mut other) = ([0f64; TILE], [0f64; TILE]);
    let mut replaced = 0;
    for row in 0..rows {
        let (mut rest, mut src, mut dst, mut channel) = (row, 0i64, 0i64, first);
        for d in (0..inner).rev() {
            let at = (rest % u64::from(job.extent[d])) as i64;
            rest /= u64::from(job.extent[d]);
            src += at * job.src_stride[d];
            dst += at * job.dst_stride[d];
            channel += if by_channel && d == channels { at * step } else { 0 };
        }
        let src = (job.src as *const u8).wrapping_offset(src as isize * from);
        let other_src = src.wrapping_offset(apart as isize * from);
        let dst = (job.dst as *mut u8).wrapping_offset(dst as isize * to);
        for begin in (0..job.extent[inner] as usize).step_by(TILE) {
            let count = TILE.min(job.extent[inner] as usize - begin);
            let (values, others) = (&mut one[..count], &mut other[..count]);
            let skipped = begin as isize * src_step;
            read(src.wrapping_offset(skipped), src_step, values);
            read(other_src.wrapping_offset(skipped), src_step, others);
            if weight != 0.0 {
                values.iter_mut().zip(&*others).for_each(|(a, b)| *a += weight * (b - *a));
            }
            if op.has_fillna != 0 {
                replaced += values.iter().map(|x| u64::from(x.is_nan())).sum::<u64>();
                values.iter_mut().for_each(|x| *x = if x.is_nan() { op.fillna } else { *x });
            }
            if by_channel && channels == inner {
                for (i, x) in (begin as i64..).zip(&mut *values) {
                    let [mean, stddev] = of_channel(channel + i * step);
                    *x = (*x - mean) / stddev;
                }
            } else if op.has_norm != 0 {
                let [mean, stddev] = if by_channel { of_channel(channel) } else { [op.mean, op.stddev] };
                values.iter_mut().for_each(|x| *x = (*x - mean) / stddev);
            }
            store(values, dst.wrapping_offset(begin as isize * dst_step), dst_step);
        }
    }
    replaced
}

fn read<S: Element>(src: *const u8, step: isize, to: &mut [f64]) {
    if step == S::SIZE as isize {
        for (i, x) in to.iter_mut().enumerate() {
            *x = S::load(src.wrapping_add(i * S::SIZE)).to_f64();
        }
        return;
    }
    for (i, x) in to.iter_mut().enumerate() {
        *x = S::load(src.wrapping_offset(i as isize * step)).to_f64();
    }
}

fn store<D: Element>(values: &[f64], dst: *mut u8, step: isize) {
    if step == D::SIZE as isize {
        for (i, &x) in values.iter().enumerate() {
            D::from_f64(x).store(dst.wrapping_add(i * D::SIZE));
        }
        return;
    }
    for (i, &x) in values.iter().enumerate() {
        D::from_f64(x).store(dst.wrapping_offset(i as isize * step));
    }
}
