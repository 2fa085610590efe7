//! Groups samples that share chunks: the grid of samples is cut into blocks along chunk borders.

use super::{Planner, Source};
use crate::dataset::DimGrid;
use crate::error::Result;
use crate::geometry::{Axis, Geometry, Role, View};
use crate::order::{Blocks, Run};

/// An array counts if its chunks are at least this share of the bytes that a single sample would read.
const SHARE: u128 = 16;
/// If the step does not divide the chunk, a block spans at most so many chunks.
const MAX_CHUNKS: u64 = 8;

/// Runs of blocks along an axis. Neighbouring blocks of one size form one run.
#[derive(Default)]
struct Runs(Vec<Run>);

impl Runs {
    fn push(&mut self, size: u64, count: u64) {
        match self.0.last_mut() {
            _ if size == 0 || count == 0 => {}
            Some(last) if last.size == size => last.count += count,
            _ => self.0.push(Run { size, count }),
        }
    }

    /// `samples` samples at every `step` elements from the element `at` of a dimension with chunks of `chunk`.
    fn regular(&mut self, samples: u64, at: u64, step: u64, chunk: u64) {
        let Some(whole) = (1..=MAX_CHUNKS).map(|n| n.saturating_mul(chunk)).find(|n| n.is_multiple_of(step)) else {
            // A chunk border meets a sample start too rarely. Blocks have as many samples as a chunk, wherever they
            // lie.
            let size = (chunk / step).max(1);
            self.push(size, samples / size);
            self.push(samples % size, 1);
            return;
        };
        let head = (whole - at % whole).div_ceil(step).min(samples);
        let head = if head == whole / step { 0 } else { head };
        let (size, rest) = (whole / step, samples - head);
        self.push(head, 1);
        self.push(size, rest / size);
        self.push(rest % size, 1);
    }

    /// As above, for chunks that end at `ends`.
    fn irregular(&mut self, samples: u64, at: u64, step: u64, ends: &[u64]) {
        let (mut at, mut left) = (at, samples);
        for &end in &ends[ends.partition_point(|&e| e <= at)..] {
            if left == 0 {
                return;
            }
            let n = end.saturating_sub(at).div_ceil(step).min(left);
            self.push(n, 1);
            at += n * step;
            left -= n;
        }
        self.push(left, 1);
    }
}

impl Planner {
    /// The blocks of samples that share chunks. Along each axis, the array with the longest chunks decides, among those
    /// with at least a sixteenth of the bytes that a single sample would read. Arrays of one dimension don't count
    /// beside fields: coordinates often lie in a single chunk, which costs nothing to keep. Rows are cut by ragged arrays.
    ///
    /// Samples of a table are grouped by the chunks that they start in, in `limit` bytes of memory, if there is a limit.
    ///
    /// # Errors
    /// If the groups of a table don't fit in memory.
    pub fn blocks(&self, limit: Option<u64>) -> Result<Blocks> {
        if let Some(table) = &self.geometry().table {
            return self.table_blocks(table, limit);
        }
        match self.sources.as_slice() {
            [source] => Ok(self.blocks_of(source)),
            sources => {
                Ok(Blocks::concatenated(&sources.iter().map(|source| self.blocks_of(source)).collect::<Vec<_>>()))
            }
        }
    }

    fn blocks_of(&self, source: &Source) -> Blocks {
        let geometry = &source.geometry;
        let bytes = self.bytes_alone(source);
        if geometry.rows.is_some() {
            return self.blocks_of_rows(geometry, &bytes);
        }
        let parts = |a: usize| &self.arrays[a].parts[source.parts.clone()];
        let along = geometry.axes.iter().zip(self.deciding(source));
        let mut runs: Vec<_> = along
            .map(|(axis, decides)| match decides {
                Some((a, d)) if !axis.random => cut(axis, &geometry.views[a], parts(a), d),
                _ => vec![Run { size: 1, count: axis.count() as u64 }],
            })
            .collect();
        if runs.is_empty() {
            // No array has a dimension: there is one sample.
            runs.push(vec![Run { size: 1, count: 1 }]);
        }
        if geometry.per_start > 1 {
            let largest = (0..bytes.len()).max_by_key(|&a| bytes[a]);
            let shared = largest.is_some_and(|a| crops_share(geometry, &geometry.views[a], parts(a)));
            let (size, count) = if shared { (geometry.per_start, 1) } else { (1, geometry.per_start) };
            runs.push(vec![Run { size, count }]);
        }
        Blocks::new(&runs)
    }

    /// For each array about how many bytes the chunks have that a sample needs.
    fn bytes_alone(&self, source: &Source) -> Vec<u128> {
        let row = source.geometry.rows.as_ref().map_or(0, |rows| rows.elements() / rows.count());
        let alone = |(a, view): (usize, &View)| {
            alone(view, self.arrays[a].element, &self.arrays[a].parts[source.parts.clone()], row)
        };
        source.geometry.views.iter().enumerate().map(alone).collect()
    }

    /// For each axis the array and its dimension whose chunks decide which samples share chunks.
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
        (0..geometry.axes.len()).map(along).collect()
    }

    /// The blocks of ragged rows: cut where their starts pass from one chunk to the next of the ragged array with the longest chunks,
    /// among those with at least a sixteenth of the bytes.
    fn blocks_of_rows(&self, geometry: &Geometry, bytes: &[u128]) -> Blocks {
        let total = bytes.iter().fold(0, |n: u128, &b| n.saturating_add(b));
        let (axes, Some(rows)) = (&geometry.axes, &geometry.rows) else { return Blocks::single(1) };
        let longest = |a: usize| self.arrays[a].parts.iter().map(|p| p.dims[0].longest()).max().unwrap_or(1);
        let is_ragged = |a: &usize| geometry.views[*a].dims.first().is_some_and(|dim| dim.role == Role::Ragged);
        let large = (0..self.arrays.len()).filter(is_ragged).filter(|&a| bytes[a].saturating_mul(SHARE) >= total);
        // Dense arrays may be much larger.
        let all = (0..self.arrays.len()).filter(is_ragged);
        let of = large.max_by_key(|&a| longest(a)).or_else(|| all.max_by_key(|&a| longest(a)));
        let Some(array) = of else { return Blocks::single(geometry.samples) };
        let (view, parts) = (&geometry.views[array], &self.arrays[array].parts);
        let whole = [0, u64::MAX];
        let borders: &[u64] = view.joined.as_ref().map_or(&whole, |(_, starts)| starts);
        let last = view.dims[0].len.saturating_sub(1);
        // The elements of the chunk that was looked at last. There is none if all rows are empty.
        let mut here = 0..0;
        let mut ends = Vec::new();
        // The samples of a row follow each other.
        let (count, each) = (axes[0].count(), geometry.samples / axes[0].count() as u64);
        for k in 0..count {
            // Empty rows at the end begin behind the last element.
            let at = rows.span(axes[0].starts.at(k).0).0.min(last);
            if here.contains(&at) {
                continue;
            }
            if k > 0 {
                ends.push(k as u64 * each);
            }
            let part = borders.partition_point(|&b| b <= at).clamp(1, borders.len() - 1) - 1;
            let grid = &parts[part].dims[0];
            let chunk = if grid.is_empty() { 0 } else { grid.chunk_at(at - borders[part]) };
            let start = borders[part] + if grid.is_empty() { 0 } else { grid.start(chunk) };
            here = start..if grid.is_empty() { u64::MAX } else { (start + grid.len(chunk)).min(borders[part + 1]) };
        }
        ends.push(count as u64 * each);
        Blocks::listed(ends)
    }
}

/// Whether the random crops of one start need about as many chunks of an array, counted for each, as there are.
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

/// About how many bytes the chunks of one array that a sample needs have. Ragged rows have about `row` elements.
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

/// Cuts the samples along an axis where their starts pass from one chunk of an array to the next.
fn cut(axis: &Axis, view: &View, parts: &[super::PartGrid], d: usize) -> Vec<Run> {
    let whole = [0, u64::MAX];
    let borders: &[u64] = match &view.joined {
        Some((joined, starts)) if *joined == d => starts,
        _ => &whole,
    };
    let part_at = |at: u64| borders.partition_point(|&b| b <= at).clamp(1, borders.len() - 1) - 1;
    let step = axis.starts.step() as u64;
    let mut runs = Runs::default();
    let end = view.dims[d].len;
    for (mut count, first) in axis.starts.runs().map(|(n, first)| (n as u64, first)) {
        // Starts before the first element share its chunk.
        let before = first.unsigned_abs().div_ceil(step).min(if first < 0 { count } else { 0 });
        runs.push(before, 1);
        count -= before;
        let first = first.saturating_add_unsigned(before * step).max(0) as u64;
        if let Some(pick) = view.dims[d].picked(0) {
            // Picked elements are in any order, so they and their chunks are listed. If stores are not joined along
            // the dimension, the first store stands for all.
            let chunk = |i: u64| {
                let at = pick[(first + i * step).min(end - 1) as usize];
                let part = part_at(at);
                (part, parts[part].dims[d].chunk_at(at - borders[part]))
            };
            let mut from = 0;
            for i in 1..=count {
                if i == count || chunk(i) != chunk(from) {
                    runs.push(i - from, 1);
                    from = i;
                }
            }
            continue;
        }
        let mut at = first;
        while count > 0 {
            if at >= end {
                // Those after the last element share its chunk.
                runs.push(count, 1);
                break;
            }
            let part = part_at(at);
            let n = (borders[part + 1] - at).div_ceil(step).min(count);
            let local = at - borders[part];
            match &parts[part].dims[d] {
                DimGrid::Regular { chunk, .. } => runs.regular(n, local, step, *chunk),
                DimGrid::Irregular { starts } => runs.irregular(n, local, step, &starts[1..]),
            }
            at += n * step;
            count -= n;
        }
    }
    runs.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(runs: &Runs) -> Vec<u64> {
        runs.0.iter().flat_map(|r| std::iter::repeat_n(r.size, r.count as usize)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn blocks_end_where_chunks_do(samples in 1u64..80, at in 0u64..30, step in 1u64..9, chunk in 1u64..25) {
            let mut runs = Runs::default();
            runs.regular(samples, at, step, chunk);
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
            runs.irregular(samples, at, step, &ends);
            let chunk = |i: u64| ends.partition_point(|&e| e <= at + i * step);
            let expected = (0..samples).collect::<Vec<_>>().chunk_by(|&a, &b| chunk(a) == chunk(b)).map(|c| c.len() as u64).collect::<Vec<_>>();
            prop_assert_eq!(sizes(&runs), expected);
        }
    }
}
