//! Groups samples that share chunks: the grid of samples is cut into blocks along chunk borders.

use super::{Planner, Source};
use crate::dataset::DimGrid;
use crate::error::Result;
use crate::geometry::{Axis, Geometry, Role, View};
use crate::order::{Blocks, Run};

/// An array counts only if the chunks that a sample needs of it are at least one part in this many of all bytes that a
/// single sample would read.
const SHARE: u128 = 16;
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
struct StartsIn {
    /// Index of the store's part of the array.
    part: usize,
    /// Number of the chunk in the part, or of the group of chunks by which blocks are cut.
    chunk: u64,
}

/// An element of a dimension of one store's part of an array.
#[derive(Clone, Copy)]
struct Element {
    /// Index of the store's part of the array.
    part: usize,
    /// Index of the element in the part.
    at: u64,
}

/// Runs of blocks along an axis. Neighbouring blocks of one size form one run.
#[derive(Default)]
struct Runs {
    all: Vec<Run>,
    /// The chunk, or group of chunks, in which the samples of the last block start.
    last: Option<StartsIn>,
}

impl Runs {
    /// Adds `count` blocks of `size` samples. The samples of the first block start in `first`, those of the last block
    /// in `last`. If the block before starts in `first` too, it is joined with the first new one: a chunk may hold many
    /// segments.
    fn push(&mut self, size: u64, count: u64, first: StartsIn, last: StartsIn) {
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
    fn regular(&mut self, samples: u64, first: Element, step: u64, chunk: u64) {
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
    fn irregular(&mut self, samples: u64, first: Element, step: u64, ends: &[u64]) {
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
    fn listed(&self, others: u64) -> Option<Blocks> {
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

impl Planner {
    /// Returns the blocks of samples that share chunks. Along each axis, the array with the longest chunks decides,
    /// among those with at least a sixteenth of the bytes that a single sample would read. Arrays of one dimension
    /// don't count beside fields: coordinates often lie in a single chunk, which costs nothing to keep. Ragged rows are
    /// cut by the chunks of ragged arrays.
    ///
    /// For ragged rows, several neighbouring chunks make one block if a shuffling window of `initial_fill` samples has
    /// many blocks.
    ///
    /// Samples of a table are grouped by the chunks in which they start. This takes at most `limit` bytes of memory, if
    /// there is a limit.
    ///
    /// # Errors
    /// If the groups of a table don't fit in memory.
    pub fn blocks(&self, initial_fill: u64, limit: Option<u64>) -> Result<Blocks> {
        if let Some(table) = &self.geometry().table {
            return self.table_blocks(table, initial_fill, limit);
        }
        match self.sources.as_slice() {
            [source] => Ok(self.blocks_of(source, initial_fill)),
            sources => {
                // A store that is smaller than a window has no samples.
                let sampled = sources.iter().filter(|source| source.geometry.samples > 0);
                let blocks = sampled.map(|source| self.blocks_of(source, initial_fill));
                Ok(Blocks::concatenated(&blocks.collect::<Vec<_>>()))
            }
        }
    }

    fn blocks_of(&self, source: &Source, initial_fill: u64) -> Blocks {
        let geometry = &source.geometry;
        let bytes = self.bytes_alone(source);
        if geometry.rows.is_some() {
            return self.blocks_of_rows(source, initial_fill);
        }
        let parts = |a: usize| &self.arrays[a].parts[source.parts.clone()];
        let along = geometry.axes.iter().zip(self.deciding(source));
        let mut runs: Vec<_> = along
            .map(|(axis, decides)| match decides {
                Some((a, d)) if !axis.random => cut(axis, &geometry.views[a], parts(a), d),
                _ => Runs { all: vec![Run { size: 1, count: axis.count() as u64 }], last: None },
            })
            .collect();
        if runs.is_empty() {
            // No array has a dimension: there is one sample.
            runs.push(Runs { all: vec![Run { size: 1, count: 1 }], last: None });
        }
        if geometry.per_start > 1 {
            let largest = (0..bytes.len()).max_by_key(|&a| bytes[a]);
            let shared = largest.is_some_and(|a| crops_share(geometry, &geometry.views[a], parts(a)));
            let (size, count) = if shared { (geometry.per_start, 1) } else { (1, geometry.per_start) };
            runs.push(Runs { all: vec![Run { size, count }], last: None });
        }
        let in_one = |runs: &Runs| if let [Run { size, count: 1 }] = runs.all[..] { Some(size) } else { None };
        let others = runs[1..].iter().map(in_one).product::<Option<u64>>();
        let listed = others.and_then(|others| runs[0].listed(others));
        listed.unwrap_or_else(|| Blocks::new(&runs.into_iter().map(|runs| runs.all).collect::<Vec<_>>()))
    }

    /// Estimates for each array the bytes of the chunks that one sample needs.
    fn bytes_alone(&self, source: &Source) -> Vec<u128> {
        let row = source.geometry.rows.as_ref().map_or(0, |rows| rows.elements() / rows.count());
        let alone = |(a, view): (usize, &View)| {
            alone(view, self.arrays[a].element, &self.arrays[a].parts[source.parts.clone()], row)
        };
        source.geometry.views.iter().enumerate().map(alone).collect()
    }

    /// Returns for each axis the array, and its dimension, whose chunks decide which samples share chunks. For rows
    /// this is a ragged array. `None` if no array decides.
    pub(super) fn deciding(&self, source: &Source) -> Vec<Option<(usize, usize)>> {
        let geometry = &source.geometry;
        let bytes = self.bytes_alone(source);
        let parts = |a: usize| &self.arrays[a].parts[source.parts.clone()];
        let total = bytes.iter().fold(0, |n: u128, &b| n.saturating_add(b));
        let longest = |a: usize, d: usize| parts(a).iter().map(|p| p.dims[d].longest()).max().unwrap_or(1);
        let rank = geometry.views.iter().map(|v| v.dims.len()).max().unwrap_or(0).min(2);
        let counts = |a: usize, view: &View| bytes[a].saturating_mul(SHARE) >= total && view.dims.len() >= rank;
        let along = |i: usize| {
            let arrays = geometry.views.iter().enumerate().filter(|(a, view)| counts(*a, view));
            let along = arrays.filter_map(|(a, v)| v.dims.iter().position(|d| d.role == Role::Axis(i)).map(|d| (a, d)));
            along.reduce(|best, next| if longest(next.0, next.1) > longest(best.0, best.1) { next } else { best })
        };
        let mut all: Vec<_> = (0..geometry.axes.len()).map(along).collect();
        if let (Some(first), true) = (all.first_mut(), geometry.rows.is_some()) {
            *first = self.deciding_rows(source, &bytes).map(|array| (array, 0));
        }
        all
    }

    /// Returns the ragged array whose chunks decide which rows share chunks: the one with the longest chunks, among
    /// those with at least a sixteenth of the bytes, or among all if none has so many.
    fn deciding_rows(&self, source: &Source, bytes: &[u128]) -> Option<usize> {
        let total = bytes.iter().fold(0, |n: u128, &b| n.saturating_add(b));
        let longest = |a: &usize| {
            let parts = &self.arrays[*a].parts[source.parts.clone()];
            parts.iter().map(|p| p.dims[0].longest()).max().unwrap_or(1)
        };
        let is_ragged = |(_, view): &(usize, &View)| view.dims.first().is_some_and(|dim| dim.role == Role::Ragged);
        let all = || source.geometry.views.iter().enumerate().filter(is_ragged).map(|(a, _)| a);
        // No ragged array may have a sixteenth, because dense arrays may be much larger.
        all()
            .filter(|&a| bytes[a].saturating_mul(SHARE) >= total)
            .max_by_key(longest)
            .or_else(|| all().max_by_key(longest))
    }

    /// Returns the blocks of ragged rows. A new block begins at the first row that starts in another chunk (or group of
    /// joined chunks) than the row before.
    fn blocks_of_rows(&self, source: &Source, initial_fill: u64) -> Blocks {
        let geometry = &source.geometry;
        let chunks = self.chunks(source, initial_fill).into_iter().next().flatten();
        let Some(chunks) = chunks else { return Blocks::single(geometry.samples) };
        let starts = &geometry.axes[0].starts;
        // The samples of a row follow each other.
        let each = geometry.samples / starts.count() as u64;
        let mut here = chunks.of(starts.at(0).0);
        let mut ends = Vec::new();
        for k in 1..starts.count() {
            let before = std::mem::replace(&mut here, chunks.of(starts.at(k).0));
            if here != before {
                ends.push(k as u64 * each);
            }
        }
        ends.push(geometry.samples);
        Blocks::listed(ends)
    }
}

/// Whether all random crops of one start together read about as many chunks of an array as there are. A chunk that
/// several crops read counts for each.
fn crops_share(geometry: &Geometry, view: &View, parts: &[super::PartGrid]) -> bool {
    let along = |part: &super::PartGrid| {
        view.dims.iter().zip(&part.dims).fold((1.0, geometry.per_start as f64), |(all, read), (dim, grid)| {
            match dim.role {
                Role::Axis(a) if geometry.axes[a].random => {
                    let cut = view.cuts[a];
                    let span = ((cut.window - 1) as f64 * cut.stride as f64 / grid.longest() as f64).floor() + 1.0;
                    (all * grid.count() as f64, read * span)
                }
                _ => (all, read),
            }
        })
    };
    let (all, read) = parts.iter().map(along).fold((0.0, f64::MAX), |(all, read), of| (all + of.0, read.min(of.1)));
    read >= all
}

/// Estimates the bytes of the chunks of one array that a sample needs. A ragged row is taken to have `row` elements.
fn alone(view: &View, element: usize, parts: &[super::PartGrid], row: u64) -> u128 {
    let part = |part: &super::PartGrid| {
        view.dims.iter().zip(&part.dims).fold(element as u128, |n, (dim, grid)| {
            let longest = grid.longest();
            let chunks = match (dim.role.clone(), &dim.pick) {
                (Role::Whole, None) => grid.count(),
                (Role::Whole, Some(pick)) => grid.count().min(pick.len()),
                (Role::Ragged, _) => row / longest + 1,
                (Role::Axis(a), _) => {
                    let cut = view.cuts[a];
                    // The elements of the sample along the dimension, or its chunks if these are fewer.
                    ((cut.window - 1) as u64).saturating_mul(cut.stride as u64).div_euclid(longest) + 1
                }
            };
            n.saturating_mul(u128::from(chunks)).saturating_mul(u128::from(longest))
        })
    };
    parts.iter().map(part).max().unwrap_or(0)
}

/// Cuts the samples along an axis into blocks, where their starts pass from one chunk of an array to the next. Samples
/// of neighbouring segments that start in one chunk are one block.
fn cut(axis: &Axis, view: &View, parts: &[super::PartGrid], d: usize) -> Runs {
    let whole = [0, u64::MAX];
    let borders: &[u64] = match &view.joined {
        Some((joined, starts)) if *joined == d => starts,
        _ => &whole,
    };
    let part_at = |at: u64| borders.partition_point(|&b| b <= at).clamp(1, borders.len() - 1) - 1;
    let step = axis.starts.step() as u64;
    let mut runs = Runs::default();
    let end = view.dims[d].len;
    let pick = view.dims[d].picked(0);
    // The group of the sample that starts at the element `at`. If stores are not joined along the dimension, the first
    // one stands for all.
    let group = |at: u64| {
        let at = pick.map_or(at, |pick| pick[at as usize]);
        let part = part_at(at);
        let (grid, local) = (&parts[part].dims[d], at - borders[part]);
        StartsIn { part, chunk: if pick.is_some() { grid.chunk_at(local) } else { group(grid, local, step) } }
    };
    let segments = axis.starts.segments().map(|segment| segment.map_or(0, |number| axis.segment(number).0));
    for ((count, first), from) in axis.starts.runs().zip(segments) {
        // Samples that start before the first element of their segment belong to the chunk of that element.
        let from = from.max(0) as u64;
        let before = (i128::from(from) - i128::from(first)).max(0) as u64;
        let before = before.div_ceil(step).min(count as u64);
        let of = group(from.min(end - 1));
        runs.push(before, 1, of, of);
        let mut count = count as u64 - before;
        let mut at = first.saturating_add_unsigned(before * step).max(0) as u64;
        if pick.is_some() {
            // Picked elements are in any order, so they and their chunks are listed.
            let of = |i: u64| group((at + i * step).min(end - 1));
            let mut from = 0;
            for i in 1..=count {
                if i == count || of(i) != of(from) {
                    runs.push(i - from, 1, of(from), of(from));
                    from = i;
                }
            }
            continue;
        }
        while count > 0 {
            if at >= end {
                // Samples that start after the last element belong to the chunk of that element.
                let of = group(end - 1);
                runs.push(count, 1, of, of);
                break;
            }
            let part = part_at(at);
            let n = (borders[part + 1] - at).div_ceil(step).min(count);
            let first = Element { part, at: at - borders[part] };
            match &parts[part].dims[d] {
                DimGrid::Regular { chunk, .. } => runs.regular(n, first, step, *chunk),
                DimGrid::Irregular { starts } => runs.irregular(n, first, step, &starts[1..]),
            }
            at += n * step;
            count -= n;
        }
    }
    runs
}

/// Returns the smallest multiple of `chunk` that `step` divides, if it has at most [`MAX_CHUNKS`] chunks.
fn whole(chunk: u64, step: u64) -> Option<u64> {
    (1..=MAX_CHUNKS).map(|n| n.saturating_mul(chunk)).find(|n| n.is_multiple_of(step))
}

/// Returns the number of the chunk that holds the element `at` of a grid, or of the group of chunks by which blocks are
/// cut.
fn group(grid: &DimGrid, at: u64, step: u64) -> u64 {
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
