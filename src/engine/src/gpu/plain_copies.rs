//! Jobs that only copy contiguous bytes. The device's copy engine runs the large ones. It works beside a model's
//! kernels, while `dz_assemble` would take multiprocessors from them.
//!
//! `unsafe` is allowed here: chunks and outputs are copied by address.

#![allow(unsafe_code)]

use dali_zarr_kernels::{Job, Op};

use crate::gpu::driver::{Stream, copy_device_async};
use dali_zarr_base::error::Result;
use dali_zarr_samples::assemble::copied_bytes;

/// The copy engine runs copies of at least this many bytes. The kernel runs shorter ones: it copies this many bytes in
/// 2 microseconds (H200), which is no longer than the call to the driver that a copy of its own needs.
pub(super) const MIN_COPY: usize = 1 << 20;

/// Enqueues the jobs that are plain copies of at least [`MIN_COPY`] bytes. Returns the other jobs.
///
/// Neighbouring copies are not joined: their destinations may lie in two allocations, and the driver accepts no range
/// across both.
///
/// # Errors
/// If the driver refuses, or an earlier operation failed.
///
/// # Safety
/// The jobs read and write device memory that stays valid until the stream has passed this point. No job reads memory
/// that another one writes.
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
