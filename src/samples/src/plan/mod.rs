//! Plans a batch: from its samples to the chunks that it needs, and the jobs that copy their elements to the outputs.
//! Pure: no I/O, no device.

mod between;
mod block_runs;
mod boxes;
mod channels;
mod chunk_runs;
mod grouping;
mod jobs;
mod operations;
mod table_blocks;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use dali_zarr_kernels::Job;

use crate::batch::{Names, OutputInfo};
use crate::dataset::DimGrid;
use crate::geometry::{Axis, DimVec, Geometry, OUTSIDE, Role, RowSpan, TableStarts, View, ViewDim};
use crate::order::Sample;
use boxes::SampleStart;
use chunk_runs::{ChunkRuns, chunk_runs};
pub use operations::{Operation, Operations};

/// The id of a chunk that is decoded as one: a chunk of the array, or an inner chunk of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkId {
    /// Index of the array in the dataset.
    pub array: u16,
    /// Index of the store.
    pub part: u16,
    /// Row-major index in the grid of decoded chunks.
    pub index: u64,
}

/// A hasher for ids, which are hashed for every chunk. Ids that differ only in their lowest bits get neighbouring hashes.
/// So the chunks of a shard or of a row lie together in a map's memory, and share its cache lines. A multiplication
/// spreads all other bits.
#[derive(Default)]
pub struct IdHasher(u64);

/// The bits of an id that are not spread: 16 ids are as many as a map looks at together.
const TOGETHER: u64 = 15;

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_u64(&mut self, n: u64) {
        // Both halves of the product: the highest bits, such as the number of the array, count as much as others.
        let product = u128::from(self.0.rotate_left(5) ^ (n & !TOGETHER)) * 0x9e37_79b9_7f4a_7c15;
        let spread = (product ^ (product >> 64)) as u64;
        self.0 = (spread & !TOGETHER) | (n & TOGETHER);
    }
    fn finish(&self) -> u64 {
        // A map takes an entry's place from the lowest bits. It tells neighbouring entries apart by the highest ones.
        self.0 ^ (self.0 << 60)
    }
}

impl std::hash::Hash for ChunkId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64((u64::from(self.array) << 48) ^ (u64::from(self.part) << 32) ^ self.index);
    }
}

/// A map with chunk ids as keys.
pub type ChunkMap<V> = HashMap<ChunkId, V, BuildHasherDefault<IdHasher>>;

/// What a batch does with one chunk.
#[derive(Clone, Debug)]
pub struct ChunkUse {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its jobs in [`BatchPlan::jobs`].
    pub jobs: Range<usize>,
}

/// The plan of one batch. In its jobs, `src` and `dst` are bytes from the start of the decoded chunk and of the output,
/// and `output` is the number of the output. Addresses are added when jobs are handed out.
#[derive(Debug, Default)]
pub struct BatchPlan {
    /// One use for each chunk, in the order in which samples need the chunks.
    pub uses: Vec<ChunkUse>,
    /// All jobs that read chunks, grouped by chunk.
    pub jobs: Vec<Job>,
    /// Jobs that read no chunk: for elements outside the region of interest, and for the mask output.
    pub pads: Vec<Job>,
    /// Jobs between elements that the others have decoded. They run when all others have. Their `src` counts from the start of
    /// the output's memory.
    pub between: Vec<Job>,
    /// For the index output, for each sample: the number of its store (if stores come one after the other), the number
    /// of its segment (if samples are named by segment), and its start along each axis.
    pub index: Vec<i64>,
    /// Number of samples.
    pub samples: usize,
    /// The names of the samples; empty unless the reader names them.
    pub names: Names,
    /// With ragged rows: the length of each sample along the first dimension of ragged outputs.
    pub lengths: Vec<i64>,
    /// See [`crate::batch::Batch::shapes`].
    pub shapes: Vec<Vec<i64>>,
    /// With ragged outputs, or memory behind the samples: the bytes of the samples of each output.
    pub bytes: Vec<usize>,
}

/// The grid of one array in one store, as plans need it.
pub struct PartGrid {
    /// Chunks along each dimension.
    pub dims: Vec<DimGrid>,
    /// Stored axis `k` of a decoded chunk is the array's axis `order[k]`.
    pub order: Vec<usize>,
    /// Whether decoded elements are in the other byte order.
    pub swap: bool,
}

/// One array, as plans need it.
pub struct ArrayGrids {
    /// The array whose chunks it uses: itself, or the first array of the same name.
    pub chunks_of: usize,
    /// Bytes per stored element.
    pub element: usize,
    /// One per store.
    pub parts: Vec<PartGrid>,
}

impl ArrayGrids {
    /// Returns the array's parts in these stores. An array with a store of its own has one part for all stores.
    fn of(&self, stores: &Range<usize>) -> Range<usize> {
        if self.parts.len() == 1 { 0..1 } else { stores.clone() }
    }

    /// Returns the parts in these stores, see [`Self::of`].
    fn parts_in(&self, stores: &Range<usize>) -> &[PartGrid] {
        &self.parts[self.of(stores)]
    }
}

/// Plans batches; shared by threads.
pub struct Planner {
    /// What samples are cut from: one source for all stores together, or one for each store.
    sources: Vec<Source>,
    arrays: Vec<ArrayGrids>,
    /// Number of jobs of the last batch. Room for as many jobs is made before the next batch is planned.
    jobs: AtomicUsize,
}

/// A geometry, and the stores to which it applies.
struct Source {
    geometry: Geometry,
    /// The number of its first sample.
    first: u64,
    /// The number of its first sample outside, from [`OUTSIDE`] on, and how many such numbers it has.
    outside: (u64, u64),
    /// The numbers of the stores.
    parts: Range<usize>,
    /// `whole[array][part][dimension]`: the runs along a dimension that is read whole, the same for all samples. `None`
    /// for other dimensions.
    whole: Vec<Vec<Vec<Option<ChunkRuns>>>>,
    /// Elements per sample of each output. With ragged rows, a ragged output has so many for each element of the row.
    elements: Vec<i64>,
}

impl Source {
    fn new(geometry: Geometry, first: u64, outside: u64, parts: Range<usize>, arrays: &[ArrayGrids]) -> Self {
        let of_part = |view: &View, part: usize, grids: &PartGrid| {
            let whole = |(dim, grid): (&ViewDim, &DimGrid)| {
                let all = 0..dim.len as i64;
                (dim.role == Role::Whole).then(|| chunk_runs(dim.picked(part), 0, 1, all, grid, 0))
            };
            view.dims.iter().zip(&grids.dims).map(whole).collect()
        };
        let of_array = |(view, array): (&View, &ArrayGrids)| {
            let grids = array.parts_in(&parts).iter().enumerate();
            grids.map(|(part, grids)| of_part(view, part, grids)).collect()
        };
        let whole = geometry.views.iter().zip(arrays).map(of_array).collect();
        let of_output = |(o, output): (usize, &OutputInfo)| match geometry.own_shapes.get(o) {
            Some(own) => own.iter().product(),
            None => output.shape[usize::from(output.ragged.is_some())..].iter().product(),
        };
        let elements = geometry.outputs.iter().enumerate().map(of_output).collect();
        // Numbers end below 2^63. A store whose samples outside don't fit has none.
        let count = geometry.outside();
        let outside = (outside, if count < (1 << 63) - outside { count } else { 0 });
        Self { geometry, first, outside, parts, whole, elements }
    }

    /// Returns the elements that a sample has in an output. `row` is its row in ragged arrays.
    fn elements(&self, output: usize, row: RowSpan) -> i64 {
        let is_row = self.geometry.rows.is_some() && self.geometry.outputs[output].ragged.is_some();
        if is_row { self.elements[output] * row.len as i64 } else { self.elements[output] }
    }
}

/// Counts up like an odometer, last digit fastest. Returns false when it wraps around.
fn advance(at: &mut [u64], lens: impl DoubleEndedIterator<Item = u64>) -> bool {
    for (i, n) in at.iter_mut().rev().zip(lens.rev()) {
        *i += 1;
        if *i < n {
            return true;
        }
        *i = 0;
    }
    false
}

impl Planner {
    /// Makes a planner over these grids. There is one geometry for all stores, or one for each store.
    ///
    /// # Panics
    /// If there is another number of geometries.
    pub fn new(geometries: Vec<Geometry>, arrays: Vec<ArrayGrids>) -> Self {
        let stores = arrays.iter().map(|array| array.parts.len()).max().unwrap_or(0);
        let count = geometries.len();
        assert!(count == 1 || count == stores, "there is a geometry for each store, or one");
        let (mut first, mut outside) = (0, OUTSIDE);
        let mut sources: Vec<Source> = Vec::with_capacity(count);
        for (store, geometry) in geometries.into_iter().enumerate() {
            let samples = geometry.samples;
            let parts = if count == 1 { 0..stores } else { store..store + 1 };
            let source = Source::new(geometry, first, outside, parts, &arrays);
            first += samples;
            outside += source.outside.1;
            sources.push(source);
        }
        Self { sources, arrays, jobs: AtomicUsize::new(0) }
    }

    /// Returns the geometry of a store. It is that of all stores if samples are cut from all together.
    pub fn geometry_of(&self, store: usize) -> &Geometry {
        &self.sources[if self.sources.len() == 1 { 0 } else { store }].geometry
    }

    /// Returns the geometries: one for all stores, or one for each. All have the same outputs, placements and
    /// operations.
    pub fn geometries(&self) -> impl Iterator<Item = &Geometry> {
        self.sources.iter().map(|source| &source.geometry)
    }

    /// Returns the first geometry, for what all geometries have in common.
    pub fn geometry(&self) -> &Geometry {
        &self.sources[0].geometry
    }

    /// Returns the array whose chunks an array uses: itself, or the first array of the same name.
    pub fn chunks_of(&self, array: usize) -> usize {
        self.arrays[array].chunks_of
    }

    /// Returns the number of all samples.
    pub fn samples(&self) -> u64 {
        let all = || self.geometries().map(|geometry| geometry.samples).sum();
        self.geometry().table.as_ref().map_or_else(all, TableStarts::count)
    }

    /// Returns the bytes of memory that segments between breaks take.
    pub fn break_bytes(&self) -> u64 {
        self.geometries().flat_map(|geometry| &geometry.axes).map(Axis::break_bytes).sum()
    }

    /// Returns the source of a sample, and the sample with its number in this source. With a table of starts, it keeps
    /// its number in the table.
    fn source(&self, sample: Sample) -> (&Source, Sample) {
        if let Some(table) = &self.geometry().table {
            return (&self.sources[table.store(sample.index)], sample);
        }
        if sample.index >= OUTSIDE {
            let source = &self.sources[self.sources.partition_point(|source| source.outside.0 <= sample.index) - 1];
            return (source, Sample { index: sample.index - source.outside.0 + OUTSIDE, ..sample });
        }
        let source = &self.sources[self.sources.partition_point(|source| source.first <= sample.index) - 1];
        (source, Sample { index: sample.index - source.first, ..sample })
    }

    /// Whether a sample has this number: one of an epoch, or one outside, as [`Self::find`] returns them.
    pub fn has(&self, number: u64) -> bool {
        let outside = |source: &Source| source.outside.0 + source.outside.1;
        number < self.samples() || (OUTSIDE..self.sources.last().map_or(0, outside)).contains(&number)
    }

    /// Returns the number of the sample with these entries in the index output; `None` if there is none. With a table of starts,
    /// `sorted` are its samples ([`TableStarts::sorted`]). Samples that start outside of the region, where padding allows them,
    /// have numbers from [`OUTSIDE`] on.
    ///
    /// # Panics
    /// If starts are drawn at random.
    pub fn find(&self, row: &[i64], sorted: &[u64]) -> Option<u64> {
        let (store, row) = match row {
            [store, row @ ..] if self.geometry().names_store => (usize::try_from(*store).ok()?, row),
            _ => (0, row),
        };
        let source = self.sources.iter().find(|source| source.parts.contains(&store))?;
        let table = self.geometry().table.as_ref();
        let number = source.geometry.find(row, |start| table?.find(sorted, store, start))?;
        match number.checked_sub(OUTSIDE) {
            Some(number) => (number < source.outside.1).then(|| source.outside.0 + number),
            None => Some(if table.is_some() { number } else { source.first + number }),
        }
    }

    /// Returns the coordinates of a chunk in the grid of decoded chunks.
    pub fn coords(&self, id: ChunkId) -> Vec<u64> {
        let grid = &self.arrays[id.array as usize].parts[id.part as usize].dims;
        let mut coords = vec![0; grid.len()];
        self.each_coord(id, |d, c| coords[d] = c);
        coords
    }

    /// Calls `f` with each dimension and the chunk's coordinate along it, last dimension first.
    fn each_coord(&self, id: ChunkId, mut f: impl FnMut(usize, u64)) {
        let mut rest = id.index;
        for (d, grid) in self.arrays[id.array as usize].parts[id.part as usize].dims.iter().enumerate().rev() {
            let count = grid.count().max(1);
            f(d, rest % count);
            rest /= count;
        }
    }

    /// Returns the number of elements of the decoded chunk.
    pub fn chunk_elements(&self, id: ChunkId) -> u64 {
        let grid = &self.arrays[id.array as usize].parts[id.part as usize].dims;
        let mut elements = 1;
        self.each_coord(id, |d, c| elements *= grid[d].len(c));
        elements
    }

    /// Returns the row-major index of the chunk's shard, and the chunk's entry in this shard. `chunks_per_shard` is the
    /// number of chunks in a shard along each dimension.
    pub fn shard_and_entry(&self, id: ChunkId, chunks_per_shard: &[u64]) -> (u64, usize) {
        let grid = &self.arrays[id.array as usize].parts[id.part as usize].dims;
        let (mut shard, mut shards, mut entry, mut entries) = (0, 1, 0, 1);
        self.each_coord(id, |d, c| {
            let n = chunks_per_shard[d].max(1);
            shard += c / n * shards;
            shards *= grid[d].count().div_ceil(n);
            entry += c % n * entries;
            entries *= n;
        });
        (shard, entry as usize)
    }

    /// Returns the decoded extents of a chunk, one per dimension.
    pub fn chunk_shape(&self, id: ChunkId) -> Vec<u64> {
        let grid = &self.arrays[id.array as usize].parts[id.part as usize].dims;
        self.coords(id).iter().zip(grid).map(|(&c, g)| g.len(c)).collect()
    }

    /// Whether this batch fits in the memory for a batch. Only ragged outputs may exceed it.
    pub fn holds(&self, plan: &BatchPlan) -> bool {
        let outputs = self.geometry().outputs.iter().zip(&plan.bytes);
        outputs.filter(|(output, _)| output.ragged.is_some()).all(|(output, &bytes)| bytes <= output.batch_bytes(0))
    }

    /// Returns the chunks that a batch of these samples needs, in the order of [`BatchPlan::uses`]. Takes a part of the
    /// time that a plan takes.
    pub fn chunks_of_samples(&self, samples: &[Sample]) -> Vec<ChunkId> {
        let mut out = jobs::Boxes::of_chunks();
        for &sample in samples {
            let (source, sample) = self.source(sample);
            let geometry = &source.geometry;
            let start = geometry.start(sample);
            let row = geometry.rows.as_ref().map_or(RowSpan::default(), |rows| rows.span(start[0].at));
            let sample = SampleStart { start: &start, row };
            geometry.placements.iter().for_each(|placement| self.place(&mut out, source, placement, sample, (0, 0), 1));
        }
        out.into_chunks()
    }

    /// Plans one batch of these samples.
    pub fn plan(&self, samples: &[Sample]) -> BatchPlan {
        let mut out = jobs::Boxes::with_capacity(self.jobs.load(Ordering::Relaxed));
        let outputs = &self.geometry().outputs;
        let mut lengths = Vec::new();
        let mut shapes = vec![Vec::new(); if self.geometry().own_shapes.is_empty() { 0 } else { outputs.len() }];
        // For each output, the elements of all samples before this one.
        let mut before = vec![0i64; outputs.len()];
        for (i, &sample) in samples.iter().enumerate() {
            let (source, sample) = self.source(sample);
            let geometry = &source.geometry;
            let start = geometry.start(sample);
            let row = geometry.rows.as_ref().map_or(RowSpan::default(), |rows| rows.span(start[0].at));
            let sample = SampleStart { start: &start, row };
            for placement in &geometry.placements {
                let output = &outputs[placement.output];
                let origin = before[placement.output] + placement.base;
                let behind = output.scratch_begin(samples.len()) + i * output.scratch;
                self.place(&mut out, source, placement, sample, (origin, behind), output.dtype.size());
            }
            for mask in &geometry.masks {
                boxes::mask(&mut out, geometry, mask, &start, before[mask.output]);
            }
            if geometry.rows.is_some() {
                lengths.push(row.len as i64);
            }
            for (shapes, own) in shapes.iter_mut().zip(&geometry.own_shapes) {
                shapes.extend(own);
            }
            before.iter_mut().enumerate().for_each(|(o, at)| *at += source.elements(o, row));
            if geometry.names_store {
                out.index.push(source.parts.start as i64);
            }
            out.index.extend(geometry.index(&start));
        }
        let mut plan = out.finish();
        plan.samples = samples.len();
        self.jobs.store(plan.jobs.len(), Ordering::Relaxed);
        if outputs.iter().any(|output| output.ragged.is_some() || output.scratch > 0) {
            plan.bytes = outputs.iter().zip(before).map(|(output, n)| n as usize * output.dtype.size()).collect();
            plan.lengths = lengths;
            let is_ragged = outputs.iter().map(|output| output.ragged.is_some());
            plan.shapes =
                shapes.into_iter().zip(is_ragged).map(|(of, ragged)| if ragged { of } else { Vec::new() }).collect();
        }
        plan
    }
}

#[cfg(test)]
mod tests;
