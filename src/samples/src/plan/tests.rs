//! Checks plans: runs them on element numbers, and compares the result with a direct walk over every element.

use std::collections::HashSet;
use std::hash::BuildHasher;

use super::*;
use crate::dataset::ChunkLengths;
use crate::geometry::ArrayShape;
use crate::spec::{DimKey, OutOfBounds, OutputDims, Pick, Spec};
use dali_zarr_base::dtype::DType;
use dali_zarr_kernels::Source;
use proptest::prelude::*;

const PAD: i64 = -1;

/// Carries out the jobs that write the mask.
fn run_mask(planner: &Planner, plan: &BatchPlan, batch: usize) -> Vec<bool> {
    let mask = planner.geometry().masks.first().unwrap();
    let per_sample: i64 = planner.geometry().outputs[mask.output].shape.iter().product();
    let mut out = vec![None; per_sample as usize * batch];
    for job in plan.pads.iter().filter(|job| job.output as usize == mask.output) {
        let n = job.ndim as usize;
        for linear in 0..job.extent[..n].iter().map(|&e| u64::from(e)).product() {
            let (mut rest, mut dst): (u64, _) = (linear, job.dst as i64);
            for d in (0..n).rev() {
                dst += (rest % u64::from(job.extent[d])) as i64 * job.dst_stride[d];
                rest /= u64::from(job.extent[d]);
            }
            let value = job.op == Operations::of(planner.geometry()).number(Operation::Mask(true));
            assert!(out[dst as usize].replace(value).is_none(), "written twice");
        }
    }
    out.into_iter().map(|value| value.expect("written")).collect()
}

/// Runs a plan: every chunk holds, for each element, the number of the element in the joined array.
fn run(planner: &Planner, plan: &BatchPlan, starts: &[u64], shape: &[u64], batch: usize) -> Vec<i64> {
    let per_sample: i64 = planner.geometry().outputs[0].shape.iter().product();
    let mut out = vec![i64::MIN; per_sample as usize * batch];
    let mut run = |job: &Job, source: &dyn Fn(i64) -> i64| {
        let n = job.ndim as usize;
        let total: u64 = job.extent[..n].iter().map(|&e| u64::from(e)).product();
        for linear in 0..total {
            let (mut rest, mut src, mut dst) = (linear, job.src as i64 / 8, job.dst as i64 / 8);
            for d in (0..n).rev() {
                let i = (rest % u64::from(job.extent[d])) as i64;
                rest /= u64::from(job.extent[d]);
                src += i * job.src_stride[d];
                dst += i * job.dst_stride[d];
            }
            let slot = &mut out[dst as usize];
            assert_eq!(*slot, i64::MIN, "written twice");
            *slot = source(src);
        }
    };
    for u in &plan.uses {
        let grids = &planner.arrays[0].parts[u.chunk.part as usize];
        let (coords, extents) = (planner.coords(u.chunk), planner.chunk_shape(u.chunk));
        let element = |src: i64| {
            let mut rest = src as u64;
            let mut at = vec![0u64; shape.len()];
            for &d in grids.order.iter().rev() {
                at[d] = rest % extents[d] + grids.dims[d].start(coords[d]);
                rest /= extents[d];
            }
            assert_eq!(rest, 0, "outside the chunk");
            at[0] += starts[u.chunk.part as usize];
            at.iter().zip(shape).fold(0, |n, (&i, &s)| n * s + i) as i64
        };
        plan.jobs[u.jobs.clone()].iter().for_each(|job| run(job, &element));
    }
    for job in plan.pads.iter().filter(|job| job.output == 0) {
        assert_eq!(job.source, Source::Pad as u32);
        run(job, &|_| PAD);
    }
    out
}

/// Returns the expected result of [`run`], and the mask, by walking over every element of every sample. `starts` are
/// the first joined indices of the stores.
fn expected(g: &Geometry, samples: &[Sample], starts: &[u64], shape: &[u64], edge: bool) -> (Vec<i64>, Vec<bool>) {
    let view = &g.views[0];
    let (mut out, mut mask) = (Vec::new(), Vec::new());
    for &s in samples {
        let start = g.start(s);
        let lens: Vec<i64> = view
            .dims
            .iter()
            .map(|d| match d.role {
                Role::Axis(a) => view.cuts[a].window,
                Role::Whole => d.len as i64,
                Role::Ragged => unreachable!(),
            })
            .collect();
        for linear in 0..lens.iter().product::<i64>() {
            let mut rest = linear;
            let mut at = vec![0i64; lens.len()];
            for d in (0..lens.len()).rev() {
                at[d] = rest % lens[d];
                rest /= lens[d];
            }
            let mut inside = true;
            for (d, dim) in view.dims.iter().enumerate() {
                if let Role::Axis(a) = dim.role {
                    let axis = &g.axes[a];
                    at[d] = start[a].at + at[d] * view.cuts[a].stride + if a == 0 { g.placements[0].offset } else { 0 };
                    let (from, to) = axis.segment(start[a].segment);
                    inside &= from <= at[d] && at[d] < to;
                    if edge {
                        at[d] = at[d].clamp(from, to - 1);
                    }
                }
            }
            mask.push(inside);
            out.push(if inside || edge {
                let stored = |d: usize, store| view.dims[d].picked(store).map_or(at[d], |p| p[at[d] as usize] as i64);
                let store = starts.partition_point(|&start| start <= stored(0, 0) as u64) - 1;
                (0..at.len()).fold(0, |n, d| n * shape[d] as i64 + stored(d, store))
            } else {
                PAD
            });
        }
    }
    (out, mask)
}

/// Returns the elements of samples, whose dimensions are those of the array, in the order of dimensions `order`.
fn in_order(g: &Geometry, order: &[usize], elements: &[i64]) -> Vec<i64> {
    let view = &g.views[0];
    let len = |d: usize| match view.dims[d].role {
        Role::Axis(a) => view.cuts[a].window as usize,
        _ => view.dims[d].len as usize,
    };
    let lens: Vec<usize> = (0..view.dims.len()).map(len).collect();
    let order: Vec<usize> = order.iter().copied().filter(|&d| d < lens.len()).collect();
    let of_sample = |sample: &[i64]| {
        let one = |linear: usize| {
            let (mut rest, mut at) = (linear, vec![0; lens.len()]);
            for &d in order.iter().rev() {
                at[d] = rest % lens[d];
                rest /= lens[d];
            }
            sample[at.iter().zip(&lens).fold(0, |n, (i, len)| n * len + i)]
        };
        (0..sample.len()).map(one).collect::<Vec<_>>()
    };
    elements.chunks(lens.iter().product()).flat_map(of_sample).collect()
}

fn grid(len: u64, chunk: u64, irregular: bool) -> DimGrid {
    if irregular {
        let mut starts: Vec<u64> = (0..len).filter(|i| i % chunk == 0 || i % 5 == 3).collect();
        starts.push(len);
        let mut lengths = ChunkLengths::default();
        assert!(starts.windows(2).all(|pair| lengths.push(pair[1] - pair[0], 1)));
        DimGrid::Irregular(lengths)
    } else {
        DimGrid::Regular { chunk, count: len.div_ceil(chunk) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn plans_place_every_element(
        lens in prop::collection::vec(1u64..9, 1..5),
        second in prop::option::of(1u64..6),
        chunks in prop::collection::vec(1u64..6, 10),
        flags in any::<u32>(),
        windows in prop::collection::vec((0i64..4, 1i64..4, 1i64..3), 5),
        offset in -2i64..3,
        pick in prop::option::of(prop::collection::vec(any::<[prop::sample::Index; 2]>(), 1..6)),
        axes in 0usize..4,
        breaks in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        edge: bool,
        pads in prop::option::of(prop::collection::vec(any::<[prop::sample::Index; 2]>(), 5)),
        order in Just((0..5usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let rank = lens.len();
        let name = |d: usize| format!("d{d}");
        let mut shape = lens.clone();
        let mut parts = vec![lens.clone()];
        if let Some(n) = second {
            shape[0] += n;
            parts.push([&[n], &lens[1..]].concat());
        }
        let axes = axes.min(rank - 1);
        let array = ArrayShape { name: "a".into(), output: "a".into(), dims: (0..rank).map(name).collect(), parts: parts.clone(), values: DType::I64, unclear: None, aligned: None, places: Vec::new(), stored: "float32".into(), complex_fill_parts_differ: false, ragged: None };
        let pick_dim = (flags >> 8) as usize % rank;
        let picked = pick.as_ref().filter(|_| pick_dim == 0);
        let first_len = picked.map_or(shape[0] as usize, |p| p.len());
        let spec = Spec::default().with(|s| { s.source.paths = vec!["p".into(), "q".into()]; s.samples.dims = (0..=axes).map(|d| DimKey::Name(name(d))).collect(); s.samples.window = windows[..=axes].iter().map(|w| w.0).collect(); s.samples.stride = windows[..=axes].iter().map(|w| w.2).collect(); s.samples.offsets = vec![offset]; s.samples.step = windows[..=axes].iter().enumerate().map(|(d, w)| if flags >> (16 + d) & 1 == 1 { 0 } else { w.1 }).collect(); s.samples.random_crop = (0..=axes).filter(|d| flags >> (16 + d) & 1 == 1).map(|d| DimKey::Name(name(d))).collect(); s.samples.breaks = if first_len > 1 { breaks.iter().map(|b| b.index(first_len - 1) as i64 + 1).collect() } else { vec![] }.into(); s.samples.cross_stores = flags >> 10 & 1 == 1; s.samples.out_of_bounds_policy = if edge { OutOfBounds::Edge } else { OutOfBounds::Pad }; s.samples.return_mask = true; s.samples.transpose = OutputDims::All(order.iter().filter(|&&d| d < rank).map(|&d| DimKey::Name(name(d))).collect()); let pad = |side: usize| pads.iter().flat_map(|pads| (0..=axes).map(|d| pads[d][side].index(((windows[d].0.max(1) - 1) * windows[d].2 + 1) as usize) as i64).collect::<Vec<_>>()).collect(); s.samples.pad_before = pad(0); s.samples.pad_after = pad(1); s.source.pick = pick.iter().map(|p| {
                let list = |store: usize| p.iter().map(|i| i[store].index(shape[pick_dim] as usize) as i64).collect();
                let own = second.is_some() && pick_dim > 0 && flags >> 11 & 1 == 1;
                Pick { output: None, dim: DimKey::Name(name(pick_dim)), indices: (0..if own { 2 } else { 1 }).map(list).collect() }
            }).collect(); });
        let geometry = Geometry::new(&spec, &[array]);
        // It is possible that no segment is long enough.
        prop_assume!(geometry.is_ok() || pads.is_none());
        let geometry = geometry.unwrap();
        let grids = parts.iter().enumerate().map(|(p, part)| PartGrid {
            dims: part.iter().enumerate().map(|(d, &n)| grid(n, chunks[p * 5 + d], flags >> d & 1 == 1)).collect(),
            order: if flags >> 9 & 1 == 1 { (0..rank).rev().collect() } else { (0..rank).collect() },
            swap: false,
        }).collect();
        let planner = Planner::new(vec![geometry], vec![ArrayGrids { chunks_of: 0, element: 8, parts: grids }]);
        let n = planner.geometry().samples;
        let samples = [0, n - 1, n / 2, n / 3].map(|index| Sample::new(u64::from(flags), index));
        let plan = planner.plan(&samples);
        let starts = &[0, lens[0]][..parts.len()];
        let (expected, inside) = expected(planner.geometry(), &samples, starts, &shape, edge);
        prop_assert_eq!(run(&planner, &plan, starts, &shape, 4), in_order(planner.geometry(), &order, &expected));
        prop_assert!(!edge || plan.pads.iter().all(|job| job.output == 1), "all elements are of chunks");
        // The mask lacks the dimensions that are read whole, and those without a window.
        let whole: usize = shape[axes + 1..].iter().zip(axes + 1..).map(|(&n, d)| pick.as_ref().filter(|_| d == pick_dim).map_or(n as usize, Vec::len)).product();
        let inside: Vec<bool> = inside.into_iter().step_by(whole).collect();
        prop_assert_eq!(run_mask(&planner, &plan, 4), inside);
        let mut seen = plan.uses.iter().map(|u| u.chunk).collect::<Vec<_>>();
        seen.sort();
        seen.dedup();
        prop_assert_eq!(seen.len(), plan.uses.len(), "each chunk once");
    }
}

/// The jobs of a sample that is one chunk, normalised along the dimension of length 3.
fn jobs_of_channels(lens: [u64; 3]) -> Vec<Job> {
    let array = ArrayShape {
        output: "a".into(),
        name: "a".into(),
        dims: ["t", "a", "b", "c"].map(Into::into).to_vec(),
        parts: vec![[&[9], &lens[..]].concat()],
        values: DType::U8,
        unclear: None,
        aligned: None,
        places: Vec::new(),
        stored: "float32".into(),
        complex_fill_parts_differ: false,
        ragged: None,
    };
    let spec = Spec::default().with(|s| s.values.mean = vec![1.0, 2.0, 3.0].into());
    let geometry = Geometry::new(&spec, &[array]).unwrap();
    let dims = std::iter::once(grid(9, 1, false)).chain(lens.map(|n| grid(n, n, false))).collect();
    let part = PartGrid { dims, order: vec![0, 1, 2, 3], swap: false };
    let planner = Planner::new(vec![geometry], vec![ArrayGrids { chunks_of: 0, element: 1, parts: vec![part] }]);
    planner.plan(&[Sample::new(0, 4)]).jobs
}

#[test]
fn channels_have_boxes_of_their_own_where_these_are_large() {
    let apart = jobs_of_channels([3, 40, 50]);
    assert_eq!(
        apart.iter().map(|job| (job.op, job.src, job.extent[0])).collect::<Vec<_>>(),
        [(0, 0, 2000), (2, 2000, 2000), (4, 4000, 2000)],
        "each norm has two operations"
    );
    for (lens, extents, dim) in [([40, 50, 3], [2000, 3], 1), ([3, 20, 10], [3, 200], 0)] {
        let [job] = jobs_of_channels(lens)[..] else { panic!("one job for all channels") };
        assert_eq!((job.op, job.ndim, &job.extent[..2]), (8, 2, &extents[..]), "behind three norms and the mask");
        assert_eq!(job.channels(), (dim, 0, 1));
    }
}

#[test]
fn a_field_in_one_chunk_is_one_contiguous_job() {
    let array = ArrayShape {
        output: "a".into(),
        name: "t2m".into(),
        dims: ["time", "lat", "lon"].map(Into::into).to_vec(),
        parts: vec![vec![100, 721, 1440]],
        values: DType::F32,
        unclear: None,
        aligned: None,
        places: Vec::new(),
        stored: "float32".into(),
        complex_fill_parts_differ: false,
        ragged: None,
    };
    let geometry = Geometry::new(&Spec::default(), &[array]).unwrap();
    let dims = [(100, 1), (721, 721), (1440, 1440)].map(|(n, c)| grid(n, c, false)).into();
    let part = PartGrid { dims, order: vec![0, 1, 2], swap: false };
    let planner = Planner::new(vec![geometry], vec![ArrayGrids { chunks_of: 0, element: 4, parts: vec![part] }]);
    let plan = planner.plan(&[7, 3, 7].map(|index| Sample::new(0, index)));
    assert_eq!(plan.uses.len(), 2, "the repeated sample shares its chunk");
    assert_eq!(plan.jobs.len(), 3);
    assert!(plan.jobs.iter().all(|j| j.ndim == 1 && j.extent[0] == 721 * 1440));
}

#[test]
fn chunks_in_a_row_lie_together_in_a_map_and_others_apart() {
    let hash = |array, index| {
        let id = ChunkId { array, part: 0, index };
        BuildHasherDefault::<IdHasher>::default().hash_one(id)
    };
    // What a map of 4096 places takes from a hash: a place, and bits that tell entries of near places apart.
    let (place, tag) = (|hash: u64| hash % 4096, |hash: u64| hash >> 57);
    let (first, row) = (hash(1, 32), (33..48).map(|index| hash(1, index)));
    assert!(row.zip(1..).all(|(hash, i)| place(hash) == place(first) + i && tag(hash) != tag(first)));
    let different = |ids: &dyn Fn(u64) -> u64| (0..1000).map(|i| place(ids(i))).collect::<HashSet<_>>().len();
    for log in [4, 10, 20, 40] {
        assert!(different(&|i| hash(0, i << log)) > 200, "of 256 rows, at distances of 2^{log}");
    }
    assert!(different(&|i| hash(i as u16, 7)) > 200, "arrays");
}

#[test]
fn a_dimension_of_more_chunks_than_could_be_listed_is_planned() {
    const MANY: u64 = 1 << 40;
    let mut lengths = ChunkLengths::default();
    assert!(lengths.push(2, MANY) && lengths.push(1, 1) && lengths.push(3, 2));
    let len = lengths.end();
    let array = ArrayShape {
        output: "a".into(),
        name: "a".into(),
        dims: vec!["t".into()],
        parts: vec![vec![len]],
        values: DType::U8,
        unclear: None,
        aligned: None,
        places: Vec::new(),
        stored: "float32".into(),
        complex_fill_parts_differ: false,
        ragged: None,
    };
    let spec = Spec::default().with(|s| (s.samples.window, s.samples.step) = (vec![4].into(), vec![1].into()));
    let geometry = Geometry::new(&spec, &[array]).unwrap();
    let part = PartGrid { dims: vec![DimGrid::Irregular(lengths)], order: vec![0], swap: false };
    let planner = Planner::new(vec![geometry], vec![ArrayGrids { chunks_of: 0, element: 1, parts: vec![part] }]);
    assert_eq!(planner.samples(), len - 3);
    // The sample's elements are the last one of a chunk of two, a chunk of one, and two of a chunk of three.
    let plan = planner.plan(&[Sample::new(0, 2 * MANY - 1)]);
    let uses: Vec<_> = plan.uses.iter().map(|used| (used.chunk.index, planner.chunk_elements(used.chunk))).collect();
    assert_eq!(uses, [(MANY - 1, 2), (MANY, 1), (MANY + 1, 3)]);
    let jobs: Vec<_> = plan.jobs.iter().map(|job| (job.src, job.dst, job.extent[0])).collect();
    assert_eq!(jobs, [(1, 0, 1), (0, 1, 1), (0, 2, 2)]);
    // Samples that start in one chunk are a block.
    let blocks = planner.blocks(1024, None).unwrap();
    assert_eq!((blocks.samples(), blocks.count()), (len - 3, MANY + 2));
}
