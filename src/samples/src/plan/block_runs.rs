//! Runs of blocks along an axis: samples that start in one chunk, or group of chunks, are one block.

use crate::dataset::{ChunkLengths, DimGrid, LengthRun};
use crate::order::{Blocks, Run};

/// If the step does not divide the chunk, a block spans at most this many chunks.
const MAX_CHUNKS: u64 = 8;

/// A run is a sequence of blocks of one size. If there are more runs than this along an axis, blocks are listed one by
/// one, which takes less memory then.
const MAX_RUNS: usize = 64;
/// At most this many blocks are listed, unless there are at most four for each run. A list of this length takes 20 MiB,
/// with what an epoch's order adds.
const MAX_LISTED: u64 = 1 << 20;
/// Chunks of several lengths are blocks one by one, if there are at most this many.
const MAX_CHUNKS_LISTED: u64 = 1 << 24;

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
        self.even(samples, first, step, Groups::of(0, 0, chunk, step));
    }

    /// Adds the blocks of samples that start in chunks of one length.
    fn even(&mut self, samples: u64, first: Element, step: u64, groups: Groups) {
        let Element { part, at } = first;
        let of = |sample: u64| StartsIn { part, chunk: groups.of_element(at + sample * step) };
        let Groups { start, chunk, joined: Some(joined), .. } = groups else {
            // A chunk border meets a sample start too rarely. Blocks have as many samples as a chunk, wherever they
            // lie.
            let size = (groups.chunk / step).max(1);
            let blocks = samples / size;
            self.push(size, blocks, of(0), of(blocks.saturating_sub(1) * size));
            self.push(samples % size, 1, of(blocks * size), of(blocks * size));
            return;
        };
        let whole = joined * chunk;
        let head = (whole - (at - start) % whole).div_ceil(step).min(samples);
        let head = if head == whole / step { 0 } else { head };
        let size = whole / step;
        let blocks = (samples - head) / size;
        let tail = head + blocks * size;
        self.push(head, 1, of(0), of(0));
        self.push(size, blocks, of(head), of(tail.saturating_sub(size)));
        self.push(samples - tail, 1, of(tail), of(tail));
    }

    /// Like [`Self::regular`], for chunks of several lengths. Each chunk is a block, unless there are too many: then blocks
    /// are cut as in [`Self::regular`], within chunks of one length.
    pub fn irregular(&mut self, samples: u64, first: Element, step: u64, lengths: &ChunkLengths) {
        let Element { part, mut at } = first;
        let mut left = samples;
        for run in lengths.from(at) {
            // A sample may start behind the run.
            let of_run = run.end().saturating_sub(at).div_ceil(step).min(left);
            let groups = Groups::of_run(&run, step);
            if groups.joined == Some(1) || !is_listed(lengths) {
                self.even(of_run, Element { part, at }, step, groups);
            } else {
                self.chunk_by_chunk(of_run, Element { part, at }, step, &run);
            }
            (at, left) = (at + of_run * step, left - of_run);
            if left == 0 {
                return;
            }
        }
        let beyond = StartsIn { part, chunk: lengths.count() };
        self.push(left, 1, beyond, beyond);
    }

    /// Adds a block for each chunk of a run in which samples start.
    fn chunk_by_chunk(&mut self, samples: u64, first: Element, step: u64, run: &LengthRun) {
        let Element { part, mut at } = first;
        let mut left = samples;
        while left > 0 {
            let chunk = run.chunk_at(at);
            let end = run.start + (chunk - run.chunk + 1) * run.len;
            let n = (end - at).div_ceil(step).min(left);
            let of = StartsIn { part, chunk };
            self.push(n, 1, of, of);
            (at, left) = (at + n * step, left - n);
        }
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

/// Neighbouring chunks of one length, and how many of them make a group by which blocks are cut.
#[derive(Clone, Copy)]
struct Groups {
    /// The first element of the first chunk.
    start: u64,
    /// The number of the first group.
    first: u64,
    /// Elements of a chunk.
    chunk: u64,
    /// Chunks in a group. `None`: a group is a chunk, but blocks aren't cut by groups.
    joined: Option<u64>,
    /// How many numbers a group takes.
    numbers: u64,
}

impl Groups {
    fn of(start: u64, first: u64, chunk: u64, step: u64) -> Self {
        Self { start, first, chunk, joined: whole(chunk, step).map(|whole| whole / chunk), numbers: 1 }
    }

    /// The groups of a run. They have the numbers of their first chunks, so that those of all runs differ.
    fn of_run(run: &LengthRun, step: u64) -> Self {
        let groups = Self::of(run.start, run.chunk, run.len, step);
        Self { numbers: groups.joined.unwrap_or(1), ..groups }
    }

    /// Returns the number of the group that holds an element.
    fn of_element(&self, at: u64) -> u64 {
        self.first + (at - self.start) / (self.chunk * self.joined.unwrap_or(1)) * self.numbers
    }
}

/// Whether there are so few chunks that blocks are cut chunk by chunk.
fn is_listed(lengths: &ChunkLengths) -> bool {
    lengths.count() <= MAX_CHUNKS_LISTED
}

/// Returns the number of the chunk that holds the element `at` of a grid, or of the group of chunks by which blocks are
/// cut.
pub(super) fn group(grid: &DimGrid, at: u64, step: u64) -> u64 {
    match grid {
        DimGrid::Regular { chunk, .. } => Groups::of(0, 0, *chunk, step).of_element(at),
        DimGrid::Irregular(lengths) if is_listed(lengths) => lengths.chunk_at(at),
        DimGrid::Irregular(lengths) => {
            lengths.from(at).next().map_or(lengths.count(), |run| Groups::of_run(&run, step).of_element(at))
        }
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
            samples in 1u64..60, at in 0u64..9, step in 1u64..9, list in prop::collection::vec((1u64..20, 1u64..7), 1..12),
        ) {
            let mut lengths = ChunkLengths::default();
            let mut ends = Vec::new();
            for (len, count) in list {
                prop_assert!(lengths.push(len, count));
                ends.extend((0..count).rev().map(|i| lengths.end() - i * len));
            }
            let at = at.min(lengths.end() - 1);
            let mut runs = Runs::default();
            runs.irregular(samples, Element { part: 0, at }, step, &lengths);
            let chunk = |i: u64| ends.partition_point(|&e| e <= at + i * step);
            let expected = (0..samples).collect::<Vec<_>>().chunk_by(|&a, &b| chunk(a) == chunk(b)).map(|c| c.len() as u64).collect::<Vec<_>>();
            prop_assert_eq!(sizes(&runs), expected);
        }
    }

    /// In a grid of more chunks than can be listed, blocks are cut by groups of chunks. Each of these has its own blocks.
    #[test]
    fn blocks_of_many_chunks_take_the_memory_of_their_runs() {
        const MANY: u64 = MAX_CHUNKS_LISTED;
        let mut lengths = ChunkLengths::default();
        assert!(lengths.push(10, MANY) && lengths.push(7, 3) && lengths.push(9, MANY));
        let (end, grid) = (lengths.end(), DimGrid::Irregular(lengths.clone()));
        for step in [1, 2, 3, 4, 5, 7, 11, 30] {
            for at in [0, 3, 10 * MANY - 25] {
                let mut runs = Runs::default();
                let samples = (end - at).div_ceil(step);
                runs.irregular(samples, Element { part: 0, at }, step, &lengths);
                assert!(runs.all.len() <= 12, "step {step}: {} runs", runs.all.len());
                assert_eq!(runs.all.iter().map(|run| run.size * run.count).sum::<u64>(), samples, "step {step}");
                if whole(10, step).is_none() || whole(9, step).is_none() || whole(7, step).is_none() {
                    continue;
                }
                // The last sample of a block and the first of the next one start in different groups.
                let mut sample = 0;
                for run in &runs.all {
                    for block in [0, 1, run.count / 2, run.count - 1].into_iter().filter(|&block| block < run.count) {
                        let of = |i: u64| group(&grid, at + (sample + block * run.size + i) * step, step);
                        assert_eq!(of(0), of(run.size - 1), "step {step}, from {at}");
                        if at + (sample + block * run.size + run.size) * step < end {
                            assert!(of(run.size) > of(0), "step {step}, from {at}");
                        }
                    }
                    sample += run.size * run.count;
                }
            }
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
