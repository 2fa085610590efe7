//! Chunk grids: where chunks begin and end along each dimension.
//!
//! Specifications: Zarr v3 core (`regular`), zarr-extensions (`rectilinear`), and zarrs' `rectangular` and
//! `regular_bounded`. zarr-python 3.2 wrote rectilinear grids as `regular` if only some dimensions had lists of chunk
//! lengths. All of them are products of one grid per dimension.

use serde_json::Value;

use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;

/// Limit on chunk boundaries that are kept in a list. At the limit the list takes 128 MB.
const MAX_LISTED: u64 = 1 << 24;

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
    /// Chunks of any length.
    Irregular {
        /// The start of each chunk, then the end of the last one. Strictly increasing.
        starts: Vec<u64>,
    },
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
            Self::Irregular { starts } => starts.len() as u64 - 1,
        }
    }

    /// Returns the most chunks that `span` neighbouring elements can lie in. `span` must be at least 1.
    pub fn most_within(&self, span: u64) -> u64 {
        match self {
            Self::Regular { chunk, count } => (span - 1).div_ceil(*chunk).saturating_add(1).min(*count),
            Self::Irregular { starts } => {
                let reached = |i: usize| {
                    starts[..starts.len() - 1].partition_point(|&s| s < (starts[i + 1] - 1).saturating_add(span)) - i
                };
                (0..starts.len() - 1).map(reached).max().unwrap_or(0) as u64
            }
        }
    }

    /// Returns the chunk of the element at `position`, which must lie in the array.
    pub fn chunk_at(&self, position: u64) -> u64 {
        match self {
            Self::Regular { chunk, .. } => position / chunk,
            Self::Irregular { starts } => starts.partition_point(|&start| start <= position) as u64 - 1,
        }
    }

    /// Returns the first element of the chunk `index`, which must be less than [`Self::count`].
    pub fn start(&self, index: u64) -> u64 {
        match self {
            Self::Regular { chunk, .. } => index * chunk,
            Self::Irregular { starts } => starts[index as usize],
        }
    }

    /// Returns the encoded extent of the chunk `index` in elements. The chunk may reach beyond the array.
    pub fn len(&self, index: u64) -> u64 {
        match self {
            Self::Regular { chunk, .. } => *chunk,
            Self::Irregular { starts } => starts[index as usize + 1] - starts[index as usize],
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
            Self::Irregular { starts } => starts.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(1),
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
            chunks.iter().zip(shape).map(|(&chunk, &extent)| bounded(chunk, extent)).collect()
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
fn bounded(chunk: u64, extent: u64) -> Result<DimGrid> {
    if extent.is_multiple_of(chunk) {
        return Ok(DimGrid::regular(chunk, extent));
    }
    let count = extent.div_ceil(chunk);
    too_many(count)?;
    let mut starts: Vec<u64> = (0..count).map(|i| i * chunk).collect();
    starts.push(extent);
    Ok(DimGrid::Irregular { starts })
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
    let wrong = |found: String| {
        Error::value(format!(
            "chunk_grid: expected chunk lengths above 0 that cover the {extent} elements of their dimension, but \
             found {found}"
        ))
    };
    let length = |v: &Value| v.as_u64().filter(|&l| l > 0 && l <= i64::MAX as u64).ok_or_else(|| wrong(shown(v)));
    let Some(list) = value.as_array() else { return Ok(DimGrid::regular(length(value)?, extent)) };
    let mut starts = vec![0u64];
    let mut end = 0u64;
    for entry in list {
        let (len, times) = match entry.as_array().map(Vec::as_slice) {
            None => (length(entry)?, 1),
            Some([len, times]) => (length(len)?, length(times)?),
            Some(_) => return Err(wrong(shown(entry))),
        };
        too_many((starts.len() as u64).saturating_add(times))?;
        for _ in 0..times {
            end = end.checked_add(len).filter(|&e| e <= i64::MAX as u64).ok_or_else(|| wrong(shown(value)))?;
            starts.push(end);
        }
    }
    if end < extent {
        return Err(wrong(format!("lengths that cover {end}")));
    }
    // Drop chunks that lie outside the array, which are never read.
    let used = starts.partition_point(|&start| start < extent).max(usize::from(extent == 0));
    starts.truncate(used + usize::from(extent > 0));
    Ok(DimGrid::Irregular { starts })
}

fn too_many(count: u64) -> Result<()> {
    if count <= MAX_LISTED {
        return Ok(());
    }
    Err(Error::value(format!(
        "chunk_grid: expected at most {MAX_LISTED} irregular chunks along a dimension, but found {count}"
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn grids_by_hand() {
        let grid = parse_v3(
            &json!({"name": "rectilinear", "configuration": {"kind": "inline",
            "chunk_shapes": [[[5, 3], 2, 4], 10]}}),
            &[18, 25],
        )
        .unwrap();
        assert_eq!(grid[0], DimGrid::Irregular { starts: vec![0, 5, 10, 15, 17, 21] });
        assert_eq!(grid[1], DimGrid::Regular { chunk: 10, count: 3 });
        assert_eq!((grid[0].chunk_at(16), grid[0].len(4), grid[0].longest()), (3, 4, 5));
        assert_eq!([1, 2, 3, 4, 5, 18].map(|span| grid[0].most_within(span)), [1, 2, 2, 3, 3, 5]);
        assert_eq!([1, 2, 11, 12, 25, u64::MAX].map(|span| grid[1].most_within(span)), [1, 2, 2, 3, 3, 3]);
        let bounded = parse_v3(&json!({"name": "zarrs.regular_bounded", "configuration": {"chunk_shape": [4]}}), &[10]);
        assert_eq!(bounded.unwrap()[0], DimGrid::Irregular { starts: vec![0, 4, 8, 10] });
        let mixed = json!({"name": "regular", "configuration": {"chunk_shape": [2, [5, 10, 5]]}});
        let mixed = parse_v3(&mixed, &[6, 20]).unwrap();
        assert_eq!(mixed, [DimGrid::regular(2, 6), DimGrid::Irregular { starts: vec![0, 5, 15, 20] }]);
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
            (json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[[1, 1u64 << 62]]]}}), vec![5]),
            (json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[[1u64 << 62, 3]]]}}), vec![5]),
            (json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[1, 0]]}}), vec![1]),
            (json!({"name": "rectilinear", "configuration": {"chunk_shapes": [[2]]}}), vec![3]),
            (json!({"name": "regular_bounded", "configuration": {"chunk_shape": [2]}}), vec![(1 << 40) + 1]),
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
                         bounded(lengths[0], extent).unwrap()] {
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
