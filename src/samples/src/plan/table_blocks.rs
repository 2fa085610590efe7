//! Groups the samples of a table of starts: samples that start in the same chunks are a block. Also finds the chunks of
//! ragged rows.
//!
//! The rows of the table are sorted by the chunks in which they start. Sorting takes 8 bytes for each row (16 if there
//! are very many chunks and rows). The sorted row numbers are kept, with 4 bytes each.

use std::sync::Arc;

use super::{Planner, Source};
use crate::dataset::DimGrid;
use crate::geometry::{Role, Rows, Scaled, TableStarts, ViewDim};
use crate::order::{Blocks, Numbers};
use dali_zarr_base::error::Result;
use dali_zarr_base::table::room;

/// The chunks along one axis: those of the array that decides (`Planner::deciding`), in all stores of a source.
pub(super) struct Chunks<'a> {
    dim: &'a ViewDim,
    /// How the array's elements lie beside those that samples start at, if they have other numbers.
    scaled: Option<Scaled>,
    /// The ragged rows, if starts are numbers of rows. The chunks hold the elements of these rows.
    rows: Option<&'a Rows>,
    /// The chunks in each store.
    grids: Vec<&'a DimGrid>,
    /// How many neighbouring chunks count as one.
    joined: u64,
    /// The first element of each store, and the end of the last store.
    borders: Vec<u64>,
    /// The number of chunks before each store, and the number of all chunks. Joined chunks count as one.
    before: Vec<u64>,
}

/// At most this many neighbouring chunks of ragged rows count as one.
const MAX_JOINED: u64 = 8;
/// Chunks are joined only so far that a shuffling window has at least this many blocks.
const MIN_BLOCKS: u64 = 64;

/// Returns how many neighbouring chunks count as one, if `chunks` chunks hold `rows` ragged rows. A row that reaches
/// over the end of a block needs the first chunk of the next block, which mostly belongs to another shuffling window.
/// With one chunk in each block nearly all chunks would be read twice, with eight chunks one in eight. Small windows
/// keep small blocks, because large ones would mix little.
fn joined(chunks: u64, rows: u64, initial_fill: u64) -> u64 {
    let of_window = u128::from(initial_fill) * u128::from(chunks) / u128::from(rows.max(1));
    (of_window / u128::from(MIN_BLOCKS)).clamp(1, MAX_JOINED.into()) as u64
}

impl Chunks<'_> {
    /// Returns the number of the chunk that holds the first element of a sample. A start outside the dimension counts
    /// as the nearest element.
    pub fn of(&self, start: i64) -> u64 {
        let last = self.dim.len.saturating_sub(1);
        let at = match self.rows {
            // Empty rows at the end begin behind the last element.
            Some(rows) => rows.span(start).first.min(last),
            None => {
                let at = self.scaled.map_or(start, |scaled| scaled.start(start)).clamp(0, last as i64) as u64;
                self.dim.picked(0).map_or(at, |pick| pick[at as usize])
            }
        };
        let store = self.borders.partition_point(|&border| border <= at).clamp(1, self.borders.len() - 1) - 1;
        let grid = self.grids[store];
        // There is no chunk if all rows are empty.
        self.before[store] + if grid.is_empty() { 0 } else { grid.chunk_at(at - self.borders[store]) / self.joined }
    }

    fn count(&self) -> u64 {
        self.before[self.before.len() - 1].max(1)
    }
}

/// Numbers (keys) for the combinations of chunks, one along each axis, in which samples start.
struct Keys<'a> {
    /// For each source the first of its keys, and the chunks along each axis.
    sources: Vec<(u64, Vec<Option<Chunks<'a>>>)>,
    /// Number of keys.
    count: u64,
}

impl Keys<'_> {
    fn of(&self, table: &TableStarts, sample: u64) -> u64 {
        let (first, chunks) = &self.sources[table.store(sample)];
        let along = chunks.iter().zip(table.start(sample)).filter_map(|(of, &start)| Some((of.as_ref()?, start)));
        first + along.fold(0, |key, (chunks, start)| key * chunks.count() + chunks.of(start))
    }
}

/// A number that holds a key, and a row in its low bits.
trait Packed: Ord + Copy {
    fn pack(key: u64, row: u64, row_bits: u32) -> Self;
    fn unpack(self, row_bits: u32) -> (u64, u64);
}

impl Packed for u64 {
    fn pack(key: u64, row: u64, row_bits: u32) -> Self {
        key << row_bits | row
    }
    fn unpack(self, row_bits: u32) -> (u64, u64) {
        (self >> row_bits, self & ((1 << row_bits) - 1))
    }
}

impl Packed for u128 {
    fn pack(key: u64, row: u64, _: u32) -> Self {
        u128::from(key) << 64 | u128::from(row)
    }
    fn unpack(self, _: u32) -> (u64, u64) {
        ((self >> 64) as u64, self as u64)
    }
}

/// Returns the bits of numbers below `count`. Callers pass counts with at most 63 bits.
fn bits(count: u64) -> u32 {
    u64::BITS - count.saturating_sub(1).leading_zeros()
}

impl Planner {
    /// Returns the blocks of samples that start in the same chunks. `limit` is the memory in bytes that the user's
    /// limit leaves (`None`: no limit).
    ///
    /// # Errors
    /// If the blocks don't fit in memory.
    pub(super) fn table_blocks(&self, table: &TableStarts, initial_fill: u64, limit: Option<u64>) -> Result<Blocks> {
        let keys = self.keys(initial_fill);
        let row_bits = bits(table.count());
        if bits(keys.count) + row_bits <= 64 {
            sorted::<u64>(table, &keys, row_bits, limit)
        } else {
            sorted::<u128>(table, &keys, row_bits, limit)
        }
    }

    /// Returns the bytes that grouping takes temporarily, besides the table and the resulting blocks.
    pub fn grouping_bytes(&self, table: &TableStarts) -> u64 {
        // With the smallest window no chunks are joined, so there are most keys.
        let is_short = bits(self.keys(1).count) + bits(table.count()) <= 64;
        table.count() * if is_short { 8 } else { 16 }
    }

    fn keys(&self, initial_fill: u64) -> Keys<'_> {
        let (mut sources, mut count) = (Vec::with_capacity(self.sources.len()), 0);
        for source in &self.sources {
            let chunks = self.chunks(source, initial_fill);
            let own: u64 = chunks.iter().flatten().map(Chunks::count).product();
            sources.push((count, chunks));
            count += own;
        }
        Keys { sources, count }
    }

    /// Returns the chunks along each axis. Those of ragged rows are joined as far as a shuffling window of
    /// `initial_fill` samples allows. The chunks of all sources have fewer than 2^62 combinations: an axis that would
    /// exceed this is left out (`None`), as is an axis that no array decides.
    pub(super) fn chunks<'a>(&'a self, source: &'a Source, initial_fill: u64) -> Vec<Option<Chunks<'a>>> {
        let most = (1 << 62) / self.sources.len() as u64;
        let mut combinations = 1u64;
        let along = |decides: Option<(usize, usize)>| {
            let (array, dim) = decides?;
            let view = &source.geometry.views[array];
            let borders = match &view.joined {
                Some((joined, starts)) if *joined == dim => starts.clone(),
                _ => vec![0, u64::MAX],
            };
            let parts = self.arrays[array].parts_in(&source.parts);
            let grids: Vec<&DimGrid> = parts[..borders.len() - 1].iter().map(|part| &part.dims[dim]).collect();
            let rows = source.geometry.rows.as_ref().filter(|_| view.dims[dim].role == Role::Ragged);
            let all = grids.iter().fold(0u64, |sum, grid| sum.saturating_add(grid.count()));
            let joined = rows.map_or(1, |rows| joined(all, rows.count(), initial_fill));
            let mut before = vec![0u64];
            before.extend(grids.iter().scan(0u64, |sum, grid| {
                *sum = sum.saturating_add(grid.count().div_ceil(joined));
                Some(*sum)
            }));
            let scaled = if let Role::Axis(a) = view.dims[dim].role { view.cuts[a].scaled } else { None };
            let chunks = Chunks { dim: &view.dims[dim], scaled, rows, grids, joined, borders, before };
            combinations = combinations.checked_mul(chunks.count()).filter(|&n| n < most)?;
            Some(chunks)
        };
        self.deciding(source).into_iter().map(along).collect()
    }
}

fn sorted<P: Packed>(table: &TableStarts, keys: &Keys<'_>, row_bits: u32, limit: Option<u64>) -> Result<Blocks> {
    let count = table.count();
    let mut packed: Vec<P> = room(count, limit)?;
    packed.extend((0..count).map(|row| P::pack(keys.of(table, row), row, row_bits)));
    packed.sort_unstable();
    let key = |p: &P| p.unpack(row_bits).0;
    let borders = packed.windows(2).filter(|pair| key(&pair[0]) != key(&pair[1])).count() as u64;
    if borders + 1 == count {
        // No two samples share a chunk.
        return Ok(Blocks::single(count));
    }
    let left = limit.map(|limit| limit.saturating_sub(count * size_of::<P>() as u64 + Numbers::bytes_of(count, count)));
    let mut ends: Vec<u64> = room(borders + 1, left)?;
    ends.extend((1..count).filter(|&i| key(&packed[i as usize - 1]) != key(&packed[i as usize])));
    ends.push(count);
    let rows = Numbers::collect(packed.len(), count, packed.iter().map(|p| p.unpack(row_bits).1));
    drop(packed);
    Ok(Blocks::listed_rows(ends, Arc::new(rows)))
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn chunks_are_joined_where_a_window_has_many() {
        // About 16 rows in each chunk.
        assert_eq!([1, 1024, 3000, 8192, 16_384].map(|fill| joined(6104, 100_000, fill)), [1, 1, 2, 7, 8]);
        assert_eq!((joined(0, 0, 1024), joined(u64::MAX, 1, u64::MAX)), (1, 8));
    }
}
