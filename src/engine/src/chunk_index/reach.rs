//! Which chunks an epoch can read at all.

use dali_zarr_base::memory::arena::rounded;
use dali_zarr_samples::dataset::{ArrayInfo, ArrayPart, Dataset};
use dali_zarr_samples::geometry::Role;
use dali_zarr_samples::plan::Planner;

/// Returns for each store how many chunks of an array samples may touch. Along each dimension these are the chunks from
/// the first to the last that any sample needs, in whichever of the `num_shards` shards of the epoch the sample is.
pub(crate) fn chunks_in_reach(dataset: &Dataset, planner: &Planner, array: usize) -> Vec<u64> {
    let is_joined = planner.geometries().count() == 1;
    let part = |(store, part): (usize, &ArrayPart)| {
        let geometry = planner.geometry_of(store);
        let view = &geometry.views[array];
        // The number of the store among those of its geometry.
        let p = if is_joined { store } else { 0 };
        view.dims.iter().enumerate().zip(&part.grid).fold(1u64, |n, ((d, dim), grid)| {
            // Elements of the joined, picked dimension that samples touch.
            let (from, to) = match dim.role {
                Role::Whole | Role::Ragged => (0, dim.len),
                Role::Axis(a) => {
                    let (from, to) = view.cuts[a].within(geometry.axes[a].region());
                    (from.max(0) as u64, dim.len.min(to.max(0) as u64))
                }
            };
            // The joined indices that lie in this store.
            let (first, end) = match &view.joined {
                Some((joined, starts)) if *joined == d => (starts[p], starts[p + 1]),
                _ => (0, u64::MAX),
            };
            let count = match dim.picked(p) {
                Some(pick) => {
                    let touched = pick.iter().take(to as usize).skip(from as usize);
                    let here = touched.filter(|&&i| first <= i && i < end);
                    here.map(|&i| grid.chunk_at(i - first)).collect::<std::collections::BTreeSet<_>>().len() as u64
                }
                None => match (from.max(first), to.min(end)) {
                    (from, to) if from >= to => 0,
                    (from, to) => grid.chunk_at(to - 1 - first) - grid.chunk_at(from - first) + 1,
                },
            };
            n.saturating_mul(count)
        })
    };
    dataset.arrays[array].parts.iter().enumerate().map(part).collect()
}

/// Returns the bytes of all decoded chunks that samples may touch, as they lie in memory, and `more` for each chunk.
pub(crate) fn bytes_in_reach(dataset: &Dataset, planner: &Planner, more: u128) -> u128 {
    let of_array = |(a, array): (usize, &ArrayInfo)| {
        let chunks = chunks_in_reach(dataset, planner, a);
        let bytes = chunks
            .iter()
            .zip(&array.parts)
            .map(|(&n, part)| u128::from(n) * (rounded(part.largest_bytes) as u128 + more));
        if planner.chunks_of(a) == a { bytes.sum() } else { 0 }
    };
    dataset.arrays.iter().enumerate().map(of_array).sum()
}
