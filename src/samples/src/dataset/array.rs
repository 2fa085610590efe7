//! Reads the metadata document of one array in one store. [`super::chunks`] reads what it says about chunks.

use std::sync::Arc;

use serde_json::{Map, Value};
use zarrs::array::ChunkKeyEncoding;

use super::cf::{self, Cf};
use super::chunks::{PARTS, chunks_v2, chunks_v3};
use super::grid::DimGrid;
use super::hierarchy::{Hierarchy, Node};
use super::names::DimNames;
use super::ome::Level;
use super::sharding::Sharding;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;
use dali_zarr_base::stored_type::{self, Fill, Stored};
use dali_zarr_codecs::ChunkFormat;

/// Limit on dimensions. NumPy allows 32 (64 since NumPy 2), and no format in use has more.
const MAX_DIMS: usize = 32;

/// The part of an array in one store.
#[derive(Debug)]
pub struct ArrayPart {
    /// Index into [`super::Dataset::stores`].
    pub store: usize,
    /// Elements along each dimension. Complex arrays have an additional last dimension for the two parts.
    pub shape: Vec<u64>,
    /// The grid of decoded chunks for each dimension. If shards are read by their index, these are inner chunks.
    pub grid: Vec<DimGrid>,
    /// Decoded bytes of the largest chunk of `grid`.
    pub largest_bytes: usize,
    /// How the chunks of `grid` are encoded.
    pub format: Arc<ChunkFormat>,
    /// The sharding, if shards are read by their index.
    pub sharding: Option<Sharding>,
    /// A text for people about values that mean missing but are delivered as stored, because `mask_and_scale` wasn't
    /// given. `None` if there are no such values.
    pub unmasked: Option<String>,
    /// The dates whose data are declared missing, see [`missing_dates`].
    pub missing_dates: Vec<String>,
    /// What OME-Zarr attributes say about it, if they were read.
    pub level: Option<Level>,
    /// The shape that the array has now, if it has grown since the host opened it first; `shape` is that of then.
    pub grown: Option<Vec<u64>>,
    keys: ChunkKeyEncoding,
    /// Number of dimensions in chunk keys. The additional dimension of complex arrays doesn't count.
    key_dims: usize,
    prefix: String,
    metadata_key: String,
}

impl ArrayPart {
    /// Returns the key of the chunk at `coords`, or of the shard at `coords` if [`Self::sharding`] is set.
    pub fn key(&self, coords: &[u64]) -> String {
        format!("{}{}", self.prefix, self.keys.encode(self.stored(coords)).as_str())
    }

    /// Returns how many objects with chunks or shards there are along each dimension of keys, if none is missing.
    pub fn objects(&self) -> Vec<u64> {
        let each = |i: usize| self.sharding.as_ref().map_or(1, |s| s.chunks_per_shard[i]);
        (0..self.key_dims).map(|i| self.grid[i].count().div_ceil(each(i))).collect()
    }

    /// Returns the stored coordinates of the chunk at `coords`: without the additional dimension of complex arrays.
    pub fn stored<'a>(&self, coords: &'a [u64]) -> &'a [u64] {
        &coords[..self.key_dims]
    }

    /// Returns the number of dimensions in the metadata. For complex arrays [`Self::shape`] has one more.
    pub(super) fn key_dims(&self) -> usize {
        self.key_dims
    }

    /// Returns the array's path in the store. Empty if the store is the array.
    pub fn path(&self) -> &str {
        self.prefix.trim_end_matches('/')
    }

    /// Whether the store is the array itself, and not a group with the array in it.
    pub fn is_root(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Returns the key of the array's metadata document. A missing chunk means the fill value only while this key
    /// exists. Otherwise the array was deleted.
    pub fn metadata_key(&self) -> &str {
        &self.metadata_key
    }

    /// Returns the largest chunk extent along each dimension.
    pub fn largest_chunk(&self) -> Vec<u64> {
        self.grid.iter().map(DimGrid::longest).collect()
    }
}

/// Whether an array with this path may have dates whose data are declared missing: anemoi-datasets writes fields to the
/// array `data`.
pub(super) fn may_miss_dates(path: &str) -> bool {
    path.trim_end_matches('/').rsplit('/').next() == Some("data")
}

/// Returns the dates whose data are declared missing: the attribute `missing_dates` of the array's group, as
/// anemoi-datasets writes it. Other attributes of that name have another meaning and are ignored.
pub(super) fn missing_dates(group: &Map<String, Value>) -> Vec<String> {
    let dates = group.get("missing_dates").and_then(Value::as_array);
    let dates = dates.and_then(|dates| dates.iter().map(|date| date.as_str().map(str::to_owned)).collect());
    dates.unwrap_or_default()
}

/// Everything that an array's metadata say.
pub(super) struct Described {
    pub part: ArrayPart,
    pub dims: DimNames,
    pub stored: Stored,
    pub fill: Fill,
    pub decoded: bool,
    pub cf: Cf,
    pub level: Option<Level>,
    /// Whether the dimensions have names, from the array or from its OME-Zarr level.
    pub named: bool,
    /// The Zarr version, 2 or 3.
    pub version: u8,
    /// See [`super::ArrayInfo::units`].
    pub units: Option<String>,
    /// See [`super::ArrayInfo::calendar`].
    pub calendar: Option<String>,
}

/// Reads the metadata of an array in store number `store`. `level` is the OME-Zarr level that a group's attributes give
/// it. `mask_and_scale` is that of the spec, `None` if it wasn't given.
pub(super) fn describe(
    node: Node,
    level: Option<Level>,
    store: usize,
    mask_and_scale: Option<bool>,
) -> Result<Described> {
    let Value::Object(document) = &node.metadata else {
        return Err(Error::value(format!("expected metadata that are an object, but found {}", shown(&node.metadata))));
    };
    let field = |key: &str| document.get(key).unwrap_or(&Value::Null);
    if field("zarr_format").as_f64() != Some(f64::from(node.version)) {
        return Err(Error::value(format!(
            "zarr_format: expected {}, but found {}",
            node.version,
            shown(field("zarr_format"))
        )));
    }
    let mut shape = shape(field("shape"))?;
    let stored = if node.version == 3 {
        stored_type::parse_v3(field("data_type"))?
    } else {
        stored_type::parse_v2(field("dtype"))?
    };
    let own_fill = stored_type::fill_value(field("fill_value"), stored)?;
    if own_fill.is_none() && node.version == 3 {
        return Err(Error::value("fill_value: expected a value, but found none"));
    }
    let fill = own_fill.unwrap_or_default();
    let key_dims = shape.len();
    let attribute =
        |name: &str| node.attributes.get(name).map(|value| value.as_str().map_or_else(|| shown(value), str::to_owned));
    let units = stored.unit.map(|_| stored.to_string()).or_else(|| attribute("units"));
    let calendar = attribute("calendar").filter(|_| stored.unit.is_none());
    let axes = level.as_ref().and_then(|level| level.axes.as_ref());
    let (version, named) = (node.version, axes.is_some() || Hierarchy::has_names(&node));
    let mut dims = match axes {
        Some(axes) if !Hierarchy::has_names(&node) => DimNames { names: axes.clone(), unclear: None },
        _ => DimNames::read(document.get("dimension_names"), &node.attributes, key_dims),
    };
    if stored.is_complex {
        shape.push(PARTS);
        dims.push("complex");
    }
    countable(&shape, stored)?;
    let decoded = mask_and_scale.unwrap_or_else(|| stored.unit.is_none() && cf::is_packed(&node.attributes));
    let own_fill = own_fill.filter(|_| node.version == 2);
    let cf = if decoded {
        cf::decode(node.version, stored, own_fill, &node.attributes)?
    } else {
        Cf::identity(stored.dtype)
    };
    let unmasked = if decoded || mask_and_scale.is_some() {
        None
    } else {
        cf::named_missing(node.version, stored, own_fill, &node.attributes)
    };
    let chunks = if node.version == 3 {
        understood(document)?;
        chunks_v3(document, &shape, stored, fill)?
    } else {
        chunks_v2(document, &node.attributes, &shape, stored, fill)?
    };
    let part = ArrayPart {
        store,
        shape,
        grid: chunks.grid,
        largest_bytes: chunks.largest_bytes,
        format: Arc::new(chunks.format),
        sharding: chunks.sharding,
        unmasked,
        missing_dates: Vec::new(),
        level: None,
        grown: None,
        keys: chunks.keys,
        prefix: node.prefix,
        key_dims,
        metadata_key: node.key,
    };
    Ok(Described { part, dims, stored, fill, decoded, cf, level, named, version, units, calendar })
}

/// Reads the extents of an array.
pub(super) fn shape(value: &Value) -> Result<Vec<u64>> {
    let shape: Option<Vec<u64>> =
        value.as_array().and_then(|list| list.iter().map(|v| v.as_u64().filter(|&n| n <= i64::MAX as u64)).collect());
    let shape = shape.ok_or_else(|| {
        Error::value(format!("shape: expected a list of whole numbers from 0 to 2^63 - 1, but found {}", shown(value)))
    })?;
    if shape.len() > MAX_DIMS {
        return Err(Error::value(format!("shape: expected at most {MAX_DIMS} dimensions, but found {}", shape.len())));
    }
    Ok(shape)
}

/// Checks that the array has less than 2^63 bytes, because positions of elements are computed in 64 bits.
fn countable(shape: &[u64], stored: Stored) -> Result<()> {
    let bytes = shape.iter().try_fold(stored.dtype.size() as u64, |bytes, &n| bytes.checked_mul(n));
    if bytes.is_none_or(|bytes| bytes > i64::MAX as u64) && !shape.contains(&0) {
        return Err(Error::value(format!("shape: expected less than 2^63 bytes, but found {shape:?}")));
    }
    Ok(())
}

/// Refuses unknown fields that a reader must understand, as the specification demands, and storage transformers.
fn understood(document: &Map<String, Value>) -> Result<()> {
    const KNOWN: [&str; 12] = [
        "zarr_format",
        "node_type",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "attributes",
        "storage_transformers",
        "dimension_names",
        "consolidated_metadata",
    ];
    for (key, value) in document {
        let optional = value.is_null() || value.get("must_understand").and_then(Value::as_bool) == Some(false);
        if !KNOWN.contains(&key.as_str()) && !optional {
            return Err(Error::value(format!(
                "expected the fields of Zarr v3, but found {key:?}, which must be understood to read this array"
            )));
        }
    }
    match document.get("storage_transformers") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(list)) if list.is_empty() => Ok(()),
        Some(found) => Err(Error::value(format!("expected no storage_transformers, but found {}", shown(found)))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(change: impl Fn(&mut Value)) -> Node {
        let mut metadata = json!({
            "zarr_format": 3, "node_type": "array", "shape": [10, 20], "data_type": "float32", "fill_value": 0.0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 5]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]
        });
        change(&mut metadata);
        Node { version: 3, prefix: "a/".into(), metadata, attributes: Map::new(), key: "a/zarr.json".into() }
    }

    #[test]
    fn keys_and_names() {
        let described = describe(node(|m| m["dimension_names"] = json!([null, "lat"])), None, 0, Some(false)).unwrap();
        assert_eq!(described.part.key(&[2, 3]), "a/c/2/3");
        assert_eq!(described.part.objects(), [3, 4]);
        assert_eq!(described.dims.names, ["dim_0", "lat"]);
        assert_eq!(described.part.largest_chunk(), [4, 5]);
    }

    #[test]
    fn shuffles_of_nczarr_have_elements_of_the_type() {
        let shuffled = |filter: Value, attributes: Value, dtype: &str| {
            let metadata = json!({
                "zarr_format": 2, "shape": [10], "chunks": [5], "dtype": dtype, "fill_value": 0, "order": "C",
                "filters": [filter], "compressor": {"id": "zlib", "level": 1}
            });
            let attributes = attributes.as_object().unwrap().clone();
            let node = Node { version: 2, prefix: "a/".into(), metadata, attributes, key: "a/.zarray".into() };
            describe(node, None, 0, Some(false))
                .map(|described| described.part.format.gpu_chain().map(|chain| chain.shuffle()))
        };
        let zero = json!({"id": "shuffle", "elementsize": 0});
        assert_eq!(shuffled(zero.clone(), json!({"_nczarr_array": {}}), "<f4").unwrap(), Some(4));
        assert_eq!(shuffled(zero.clone(), json!({"_NCZARR_ATTR": {}}), "<i8").unwrap(), Some(8));
        assert_eq!(shuffled(zero.clone(), json!({}), "|u1").unwrap(), Some(1), "one byte: both mean the same");
        assert!(shuffled(zero, json!({}), "<f4").unwrap_err().message().contains("write 4 into .zarray"));
        let none = json!({"id": "shuffle"});
        assert_eq!(shuffled(none.clone(), json!({"_nczarr_array": {}}), "<f8").unwrap(), Some(8));
        assert_eq!(shuffled(none, json!({}), "<f8").unwrap(), Some(4), "the default of numcodecs");
        for text in ["0", "2"] {
            let text = json!({"id": "shuffle", "elementsize": text});
            assert_eq!(shuffled(text, json!({}), "<i2").unwrap(), Some(2), "only netCDF-C writes text");
        }
    }

    #[test]
    fn absurd_metadata_are_errors() {
        let cases: &[(&str, Value)] = &[
            ("zarr_format", json!(2)),
            ("shape", json!([-1, 20])),
            ("shape", json!([u64::MAX, 20])),
            ("shape", json!([1u64 << 40, 1u64 << 40])),
            ("shape", json!([10])),
            ("shape", json!(vec![1; 33])),
            ("shape", json!("10")),
            ("fill_value", Value::Null),
            ("data_type", json!("string")),
            ("chunk_grid", json!({"name": "regular", "configuration": {"chunk_shape": [0, 5]}})),
            ("chunk_grid", json!({"name": "regular", "configuration": {"chunk_shape": [1u64 << 40, 1u64 << 40]}})),
            ("codecs", json!([])),
            ("codecs", json!(["nonsense"])),
            ("codecs", json!([{"name": "transpose", "configuration": {"order": [0, 0]}}, "bytes"])),
            ("codecs", json!([{"name": "transpose", "configuration": {"order": [0, 7]}}, "bytes"])),
            ("codecs", json!([{"name": "bytes", "configuration": {"endian": "middle"}}])),
            ("chunk_key_encoding", json!({"name": "nonsense"})),
            ("storage_transformers", json!([{"name": "x"}])),
            ("encryption", json!({"name": "x"})),
        ];
        for (key, value) in cases {
            let result = describe(node(|m| m[*key] = value.clone()), None, 0, Some(false));
            assert!(result.is_err(), "{key} = {value}");
        }
        assert!(describe(node(|m| m["hint"] = json!({"must_understand": false})), None, 0, Some(false)).is_ok());
    }
}
