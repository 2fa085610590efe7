//! Hands out ranges of one fixed block of memory. It knows offsets only, so it serves host and device memory alike.

use std::collections::{BTreeMap, BTreeSet};

/// For this many sizes, released ranges are kept for the next request of the same size. Most chunks have one size. To
/// join a range with its neighbours, only to cut it out again, is the largest cost of a small chunk.
const BINS: usize = 4;

/// Every range starts and ends at a multiple of this many bytes. It suits copies and kernels, and ranges never share a
/// cache line.
pub const ALIGN: usize = 256;

/// The free ranges of a block.
#[derive(Debug)]
pub struct Arena {
    /// Offset to length. No two ranges touch.
    free: BTreeMap<usize, usize>,
    /// Length and offset of the same ranges, so that finding room needs no search through all of them.
    by_len: BTreeSet<(usize, usize)>,
    /// Released ranges that are not joined with their neighbours yet. A bin has their length, and their offsets, the
    /// latest last.
    bins: [(usize, Vec<usize>); BINS],
    capacity: usize,
    available: usize,
    /// Ranges that nobody may use at present: offset to length. No two touch.
    withheld: BTreeMap<usize, usize>,
    /// The sum of their lengths.
    withheld_bytes: usize,
}

/// A range that was handed out. It must go back through [`Arena::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a range that isn't released stays reserved"]
pub struct Range {
    /// From the start of the block.
    pub(super) offset: usize,
    /// Bytes, rounded up to [`ALIGN`].
    pub(super) len: usize,
}

impl Range {
    /// The offset of the first byte in the block.
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes, rounded up to [`ALIGN`].
    pub const fn bytes(&self) -> usize {
        self.len
    }
}

/// Returns the bytes that an allocation of `bytes` takes: a multiple of [`ALIGN`], at least one.
pub const fn rounded(bytes: usize) -> usize {
    if bytes == 0 { ALIGN } else { bytes.saturating_add(ALIGN - 1) / ALIGN * ALIGN }
}

impl Arena {
    /// Creates an arena of `capacity` bytes (rounded down to [`ALIGN`]), all of them free.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity / ALIGN * ALIGN;
        let mut arena = Self {
            free: BTreeMap::new(),
            by_len: BTreeSet::new(),
            bins: Default::default(),
            capacity,
            available: capacity,
            withheld: BTreeMap::new(),
            withheld_bytes: 0,
        };
        if capacity > 0 {
            arena.insert(0, capacity);
        }
        arena
    }

    fn insert(&mut self, offset: usize, len: usize) {
        self.free.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn remove(&mut self, offset: usize, len: usize) {
        self.free.remove(&offset);
        self.by_len.remove(&(len, offset));
    }

    /// Bytes of the block.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that are not handed out. They may lie in several ranges.
    pub fn available(&self) -> usize {
        self.available
    }

    /// Takes a range. A range of this size that was released lately comes first: it is likely still in the CPU's
    /// caches. Otherwise takes the start of the smallest free range that holds `bytes`, and of several the lowest. So
    /// large ranges stay whole, and low addresses are used again. `None` if no free range is large enough.
    pub fn take(&mut self, bytes: usize) -> Option<Range> {
        let len = rounded(bytes);
        if len > self.available {
            return None;
        }
        if let Some(offset) = self.bins.iter_mut().find(|bin| bin.0 == len).and_then(|bin| bin.1.pop()) {
            self.available -= len;
            return Some(Range { offset, len });
        }
        let found = match self.by_len.range((len, 0)..).next() {
            Some(&found) => found,
            None => {
                self.join_all();
                *self.by_len.range((len, 0)..).next()?
            }
        };
        let (found, offset) = found;
        self.remove(offset, found);
        if found > len {
            self.insert(offset + len, found - len);
        }
        self.available -= len;
        Some(Range { offset, len })
    }

    /// Takes a range back.
    pub fn release(&mut self, range: Range) {
        self.available += range.len;
        let bin = match self.bins.iter().position(|bin| bin.0 == range.len) {
            Some(bin) => bin,
            None => {
                // The size with the fewest ranges gives up its bin.
                let bin = (0..BINS).min_by_key(|&bin| self.bins[bin].1.len()).unwrap_or(0);
                self.join(bin);
                self.bins[bin].0 = range.len;
                bin
            }
        };
        self.bins[bin].1.push(range.offset);
    }

    /// Joins all free ranges with their neighbours, so that the next request gets the lowest possible range. Otherwise
    /// a range in the middle that was used lately could block requests that together take most of the block.
    pub fn join_all(&mut self) {
        (0..BINS).for_each(|bin| self.join(bin));
    }

    /// Joins the ranges of a bin with their neighbours.
    fn join(&mut self, bin: usize) {
        let len = self.bins[bin].0;
        let mut offsets = std::mem::take(&mut self.bins[bin].1);
        offsets.drain(..).for_each(|offset| self.free(offset, len));
        self.bins[bin].1 = offsets;
    }

    fn free(&mut self, mut offset: usize, mut len: usize) {
        if let Some((&before, &l)) = self.free.range(..offset).next_back() {
            debug_assert!(before + l <= offset, "released twice");
            if before + l == offset {
                self.remove(before, l);
                (offset, len) = (before, l + len);
            }
        }
        if let Some(&l) = self.free.get(&(offset + len)) {
            self.remove(offset + len, l);
            len += l;
        }
        self.insert(offset, len);
    }

    /// Withholds free ranges, the last ones first, of `most` bytes at most. Returns their offsets and lengths.
    pub fn withhold(&mut self, most: usize) -> Vec<(usize, usize)> {
        self.join_all();
        let mut left = most / ALIGN * ALIGN;
        let mut taken = Vec::new();
        while left > 0
            && let Some((&offset, &len)) = self.free.last_key_value()
        {
            let bytes = len.min(left);
            self.remove(offset, len);
            if bytes < len {
                self.insert(offset, len - bytes);
            }
            taken.push((offset + len - bytes, bytes));
            left -= bytes;
            self.available -= bytes;
            self.withheld_bytes += bytes;
        }
        for &(offset, len) in &taken {
            let end = self.withheld.remove(&(offset + len)).unwrap_or(0);
            match self.withheld.range_mut(..offset).next_back() {
                Some((&before, length)) if before + *length == offset => *length += len + end,
                _ => {
                    self.withheld.insert(offset, len + end);
                }
            }
        }
        taken
    }

    /// Bytes that are withheld.
    pub fn withheld(&self) -> usize {
        self.withheld_bytes
    }

    /// Frees up to `most` withheld bytes: of one range, of which the first one that is long enough is taken, or else of
    /// as many as it takes. Returns how many bytes were freed.
    pub fn grant(&mut self, most: usize) -> usize {
        let most = most / ALIGN * ALIGN;
        let mut granted = 0;
        while granted < most {
            let fits = self.withheld.iter().find(|&(_, &len)| len >= most - granted);
            let Some((&offset, &len)) = fits.or_else(|| self.withheld.iter().next()) else { break };
            let bytes = len.min(most - granted);
            self.withheld.remove(&offset);
            if bytes < len {
                self.withheld.insert(offset + bytes, len - bytes);
            }
            self.free(offset, bytes);
            granted += bytes;
        }
        self.available += granted;
        self.withheld_bytes -= granted;
        granted
    }

    /// Takes back the part of a range beyond its first `bytes`. Returns the rest, which may be the whole range.
    pub fn shrink(&mut self, range: Range, bytes: usize) -> Range {
        let len = rounded(bytes);
        if len >= range.len {
            return range;
        }
        self.release(Range { offset: range.offset + len, len: range.len - len });
        Range { offset: range.offset, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn withheld_ranges_are_nobodys() {
        let mut arena = Arena::new(16 * ALIGN);
        assert_eq!(arena.withhold(12 * ALIGN), [(4 * ALIGN, 12 * ALIGN)]);
        let held: Vec<Range> = (0..4).map(|_| arena.take(ALIGN).unwrap()).collect();
        assert!(arena.take(1).is_none());
        assert_eq!((arena.grant(2 * ALIGN), arena.available(), arena.withheld()), (2 * ALIGN, 2 * ALIGN, 10 * ALIGN));
        let more = arena.take(2 * ALIGN).unwrap();
        // Two ranges that don't touch come back, and are withheld. To grant one of three, both are freed.
        let mut held = held.into_iter();
        arena.release(held.next().unwrap());
        arena.release(more);
        assert_eq!(arena.withhold(usize::MAX), [(4 * ALIGN, 2 * ALIGN), (0, ALIGN)]);
        assert_eq!((arena.available(), arena.withheld()), (0, 13 * ALIGN));
        assert_eq!(
            (arena.grant(12 * ALIGN), arena.withheld()),
            (12 * ALIGN, ALIGN),
            "the one range that is long enough"
        );
        assert!(arena.take(12 * ALIGN).is_some());
        held.for_each(|range| arena.release(range));
        assert_eq!((arena.grant(5 * ALIGN), arena.available()), (ALIGN, 4 * ALIGN));
        assert!(arena.take(4 * ALIGN).is_some(), "joined");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn ranges_never_overlap_and_all_come_back(ops in prop::collection::vec((0usize..5000, any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let mut arena = Arena::new(40_000);
            let mut held: Vec<Range> = Vec::new();
            for (bytes, take, which) in ops {
                if take || held.is_empty() {
                    if let Some(r) = arena.take(bytes) {
                        prop_assert!(r.len >= bytes && r.offset + r.len <= arena.capacity());
                        prop_assert!(held.iter().all(|h| h.offset + h.len <= r.offset || r.offset + r.len <= h.offset));
                        held.push(r);
                    }
                } else {
                    let at = which.index(held.len());
                    let range = held.swap_remove(at);
                    if bytes % 2 == 0 {
                        held.push(arena.shrink(range, bytes));
                    } else {
                        arena.release(range);
                    }
                }
                prop_assert_eq!(arena.available() + held.iter().map(|h| h.len).sum::<usize>(), arena.capacity());
            }
            held.into_iter().for_each(|h| arena.release(h));
            arena.join_all();
            let (a, b) = (arena.take(17_000), arena.take(22_000));
            prop_assert!(a.is_some() && b.is_some(), "two that fill the block");
            a.into_iter().chain(b).for_each(|h| arena.release(h));
            prop_assert_eq!(arena.take(arena.capacity()), Some(Range { offset: 0, len: arena.capacity() }));
        }
    }
}
