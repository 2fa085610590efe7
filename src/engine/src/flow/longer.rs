//! Chunks of more encoded bytes than writers in use make of so many decoded ones: with frames that are skipped, empty members, gaps.
//! Few readers ever meet one, so nothing is reserved for them beforehand. A value's size tells, or the index of its shard, and
//! then it is read with room for all of it. The scheduler's half that deals with them; see [`super::scheduler`].

use super::chunks::{Handle, State};
use super::scheduler::Scheduler;
use super::tasks::GroupId;
use crate::error::{Error, Result};
use crate::memory::arena::rounded;

impl Scheduler {
    /// A value has `bytes` bytes, more than were reserved for it, so that nothing of it was read: it is wanted again.
    pub(super) fn longer(&mut self, group: GroupId, handle: Handle, bytes: usize) {
        self.release_group(group, 1);
        self.unreserve_decoded(handle);
        let allowed = match self.chunks[handle].longer.replace(bytes) {
            None => self.holds(handle, bytes as u64),
            // Another try might find it still longer, and so on.
            Some(before) => Err(Error::runtime(format!(
                "{}: expected {before} bytes, as it had before, but found {bytes}; it was replaced while it was read",
                self.s.shared.catalog.name(self.chunks[handle].id)
            ))),
        };
        match allowed {
            Ok(()) => self.requeue(handle),
            Err(e) => self.settle(handle, State::Failed(e)),
        }
    }

    /// Checks that a chunk may have so many encoded bytes, and that memory has room for them when nothing else is in it.
    ///
    /// # Errors
    /// If not, with a limit that would do.
    pub(super) fn holds(&self, handle: Handle, encoded: u64) -> Result<()> {
        let catalog = &self.s.shared.catalog;
        let (id, decoded) = (self.chunks[handle].id, self.chunks[handle].place.decoded);
        let most = catalog.part(id).format.most_encoded_bytes(decoded);
        let wrong = |e: String| Err(Error::runtime(e).within(catalog.name(id)));
        let encoded = match usize::try_from(encoded) {
            Ok(encoded) if encoded <= most => encoded,
            _ => {
                return wrong(format!(
                    "expected at most {most} encoded bytes for {decoded} decoded ones, but found {encoded}; the chunk is damaged"
                ));
            }
        };
        // On the CPU the decoded chunk lies in the same block, unless it goes straight to an output.
        let beside = if self.s.lanes.is_none() || self.bounces(handle) { rounded(decoded) } else { 0 };
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
