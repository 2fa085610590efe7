//! Cuts one dimension of one sample at chunk borders.

use smallvec::SmallVec;

use crate::dataset::DimGrid;

/// A run: elements of a sample along one dimension that lie in one chunk at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkRun {
    /// Index of the chunk along the dimension.
    pub chunk: u64,
    /// Number of the first element in the sample.
    pub k: i64,
    /// Number of elements.
    pub n: u32,
    /// Position of the first element in the chunk.
    pub pos: i64,
    /// Distance between neighbouring elements in the chunk. It may be zero (a repeated element) or negative (where
    /// `pick` says so).
    pub step: i64,
    /// Index of the first element in the dimension as samples see it, with picks applied, and the distance to the next
    /// element there.
    pub at: (i64, i64),
}

/// The runs of a sample along one dimension. Most samples have few.
pub(super) type ChunkRuns = SmallVec<[ChunkRun; 2]>;

/// Extents are 32 bits wide in the kernels; longer runs are cut.
const MAX_EXTENT: u32 = 1 << 30;

/// Returns the runs of the elements `ks` of a sample. Element `k` is at `start + k * stride` along the dimension. The
/// first element of `grid` has the joined index `origin`, which counts over all joined stores. All elements must lie in
/// this grid. With `pick`, the dimension consists of the elements with these joined indices.
pub(super) fn chunk_runs(
    pick: Option<&[u64]>,
    start: i64,
    stride: i64,
    ks: std::ops::Range<i64>,
    grid: &DimGrid,
    origin: u64,
) -> ChunkRuns {
    let mut runs = match pick {
        Some(pick) => picked(ks.map(|k| (k, pick[(start + k * stride) as usize] - origin)), grid),
        None => regular(start - origin as i64, stride, ks, grid),
    };
    runs.iter_mut().for_each(|run| run.at = (start + run.k * stride, stride));
    runs
}

/// Cuts elements at equal distances into runs at chunk borders. The borders are computed, so the cost is per chunk and
/// not per element.
fn regular(start: i64, stride: i64, ks: std::ops::Range<i64>, grid: &DimGrid) -> ChunkRuns {
    let mut out = ChunkRuns::new();
    let mut k = ks.start;
    while k < ks.end {
        let at = start + k * stride;
        let chunk = grid.chunk_at(at as u64);
        let (first, len) = (grid.start(chunk) as i64, grid.len(chunk) as i64);
        // If the distance is 0, all are the same element.
        let fits = if stride == 0 { ks.end - k } else { (first + len - 1 - at) / stride + 1 };
        let n = fits.min(ks.end - k).min(i64::from(MAX_EXTENT));
        out.push(ChunkRun { chunk, k, n: n as u32, pos: at - first, step: stride, at: (0, 0) });
        k += n;
    }
    out
}

/// Joins elements at arbitrary positions to runs, greedily.
fn picked(positions: impl Iterator<Item = (i64, u64)>, grid: &DimGrid) -> ChunkRuns {
    let mut out = ChunkRuns::new();
    for (k, at) in positions {
        let chunk = grid.chunk_at(at);
        let pos = (at - grid.start(chunk)) as i64;
        if let Some(last) = out.last_mut()
            && last.chunk == chunk
            && last.n < MAX_EXTENT
            && (last.n == 1 || pos == last.pos + last.step * i64::from(last.n))
        {
            if last.n == 1 {
                last.step = pos - last.pos;
            }
            last.n += 1;
            continue;
        }
        out.push(ChunkRun { chunk, k, n: 1, pos, step: 1, at: (0, 0) });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::ChunkLengths;

    fn positions(s: &[ChunkRun], grid: &DimGrid) -> Vec<(i64, i64)> {
        s.iter()
            .flat_map(|s| (0..i64::from(s.n)).map(move |i| (s.k + i, grid.start(s.chunk) as i64 + s.pos + i * s.step)))
            .collect()
    }

    #[test]
    fn regular_runs_cover_each_element_once() {
        let mut lengths = ChunkLengths::default();
        assert!([1, 29, 1, 69].into_iter().all(|len| lengths.push(len, 1)));
        let grids = [DimGrid::Regular { chunk: 7, count: 15 }, DimGrid::Irregular(lengths)];
        for grid in &grids {
            for (start, stride, n) in [(0, 1, 100), (3, 2, 40), (5, 30, 4), (99, 1, 1), (0, 99, 2)] {
                let got = positions(&chunk_runs(None, start, stride, 0..n, grid, 0), grid);
                assert_eq!(got, (0..n).map(|k| (k, start + k * stride)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn picks_keep_their_order() {
        let grid = DimGrid::Regular { chunk: 10, count: 10 };
        for pick in [vec![5, 3, 1, 12, 12, 12, 99, 0, 4, 8], vec![7], vec![0, 1, 2, 3, 40, 41]] {
            let n = pick.len() as i64;
            let got = positions(&chunk_runs(Some(&pick), 0, 1, 0..n, &grid, 0), &grid);
            assert_eq!(got, pick.iter().enumerate().map(|(k, &p)| (k as i64, p as i64)).collect::<Vec<_>>());
        }
        let runs = chunk_runs(Some(&[5, 3, 1]), 0, 1, 0..3, &grid, 0);
        assert_eq!(runs[..], [ChunkRun { chunk: 0, k: 0, n: 3, pos: 5, step: -2, at: (0, 1) }]);
    }
}
