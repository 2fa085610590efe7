//! Reads of local stores, by one call each: what a chunk's key holds, ranges of shards, and the shards' indexes.
//!
//! One of the places where `unsafe` is allowed: a read's span belongs to its thread until the event is sent.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::fetch::{Came, ended, fits, forget_index, opened_index, place};
use super::merging::MERGE_LOCAL;
use super::pieces::{Pieces, whole};
use super::shards::{Index, ShardId};
use super::stats::Stats;
use super::tasks::{PastHost, Read, ReadRange, Shared};
use super::wave::Storage;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::store::{Part, window};

/// Reads to host memory: the bytes that were read, or `None` if there is no such key.
///
/// # Errors
/// What is wrong with the value, or with the store.
pub(super) fn fetch(read: &Read, shared: &Shared) -> Result<Option<usize>> {
    let within = |e: Error| e.within(place(shared, read.array, read.part, &read.key));
    // SAFETY: the scheduler reserved the span for this read alone, until it hears of its end.
    let to = unsafe { read.to.bytes_mut() };
    if let (ReadRange::From(from), Some(cache), Some(_)) = (read.range, &shared.cache, &read.version) {
        let found = pieces(cache, read, from, shared, to);
        if !matches!(found, Ok(true)) {
            forget_index(shared, read.array, read.part, &read.key);
        }
        if found.map_err(within)? {
            return Ok(Some(read.to.len));
        }
        shared.catalog.confirm_missing(read.array, read.part)?;
        return Ok(None);
    }
    let came = piece(shared, read.array, read.part, &read.key, read.part(), read.version.as_ref(), to);
    let Some(came) = came.map_err(within)? else {
        shared.catalog.confirm_missing(read.array, read.part)?;
        return Ok(None);
    };
    ended(shared, read, &came).map(Some)
}

/// [`fetch`] to the device.
///
/// # Errors
/// As there, and if the device refuses.
pub(super) fn fetch_past_host(
    read: &Read,
    way: PastHost,
    shared: &Shared,
    storage: &dyn Storage,
) -> Result<Option<usize>> {
    let within = |e: Error| e.within(place(shared, read.array, read.part, &read.key));
    let store = shared.catalog.store(read.array, read.part);
    let Some(value) = store.in_file(&read.key, read.version.as_ref()).map_err(within)? else {
        shared.catalog.confirm_missing(read.array, read.part)?;
        return Ok(None);
    };
    let len = fits(shared, read, value.size)?;
    if len > read.to.len {
        return Ok(Some(len));
    }
    let (from, _) = window(read.part(), value.size, len).map_err(within)?.unwrap_or((0, 0));
    let begin = value.start + from;
    // SAFETY: the scheduler reserved the slots, the landing place and the span for this read alone, until it hears of its end.
    let result = unsafe {
        match way {
            PastHost::Slots => {
                let part = |&(offset, len, slot): &(usize, usize, u64)| (begin + offset as u64, len, slot);
                storage.read(&value.file, &read.uploads.iter().map(part).collect::<Vec<_>>())
            }
            PastHost::Landing(address) => storage
                .read(&value.file, &[(begin, len, address)])
                .and_then(|()| storage.copy_back(address, read.to.part(0, len))),
        }
    };
    result.map_err(within)?;
    shared.stats.read(len);
    Stats::add(&shared.stats.reads_gds, 1);
    Ok(Some(len))
}

/// One piece; `None` if there is no such key.
fn piece(
    shared: &Shared,
    array: u16,
    part: u16,
    key: &str,
    which: Part,
    version: Option<&Arc<str>>,
    to: &mut [u8],
) -> Result<Option<Came>> {
    let store = shared.catalog.store(array, part);
    let Some(cache) = &shared.cache else {
        return Ok(store.read(key, which, version, to)?.map(|found| Came { found, read: true }));
    };
    let name = cache.name(shared.catalog.store_number(array, part), key, which, to.len());
    if let Some(found) = cache.remembered(&name, version, to) {
        return Ok(Some(Came { found, read: false }));
    }
    let Some(found) = store.read(key, which, version, to)? else { return Ok(None) };
    if let Some(len) = whole(which, &found, to.len()) {
        cache.keep(&name, &found, &to[..len]);
    }
    Ok(Some(Came { found, read: true }))
}

/// The pieces of a range, of which those that the cache lacks are read; false if there is no such key.
fn pieces(cache: &Cache, read: &Read, from: u64, shared: &Shared, to: &mut [u8]) -> Result<bool> {
    let store = shared.catalog.store(read.array, read.part);
    let mut pieces = Pieces::new(cache, shared.catalog.store_number(read.array, read.part), read, from);
    pieces.remembered(cache, read, to);
    let mut came = Vec::new();
    for run in pieces.lacking(read, &MERGE_LOCAL) {
        let found =
            store.read(&read.key, Part::From(from + run.start as u64), read.version.as_ref(), &mut to[run.clone()])?;
        let Some(found) = found else { return Ok(false) };
        shared.stats.read(run.len());
        came.push((run, found));
    }
    pieces.keep(cache, read, &came, to);
    Ok(true)
}

/// Reads the index of a shard; `None` if there is no such shard.
///
/// # Errors
/// If it is damaged, or can't be read.
pub(super) fn index(shard: ShardId, key: &str, shared: &Shared) -> Result<Option<Arc<Index>>> {
    let within = |e: Error| e.within(place(shared, shard.array, shard.part, key));
    let sharding = shared.catalog.sharding(shard);
    let mut bytes = vec![0; sharding.index_bytes];
    let part = sharding.index_part();
    let Some(came) = piece(shared, shard.array, shard.part, key, part, None, &mut bytes).map_err(within)? else {
        shared.catalog.confirm_missing(shard.array, shard.part)?;
        return Ok(None);
    };
    opened_index(shared, shard, key, &bytes, came).map(Some)
}
