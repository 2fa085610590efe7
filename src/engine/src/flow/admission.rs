//! Which wanted chunks are read now: in the order of need, and only with all the memory that they will need until they are
//! decoded. The scheduler's half that deals with memory and with where chunks lie; see [`super::scheduler`].

use std::sync::Arc;

use super::batches::is_whole_copy;
use super::catalog::{Location, Place, Route};
use super::chunks::{Group, Handle, Member, State};
use super::queue::Wanted;
use super::scheduler::Scheduler;
use super::shards::{Ask, Index, Known, ShardId};
use super::tasks::{PastHost, Read, ReadRange};
use crate::error::{Error, Result};
use crate::memory::{Span, arena};
use crate::plan::ChunkId;

/// When ranges of one shard are read together.
pub(super) struct Merge {
    /// They are nearer than this.
    pub gap: u64,
    /// The read is no longer than this, so that several share the reading of a large shard.
    pub limit: u64,
    /// Not more than this many bytes for nothing, beyond as many as are wanted.
    pub waste: u64,
}

impl Merge {
    /// Whether a read may go on over a gap, having so many bytes that are wanted, and that are not.
    pub fn spans(&self, gap: u64, wanted: u64, wasted: u64) -> bool {
        gap <= self.gap && wasted + gap <= self.waste.saturating_add(wanted)
    }
}

/// From a disk, what another read costs: a call, and what the system reads ahead anyway.
pub(super) const MERGE_LOCAL: Merge = Merge { gap: 64 << 10, limit: 4 << 20, waste: u64::MAX };

/// From a server: one connection gives 50 to 100 MB/s, and an answer takes 5 to 30 ms to begin; in the time that another
/// request costs about half a megabyte comes through. Servers count and limit requests, so less isn't worth one; much
/// more would cost memory, and bandwidth where that is short.
pub(super) const MERGE_REMOTE: Merge = Merge { gap: 512 << 10, limit: 8 << 20, waste: 512 << 10 };

/// Chunks that are looked at when neighbours in a shard are looked for.
const MERGE_SEARCH: usize = 4096;

/// A read of less isn't worth cuFile's calls.
const LEAST_LANDING: usize = 64 << 10;

/// What became of the first chunk in the queue.
enum Admission {
    /// It is on its way, or its fate is known.
    Done,
    /// There isn't enough memory now.
    NoRoom,
    /// It has to wait for an index that is being read.
    Later,
}

/// Which memory there was too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    /// That of encoded bytes, and of what the CPU decodes for a GPU.
    Staging,
    /// That of decoded chunks.
    Slots,
}

/// What the first read in the queue found too little memory for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lacking {
    /// Bytes that it takes of either.
    staging: usize,
    slots: usize,
    short: Short,
    /// The batch that needs it.
    batch: u64,
}

/// A wanted chunk in a shard, and its bytes there.
#[derive(Clone, Copy)]
struct Inner {
    offset: u64,
    len: u64,
    handle: Handle,
}

impl Scheduler {
    /// Starts reading wanted chunks while there is memory.
    pub(super) fn admit(&mut self) {
        if self.broken.is_some() {
            return;
        }
        // After a failure another try makes sense only when there is room, which comes while anything is in flight, or when
        // a chunk can make some that couldn't before.
        if let Some(lacking) = self.lacking
            && !self.idle()
            && !self.room(lacking)
            && !self.can_evict(lacking)
        {
            return;
        }
        self.lacking = None;
        while self.may_read(false) || self.may_read(true) {
            if self.idle() {
                // Nothing will give memory back: what is free has to be as good as it gets.
                self.s.staging.arena.join_all();
                for block in [&mut self.s.slots, &mut self.s.landing].into_iter().flatten() {
                    block.arena.join_all();
                }
            }
            let (limit, chunks) = (self.batches.active_end(), &self.chunks);
            let Some(head) = self.queue.head(limit, |w| chunks.wanted(w)) else { return };
            // The order of need is kept also between stores that are read in different ways.
            let Place { location, remote, .. } = self.chunks[head.handle].place;
            if !self.may_read(remote) {
                return;
            }
            let admitted = match location {
                Location::Key if self.admit_key(head) => Admission::Done,
                Location::Key => Admission::NoRoom,
                Location::Shard(shard, slot) => self.admit_shard(head, shard, slot),
            };
            // All or nothing was reserved: whatever is dropped now, the next try starts from the beginning, so that
            // ranges that don't fit where others lie now fit in the end.
            match admitted {
                Admission::Done => self.lacking = None,
                Admission::NoRoom if self.lacking.is_some_and(|l| self.can_evict(l)) && self.evict(head.batch) => {}
                Admission::NoRoom | Admission::Later => return,
            }
        }
    }

    /// Whether there is as much memory as was lacking, though perhaps not in one piece.
    fn room(&self, Lacking { staging, slots, .. }: Lacking) -> bool {
        let available = self.s.staging.arena.available();
        match &self.s.slots {
            None => available >= staging.saturating_add(slots),
            Some(block) => available >= staging && block.arena.available() >= slots,
        }
    }

    /// Whether dropping a chunk that is kept would help: it lies in the memory that was short, and may be dropped.
    fn can_evict(&self, Lacking { short, batch, .. }: Lacking) -> bool {
        (short == Short::Slots || self.s.slots.is_none()) && self.victim(batch).is_some()
    }

    /// Whether another read may begin, of a remote store or a local one.
    fn may_read(&self, remote: bool) -> bool {
        self.reads_in_flight[usize::from(remote)] < self.s.rules.reads[usize::from(remote)]
    }

    /// Whether nothing is in flight that would give memory back.
    fn idle(&self) -> bool {
        self.reads_in_flight == [0, 0]
            && self.uploads_in_flight == 0
            && self.cpu_tasks_in_flight == 0
            && self.pending.is_empty()
            && self.loose.work.served.is_empty()
            && self.s.lanes.as_ref().is_none_or(|l| l.count() == self.idle_lanes.len())
    }

    /// Where a chunk's decoded bytes go if one job copies all of them to one place: part of an output.
    fn direct(&self, handle: Handle) -> Option<Span> {
        if self.s.lanes.is_some() {
            return None;
        }
        let chunk = &self.chunks[handle];
        let decoded = chunk.place.decoded;
        let &(number, i) = chunk.users.first()?;
        // Another use soon would need the chunk kept; one in a far batch would find it dropped anyway.
        let soon = self.s.rules.lookahead as u64 / 2;
        if chunk.users.get(1).is_some_and(|&(next, _)| next - number <= soon) {
            return None;
        }
        let batch = &self.batches.list[(number - self.batches.first) as usize];
        let jobs = &batch.plan.jobs[batch.plan.uses[i as usize].jobs.clone()];
        is_whole_copy(jobs, &self.s.shared.ops, decoded)
            .then(|| Span { address: batch.outputs[jobs[0].reserved as usize] + jobs[0].dst, len: decoded })
    }

    /// Whether the CPU decodes a chunk to memory from which it is copied to a GPU.
    fn bounces(&self, handle: Handle) -> bool {
        self.s.lanes.is_some() && self.chunks[handle].place.route == Route::Cpu
    }

    /// What a chunk takes of staging and slots from decoding on.
    fn takes_decoded(&self, handle: Handle) -> (usize, usize) {
        let decoded = arena::rounded(self.chunks[handle].place.decoded);
        let bounce = if self.bounces(handle) { decoded } else { 0 };
        (bounce, if self.direct(handle).is_some() { 0 } else { decoded })
    }

    /// Reserves what a chunk needs from decoding on.
    ///
    /// # Errors
    /// With nothing reserved, which memory there isn't enough of.
    fn reserve_decoded(&mut self, handle: Handle) -> Result<(), Short> {
        let decoded = self.chunks[handle].place.decoded;
        let direct = self.direct(handle);
        let slot = match direct {
            Some(_) => None,
            None => Some(self.reserve(true, decoded).ok_or(Short::Slots)?),
        };
        let mut bounce = None;
        if self.bounces(handle) {
            bounce = self.reserve(false, decoded);
            if bounce.is_none() {
                if let Some(slot) = slot {
                    self.slots().arena.release(slot);
                }
                return Err(Short::Staging);
            }
        }
        let chunk = &mut self.chunks[handle];
        (chunk.slot, chunk.direct, chunk.bounce) = (slot, direct, bounce);
        Ok(())
    }

    fn unreserve_decoded(&mut self, handle: Handle) {
        let chunk = &mut self.chunks[handle];
        let (slot, bounce) = (chunk.slot.take(), chunk.bounce.take());
        chunk.direct = None;
        if let Some(slot) = slot {
            self.slots().arena.release(slot);
        }
        if let Some(bounce) = bounce {
            self.s.staging.arena.release(bounce);
        }
    }

    /// Whether the thread that reads a chunk also copies it to its slot on the device.
    pub(super) fn is_uploaded(&self, handle: Handle) -> bool {
        self.s.lanes.is_some() && self.chunks[handle].place.uploads()
    }

    /// Where a chunk's decoded bytes are to be written by the CPU.
    pub(super) fn decoded_span(&self, handle: Handle) -> Span {
        let chunk = &self.chunks[handle];
        if let Some(direct) = chunk.direct {
            return direct;
        }
        let (block, range) = match (chunk.bounce, chunk.slot) {
            (Some(bounce), _) => (&self.s.staging, bounce),
            (None, Some(slot)) => (self.s.slots.as_ref().unwrap_or(&self.s.staging), slot),
            (None, None) => unreachable!("reserved on admission"),
        };
        Span { address: block.base + range.offset as u64, len: chunk.place.decoded }
    }

    fn admit_key(&mut self, head: Wanted) -> bool {
        let handle = head.handle;
        let catalog = Arc::clone(&self.s.shared.catalog);
        let (id, Place { decoded, route, .. }) = (self.chunks[handle].id, self.chunks[handle].place);
        // On the CPU an uncompressed chunk is read to where it belongs.
        let in_place = route == Route::Raw && self.s.lanes.is_none();
        let (most, range) = match route {
            Route::Raw => (decoded, ReadRange::Exact),
            _ => (catalog.part(id).format.max_encoded_bytes(decoded), ReadRange::Whole),
        };
        let (bounce, slots) = self.takes_decoded(handle);
        let staging = bounce + if in_place { 0 } else { arena::rounded(most) };
        let lacking = |short| Some(Lacking { staging, slots, short, batch: head.batch });
        if let Err(short) = self.reserve_decoded(handle) {
            self.lacking = lacking(short);
            return false;
        }
        let (to, staging, range) = if in_place {
            (self.decoded_span(handle), None, range)
        } else {
            let Some(staging) = self.reserve(false, most) else {
                self.unreserve_decoded(handle);
                self.lacking = lacking(Short::Staging);
                return false;
            };
            (Span { address: self.s.staging.base + staging.offset as u64, len: most }, Some(staging), range)
        };
        let Ok(landing) = self.reserve_landing(handle, most) else {
            staging.into_iter().for_each(|staging| self.s.staging.arena.release(staging));
            self.unreserve_decoded(handle);
            self.lacking = lacking(Short::Staging);
            return false;
        };
        self.read(vec![(handle, 0, None)], (staging, landing), to, (range, None), id);
        true
    }

    /// Starts a read for these chunks, which are all in one object (of that version).
    fn read(
        &mut self,
        chunks: Vec<Member>,
        (staging, landing): (Option<arena::Range>, Option<arena::Range>),
        to: Span,
        (range, version): (ReadRange, Option<Arc<str>>),
        of: ChunkId,
    ) {
        let mut uploads = Vec::new();
        for &(handle, offset, _) in &chunks {
            self.chunks[handle].state = State::Fetching;
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
        // A read goes past the host if all of it does.
        let past_host = match (landing, &self.s.landing) {
            (Some(range), Some(block)) => Some(PastHost::Landing(block.base + range.offset as u64)),
            _ if self.s.past_host && uploads.len() == chunks.len() && self.in_files(of) => Some(PastHost::Slots),
            _ => None,
        };
        self.groups.insert(group, Group { staging, landing, remaining: chunks.len() as u32, chunks, to, remote });
        self.reads_in_flight[usize::from(remote)] += 1;
        let key = self.s.shared.catalog.key(of);
        self.s.fetch.read(Read {
            group,
            array: of.array,
            part: of.part,
            key,
            range,
            version,
            to,
            uploads,
            pieces,
            past_host,
        });
    }

    /// Whether a chunk's store is one of files.
    fn in_files(&self, id: ChunkId) -> bool {
        self.s.shared.catalog.store(id.array, id.part).has_files()
    }

    /// Device memory for encoded bytes, if they are read to it (`None`: they aren't).
    ///
    /// # Errors
    /// If there isn't enough of it now.
    fn reserve_landing(&mut self, handle: Handle, bytes: usize) -> Result<Option<arena::Range>, Short> {
        let applies = self.s.landing.is_some()
            && self.chunks[handle].place.route == Route::Gpu
            && bytes >= LEAST_LANDING
            && self.in_files(self.chunks[handle].id);
        match &mut self.s.landing {
            Some(block) if applies => block.arena.take(bytes).map(Some).ok_or(Short::Staging),
            _ => Ok(None),
        }
    }

    fn admit_shard(&mut self, head: Wanted, shard: ShardId, slot: usize) -> Admission {
        let handle = head.handle;
        let known = match self.shards.get(shard, handle) {
            Ok(known) => known,
            Err(Ask::Full) => return Admission::Later,
            Err(ask) => {
                let chunk = &mut self.chunks[handle];
                chunk.state = State::AwaitsIndex;
                if ask == Ask::Read {
                    self.index_reads_in_flight += 1;
                    self.s.fetch.index(shard, self.s.shared.catalog.key(chunk.id));
                }
                return Admission::Done;
            }
        };
        let found = match &*known {
            Known::Missing => Ok(None),
            Known::Index(index) => match self.range_in_shard(handle, index, slot) {
                Ok(Some((offset, len))) => Ok(Some((index, Inner { offset, len, handle }))),
                Ok(None) => Ok(None),
                Err(e) => Err(e),
            },
        };
        let (index, inner) = match found {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.settle(handle, State::Missing);
                return Admission::Done;
            }
            Err(e) => {
                self.settle(handle, State::Failed(e));
                return Admission::Done;
            }
        };
        let mut members = self.neighbours(head, inner, shard, index);
        while let Err(short) = self.admit_members(&members, index.version.as_ref()) {
            if members.len() == 1 || !self.idle() {
                let takes = members.iter().map(|m| self.takes_decoded(m.handle));
                let (bounce, slots) = takes.fold((0, 0), |sum, takes| (sum.0 + takes.0, sum.1 + takes.1));
                let staging = bounce + arena::rounded(span_of(&members).1);
                self.lacking = Some(Lacking { staging, slots, short, batch: head.batch });
                return Admission::NoRoom;
            }
            // Not enough memory for all of them, ever: fewer, the first one alone in the end.
            let at = members.iter().position(|m| m.handle == handle).unwrap_or(0);
            let half = members.len() / 2;
            members = if at < half { members[..half].to_vec() } else { members[half..].to_vec() };
        }
        Admission::Done
    }

    /// The chunks that are wanted next from the same shard and lie so near `inner` that one read serves them, in the
    /// order of their offsets.
    fn neighbours(&self, head: Wanted, inner: Inner, shard: ShardId, index: &Index) -> Vec<Inner> {
        let mut all = vec![inner];
        for w in self.queue.after(head, self.batches.active_end()).take(MERGE_SEARCH) {
            if !self.chunks.wanted(&w) {
                continue;
            }
            let Location::Shard(other, slot) = self.chunks[w.handle].place.location else { break };
            if other != shard {
                break;
            }
            // What can't be read is left for its own turn.
            if let Ok(Some((offset, len))) = self.range_in_shard(w.handle, index, slot) {
                all.push(Inner { offset, len, handle: w.handle });
            }
        }
        // Writers that encode in parallel leave the chunks of a shard in any order.
        all.sort_unstable_by_key(|m| m.offset);
        let at = all.iter().position(|m| m.handle == inner.handle).unwrap_or(0);
        let (mut first, mut last) = (at, at);
        let (mut from, mut to) = (inner.offset, inner.offset + inner.len);
        let merge = if self.chunks[head.handle].place.remote { MERGE_REMOTE } else { MERGE_LOCAL };
        let most = merge.limit.max(inner.len);
        // Bytes that are wanted, and those between them.
        let (mut wanted, mut wasted) = (inner.len, 0u64);
        let mut near = |gap: u64, len: u64| {
            let fits = merge.spans(gap, wanted, wasted);
            if fits {
                (wanted, wasted) = (wanted + len, wasted + gap);
            }
            fits
        };
        loop {
            let after = all.get(last + 1).map(|m| (m.offset, m.offset + m.len));
            let before = first.checked_sub(1).map(|i| (all[i].offset, all[i].offset + all[i].len));
            if let Some((start, end)) = after
                && end.max(to) - from <= most
                && near(start.saturating_sub(to), end - start)
            {
                last += 1;
                to = to.max(end);
            } else if let Some((start, end)) = before
                && to - start <= most
                && near(from.saturating_sub(end), end - start)
            {
                first -= 1;
                from = start;
            } else {
                all.truncate(last + 1);
                all.drain(..first);
                return all;
            }
        }
    }

    /// Reserves memory for all members and reads them.
    ///
    /// # Errors
    /// With nothing done, which memory there isn't enough of.
    fn admit_members(&mut self, members: &[Inner], version: Option<&Arc<str>>) -> Result<(), Short> {
        let (from, bytes) = span_of(members);
        let staging = self.reserve(false, bytes).ok_or(Short::Staging)?;
        for (i, member) in members.iter().enumerate() {
            if let Err(short) = self.reserve_decoded(member.handle) {
                members[..i].iter().for_each(|m| self.unreserve_decoded(m.handle));
                self.s.staging.arena.release(staging);
                return Err(short);
            }
        }
        let landing = match self.reserve_landing(members[0].handle, bytes) {
            Ok(landing) => landing,
            Err(short) => {
                members.iter().for_each(|m| self.unreserve_decoded(m.handle));
                self.s.staging.arena.release(staging);
                return Err(short);
            }
        };
        let chunks = members.iter().map(|m| (m.handle, (m.offset - from) as usize, Some(m.len as usize))).collect();
        let to = Span { address: self.s.staging.base + staging.offset as u64, len: bytes };
        let of = self.chunks[members[0].handle].id;
        self.read(chunks, (Some(staging), landing), to, (ReadRange::From(from), version.cloned()), of);
        Ok(())
    }

    /// The range of an inner chunk (`None`: it is missing), checked against what its size allows.
    fn range_in_shard(&self, handle: Handle, index: &Index, slot: usize) -> Result<Option<(u64, u64)>> {
        let Some((offset, len)) = index.entries.get(slot).copied().flatten() else { return Ok(None) };
        let catalog = &self.s.shared.catalog;
        let (id, Place { decoded, route, .. }) = (self.chunks[handle].id, self.chunks[handle].place);
        let (least, most) = match route {
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

/// Where the first of `members` begins in its shard, and the bytes from there to the end of the last one.
fn span_of(members: &[Inner]) -> (u64, usize) {
    let from = members.iter().map(|m| m.offset).min().unwrap_or(0);
    let to = members.iter().map(|m| m.offset + m.len).max().unwrap_or(0);
    (from, (to - from) as usize)
}
