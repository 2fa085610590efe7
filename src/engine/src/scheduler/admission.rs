//! Decides which wanted chunks are read now: in the order of need. A chunk is admitted only if all the memory that it
//! needs until it is decoded can be reserved. For chunks that share an object with others see [`super::merging`].

use std::sync::Arc;

use super::Scheduler;
use super::chunks::{ChunkState, DecodedMemory, OutputPart, Wanted};
use super::memory::{MemoryKind, MemoryShortage};
use super::reads::{ReadChunk, ReadState};
use crate::chunk_index::{ChunkInfo, LATER, Location};
use crate::messages::{GdsTarget, Handle, Read, ReadRange, UploadPart};
use crate::route::Route;
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::{Lease, arena};
use dali_zarr_codecs::Chain;
use dali_zarr_samples::plan::ChunkId;

/// Smaller reads are not worth the calls to cuFile.
const MIN_GDS_BYTES: usize = 64 << 10;

/// A chunk that the GPU decodes to an output begins and ends there at a multiple of this many bytes: the kernel that verifies
/// checksums reads words of this size, and so no other chunk's bytes are in a word of this one.
const DECODED_ALIGN: u64 = 16;

/// What happened to the first chunk in the queue.
pub(super) enum Admission {
    /// It left the queue: its read has started, it waits for an index that is being read, or it is missing or failed.
    Done,
    /// Memory is short.
    NoRoom,
    /// It stays first in the queue: the index that it needs can be read only after the read of another index ends.
    Later,
}

impl Scheduler {
    /// Starts reads of wanted chunks while there is memory for them.
    pub(super) fn admit(&mut self) {
        if self.broken.is_some() {
            return;
        }
        // After a shortage, another try makes sense only when memory was given back, or when a chunk can be evicted now
        // that could not before.
        if let Some(shortage) = self.shortage
            && !self.idle()
            && !self.memory.has_room(shortage)
            && !self.can_evict(shortage)
        {
            return;
        }
        self.shortage = None;
        let mut again = true;
        let time = self.waves.sharing.has_time(self.batches.untaken());
        while self.reads.may_begin(false, time) || self.reads.may_begin(true, time) {
            if self.idle() {
                // Nothing in flight will give memory back. Join all free ranges, so that the largest possible request
                // fits.
                self.memory.join_free();
            }
            let Some(head) = self.chunks.head(self.batches.active_end()) else { return };
            // Local and remote reads share one queue. If the first chunk can't be read now, the others wait too.
            let ChunkInfo { location, remote, .. } = self.chunks[head.handle].info();
            if !self.reads.may_begin(remote, time) {
                return;
            }
            let admitted = match location {
                _ if self.is_known_bad(head.handle) => {
                    self.resolve(head.handle, ChunkState::Bad);
                    Admission::Done
                }
                Location::Key if self.admit_key(head) => Admission::Done,
                Location::Key => Admission::NoRoom,
                Location::Shard(shard, entry) => self.admit_shard(head, shard, entry),
                Location::Range(range) => self.admit_range(head, range),
                Location::Unread(index) => self.admit_unread(head, index),
            };
            // All of the chunk's memory was reserved, or none. After an eviction the next try starts from the
            // beginning, so that ranges that do not fit between others now fit in the end.
            match admitted {
                Admission::Done => (self.shortage, again) = (None, true),
                Admission::NoRoom if self.shortage.is_some_and(|l| self.can_evict(l)) && self.evict(head.batch) => {}
                // Other readers have the memory for an unusually large chunk. Nobody says when they give it back.
                Admission::NoRoom if self.idle() && self.shortage.is_some_and(|l| self.memory.must_grow(l)) => {}
                // What this try has drawn may fit when it is joined with what the try gave back.
                Admission::NoRoom if self.idle() && std::mem::take(&mut again) => {}
                Admission::NoRoom | Admission::Later => return,
            }
        }
    }

    /// Whether evicting a chunk would help: it lies in the memory that was short, and no earlier batch needs it.
    fn can_evict(&self, MemoryShortage { kind, batch, .. }: MemoryShortage) -> bool {
        self.memory.eviction_frees(kind) && self.chunks.victim(batch, self.batches.active_end()).is_some()
    }

    /// Whether nothing is in flight that will give memory back.
    pub(super) fn idle(&self) -> bool {
        self.reads.in_flight() == 0
            && self.tasks == 0
            && self.ready_jobs.assembly.served.is_empty()
            && self.waves.is_idle()
    }

    /// Returns the part of an output to which the chunk is decoded or copied directly, without a slot. `None` if no part
    /// of an output is a copy of the whole chunk, or if the chunk must be kept for another batch.
    /// On a GPU the `route` by which it is decoded must give its elements in their order.
    pub(super) fn output_part(&self, handle: Handle, route: Route) -> Option<OutputPart> {
        let chunk = &self.chunks[handle];
        let &first = chunk.users().first()?;
        // If another batch needs the chunk, it must be kept in a slot, unless memory won't hold it until then. A GPU has far
        // more memory for chunks than for outputs: what it holds only in part is still worth keeping.
        let is_kept = |&(next, _): &(u64, u32)| {
            (self.on_gpu() && next != LATER)
                || self.rules.keeps_for(next - first.0, self.memory.usable(MemoryKind::Slots))
        };
        // While the next batch is not planned, it may need the chunk. A late planner must not cost reads.
        if self.batches.planner_is_late() || chunk.users().get(1).is_some_and(is_kept) {
            return None;
        }
        // What the reading thread uploads goes to a slot at once. To an output it would have to wait until the model has read
        // what lies there.
        if self.is_uploaded(handle) {
            return None;
        }
        let decoded = chunk.info().decoded;
        let part = self.batches.whole_copy(first, &self.shared.ops, decoded)?;
        let chain = || self.shared.chunk_index.part(chunk.id()).format.gpu_chain();
        let takes = |address: u64| {
            route != Route::Gpu
                || (address | decoded as u64).is_multiple_of(DECODED_ALIGN)
                    && chain().is_some_and(Chain::decodes_in_order)
        };
        part.on_device().is_none_or(takes).then_some(part)
    }

    /// As [`Self::output_part`], for a chunk that is decoded as all of its array.
    fn placed(&self, handle: Handle) -> Option<OutputPart> {
        self.output_part(handle, self.chunks[handle].info().route)
    }

    /// Whether the CPU decodes the chunk to page-locked memory, from which it is copied to the GPU.
    pub(super) fn decodes_on_host(&self, handle: Handle) -> bool {
        self.on_gpu() && self.chunks[handle].info().route == Route::Cpu
    }

    /// Returns the bytes of staging and of slots that a chunk takes while and after it is decoded.
    pub(super) fn takes_decoded(&self, handle: Handle) -> (usize, usize) {
        let decoded = arena::rounded(self.chunks[handle].info().decoded);
        let host_decoded = if self.decodes_on_host(handle) { decoded } else { 0 };
        (host_decoded, if self.placed(handle).is_some() { 0 } else { decoded })
    }

    /// Reserves the memory that a chunk needs while and after it is decoded.
    ///
    /// # Errors
    /// Which kind of memory was short. Nothing is reserved then.
    pub(super) fn reserve_decoded(&mut self, handle: Handle) -> Result<(), MemoryKind> {
        let decoded = self.chunks[handle].info().decoded;
        let output = self.placed(handle);
        if !self.on_gpu() {
            let lent = output.and_then(|part| self.batches.lend_part(part, decoded));
            let output = output.filter(|_| lent.is_some());
            let host = Some(lent.or_else(|| self.memory.take_staging(decoded)).ok_or(MemoryKind::Slots)?);
            self.chunks[handle].reserve(DecodedMemory { host, output, slot: None });
            return Ok(());
        }
        let slot = match output {
            Some(_) => None,
            None => Some(self.memory.take_slot(decoded).ok_or(MemoryKind::Slots)?),
        };
        let mut host = None;
        if self.decodes_on_host(handle) {
            host = self.memory.take_staging(decoded);
            if host.is_none() {
                slot.into_iter().for_each(|slot| self.memory.release_slot(slot));
                return Err(MemoryKind::Staging);
            }
        }
        self.chunks[handle].reserve(DecodedMemory { host, output, slot });
        Ok(())
    }

    /// Gives back the memory that was reserved for the decoded bytes of a chunk. No thread may have it.
    pub(super) fn release_decoded(&mut self, handle: Handle) {
        let DecodedMemory { host, output, slot } = self.chunks[handle].release();
        match (host, output.filter(|part| part.on_device().is_none())) {
            (Some(lease), Some(part)) => self.batches.give_back(part, lease),
            (Some(lease), None) => self.memory.give_back(lease),
            (None, _) => {}
        }
        if let Some(slot) = slot {
            self.memory.release_slot(slot);
        }
    }

    /// Whether the thread that reads the chunk also copies it to its slot on the device.
    pub(super) fn is_uploaded(&self, handle: Handle) -> bool {
        self.on_gpu() && self.chunks[handle].info().uploads()
    }

    /// Admits a chunk that is the whole value of a key. Returns false if memory is short.
    pub(super) fn admit_key(&mut self, head: Wanted) -> bool {
        let handle = head.handle;
        let chunk_index = Arc::clone(&self.shared.chunk_index);
        let (id, ChunkInfo { decoded, route, .. }) = (self.chunks[handle].id(), self.chunks[handle].info());
        // On the CPU an uncompressed chunk is read to its final place.
        let in_place = route == Route::Raw && !self.on_gpu();
        let (most, range) = match route {
            Route::Raw => (decoded, ReadRange::Exact),
            _ => {
                let usual = || chunk_index.part(id).format.usual_encoded_bytes(decoded);
                (self.chunks[handle].oversized().unwrap_or_else(usual), ReadRange::Whole)
            }
        };
        let (host_decoded, slots) = self.takes_decoded(handle);
        let staging = host_decoded + if in_place { 0 } else { arena::rounded(most) };
        let shortage = |kind| Some(MemoryShortage { staging, slots, kind, batch: head.batch });
        if let Err(kind) = self.reserve_decoded(handle) {
            self.shortage = shortage(kind);
            return false;
        }
        let to = match in_place {
            true => self.chunks[handle].lend_decoded(),
            false => self.memory.take_staging(most),
        };
        let Some(to) = to else {
            self.release_decoded(handle);
            self.shortage = shortage(MemoryKind::Staging);
            return false;
        };
        let gds_buffer = match self.reserve_gds_buffer(handle, most) {
            Ok(gds_buffer) => gds_buffer,
            Err(kind) => {
                self.end_lease(to, in_place.then_some(handle));
                self.release_decoded(handle);
                self.shortage = shortage(kind);
                return false;
            }
        };
        let mut read = ReadState::new(vec![ReadChunk::whole(handle)], self.chunks[handle].info().remote);
        (read.in_place, read.gds_buffer) = (in_place, gds_buffer);
        self.read(read, to, range, id);
        true
    }

    /// Takes back the destination of a read that brought nothing. If it was read `in_place`, the memory goes to this
    /// chunk.
    pub(super) fn end_lease(&mut self, to: Lease, in_place: Option<Handle>) {
        match in_place {
            Some(handle) => self.chunks[handle].return_decoded(to),
            None => self.memory.give_back(to),
        }
    }

    /// Starts one read of `range` to `to`, for the chunks of `state`, which lie in one value or object. `of` is any one
    /// of these chunks.
    pub(super) fn read(&mut self, state: ReadState, to: Lease, range: ReadRange, of: ChunkId) {
        let mut uploads = Vec::new();
        for &ReadChunk { handle, offset, .. } in &state.chunks {
            self.chunks[handle].fetch();
            if self.is_uploaded(handle)
                && let Some(slot) = self.chunks[handle].slot()
            {
                let to = self.memory.slot_address(slot);
                uploads.push(UploadPart { offset, len: self.chunks[handle].info().decoded, to });
            }
        }
        let pieces = match &self.shared.cache {
            Some(_) => state.chunks.iter().filter_map(|chunk| Some(chunk.offset..chunk.offset + chunk.len?)).collect(),
            None => Vec::new(),
        };
        // GPUDirect Storage is used for all chunks of a read, or for none.
        let gds = match &state.gds_buffer {
            Some(range) => Some(GdsTarget::Buffer(self.memory.gds_address(range))),
            None if self.gds && uploads.len() == state.chunks.len() && self.in_files(of) => Some(GdsTarget::Slots),
            None => None,
        };
        let key = self.shared.chunk_index.key(of);
        let object = state.object.clone();
        let id = self.reads.begin(state);
        let read = Read { id, array: of.array, part: of.part, key, object, range, len: to.len(), uploads, pieces, gds };
        self.backends.fetch.read(read, to);
    }

    /// Whether the values of the chunk's store are files.
    fn in_files(&self, id: ChunkId) -> bool {
        self.shared.chunk_index.store(id.array, id.part).has_files()
    }

    /// Reserves device memory for encoded bytes that GPUDirect Storage reads. Returns `None` if it does not read this
    /// chunk, or if the whole buffer is smaller than the chunk.
    ///
    /// # Errors
    /// If the buffer is full now.
    pub(super) fn reserve_gds_buffer(
        &mut self,
        handle: Handle,
        bytes: usize,
    ) -> Result<Option<arena::Range>, MemoryKind> {
        let kind = MemoryKind::GdsBuffer;
        let applies = bytes >= MIN_GDS_BYTES
            && bytes <= self.memory.capacity(kind)
            && self.chunks[handle].info().route == Route::Gpu
            && self.in_files(self.chunks[handle].id());
        if applies { self.memory.take_gds_buffer(bytes).map(Some).ok_or(kind) } else { Ok(None) }
    }
}
