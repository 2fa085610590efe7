//! Decides which ranges of one object are read together.

use std::ops::Range;

/// The limits on merged reads, which read several ranges of one object together.
pub(crate) struct Merge {
    /// The largest gap between two wanted ranges, in bytes.
    pub gap: u64,
    /// The longest merged read, in bytes. A large shard is read by several reads at a time.
    pub limit: u64,
    /// A merged read may contain at most this many more unwanted bytes than wanted ones.
    pub waste: u64,
}

impl Merge {
    /// Whether to extend a merged read across a gap, given its wanted and unwanted bytes so far.
    pub fn spans(&self, gap: u64, wanted: u64, wasted: u64) -> bool {
        gap <= self.gap && wasted + gap <= self.waste.saturating_add(wanted)
    }

    /// Returns the numbers of the ranges to read together with range number `at`, out of `count`. `range` gives the
    /// offset and the length of each. The offsets ascend.
    pub fn around(&self, at: usize, count: usize, range: impl Fn(usize) -> (u64, u64)) -> Range<usize> {
        let (start, len) = range(at);
        let (mut from, mut to) = (start, start + len);
        let limit = self.limit.max(len);
        let mut together = at..at + 1;
        // Wanted bytes, and unwanted bytes between them.
        let (mut wanted, mut wasted) = (len, 0);
        let mut reaches = |gap: u64, len: u64| {
            let spans = self.spans(gap, wanted, wasted);
            if spans {
                (wanted, wasted) = (wanted + len, wasted + gap);
            }
            spans
        };
        loop {
            let after = (together.end < count).then(|| range(together.end));
            let before = together.start.checked_sub(1).map(&range);
            if let Some((start, len)) = after
                && to.max(start + len) - from <= limit
                && reaches(start.saturating_sub(to), len)
            {
                together.end += 1;
                to = to.max(start + len);
            } else if let Some((start, len)) = before
                && to.max(start + len) - start <= limit
                && reaches(from.saturating_sub(start + len), len)
            {
                together.start -= 1;
                (from, to) = (start, to.max(start + len));
            } else {
                return together;
            }
        }
    }
}

/// For local stores: another read costs one system call, and the system reads ahead anyway.
pub(crate) const MERGE_LOCAL: Merge = Merge { gap: 64 << 10, limit: 4 << 20, waste: u64::MAX };

/// For remote stores. One connection gives 50 to 100 MB/s, and an answer begins after 5 to 30 ms. So another request
/// takes as long as about half a megabyte. Larger gaps would cost memory, and bandwidth where it is short.
pub(crate) const MERGE_REMOTE: Merge = Merge { gap: 512 << 10, limit: 8 << 20, waste: 512 << 10 };

#[cfg(test)]
mod tests {
    use super::Merge;

    const MERGE: Merge = Merge { gap: 10, limit: 100, waste: 15 };

    fn around(at: usize, ranges: &[(u64, u64)]) -> std::ops::Range<usize> {
        MERGE.around(at, ranges.len(), |i| ranges[i])
    }

    #[test]
    fn reads_grow_to_both_sides_over_small_gaps() {
        assert_eq!(around(0, &[(5, 3)]), 0..1);
        assert_eq!(around(1, &[(0, 20), (20, 20), (45, 20)]), 0..3);
        // A gap of 11 bytes.
        assert_eq!(around(1, &[(0, 20), (20, 20), (51, 20)]), 0..2);
        assert_eq!(around(2, &[(0, 20), (20, 20), (51, 20)]), 2..3);
    }

    #[test]
    fn reads_end_at_the_limit_and_keep_a_longer_first_range() {
        let tens: Vec<_> = (0..30).map(|i| (i * 10, 10)).collect();
        assert_eq!(around(0, &tens), 0..10);
        assert_eq!(around(29, &tens), 20..30);
        assert_eq!(around(1, &[(0, 10), (10, 500), (510, 10)]), 1..2);
    }

    #[test]
    fn reads_contain_few_more_unwanted_bytes_than_wanted_ones() {
        // Each gap is ten times as long as the range behind it.
        let thin: Vec<_> = (0..10).map(|i| (i * 11, 1)).collect();
        assert_eq!(around(0, &thin), 0..2);
    }

    #[test]
    fn ranges_may_overlap() {
        assert_eq!(around(1, &[(0, 50), (10, 5), (12, 30)]), 0..3);
        assert_eq!(around(1, &[(0, 101), (10, 5)]), 1..2, "the earlier one ends beyond the limit");
        assert_eq!(around(1, &[(0, 90), (10, 5), (95, 10)]), 0..2, "the earlier one is where the next gap begins");
    }
}
