//! Copies and fills, enqueued on a stream. Device memory is given by address.

use super::{Stream, check};
use cudarc::driver::sys;
use dali_zarr_base::error::Result;

/// Enqueues a copy from host to device memory. Asynchronous only from page-locked memory.
///
/// # Errors
/// If the driver refuses, or an earlier operation failed.
///
/// # Safety
/// `src` and `dst` have `len` bytes, which stay valid, and `src` unchanged, until the stream has passed this point.
pub unsafe fn copy_to_device_async(stream: &Stream, dst: u64, src: *const u8, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the caller vouches for both ranges.
    check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(dst, src.cast(), len, stream.handle) })
}

/// Enqueues a copy to device memory. `src` is in page-locked memory or on the device.
///
/// # Errors
/// If the driver refuses, or an earlier operation failed.
///
/// # Safety
/// As for [`copy_to_device_async`].
pub unsafe fn copy_async(stream: &Stream, dst: u64, src: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the caller vouches for both ranges; addresses tell the driver where they are.
    check("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(dst, src, len, stream.handle) })
}

/// Enqueues a copy from device to host memory. Asynchronous only to page-locked memory.
///
/// # Errors
/// If the driver refuses, or an earlier operation failed.
///
/// # Safety
/// `src` and `dst` have `len` bytes, which stay valid, and `dst` untouched, until the stream has passed this point.
pub unsafe fn copy_to_host_async(stream: &Stream, dst: *mut u8, src: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the caller vouches for both ranges.
    check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(dst.cast(), src, len, stream.handle) })
}

/// Enqueues a copy within device memory. The copy engine does it if it is large.
///
/// # Errors
/// If the driver refuses, or an earlier operation failed.
///
/// # Safety
/// `src` and `dst` have `len` bytes, which stay valid until the stream has passed this point, and don't overlap.
pub unsafe fn copy_device_async(stream: &Stream, dst: u64, src: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the caller vouches for both ranges.
    check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(dst, src, len, stream.handle) })
}

/// Enqueues filling device memory with one byte's value.
///
/// # Errors
/// If the driver refuses, or an earlier operation failed.
///
/// # Safety
/// `dst` has `len` bytes, which stay valid until the stream has passed this point.
pub unsafe fn memset_async(stream: &Stream, dst: u64, value: u8, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the caller vouches for the range.
    check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(dst, value, len, stream.handle) })
}
