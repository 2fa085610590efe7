//! Reads from the metadata of an array how it is cut into chunks, and how these are encoded and named.

use serde_json::{Map, Value, json};
use zarrs::array::ChunkKeyEncoding;
use zarrs::metadata::v3::MetadataV3;

use super::grid::{self, DimGrid};
use super::sharding::{self, Sharding};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;
use dali_zarr_base::stored_type::{Fill, Stored};
use dali_zarr_codecs::{ChunkFormat, CodecList, V2Codecs, decoded_bytes};

/// Number of parts of a complex number: real and imaginary.
pub(super) const PARTS: u64 = 2;

/// Limit on the depth of nested shards.
const MAX_DEPTH: usize = 8;

/// Limit on the bytes of a decoded chunk: more than any machine's memory, and so small that sums can't overflow.
const MAX_CHUNK: usize = 1 << 44;

/// How an array is cut into chunks, and how these are encoded and named.
pub(super) struct Chunks {
    /// See [`super::ArrayPart::grid`].
    pub grid: Vec<DimGrid>,
    /// Decoded bytes of the largest chunk.
    pub largest_bytes: usize,
    pub format: ChunkFormat,
    /// The sharding, if shards are read by their index.
    pub sharding: Option<Sharding>,
    /// How the keys of chunks, or of shards, are formed.
    pub keys: ChunkKeyEncoding,
}

/// Reads the chunks of an array of Zarr v3. `shape` has the additional dimension of complex arrays.
pub(super) fn chunks_v3(document: &Map<String, Value>, shape: &[u64], stored: Stored, fill: Fill) -> Result<Chunks> {
    let field = |key: &str| document.get(key).unwrap_or(&Value::Null);
    let mut grid = grid::parse_v3(field("chunk_grid"), stored_dims(shape, stored))?;
    let mut codecs = field("codecs").clone();
    if stored.is_complex {
        grid.push(DimGrid::regular(PARTS, PARTS));
        with_parts(&mut codecs, shape.len() - 1, 0);
    }
    let mut codecs = CodecList::parse(&codecs)?;
    let mut opened = None;
    if let Some(configuration) = codecs.only("sharding_indexed")
        && let Some(shards) = sharding::parse(configuration, shape, &grid)?
    {
        opened = Some(shards.sharding);
        grid = shards.grid;
        codecs = shards.codecs;
    }
    let (largest, largest_bytes) = largest(&grid, stored)?;
    let format = codecs.format(stored.dtype, one_fill(&codecs, fill)?, &largest)?;
    let keys = key_encoding(field("chunk_key_encoding").clone()).ok_or_else(|| {
        Error::value(format!(
            "chunk_key_encoding: expected \"default\" or \"v2\", with the separator \"/\" or \".\", but found {}",
            shown(field("chunk_key_encoding"))
        ))
    })?;
    Ok(Chunks { grid, largest_bytes, format, sharding: opened, keys })
}

/// Reads the chunks of an array of Zarr v2, like [`chunks_v3`].
pub(super) fn chunks_v2(
    document: &Map<String, Value>,
    attributes: &Map<String, Value>,
    shape: &[u64],
    stored: Stored,
    fill: Fill,
) -> Result<Chunks> {
    let field = |key: &str| document.get(key).unwrap_or(&Value::Null);
    let mut grid = grid::regular(field("chunks"), stored_dims(shape, stored))?;
    if stored.is_complex {
        grid.push(DimGrid::regular(PARTS, PARTS));
    }
    let fortran = match field("order") {
        Value::String(s) if s == "C" => false,
        Value::String(s) if s == "F" => true,
        found => return Err(Error::value(format!("order: expected \"C\" or \"F\", but found {}", shown(found)))),
    };
    let mut filters = match field("filters") {
        Value::Null => Vec::new(),
        Value::Array(filters) => filters.clone(),
        found => return Err(Error::value(format!("filters: expected a list or null, but found {}", shown(found)))),
    };
    let mut compressor = Some(field("compressor").clone()).filter(|c| !c.is_null());
    let by_nczarr = is_nczarr(document) || is_nczarr(attributes);
    for codec in filters.iter_mut().chain(&mut compressor) {
        shuffle_of_the_type(codec, by_nczarr, element_bytes(stored))?;
    }
    let kept_dims = usize::from(stored.is_complex);
    let codecs = V2Codecs { fortran, kept_dims, big_endian: stored.big_endian, filters, compressor };
    let (largest, largest_bytes) = largest(&grid, stored)?;
    let format = codecs.format(stored.dtype, fill.bits, &largest)?;
    let separator = match field("dimension_separator") {
        Value::Null => &json!("."),
        found => found,
    };
    let keys = key_encoding(json!({"name": "v2", "configuration": {"separator": separator}})).ok_or_else(|| {
        Error::value(format!("dimension_separator: expected \".\" or \"/\", but found {}", shown(separator)))
    })?;
    Ok(Chunks { grid, largest_bytes, format, sharding: None, keys })
}

/// Returns the extents of the dimensions in the metadata: `shape` without the additional dimension of complex arrays.
fn stored_dims(shape: &[u64], stored: Stored) -> &[u64] {
    &shape[..shape.len() - usize::from(stored.is_complex)]
}

/// Returns the bytes of an element in the metadata's sense. A complex number is one element.
fn element_bytes(stored: Stored) -> usize {
    stored.dtype.size() << usize::from(stored.is_complex)
}

/// Changes a list of codecs for complex arrays of `ndim` dimensions into one for arrays with an additional last
/// dimension for the two parts. Codecs that aren't understood are left as they are; parsing them later gives the error.
fn with_parts(codecs: &mut Value, ndim: usize, depth: usize) {
    for codec in codecs.as_array_mut().into_iter().flatten() {
        let name = codec.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(configuration) = codec.get_mut("configuration").and_then(Value::as_object_mut) else { continue };
        match (name.as_str(), configuration.get_mut("order")) {
            ("transpose", Some(order)) => {
                if let Some(reverse @ ("C" | "F")) = order.as_str() {
                    let axes: Vec<usize> = if reverse == "F" { (0..ndim).rev().collect() } else { (0..ndim).collect() };
                    *order = json!(axes);
                }
                order.as_array_mut().into_iter().for_each(|axes| axes.push(ndim.into()));
            }
            ("sharding_indexed", _) if depth < MAX_DEPTH => {
                let inner = configuration.get_mut("chunk_shape").and_then(Value::as_array_mut);
                inner.into_iter().for_each(|lengths| lengths.push(PARTS.into()));
                configuration.get_mut("codecs").into_iter().for_each(|inner| with_parts(inner, ndim, depth + 1));
            }
            _ => {}
        }
    }
}

/// Returns the fill value for the codecs. A shard that is decoded whole fills its missing inner chunks with a single
/// value, so both parts of a complex fill value must be equal there.
fn one_fill(codecs: &CodecList, fill: Fill) -> Result<u64> {
    let is_shard = codecs.entries().iter().any(|(name, _)| name == "sharding_indexed");
    if is_shard && fill.bits != fill.imaginary {
        return Err(Error::value(
            "expected complex numbers in shards to have a fill value of two equal parts, where shards are decoded whole, but found \
             two that differ; write the array with one level of shards",
        ));
    }
    Ok(fill.bits)
}

/// Whether netCDF-C wrote an object with these keys. It writes `_nczarr_array` and others; before 4.9.3 in capitals.
fn is_nczarr(keys: &Map<String, Value>) -> bool {
    keys.keys().any(|key| key.to_ascii_lowercase().starts_with("_nczarr_"))
}

/// Sets the element size of a shuffle codec that netCDF-C wrote.
///
/// netCDF-C always shuffles elements of the array's type. Depending on its version, it writes the size as 0, as a
/// number in text, or not at all. numcodecs writes a number; there 0 means no shuffle, and a missing size means 4. So 0
/// and a missing size are ambiguous, and `by_nczarr` decides. A size of 0 by another writer than netCDF-C is an error.
fn shuffle_of_the_type(codec: &mut Value, by_nczarr: bool, size: usize) -> Result<()> {
    if codec.get("id").and_then(Value::as_str) != Some("shuffle") || size == 1 {
        return Ok(());
    }
    let given = codec.get("elementsize").unwrap_or(&Value::Null);
    let is_text = given.as_str().is_some_and(|text| text.parse::<u32>().is_ok());
    let is_zero = given.as_u64() == Some(0);
    if is_text || by_nczarr && (is_zero || given.is_null()) {
        codec["elementsize"] = size.into();
    } else if is_zero {
        return Err(Error::value(format!(
            "codec \"shuffle\": elementsize: expected the bytes of an element, but found 0, which netCDF-C writes for those \
             of the type and numcodecs for no shuffle; write {size} into .zarray if netCDF-C wrote the array, else 1"
        )));
    }
    Ok(())
}

/// Returns the shape of the largest chunk and its decoded bytes.
///
/// # Errors
/// If the chunk is larger than [`MAX_CHUNK`].
fn largest(grid: &[DimGrid], stored: Stored) -> Result<(Vec<u64>, usize)> {
    let largest: Vec<u64> = grid.iter().map(DimGrid::longest).collect();
    let bytes = decoded_bytes(&largest, stored.dtype)?;
    if bytes > MAX_CHUNK {
        return Err(Error::value(format!(
            "expected chunks of at most {MAX_CHUNK} bytes, but found the shape {largest:?}, which takes {bytes}"
        )));
    }
    Ok((largest, bytes))
}

/// Reads how chunk keys are formed. `None` if the encoding is unknown; the reason that zarrs gives doesn't help users.
pub(super) fn key_encoding(value: Value) -> Option<ChunkKeyEncoding> {
    let metadata: MetadataV3 = serde_json::from_value(value).ok()?;
    ChunkKeyEncoding::from_metadata(&metadata).ok()
}
