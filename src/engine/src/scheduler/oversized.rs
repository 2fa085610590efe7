//! Chunks with more encoded bytes than usual encoders write: with skippable frames, empty members or gaps. They are
//! rare, so no memory is reserved for them in advance. When a value's size or a shard's index shows one, it is read
//! again with enough memory.

use super::Scheduler;
use super::chunk_table::ChunkState;
use crate::budget::{self, Needs};
use crate::error::{Error, Result};
use crate::memory::arena::rounded;
use crate::messages::{GroupId, Handle};

impl Scheduler {
    /// A value has `bytes` bytes, which is more than was reserved, so it was not read. The chunk is queued again.
    pub(super) fn oversized(&mut self, group: GroupId, handle: Handle, bytes: usize) {
        self.release_group(group, 1);
        self.unreserve_decoded(handle);
        let allowed = match self.chunks[handle].oversized.replace(bytes) {
            None => self.holds(handle, bytes as u64),
            // The value changes while it is read. Another try could find it longer still, without end.
            Some(before) => Err(Error::runtime(format!(
                "{}: expected {before} bytes, as it had before, but found {bytes}; it was replaced while it was read",
                self.s.shared.chunk_index.name(self.chunks[handle].id)
            ))),
        };
        match allowed {
            Ok(()) => self.requeue(handle),
            Err(e) => self.resolve(handle, ChunkState::Failed(e)),
        }
    }

    /// Checks that a chunk may have so many encoded bytes, and that they fit in memory when nothing else is there.
    ///
    /// If not. Where memory is too small, the error names a limit that is enough.
    pub(super) fn holds(&self, handle: Handle, encoded: u64) -> Result<()> {
        let chunk_index = &self.s.shared.chunk_index;
        let (id, decoded) = (self.chunks[handle].id, self.chunks[handle].place.decoded);
        let most = chunk_index.part(id).format.max_encoded_bytes(decoded);
        let wrong = |e: String| Err(Error::runtime(e).within(chunk_index.name(id)));
        let encoded = match usize::try_from(encoded) {
            Ok(encoded) if encoded <= most => encoded,
            _ => {
                return wrong(format!(
                    "expected at most {most} encoded bytes for {decoded} decoded ones, but found {encoded}; the chunk is damaged"
                ));
            }
        };
        // On the CPU the decoded chunk lies in the same block, unless it is decoded to an output.
        let beside = if self.s.lanes.is_none() || self.decodes_on_host(handle) { rounded(decoded) } else { 0 };
        let capacity = self.s.staging.arena.capacity();
        let needed = rounded(encoded).saturating_add(beside);
        if needed <= capacity {
            return Ok(());
        }
        wrong(format!(
            "expected at most {} encoded bytes for {decoded} decoded ones, for which there is memory, but found {encoded}; give a \
             host_memory_limit of {} or more, unless the chunk is damaged",
            capacity.saturating_sub(beside),
            self.s.rules.room.limit_for(needed)
        ))
    }
}

/// Tells which limits on host memory give a block of some size: the shares of [`budget::cpu`] and [`budget::host_for_gpu`], the
/// other way round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The smallest limit, and what the block has with it.
    smallest: u64,
    least: usize,
    /// Bytes that the block has of what is left, before more batches than must be are prepared; and the bytes of those.
    first: usize,
    ahead: usize,
    gpu: bool,
}

impl Room {
    /// For a reader with these needs; `window` is what the user asked for, if anything, and `gpu` says where batches are delivered.
    pub fn new(needs: &Needs, window: Option<usize>, gpu: bool) -> Self {
        if gpu {
            let fallback = needs.decoded + needs.fallback;
            let smallest = budget::smallest_host_for_gpu(needs, fallback) as u64;
            let least = rounded(needs.encoded) + rounded(needs.bounced);
            return Self { smallest, least, first: usize::MAX, ahead: 0, gpu };
        }
        let least = rounded(needs.encoded) + rounded(needs.decoded);
        let first = needs.working_set.saturating_add(least);
        let ahead = needs.batch.saturating_mul(budget::most_ahead(window));
        Self { smallest: budget::smallest_cpu(needs, window), least, first, ahead, gpu }
    }

    /// A limit with which, as with any larger one, the block has at least `bytes` bytes. Where decoders and tables take less
    /// than they may, a smaller one would do.
    pub fn limit_for(&self, bytes: usize) -> u64 {
        let more = bytes.saturating_sub(self.least);
        // Decoded chunks get half of what is left, as far as a batch needs them; beyond that, batches ahead come first.
        let left = if self.gpu {
            more
        } else if more <= self.first {
            more.saturating_mul(2).min(more.saturating_add(self.ahead))
        } else {
            more.saturating_add(self.ahead)
        };
        // Of what is beyond the smallest limit, half may go to decoders, and an eighth of the rest to indexes; on a GPU's way, half
        // may go to tables before.
        let parts = if self.gpu { 32 } else { 16 };
        self.smallest.saturating_add((left as u64).saturating_mul(parts).div_ceil(7)).saturating_add(64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_is_named_has_room_with_any_larger_one() {
        const MIB: usize = 1 << 20;
        let mut random = 7u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 20) as usize % n.max(1)
        };
        for _ in 0..3000 {
            let decoded = (below(64 * MIB) >> below(20)) + 1;
            let needs = Needs {
                batch: 1 + below(200 * MIB),
                encoded: decoded + decoded / 8,
                decoded,
                bounced: below(2) * decoded,
                per_thread: below(2) * below(3 * decoded),
                fallback: below(2) * decoded,
                index: below(2) * below(MIB),
                reading: 0,
                landing: 0,
                requested: below(2) * below(64 * MIB),
                working_set: decoded + below(100 * MIB),
                shuffled: (below(2) == 1).then_some(below(500 * MIB)),
                smallest: 1 + below(decoded),
                jobs: 0,
            };
            let window = (below(3) == 0).then_some(1 + below(5));
            let threads = 1 + below(32);
            let bytes = rounded(needs.encoded) + rounded(decoded) + 1 + (below(300 * MIB) >> below(12));
            let named = Room::new(&needs, window, false).limit_for(bytes);
            let on_gpu = Room::new(&needs, window, true).limit_for(bytes);
            for more in [0, 1 + below(MIB), below(500 * MIB), below(8 << 30)] {
                let block = budget::cpu(named + more as u64, &needs, window, threads).unwrap().block;
                assert!(block >= bytes, "{block} < {bytes} with {named} + {more}: {needs:?} {window:?} {threads}");
                let (limit, fallback) = (on_gpu + more as u64, needs.decoded + needs.fallback);
                let most = budget::host_tables(limit, &needs, fallback).unwrap();
                let block = budget::host_for_gpu(limit, &needs, fallback + most, threads).unwrap().block;
                assert!(block >= bytes, "{block} < {bytes} with {on_gpu} + {more}: {needs:?} {threads}");
            }
        }
    }
}
