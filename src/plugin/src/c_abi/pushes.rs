//! The caller's order: takes the samples that a caller pushes, and finds samples by their starts.

use dali_zarr_base::error::{Error, Result};
use dali_zarr_engine::reader::Pusher;
use dali_zarr_samples::order::Draws;

use super::readers::CReader;
use super::{call, call_with, deref, null};
use crate::registry;

/// `DALI_ZARR_FULL`
const FULL: i32 = -1;
/// `DALI_ZARR_NEXT_PLACE`
const NEXT_PLACE: u64 = u64::MAX;
/// `DALI_ZARR_NO_PLACE`
const NO_PLACE: u64 = u64::MAX - 1;

/// Pushes a batch to a reader.
///
/// # Safety
/// `reader` is null or open, and `samples` points to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_reader_push(
    reader: *const CReader,
    samples: *const i64,
    count: usize,
    epoch: u64,
    place: u64,
) -> i32 {
    call_with(|| {
        // SAFETY: the caller's promise for both.
        let (pusher, samples) = unsafe { (of(reader)?, numbers(samples, count, "samples")?) };
        push(pusher, samples, epoch, place)
    })
}

/// Pushes a batch to the reader with a number.
///
/// # Safety
/// `samples` points to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_push(reader: u64, samples: *const i64, count: usize, epoch: u64, place: u64) -> i32 {
    call_with(|| {
        // SAFETY: the caller's promise.
        let samples = unsafe { numbers(samples, count, "samples") }?;
        push(&*registry::pusher(reader)?, samples, epoch, place)
    })
}

/// Pushes several batches to a reader.
///
/// # Safety
/// `reader` is null or open. `counts` and `places` point to `batches` numbers, `samples` to as many as the sum of `counts`,
/// and `pushed` to room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_reader_push_batches(
    reader: *const CReader,
    samples: *const i64,
    counts: *const usize,
    places: *const u64,
    batches: usize,
    epoch: u64,
    pushed: *mut usize,
) -> i32 {
    // SAFETY: the caller's promise for all pointers.
    call_with(|| unsafe { push_batches(of(reader)?, samples, counts, places, batches, epoch, pushed) })
}

/// Pushes several batches to the reader with a number.
///
/// # Safety
/// As of [`dali_zarr_reader_push_batches`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_push_batches(
    reader: u64,
    samples: *const i64,
    counts: *const usize,
    places: *const u64,
    batches: usize,
    epoch: u64,
    pushed: *mut usize,
) -> i32 {
    // SAFETY: the caller's promise for all pointers.
    call_with(|| unsafe { push_batches(&*registry::pusher(reader)?, samples, counts, places, batches, epoch, pushed) })
}

/// Finds samples of a reader by their starts.
///
/// # Safety
/// `reader` is null or open, `rows` points to `count * columns` numbers, and `samples` to room for `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_reader_find(
    reader: *const CReader,
    rows: *const i64,
    count: usize,
    columns: usize,
    samples: *mut i64,
) -> i32 {
    // SAFETY: the caller's promise for all pointers.
    call(|| unsafe { find(of(reader)?, rows, count, columns, samples) })
}

/// Finds samples of the reader with a number by their starts.
///
/// # Safety
/// As of [`dali_zarr_reader_find`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dali_zarr_find(
    reader: u64,
    rows: *const i64,
    count: usize,
    columns: usize,
    samples: *mut i64,
) -> i32 {
    // SAFETY: the caller's promise for all pointers.
    call(|| unsafe { find(&*registry::pusher(reader)?, rows, count, columns, samples) })
}

/// # Safety
/// `reader` is null or open, as long as the result is used.
unsafe fn of<'a>(reader: *const CReader) -> Result<&'a Pusher> {
    // SAFETY: the caller's promise.
    let reader = unsafe { deref(reader, "reader") }?.reader.own()?;
    reader.pusher().map(|pusher| &**pusher).ok_or_else(registry::own_order)
}

/// # Safety
/// `data` is null or points to `count` numbers, as long as the result is used.
unsafe fn numbers<'a, T>(data: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    match (count, data.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(null(what)),
        // SAFETY: not null, and the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(data, count) }),
    }
}

fn push(pusher: &Pusher, samples: &[i64], epoch: u64, place: u64) -> Result<i32> {
    let draws = match place {
        NEXT_PLACE => Draws::GoOn,
        NO_PLACE => Draws::BySample,
        // Sums of places must not overflow.
        place if place < 1 << 62 => Draws::From(place),
        place => return Err(Error::value(format!("place: expected less than 2^62, but found {place}"))),
    };
    Ok(if pusher.push(samples, epoch, draws)? { 0 } else { FULL })
}

/// # Safety
/// As of [`dali_zarr_reader_push_batches`].
unsafe fn push_batches(
    pusher: &Pusher,
    samples: *const i64,
    counts: *const usize,
    places: *const u64,
    batches: usize,
    epoch: u64,
    pushed: *mut usize,
) -> Result<i32> {
    if pushed.is_null() {
        return Err(null("pushed"));
    }
    // SAFETY: not null, and the caller's promise.
    unsafe { pushed.write(0) };
    // SAFETY: the caller's promise for both.
    let (counts, places) = unsafe { (numbers(counts, batches, "counts")?, numbers(places, batches, "places")?) };
    let total = counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count));
    let total = total.filter(|n| n.checked_mul(8).is_some_and(|n| n < isize::MAX as usize));
    let total = total.ok_or_else(|| Error::value("there are more samples than can be addressed"))?;
    // SAFETY: the caller's promise.
    let mut samples = unsafe { numbers(samples, total, "samples") }?;
    for (before, (&count, &place)) in counts.iter().zip(places).enumerate() {
        let (batch, rest) = samples.split_at(count);
        let status = push(pusher, batch, epoch, place)?;
        if status != 0 {
            return Ok(status);
        }
        samples = rest;
        // SAFETY: as above.
        unsafe { pushed.write(before + 1) };
    }
    Ok(0)
}

/// # Safety
/// `rows` points to `count * columns` numbers, and `samples` to room for `count`.
unsafe fn find(pusher: &Pusher, rows: *const i64, count: usize, columns: usize, samples: *mut i64) -> Result<()> {
    let entries = count.checked_mul(columns).filter(|n| n.checked_mul(8).is_some_and(|n| n < isize::MAX as usize));
    let entries = entries.ok_or_else(|| Error::value("there are more rows than can be addressed"))?;
    if samples.is_null() && count > 0 {
        return Err(null("samples"));
    }
    // SAFETY: the caller's promise.
    let found = pusher.find(unsafe { numbers(rows, entries, "rows") }?, columns)?;
    for (i, number) in found.into_iter().enumerate() {
        // SAFETY: not null, and the caller promises room for `count` numbers, which is how many rows there are.
        unsafe { samples.add(i).write(number) };
    }
    Ok(())
}
