//! Makes the boxes of values between two elements: those that put the elements, decoded, into memory behind the samples, and
//! those that write the values between them.

use smallvec::smallvec;

use super::boxes::{Kind, RangePart, Reads, Runs};
use super::channels::{Common, by_channel};
use super::chunk_runs::{ChunkRuns, chunk_runs};
use super::jobs::{Boxes, Dim, From, Target};
use super::operations::{Operation, Operations};
use super::{DimVec, Planner, Source, advance};
use crate::geometry::{Placement, Scratch};

impl Planner {
    /// Adds the boxes of values between elements, of one array in one sample. `ranges` has what is read of each dimension.
    /// `origin` is as in [`Self::place`].
    #[expect(clippy::too_many_arguments, reason = "what the sample and its placement have in common")]
    pub(super) fn between(
        &self,
        out: &mut Boxes,
        source: &Source,
        p: &Placement,
        scratch: &Scratch,
        target: Target,
        ranges: &[Reads],
        (origin, behind): (i64, usize),
    ) {
        let (geometry, view) = (&source.geometry, &source.geometry.views[p.array]);
        let Some(between) = &view.between else { return };
        let pieces = |d: usize| ranges[d].pieces(geometry.repeats_edges);
        let cut = |piece: RangePart| piece.cut_along(&view.dims[scratch.dim], view);
        let parts = pieces(scratch.dim).flat_map(cut).filter(|(_, kind)| *kind == Kind::Between);
        // Each element of the sample, by number, and its index along the dimension.
        let all: Vec<(i64, i64)> =
            parts.flat_map(|(RangePart { ks, first, stride }, _)| ks.map(move |k| (k, first + k * stride))).collect();
        if all.is_empty() {
            return;
        }
        let mut elements: Vec<u64> =
            all.iter().map(|&(_, at)| between.at(at)).flat_map(|pair| [pair.low, pair.high]).collect();
        elements.sort_unstable();
        elements.dedup();
        // Otherwise jobs would write beyond the memory of the sample.
        assert!(elements.len() <= scratch.slots, "a sample has more elements than were reserved");
        let decoded = Target { dst_size: scratch.dtype.size() as u64, ..target };
        let slots = (behind / scratch.dtype.size()) as i64 + scratch.placement.base;
        self.read_slots(out, source, scratch, decoded, (slots, &elements), ranges);
        if out.chunks_only() {
            return;
        }

        let others: Vec<usize> = (0..ranges.len()).filter(|&d| d != scratch.dim).collect();
        let parts: DimVec<DimVec<RangePart>> = others.iter().map(|&d| pieces(d).collect()).collect();
        let strides = &scratch.placement.strides;
        let operations = Operations::of(geometry);
        let slot = |element: u64| elements.partition_point(|&of| of < element) as i64 * strides[scratch.dim];
        let target = Target { src_size: decoded.dst_size, ..target };
        let mut dims: Vec<Dim> = vec![Dim { n: 1, src: 0, dst: 0 }; ranges.len()];
        dims.extend(p.broadcast.iter().map(|&(n, dst)| Dim { n, src: 0, dst }));
        for &(k, at) in &all {
            let pair = between.at(at);
            let from = From::Between { apart: slot(pair.high) - slot(pair.low), weight: pair.weight };
            let mut which: DimVec<u64> = smallvec![0; others.len()];
            loop {
                let (mut src, mut dst) = (slots + slot(pair.low), origin + k * p.strides[scratch.dim]);
                // The index of the first element along each dimension, and the distance to the next one.
                let mut index: DimVec<(i64, i64)> = smallvec![(at, 0); ranges.len()];
                for (i, &d) in others.iter().enumerate() {
                    let RangePart { ks, first, stride } = &parts[i][which[i] as usize];
                    src += ks.start * strides[d];
                    dst += ks.start * p.strides[d];
                    dims[d] = Dim { n: (ks.end - ks.start) as u64, src: strides[d], dst: p.strides[d] };
                    index[d] = (first + ks.start * stride, *stride);
                }
                match &p.channels {
                    None => {
                        let op = operations.number(Operation::Norm { norm: p.norm, swap: false });
                        out.push(from, target, op, src, dst, &dims);
                    }
                    Some(channels) => {
                        let common = Common { from, target, operations, norm: p.norm, swap: false };
                        by_channel(out, &common, channels, (src, dst), &dims, |d| index[d]);
                    }
                }
                if !advance(&mut which, parts.iter().map(|parts| parts.len() as u64)) {
                    break;
                }
            }
        }
    }

    /// Adds the boxes that put elements along the first of `dims`, in ascending order, into slots. The slots begin at `slots`, in
    /// decoded elements of the output's memory.
    fn read_slots(
        &self,
        out: &mut Boxes,
        source: &Source,
        scratch: &Scratch,
        target: Target,
        (slots, elements): (i64, &[u64]),
        ranges: &[Reads],
    ) {
        let (geometry, p) = (&source.geometry, &scratch.placement);
        let view = &geometry.views[p.array];
        let array = &self.arrays[p.array];
        let joined = view.joined.as_ref().filter(|(d, _)| *d == scratch.dim).map(|(_, starts)| &**starts);
        let parts = array.of(&source.parts);
        for (part, grids) in array.parts[parts.clone()].iter().enumerate() {
            let (mut lists, mut is_empty) = (DimVec::new(), false);
            for (d, dim) in view.dims.iter().enumerate() {
                if let Some(list) = &source.whole[p.array][part][d] {
                    lists.push(Runs::Whole(list));
                    continue;
                }
                let mut list = ChunkRuns::new();
                if d == scratch.dim {
                    let (lo, hi) = joined.map_or((0, u64::MAX), |starts| (starts[part], starts[part + 1]));
                    let at = |bound: u64| elements.partition_point(|&element| element < bound) as i64;
                    list.extend(chunk_runs(Some(elements), 0, 1, at(lo)..at(hi), &grids.dims[d], lo));
                } else {
                    for RangePart { ks, first, stride } in ranges[d].pieces(geometry.repeats_edges) {
                        list.extend(chunk_runs(dim.picked(part), first, stride, ks, &grids.dims[d], 0));
                    }
                }
                is_empty |= list.is_empty();
                lists.push(Runs::Own(list));
            }
            if !is_empty {
                self.walk(out, p, (parts.start + part, Operations::of(geometry)), target, slots, &lists);
            }
            if joined.is_none() {
                // All stores have the same elements.
                return;
            }
        }
    }
}
