//! Plans a batch: from its samples to the chunks that it needs, and the jobs that copy their elements to the outputs.
//! Pure: no I/O, no device.

mod boxes;
mod chunk_runs;
mod grouping;
mod table_blocks;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use dali_zarr_kernels::Job;

use crate::dataset::DimGrid;
use crate::geometry::{Geometry, Role, ViewDim};
use crate::order::Sample;
use chunk_runs::{ChunkRun, chunk_runs};

/// The id of a chunk, or of an inner chunk of a shard: what is decoded as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkId {
    /// Index of the array in the dataset.
    pub array: u16,
    /// Index of the store.
    pub part: u16,
    /// Row-major index in the grid of decoded chunks.
    pub index: u64,
}

/// A multiplicative hasher. Chunk ids are well spread already, and each chunk is hashed.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
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

/// The plan of one batch. In its jobs `src` and `dst` are bytes from the start of the decoded chunk and of the output,
/// and `output` is the number of the output. Addresses are added when jobs are handed out.
#[derive(Debug, Default)]
pub struct BatchPlan {
    /// Each chunk once, in the order in which samples need them.
    pub uses: Vec<ChunkUse>,
    /// Grouped by chunk.
    pub jobs: Vec<Job>,
    /// Jobs for elements outside the region of interest.
    pub pads: Vec<Job>,
    /// For the index output: the start of each sample along each axis.
    pub starts: Vec<i64>,
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

/// Plans batches; shared by threads.
pub struct Planner {
    geometry: Geometry,
    arrays: Vec<ArrayGrids>,
    /// For each array, part and dimension: the runs of dimensions that are read whole. They are the same for all
    /// samples.
    whole: Vec<Vec<Vec<Option<Vec<ChunkRun>>>>>,
    /// Elements per sample of each output.
    sample_elements: Vec<i64>,
}

/// The index of the operation for a norm; byte order is part of the operation.
pub const fn op_index(norm: usize, swap: bool) -> u32 {
    (norm * 2 + swap as usize) as u32
}

impl Planner {
    /// A planner for this geometry over these grids.
    pub fn new(geometry: Geometry, arrays: Vec<ArrayGrids>) -> Self {
        let whole = geometry
            .views
            .iter()
            .zip(&arrays)
            .map(|(view, array)| {
                let part = |(store, part): (usize, &PartGrid)| {
                    let whole = |(dim, grid): (&ViewDim, &DimGrid)| {
                        let all = 0..dim.len as i64;
                        (dim.role == Role::Whole).then(|| chunk_runs(dim.picked(store), 0, 1, all, grid, 0))
                    };
                    view.dims.iter().zip(&part.dims).map(whole).collect()
                };
                array.parts.iter().enumerate().map(part).collect()
            })
            .collect();
        let sample_elements = geometry.outputs.iter().map(|o| o.shape.iter().product()).collect();
        Self { geometry, arrays, whole, sample_elements }
    }

    /// The geometry that it plans for.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The coordinates of a chunk in the grid of decoded chunks.
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

    /// Elements of the decoded chunk.
    pub fn chunk_elements(&self, id: ChunkId) -> u64 {
        let grid = &self.arrays[id.array as usize].parts[id.part as usize].dims;
        let mut elements = 1;
        self.each_coord(id, |d, c| elements *= grid[d].len(c));
        elements
    }

    /// With shards of `chunks_per_shard` chunks: the row-major index of the chunk's shard, and its entry in it.
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

    /// The decoded extents of a chunk, one per dimension.
    pub fn chunk_shape(&self, id: ChunkId) -> Vec<u64> {
        let grid = &self.arrays[id.array as usize].parts[id.part as usize].dims;
        self.coords(id).iter().zip(grid).map(|(&c, g)| g.len(c)).collect()
    }

    /// Plans one batch of these samples.
    pub fn plan(&self, samples: &[Sample]) -> BatchPlan {
        let mut out = boxes::Boxes::default();
        for (i, &sample) in samples.iter().enumerate() {
            let start = self.geometry.start(sample);
            for placement in &self.geometry.placements {
                let output = &self.geometry.outputs[placement.output];
                let origin = i as i64 * self.sample_elements[placement.output] + placement.base;
                self.place(&mut out, placement, &start, origin, output.dtype.size());
            }
            out.starts.extend(&start);
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests;
