//! Which wanted chunks are read now: in the order of need, and only with all the memory that they will need until they are
//! decoded. The scheduler's half that deals with memory and with where chunks lie; see [`super::scheduler`].

use std::sync::Arc;

use super::catalog::{Location, Route};
use super::chunks::{Group, State};
use super::scheduler::Scheduler;
use super::shards::{Ask, Known};
use super::tasks::{Read, ReadRange};
use crate::assemble::is_copy;
use crate::error::{Error, Result};
use crate::memory::{Span, arena};
use crate::plan::ChunkId;

/// Ranges of a shard that are nearer than this are read together.
const MERGE_GAP: u64 = 64 << 10;
/// No merged read is longer than this, so that several threads share the reading of a large shard.
const MERGE_LIMIT: u64 = 4 << 20;

/// What became of the first chunk in the queue.
pub(super) enum Admission {
    /// It is on its way, or its fate is known.
    Done,
    /// There isn't enough memory now.
    NoRoom,
    /// It has to wait for an index that is being read.
    Later,
}

/// A wanted chunk in a shard: its bytes there, and its place in the queue.
#[derive(Clone, Copy)]
pub(super) struct Member {
    offset: u64,
    len: u64,
    batch: u64,
    order: u64,
    id: ChunkId,
}

impl Scheduler {
    /// Starts reading wanted chunks while there is memory.
    pub(super) fn admit(&mut self) {
        if self.broken.is_some() {
            return;
        }
        // After a failure another try makes sense only when there is room, which comes while anything is in flight.
        if let Some((staging, slots)) = self.lacking
            && !self.idle()
        {
            let room = match &self.s.slots {
                None => self.s.staging.arena.available() >= staging + slots,
                Some(block) => self.s.staging.arena.available() >= staging && block.arena.available() >= slots,
            };
            if !room {
                return;
            }
        }
        self.lacking = None;
        while let Some(&(batch, order, id)) = self.want.first() {
            if batch >= self.first + self.active as u64 {
                return;
            }
            let admitted = match self.s.shared.catalog.location(id) {
                Location::Key if self.admit_key(batch, order, id) => Admission::Done,
                Location::Key => Admission::NoRoom,
                Location::Shard(shard, slot) => self.admit_shard(batch, order, id, shard, slot),
            };
            // All or nothing was reserved: whatever is dropped now, the next try starts from the beginning, so that
            // ranges that don't fit where others lie now fit in the end.
            match admitted {
                Admission::Done => self.lacking = None,
                Admission::NoRoom if self.evict(batch) => {}
                Admission::NoRoom | Admission::Later => return,
            }
        }
    }

    /// Whether nothing is in flight that would give memory back.
    pub(super) fn idle(&self) -> bool {
        self.reads_in_flight == 0
            && self.cpu_tasks_in_flight == 0
            && self.pending.is_empty()
            && self.s.lanes.as_ref().is_none_or(|l| l.count() == self.idle_lanes.len())
    }

    /// Where a chunk's decoded bytes go if one job copies all of them to one place: part of an output.
    pub(super) fn direct(&self, id: ChunkId, decoded: usize) -> Option<Span> {
        if self.s.lanes.is_some() {
            return None;
        }
        let chunk = self.chunks.get(&id)?;
        let &(number, i) = chunk.users.front()?;
        // Another use soon would need the chunk kept; one in a far batch would find it dropped anyway.
        let soon = self.s.lookahead as u64 / 2;
        if chunk.users.get(1).is_some_and(|&(next, _)| next - number <= soon) {
            return None;
        }
        let batch = &self.batches[(number - self.first) as usize];
        let [job] = &batch.plan.jobs[batch.plan.uses[i as usize].jobs.clone()] else { return None };
        let op = &self.s.shared.ops[job.op as usize];
        let size = crate::dtype::DType::ALL[op.dst_dtype as usize].size();
        let contiguous = job.ndim == 1
            && job.src == 0
            && job.dst_stride[0] == 1
            && job.src_stride[0] == 1
            && job.extent[0] as usize * size == decoded;
        (contiguous && is_copy(op) && op.swap == 0)
            .then(|| Span { address: batch.outputs[job.reserved as usize] + job.dst, len: decoded })
    }

    /// Reserves what a chunk needs from decoding on. `None`, with nothing reserved, if there isn't enough memory.
    pub(super) fn reserve_decoded(&mut self, id: ChunkId, decoded: usize) -> Option<()> {
        let direct = self.direct(id, decoded);
        let slot = if direct.is_some() { None } else { Some(self.reserve(true, decoded)?) };
        let mut bounce = None;
        if self.s.lanes.is_some() && self.s.shared.catalog.route(id) == Route::Cpu {
            bounce = self.reserve(false, decoded);
            if bounce.is_none() {
                if let Some(slot) = slot {
                    self.slots().arena.release(slot);
                }
                return None;
            }
        }
        let chunk = self.chunks.get_mut(&id)?;
        (chunk.slot, chunk.direct, chunk.bounce) = (slot, direct, bounce);
        Some(())
    }

    pub(super) fn unreserve_decoded(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        let (slot, bounce) = (chunk.slot.take(), chunk.bounce.take());
        chunk.direct = None;
        if let Some(slot) = slot {
            self.slots().arena.release(slot);
        }
        if let Some(bounce) = bounce {
            self.s.staging.arena.release(bounce);
        }
    }

    /// Where a chunk's decoded bytes are to be written by the CPU.
    pub(super) fn decoded_span(&self, id: ChunkId, decoded: usize) -> Span {
        let chunk = &self.chunks[&id];
        if let Some(direct) = chunk.direct {
            return direct;
        }
        let (block, range) = match (chunk.bounce, chunk.slot) {
            (Some(bounce), _) => (&self.s.staging, bounce),
            (None, Some(slot)) => (self.s.slots.as_ref().unwrap_or(&self.s.staging), slot),
            (None, None) => unreachable!("reserved on admission"),
        };
        Span { address: block.base + range.offset as u64, len: decoded }
    }

    pub(super) fn admit_key(&mut self, batch: u64, order: u64, id: ChunkId) -> bool {
        let catalog = Arc::clone(&self.s.shared.catalog);
        let decoded = catalog.decoded_bytes(id);
        if self.reserve_decoded(id, decoded).is_none() {
            self.lacking = Some((0, decoded));
            return false;
        }
        // On the CPU an uncompressed chunk is read to where it belongs.
        let in_place = catalog.route(id) == Route::Raw && self.s.lanes.is_none();
        let (to, staging, range) = if in_place {
            (self.decoded_span(id, decoded), None, ReadRange::Exact)
        } else {
            let (most, range) = match catalog.route(id) {
                Route::Raw => (decoded, ReadRange::Exact),
                _ => (catalog.part(id).format.max_encoded_bytes(decoded), ReadRange::Whole),
            };
            let Some(staging) = self.reserve(false, most) else {
                self.unreserve_decoded(id);
                self.lacking = Some((most, decoded));
                return false;
            };
            (Span { address: self.s.staging.base + staging.offset as u64, len: most }, Some(staging), range)
        };
        self.want.remove(&(batch, order, id));
        self.read(vec![(id, 0, None)], staging, to, range, id);
        true
    }

    /// Starts a read for these chunks, which are all in one object.
    pub(super) fn read(
        &mut self,
        chunks: Vec<(ChunkId, usize, Option<usize>)>,
        staging: Option<arena::Range>,
        to: Span,
        range: ReadRange,
        of: ChunkId,
    ) {
        for (id, ..) in &chunks {
            if let Some(chunk) = self.chunks.get_mut(id) {
                chunk.state = State::Fetching;
            }
        }
        let group = self.next_group;
        self.next_group += 1;
        self.groups.insert(group, Group { staging, remaining: chunks.len(), chunks, to });
        self.reads_in_flight += 1;
        let key = self.s.shared.catalog.key(of);
        self.s.fetch.read(Read { group, array: of.array, part: of.part, key, range, to });
    }

    pub(super) fn admit_shard(
        &mut self,
        batch: u64,
        order: u64,
        id: ChunkId,
        shard: super::shards::ShardId,
        slot: usize,
    ) -> Admission {
        let known = match self.shards.get(shard, id) {
            Ok(known) => known,
            Err(Ask::Full) => return Admission::Later,
            Err(ask) => {
                self.want.remove(&(batch, order, id));
                if let Some(chunk) = self.chunks.get_mut(&id) {
                    chunk.state = State::AwaitsIndex;
                }
                if ask == Ask::Read {
                    self.index_reads_in_flight += 1;
                    self.s.fetch.index(shard, self.s.shared.catalog.key(id));
                }
                return Admission::Done;
            }
        };
        let Known::Index(index) = &*known else {
            self.want.remove(&(batch, order, id));
            self.settle(id, State::Missing);
            return Admission::Done;
        };
        let (offset, len) = match self.range_in_shard(id, index.entries.get(slot).copied().flatten()) {
            Ok(Some(range)) => range,
            Ok(None) => {
                self.want.remove(&(batch, order, id));
                self.settle(id, State::Missing);
                return Admission::Done;
            }
            Err(e) => {
                self.want.remove(&(batch, order, id));
                self.settle(id, State::Failed(e));
                return Admission::Done;
            }
        };
        let mut members = self.neighbours(Member { offset, len, batch, order, id }, shard, index);
        while !self.admit_members(&members) {
            if members.len() == 1 || !self.idle() {
                let decoded = members.iter().map(|m| self.s.shared.catalog.decoded_bytes(m.id));
                self.lacking = Some((members.iter().map(|m| m.len as usize).sum(), decoded.sum()));
                return Admission::NoRoom;
            }
            // Not enough memory for all of them, ever: fewer, the first one alone in the end.
            let at = members.iter().position(|m| m.id == id).unwrap_or(0);
            let half = members.len() / 2;
            members = if at < half { members[..half].to_vec() } else { members[half..].to_vec() };
        }
        Admission::Done
    }

    /// The chunks that are wanted next from the same shard and lie so near `head` that one read serves them, in the
    /// order of their offsets.
    pub(super) fn neighbours(
        &self,
        head: Member,
        shard: super::shards::ShardId,
        index: &super::shards::Index,
    ) -> Vec<Member> {
        let limit = self.first + self.active as u64;
        let mut all = vec![head];
        for &(batch, order, id) in self.want.iter().skip(1).take(4096) {
            let Location::Shard(other, slot) = self.s.shared.catalog.location(id) else { break };
            if other != shard || batch >= limit {
                break;
            }
            // What can't be read is left for its own turn.
            if let Ok(Some((offset, len))) = self.range_in_shard(id, index.entries.get(slot).copied().flatten()) {
                all.push(Member { offset, len, batch, order, id });
            }
        }
        // Writers that encode in parallel leave the chunks of a shard in any order.
        all.sort_unstable_by_key(|m| m.offset);
        let at = all.iter().position(|m| m.id == head.id).unwrap_or(0);
        let (mut first, mut last) = (at, at);
        let (mut from, mut to) = (head.offset, head.offset + head.len);
        let most = MERGE_LIMIT.max(head.len);
        loop {
            let after = all.get(last + 1).map(|m| (m.offset, m.offset + m.len));
            let before = first.checked_sub(1).map(|i| (all[i].offset, all[i].offset + all[i].len));
            if let Some((start, end)) = after
                && start <= to + MERGE_GAP
                && end.max(to) - from <= most
            {
                last += 1;
                to = to.max(end);
            } else if let Some((start, end)) = before
                && end + MERGE_GAP >= from
                && to - start <= most
            {
                first -= 1;
                from = start;
            } else {
                return all[first..=last].to_vec();
            }
        }
    }

    /// Reserves memory for all members and reads them, or does nothing.
    pub(super) fn admit_members(&mut self, members: &[Member]) -> bool {
        let from = members.iter().map(|m| m.offset).min().unwrap_or(0);
        let to = members.iter().map(|m| m.offset + m.len).max().unwrap_or(0);
        let bytes = (to - from) as usize;
        let Some(staging) = self.reserve(false, bytes) else { return false };
        for (i, member) in members.iter().enumerate() {
            let decoded = self.s.shared.catalog.decoded_bytes(member.id);
            if self.reserve_decoded(member.id, decoded).is_none() {
                members[..i].iter().for_each(|m| self.unreserve_decoded(m.id));
                self.s.staging.arena.release(staging);
                return false;
            }
        }
        for m in members {
            self.want.remove(&(m.batch, m.order, m.id));
        }
        let chunks = members.iter().map(|m| (m.id, (m.offset - from) as usize, Some(m.len as usize))).collect();
        let to = Span { address: self.s.staging.base + staging.offset as u64, len: bytes };
        self.read(chunks, Some(staging), to, ReadRange::From(from), members[0].id);
        true
    }

    /// The range of an inner chunk, checked against what its size allows.
    pub(super) fn range_in_shard(&self, id: ChunkId, entry: Option<(u64, u64)>) -> Result<Option<(u64, u64)>> {
        let Some((offset, len)) = entry else { return Ok(None) };
        let catalog = &self.s.shared.catalog;
        let decoded = catalog.decoded_bytes(id);
        let (least, most) = match catalog.route(id) {
            Route::Raw => (decoded, decoded),
            _ => (0, catalog.part(id).format.max_encoded_bytes(decoded)),
        };
        if len < least as u64 || len > most as u64 {
            return Err(Error::runtime(format!(
                "{}: expected between {least} and {most} encoded bytes for {decoded} decoded ones, found {len} in the \
                 shard's index; the shard is corrupt",
                catalog.name(id)
            )));
        }
        Ok(Some((offset, len)))
    }
}
