//! The device's walk of a box (merged dimensions, vectors) visits exactly the elements that the plain walk visits.

use dali_zarr_kernels::{Job, Op, Source, TILE, host};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn job(src: u64, dst: u64, extent: &[u32], src_stride: &[i64], dst_stride: &[i64]) -> Job {
    Job::new(src, dst, (0..extent.len()).map(|d| (extent[d], src_stride[d], dst_stride[d])))
}

/// Returns the set of pairs of element offsets (source, output) of a job.
fn plain(job: &Job) -> BTreeSet<(i64, i64)> {
    let n = job.ndim as usize;
    let total: u64 = job.extent[..n].iter().map(|&e| e as u64).product();
    (0..total)
        .map(|i| {
            let (mut rest, mut src, mut dst) = (i, 0, 0);
            for d in (0..n).rev() {
                let at = (rest % job.extent[d] as u64) as i64;
                rest /= job.extent[d] as u64;
                src += at * job.src_stride[d];
                dst += at * job.dst_stride[d];
            }
            (src, dst)
        })
        .collect()
}

fn walked(job: &Job, size: i32) -> (u32, BTreeSet<(i64, i64)>) {
    let total: u64 = job.extent[..job.ndim as usize].iter().map(|&e| e as u64).product();
    let (width, _, _) = host::walk(job, size, 0);
    let mut seen = BTreeSet::new();
    for unit in 0..total / width as u64 {
        let (_, src, dst) = host::walk(job, size, unit);
        for k in 0..width as i64 {
            seen.insert((src * width as i64 + k, dst * width as i64 + k));
        }
    }
    (width, seen)
}

#[test]
fn a_contiguous_box_goes_in_vectors_of_16_bytes() {
    let contiguous = job(0x1000, 0x2000, &[3, 721, 1440], &[721 * 1440, 1440, 1], &[721 * 1440, 1440, 1]);
    assert_eq!(host::walk(&contiguous, 4, 0).0, 4);
    assert_eq!(host::walk(&contiguous, 1, 0).0, 16);
    assert_eq!(host::walk(&contiguous, 8, 721 * 1440).1, 721 * 1440);
}

#[test]
fn a_misaligned_crop_goes_in_narrower_vectors() {
    // Columns 2.. of rows of 1440: source and output are both aligned to 8 bytes, but not both to 16.
    assert_eq!(host::walk(&job(0x1008, 0x2000, &[8, 64], &[1440, 1], &[64, 1]), 4, 0).0, 2);
    assert_eq!(host::walk(&job(0x1004, 0x2000, &[8, 64], &[1440, 1], &[64, 1]), 4, 0).0, 1);
    assert_eq!(host::walk(&job(0x1000, 0x2000, &[8, 64], &[1441, 1], &[64, 1]), 4, 0).0, 1);
    assert_eq!(host::walk(&job(0x1000, 0x2000, &[8, 64], &[1, 8], &[64, 1]), 4, 0).0, 1);
}

#[test]
fn boxes_of_more_than_2_to_the_32_elements_are_walked() {
    let long = job(0, 0, &[1 << 20, 1 << 16], &[1 << 17, 1], &[1 << 16, 1]);
    let (width, src, dst) = host::walk(&long, 1, (1 << 32) - 1);
    assert_eq!(width, 16);
    assert_eq!((src, dst), ((((1u64 << 20) - 1) << 13) as i64 + 4095, (1i64 << 32) - 1));
    let (_, src, _) = host::walk(&job(0, 0, &[1 << 20, 1 << 16], &[1 << 17, 2], &[1 << 16, 1]), 1, (1 << 36) - 1);
    assert_eq!(src, ((1i64 << 20) - 1) * (1 << 17) + 2 * 65535);
}

#[test]
fn reverse_broadcast_and_order_of_bytes() {
    let data: [u16; 4] = [0x0102, 0x0304, 0x0506, 0x0708];
    let mut out = [0u16; 8];
    let op = Op { swap: 1, fill: 9, pad: 3.4, ..Op::cast(6, 6) };
    let last = &data[3] as *const u16 as u64;
    let mut jobs = [job(last, out.as_mut_ptr() as u64, &[2, 4], &[0, -1], &[4, 1]); 3];
    // SAFETY: two rows of the four elements backwards, into eight.
    unsafe { host::assemble(&jobs[..1], &[op], &mut []) };
    assert_eq!(out, [0x0807, 0x0605, 0x0403, 0x0201, 0x0807, 0x0605, 0x0403, 0x0201]);
    jobs[1].source = Source::Fill as u32;
    jobs[1].extent[1] = 2;
    jobs[2].source = Source::Pad as u32;
    jobs[2].extent[1] = 1;
    // SAFETY: parts of the same box, without a source.
    unsafe { host::assemble(&jobs[1..], &[op], &mut []) };
    assert_eq!(out, [3, 9, 0x0403, 0x0201, 3, 9, 0x0403, 0x0201], "the fill value is in native order");
}

proptest! {
    #[test]
    fn merging_and_vectors_visit_the_same_elements(
        extent in prop::collection::vec(1u32..6, 1..5),
        inner in 1u32..20,
        gaps in prop::collection::vec((0i64..3, 0i64..3), 5),
        base in (0u64..5, 0u64..5),
        log_size in 0u32..4,
        transposed: bool,
    ) {
        let size = 1u64 << log_size;
        let mut extent = extent;
        extent.push(inner);
        let n = extent.len();
        let (mut src, mut dst) = (vec![1i64; n], vec![1i64; n]);
        for d in (0..n - 1).rev() {
            src[d] = src[d + 1] * extent[d + 1] as i64 + 4 * gaps[d].0;
            dst[d] = dst[d + 1] * extent[d + 1] as i64 + 4 * gaps[d].1;
        }
        if transposed {
            src.reverse();
        }
        let job = job(4096 + base.0 * 4 * size, 8192 + base.1 * 4 * size, &extent, &src, &dst);
        let (width, seen) = walked(&job, size as i32);
        prop_assert!(TILE.is_multiple_of(width) && width as u64 * size <= 16);
        prop_assert_eq!(seen, plain(&job));
    }
}
