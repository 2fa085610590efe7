//! Makes jobs from boxes: drops, orders, merges and cuts their dimensions until each box fits a job, and groups the
//! jobs by chunk.

use dali_zarr_kernels::{Job, MAX_DIMS, MAX_DIMS_BETWEEN, Source};
use smallvec::smallvec;

use super::{BatchPlan, ChunkId, ChunkMap, ChunkUse, DimVec, advance};

/// Extents are 32 bits wide in the kernels, which count tiles in 32 bits too; longer boxes are cut.
const MAX_EXTENT: u64 = 1 << 31;

/// One dimension of a box: the number of elements, and the distance between neighbours in source and output, in
/// elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    pub n: u64,
    pub src: i64,
    pub dst: i64,
}

/// The channels of a box: the dimension along which they lie, the number of the first channel, and the distance to the
/// next one's number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Along {
    pub dim: usize,
    pub first: i64,
    pub step: i64,
}

/// Collects jobs; [`Boxes::finish`] groups them by chunk.
#[derive(Default)]
pub(super) struct Boxes {
    uses: ChunkMap<u32>,
    chunks: Vec<ChunkId>,
    jobs: Vec<(u32, Job)>,
    pads: Vec<Job>,
    between: Vec<Job>,
    pub index: Vec<i64>,
    /// Whether only the chunks are collected, without jobs.
    chunks_only: bool,
}

/// Where a box takes its elements from.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    /// A chunk.
    Chunk(ChunkId),
    /// The value of elements out of bounds.
    Pad,
    /// Two elements that were decoded. `apart` is the distance from each to the other one, in elements, and `weight` that of the other
    /// one.
    Between { apart: i64, weight: f64 },
}

impl From {
    /// Returns the most dimensions of a job.
    fn most_dims(self) -> usize {
        if matches!(self, Self::Between { .. }) { MAX_DIMS_BETWEEN } else { MAX_DIMS }
    }
}

/// What all boxes of one array of one sample have in common: the output, and the bytes of an element in the chunk and
/// in the output.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub output: u32,
    pub src_size: u64,
    pub dst_size: u64,
}

impl Boxes {
    /// Makes an empty collection with room for this many jobs.
    pub fn with_capacity(jobs: usize) -> Self {
        Self { jobs: Vec::with_capacity(jobs), ..Self::default() }
    }

    /// Makes an empty collection of chunks. It takes no jobs.
    pub fn of_chunks() -> Self {
        Self { chunks_only: true, ..Self::default() }
    }

    /// Whether only the chunks are collected, by [`Self::need`].
    pub fn chunks_only(&self) -> bool {
        self.chunks_only
    }

    /// Records that a chunk is needed. Returns its place in the order in which chunks were first needed.
    pub fn need(&mut self, id: ChunkId) -> u32 {
        let chunks = &mut self.chunks;
        *self.uses.entry(id).or_insert_with(|| {
            chunks.push(id);
            chunks.len() as u32 - 1
        })
    }

    /// Returns the chunks, in the order in which they were first needed.
    pub fn into_chunks(self) -> Vec<ChunkId> {
        self.chunks
    }

    /// Adds a box, cut into as many jobs as it needs. `src` and `dst` are the places of its first element in the decoded
    /// chunk (or in the output's memory, for elements that were decoded there) and in the output, in elements.
    pub fn push(&mut self, from: From, target: Target, op: u32, src: i64, dst: i64, dims: &[Dim]) {
        if let Some(long) = dims.iter().position(|d| d.n > MAX_EXTENT) {
            let mut part = dims.to_vec();
            part[long].n = MAX_EXTENT;
            self.push(from, target, op, src, dst, &part);
            part[long].n = dims[long].n - MAX_EXTENT;
            let (src_step, dst_step) = (dims[long].src * MAX_EXTENT as i64, dims[long].dst * MAX_EXTENT as i64);
            self.push(from, target, op, src + src_step, dst + dst_step, &part);
            return;
        }
        let dims = simplify(dims.iter().map(|&dim| (dim, false)));
        let (outer, inner) = dims.split_at(dims.len().saturating_sub(from.most_dims()));
        let mut at: DimVec<u64> = smallvec![0; outer.len()];
        loop {
            let offset = |of: fn(&Dim) -> i64| outer.iter().zip(&at).map(|((d, _), &i)| of(d) * i as i64).sum::<i64>();
            let job = job(target, op, src + offset(|d| d.src), dst + offset(|d| d.dst), inner);
            self.add(from, job);
            if !advance(&mut at, outer.iter().map(|(d, _)| d.n)) {
                return;
            }
        }
    }

    /// Adds a box of several channels as one job. Returns false and adds nothing if it doesn't fit one job.
    pub fn push_channels(
        &mut self,
        from: From,
        target: Target,
        op: u32,
        (src, dst): (i64, i64),
        dims: &[Dim],
        along: Along,
    ) -> bool {
        let dims = simplify(dims.iter().enumerate().map(|(d, &dim)| (dim, d == along.dim)));
        if dims.len() > from.most_dims().min(MAX_DIMS - 1) || dims.iter().any(|(d, _)| d.n > MAX_EXTENT) {
            return false;
        }
        let mut job = job(target, op, src, dst, &dims);
        let dim = dims.iter().position(|&(_, apart)| apart).expect("channels, of which there are several");
        job.set_channels(dim, along.first, along.step);
        self.add(from, job);
        true
    }

    fn add(&mut self, from: From, mut job: Job) {
        match from {
            From::Chunk(id) => {
                let at = self.need(id);
                self.jobs.push((at, job));
            }
            From::Pad => self.pads.push(Job { source: Source::Pad as u32, ..job }),
            From::Between { apart, weight } => {
                job.set_between(apart, weight);
                self.between.push(job);
            }
        }
    }

    /// Groups the jobs by chunk. Chunks come in the order in which they were first needed (a counting sort).
    pub fn finish(self) -> BatchPlan {
        let mut ends = vec![0usize; self.chunks.len()];
        self.jobs.iter().for_each(|(at, _)| ends[*at as usize] += 1);
        let mut total = 0;
        let mut uses = Vec::with_capacity(self.chunks.len());
        for (chunk, end) in self.chunks.into_iter().zip(&mut ends) {
            uses.push(ChunkUse { chunk, jobs: total..total + *end });
            total += *end;
            *end = total - *end;
        }
        let mut order = vec![0; total];
        for (number, (at, _)) in self.jobs.iter().enumerate() {
            let place = &mut ends[*at as usize];
            order[*place] = number;
            *place += 1;
        }
        let jobs = order.into_iter().map(|number| self.jobs[number].1).collect();
        BatchPlan { uses, jobs, pads: self.pads, between: self.between, index: self.index, ..BatchPlan::default() }
    }
}

/// Makes a job. `src` and `dst` are in elements. `dims` has at most [`MAX_DIMS`] dimensions.
fn job(target: Target, op: u32, src: i64, dst: i64, dims: &[(Dim, bool)]) -> Job {
    let (from, to) = (src as u64 * target.src_size, dst as u64 * target.dst_size);
    let dims = dims.iter().map(|(d, _)| (d.n as u32, d.src, d.dst));
    Job { op, output: target.output, ..Job::new(from, to, dims) }
}

/// Drops dimensions of one element, orders the others by their distance in the output, and merges those that are
/// contiguous in source and output. A dimension with the flag `true` isn't merged. At least one dimension remains.
///
/// If neighbours in the source lie along another dimension than neighbours in the output, that dimension becomes the last
/// but one ([`Job::is_transposed`]).
fn simplify(dims: impl Iterator<Item = (Dim, bool)>) -> DimVec<(Dim, bool)> {
    let mut dims: DimVec<(Dim, bool)> = dims.filter(|(d, _)| d.n > 1).collect();
    dims.sort_by_key(|(d, _)| std::cmp::Reverse(d.dst));
    let mut out: DimVec<(Dim, bool)> = DimVec::new();
    for (d, is_apart) in dims {
        if let Some((outer, false)) = out.last_mut()
            && !is_apart
            && outer.src == d.src * d.n as i64
            && outer.dst == d.dst * d.n as i64
            && outer.n * d.n <= MAX_EXTENT
        {
            *outer = Dim { n: outer.n * d.n, ..d };
        } else {
            out.push((d, is_apart));
        }
    }
    if out.is_empty() {
        out.push((Dim { n: 1, src: 1, dst: 1 }, false));
    }
    let inner = out.len() - 1;
    let far = out[inner].0.src.unsigned_abs();
    let near = (0..inner).filter(|&d| (1..far).contains(&out[d].0.src.unsigned_abs()));
    if let Some(near) = near.min_by_key(|&d| out[d].0.src.unsigned_abs()) {
        out[near..inner].rotate_left(1);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_dimensions_are_cut() {
        let mut out = Boxes::default();
        let n = (3 << 31) + 5;
        let target = Target { output: 0, src_size: 4, dst_size: 4 };
        out.push(From::Pad, target, 0, 0, 7, &[Dim { n: 2, src: 0, dst: n as i64 }, Dim { n, src: 0, dst: 1 }]);
        let pads = out.finish().pads;
        let boxes: Vec<(u64, u32, i64)> = pads.iter().map(|j| (j.dst / 4, j.extent[1], j.dst_stride[0])).collect();
        let long = 1 << 31;
        let at = |i: u64| 7 + i * (1 << 31);
        assert_eq!(
            boxes,
            [(at(0), long, n as i64), (at(1), long, n as i64), (at(2), long, n as i64), (at(3), 5, n as i64)]
        );
    }
}
