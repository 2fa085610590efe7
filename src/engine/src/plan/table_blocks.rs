//! Groups samples of a table of starts: those that start in the same chunks are a block.
//!
//! Rows are sorted by the chunks of their starts. It takes 8 bytes for each row while they are sorted (16 if chunks and rows are
//! very many), and the sorted rows remain, with 4 bytes each.

use std::sync::Arc;

use super::{Planner, Source};
use crate::error::Result;
use crate::geometry::TableStarts;
use crate::order::{Blocks, Numbers};
use crate::table::room;

/// The chunks along one axis: those of the array that decides, in all stores.
struct Chunks<'a> {
    planner: &'a Planner,
    array: usize,
    dim: usize,
    /// The first element of each store and the end of the last; and how many chunks come before each store.
    borders: Vec<u64>,
    before: Vec<u64>,
}

impl Chunks<'_> {
    /// The number of the chunk that holds the first element of a sample. A start outside counts as the element next to it.
    fn of(&self, start: i64) -> u64 {
        let dim = &self.planner.geometry().views[self.array].dims[self.dim];
        let at = start.clamp(0, dim.len as i64 - 1) as u64;
        let at = dim.picked(0).map_or(at, |pick| pick[at as usize]);
        let part = self.borders.partition_point(|&border| border <= at).clamp(1, self.borders.len() - 1) - 1;
        let grid = &self.planner.arrays[self.array].parts[part].dims[self.dim];
        self.before[part] + grid.chunk_at(at - self.borders[part])
    }

    fn count(&self) -> u64 {
        self.before[self.before.len() - 1].max(1)
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

/// Bits of the numbers of `count` things, at most 63.
fn bits(count: u64) -> u32 {
    u64::BITS - count.saturating_sub(1).leading_zeros()
}

impl Planner {
    /// The blocks of samples that start in the same chunks. `limit` is what the user's limit leaves.
    ///
    /// # Errors
    /// If they don't fit in memory.
    pub(super) fn table_blocks(&self, source: &Source, table: &TableStarts, limit: Option<u64>) -> Result<Blocks> {
        let chunks = self.chunks(source);
        let row_bits = bits(table.count());
        if Self::key_bits(&chunks) + row_bits <= 64 {
            sorted::<u64>(table, &chunks, row_bits, limit)
        } else {
            sorted::<u128>(table, &chunks, row_bits, limit)
        }
    }

    /// Bytes that grouping takes for a while, beside the table and the blocks that come of it.
    pub(crate) fn grouping_bytes(&self, table: &TableStarts) -> u64 {
        let is_short = Self::key_bits(&self.chunks(&self.sources[0])) + bits(table.count()) <= 64;
        table.count() * if is_short { 8 } else { 16 }
    }

    fn key_bits(chunks: &[Option<Chunks<'_>>]) -> u32 {
        bits(chunks.iter().flatten().map(Chunks::count).product())
    }

    /// The chunks along each axis. Together they have fewer than 2^63 combinations; those of further axes don't count.
    fn chunks(&self, source: &Source) -> Vec<Option<Chunks<'_>>> {
        let mut combinations = 1u64;
        let along = |decides: Option<(usize, usize)>| {
            let (array, dim) = decides?;
            let view = &source.geometry.views[array];
            let borders = match &view.joined {
                Some((joined, starts)) if *joined == dim => starts.clone(),
                _ => vec![0, u64::MAX],
            };
            let parts = &self.arrays[array].parts[..borders.len() - 1];
            let mut before = vec![0u64];
            before.extend(parts.iter().scan(0u64, |sum, part| {
                *sum = sum.saturating_add(part.dims[dim].count());
                Some(*sum)
            }));
            let chunks = Chunks { planner: self, array, dim, borders, before };
            combinations = combinations.checked_mul(chunks.count()).filter(|&n| n < 1 << 63)?;
            Some(chunks)
        };
        self.deciding(source).into_iter().map(along).collect()
    }
}

fn sorted<P: Packed>(
    table: &TableStarts,
    chunks: &[Option<Chunks<'_>>],
    row_bits: u32,
    limit: Option<u64>,
) -> Result<Blocks> {
    let count = table.count();
    let mut packed: Vec<P> = room(count, limit)?;
    packed.extend((0..count).map(|row| {
        let along = chunks.iter().zip(table.start(row)).filter_map(|(chunks, &start)| Some((chunks.as_ref()?, start)));
        let key = along.fold(0, |key, (chunks, start)| key * chunks.count() + chunks.of(start));
        P::pack(key, row, row_bits)
    }));
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
