//! The C ABI; `include/dali_zarr.h` is its documentation and must agree with it.
//!
//! Every function is fenced against panics and checks its pointers for null; whatever else a pointer may be is the
//! caller's promise, which the header states.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dali_zarr_engine::error::{Error, ErrorKind, Result};
use dali_zarr_engine::explain::{arrays, explain};
use dali_zarr_engine::labels;
use dali_zarr_engine::reader::{Batch, DeviceBuffers, OutputInfo, Reader, ReaderMeta};
use dali_zarr_engine::spec::{DimKey, Spec};
use dali_zarr_engine::table::kept::{self, AnyTable};
use dali_zarr_engine::table::{Element, Table};

use serde_json::{Value, json};

use crate::registry::{self, Registered};
use crate::unwind::{Fenced, guard};
use crate::{interrupts, log, opening};

/// Of `enum dali_zarr_dtype`.
const INT64: i32 = 4;
const FLOAT64: i32 = 11;

/// `dali_zarr_reader`: a reader, and its outputs in the form that C reads.
pub struct CReader {
    registered: Registered,
    reader: Fenced<Reader>,
    outputs: Vec<OutputText>,
    /// The state that was asked for last.
    state: CString,
}

struct OutputText {
    info: OutputInfo,
    layout: CString,
    name: CString,
}

/// `dali_zarr_batch`.
pub struct CBatch(Fenced<Batch>);

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

impl From<ReaderMeta> for CMeta {
    fn from(meta: ReaderMeta) -> Self {
        Self {
            epoch_size: meta.epoch_size,
            epoch_size_padded: meta.epoch_size_padded,
            number_of_shards: meta.number_of_shards,
            shard_id: meta.shard_id,
            pad_last_batch: meta.pad_last_batch.into(),
            stick_to_shard: meta.stick_to_shard.into(),
        }
    }
}

/// What `dali_zarr_last_error` and its like give.
#[derive(Default)]
struct LastError {
    status: i32,
    message: CString,
    details: CString,
}

thread_local! {
    static LAST: RefCell<LastError> = RefCell::default();
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Text for C; a NUL inside, which C can't hold, becomes `\0`.
fn c_text(text: &str) -> CString {
    CString::new(shown(text)).unwrap_or_default()
}

/// Text that ends where its first NUL stands once it is C's, with its NULs written as `\0`.
fn shown(text: &str) -> String {
    text.replace('\0', "\\0")
}

/// Runs `work` behind the fence, and keeps its error for `dali_zarr_last_error`.
pub(crate) fn call(work: impl FnOnce() -> Result<()>) -> i32 {
    match guard(work) {
        Ok(()) => 0,
        Err(error) => {
            remember(&error);
            error.kind() as i32
        }
    }
}

/// Keeps an error for `dali_zarr_last_error`. A thread that is ending has no place for it any more.
fn remember(error: &Error) {
    keep_error(error, details(error));
}

fn keep_error(error: &Error, details: Value) {
    let (status, message, details) = (error.kind() as i32, c_text(error.message()), c_text(&details.to_string()));
    let _ = LAST.try_with(|last| *last.borrow_mut() = LastError { status, message, details });
}

fn details(error: &Error) -> Value {
    let (site, unknown) = (error.site(), error.unknown_name());
    json!({
        "kind": match error.kind() {
            ErrorKind::Value => "value",
            ErrorKind::Type => "type",
            ErrorKind::Index => "index",
            ErrorKind::Runtime => "runtime",
            ErrorKind::Memory => "memory",
        },
        "message": error.message(),
        "store": site.store,
        "array": site.array,
        "chunk": site.chunk,
        "inner_chunk": site.inner_chunk,
        "key": site.key,
        "range": site.range.as_ref().map(|range| [range.start, range.end]),
        "tries": site.tries,
        "name": unknown.and_then(|unknown| unknown.name.as_ref()),
        "known": unknown.map(|unknown| &unknown.known),
        "source": std::error::Error::source(error).map(ToString::to_string),
        "operator": null,
    })
}

pub(crate) fn null(what: &str) -> Error {
    Error::value(format!("{what}: expected a pointer, but found NULL"))
}

/// # Safety
/// `pointer` is null or good to read for as long as the result is used.
pub(crate) unsafe fn deref<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// `pointer` is null or good to write.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T, what: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller's promise. What was there before is not read.
    unsafe { pointer.write(value) };
    Ok(())
}

/// # Safety
/// `pointer` is null or a string that ends with a NUL.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Error::value(format!("{what}: expected UTF-8")))
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The message of the last error on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// What is known of the last error on this thread, as a JSON object.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_last_error_details() -> *const c_char {
    LAST.try_with(|last| last.borrow().details.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The status of the last error on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_last_error_status() -> i32 {
    LAST.try_with(|last| last.borrow().status).unwrap_or(0)
}

/// Where to look for nvCOMP first.
///
/// # Safety
/// `dirs` points to `count` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_set_nvcomp_dirs(dirs: *const *const c_char, count: usize) -> i32 {
    call(|| {
        let mut paths = Vec::new();
        for i in 0..count {
            if dirs.is_null() {
                return Err(null("dirs"));
            }
            // SAFETY: not null, and the caller promises `count` strings.
            paths.push(PathBuf::from(unsafe { text(*dirs.add(i), "dirs") }?));
        }
        nvcomp_sys::set_search_dirs(paths);
        Ok(())
    })
}

/// Keeps a copy of a table.
///
/// # Safety
/// `data` points to `rows * columns` elements of the type, aligned as they need; `name` is good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_table_keep(
    data: *const c_void,
    rows: usize,
    columns: usize,
    dtype: i32,
    name: *mut *const c_char,
) -> i32 {
    call(|| {
        let count =
            rows.checked_mul(columns).filter(|n| n.checked_mul(8).is_some_and(|bytes| bytes < isize::MAX as usize));
        let count = count.ok_or_else(|| Error::value("the table has more elements than can be addressed"))?;
        if data.is_null() && count > 0 {
            return Err(null("data"));
        }
        let table = match dtype {
            // SAFETY: the caller's promise, for elements of this type.
            INT64 => AnyTable::Int64(Arc::new(Table::new(unsafe { copied(data.cast(), count) }?, columns)?)),
            // SAFETY: as above.
            FLOAT64 => AnyTable::Float64(Arc::new(Table::new(unsafe { copied(data.cast(), count) }?, columns)?)),
            other => {
                return Err(Error::dtype(format!("expected DALI_ZARR_INT64 or DALI_ZARR_FLOAT64, but found {other}")));
            }
        };
        let kept = c_text(&kept::keep(table));
        let pointer = TEXT.with_borrow_mut(|text| {
            *text = kept;
            text.as_ptr()
        });
        // SAFETY: the caller's promise.
        unsafe { put(name, pointer, "name") }
    })
}

/// A copy of `count` elements.
///
/// # Safety
/// `data` points to as many, unless there are none.
unsafe fn copied<T: Element>(data: *const T, count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    if values.try_reserve_exact(count).is_err() {
        return Err(Error::memory(format!("a table of {count} numbers needs more memory than the system gives")));
    }
    if count > 0 {
        // SAFETY: not null, as was checked, and the caller's promise.
        values.extend_from_slice(unsafe { std::slice::from_raw_parts(data, count) });
    }
    Ok(values)
}

/// Forgets a table.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_table_release(name: *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        kept::release(unsafe { text(name, "name") }?);
        Ok(())
    })
}

/// Opens a reader.
///
/// # Safety
/// `spec` is a string, and `reader` good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_open(spec: *const c_char, reader: *mut *mut CReader) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { open(spec, Reader::open, reader) })
}

/// Opens a reader that goes on where `state` was taken.
///
/// # Safety
/// `spec` and `state` are strings, and `reader` good to write.
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
/// `spec` is null or a string, and `reader` null or good to write.
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
/// `reader` is null or open, and `state` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_state(reader: *mut CReader, state: *mut *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { put(state, std::ptr::null(), "state") }?;
        // SAFETY: the caller's promise; a reader is used by one thread at a time, so nobody else has a reference.
        let reader = unsafe { reader.as_mut() }.ok_or_else(|| null("reader"))?;
        reader.state = c_text(&reader.reader.state());
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
        // SAFETY: made by `Box::into_raw`, and given back once by the caller's promise. The reader in it is fenced.
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
/// `reader` is null or open, and `output` null or good to write.
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

/// Whether an output is ragged, and the memory that a batch takes of it.
///
/// # Safety
/// `reader` is null or open, and the others null or good to write.
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
            put(bytes, info.batch_bytes(reader.reader.batch_size()), "bytes")
        }
    })
}

fn output(reader: &CReader, index: usize) -> Result<&OutputText> {
    let found = reader.outputs.get(index);
    found.ok_or_else(|| Error::index(format!("output {index}: the reader has {}", reader.outputs.len())))
}

/// Describes an epoch.
///
/// # Safety
/// `reader` is null or open, and `meta` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_describe_epoch(reader: *const CReader, meta: *mut CMeta) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { deref(reader, "reader") }?.reader.meta();
        // SAFETY: the caller's promise.
        unsafe { put(meta, CMeta::from(found), "meta") }
    })
}

/// The text of a call on this thread, which lives until the next such call.
pub(crate) fn keep_text(text: &str) -> *const c_char {
    let kept = TEXT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        *kept = c_text(text);
        kept.as_ptr()
    });
    kept.unwrap_or(c"".as_ptr())
}

/// Writes the address of what `made` says of a spec to `json`; null if it fails.
///
/// # Safety
/// `spec` is a string, and `json` good to write.
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
/// `spec` is a string, and `json` good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_explain(spec: *const c_char, json: *mut *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { tell(spec, json, |spec| Ok(explain(spec)?.to_json().to_string())) }
}

/// Lists the arrays of a store.
///
/// # Safety
/// `spec` is a string, and `json` good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_arrays(spec: *const c_char, json: *mut *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { tell(spec, json, |spec| Ok(arrays(spec)?.to_string())) }
}

/// Looks up labels, and gives what picks them.
///
/// # Safety
/// `spec` and `dim` are strings, `labels` points to `count` numbers, and `pick` is good to write.
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
/// `reader` is null or open, and `json` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_stats(reader: *const CReader, json: *mut *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let stats = unsafe { deref(reader, "reader") }?.registered.stats().to_string();
        // SAFETY: as above.
        unsafe { put(json, keep_text(&stats), "json") }
    })
}

/// The counters of all readers of the process.
///
/// # Safety
/// `json` is null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_all_stats(json: *mut *const c_char) -> i32 {
    call(|| {
        let stats = registry::all().to_string();
        // SAFETY: the caller's promise.
        unsafe { put(json, keep_text(&stats), "json") }
    })
}

/// Sets how much the library logs.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_log_level(level: i32) -> i32 {
    call(|| {
        let known = u8::try_from(level).ok().filter(|&level| level <= log::MAX_LEVEL);
        log::set_level(known.ok_or_else(|| {
            Error::value(format!("level: expected a number from 0 to {}, but found {level}", log::MAX_LEVEL))
        })?);
        Ok(())
    })
}

/// Whether records of the log are kept for the host.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_keep_log(kept: i32) -> i32 {
    call(|| {
        log::keep(kept != 0);
        Ok(())
    })
}

/// Waits for a record of the log.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_wait_log(timeout_ms: u32) -> i32 {
    guard(|| Ok(i32::from(log::wait(Duration::from_millis(timeout_ms.into()))))).unwrap_or(0)
}

/// The records of the log.
///
/// # Safety
/// `json` is null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_take_log(json: *mut *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise. Nothing is taken that can't be handed over.
        unsafe { put(json, std::ptr::null(), "json") }?;
        let records = log::take().to_string();
        // SAFETY: as above.
        unsafe { put(json, keep_text(&records), "json") }
    })
}

/// The reader that described its epoch to DALI on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_take_described() -> u64 {
    registry::take_described()
}

/// Whether operators of DALI open their stores on threads of the library.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_defer_opening(deferred: i32) -> i32 {
    call(|| {
        opening::defer(deferred != 0);
        Ok(())
    })
}

/// Waits for the stores of this thread's operators.
///
/// # Safety
/// `opened` is null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_wait_opened(timeout_ms: u32, opened: *mut i32) -> i32 {
    let mut operator = None;
    let status = call(|| {
        // SAFETY: the caller's promise.
        unsafe { put(opened, 0, "opened") }?;
        let all = opening::wait(Duration::from_millis(timeout_ms.into())).map_err(|(error, place)| {
            operator = Some((error.within("zarr_reader"), place));
            error
        })?;
        // SAFETY: as above.
        unsafe { put(opened, all.into(), "opened") }
    });
    if let Some((error, place)) = operator {
        let mut details = details(&error);
        details["operator"] = place.into();
        keep_error(&error, details);
    }
    status
}

/// Whether SIGINT ends waits for batches.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_watch_interrupts(watched: i32) -> i32 {
    call(|| {
        interrupts::watch(watched != 0);
        Ok(())
    })
}

/// Ends waits for batches.
#[unsafe(no_mangle)]
pub extern "C" fn dali_zarr_interrupt() -> i32 {
    call(|| {
        interrupts::interrupt();
        Ok(())
    })
}

/// Waits for the next batch.
///
/// # Safety
/// `reader` is null or open, and `batch` null or good to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_next_batch(reader: *mut CReader, batch: *mut *mut CBatch) -> i32 {
    call(|| {
        // SAFETY: the caller's promise for both pointers.
        let reader = unsafe {
            put(batch, std::ptr::null_mut(), "batch")?;
            deref(reader, "reader")?
        };
        let next = CBatch(Fenced::new(reader.reader.next_batch()?));
        // SAFETY: as above.
        unsafe { put(batch, Box::into_raw(Box::new(next)), "batch") }
    })
}

/// The host memory of one output.
///
/// # Safety
/// `batch` is null or not released yet, and the others null or good to write.
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

/// The lengths of a batch's samples in ragged outputs.
///
/// # Safety
/// `batch` is null or not released yet, and the others null or good to write.
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

/// The lent set that holds the batch.
///
/// # Safety
/// `batch` is null or not released yet, and `id` null or good to write.
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
        // SAFETY: made by `Box::into_raw`, and given back once by the caller's promise. The batch in it is fenced.
        drop(unsafe { Box::from_raw(batch) });
    }
}

/// How many sets of device buffers to lend.
///
/// # Safety
/// `reader` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_buffers_wanted(reader: *const CReader) -> usize {
    // SAFETY: the caller's promise.
    guard(|| Ok(unsafe { deref(reader, "reader") }?.reader.buffers_wanted())).unwrap_or(0)
}

/// Lends a set of device buffers.
///
/// # Safety
/// `reader` is null or open, `outputs` points to `count` addresses, and addresses and event are what the header asks for.
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
        reader.reader.lend(DeviceBuffers { id, outputs, ready })
    })
}
