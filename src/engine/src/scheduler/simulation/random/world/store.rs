//! The store of a random world: how reads of chunks and of indexes end, and what memory must hold before and after them.

use std::sync::Arc;

use super::{RandomWorld, fault};
use crate::chunk_index::{Entries, ShardId, ShardIndex};
use crate::messages::{Event, Handle, Read, ReadDone, ReadRange};
use crate::route::Route;
use crate::scheduler::Scheduler;
use crate::scheduler::simulation::SimulatedWork;
use crate::scheduler::simulation::memory::{Held, Span};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::Lease;
use dali_zarr_base::random::{below, mix};
use dali_zarr_samples::plan::ChunkId;

impl RandomWorld<'_> {
    pub(super) fn begin_read(&mut self, read: &Read, to: Span, scheduler: &Scheduler) -> Result<()> {
        let state =
            scheduler.reads.get(read.id).ok_or_else(|| Error::runtime("a read that the scheduler doesn't know"))?;
        let chunk = |handle: Handle| scheduler.chunks[handle].id();
        let chunks = state.chunks.iter().map(|c| (chunk(c.handle), to.address + c.offset as u64));
        let chunks: Vec<_> = chunks.collect();
        if state.in_place {
            self.in_place.extend(chunks.iter().map(|&(id, _)| (id, read.id)));
        }
        self.reads.insert(read.id, chunks);
        self.memory.begin(to, Held::Reading(read.id))?;
        for (id, slot) in uploaded(read, scheduler) {
            self.memory.begin(slot, Held::Decoding(id))?;
        }
        Ok(())
    }

    pub(super) fn end_read(
        &mut self,
        read: Read,
        lease: Lease,
        copying: bool,
        scheduler: &Scheduler,
    ) -> Result<(Vec<Event>, Option<SimulatedWork>)> {
        let chunks = self.reads.get(&read.id).cloned().unwrap_or_default();
        let (id, to) = (read.id, Span::from(&lease));
        if copying {
            for (id, slot) in uploaded(&read, scheduler) {
                self.memory.change(slot, Held::Decoding(id), Held::Decoded(id))?;
            }
            return Ok((vec![Event::Uploaded(ReadDone { id, to: lease, result: Ok(Some(to.len)) })], None));
        }
        let abandon = |world: &mut Self| -> Result<()> {
            world.memory.change(to, Held::Reading(read.id), Held::Nothing)?;
            for (id, slot) in uploaded(&read, scheduler) {
                world.memory.change(slot, Held::Decoding(id), Held::Nothing)?;
            }
            Ok(())
        };
        let in_shard = matches!(read.range, ReadRange::From(_));
        if self.random.chance(self.faults.read) {
            abandon(self)?;
            self.failed.extend(chunks.iter().map(|chunk| chunk.0));
            // A shard that vanishes while it is read is a failure. If another object vanishes, the read itself is an
            // error.
            let result = if in_shard && read.object.name.is_none() && self.random.chance(0.3) {
                Ok(None)
            } else {
                Err(fault("a read"))
            };
            return Ok((vec![Event::Fetched(ReadDone { id, to: lease, result })], None));
        }
        if !in_shard && self.missing.chunk(chunks[0].0) {
            abandon(self)?;
            return Ok((vec![Event::Fetched(ReadDone { id, to: lease, result: Ok(None) })], None));
        }
        if matches!(read.range, ReadRange::Exact) && self.missing.bad_chunk(chunks[0].0) {
            abandon(self)?;
            let error = self.undecodable(chunks[0].0, true);
            return Ok((vec![Event::Fetched(ReadDone { id, to: lease, result: Err(error) })], None));
        }
        let len = match read.range {
            ReadRange::Whole => self.whole(chunks[0].0),
            ReadRange::Exact | ReadRange::From(_) => to.len,
        };
        if len > to.len {
            // Nothing is read. The memory may be too small for an oversized chunk.
            self.failed.insert(chunks[0].0);
            abandon(self)?;
            return Ok((vec![Event::Fetched(ReadDone { id, to: lease, result: Ok(Some(len)) })], None));
        }
        self.memory.change(to, Held::Reading(read.id), Held::Read(read.id))?;
        Ok(match read.uploads.is_empty() {
            true => (vec![Event::Fetched(ReadDone { id, to: lease, result: Ok(Some(len)) })], None),
            false => (vec![Event::Uploading], Some(SimulatedWork::Read { read, to: lease, copying: true })),
        })
    }

    /// Returns the encoded bytes of a chunk that has a key of its own. In an unusual world, one chunk in 16 has more
    /// than is usual.
    fn whole(&self, id: ChunkId) -> usize {
        let (format, decoded) = (&self.chunk_index.part(id).format, self.chunk_index.decoded_bytes(id));
        let (usual, most) = (format.usual_encoded_bytes(decoded), format.max_encoded_bytes(decoded));
        let bits = self.missing.bits([2, id.array.into(), id.part.into(), id.index]);
        let oversized = self.unusual && bits.is_multiple_of(16);
        let least = if oversized { usual + 1 } else { 1 };
        let end = if oversized { most.min(2 * usual) } else { usual };
        least + below(mix(bits), (end + 1).saturating_sub(least) as u64) as usize
    }

    pub(super) fn index(&mut self, shard: ShardId) -> Event {
        if self.random.chance(self.faults.index) {
            self.failed_shards.insert(shard);
            return Event::Index(shard, Err(fault("an index")));
        }
        if self.missing.bad_shard(shard) {
            if !self.tolerates {
                self.failed_shards.insert(shard);
            }
            return Event::Index(shard, Err(Error::damaged("this index is damaged")));
        }
        if self.chunk_index.sharded(shard.array, shard.part).is_some() && self.missing.shard(shard) {
            return Event::Index(shard, Ok(None));
        }
        if self.chunk_index.sharded(shard.array, shard.part).is_none() {
            // An index of the store itself.
            return Event::Index(
                shard,
                Ok(Some(Arc::new(ShardIndex { entries: Entries::Read(Vec::new()), version: None }))),
            );
        }
        let part = &self.chunk_index.dataset.arrays[shard.array as usize].parts[shard.part as usize];
        let route = self.chunk_index.route_of(shard.array, shard.part);
        let (slots, decoded) = (self.chunk_index.sharding(shard).entries(), part.largest_bytes);
        let usual = part.format.usual_encoded_bytes(decoded) as u64;
        let most = (part.format.max_encoded_bytes(decoded) as u64).min(2 * usual);
        let gap = [0, 100, 1 << 20][self.random.below(3) as usize];
        let mut at = self.random.below(1000);
        let mut places: Vec<(u64, u64)> = (0..slots)
            .map(|_| {
                let oversized = self.unusual && most > usual && self.random.chance(0.03);
                let len = match route {
                    Route::Raw => decoded as u64,
                    _ if oversized => {
                        // The memory may be too small for such a chunk.
                        self.failed_shards.insert(shard);
                        usual + 1 + self.random.below(most - usual)
                    }
                    _ => 1 + self.random.below(usual),
                };
                at += len + self.random.below(gap + 1);
                (at - len, len)
            })
            .collect();
        // Writers that encode in parallel store the chunks of a shard in any order. Chunks of one length may change
        // places.
        for i in (1..places.len()).rev() {
            places.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        let entries = places.into_iter().map(Some).collect();
        Event::Index(shard, Ok(Some(Arc::new(ShardIndex { entries: Entries::Read(entries), version: None }))))
    }
}

/// Returns the chunks that a read copies to the device, and where. Other chunks of a merged read may be decoded from
/// host memory.
fn uploaded<'a>(read: &'a Read, scheduler: &'a Scheduler) -> impl Iterator<Item = (ChunkId, Span)> + 'a {
    let chunks = scheduler.reads.get(read.id).map_or(&[][..], |state| &state.chunks);
    let handles = chunks.iter().map(|chunk| chunk.handle).filter(|&handle| scheduler.is_uploaded(handle));
    handles
        .zip(&read.uploads)
        .map(|(handle, part)| (scheduler.chunks[handle].id(), Span { address: part.to, len: part.len }))
}
