//! What the C++ shim of the DALI operator may ask of the engine; `shim/engine.h` declares the same. It is C, so that one engine serves
//! shims of several versions of DALI, whichever C++ library they were compiled with.
//!
//! The shim and the engine are built together: nothing here is promised to other hosts, whose functions are in [`crate::c_abi`].
//! Errors are told as there: a status, and the message behind `dali_zarr_last_error`.

use std::ffi::c_char;

use dali_zarr_engine::error::{Error, Result};
use dali_zarr_engine::reader::{Batch, DeviceBuffers, HostBuffer};
use dali_zarr_engine::spec::Spec;

use crate::c_abi::{CMeta, call, deref, keep_text, null, put};
use crate::operator::Operator;
use crate::unwind::{Fenced, guard};

/// A batch that was taken, as DALI's outputs need it.
pub struct TakenBatch {
    batch: Batch,
    host: Vec<Option<HostBuffer>>,
}

/// `dali_zarr_operator_output`.
#[repr(C)]
pub struct Output {
    shape: *const i64,
    ndim: usize,
    dtype: i32,
    ragged: i32,
    bytes: usize,
    layout: *const c_char,
}

/// `dali_zarr_operator_batch_info`.
#[repr(C)]
pub struct BatchInfo {
    set: u64,
    lengths: *const i64,
    num_lengths: usize,
    names: *const u8,
    name_ends: *const u32,
    num_names: usize,
}

/// `dali_zarr_operator_memory`.
#[repr(C)]
pub struct Memory {
    owner: *mut Fenced<HostBuffer>,
    data: *const u8,
    bytes: usize,
}

/// # Safety
/// `data` is null or points to `len` elements that live as long as the result.
unsafe fn slice<'a, T>(data: *const T, len: usize, what: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// # Safety
/// `operator` is null, or comes from [`dali_zarr_operator_new`] and is used by nobody else while the result lives.
unsafe fn exclusive<'a>(operator: *mut Operator) -> Result<&'a mut Operator> {
    // SAFETY: the caller's promise.
    unsafe { operator.as_mut() }.ok_or_else(|| null("operator"))
}

/// How many outputs the arguments give.
///
/// # Safety
/// `arguments` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_num_outputs(arguments: *const u8, len: usize) -> i32 {
    // What is wrong is said when the reader is opened.
    // SAFETY: the caller's promise.
    let count = guard(|| Spec::num_outputs(unsafe { slice(arguments, len, "arguments") }?));
    count.ok().and_then(|n| i32::try_from(n).ok()).unwrap_or(1)
}

/// A reader that isn't open yet.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_operator_new() -> *mut Operator {
    Box::into_raw(Box::default())
}

/// Ends a reader.
///
/// # Safety
/// `operator` is null, or comes from [`dali_zarr_operator_new`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_free(operator: *mut Operator) {
    if !operator.is_null() {
        // SAFETY: made by `Box::into_raw`, and given back once by the caller's promise.
        drop(Fenced::new(unsafe { Box::from_raw(operator) }));
    }
}

/// Opens the store.
///
/// # Safety
/// `operator` is null or not freed, and the others point to as many bytes as their lengths say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_open(
    operator: *mut Operator,
    arguments: *const u8,
    arguments_len: usize,
    wait: i32,
    num_outputs: usize,
    place: *const u8,
    place_len: usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for all three.
        let (operator, arguments, place) = unsafe {
            (exclusive(operator)?, slice(arguments, arguments_len, "arguments")?, slice(place, place_len, "place")?)
        };
        operator.open(arguments, wait != 0, num_outputs, String::from_utf8_lossy(place).into_owned())
    })
}

/// The number of outputs.
///
/// # Safety
/// `operator` is null or not freed, and `count` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_outputs(operator: *const Operator, count: *mut usize) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (outputs, _) = unsafe { deref(operator, "operator") }?.outputs()?;
        // SAFETY: the caller's promise.
        unsafe { put(count, outputs.len(), "count") }
    })
}

/// Describes an output.
///
/// # Safety
/// `operator` is null or not freed, and `output` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_describe(
    operator: *const Operator,
    index: usize,
    output: *mut Output,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (outputs, batch_size) = unsafe { deref(operator, "operator") }?.outputs()?;
        let found = outputs.get(index).ok_or_else(|| Error::index(format!("the reader has no output {index}")))?;
        let described = Output {
            shape: found.shape.as_ptr(),
            ndim: found.shape.len(),
            dtype: found.dtype.delivered() as i32,
            ragged: found.ragged.is_some().into(),
            bytes: found.batch_bytes(batch_size),
            layout: keep_text(&found.layout),
        };
        // SAFETY: the caller's promise.
        unsafe { put(output, described, "output") }
    })
}

/// The extent of an epoch.
///
/// # Safety
/// `operator` is null or not freed, and `meta` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_meta(operator: *const Operator, meta: *mut CMeta) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { deref(operator, "operator") }?.meta()?;
        // SAFETY: the caller's promise.
        unsafe { put(meta, CMeta::from(found), "meta") }
    })
}

/// How many sets of device memory to lend.
///
/// # Safety
/// `operator` is null or not freed, and `count` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_buffers_wanted(operator: *const Operator, count: *mut usize) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let wanted = unsafe { deref(operator, "operator") }?.buffers_wanted()?;
        // SAFETY: the caller's promise.
        unsafe { put(count, wanted, "count") }
    })
}

/// Lends a set of device memory.
///
/// # Safety
/// `operator` is null or not freed, and `addresses` points to `count` of them, each of memory as large as its output needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_lend(
    operator: *const Operator,
    id: u64,
    addresses: *const u64,
    count: usize,
    ready: u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (operator, addresses) = unsafe { (deref(operator, "operator")?, slice(addresses, count, "addresses")?) };
        operator.lend(DeviceBuffers { id, outputs: addresses.to_vec(), ready })
    })
}

/// Waits for the next batch.
///
/// # Safety
/// `operator` is null or not freed; `batch` and `info` are null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_next_batch(
    operator: *const Operator,
    batch: *mut *mut Fenced<TakenBatch>,
    info: *mut BatchInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for both pointers.
        let operator = unsafe {
            put(batch, std::ptr::null_mut(), "batch")?;
            deref(operator, "operator")?
        };
        let mut next = operator.next_batch()?;
        let host = std::mem::take(&mut next.host).into_iter().map(Some).collect();
        let taken = Box::new(Fenced::new(TakenBatch { batch: next, host }));
        let next = &taken.batch;
        let told = BatchInfo {
            // No set ever gets this name, so a batch without one can't be mistaken for another's.
            set: next.buffers.unwrap_or(u64::MAX),
            lengths: next.lengths.as_ptr(),
            num_lengths: next.lengths.len(),
            names: next.names.text.as_ptr(),
            name_ends: next.names.ends.as_ptr(),
            num_names: next.names.ends.len(),
        };
        // SAFETY: the caller's promise. What the pointers lead to lies on the heap, and stays where it is.
        unsafe {
            put(info, told, "info")?;
            put(batch, Box::into_raw(taken), "batch")
        }
    })
}

/// Gives a batch back.
///
/// # Safety
/// `batch` is null, or comes from [`dali_zarr_operator_next_batch`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_batch_free(batch: *mut Fenced<TakenBatch>) {
    if !batch.is_null() {
        // SAFETY: made by `Box::into_raw`, and given back once by the caller's promise. What is in it is fenced.
        drop(unsafe { Box::from_raw(batch) });
    }
}

/// Takes the host memory of one output out of a batch.
///
/// # Safety
/// `batch` is null or not freed and used by nobody else, and `memory` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_take(
    batch: *mut Fenced<TakenBatch>,
    output: usize,
    memory: *mut Memory,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let taken = unsafe { batch.as_mut() }.ok_or_else(|| null("batch"))?;
        let found = taken.host.get_mut(output).and_then(Option::take);
        let found =
            found.ok_or_else(|| Error::index(format!("internal error: there is no host memory of output {output}")))?;
        let (data, bytes) = (found.as_ptr().cast(), found.len());
        let owner = Box::into_raw(Box::new(Fenced::new(found)));
        // SAFETY: the caller's promise.
        unsafe { put(memory, Memory { owner, data, bytes }, "memory") }
    })
}

/// Gives host memory back. It may outlive its batch and its reader.
///
/// # Safety
/// `owner` is null, or comes from [`dali_zarr_operator_take`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_memory_free(owner: *mut Fenced<HostBuffer>) {
    if !owner.is_null() {
        // SAFETY: made by `Box::into_raw`, and given back once by the caller's promise. What is in it is fenced.
        drop(unsafe { Box::from_raw(owner) });
    }
}

/// How many samples were handed out.
///
/// # Safety
/// `operator` is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_delivered(operator: *const Operator) -> u64 {
    // SAFETY: the caller's promise.
    guard(|| Ok(unsafe { deref(operator, "operator") }?.delivered())).unwrap_or(0)
}

/// The state after so many samples.
///
/// # Safety
/// `operator` is null or not freed, and `state` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_state(
    operator: *const Operator,
    delivered: u64,
    state: *mut *const c_char,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let text = unsafe { deref(operator, "operator") }?.state_at(delivered)?;
        // SAFETY: the caller's promise.
        unsafe { put(state, keep_text(&text), "state") }
    })
}

/// Goes on where a state was written.
///
/// # Safety
/// `operator` is null or not freed, and `state` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_operator_restore(operator: *mut Operator, state: *const u8, len: usize) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (operator, state) = unsafe { (exclusive(operator)?, slice(state, len, "state")?) };
        operator.restore(&String::from_utf8_lossy(state))
    })
}

/// Records an event of the CUDA driver on a stream of it.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_operator_record_event(event: usize, stream: usize) -> i32 {
    call(|| {
        use cudarc::driver::sys;
        // SAFETY: looks for the driver's library and nothing else.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::runtime("no CUDA driver (libcuda.so.1) was found on this machine"));
        }
        // SAFETY: both handles come from DALI, which made them in the device's primary context; runtime and driver
        // handles are the same.
        let code = unsafe { sys::cuEventRecord(event as sys::CUevent, stream as sys::CUstream) };
        match code {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(Error::runtime(format!("cuEventRecord failed: {code:?}"))),
        }
    })
}
