//! Jobs that only copy contiguous bytes. The device's copy engine does the large ones, beside a model's kernels. `dz_assemble` would
//! take multiprocessors from these.
//!
//! `unsafe` is allowed here: chunks and outputs are copied by address.

#![allow(unsafe_code)]

use dali_zarr_kernels::{Job, Op};

use crate::assemble::copied_bytes;
use crate::error::Result;
use crate::gpu::driver::{Stream, copy_device_async};

/// Shorter copies are left to the kernel: it takes 2 microseconds for so many bytes (H200), no longer than the call to the driver that each of
/// the others is.
pub(super) const MIN_COPY: usize = 1 << 20;

/// Starts the jobs that are long plain copies. Returns the other jobs.
///
/// Neighbouring copies are not joined: their destinations may be two allocations, which the driver takes for no range.
///
/// # Errors
/// If the driver refuses, or an earlier operation failed.
///
/// # Safety
/// What the jobs read and write is device memory that stays valid until the stream has passed this point. They read no memory that
/// others of them write.
pub(super) unsafe fn start_plain_copies<'a>(
    stream: &Stream,
    jobs: impl Iterator<Item = &'a Job>,
    ops: &[Op],
) -> Result<Vec<&'a Job>> {
    let mut others = Vec::new();
    for job in jobs {
        match copied_bytes(job, &ops[job.op as usize]).filter(|&bytes| bytes >= MIN_COPY) {
            // SAFETY: the caller vouches for both ranges.
            Some(bytes) => unsafe { copy_device_async(stream, job.dst, job.src, bytes)? },
            None => others.push(job),
        }
    }
    Ok(others)
}
