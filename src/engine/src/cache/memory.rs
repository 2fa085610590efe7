//! The memory cache: a table of fixed size over a block of memory of fixed size, both reserved once.
//!
//! The table ([`table`](super::table)) assigns units of the block to entries, and decides which entries are evicted.
//!
//! `unsafe` is allowed here: entries are copied without the lock. Pins keep them meanwhile.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::table::{Extents, Pinned, Table};
use super::{Counters, Name};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::HostBlock;
use dali_zarr_stores::ObjectVersion;

/// Bytes of a unit. An entry wastes half a unit on average.
const UNIT: usize = 2048;

/// Bytes that are set aside for the rounding of allocations, and for [`Memory`] itself.
const SPARE: usize = 64 << 10;

/// Bytes of the numbers before an entry's name: the lengths of the name and of the version (plus one; 0: there is no
/// version), and the bytes of the whole value.
const HEAD: usize = 16;

/// The memory cache of one reader.
pub(super) struct Memory {
    block: HostBlock,
    units: u32,
    table: Mutex<Table>,
    counters: Arc<Counters>,
}

/// A pin of an entry. The entry is not evicted while the pin lives.
struct Pin<'a> {
    memory: &'a Memory,
    /// The first unit.
    first: u32,
    extents: Extents,
    /// Bytes of the entry, with numbers, name and version.
    bytes: usize,
}

/// An entry that is being filled. Nobody else finds it.
struct NewEntry<'a>(Pin<'a>);

/// An entry that was found.
pub(super) struct Held {
    /// Bytes of the piece.
    pub len: usize,
    /// Bytes of the whole value.
    pub size: u64,
    pub version: Option<ObjectVersion>,
}

impl Memory {
    /// Reserves `limit` bytes, table included. Pages take no memory until they are used.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(limit: u64, counters: &Arc<Counters>) -> Result<Self> {
        let refused = || Error::value(format!("cache_size: the system refuses {limit} bytes; lower it"));
        let units = limit.saturating_sub(SPARE as u64) / (UNIT + Table::EACH) as u64;
        let units = u32::try_from(units).unwrap_or(Table::MAX_UNITS).min(Table::MAX_UNITS);
        let block = HostBlock::map(units as usize * UNIT).map_err(|_| refused())?;
        let table = Table::new(units).ok_or_else(refused)?;
        Ok(Self { block, units, table: Mutex::new(table), counters: Arc::clone(counters) })
    }

    /// Copies the piece of this name to the front of `to`, if `accept` accepts its version. If the piece is longer than
    /// `to`, copies nothing.
    pub fn get(&self, name: &Name, accept: impl FnOnce(Option<&ObjectVersion>) -> bool, to: &mut [u8]) -> Option<Held> {
        let pin = self.pin(name.hash)?;
        let (held, version_at) = pin.head(name)?;
        let version = match held.version_len {
            None => None,
            Some(len) => {
                let mut bytes = vec![0; len];
                pin.copy_out(version_at, &mut bytes);
                Some(ObjectVersion::of_bytes(&bytes)?)
            }
        };
        if !accept(version.as_ref()) {
            return None;
        }
        if let Some(to) = to.get_mut(..held.len) {
            pin.copy_out(version_at + held.version_len.unwrap_or(0), to);
        }
        Some(Held { len: held.len, size: held.size, version })
    }

    /// Adds an entry, if there is room or others may be evicted. Replaces an entry of the same name.
    pub fn put(&self, name: &Name, version: Option<&ObjectVersion>, size: u64, bytes: &[u8]) {
        let version = version.map(ObjectVersion::to_bytes);
        let mut head = Vec::with_capacity(HEAD + name.bytes.len() + version.as_ref().map_or(0, Vec::len));
        let (Ok(name_len), Ok(version_len)) =
            (u32::try_from(name.bytes.len()), u32::try_from(version.as_ref().map_or(0, |v| v.len() + 1)))
        else {
            return;
        };
        head.extend(name_len.to_le_bytes());
        head.extend(version_len.to_le_bytes());
        head.extend(size.to_le_bytes());
        head.extend(&name.bytes);
        head.extend(version.unwrap_or_default());
        let Some(mut entry) = self.reserve(name.hash, head.len().saturating_add(bytes.len())) else { return };
        entry.copy_in(0, &head);
        entry.copy_in(head.len(), bytes);
        self.table().filled(entry.0.first);
    }

    /// Removes the entry of this name.
    pub fn forget(&self, name: &Name) {
        self.table().forget(name.hash);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pin(&self, hash: u64) -> Option<Pin<'_>> {
        let pinned = self.table().pin(hash)?;
        Some(Pin::new(self, pinned))
    }

    /// Reserves units for an entry of `bytes` bytes, to be filled now.
    fn reserve(&self, hash: u64, bytes: usize) -> Option<NewEntry<'_>> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok().filter(|&n| n <= self.units)?;
        let pinned = self.table().reserve(hash, units, bytes as u64, &self.counters.evictions)?;
        Some(NewEntry(Pin::new(self, pinned)))
    }

    /// Bytes that the cache takes when it is full, table included.
    #[cfg(test)]
    fn max_bytes(&self) -> usize {
        self.block.len() + self.table().max_bytes() + size_of::<Self>()
    }
}

/// The numbers at the front of an entry.
struct Lengths {
    version_len: Option<usize>,
    size: u64,
    len: usize,
}

impl<'a> Pin<'a> {
    fn new(memory: &'a Memory, Pinned { first, extents, bytes }: Pinned) -> Self {
        Self { memory, first, extents, bytes: bytes as usize }
    }

    /// Returns the numbers of the entry, and where its version begins. `None` if the entry has another name.
    fn head(&self, name: &Name) -> Option<(Lengths, usize)> {
        let mut head = [0; HEAD];
        self.copy_out(0, &mut head);
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let size = u64::from(number(8)) | u64::from(number(12)) << 32;
        if number(0) as usize != name.bytes.len() {
            return None;
        }
        let mut found = vec![0; name.bytes.len()];
        self.copy_out(HEAD, &mut found);
        let version_len = (number(4) as usize).checked_sub(1);
        let at = HEAD + found.len();
        let len = self.bytes - at - version_len.unwrap_or(0);
        (found == name.bytes).then_some((Lengths { version_len, size, len }, at))
    }

    /// Returns the ranges of the block that have `len` bytes of the entry from byte `at` on, in order: offset and
    /// bytes. Panics if they reach beyond its end.
    fn ranges(&self, at: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes), "a part of an entry beyond its end");
        let (mut skip, mut left) = (at, len);
        self.extents.iter().filter_map(move |&(unit, count)| {
            let bytes = count as usize * UNIT;
            let from = skip.min(bytes);
            skip -= from;
            let len = (bytes - from).min(left);
            left -= len;
            (len > 0).then_some((unit as usize * UNIT + from, len))
        })
    }

    fn copy_out(&self, at: usize, mut to: &mut [u8]) {
        for (offset, len) in self.ranges(at, to.len()) {
            let (here, rest) = to.split_at_mut(len);
            let bytes = self.memory.block.at(offset, len);
            // SAFETY: the bytes are in the block, which lives as long as `memory`. While an entry is pinned they belong
            // to it alone, and only a `NewEntry` writes to them, before the entry is found.
            unsafe { bytes.copy_to_nonoverlapping(here.as_mut_ptr(), len) };
            to = rest;
        }
    }
}

impl NewEntry<'_> {
    fn copy_in(&mut self, at: usize, mut from: &[u8]) {
        for (offset, len) in self.0.ranges(at, from.len()) {
            let (here, rest) = from.split_at(len);
            let bytes = self.0.memory.block.at(offset, len);
            // SAFETY: as above, and nobody else finds the entry.
            unsafe { bytes.copy_from_nonoverlapping(here.as_ptr(), len) };
            from = rest;
        }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.memory.table().unpin(self.first);
    }
}

#[cfg(test)]
#[path = "tests_memory.rs"]
mod tests;
