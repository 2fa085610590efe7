//! Batches: takes them, returns their contents, and lends the device memory that they are written to.

use std::ffi::c_void;

use dali_zarr_base::error::Error;
use dali_zarr_engine::reader::{Batch, DeviceBuffers};

use super::readers::CReader;
use super::{call, deref, null, put};
use crate::unwind::{Fenced, guard};

/// `dali_zarr_batch`.
pub struct CBatch(Fenced<Batch>);

/// Waits for the next batch.
///
/// # Safety
/// `reader` is null or open, and `batch` null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_next_batch(reader: *mut CReader, batch: *mut *mut CBatch) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for both pointers.
        let reader = unsafe {
            put(batch, std::ptr::null_mut(), "batch")?;
            deref(reader, "reader")?
        };
        let next = CBatch(Fenced::new(reader.reader.own()?.next_batch()?));
        // SAFETY: as above.
        unsafe { put(batch, Box::into_raw(Box::new(next)), "batch") }
    })
}

/// The host memory of one output.
///
/// # Safety
/// `batch` is null or not released yet, and the others null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_batch_data(
    batch: *const CBatch,
    output: usize,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let host = &unsafe { deref(batch, "batch") }?.0.host;
        let memory = host
            .get(output)
            .ok_or_else(|| Error::index(format!("output {output}: the batch has {} in host memory", host.len())))?;
        // SAFETY: the caller's promise for both pointers.
        unsafe {
            put(data, memory.as_ptr().cast(), "data")?;
            put(bytes, memory.len(), "bytes")
        }
    })
}

/// The number of a batch's samples.
///
/// # Safety
/// `batch` is null or not released yet, and `count` null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_batch_samples(batch: *const CBatch, count: *mut usize) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let samples = unsafe { deref(batch, "batch") }?.0.samples;
        // SAFETY: the caller's promise.
        unsafe { put(count, samples, "count") }
    })
}

/// The lengths of a batch's samples in ragged outputs.
///
/// # Safety
/// `batch` is null or not released yet, and the others null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_batch_lengths(
    batch: *const CBatch,
    lengths: *mut *const i64,
    count: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let found = &unsafe { deref(batch, "batch") }?.0.lengths;
        // SAFETY: the caller's promise for both pointers.
        unsafe {
            put(lengths, if found.is_empty() { std::ptr::null() } else { found.as_ptr() }, "lengths")?;
            put(count, found.len(), "count")
        }
    })
}

/// The shapes of a batch's samples in a ragged output.
///
/// # Safety
/// `batch` is null or not released yet, and the others null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_batch_shapes(
    batch: *const CBatch,
    output: usize,
    shapes: *mut *const i64,
    count: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { deref(batch, "batch") }?.0.shapes.get(output).map_or(&[][..], Vec::as_slice);
        // SAFETY: the caller's promise for both pointers.
        unsafe {
            put(shapes, if found.is_empty() { std::ptr::null() } else { found.as_ptr() }, "shapes")?;
            put(count, found.len(), "count")
        }
    })
}

/// The lent set that holds the batch.
///
/// # Safety
/// `batch` is null or not released yet, and `id` null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_batch_buffers(batch: *const CBatch, id: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let set = unsafe { deref(batch, "batch") }?.0.buffers;
        let set = set.ok_or_else(|| Error::value("the batch was delivered to host memory"))?;
        // SAFETY: the caller's promise.
        unsafe { put(id, set, "id") }
    })
}

/// Gives a batch back.
///
/// # Safety
/// `batch` is null or comes from `dali_zarr_next_batch` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_batch_release(batch: *mut CBatch) {
    if !batch.is_null() {
        // SAFETY: made by `Box::into_raw`, and released only once by the caller's promise. A panic in the batch's
        // destructor is caught.
        drop(unsafe { Box::from_raw(batch) });
    }
}

/// How many sets of device buffers to lend before the first batch.
///
/// # Safety
/// `reader` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_buffers_wanted(reader: *const CReader) -> usize {
    // SAFETY: the caller's promise.
    guard(|| Ok(unsafe { deref(reader, "reader") }?.reader.own()?.buffers_wanted())).unwrap_or(0)
}

/// Lends a set of device buffers.
///
/// # Safety
/// `reader` is null or open, `outputs` points to `count` addresses, and addresses and event are as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_lend(
    reader: *mut CReader,
    id: u64,
    outputs: *const u64,
    count: usize,
    ready: u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let reader = unsafe { deref(reader, "reader") }?;
        if count != reader.outputs.len() {
            return Err(Error::value(format!(
                "lend: expected an address for each of {} outputs, but found {count}",
                reader.outputs.len()
            )));
        }
        if outputs.is_null() {
            return Err(null("outputs"));
        }
        // SAFETY: not null, and the caller promises `count` addresses.
        let outputs = unsafe { std::slice::from_raw_parts(outputs, count) }.to_vec();
        reader.reader.own()?.lend(DeviceBuffers { id, outputs, ready })
    })
}
