//! Groups samples that share chunks: the grid of samples is cut into blocks along chunk borders.

use super::block_runs::{Element, Runs, StartsIn, group};
use super::{Planner, Source};
use crate::dataset::DimGrid;
use crate::geometry::{Axis, Geometry, Role, View};
use crate::order::{Blocks, Run};
use dali_zarr_base::error::Result;

/// An array counts only if the chunks that a sample needs of it are at least one part in this many of all bytes that a
/// single sample would read.
const SHARE: u128 = 16;
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
        let parts = |a: usize| self.arrays[a].parts_in(&source.parts);
        let along = geometry.axes.iter().zip(self.deciding(source));
        let mut runs: Vec<_> = along
            .map(|(axis, decides)| match decides {
                Some((a, d)) if !axis.random => cut(axis, &geometry.views[a], parts(a), d),
                _ => Runs::one(Run { size: 1, count: axis.count() as u64 }),
            })
            .collect();
        if runs.is_empty() {
            // No array has a dimension: there is one sample.
            runs.push(Runs::one(Run { size: 1, count: 1 }));
        }
        if geometry.per_start > 1 {
            let largest = (0..bytes.len()).max_by_key(|&a| bytes[a]);
            let shared = largest.is_some_and(|a| crops_share(geometry, &geometry.views[a], parts(a)));
            let (size, count) = if shared { (geometry.per_start, 1) } else { (1, geometry.per_start) };
            runs.push(Runs::one(Run { size, count }));
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
            alone(view, self.arrays[a].element, self.arrays[a].parts_in(&source.parts), row)
        };
        source.geometry.views.iter().enumerate().map(alone).collect()
    }

    /// Returns for each axis the array, and its dimension, whose chunks decide which samples share chunks. For rows
    /// this is a ragged array. `None` if no array decides.
    pub(super) fn deciding(&self, source: &Source) -> Vec<Option<(usize, usize)>> {
        let geometry = &source.geometry;
        let bytes = self.bytes_alone(source);
        let parts = |a: usize| self.arrays[a].parts_in(&source.parts);
        let total = bytes.iter().fold(0, |n: u128, &b| n.saturating_add(b));
        let longest = |a: usize, d: usize| parts(a).iter().map(|p| p.dims[d].longest()).max().unwrap_or(1);
        let rank = geometry.views.iter().map(|v| v.dims.len()).max().unwrap_or(0).min(2);
        let counts = |a: usize, view: &View| bytes[a].saturating_mul(SHARE) >= total && view.dims.len() >= rank;
        let along = |i: usize| {
            let arrays = geometry.views.iter().enumerate().filter(|(a, view)| counts(*a, view));
            let along = arrays.filter_map(|(a, v)| v.dims.iter().position(|d| d.role == Role::Axis(i)).map(|d| (a, d)));
            // In elements of the axis.
            let longest = |(a, d): (usize, usize)| {
                geometry.views[a].cuts[i].scaled.map_or(longest(a, d), |scaled| scaled.of_grid(longest(a, d)))
            };
            along.reduce(|best, next| if longest(next) > longest(best) { next } else { best })
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
            let parts = self.arrays[*a].parts_in(&source.parts);
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
    let pick = view.dims[d].picked(0);
    // An array of another resolution is taken as if it had elements of the axis: as many to a chunk as lie in it.
    let scaled = if let Role::Axis(a) = view.dims[d].role { view.cuts[a].scaled } else { None };
    let (len, shift) = (view.dims[d].len, scaled.map_or(0, |scaled| scaled.start.div_euclid(scaled.numerator)));
    let end = scaled.map_or(len, |scaled| scaled.of_grid(len));
    let of_axis = scaled.map(|scaled| {
        let chunk = scaled.of_grid(parts[0].dims[d].longest());
        DimGrid::Regular { chunk, count: end.div_ceil(chunk) }
    });
    let grid_of = |part: usize| of_axis.as_ref().unwrap_or(&parts[part].dims[d]);
    // The group of the sample that starts at the element `at`. If stores are not joined along the dimension, the first
    // one stands for all.
    let group = |at: u64| {
        let at = pick.map_or(at, |pick| pick[at as usize]);
        let part = part_at(at);
        let (grid, local) = (grid_of(part), at - borders[part]);
        StartsIn { part, chunk: if pick.is_some() { grid.chunk_at(local) } else { group(grid, local, step) } }
    };
    let segments = axis.starts.segments().map(|segment| segment.map_or(0, |number| axis.segment(number).0));
    for ((count, first), from) in axis.starts.runs().zip(segments) {
        // Samples that start before the first element of their segment belong to the chunk of that element.
        let (first, from) = (first.saturating_add(shift), from.saturating_add(shift).max(0) as u64);
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
            match grid_of(part) {
                DimGrid::Regular { chunk, .. } => runs.regular(n, first, step, *chunk),
                DimGrid::Irregular(lengths) => runs.irregular(n, first, step, lengths),
            }
            at += n * step;
            count -= n;
        }
    }
    runs
}
