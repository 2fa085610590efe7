//! Labels: the coordinates of a reader's arrays as they are stored, and the attributes of groups.

use std::ffi::{c_char, c_void};

use dali_zarr_engine::labels::{Labels, Values};
use dali_zarr_samples::spec::Spec;

use super::{call, deref, keep_text, put, text};
use crate::unwind::Fenced;

/// `dali_zarr_labels`.
pub struct CLabels(Fenced<Labels>);

/// `dali_zarr_values`.
pub struct CValues(Values);

/// Opens the stores of a reader's arrays for their labels.
///
/// # Safety
/// `spec` is a string, and `labels` valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_labels_open(spec: *const c_char, labels: *mut *mut CLabels) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for both pointers.
        let spec = unsafe {
            put(labels, std::ptr::null_mut(), "labels")?;
            text(spec, "spec")?
        };
        let opened = CLabels(Fenced::new(Labels::open(&Spec::from_json(spec)?)?));
        // SAFETY: as above.
        unsafe { put(labels, Box::into_raw(Box::new(opened)), "labels") }
    })
}

/// Closes labels.
///
/// # Safety
/// `labels` is null or comes from `dali_zarr_labels_open` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_labels_close(labels: *mut CLabels) {
    if !labels.is_null() {
        // SAFETY: made by `Box::into_raw`, and closed only once by the caller's promise. A panic in the destructor is
        // caught.
        drop(unsafe { Box::from_raw(labels) });
    }
}

/// Finds the array with the coordinates along a dimension, or the array itself if `dim` is null.
///
/// # Safety
/// `labels` is null or open, `dim` is null or a string, and `json` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_labels_find(
    labels: *const CLabels,
    array: usize,
    store: usize,
    dim: *const c_char,
    len: u64,
    json: *mut *const c_char,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for these pointers.
        let (labels, dim) = unsafe {
            put(json, std::ptr::null(), "json")?;
            (deref(labels, "labels")?, if dim.is_null() { None } else { Some(text(dim, "dim")?) })
        };
        let found = labels.0.find(array, store, dim.map(|dim| (dim, len)))?;
        // SAFETY: as above.
        unsafe { put(json, keep_text(&found), "json") }
    })
}

/// The attributes of the group of an array.
///
/// # Safety
/// `labels` is null or open, and `json` null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_labels_attributes(
    labels: *const CLabels,
    array: usize,
    store: usize,
    json: *mut *const c_char,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for both pointers.
        let found = unsafe {
            put(json, std::ptr::null(), "json")?;
            deref(labels, "labels")?.0.attributes(array, store)?
        };
        // SAFETY: as above.
        unsafe { put(json, keep_text(&found), "json") }
    })
}

/// Reads an array that `dali_zarr_labels_find` told.
///
/// # Safety
/// `labels` is null or open, `name` is a string, and `values` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_labels_read(
    labels: *const CLabels,
    array: usize,
    store: usize,
    name: *const c_char,
    values: *mut *mut CValues,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for these pointers.
        let found = unsafe {
            put(values, std::ptr::null_mut(), "values")?;
            deref(labels, "labels")?.0.read(array, store, text(name, "name")?)?
        };
        // SAFETY: as above.
        unsafe { put(values, Box::into_raw(Box::new(CValues(found))), "values") }
    })
}

/// The elements of an array.
///
/// # Safety
/// `values` is null or not released yet, and the others null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_values_data(
    values: *const CValues,
    data: *mut *const c_void,
    bytes: *mut usize,
    ends: *mut *const i64,
    count: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let found = &unsafe { deref(values, "values") }?.0;
        // SAFETY: the caller's promise for these pointers.
        unsafe {
            put(data, found.bytes.as_ptr().cast(), "data")?;
            put(bytes, found.bytes.len(), "bytes")?;
            put(ends, if found.ends.is_empty() { std::ptr::null() } else { found.ends.as_ptr() }, "ends")?;
            put(count, found.ends.len(), "count")
        }
    })
}

/// Gives the elements of an array back.
///
/// # Safety
/// `values` is null or comes from `dali_zarr_labels_read` and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_values_release(values: *mut CValues) {
    if !values.is_null() {
        // SAFETY: made by `Box::into_raw`, and released only once by the caller's promise.
        drop(unsafe { Box::from_raw(values) });
    }
}
