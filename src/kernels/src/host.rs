//! The kernels' code on the CPU, compiled from the same source. Tests use it as the reference, and it computes the
//! device's values where there is no device.
//!
//! `unsafe` is allowed here, to call C++ functions.

#![allow(unsafe_code)]

use crate::zstd::{Block, BlockResult, Frame, Wave};
use crate::{ChecksumKind, Job, Op, StreamKind};

unsafe extern "C" {
    fn dz_host_assemble(jobs: *const Job, n_jobs: u32, ops: *const Op, counters: *mut u64);
    fn dz_host_assemble_transposed(job: *const Job, op: *const Op, counters: *mut u64) -> u64;
    fn dz_host_walk(job: *const Job, size: i32, index: u64, width: *mut u32, src: *mut i64, dst: *mut i64);
    fn dz_host_copy_shuffled(job: *const Job, size: i32) -> u32;
    fn dz_host_convert(bits: u64, op: *const Op, fills: u32, replaced: *mut u32) -> u64;
    fn dz_host_inflate(input: *const u8, len: u64, out: *mut u8, capacity: u64, produced: *mut u64, small: u32) -> i32;
    fn dz_host_stream(
        kind: u32,
        input: *const u8,
        len: u64,
        out: *mut u8,
        capacity: u64,
        produced: *mut u64,
        ring: u32,
    ) -> i32;
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

/// Does the work of `dz_assemble`, `dz_assemble_fill`, `dz_assemble_channels` and `dz_assemble_between` on host memory, one
/// element after the other. Adds the numbers of replaced NaNs to `counters`.
///
/// # Panics
/// - If a job has no dimension, or more than [`crate::MAX_DIMS`], or its operation is not in `ops`.
/// - If an operation replaces NaNs and its counter is not in `counters`.
/// - If an operation has a table, and its job has no dimension of channels.
///
/// # Safety
/// Every element of a job's box lies in memory that may be read (source) or written (output). Lists of missing values
/// and tables whose address an operation holds may be read. A table has all channels that its jobs name.
pub unsafe fn assemble(jobs: &[Job], ops: &[Op], counters: &mut [u64]) {
    for job in jobs {
        assert!((job.op as usize) < ops.len() && (1..=crate::MAX_DIMS).contains(&(job.ndim as usize)));
        let op = &ops[job.op as usize];
        assert!(op.has_fillna == 0 || (op.counter as usize) < counters.len());
        let has_channels = (job.ndim as usize) < crate::MAX_DIMS && job.channels().0 < job.ndim as usize;
        assert!(op.has_norm != crate::NORM_TABLE || has_channels);
    }
    let n = u32::try_from(jobs.len()).expect("fewer than 2^32 jobs");
    // SAFETY: the lengths are those of the slices, indexes into `ops` and `counters` were checked, and the caller vouches for
    // the boxes.
    unsafe { dz_host_assemble(jobs.as_ptr(), n, ops.as_ptr(), counters.as_mut_ptr()) }
}

/// Does the work of `dz_assemble_transposed` on host memory, for one job: tile by tile, each through slots as in shared
/// memory. Adds the number of replaced NaNs to `counters`. Returns the number of tiles.
///
/// # Panics
/// If the job isn't [transposed](Job::is_transposed), and as [`assemble`] does. If a tile needs more shared memory than there
/// is.
///
/// # Safety
/// As for [`assemble`]. The kernel also needs elements that are aligned to their size.
pub unsafe fn assemble_transposed(job: &Job, op: &Op, counters: &mut [u64]) -> u64 {
    assert!(job.is_transposed() && (2..=crate::MAX_DIMS).contains(&(job.ndim as usize)));
    assert!(op.has_fillna == 0 || (op.counter as usize) < counters.len());
    let has_channels = (job.ndim as usize) < crate::MAX_DIMS && job.channels().0 < job.ndim as usize;
    assert!(op.has_norm != crate::NORM_TABLE || has_channels);
    // SAFETY: the counter was checked, and the caller vouches for the box.
    let tiles = unsafe { dz_host_assemble_transposed(job, op, counters.as_mut_ptr()) };
    assert!(tiles > 0, "tiles that fit into shared memory");
    tiles
}

/// Tells how `dz_assemble` walks a job's box when it copies elements of `size` bytes. Returns the number of elements in
/// a unit, and the distance of unit `index` from the first one in the source and in the output, in units.
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

/// How `dz_assemble` gathers elements from a shuffled chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Byte by byte.
    Bytes,
    /// Element by element.
    Elements,
    /// Four neighbouring elements at once (byte shuffle), or eight (bit shuffle).
    Units,
}

/// Copies a job's box of elements of `size` bytes from a shuffled chunk with the loads that `dz_assemble` uses for it.
/// Returns which loads these were.
///
/// # Panics
/// If the job has no dimension or more than [`crate::MAX_DIMS`], if `size` is not 1, 2, 4 or 8, or if the job has no
/// layout.
///
/// # Safety
/// As for [`assemble`], with elements aligned to their size; `src` is aligned to 8.
pub unsafe fn copy_shuffled(job: &Job, size: i32) -> Reach {
    assert!((1..=crate::MAX_DIMS).contains(&(job.ndim as usize)) && matches!(size, 1 | 2 | 4 | 8));
    assert!(job.layout.shuffle != 0 && job.layout.blocksize > 0 && job.layout.typesize > 0 && job.layout.nbytes > 0);
    // SAFETY: the job is alive, and the caller vouches for the box.
    match unsafe { dz_host_copy_shuffled(job, size) } {
        0 => Reach::Bytes,
        1 => Reach::Elements,
        _ => Reach::Units,
    }
}

/// Converts one element by the code of `dz_assemble`, from the stored bits to the output's bits. Both are in native
/// byte order and zero-extended.
///
/// # Panics
/// If the operation has more than [`crate::MAX_INLINE`] missing values, replaces NaNs, or has a table.
pub fn convert(bits: u64, op: &Op) -> u64 {
    assert!(op.num_missing as usize <= crate::MAX_INLINE && op.has_fillna == 0 && op.has_norm != crate::NORM_TABLE);
    // SAFETY: both pointers are to live values, and the operation holds no address that the function would read.
    unsafe { dz_host_convert(bits, op, 0, &mut 0) }
}

/// Converts one element as [`convert`] does, but by the code of `dz_assemble_fill`. Also returns whether a NaN was
/// replaced.
///
/// # Panics
/// If the operation has more than [`crate::MAX_INLINE`] missing values, or has a table.
pub fn convert_filling(bits: u64, op: &Op) -> (u64, bool) {
    assert!(op.num_missing as usize <= crate::MAX_INLINE && op.has_norm != crate::NORM_TABLE);
    let mut replaced = 0;
    // SAFETY: as for `convert`.
    let bits = unsafe { dz_host_convert(bits, op, 1, &mut replaced) };
    (bits, replaced != 0)
}

/// Returns the checksum of `data`. It is computed in parts that are joined as on the device.
pub fn checksum(kind: ChecksumKind, data: &[u8]) -> u32 {
    // SAFETY: pointer and length are those of the slice.
    unsafe { dz_host_checksum(kind as u32, data.as_ptr(), data.len() as u64) }
}

/// Decodes one raw deflate stream into `out` as `dz_inflate_*` do. Returns the number of bytes decoded.
///
/// `small` uses fewer threads and smaller buffers than the kernels, so that a short stream reaches all edge cases.
///
/// # Errors
/// The status, in nvCOMP's numbers: 12 corrupt, 15 more bytes than fit into `out`, 20 wrong length of the input.
pub fn inflate(input: &[u8], out: &mut [u8], small: bool) -> Result<usize, i32> {
    let (mut produced, len) = (0, input.len() as u64);
    // SAFETY: pointers and lengths are those of the slices; the decoder stays within them whatever the input is.
    let status = unsafe {
        dz_host_inflate(input.as_ptr(), len, out.as_mut_ptr(), out.len() as u64, &mut produced, u32::from(small))
    };
    if status == 0 { Ok(produced as usize) } else { Err(status) }
}

/// Decodes one stream into `out` as `dz_lz4` does, with all lanes of one warp. Returns the number of bytes decoded.
///
/// `ring` is the size of the buffer for recent output in bytes: 4096, or 8192 as in `dz_lz4`.
///
/// # Errors
/// The status, in nvCOMP's numbers: 12 corrupt, 15 more bytes than fit into `out`, 20 the input ends too early.
pub fn stream(kind: StreamKind, input: &[u8], out: &mut [u8], ring: u32) -> Result<usize, i32> {
    assert!(matches!(ring, 4096 | 8192));
    let mut produced = 0;
    let (capacity, to) = (out.len() as u64, out.as_mut_ptr());
    // SAFETY: pointers and lengths are those of the slices. The decoder writes only to `out`. Outside of `input` it
    // reads only bytes that share an aligned word of four bytes with it.
    let status =
        unsafe { dz_host_stream(kind as u32, input.as_ptr(), input.len() as u64, to, capacity, &mut produced, ring) };
    if status == 0 { Ok(produced as usize) } else { Err(status) }
}

/// Decodes a wave in host memory as `dz_zstd_entropy`, `dz_zstd_sequences` and `dz_zstd_execute_*` do. Returns for each
/// frame the number of bytes written, and its status.
///
/// # Safety
/// The wave was made with [`Wave::push`] from [plans](crate::zstd::FramePlan) of the same bytes that lie at the frames'
/// addresses. Each output has room for its plan's capacity.
pub unsafe fn zstd(wave: &Wave) -> Vec<(u64, i32)> {
    let mut workspace = vec![0u128; (wave.workspace / 16) as usize];
    let mut results = vec![BlockResult::default(); wave.blocks.len()];
    let (mut out_bytes, mut statuses) = (vec![0u64; wave.frames.len()], vec![0i32; wave.frames.len()]);
    // SAFETY: the arrays have the lengths that the wave needs; the caller vouches for the addresses in it. The decoder
    // stays within the memory that the plans describe, whatever the frames' bytes are.
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
