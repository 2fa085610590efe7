//! Runs of blocks along an axis: samples that start in one chunk, or group of chunks, are one block.

use crate::dataset::DimGrid;
use crate::order::{Blocks, Run};

/// If the step does not divide the chunk, a block spans at most this many chunks.
const MAX_CHUNKS: u64 = 8;

/// A run is a sequence of blocks of one size. If there are more runs than this along an axis, blocks are listed one by
/// one, which takes less memory then.
const MAX_RUNS: usize = 64;
/// At most this many blocks are listed, unless there are at most four for each run. A list of this length takes 20 MiB,
/// with what an epoch's order adds.
const MAX_LISTED: u64 = 1 << 20;

/// The chunk, or group of chunks, in which samples start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartsIn {
    /// Index of the store's part of the array.
    pub part: usize,
    /// Number of the chunk in the part, or of the group of chunks by which blocks are cut.
    pub chunk: u64,
}

/// An element of a dimension of one store's part of an array.
#[derive(Clone, Copy)]
pub(super) struct Element {
    /// Index of the store's part of the array.
    pub part: usize,
    /// Index of the element in the part.
    pub at: u64,
}

/// Runs of blocks along an axis. Neighbouring blocks of one size form one run.
#[derive(Default)]
pub(super) struct Runs {
    pub all: Vec<Run>,
    /// The chunk, or group of chunks, in which the samples of the last block start.
    last: Option<StartsIn>,
}

impl Runs {
    /// Makes the runs of an axis whose blocks have one size.
    pub fn one(run: Run) -> Self {
        Self { all: vec![run], last: None }
    }

    /// Adds `count` blocks of `size` samples. The samples of the first block start in `first`, those of the last block
    /// in `last`. If the block before starts in `first` too, it is joined with the first new one: a chunk may hold many
    /// segments.
    pub fn push(&mut self, size: u64, count: u64, first: StartsIn, last: StartsIn) {
        if size == 0 || count == 0 {
            return;
        }
        let before = if self.last == Some(first) { self.pop() } else { 0 };
        self.add(before + size, 1);
        self.add(size, count - 1);
        self.last = Some(last);
    }

    fn add(&mut self, size: u64, count: u64) {
        match self.all.last_mut() {
            _ if count == 0 => {}
            Some(last) if last.size == size => last.count += count,
            _ => self.all.push(Run { size, count }),
        }
    }

    /// Removes the last block and returns its size in samples; 0 if there is none.
    fn pop(&mut self) -> u64 {
        let Some(last) = self.all.last_mut() else { return 0 };
        let size = last.size;
        last.count -= 1;
        if last.count == 0 {
            self.all.pop();
        }
        size
    }

    /// Adds the blocks of `samples` samples. They start every `step` elements, from `first` on, along a dimension with
    /// chunks of `chunk` elements.
    pub fn regular(&mut self, samples: u64, first: Element, step: u64, chunk: u64) {
        let Element { part, at } = first;
        let Some(whole) = whole(chunk, step) else {
            // A chunk border meets a sample start too rarely. Blocks have as many samples as a chunk, wherever they
            // lie.
            let size = (chunk / step).max(1);
            let blocks = samples / size;
            let of = |block: u64| StartsIn { part, chunk: (at + block * size * step) / chunk };
            self.push(size, blocks, of(0), of(blocks.saturating_sub(1)));
            self.push(samples % size, 1, of(blocks), of(blocks));
            return;
        };
        let of = |sample: u64| StartsIn { part, chunk: (at + sample * step) / whole };
        let head = (whole - at % whole).div_ceil(step).min(samples);
        let head = if head == whole / step { 0 } else { head };
        let size = whole / step;
        let blocks = (samples - head) / size;
        let tail = head + blocks * size;
        self.push(head, 1, of(0), of(0));
        self.push(size, blocks, of(head), of(tail.saturating_sub(size)));
        self.push(samples - tail, 1, of(tail), of(tail));
    }

    /// Like [`Self::regular`], for chunks that end at `ends`.
    pub fn irregular(&mut self, samples: u64, first: Element, step: u64, ends: &[u64]) {
        let Element { part, mut at } = first;
        let mut left = samples;
        let first = ends.partition_point(|&e| e <= at);
        for (chunk, &end) in ends.iter().enumerate().skip(first) {
            if left == 0 {
                return;
            }
            let n = end.saturating_sub(at).div_ceil(step).min(left);
            let of = StartsIn { part, chunk: chunk as u64 };
            self.push(n, 1, of, of);
            at += n * step;
            left -= n;
        }
        let beyond = StartsIn { part, chunk: ends.len() as u64 };
        self.push(left, 1, beyond, beyond);
    }

    /// Returns the blocks as a list, if they are irregular. All other axes together have `others` samples in one block.
    /// `None` if runs take less memory.
    pub fn listed(&self, others: u64) -> Option<Blocks> {
        let blocks = self.all.iter().fold(0u64, |n, run| n.saturating_add(run.count));
        if self.all.len() <= MAX_RUNS || blocks > MAX_LISTED.max(4 * self.all.len() as u64) {
            return None;
        }
        let mut ends = Vec::with_capacity(blocks as usize);
        let mut end = 0;
        for run in &self.all {
            for _ in 0..run.count {
                end += run.size * others;
                ends.push(end);
            }
        }
        Some(Blocks::listed(ends))
    }
}

/// Returns the smallest multiple of `chunk` that `step` divides, if it has at most [`MAX_CHUNKS`] chunks.
fn whole(chunk: u64, step: u64) -> Option<u64> {
    (1..=MAX_CHUNKS).map(|n| n.saturating_mul(chunk)).find(|n| n.is_multiple_of(step))
}

/// Returns the number of the chunk that holds the element `at` of a grid, or of the group of chunks by which blocks are
/// cut.
pub(super) fn group(grid: &DimGrid, at: u64, step: u64) -> u64 {
    match grid {
        DimGrid::Regular { chunk, .. } => at / whole(*chunk, step).unwrap_or(*chunk),
        DimGrid::Irregular { starts } => starts[1..].partition_point(|&end| end <= at) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(runs: &Runs) -> Vec<u64> {
        runs.all.iter().flat_map(|r| std::iter::repeat_n(r.size, r.count as usize)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn blocks_end_where_chunks_do(samples in 1u64..80, at in 0u64..30, step in 1u64..9, chunk in 1u64..25) {
            let mut runs = Runs::default();
            runs.regular(samples, Element { part: 0, at }, step, chunk);
            let sizes = sizes(&runs);
            prop_assert_eq!(sizes.iter().sum::<u64>(), samples);
            let blocks = (1..=MAX_CHUNKS).map(|n| n * chunk).find(|n| n % step == 0);
            // The numbers of the (groups of) chunks that each block's samples start in.
            let mut from = 0;
            let mut last = None;
            for size in sizes {
                let of = |i: u64| (at + i * step) / blocks.unwrap_or(chunk);
                if blocks.is_some() {
                    prop_assert_eq!(of(from), of(from + size - 1));
                    prop_assert!(last.is_none_or(|l| l < of(from)), "no chunk is in two blocks");
                } else {
                    prop_assert!(of(from + size - 1) - of(from) <= 1);
                }
                last = Some(of(from));
                from += size;
            }
        }

        #[test]
        fn irregular_blocks_end_where_chunks_do(
            samples in 1u64..40, at in 0u64..9, step in 1u64..9, ends in prop::collection::btree_set(1u64..400, 1..30),
        ) {
            let mut ends: Vec<u64> = ends.into_iter().collect();
            ends.push(1000);
            let mut runs = Runs::default();
            runs.irregular(samples, Element { part: 0, at }, step, &ends);
            let chunk = |i: u64| ends.partition_point(|&e| e <= at + i * step);
            let expected = (0..samples).collect::<Vec<_>>().chunk_by(|&a, &b| chunk(a) == chunk(b)).map(|c| c.len() as u64).collect::<Vec<_>>();
            prop_assert_eq!(sizes(&runs), expected);
        }
    }

    /// Checks the blocks of segments, given by their first start and their number of samples. Chunks are longer than
    /// `step`: samples of one block start in one chunk, and no chunk is in two blocks.
    fn check_segments(segments: &[(i64, u64)], step: u64, chunk: u64) {
        let mut runs = Runs::default();
        for &(at, count) in segments {
            runs.regular(count, Element { part: 0, at: at as u64 }, step, chunk);
        }
        let mut chunks = segments.iter().flat_map(|&(at, n)| (0..n).map(move |i| (at as u64 + i * step) / chunk));
        let mut last = None;
        for size in sizes(&runs) {
            let own: Vec<u64> = chunks.by_ref().take(size as usize).collect();
            assert!(own.iter().all(|of| *of == own[0]) && last < Some(own[0]), "{segments:?}: {own:?} after {last:?}");
            last = Some(own[0]);
        }
        assert_eq!(chunks.next(), None);
    }

    #[test]
    fn segments_of_one_chunk_are_one_block() {
        check_segments(&[(0, 3), (4, 2), (8, 1), (9, 5), (17, 20), (39, 1), (40, 3)], 1, 10);
        check_segments(&[(1, 3), (8, 4), (17, 5), (37, 1)], 2, 6);
        let many: Vec<(i64, u64)> = (0..2000).map(|i| (i * 7, 1 + i as u64 % 5)).collect();
        check_segments(&many, 1, 500);
        let mut runs = Runs::default();
        many.iter().for_each(|&(at, n)| runs.regular(n, Element { part: 0, at: at as u64 }, 1, 100));
        let blocks = runs.listed(3).unwrap();
        assert_eq!((blocks.count(), blocks.samples()), (140, 3 * 6000));
        assert!(Runs { all: vec![Run { size: 2, count: 1 }; MAX_RUNS], last: None }.listed(1).is_none());
        let far = (0..65).map(|i| Run { size: 1 + i % 2, count: 1 << 40 }).collect();
        assert!(Runs { all: far, last: None }.listed(1).is_none(), "regular blocks take no list");
    }
}
