//! Describes specs, stores and readers, as JSON.

use std::ffi::c_char;

use dali_zarr_base::error::{Error, Result};
use dali_zarr_engine::explain::{arrays, explain};
use dali_zarr_engine::labels;
use dali_zarr_samples::spec::{DimKey, Spec};

use super::readers::CReader;
use super::{call, deref, keep_text, put, text};
use crate::registry;

/// Calls `made` with the spec, and writes the address of the text that it returns to `json`; null if it fails.
///
/// # Safety
/// `spec` is a string, and `json` valid for writes.
unsafe fn tell(spec: *const c_char, json: *mut *const c_char, made: impl FnOnce(&Spec) -> Result<String>) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for both pointers.
        let spec = unsafe {
            put(json, std::ptr::null(), "json")?;
            text(spec, "spec")?
        };
        let told = made(&Spec::from_json(spec)?)?;
        // SAFETY: as above.
        unsafe { put(json, keep_text(&told), "json") }
    })
}

/// Explains what a reader would do.
///
/// # Safety
/// `spec` is a string, and `json` valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_explain(spec: *const c_char, json: *mut *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { tell(spec, json, |spec| Ok(explain(spec)?.to_json().to_string())) }
}

/// Lists the arrays of a store.
///
/// # Safety
/// `spec` is a string, and `json` valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_arrays(spec: *const c_char, json: *mut *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { tell(spec, json, |spec| Ok(arrays(spec)?.to_string())) }
}

/// Looks up labels, and writes the entry of "pick" that selects their elements.
///
/// # Safety
/// `spec` and `dim` are strings, `labels` points to `count` numbers, and `pick` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_pick_labels(
    spec: *const c_char,
    dim: *const c_char,
    labels: *const f64,
    count: usize,
    pick: *mut *const c_char,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for these pointers.
        let (spec, dim) = unsafe {
            put(pick, std::ptr::null(), "pick")?;
            (text(spec, "spec")?, text(dim, "dim")?)
        };
        if labels.is_null() || count == 0 {
            return Err(Error::value("labels: expected at least one, but found none"));
        }
        // SAFETY: not null, and the caller promises `count` numbers.
        let labels = unsafe { std::slice::from_raw_parts(labels, count) };
        let found = labels::find(&Spec::from_json(spec)?, &DimKey::parse(dim), labels)?.to_string();
        // SAFETY: as above.
        unsafe { put(pick, keep_text(&found), "pick") }
    })
}

/// The counters of a reader.
///
/// # Safety
/// `reader` is null or open, and `json` null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_stats(reader: *const CReader, json: *mut *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let reader = unsafe { deref(reader, "reader") }?;
        reader.reader.own()?;
        let stats = reader.registered.stats().to_string();
        // SAFETY: as above.
        unsafe { put(json, keep_text(&stats), "json") }
    })
}

/// The counters of all readers of the process.
///
/// # Safety
/// `json` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_all_stats(json: *mut *const c_char) -> i32 {
    call(|| {
        let stats = registry::all().to_string();
        // SAFETY: the caller's promise.
        unsafe { put(json, keep_text(&stats), "json") }
    })
}

/// The bad chunks that the reader with a number has found.
///
/// # Safety
/// `json` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_bad_chunks(reader: u64, json: *mut *const c_char) -> i32 {
    call(|| {
        let found = registry::bad_chunks(reader)?.to_string();
        // SAFETY: the caller's promise.
        unsafe { put(json, keep_text(&found), "json") }
    })
}
