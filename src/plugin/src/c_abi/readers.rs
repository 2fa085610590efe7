//! Readers: opens, resumes and closes them, and describes their outputs and epochs.

use std::ffi::{CString, c_char};

use dali_zarr_base::error::{Error, Result};
use dali_zarr_engine::reader::{OutputInfo, Reader};
use dali_zarr_samples::spec::Spec;

use super::{c_text, call, deref, null, put, text};
use crate::registry::Registered;
use crate::unwind::Fenced;

/// `dali_zarr_reader`: a reader, and its outputs in the form for C.
pub struct CReader {
    pub(super) registered: Registered,
    pub(super) reader: Fenced<Reader>,
    pub(super) outputs: Vec<OutputText>,
    /// The text that the last call of `dali_zarr_state` returned.
    state: CString,
}

pub(super) struct OutputText {
    info: OutputInfo,
    layout: CString,
    name: CString,
}

/// `dali_zarr_output`.
#[repr(C)]
pub struct COutput {
    shape: *const i64,
    ndim: usize,
    dtype: i32,
    sample_bytes: usize,
    layout: *const c_char,
    name: *const c_char,
}

/// `dali_zarr_meta`.
#[repr(C)]
pub struct CMeta {
    epoch_size: i64,
    epoch_size_padded: i64,
    number_of_shards: i64,
    shard_id: i64,
    pad_last_batch: i32,
    stick_to_shard: i32,
}

/// Opens a reader.
///
/// # Safety
/// `spec` is a string, and `reader` valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_open(spec: *const c_char, reader: *mut *mut CReader) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { open(spec, Reader::open, reader) })
}

/// Opens a reader that continues from `state`.
///
/// # Safety
/// `spec` and `state` are strings, and `reader` valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_resume(spec: *const c_char, state: *const c_char, reader: *mut *mut CReader) -> i32 {
    call(|| {
        let restored = |spec| {
            // SAFETY: the caller's promise.
            let state = unsafe { text(state, "state") }?;
            let mut reader = Reader::prepare(spec)?;
            reader.restore(state)?;
            Ok(reader)
        };
        // SAFETY: the caller's promise.
        unsafe { open(spec, restored, reader) }
    })
}

/// # Safety
/// `spec` is null or a string, and `reader` null or valid for writes.
unsafe fn open(spec: *const c_char, how: impl FnOnce(Spec) -> Result<Reader>, reader: *mut *mut CReader) -> Result<()> {
    // SAFETY: the caller's promise for both pointers.
    let spec = unsafe {
        put(reader, std::ptr::null_mut(), "reader")?;
        text(spec, "spec")?
    };
    let spec = Spec::from_json(spec)?;
    let opened = Fenced::new(how(spec.clone())?);
    let outputs = opened.outputs().iter().map(|info| OutputText {
        layout: c_text(&info.layout),
        name: c_text(&info.name),
        info: info.clone(),
    });
    let registered = Registered::new(&spec, &opened);
    let handle = CReader { registered, outputs: outputs.collect(), reader: opened, state: CString::default() };
    // SAFETY: as above.
    unsafe { put(reader, Box::into_raw(Box::new(handle)), "reader") }
}

/// The state after the last batch.
///
/// # Safety
/// `reader` is null or open, and `state` null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_state(reader: *mut CReader, state: *mut *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { put(state, std::ptr::null(), "state") }?;
        // SAFETY: the caller's promise; a reader is used by one thread at a time, so nobody else has a reference.
        let reader = unsafe { reader.as_mut() }.ok_or_else(|| null("reader"))?;
        reader.state = c_text(&reader.reader.own()?.state());
        // SAFETY: the caller's promise.
        unsafe { put(state, reader.state.as_ptr(), "state") }
    })
}

/// Closes a reader.
///
/// # Safety
/// `reader` is null or comes from `dali_zarr_open` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_close(reader: *mut CReader) {
    if !reader.is_null() {
        // SAFETY: made by `Box::into_raw`, and closed only once by the caller's promise. A panic in the reader's
        // destructor is caught.
        drop(unsafe { Box::from_raw(reader) });
    }
}

/// The number of outputs.
///
/// # Safety
/// `reader` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_num_outputs(reader: *const CReader) -> usize {
    // SAFETY: the caller's promise.
    unsafe { reader.as_ref() }.map_or(0, |r| r.outputs.len())
}

/// Describes an output.
///
/// # Safety
/// `reader` is null or open, and `output` null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_describe_output(reader: *const CReader, index: usize, output: *mut COutput) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let reader = unsafe { deref(reader, "reader") }?;
        let found = self::output(reader, index)?;
        let described = COutput {
            shape: found.info.shape.as_ptr(),
            ndim: found.info.shape.len(),
            dtype: found.info.dtype as i32,
            sample_bytes: found.info.sample_bytes(),
            layout: found.layout.as_ptr(),
            name: found.name.as_ptr(),
        };
        // SAFETY: the caller's promise.
        unsafe { put(output, described, "output") }
    })
}

/// Tells whether an output is ragged, and the bytes of memory that it takes in a batch.
///
/// # Safety
/// `reader` is null or open, and the others null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_describe_batch(
    reader: *const CReader,
    index: usize,
    ragged: *mut i32,
    bytes: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let reader = unsafe { deref(reader, "reader") }?;
        let info = &output(reader, index)?.info;
        // SAFETY: the caller's promise for both pointers.
        unsafe {
            put(ragged, info.ragged.is_some().into(), "ragged")?;
            put(bytes, info.batch_bytes(reader.reader.own()?.batch_size()), "bytes")
        }
    })
}

fn output(reader: &CReader, index: usize) -> Result<&OutputText> {
    reader.reader.own()?;
    let found = reader.outputs.get(index);
    found.ok_or_else(|| Error::index(format!("output {index}: the reader has {}", reader.outputs.len())))
}

/// Describes an epoch.
///
/// # Safety
/// `reader` is null or open, and `meta` null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_describe_epoch(reader: *const CReader, meta: *mut CMeta) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let m = unsafe { deref(reader, "reader") }?.reader.own()?.meta();
        let described = CMeta {
            epoch_size: m.epoch_size,
            epoch_size_padded: m.epoch_size_padded,
            number_of_shards: m.number_of_shards,
            shard_id: m.shard_id,
            pad_last_batch: m.pad_last_batch.into(),
            stick_to_shard: m.stick_to_shard.into(),
        };
        // SAFETY: the caller's promise.
        unsafe { put(meta, described, "meta") }
    })
}
