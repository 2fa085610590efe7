//! Cuts one array of one sample into boxes, each in one chunk, and makes a job of each box.

use std::ops::{Deref, Range};

use smallvec::smallvec;

use super::channels::{Common, by_channel};
use super::chunk_runs::{ChunkRun, ChunkRuns, chunk_runs};
use super::jobs::{Boxes, Dim, From, Target};
use super::operations::{Operation, Operations};
use super::{ChunkId, DimVec, Planner, advance};
use crate::geometry::{Cut, Geometry, Mask, Placement, Role, RowSpan, Start, View, ViewDim};

/// Where a sample starts.
#[derive(Clone, Copy)]
pub(super) struct SampleStart<'a> {
    /// Its start along each axis.
    pub start: &'a [Start],
    /// Its row in ragged arrays.
    pub row: RowSpan,
}

/// The elements of a sample along one dimension, by number. Those from `from` to before `to` lie in the sample's
/// segment. There are none if `from >= to`.
#[derive(Clone, Copy)]
struct Inside {
    from: i64,
    to: i64,
    /// Number of all elements.
    window: i64,
}

impl Inside {
    fn is_empty(&self) -> bool {
        self.from >= self.to
    }
}

/// What a sample reads along one dimension.
pub(super) struct Reads {
    /// Which elements of the sample, by number, lie in the sample's segment.
    inside: Range<i64>,
    /// Number of elements of the sample.
    window: i64,
    /// Position of the sample's element 0 along the dimension. It may lie outside.
    first: i64,
    /// Distance between neighbouring elements of the sample.
    stride: i64,
    /// Positions of the first and the last element of the segment.
    edges: (i64, i64),
}

/// Elements of a sample along one dimension: element `k` is at position `first + k * stride`.
pub(super) struct RangePart {
    pub ks: Range<i64>,
    pub first: i64,
    pub stride: i64,
}

/// How elements along the first of `dims` come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// They are read.
    Read,
    /// A value takes their place.
    Filled,
    /// They lie between two elements that are read.
    Between,
}

impl Kind {
    /// Returns the kind of an element along the first of `dims`.
    fn of(view: &View, at: i64) -> Self {
        match &view.between {
            _ if view.filled.binary_search(&at).is_ok() => Self::Filled,
            Some(between) if between.is_between(at) => Self::Between,
            _ => Self::Read,
        }
    }
}

impl RangePart {
    /// Cuts it where elements of another kind begin.
    fn cut(self, kind: impl Fn(i64) -> Kind) -> DimVec<(Self, Kind)> {
        let Self { ks, first, stride } = self;
        let of = |k: i64| kind(first + k * stride);
        let (mut from, mut parts) = (ks.start, DimVec::new());
        for k in ks.clone() {
            if k + 1 == ks.end || of(k) != of(k + 1) {
                parts.push((Self { ks: from..k + 1, first, stride }, of(k)));
                from = k + 1;
            }
        }
        parts
    }

    /// Like [`Self::cut`], along a dimension of a view.
    pub(super) fn cut_along(self, dim: &ViewDim, view: &View) -> DimVec<(Self, Kind)> {
        if dim.role != Role::Axis(0) || view.filled.is_empty() && view.between.is_none() {
            return smallvec![(self, Kind::Read)];
        }
        self.cut(|at| Kind::of(view, at))
    }
}

/// The runs of a sample along one dimension.
pub(super) enum Runs<'a> {
    /// Runs that all samples share, because the dimension is read whole.
    Whole(&'a [ChunkRun]),
    /// Runs of this sample.
    Own(ChunkRuns),
}

impl Deref for Runs<'_> {
    type Target = [ChunkRun];

    fn deref(&self) -> &[ChunkRun] {
        match self {
            Self::Whole(runs) => runs,
            Self::Own(runs) => runs,
        }
    }
}

impl Reads {
    /// Returns the elements that are read: those inside the segment, and with `repeats_edges` also those outside, which
    /// are read from the segment's edges.
    pub(super) fn pieces(&self, repeats_edges: bool) -> impl Iterator<Item = RangePart> {
        let Self { ref inside, window, first, stride, edges: (first_inside, last_inside) } = *self;
        let edge = |ks, first| RangePart { ks, first, stride: 0 };
        let before = repeats_edges.then(|| edge(0..inside.start, first_inside));
        let after = repeats_edges.then(|| edge(inside.end..window, last_inside));
        let all = [before, Some(RangePart { ks: inside.clone(), first, stride }), after];
        all.into_iter().flatten().filter(|piece| !piece.ks.is_empty())
    }
}

/// Returns what a sample with this start reads along one dimension of an array.
fn reads(geometry: &Geometry, dim: &ViewDim, view: &View, offset: i64, sample: SampleStart<'_>) -> Reads {
    let SampleStart { start, row } = sample;
    match dim.role {
        Role::Ragged => {
            let (first, len) = (row.first as i64, row.len as i64);
            Reads { inside: 0..len, window: len, first, stride: 1, edges: (first, first + len - 1) }
        }
        Role::Whole => {
            let len = dim.len as i64;
            Reads { inside: 0..len, window: len, first: 0, stride: 1, edges: (0, len - 1) }
        }
        Role::Axis(a) => {
            let cut = view.cuts[a];
            let (from, to) = cut.within(geometry.axes[a].segment(start[a].segment));
            // An array of another resolution may have no element in the segment. The one that begins nearest to the segment's
            // start is repeated then, whatever side of it a sample lies on.
            let nearest = |at: i64| at.clamp(0, dim.len as i64 - 1);
            let edges = match cut.scaled {
                Some(_) => (nearest(from), nearest(from.max(to - 1))),
                None => (from, to - geometry.axes[a].spacing),
            };
            Reads {
                inside: geometry.inside(a, cut, start[a], offset),
                window: cut.window,
                first: cut.first(start[a].at + if a == 0 { offset } else { 0 }),
                stride: cut.stride,
                edges,
            }
        }
    }
}

/// Adds the boxes of one sample's mask: true for elements in the segment, false for elements around it. `origin` is the
/// place of the sample's first element in the output.
pub(super) fn mask(out: &mut Boxes, geometry: &Geometry, mask: &Mask, start: &[Start], origin: i64) {
    let target = Target { output: mask.output as u32, src_size: 1, dst_size: 1 };
    let mut strides = vec![1i64; mask.axes.len()];
    for d in (1..strides.len()).rev() {
        strides[d - 1] = strides[d] * mask.axes[d].1.window;
    }
    let elements: i64 = mask.axes.iter().map(|(_, cut)| cut.window).product();
    let op = |is_inside| Operations::of(geometry).number(Operation::Mask(is_inside));
    let view = mask.array.map(|array| &geometry.views[array]);
    let has = |a: usize| view.is_none_or(|view| view.dims.iter().any(|dim| dim.role == Role::Axis(a)));
    for (group, &offset) in (0..).zip(&mask.offsets) {
        let origin = origin + group * elements;
        let range = |&(a, cut): &(usize, Cut)| {
            let inside = geometry.inside(a, cut, start[a], offset);
            Inside { from: inside.start, to: inside.end, window: cut.window }
        };
        let ranges: Vec<_> = mask.axes.iter().map(range).collect();
        // A dimension that the sample doesn't have is one element, which may lie outside, or be filled.
        let mut dropped = (0..geometry.axes.len()).filter(|a| has(*a) && mask.axes.iter().all(|(kept, _)| kept != a));
        let is_out = |a: usize| {
            let one = view.map_or(Cut::ONE, |view| view.cuts[a]);
            geometry.inside(a, one, start[a], offset).is_empty()
                || a == 0 && geometry.filled.binary_search(&(start[0].at + offset)).is_ok()
        };
        if ranges.iter().any(Inside::is_empty) || dropped.any(is_out) {
            let all = [Dim { n: elements as u64, src: 0, dst: 1 }];
            out.push(From::Pad, target, op(false), 0, origin, &all);
            continue;
        }
        outside(out, target, op(false), origin, &strides, &ranges, &[]);
        // Along the first axis, which is the first that is kept, filled elements count as padded.
        let (filled, stride) = match mask.axes.first() {
            Some((0, cut)) => (&*geometry.filled, cut.stride),
            _ => (&[][..], 1),
        };
        let first = start.first().map_or(0, |start| start.at + offset);
        let ks = ranges.first().map_or(0..1, |range| range.from..range.to);
        let kind = |at: i64| if filled.binary_search(&at).is_ok() { Kind::Filled } else { Kind::Read };
        let whole = RangePart { ks, first, stride };
        let parts = if filled.is_empty() { smallvec![(whole, Kind::Read)] } else { whole.cut(kind) };
        for (RangePart { ks, .. }, kind) in parts {
            let mut spans: Vec<Range<i64>> = ranges.iter().map(|range| range.from..range.to).collect();
            spans.iter_mut().take(1).for_each(|span| *span = ks.clone());
            let at = spans.iter().zip(&strides).map(|(span, stride)| span.start * stride).sum::<i64>();
            let dim = |(span, &dst): (&Range<i64>, &i64)| Dim { n: (span.end - span.start) as u64, src: 0, dst };
            let dims: Vec<Dim> = spans.iter().zip(&strides).map(dim).collect();
            out.push(From::Pad, target, op(kind == Kind::Read), 0, origin + at, &dims);
        }
    }
}

impl Planner {
    /// Adds the boxes of one array in one sample. `origin` is where the placement's first element goes in the output, in
    /// elements of the batch, and `behind` where the sample's memory behind the output's samples begins, in bytes.
    pub(super) fn place(
        &self,
        out: &mut Boxes,
        source: &super::Source,
        p: &Placement,
        sample: SampleStart<'_>,
        (origin, behind): (i64, usize),
        dst_size: usize,
    ) {
        let geometry = &source.geometry;
        let view = &geometry.views[p.array];
        let array = &self.arrays[p.array];
        let target = Target { output: p.output as u32, src_size: array.element as u64, dst_size: dst_size as u64 };
        let rank = view.dims.len();

        let is_empty = |dim: &ViewDim| dim.role == Role::Ragged && sample.row.len == 0;
        if view.dims.iter().any(is_empty) {
            // An empty row has no boxes.
            return;
        }
        let reads = |dim| reads(geometry, dim, view, p.offset, sample);
        let ranges: DimVec<Reads> = view.dims.iter().map(reads).collect();
        let reaches_out = |range: &Reads| range.inside != (0..range.window);
        if !geometry.repeats_edges && ranges.iter().any(reaches_out) {
            let inside = |r: &Reads| Inside { from: r.inside.start, to: r.inside.end, window: r.window };
            let ranges: DimVec<_> = ranges.iter().map(inside).collect();
            if !out.chunks_only() {
                let op = Operations::of(geometry).number(Operation::Norm { norm: p.norm, swap: false });
                pad(out, p, target, op, origin, &ranges);
            }
            if ranges.iter().any(Inside::is_empty) {
                return;
            }
        }

        if !view.filled.is_empty() && !out.chunks_only() {
            fill(out, geometry, p, target, origin, &ranges);
        }
        let (joined, starts): (usize, &[u64]) = view.joined.as_ref().map_or((rank, &[]), |(d, s)| (*d, s));
        let parts = array.of(&source.parts);
        for (part, grids) in array.parts[parts.clone()].iter().enumerate() {
            // Stores without an element of the sample are skipped. In the others, the joined dimension is cut to the
            // part that lies in the store.
            let mut lists: DimVec<Runs<'_>> = DimVec::new();
            let mut empty = false;
            for (d, dim) in view.dims.iter().enumerate() {
                if let Some(list) = &source.whole[p.array][part][d] {
                    empty |= list.is_empty();
                    lists.push(Runs::Whole(list));
                    continue;
                }
                let pick = dim.picked(part);
                let mut list = ChunkRuns::new();
                let parts = ranges[d].pieces(geometry.repeats_edges).flat_map(|piece| piece.cut_along(dim, view));
                for (RangePart { ks, first, stride }, _) in parts.filter(|(_, kind)| *kind == Kind::Read) {
                    if d != joined {
                        list.extend(chunk_runs(pick, first, stride, ks, &grids.dims[d], 0));
                        continue;
                    }
                    let (lo, hi) = (starts[part] as i64, starts[part + 1] as i64);
                    match pick {
                        // Without picks, all elements are the same one (distance 0), or they ascend.
                        None if stride == 0 => {
                            if (lo..hi).contains(&first) {
                                list.extend(chunk_runs(None, first, 0, ks, &grids.dims[d], starts[part]));
                            }
                        }
                        None => {
                            let reach = |at: i64| if at > first { (at - first - 1) / stride + 1 } else { 0 };
                            let ks = ks.start.max(reach(lo))..ks.end.min(reach(hi));
                            list.extend(chunk_runs(None, first, stride, ks, &grids.dims[d], starts[part]));
                        }
                        Some(picked) => {
                            let inside = |k: i64| (lo..hi).contains(&(picked[(first + k * stride) as usize] as i64));
                            let mut k = ks.start;
                            while k < ks.end {
                                let run = (k..ks.end).take_while(|&k| inside(k)).count() as i64;
                                if run > 0 {
                                    let ks = k..k + run;
                                    list.extend(chunk_runs(pick, first, stride, ks, &grids.dims[d], starts[part]));
                                }
                                k += run.max(1);
                            }
                        }
                    }
                }
                empty |= list.is_empty();
                lists.push(Runs::Own(list));
            }
            if empty || (part > 0 && joined == rank) {
                continue;
            }
            self.walk(out, p, (parts.start + part, Operations::of(geometry)), target, origin, &lists);
        }
        if let Some(scratch) = &p.scratch {
            self.between(out, source, p, scratch, target, &ranges, (origin, behind));
        }
    }

    /// Adds a box for each combination of runs, one run along each dimension. A box lies in one chunk.
    pub(super) fn walk(
        &self,
        out: &mut Boxes,
        p: &Placement,
        (part, operations): (usize, Operations),
        target: Target,
        origin: i64,
        lists: &[Runs<'_>],
    ) {
        let grids = &self.arrays[p.array].parts[part];
        let rank = lists.len();
        let mut at: DimVec<u64> = smallvec![0; rank];
        let mut element: DimVec<i64> = smallvec![0; rank];
        let mut dims: DimVec<Dim> = smallvec![Dim { n: 1, src: 0, dst: 0 }; rank];
        let repeat = p.broadcast.iter().map(|&(n, dst)| Dim { n, src: 0, dst });
        dims.extend(repeat);
        loop {
            let run = |d: usize| lists[d][at[d] as usize];
            // Distances between elements of the decoded chunk along the array's dimensions.
            let mut distance = 1i64;
            for &d in grids.order.iter().rev() {
                element[d] = distance;
                distance = distance.saturating_mul(grids.dims[d].len(run(d).chunk) as i64);
            }
            let (mut index, mut src, mut dst) = (0u64, 0i64, origin);
            for d in 0..rank {
                let s = run(d);
                index = index * grids.dims[d].count() + s.chunk;
                src += s.pos * element[d];
                dst += s.k * p.strides[d];
                dims[d] = Dim { n: u64::from(s.n), src: s.step * element[d], dst: p.strides[d] };
            }
            let id = ChunkId { array: self.arrays[p.array].chunks_of as u16, part: part as u16, index };
            match &p.channels {
                _ if out.chunks_only() => {
                    out.need(id);
                }
                None => {
                    let (norm, swap) = (p.norm, grids.swap);
                    let operation = match p.is_decoded {
                        true => Operation::Decoded { array: p.array, swap },
                        false => Operation::Norm { norm, swap },
                    };
                    out.push(From::Chunk(id), target, operations.number(operation), src, dst, &dims);
                }
                Some(channels) => {
                    let common = Common { from: From::Chunk(id), target, operations, norm: p.norm, swap: grids.swap };
                    by_channel(out, &common, channels, (src, dst), &dims, |d| run(d).at);
                }
            }
            if !advance(&mut at, lists.iter().map(|l| l.len() as u64)) {
                return;
            }
        }
    }
}

/// Adds the boxes of the placement whose data are missing and filled. `ranges` has what is read of each dimension.
fn fill(out: &mut Boxes, geometry: &Geometry, p: &Placement, target: Target, origin: i64, ranges: &[Reads]) {
    let view = &geometry.views[p.array];
    let Some(first) = view.dims.iter().position(|dim| dim.role == Role::Axis(0)) else { return };
    let op = Operations::of(geometry).number(Operation::Norm { norm: p.norm, swap: false });
    // With edges that are repeated, elements outside the segment are read too.
    let read = |r: &Reads| if geometry.repeats_edges { 0..r.window } else { r.inside.clone() };
    let cut = |piece: RangePart| piece.cut_along(&view.dims[first], view);
    let parts = ranges[first].pieces(geometry.repeats_edges).flat_map(cut);
    for (RangePart { ks, .. }, _) in parts.filter(|(_, kind)| *kind == Kind::Filled) {
        let of = |(d, range): (usize, &Reads)| if d == first { ks.clone() } else { read(range) };
        let spans: DimVec<_> = ranges.iter().enumerate().map(of).collect();
        let dst = spans.iter().zip(&p.strides).map(|(ks, stride)| ks.start * stride).sum::<i64>();
        let dim = |(ks, &dst): (&Range<i64>, &i64)| Dim { n: (ks.end - ks.start).max(0) as u64, src: 0, dst };
        let mut dims: Vec<Dim> = p.broadcast.iter().map(|&(n, dst)| Dim { n, src: 0, dst }).collect();
        dims.extend(spans.iter().zip(&p.strides).map(dim));
        out.push(From::Pad, target, op, 0, origin + dst, &dims);
    }
}

/// Adds the boxes of the placement outside the region of interest, or beyond a break. `ranges` has each dimension.
fn pad(out: &mut Boxes, p: &Placement, target: Target, op: u32, origin: i64, ranges: &[Inside]) {
    let repeat: Vec<Dim> = p.broadcast.iter().map(|&(n, dst)| Dim { n, src: 0, dst }).collect();
    outside(out, target, op, origin, &p.strides, ranges, &repeat);
}

/// Adds the boxes for all elements outside: along each dimension, those before and after the elements inside. The
/// dimensions before it are restricted to their elements inside, so that no element comes twice. `ranges` has each
/// dimension. `repeat` are further dimensions.
fn outside(out: &mut Boxes, target: Target, op: u32, origin: i64, strides: &[i64], ranges: &[Inside], repeat: &[Dim]) {
    for (d, range) in ranges.iter().enumerate() {
        let Inside { from: k0, to: k1, window } = *range;
        let (k0, k1) = if range.is_empty() { (window, window) } else { (k0, k1) };
        for (from, to) in [(0, k0), (k1, window)] {
            if from >= to {
                continue;
            }
            let mut dst = origin + from * strides[d];
            let mut dims = repeat.to_vec();
            for (e, other) in ranges.iter().enumerate() {
                let (a, b) = match e.cmp(&d) {
                    std::cmp::Ordering::Less => (other.from, other.to),
                    std::cmp::Ordering::Equal => (from, to),
                    std::cmp::Ordering::Greater => (0, other.window),
                };
                if e < d {
                    dst += a * strides[e];
                }
                dims.push(Dim { n: (b - a).max(0) as u64, src: 0, dst: strides[e] });
            }
            out.push(From::Pad, target, op, 0, dst, &dims);
        }
        if range.is_empty() {
            return;
        }
    }
}
