//! Walks the boxes of jobs on the CPU.

use dali_zarr_base::dtype::DType;
use dali_zarr_kernels::Job;

/// Returns the number of elements of a job's box.
pub(super) fn elements(job: &Job) -> u64 {
    job.extent[..job.ndim as usize].iter().map(|&e| u64::from(e)).product()
}

/// Returns the type with this discriminant.
pub(super) fn dtype(discriminant: i32) -> DType {
    DType::ALL[discriminant as usize]
}

/// Calls `row` for every innermost row of the box. Takes the sizes of an element of source and destination, in bytes.
pub(super) fn walk(
    job: &Job,
    src_size: usize,
    dst_size: usize,
    mut row: impl FnMut(*const u8, isize, *mut u8, isize, usize),
) {
    let inner = job.ndim as usize - 1;
    let (src_step, dst_step) =
        (job.src_stride[inner] as isize * src_size as isize, job.dst_stride[inner] as isize * dst_size as isize);
    let n = job.extent[inner] as usize;
    each(job, inner, (src_size, dst_size), |src, dst| row(src, src_step, dst, dst_step, n));
}

/// Calls `f` for every element of the first `rank` dimensions of a box, with its addresses in source and destination. Takes
/// the sizes of an element of source and destination, in bytes.
pub(super) fn each(
    job: &Job,
    rank: usize,
    (src_size, dst_size): (usize, usize),
    mut f: impl FnMut(*const u8, *mut u8),
) {
    let count: u64 = job.extent[..rank].iter().map(|&e| u64::from(e)).product();
    for r in 0..count {
        let (mut rest, mut src, mut dst) = (r, 0i64, 0i64);
        for d in (0..rank).rev() {
            let i = (rest % u64::from(job.extent[d])) as i64;
            rest /= u64::from(job.extent[d]);
            src += i * job.src_stride[d];
            dst += i * job.dst_stride[d];
        }
        let src = (job.src as i64).wrapping_add(src * src_size as i64) as *const u8;
        let dst = (job.dst as i64).wrapping_add(dst * dst_size as i64) as *mut u8;
        f(src, dst);
    }
}
