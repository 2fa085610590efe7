//! Chunk grids: where chunks begin and end along each dimension.
//!
//! Specifications: Zarr v3 core (`regular`), zarr-extensions (`rectilinear`), and zarrs' `rectangular` and
//! `regular_bounded`. zarr-python 3.2 wrote rectilinear grids as `regular` if only some dimensions had lists of chunk
//! lengths. All of them are products of one grid per dimension.

use serde_json::Value;

use super::lengths::ChunkLengths;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;

/// Limit on runs of chunks of one length. At the limit they take 256 MB.
const MAX_RUNS: usize = 1 << 24;

/// The chunks along one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimGrid {
    /// All chunks have the same length. The last one may reach beyond the array.
    Regular {
        /// Elements in a chunk, at least 1.
        chunk: u64,
        /// Number of chunks.
        count: u64,
    },
    /// Chunks of several lengths.
    Irregular(ChunkLengths),
}

impl DimGrid {
    /// Makes a grid of chunks of `chunk` elements that covers `extent` elements.
    pub fn regular(chunk: u64, extent: u64) -> Self {
        Self::Regular { chunk, count: extent.div_ceil(chunk) }
    }

    /// Returns the number of chunks.
    pub fn count(&self) -> u64 {
        match self {
            Self::Regular { count, .. } => *count,
            Self::Irregular(lengths) => lengths.count(),
        }
    }

    /// Returns the most chunks that `span` neighbouring elements can lie in.
    pub fn most_within(&self, span: u64) -> u64 {
        match self {
            _ if span == 0 => 0,
            Self::Regular { chunk, count } => (span - 1).div_ceil(*chunk).saturating_add(1).min(*count),
            Self::Irregular(lengths) => lengths.most_within(span),
        }
    }

    /// Returns the chunk of the element at `position`, which must lie in the array.
    pub fn chunk_at(&self, position: u64) -> u64 {
        match self {
            Self::Regular { chunk, .. } => position / chunk,
            Self::Irregular(lengths) => lengths.chunk_at(position),
        }
    }

    /// Returns the first element of the chunk `index`, which must be less than [`Self::count`].
    pub fn start(&self, index: u64) -> u64 {
        match self {
            Self::Regular { chunk, .. } => index * chunk,
            Self::Irregular(lengths) => lengths.start(index),
        }
    }

    /// Returns the encoded extent of the chunk `index` in elements. The chunk may reach beyond the array.
    pub fn len(&self, index: u64) -> u64 {
        match self {
            Self::Regular { chunk, .. } => *chunk,
            Self::Irregular(lengths) => lengths.len(index),
        }
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the largest encoded extent in elements, at least 1.
    pub fn longest(&self) -> u64 {
        match self {
            Self::Regular { chunk, .. } => *chunk,
            Self::Irregular(lengths) => lengths.longest(),
        }
    }
}

/// Reads a regular grid: one chunk length per dimension, as in v2's `chunks` and v3's `chunk_shape`.
pub(super) fn regular(chunks: &Value, shape: &[u64]) -> Result<Vec<DimGrid>> {
    chunk_shape(chunks, shape.len())
        .map(|chunks| chunks.iter().zip(shape).map(|(&chunk, &extent)| DimGrid::regular(chunk, extent)).collect())
}

/// Reads a list with one positive length for each of `ndim` dimensions.
pub(super) fn chunk_shape(value: &Value, ndim: usize) -> Result<Vec<u64>> {
    let lengths: Option<Vec<u64>> =
        value.as_array().and_then(|list| list.iter().map(|v| v.as_u64().filter(|&c| c > 0)).collect());
    lengths.filter(|lengths| lengths.len() == ndim && lengths.iter().all(|&c| c <= i64::MAX as u64)).ok_or_else(|| {
        Error::value(format!("chunk shape: expected {ndim} whole numbers above 0, but found {}", shown(value)))
    })
}

/// Reads `chunk_grid` of v3 metadata.
pub(super) fn parse_v3(value: &Value, shape: &[u64]) -> Result<Vec<DimGrid>> {
    let wrong = |reason: &str| Error::value(format!("chunk_grid: expected {reason}, but found {}", shown(value)));
    let name = value.get("name").and_then(Value::as_str).ok_or_else(|| wrong("an object with a name"))?;
    let field = |key: &str| value.get("configuration").and_then(|c| c.get(key)).unwrap_or(&Value::Null);
    match name {
        "regular" => match field("chunk_shape").as_array() {
            Some(entries) if entries.len() == shape.len() && entries.iter().any(Value::is_array) => {
                entries.iter().zip(shape).map(|(entry, &extent)| mixed(entry, extent)).collect()
            }
            _ => regular(field("chunk_shape"), shape),
        },
        "zarrs.regular_bounded" | "regular_bounded" => {
            let chunks = chunk_shape(field("chunk_shape"), shape.len())?;
            Ok(chunks.iter().zip(shape).map(|(&chunk, &extent)| bounded(chunk, extent)).collect())
        }
        "rectilinear" | "rectangular" => {
            let key = if name == "rectilinear" { "chunk_shapes" } else { "chunk_shape" };
            let lists = field(key).as_array().filter(|lists| lists.len() == shape.len());
            let lists = lists.ok_or_else(|| wrong("one list of chunk lengths for each dimension"))?;
            lists.iter().zip(shape).map(|(list, &extent)| listed(list, extent)).collect()
        }
        _ => Err(wrong("the grid \"regular\", \"rectilinear\" or \"rectangular\"")),
    }
}

/// Makes a regular grid with a shorter last chunk that ends with the array.
fn bounded(chunk: u64, extent: u64) -> DimGrid {
    let mut lengths = ChunkLengths::default();
    let fits = lengths.push(chunk, extent / chunk) && lengths.push(extent % chunk, 1);
    // Without a shorter chunk, or with an extent that no array has, the grid is a regular one.
    if extent.is_multiple_of(chunk) || !fits { DimGrid::regular(chunk, extent) } else { DimGrid::Irregular(lengths) }
}

/// Reads the chunks along one dimension of a grid that zarr-python 3.2 wrote as `regular`: a number, or a list of
/// lengths, never of pairs.
fn mixed(value: &Value, extent: u64) -> Result<DimGrid> {
    match value.as_array().is_some_and(|list| list.is_empty() || list.iter().any(Value::is_array)) {
        false => listed(value, extent),
        true => Err(Error::value(format!(
            "chunk_grid: expected a chunk length, or a list of them, for each dimension, but found {}",
            shown(value)
        ))),
    }
}

/// Reads the chunks along one dimension: a number (the length of all chunks), or a list of lengths and of pairs
/// (length, how often).
fn listed(value: &Value, extent: u64) -> Result<DimGrid> {
    listed_in_runs(value, extent, MAX_RUNS)
}

/// As [`listed`], with a limit on the runs of chunks of one length.
fn listed_in_runs(value: &Value, extent: u64, most: usize) -> Result<DimGrid> {
    let wrong = |found: String| {
        Error::value(format!(
            "chunk_grid: expected chunk lengths above 0 that cover the {extent} elements of their dimension, but \
             found {found}"
        ))
    };
    let length = |v: &Value| v.as_u64().filter(|&l| l > 0 && l <= i64::MAX as u64).ok_or_else(|| wrong(shown(v)));
    let Some(list) = value.as_array() else { return Ok(DimGrid::regular(length(value)?, extent)) };
    let mut lengths = ChunkLengths::default();
    for entry in list {
        let (len, times) = match entry.as_array().map(Vec::as_slice) {
            None => (length(entry)?, 1),
            Some([len, times]) => (length(len)?, length(times)?),
            Some(_) => return Err(wrong(shown(entry))),
        };
        if !lengths.push(len, times) {
            return Err(wrong(shown(value)));
        }
        if lengths.runs() > most {
            return Err(Error::value(format!(
                "chunk_grid: expected at most {most} runs of chunks of one length along a dimension, but found more; \
                 write chunks of one length"
            )));
        }
    }
    if lengths.end() < extent {
        return Err(wrong(format!("lengths that cover {}", lengths.end())));
    }
    // Chunks that lie outside the array are never read.
    lengths.truncate(extent);
    Ok(DimGrid::Irregular(lengths))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Makes a grid of these lengths, each with its number of chunks.
    fn irregular(list: &[(u64, u64)]) -> DimGrid {
        let mut lengths = ChunkLengths::default();
        assert!(list.iter().all(|&(len, count)| lengths.push(len, count)));
        DimGrid::Irregular(lengths)
    }

    /// Grids of more chunks than could be listed take the memory of their runs, whatever a document claims.
    #[test]
    fn dimensions_of_many_chunks() {
        const MANY: u64 = 1 << 40;
        let bounded =
            parse_v3(&json!({"name": "regular_bounded", "configuration": {"chunk_shape": [2]}}), &[2 * MANY + 1])
                .unwrap();
        assert_eq!(bounded[0], irregular(&[(2, MANY), (1, 1)]));
        assert_eq!((bounded[0].count(), bounded[0].start(MANY), bounded[0].len(MANY)), (MANY + 1, 2 * MANY, 1));
        let chunks = json!([[[24, 20_000_000], 17, [24, 20_000_000]]]);
        let listed =
            parse_v3(&json!({"name": "rectilinear", "configuration": {"chunk_shapes": chunks}}), &[900_000_000]);
        let grid = &listed.unwrap()[0];
        // 480,000,017 elements come before the last run, and 900,000,000 - 480,000,017 begin 17,500,000 chunks in it.
        assert_eq!((grid.count(), grid.longest()), (20_000_001 + 17_500_000, 24));
        assert_eq!((grid.chunk_at(480_000_016), grid.chunk_at(480_000_017)), (20_000_000, 20_000_001));
        assert_eq!((grid.start(20_000_001), grid.len(20_000_000), grid.len(37_500_000)), (480_000_017, 17, 24));
        let most =
            parse_v3(&json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[[1, 1u64 << 62]]]}}), &[5]);
        assert_eq!(most.unwrap()[0], irregular(&[(1, 5)]), "chunks outside the array are dropped");
        let alternating = json!([[1, 9], 2, 2, 1, 2, 2]);
        assert_eq!(listed_in_runs(&alternating, 18, 4).unwrap().count(), 14);
        let error = listed_in_runs(&alternating, 18, 3).unwrap_err();
        assert!(error.message().contains("expected at most 3 runs of chunks of one length"), "{error}");
    }

    #[test]
    fn grids_by_hand() {
        let grid = parse_v3(
            &json!({"name": "rectilinear", "configuration": {"kind": "inline",
            "chunk_shapes": [[[5, 3], 2, 4], 10]}}),
            &[18, 25],
        )
        .unwrap();
        assert_eq!(grid[0], irregular(&[(5, 3), (2, 1), (4, 1)]));
        assert_eq!(grid[1], DimGrid::Regular { chunk: 10, count: 3 });
        assert_eq!((grid[0].chunk_at(16), grid[0].len(4), grid[0].longest()), (3, 4, 5));
        assert_eq!([1, 2, 3, 4, 5, 18].map(|span| grid[0].most_within(span)), [1, 2, 2, 3, 3, 5]);
        assert_eq!([1, 2, 11, 12, 25, u64::MAX].map(|span| grid[1].most_within(span)), [1, 2, 2, 3, 3, 3]);
        let bounded = parse_v3(&json!({"name": "zarrs.regular_bounded", "configuration": {"chunk_shape": [4]}}), &[10]);
        assert_eq!(bounded.unwrap()[0], irregular(&[(4, 2), (2, 1)]));
        let mixed = json!({"name": "regular", "configuration": {"chunk_shape": [2, [5, 10, 5]]}});
        let mixed = parse_v3(&mixed, &[6, 20]).unwrap();
        assert_eq!(mixed, [DimGrid::regular(2, 6), irregular(&[(5, 1), (10, 1), (5, 1)])]);
        assert_eq!(regular(&json!([4]), &[0]).unwrap()[0].count(), 0);
        assert_eq!(listed(&json!([3, 3]), 0).unwrap().count(), 0);
        assert_eq!(listed(&json!([3, 3, 3]), 6).unwrap().count(), 2, "chunks outside the array are dropped");
    }

    #[test]
    fn absurd_grids() {
        for (value, shape) in [
            (json!({"name": "regular", "configuration": {"chunk_shape": [0]}}), vec![1]),
            (json!({"name": "regular", "configuration": {"chunk_shape": [-1]}}), vec![1]),
            (json!({"name": "regular", "configuration": {"chunk_shape": [1, 1]}}), vec![1]),
            (json!({"name": "regular", "configuration": {"chunk_shape": [[1, 1], 1]}}), vec![2]),
            (json!({"name": "regular", "configuration": {"chunk_shape": [[1, 1], 0]}}), vec![2, 1]),
            (json!({"name": "regular", "configuration": {"chunk_shape": [[]]}}), vec![0]),
            (json!({"name": "regular", "configuration": {"chunk_shape": [[[1, 2]]]}}), vec![2]),
            (json!({"name": "regular", "configuration": {"chunk_shape": [[1, 2]]}}), vec![4]),
            (json!({"name": "regular"}), vec![1]),
            (json!({"name": "spiral"}), vec![1]),
            (json!("regular"), vec![1]),
            (
                json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[[1, 1u64 << 62], [2, 1u64 << 62]]]}}),
                vec![5],
            ),
            (json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[[1u64 << 62, 3]]]}}), vec![5]),
            (json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[1, 0]]}}), vec![1]),
            (json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[2]]}}), vec![3]),
        ] {
            assert!(parse_v3(&value, &shape).is_err(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn every_element_lies_in_its_chunk(lengths in prop::collection::vec(1u64..9, 1..20), cut in 0u64..9) {
            let total: u64 = lengths.iter().sum();
            let extent = total.saturating_sub(cut).max(1);
            for grid in [listed(&json!(lengths), extent).unwrap(), DimGrid::regular(lengths[0], extent),
                         bounded(lengths[0], extent)] {
                for position in 0..extent {
                    let i = grid.chunk_at(position);
                    prop_assert!(i < grid.count());
                    prop_assert!(grid.start(i) <= position && position < grid.start(i) + grid.len(i));
                    prop_assert!(grid.len(i) <= grid.longest());
                }
                prop_assert!(grid.start(grid.count() - 1) < extent);
            }
        }
    }
}
