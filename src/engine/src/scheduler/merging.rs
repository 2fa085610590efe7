//! Admits chunks that share an object with others: inner chunks of shards, and ranges of files that references or
//! manifests name. One read may serve several chunks.

use std::sync::Arc;

use super::Scheduler;
use super::admission::Admission;
use super::chunks::{ChunkState, Wanted};
use super::memory::{MemoryKind, MemoryShortage};
use super::reads::{ReadChunk, ReadState};
use super::shard_indexes::{IndexPending, Known};
use crate::chunk_index::{ChunkInfo, Location, ObjectRange, ShardId, ShardIndex};
use crate::io::{MERGE_LOCAL, MERGE_REMOTE};
use crate::messages::{Handle, ReadObject, ReadRange};
use crate::route::Route;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::arena;
use dali_zarr_stores::Extent;

/// Most wanted chunks that are searched for neighbours in the same object.
const MERGE_SEARCH: usize = 4096;
/// The search for neighbours in files ends after this many chunks of other objects in a row: there the variables of a
/// sample lie apart. Chunks of one shard are planned one after the other.
const MERGE_OTHERS: usize = 64;

/// A wanted chunk, and its range in an object.
#[derive(Clone, Copy)]
struct ChunkRange {
    offset: u64,
    len: u64,
    handle: Handle,
}

impl Scheduler {
    pub(super) fn admit_shard(&mut self, head: Wanted, shard: ShardId, entry: usize) -> Admission {
        let handle = head.handle;
        let known = match self.index_for(handle, shard) {
            Ok(known) => known,
            Err(admission) => return admission,
        };
        let found = match &*known {
            Known::Missing => Ok(None),
            Known::Index(index) => self.range_in_shard(handle, index, entry).map(|range| Some((index, range?))),
        };
        let (index, own) = match found {
            Ok(Some((index, (offset, len)))) => (index, ChunkRange { offset, len, handle }),
            Ok(None) => {
                self.resolve(handle, ChunkState::Missing);
                return Admission::Done;
            }
            Err(e) => {
                self.resolve(handle, ChunkState::Failed(e));
                return Admission::Done;
            }
        };
        let in_shard = |w: &Wanted| match self.chunks[w.handle].info().location {
            Location::Shard(other, entry) if other == shard => Some(self.range_in_shard(w.handle, index, entry)),
            _ => None,
        };
        let ranges = self.neighbours(head, own, 0, in_shard);
        self.admit_merged(head, ranges, &ReadObject { name: None, version: index.version.clone() })
    }

    /// Admits a chunk that is a range of an object, merged with its neighbours.
    pub(super) fn admit_range(&mut self, head: Wanted, range: ObjectRange) -> Admission {
        let handle = head.handle;
        let (shared, has_cache) = (&self.shared, self.shared.cache.is_some());
        // With a disk cache the chunk is read by its key, because the cache asks the store for the version of the key.
        if shared.cache.as_ref().is_some_and(|cache| cache.has_disk()) || self.chunks[handle].is_unmerged() {
            return self.admit_unmerged(head);
        }
        // If its size is wrong, reading it gives the error.
        let Ok(own) = self.checked(handle, range) else { return self.admit_unmerged(head) };
        let in_object = |w: &Wanted| match self.chunks[w.handle].info().location {
            Location::Range(other) if other.object == range.object && !self.chunks[w.handle].is_unmerged() => {
                Some(self.checked(w.handle, other).map(|other| Some((other.offset, other.len))))
            }
            _ => None,
        };
        let mut ranges = self.neighbours(head, own, MERGE_OTHERS, in_object);
        // With a cache a single chunk is read by its range too, so that it has the same name in the cache as in a
        // merged read.
        if ranges.len() == 1 && !has_cache {
            return self.admit_unmerged(head);
        }
        let extent = |range: &ChunkRange| self.shared.chunk_index.extent(self.chunks[range.handle].id());
        let Some(Extent { object, version, .. }) = extent(&own) else { return self.admit_unmerged(head) };
        ranges.retain(|range| extent(range).is_some_and(|e| e.object == object && e.version == version));
        self.admit_merged(head, ranges, &ReadObject { name: Some(object), version })
    }

    /// Admits a chunk whose location is known only after an index of its store (a manifest, a reference file) was read.
    pub(super) fn admit_unread(&mut self, head: Wanted, shard: ShardId) -> Admission {
        let handle = head.handle;
        let (chunk_index, id) = (Arc::clone(&self.shared.chunk_index), self.chunks[handle].id());
        // Until the scheduler hears that the index was read, the chunk waits with the others: one read then serves them
        // all.
        if !self.shards.is_reading(shard) && !matches!(chunk_index.location(id), Location::Unread(_)) {
            self.locate(shard);
            return match self.chunks[handle].info().location {
                Location::Range(range) => self.admit_range(head, range),
                _ => self.admit_unmerged(head),
            };
        }
        match self.index_for(handle, shard) {
            Ok(_) => self.admit_unmerged(head),
            Err(admission) => admission,
        }
    }

    /// Returns the index of a shard or store that a chunk needs. If it is not in memory, the chunk waits until it was
    /// read, or for its next turn if there is no room for the index.
    ///
    /// # Errors
    /// What became of the chunk, if it waits.
    fn index_for(&mut self, handle: Handle, shard: ShardId) -> Result<Arc<Known>, Admission> {
        self.shards.get(shard, handle).map_err(|pending| {
            if pending == IndexPending::NoRoom {
                return Admission::Later;
            }
            let chunk = &mut self.chunks[handle];
            chunk.await_index();
            if pending == IndexPending::MustRead {
                self.backends.fetch.index(shard, self.shared.chunk_index.key(chunk.id()));
            }
            Admission::Done
        })
    }

    /// Looks up the locations of all chunks that waited for an index of their store.
    pub(super) fn locate(&mut self, index: ShardId) {
        let chunk_index = Arc::clone(&self.shared.chunk_index);
        if chunk_index.sharded(index.array, index.part).is_some() {
            return;
        }
        self.chunks.locate(Location::Unread(index), |id| chunk_index.location(id));
    }

    fn admit_unmerged(&mut self, head: Wanted) -> Admission {
        if self.admit_key(head) { Admission::Done } else { Admission::NoRoom }
    }

    /// Returns the range of a chunk in an object, after checking that the chunk may have this size.
    fn checked(&self, handle: Handle, ObjectRange { offset, len, .. }: ObjectRange) -> Result<ChunkRange> {
        self.check_encoded(handle, len, "the references")?;
        Ok(ChunkRange { offset, len, handle })
    }

    /// Reads these chunks of an object in one read. If memory can never hold all of them, it reads only some, including
    /// the first chunk in the queue.
    fn admit_merged(&mut self, head: Wanted, mut ranges: Vec<ChunkRange>, object: &ReadObject) -> Admission {
        while let Err(kind) = self.start_merged_read(&ranges, object) {
            if ranges.len() == 1 || !self.idle() {
                let takes = ranges.iter().map(|range| self.takes_decoded(range.handle));
                let (host_decoded, slots) = takes.fold((0, 0), |sum, takes| (sum.0 + takes.0, sum.1 + takes.1));
                let staging = host_decoded + arena::rounded(span_of(&ranges).1);
                self.shortage = Some(MemoryShortage { staging, slots, kind, batch: head.batch });
                return Admission::NoRoom;
            }
            // All of them will never fit. Try half of them, the half with the first chunk, down to that chunk alone.
            // The ranges that this attempt took and gave back may lie in the middle of the memory.
            self.memory.join_free();
            let at = ranges.iter().position(|range| range.handle == head.handle).unwrap_or(0);
            let half = ranges.len() / 2;
            ranges = if at < half { ranges[..half].to_vec() } else { ranges[half..].to_vec() };
            if ranges.len() == 1 && object.name.is_some() && self.shared.cache.is_none() {
                return self.admit_unmerged(head);
            }
        }
        Admission::Done
    }

    /// Returns the ranges of the chunk `head` (`own`) and of the wanted chunks that lie so near in the same object that
    /// one read serves them all, sorted by offset. `range_of` returns the range of a chunk in the object, or `None` if
    /// it lies elsewhere. The search ends after more than `others` chunks in a row that lie elsewhere.
    fn neighbours(
        &self,
        head: Wanted,
        own: ChunkRange,
        others: usize,
        range_of: impl Fn(&Wanted) -> Option<Result<Option<(u64, u64)>>>,
    ) -> Vec<ChunkRange> {
        let mut all = vec![own];
        let mut in_row = 0;
        for w in self.chunks.after(head, self.batches.active_end()).take(MERGE_SEARCH) {
            if !self.chunks.is_wanted(&w) {
                continue;
            }
            match range_of(&w) {
                Some(range) => {
                    in_row = 0;
                    // A chunk with a wrong range fails in its own turn.
                    if let Ok(Some((offset, len))) = range {
                        all.push(ChunkRange { offset, len, handle: w.handle });
                    }
                }
                None if in_row < others => in_row += 1,
                None => break,
            }
        }
        // Writers that encode in parallel store the chunks of a shard in any order.
        all.sort_unstable_by_key(|range| range.offset);
        let at = all.iter().position(|range| range.handle == own.handle).unwrap_or(0);
        let merge = if self.chunks[head.handle].info().remote { MERGE_REMOTE } else { MERGE_LOCAL };
        let together = merge.around(at, all.len(), |i| (all[i].offset, all[i].len));
        all.truncate(together.end);
        all.drain(..together.start);
        all
    }

    /// Reserves memory for the chunks of all ranges, and starts the read that brings them.
    ///
    /// # Errors
    /// Which kind of memory was short. Nothing is reserved then.
    fn start_merged_read(&mut self, ranges: &[ChunkRange], object: &ReadObject) -> Result<(), MemoryKind> {
        let (from, bytes) = span_of(ranges);
        let to = self.memory.take_staging(bytes).ok_or(MemoryKind::Staging)?;
        let gds_buffer = match self.reserve_all(ranges, bytes) {
            Ok(gds_buffer) => gds_buffer,
            Err(kind) => {
                self.memory.give_back(to);
                return Err(kind);
            }
        };
        let chunk = |&ChunkRange { offset, len, handle }: &ChunkRange| ReadChunk {
            handle,
            offset: (offset - from) as usize,
            len: Some(len as usize),
        };
        let first = ranges[0].handle;
        let mut read = ReadState::new(ranges.iter().map(chunk).collect(), self.chunks[first].info().remote);
        (read.gds_buffer, read.object) = (gds_buffer, object.clone());
        self.read(read, to, ReadRange::From(from), self.chunks[first].id());
        Ok(())
    }

    /// Reserves memory for the decoded bytes of all these chunks, and for the `bytes` of their read in the GDS buffer,
    /// if it is read there.
    ///
    /// # Errors
    /// Which kind of memory was short. Nothing is reserved then.
    fn reserve_all(&mut self, ranges: &[ChunkRange], bytes: usize) -> Result<Option<arena::Range>, MemoryKind> {
        let release = |scheduler: &mut Self, ranges: &[ChunkRange]| {
            ranges.iter().for_each(|range| scheduler.release_decoded(range.handle));
        };
        for (i, range) in ranges.iter().enumerate() {
            self.reserve_decoded(range.handle).inspect_err(|_| release(self, &ranges[..i]))?;
        }
        self.reserve_gds_buffer(ranges[0].handle, bytes).inspect_err(|_| release(self, ranges))
    }

    /// Returns the range of an inner chunk (`None`: it is missing), after checking that the chunk may have this size.
    fn range_in_shard(&self, handle: Handle, index: &ShardIndex, entry: usize) -> Result<Option<(u64, u64)>> {
        let Some((offset, len)) = index.entries.get(entry) else { return Ok(None) };
        self.check_encoded(handle, len, "the shard's index")?;
        Ok(Some((offset, len)))
    }

    /// Checks that a chunk of this decoded size may have `len` encoded bytes. `source` says where `len` comes from, for
    /// the error.
    fn check_encoded(&self, handle: Handle, len: u64, source: &str) -> Result<()> {
        let chunk_index = &self.shared.chunk_index;
        let (id, ChunkInfo { decoded, route, .. }) = (self.chunks[handle].id(), self.chunks[handle].info());
        match route {
            Route::Raw if len == decoded as u64 => Ok(()),
            Route::Raw => {
                Err(Error::damaged(format!("expected {decoded} bytes, but found {len} in {source}; it is damaged"))
                    .at(chunk_index.site(id)))
            }
            _ if len <= chunk_index.part(id).format.usual_encoded_bytes(decoded) as u64 => Ok(()),
            _ => self.holds(handle, len),
        }
    }
}

/// Returns the offset of the first range in the object, and the bytes from there to the end of the last range.
fn span_of(ranges: &[ChunkRange]) -> (u64, usize) {
    let from = ranges.iter().map(|range| range.offset).min().unwrap_or(0);
    let to = ranges.iter().map(|range| range.offset + range.len).max().unwrap_or(0);
    (from, (to - from) as usize)
}
