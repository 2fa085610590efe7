//! When ranges of one object are read together.

/// When ranges of one object are read together.
pub(crate) struct Merge {
    /// The largest gap between two wanted ranges, in bytes.
    pub gap: u64,
    /// The longest merged read, in bytes. A large shard is read by several reads at a time.
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

/// For local stores: another read costs one system call, and the system reads ahead anyway.
pub(crate) const MERGE_LOCAL: Merge = Merge { gap: 64 << 10, limit: 4 << 20, waste: u64::MAX };

/// For remote stores. One connection gives 50 to 100 MB/s, and an answer begins after 5 to 30 ms. So another request
/// takes as long as about half a megabyte. Larger gaps would cost memory, and bandwidth where it is short.
pub(crate) const MERGE_REMOTE: Merge = Merge { gap: 512 << 10, limit: 8 << 20, waste: 512 << 10 };
