//! Decides which wanted chunks are read now: in the order of need, and each only with all the memory that it needs
//! until it is decoded. For chunks that lie in one object with others see [`super::merging`].
//!
//! `unsafe` is allowed here: reserved memory is leased to reads.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::Scheduler;
use super::batches::is_whole_copy;
use super::chunk_table::{ChunkState, Group, Member};
use super::queue::Wanted;
use crate::chunk_index::{Location, Place, Route};
use crate::error::Result;
use crate::memory::{Lease, Span, arena};
use crate::messages::{GdsTarget, Handle, Read, ReadRange};
use crate::plan::ChunkId;

/// Smaller reads are not worth the calls to cuFile.
const MIN_GDS_BYTES: usize = 64 << 10;

/// What happened to the first chunk in the queue.
pub(super) enum Admission {
    /// Its read has started, or it is missing or failed.
    Done,
    /// Memory is short.
    NoRoom,
    /// It waits for a shard index that is being read.
    Later,
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryKind {
    /// For encoded chunks, and for chunks that the CPU decodes for a GPU.
    Staging,
    /// For decoded chunks.
    Slots,
}

/// The memory that the first chunk in the queue needs and could not get.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryShortage {
    /// Bytes that it needs of each kind.
    pub staging: usize,
    pub slots: usize,
    pub kind: MemoryKind,
    /// The first batch that needs the chunk.
    pub batch: u64,
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
            && !self.room(shortage)
            && !self.can_evict(shortage)
        {
            return;
        }
        self.shortage = None;
        while self.may_read(false) || self.may_read(true) {
            if self.idle() {
                // Nothing in flight will give memory back. Join all free ranges, so that the largest possible request
                // fits.
                self.join_free_memory();
            }
            let (limit, chunks) = (self.batches.active_end(), &self.chunks);
            let Some(head) = self.queue.head(limit, |w| chunks.wanted(w)) else { return };
            // Local and remote reads keep one order of need.
            let Place { location, remote, .. } = self.chunks[head.handle].place;
            if !self.may_read(remote) {
                return;
            }
            let admitted = match location {
                Location::Key if self.admit_key(head) => Admission::Done,
                Location::Key => Admission::NoRoom,
                Location::Shard(shard, entry) => self.admit_shard(head, shard, entry),
                Location::Range(range) => self.admit_range(head, range),
                Location::Unread(index) => self.admit_unread(head, index),
            };
            // All of the chunk's memory was reserved, or none. After an eviction the next try starts from the
            // beginning, so that ranges that do not fit between others now fit in the end.
            match admitted {
                Admission::Done => self.shortage = None,
                Admission::NoRoom if self.shortage.is_some_and(|l| self.can_evict(l)) && self.evict(head.batch) => {}
                Admission::NoRoom | Admission::Later => return,
            }
        }
    }

    /// Joins all free ranges of memory with their neighbours. Otherwise a range in the middle that was used lately would be
    /// used again, and split the memory that one read needs.
    pub(super) fn join_free_memory(&mut self) {
        self.s.staging.arena.join_all();
        for block in [&mut self.s.slots, &mut self.s.gds_buffer].into_iter().flatten() {
            block.arena.join_all();
        }
    }

    /// Whether as much memory is free as was short, though perhaps not in one range.
    fn room(&self, MemoryShortage { staging, slots, .. }: MemoryShortage) -> bool {
        let available = self.s.staging.arena.available();
        match &self.s.slots {
            None => available >= staging.saturating_add(slots),
            Some(block) => available >= staging && block.arena.available() >= slots,
        }
    }

    /// Whether evicting a chunk would help: it lies in the memory that was short, and no earlier batch needs it.
    fn can_evict(&self, MemoryShortage { kind, batch, .. }: MemoryShortage) -> bool {
        (kind == MemoryKind::Slots || self.s.slots.is_none()) && self.victim(batch).is_some()
    }

    /// Whether another read of a remote (or local) store may begin.
    fn may_read(&self, remote: bool) -> bool {
        self.reads_in_flight[usize::from(remote)] < self.s.rules.reads[usize::from(remote)]
    }

    /// Whether nothing is in flight that will give memory back.
    pub(super) fn idle(&self) -> bool {
        self.reads_in_flight == [0, 0]
            && self.uploads_in_flight == 0
            && self.cpu_tasks_in_flight == 0
            && self.pending.is_empty()
            && self.ready_jobs.assembly.served.is_empty()
            && self.s.lanes.as_ref().is_none_or(|l| l.count() == self.idle_lanes.len())
    }

    /// The range of an output that is a copy of the whole decoded chunk, if there is one: then the chunk is decoded
    /// there, without a slot.
    fn output_span(&self, handle: Handle) -> Option<Span> {
        if self.s.lanes.is_some() {
            return None;
        }
        let chunk = &self.chunks[handle];
        let decoded = chunk.place.decoded;
        let &(number, i) = chunk.users.first()?;
        // If another batch needs the chunk soon, it must be kept in a slot. If a later batch does, the chunk would be
        // evicted before anyway.
        let soon = self.s.rules.lookahead as u64 / 2;
        // While the next batch is not planned, it may need the chunk. A late planner must not cost reads.
        if self.planner_is_late() || chunk.users.get(1).is_some_and(|&(next, _)| next - number <= soon) {
            return None;
        }
        let batch = &self.batches.list[(number - self.batches.first) as usize];
        let jobs = &batch.plan.jobs[batch.plan.uses[i as usize].jobs.clone()];
        is_whole_copy(jobs, &self.s.shared.ops, decoded)
            .then(|| Span { address: batch.outputs[jobs[0].reserved as usize] + jobs[0].dst, len: decoded })
    }

    /// Whether the CPU decodes the chunk to page-locked memory, from which it is copied to the GPU.
    pub(super) fn decodes_on_host(&self, handle: Handle) -> bool {
        self.s.lanes.is_some() && self.chunks[handle].place.route == Route::Cpu
    }

    /// Bytes of staging and of slots that a chunk takes while and after it is decoded.
    pub(super) fn takes_decoded(&self, handle: Handle) -> (usize, usize) {
        let decoded = arena::rounded(self.chunks[handle].place.decoded);
        let host_decoded = if self.decodes_on_host(handle) { decoded } else { 0 };
        (host_decoded, if self.output_span(handle).is_some() { 0 } else { decoded })
    }

    /// Reserves the memory that a chunk needs while and after it is decoded.
    ///
    /// # Errors
    /// Which kind of memory was short. Nothing is reserved then.
    pub(super) fn reserve_decoded(&mut self, handle: Handle) -> Result<(), MemoryKind> {
        let decoded = self.chunks[handle].place.decoded;
        let output_span = self.output_span(handle);
        let slot = match output_span {
            Some(_) => None,
            None => Some(self.reserve(true, decoded).ok_or(MemoryKind::Slots)?),
        };
        let mut host_decoded = None;
        if self.decodes_on_host(handle) {
            host_decoded = self.reserve(false, decoded);
            if host_decoded.is_none() {
                if let Some(slot) = slot {
                    self.slots().arena.release(slot);
                }
                return Err(MemoryKind::Staging);
            }
        }
        let chunk = &mut self.chunks[handle];
        (chunk.slot, chunk.output_span, chunk.host_decoded) = (slot, output_span, host_decoded);
        Ok(())
    }

    pub(super) fn unreserve_decoded(&mut self, handle: Handle) {
        let chunk = &mut self.chunks[handle];
        let (slot, host_decoded) = (chunk.slot.take(), chunk.host_decoded.take());
        chunk.output_span = None;
        if let Some(slot) = slot {
            self.slots().arena.release(slot);
        }
        if let Some(host_decoded) = host_decoded {
            self.s.staging.arena.release(host_decoded);
        }
    }

    /// Whether the thread that reads the chunk also copies it to its slot on the device.
    pub(super) fn is_uploaded(&self, handle: Handle) -> bool {
        self.s.lanes.is_some() && self.chunks[handle].place.uploads()
    }

    /// Where the CPU writes the chunk's decoded bytes.
    pub(super) fn decoded_span(&self, handle: Handle) -> Span {
        let chunk = &self.chunks[handle];
        if let Some(output_span) = chunk.output_span {
            return output_span;
        }
        let (block, range) = match (chunk.host_decoded, chunk.slot) {
            (Some(host_decoded), _) => (&self.s.staging, host_decoded),
            (None, Some(slot)) => (self.s.slots.as_ref().unwrap_or(&self.s.staging), slot),
            (None, None) => unreachable!("reserved on admission"),
        };
        Span { address: block.base + range.offset as u64, len: chunk.place.decoded }
    }

    pub(super) fn admit_key(&mut self, head: Wanted) -> bool {
        let handle = head.handle;
        let chunk_index = Arc::clone(&self.s.shared.chunk_index);
        let (id, Place { decoded, route, .. }) = (self.chunks[handle].id, self.chunks[handle].place);
        // On the CPU an uncompressed chunk is read to its final place.
        let in_place = route == Route::Raw && self.s.lanes.is_none();
        let (most, range) = match route {
            Route::Raw => (decoded, ReadRange::Exact),
            _ => {
                let usual = || chunk_index.part(id).format.usual_encoded_bytes(decoded);
                (self.chunks[handle].oversized.unwrap_or_else(usual), ReadRange::Whole)
            }
        };
        let (host_decoded, slots) = self.takes_decoded(handle);
        let staging = host_decoded + if in_place { 0 } else { arena::rounded(most) };
        let shortage = |kind| Some(MemoryShortage { staging, slots, kind, batch: head.batch });
        if let Err(kind) = self.reserve_decoded(handle) {
            self.shortage = shortage(kind);
            return false;
        }
        let (to, staging, range) = if in_place {
            (self.decoded_span(handle), None, range)
        } else {
            let Some(staging) = self.reserve(false, most) else {
                self.unreserve_decoded(handle);
                self.shortage = shortage(MemoryKind::Staging);
                return false;
            };
            (Span { address: self.s.staging.base + staging.offset as u64, len: most }, Some(staging), range)
        };
        let Ok(gds_buffer) = self.reserve_gds_buffer(handle, most) else {
            staging.into_iter().for_each(|staging| self.s.staging.arena.release(staging));
            self.unreserve_decoded(handle);
            self.shortage = shortage(MemoryKind::Staging);
            return false;
        };
        self.read(vec![(handle, 0, None)], (staging, gds_buffer), to, (None, range, None), id);
        true
    }

    /// Starts one read for these chunks, which lie in one value or in one object of this name and version.
    pub(super) fn read(
        &mut self,
        chunks: Vec<Member>,
        (staging, gds_buffer): (Option<arena::Range>, Option<arena::Range>),
        to: Span,
        (object, range, version): (Option<Arc<str>>, ReadRange, Option<Arc<str>>),
        of: ChunkId,
    ) {
        let mut uploads = Vec::new();
        for &(handle, offset, _) in &chunks {
            self.chunks[handle].state = ChunkState::Fetching;
            if self.is_uploaded(handle)
                && let Some(slot) = self.chunks[handle].slot
            {
                uploads.push((offset, self.chunks[handle].place.decoded, self.slots().base + slot.offset as u64));
            }
        }
        let pieces = match &self.s.shared.cache {
            Some(_) => chunks.iter().filter_map(|&(_, offset, len)| Some((offset, len?))).collect(),
            None => Vec::new(),
        };
        let group = self.next_group;
        self.next_group += 1;
        let remote = chunks.first().is_some_and(|&(handle, ..)| self.chunks[handle].place.remote);
        // GPUDirect Storage is used for all chunks of a read, or for none.
        let gds = match (gds_buffer, &self.s.gds_buffer) {
            (Some(range), Some(block)) => Some(GdsTarget::Buffer(block.base + range.offset as u64)),
            _ if self.s.gds && uploads.len() == chunks.len() && self.in_files(of) => Some(GdsTarget::Slots),
            _ => None,
        };
        self.groups.insert(group, Group { staging, gds_buffer, remaining: chunks.len() as u32, chunks, to, remote });
        self.reads_in_flight[usize::from(remote)] += 1;
        let key = self.s.shared.chunk_index.key(of);
        let read = Read {
            group,
            array: of.array,
            part: of.part,
            key,
            object,
            range,
            version,
            len: to.len,
            uploads,
            pieces,
            gds,
        };
        // SAFETY: the memory was reserved for this read alone, until the scheduler hears of its end. It outlives the
        // threads that read.
        self.s.fetch.read(read, unsafe { Lease::new(to) });
    }

    /// Whether the values of the chunk's store are files.
    fn in_files(&self, id: ChunkId) -> bool {
        self.s.shared.chunk_index.store(id.array, id.part).has_files()
    }

    /// Reserves device memory for encoded bytes that GPUDirect Storage reads. `None`: it does not read this chunk, or
    /// the buffer is smaller than the chunk.
    ///
    /// # Errors
    /// If the buffer is full now.
    pub(super) fn reserve_gds_buffer(
        &mut self,
        handle: Handle,
        bytes: usize,
    ) -> Result<Option<arena::Range>, MemoryKind> {
        let applies = self.s.gds_buffer.is_some()
            && self.chunks[handle].place.route == Route::Gpu
            && bytes >= MIN_GDS_BYTES
            && self.in_files(self.chunks[handle].id);
        match &mut self.s.gds_buffer {
            Some(block) if applies && bytes <= block.arena.capacity() => {
                block.arena.take(bytes).map(Some).ok_or(MemoryKind::Staging)
            }
            _ => Ok(None),
        }
    }
}
