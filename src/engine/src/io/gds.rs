//! Reads a file to the device by GPUDirect Storage, past host memory.
//!
//! `unsafe` is allowed here: device memory is written by address.

#![allow(unsafe_code)]

use std::time::Instant;

use super::fetch::fits;
use crate::messages::{FilePart, GdsTarget, Read, Shared, Storage};
use crate::stats::Stats;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_stores::block_on;

/// As [`super::fetch::fetch`], but reads a file to the device by GPUDirect Storage.
///
/// # Errors
/// As [`super::fetch::fetch`], and if the device refuses.
pub(super) fn fetch_by_gds(
    read: &Read,
    to: &mut [u8],
    target: GdsTarget,
    shared: &Shared,
    storage: &dyn Storage,
) -> Result<Option<usize>> {
    let start = Instant::now();
    let within = |e: Error| e.at(shared.chunk_index.site_of(read.array, read.part, &*read.key));
    let store = shared.chunk_index.store(read.array, read.part);
    let Some(value) = store.in_file(&read.key, read.object.version.as_ref()).map_err(within)? else {
        block_on(&**store, shared.chunk_index.confirm_missing(read.array, read.part))?;
        return Ok(None);
    };
    let len = fits(shared, read, value.size)?;
    if len > read.len {
        return Ok(Some(len));
    }
    let (from, _) = read.byte_range().resolve(value.size, len).map_err(within)?.unwrap_or((0, 0));
    let begin = value.start + from;
    // SAFETY: the scheduler reserved the slots and the range of the GDS buffer for this read alone, until it hears of
    // its end.
    let result = unsafe {
        match target {
            GdsTarget::Slots => {
                let parts: Vec<_> = read
                    .uploads
                    .iter()
                    .map(|part| FilePart { offset: begin + part.offset as u64, len: part.len, to: part.to })
                    .collect();
                storage.read(&value.file, &parts)
            }
            GdsTarget::Buffer(address) => storage
                .read(&value.file, &[FilePart { offset: begin, len, to: address }])
                .and_then(|()| storage.copy_back(address, &mut to[..len])),
        }
    };
    result.map_err(within)?;
    Stats::time(&shared.stats.read_ns, start.elapsed());
    shared.stats.read(len);
    Stats::add(&shared.stats.reads_gds, 1);
    Ok(Some(len))
}
