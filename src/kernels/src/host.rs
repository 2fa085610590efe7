//! The kernels' element function and arithmetic on the CPU, from the same source: the reference for tests, and for
//! anything that must give the device's values where there is none.

use crate::zstd::{Block, BlockResult, Frame, Wave};
use crate::{ChecksumKind, Job, Op};

unsafe extern "C" {
    fn dz_host_assemble(jobs: *const Job, n_jobs: u32, ops: *const Op);
    fn dz_host_walk(job: *const Job, size: i32, index: u64, width: *mut u32, src: *mut i64, dst: *mut i64);
    fn dz_host_convert(bits: u64, op: *const Op) -> u64;
    fn dz_host_inflate(input: *const u8, len: u64, out: *mut u8, capacity: u64, produced: *mut u64) -> i32;
    fn dz_host_checksum(kind: u32, data: *const u8, len: u64) -> u32;
    fn dz_host_zstd(
        frames: *const Frame,
        n_frames: u32,
        blocks: *const Block,
        work: *const u32,
        n_work: u32,
        workspace: *mut u8,
        results: *mut BlockResult,
        out_bytes: *mut u64,
        statuses: *mut i32,
    );
}

/// What `dz_assemble` does, one element after the other, on host memory.
///
/// # Panics
/// If a job names an operation that is not in `ops`, or has no dimension or more than [`crate::MAX_DIMS`].
///
/// # Safety
/// Every element that a job's box covers lies in memory that may be read (source) and written (output).
pub unsafe fn assemble(jobs: &[Job], ops: &[Op]) {
    for job in jobs {
        assert!((job.op as usize) < ops.len() && (1..=crate::MAX_DIMS).contains(&(job.ndim as usize)));
    }
    let n = u32::try_from(jobs.len()).expect("fewer than 2^32 jobs");
    // SAFETY: the lengths are those of the slices, indexes into `ops` were checked, and the caller vouches for the boxes.
    unsafe { dz_host_assemble(jobs.as_ptr(), n, ops.as_ptr()) }
}

/// How `dz_assemble` walks a job's box when it copies elements of `size` bytes: the elements that it joins into one
/// unit, and where unit `index` lies, in units from the first, in the source and in the output.
///
/// # Panics
/// If the job has no dimension or more than [`crate::MAX_DIMS`], or `size` is not 1, 2, 4 or 8.
pub fn walk(job: &Job, size: i32, index: u64) -> (u32, i64, i64) {
    assert!((1..=crate::MAX_DIMS).contains(&(job.ndim as usize)) && matches!(size, 1 | 2 | 4 | 8));
    let (mut width, mut src, mut dst) = (0, 0, 0);
    // SAFETY: all pointers are to live values; the function reads nothing else.
    unsafe { dz_host_walk(job, size, index, &mut width, &mut src, &mut dst) };
    (width, src, dst)
}

/// One element: from the stored bits (native order, zero-extended) to the output's bits (likewise).
pub fn convert(bits: u64, op: &Op) -> u64 {
    // SAFETY: a pure function of its arguments.
    unsafe { dz_host_convert(bits, op) }
}

/// The checksum of `data`, computed in parts that are joined as the device joins them.
pub fn checksum(kind: ChecksumKind, data: &[u8]) -> u32 {
    // SAFETY: pointer and length are those of the slice.
    unsafe { dz_host_checksum(kind as u32, data.as_ptr(), data.len() as u64) }
}

/// What `dz_inflate` does with one raw deflate stream: bytes decoded into `out`, or the status (as nvCOMP numbers them:
/// 12 corrupt, 15 more than fits `out`, 20 wrong length of the input).
///
/// # Errors
/// The status, if it isn't 0.
pub fn inflate(input: &[u8], out: &mut [u8]) -> Result<usize, i32> {
    let mut produced = 0;
    // SAFETY: pointers and lengths are those of the slices; the decoder stays within them whatever the input is.
    let status = unsafe {
        dz_host_inflate(input.as_ptr(), input.len() as u64, out.as_mut_ptr(), out.len() as u64, &mut produced)
    };
    if status == 0 { Ok(produced as usize) } else { Err(status) }
}

/// What `dz_zstd_entropy` and `dz_zstd_execute_*` do with a wave, on host memory: each frame's bytes written, and its
/// status.
///
/// # Safety
/// The wave was put together with [`Wave::push`] from [plans](crate::zstd_plan::plan) of the same bytes that lie at the
/// frames' addresses, and each output has room for its plan's capacity.
pub unsafe fn zstd(wave: &Wave) -> Vec<(u64, i32)> {
    let mut workspace = vec![0u128; (wave.workspace / 16) as usize];
    let mut results = vec![BlockResult::default(); wave.blocks.len()];
    let (mut out_bytes, mut statuses) = (vec![0u64; wave.frames.len()], vec![0i32; wave.frames.len()]);
    // SAFETY: the arrays have the lengths that the wave says; the caller vouches for the addresses in it. The decoder
    // stays within what the plans name, whatever the frames' bytes are.
    unsafe {
        dz_host_zstd(
            wave.frames.as_ptr(),
            wave.frames.len() as u32,
            wave.blocks.as_ptr(),
            wave.work.as_ptr(),
            wave.work.len() as u32,
            workspace.as_mut_ptr().cast(),
            results.as_mut_ptr(),
            out_bytes.as_mut_ptr(),
            statuses.as_mut_ptr(),
        );
    }
    out_bytes.into_iter().zip(statuses).collect()
}
