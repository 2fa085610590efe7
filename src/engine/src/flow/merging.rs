//! Inner chunks of shards: where they lie, and which of them one read serves. The scheduler's half that deals with shards; see
//! [`super::scheduler`].

use std::sync::Arc;

use super::admission::{Admission, Lacking, Short};
use super::catalog::{Location, Place, Route};
use super::chunks::{Handle, State};
use super::queue::Wanted;
use super::scheduler::Scheduler;
use super::shards::{Ask, Index, Known, ShardId};
use super::tasks::ReadRange;
use crate::error::{Error, Result};
use crate::memory::{Span, arena};

/// When ranges of one object are read together.
pub(crate) struct Merge {
    /// The largest gap between two ranges.
    pub gap: u64,
    /// The longest merged read. Several reads then share the work of a large shard.
    pub limit: u64,
    /// A merged read contains at most so many more unwanted bytes than wanted ones.
    pub waste: u64,
}

impl Merge {
    /// Whether to extend a merged read across a gap, given its wanted and unwanted bytes so far.
    pub fn spans(&self, gap: u64, wanted: u64, wasted: u64) -> bool {
        gap <= self.gap && wasted + gap <= self.waste.saturating_add(wanted)
    }
}

/// For a disk. Another read costs a system call, and the system reads ahead anyway.
pub(super) const MERGE_LOCAL: Merge = Merge { gap: 64 << 10, limit: 4 << 20, waste: u64::MAX };

/// For a server. One connection gives 50 to 100 MB/s and an answer begins after 5 to 30 ms, so another request costs as much time as
/// about half a megabyte. Larger gaps would cost memory, and bandwidth where that is short.
pub(crate) const MERGE_REMOTE: Merge = Merge { gap: 512 << 10, limit: 8 << 20, waste: 512 << 10 };

/// Chunks that are looked at when neighbours in a shard are looked for.
const MERGE_SEARCH: usize = 4096;

/// A wanted chunk in a shard, and its bytes there.
#[derive(Clone, Copy)]
struct Inner {
    offset: u64,
    len: u64,
    handle: Handle,
}

impl Scheduler {
    pub(super) fn admit_shard(&mut self, head: Wanted, shard: ShardId, slot: usize) -> Admission {
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
        let Some((offset, len)) = index.entries.get(slot) else { return Ok(None) };
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
