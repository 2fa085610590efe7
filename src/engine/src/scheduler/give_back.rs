//! Gives back host memory that other readers of the process may need more.

use super::Scheduler;
use super::memory::MemoryKind;

/// After so many times [`super::UNUSED`], a reader gives back memory without being asked.
const LONG_UNUSED: u32 = 12;

impl Scheduler {
    /// Records that nothing has happened for `times` times [`super::UNUSED`]. If nothing is under way, nobody takes batches.
    pub(super) fn unused(&mut self, times: u32) {
        let (Some(account), true) = (self.memory.account(), self.idle()) else { return };
        account.set_unused(true);
        if times == LONG_UNUSED {
            self.give_back();
        }
    }

    /// Gives back host memory that other readers of the process may need more: all that was drawn and isn't in use, if
    /// nobody uses this reader, otherwise what is beyond its part. Chunks that are needed last are evicted first. Batches
    /// that are prepared stay.
    pub(super) fn give_back(&mut self) {
        let Some(account) = self.memory.account().cloned() else { return };
        let excess = account.excess();
        if excess == 0 {
            return;
        }
        self.batches.shrink();
        let kept = account.drawn().saturating_sub(excess);
        let over = || account.drawn().saturating_sub(kept);
        self.memory.shrink(over());
        let first = self.batches.active_end();
        while !self.on_gpu() && over() > self.memory.available(MemoryKind::Staging) as u64 {
            if !self.evict(first.saturating_sub(1)) {
                break;
            }
        }
        self.memory.shrink(over());
    }
}
