//! Walks the boxes of jobs on the CPU.

use dali_zarr_base::dtype::DType;
use dali_zarr_kernels::{Job, MAX_DIMS};

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
    debug_assert!(!job.extent[..rank].contains(&0), "boxes have at least one element along each dimension");
    let stride = |d: usize| (job.src_stride[d] * src_size as i64, job.dst_stride[d] * dst_size as i64);
    let strides: [(i64, i64); MAX_DIMS] = std::array::from_fn(|d| if d < rank { stride(d) } else { (0, 0) });
    let (mut src, mut dst) = (job.src as *const u8, job.dst as *mut u8);
    let mut at = [0u32; MAX_DIMS];
    loop {
        f(src, dst);
        // Rows may be as short as three elements, which take less time than one division.
        let mut d = rank;
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            let (by_src, by_dst) = strides[d];
            (src, dst) = (src.wrapping_offset(by_src as isize), dst.wrapping_offset(by_dst as isize));
            at[d] += 1;
            if at[d] < job.extent[d] {
                break;
            }
            let back = -i64::from(at[d]);
            src = src.wrapping_offset((back * by_src) as isize);
            dst = dst.wrapping_offset((back * by_dst) as isize);
            at[d] = 0;
        }
    }
}
