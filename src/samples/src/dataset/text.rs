//! Arrays of text or bytes with one dimension: how they are cut into chunks, and how these are decoded. Readers don't
//! deliver text. It is read as labels.
//!
//! Written by zarr-python (`fixed_length_utf32`, `null_terminated_bytes`, `string`, `variable_length_bytes`; in Zarr v2
//! `<U5`, `|S3`, and `|O` with the filter `vlen-utf8` or `vlen-bytes`) and xarray. The bytes of a chunk of vlen-utf8 are
//! the number of its elements, and for each element its length in bytes and its bytes; numbers are little-endian and
//! have 32 bits.

use serde_json::{Map, Value};
use zarrs::array::ChunkKeyEncoding;

use super::array::shape;
use super::chunks::key_encoding;
use super::grid::{self, DimGrid};
use super::hierarchy::Node;
use super::sharding::{self, Sharding};
use dali_zarr_base::base64;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Code, Error, Result};
use dali_zarr_base::json::shown;
use dali_zarr_codecs::{ChunkFormat, CodecList, V2Codecs};

/// Limit on the bytes of all elements of an array, and of a decoded chunk.
pub const MAX_TEXT: usize = 512 << 20;
/// Limit on the depth of shards in shards.
const MAX_DEPTH: usize = 4;

/// How elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextType {
    /// Text of at most this many characters, padded with NULs: UTF-32.
    Fixed(usize),
    /// At most this many bytes, padded with NULs.
    FixedBytes(usize),
    /// Text of any length: UTF-8.
    Variable,
    /// Any number of bytes.
    VariableBytes,
}

/// An array of text or bytes with one dimension.
pub struct TextArray {
    /// The number of elements.
    pub len: u64,
    /// How they are stored.
    pub dtype: TextType,
    /// The value of elements in missing chunks: UTF-8, or bytes. `None` if it is undefined, as null in Zarr v2; then they
    /// are empty.
    pub fill: Option<Vec<u8>>,
    /// A key that exists as long as the array does.
    pub metadata_key: String,
    grid: DimGrid,
    layout: Layout,
    keys: ChunkKeyEncoding,
    prefix: String,
}

/// How the bytes of a chunk become elements.
enum Layout {
    Chunk(ChunkFormat),
    /// Inner chunks of `chunk` elements.
    Shard {
        sharding: Sharding,
        chunk: u64,
        inner: Box<Self>,
    },
}

/// Decoded elements, one after the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// The bytes of all elements. Text is UTF-8.
    pub bytes: Vec<u8>,
    /// The end of each element in `bytes`.
    pub ends: Vec<i64>,
}

impl Texts {
    /// Returns an element.
    pub fn element(&self, i: usize) -> &[u8] {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[i] as usize]
    }

    fn push(&mut self, element: &[u8]) -> Result<()> {
        if element.len() > MAX_TEXT - self.bytes.len() {
            return Err(Error::runtime(format!("expected at most {MAX_TEXT} bytes of text, but found more")));
        }
        self.bytes.extend_from_slice(element);
        self.ends.push(self.bytes.len() as i64);
        Ok(())
    }
}

impl TextType {
    /// Whether elements are text, not bytes.
    pub fn is_text(self) -> bool {
        matches!(self, Self::Fixed(_) | Self::Variable)
    }

    /// Returns NumPy's name of the type, or Python's for elements of any length.
    pub fn name(self) -> String {
        match self {
            Self::Fixed(chars) => format!("<U{chars}"),
            Self::FixedBytes(bytes) => format!("|S{bytes}"),
            Self::Variable => "str".into(),
            Self::VariableBytes => "bytes".into(),
        }
    }

    /// Returns the type and the number of the units of an element with a fixed length.
    fn units(self) -> Option<(DType, usize)> {
        match self {
            Self::Fixed(chars) => Some((DType::U32, chars)),
            Self::FixedBytes(bytes) => Some((DType::U8, bytes)),
            Self::Variable | Self::VariableBytes => None,
        }
    }

    fn of_v2(dtype: &Value, filters: &[Value]) -> Option<Self> {
        let text = dtype.as_str()?;
        let (kind, size) = text.strip_prefix(['<', '>', '|', '=']).unwrap_or(text).split_at_checked(1)?;
        let size = || size.parse().ok().filter(|&n: &usize| n > 0);
        match kind {
            "U" => size().map(Self::Fixed),
            "S" => size().map(Self::FixedBytes),
            "O" => Self::of_codec(filters.first()?.get("id")?.as_str()?),
            _ => None,
        }
    }

    fn of_v3(data_type: &Value) -> Option<Self> {
        let name = data_type.as_str().or_else(|| data_type.get("name").and_then(Value::as_str))?;
        let bytes = || {
            let bytes = data_type.get("configuration")?.get("length_bytes")?.as_u64()?;
            usize::try_from(bytes).ok().filter(|&n| n > 0)
        };
        match name {
            "fixed_length_utf32" => bytes().filter(|n| n.is_multiple_of(4)).map(|n| Self::Fixed(n / 4)),
            "null_terminated_bytes" => bytes().map(Self::FixedBytes),
            "string" | "variable_length_utf8" => Some(Self::Variable),
            "bytes" | "variable_length_bytes" => Some(Self::VariableBytes),
            _ => None,
        }
    }

    /// Returns the type that a codec of elements of any length has.
    fn of_codec(name: &str) -> Option<Self> {
        match name.strip_prefix("numcodecs.").unwrap_or(name) {
            "vlen-utf8" => Some(Self::Variable),
            "vlen-bytes" => Some(Self::VariableBytes),
            _ => None,
        }
    }

    /// Parses a fill value as zarr-python does.
    fn fill(self, value: &Value) -> Result<Option<Vec<u8>>> {
        let wrong = || {
            Error::value(format!(
                "fill_value: expected a value of the type {}, but found {}",
                self.name(),
                shown(value)
            ))
        };
        let base64 = |text: &str| base64::decode(text.as_bytes()).map_err(|_| wrong());
        Ok(Some(match (self, value) {
            (_, Value::Null) => return Ok(None),
            (Self::Fixed(chars), Value::String(text)) => {
                text.chars().take(chars).collect::<String>().trim_end_matches('\0').into()
            }
            (Self::Variable, Value::String(text)) => text.clone().into(),
            // Zarr-python 2 wrote the number 0.
            (Self::Variable, Value::Number(number)) => number.to_string().into(),
            (Self::FixedBytes(len), Value::String(text)) => {
                let bytes: Vec<u8> = base64(text)?;
                trimmed(&bytes[..bytes.len().min(len)]).to_vec()
            }
            (Self::VariableBytes, Value::String(text)) => base64(text)?,
            (Self::VariableBytes, Value::Array(bytes)) => {
                let bytes = bytes.iter().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()));
                bytes.collect::<Option<_>>().ok_or_else(wrong)?
            }
            // Elements that no chunk has are empty, as with null.
            (Self::VariableBytes, Value::Number(number)) if number.as_f64() == Some(0.0) => Vec::new(),
            _ => return Err(wrong()),
        }))
    }
}

/// Reads the metadata of an array; `None` if its elements aren't text or bytes.
///
/// # Errors
/// If the array has another number of dimensions than one, its codecs aren't known, or the metadata are wrong.
pub(super) fn describe(node: &Node) -> Result<Option<TextArray>> {
    let Value::Object(document) = &node.metadata else { return Ok(None) };
    let field = |key: &str| document.get(key).unwrap_or(&Value::Null);
    let filters = field("filters").as_array().map_or(&[][..], Vec::as_slice);
    let is_v3 = node.version == 3;
    let found = if is_v3 { TextType::of_v3(field("data_type")) } else { TextType::of_v2(field("dtype"), filters) };
    let Some(dtype) = found else { return Ok(None) };
    let shape = shape(field("shape"))?;
    let [len] = shape[..] else {
        return Err(Error::value(format!("expected text along one dimension, but found the shape {shape:?}")));
    };
    let (keys, grid, layout);
    if is_v3 {
        keys = key_encoding(field("chunk_key_encoding").clone());
        grid = grid::parse_v3(field("chunk_grid"), &shape)?;
        layout = Layout::of_v3(CodecList::parse(field("codecs"))?, dtype, len, &grid, 0)?;
    } else {
        let separator = field("dimension_separator").as_str().unwrap_or(".");
        keys = key_encoding(serde_json::json!({"name": "v2", "configuration": {"separator": separator}}));
        grid = grid::regular(field("chunks"), &shape)?;
        layout = Layout::of_v2(document, filters, dtype, &grid)?;
    }
    let keys = keys.ok_or_else(|| {
        let key = if is_v3 { "chunk_key_encoding" } else { "dimension_separator" };
        Error::value(format!("{key}: expected one with the separator \"/\" or \".\", but found {}", shown(field(key))))
    })?;
    let grid = grid.into_iter().next().unwrap_or(DimGrid::regular(1, len));
    let fill = dtype.fill(field("fill_value"))?;
    Ok(Some(TextArray {
        len,
        dtype,
        fill,
        metadata_key: node.key.clone(),
        grid,
        layout,
        keys,
        prefix: node.prefix.clone(),
    }))
}

impl Layout {
    fn of_v2(document: &Map<String, Value>, filters: &[Value], dtype: TextType, grid: &[DimGrid]) -> Result<Self> {
        let field = |key: &str| document.get(key).unwrap_or(&Value::Null);
        let is_variable = dtype.units().is_none();
        let codecs = V2Codecs {
            fortran: false,
            kept_dims: 0,
            big_endian: field("dtype").as_str().is_some_and(|text| text.starts_with('>')),
            filters: filters[usize::from(is_variable)..].to_vec(),
            compressor: Some(field("compressor").clone()).filter(|compressor| !compressor.is_null()),
        };
        let (units, largest) = largest(dtype, grid)?;
        codecs.format(units, 0, &largest).map(Self::Chunk)
    }

    fn of_v3(codecs: CodecList, dtype: TextType, len: u64, grid: &[DimGrid], depth: usize) -> Result<Self> {
        // In one dimension a transposition changes nothing.
        let mut entries: Vec<_> = codecs.entries().iter().filter(|(name, _)| name != "transpose").cloned().collect();
        let unknown = || {
            let names: Vec<&str> = codecs.entries().iter().map(|(name, _)| name.as_str()).collect();
            Error::coded(
                Code::Unsupported,
                format!(
                    "expected codecs of text that this reader has, but found {}; write the array again",
                    names.join(", ")
                ),
            )
        };
        let Some((first, configuration)) = entries.first_mut() else { return Err(unknown()) };
        if first == "sharding_indexed" {
            let shards = sharding::parse(configuration, &[len], grid)?;
            let Some(shards) = shards.filter(|_| entries.len() == 1 && depth < MAX_DEPTH) else {
                return Err(unknown());
            };
            let inner = Box::new(Self::of_v3(shards.codecs, dtype, len, &shards.grid, depth + 1)?);
            return Ok(Self::Shard { sharding: shards.sharding, chunk: shards.grid[0].longest(), inner });
        }
        if dtype.units().is_none() {
            if TextType::of_codec(first) != Some(dtype) {
                return Err(unknown());
            }
            // What is left decodes to bytes.
            (*first, *configuration) = ("bytes".into(), Map::new());
        }
        let (units, largest) = largest(dtype, grid)?;
        CodecList::of(entries).format(units, 0, &largest).map(Self::Chunk)
    }

    /// Appends the first `wanted` elements of a chunk of `len` elements; those of a missing chunk are `fill`.
    fn decode(
        &self,
        dtype: TextType,
        fill: &[u8],
        encoded: Option<&[u8]>,
        (len, wanted): (u64, u64),
        out: &mut Texts,
    ) -> Result<()> {
        let Some(encoded) = encoded else {
            return (0..wanted).try_for_each(|_| out.push(fill));
        };
        match self {
            Self::Chunk(format) => match dtype.units() {
                Some((_, count)) => fixed(format, dtype, encoded, (len, count as u64), wanted, out),
                None => variable(&format.decode_at_most(encoded, MAX_TEXT)?, dtype, (len, wanted), out),
            },
            Self::Shard { sharding, chunk, inner } => {
                let Some(rest) = encoded.len().checked_sub(sharding.index_bytes) else {
                    return sharding.decode_index(&[], encoded.len() as u64).map(|_| ());
                };
                let at = if sharding.index_at_end { rest } else { 0 };
                let index = sharding.decode_index(&encoded[at..at + sharding.index_bytes], encoded.len() as u64)?;
                let mut left = wanted;
                for entry in index {
                    let wanted = left.min(*chunk);
                    if wanted == 0 {
                        break;
                    }
                    let encoded = entry.map(|(offset, len)| &encoded[offset as usize..(offset + len) as usize]);
                    inner.decode(dtype, fill, encoded, (*chunk, wanted), out)?;
                    left -= wanted;
                }
                Ok(())
            }
        }
    }
}

/// Returns the type of the units of elements, and the extents of the largest chunk in units. For elements of any length,
/// a unit is a byte, and the extent a limit.
fn largest(dtype: TextType, grid: &[DimGrid]) -> Result<(DType, Vec<u64>)> {
    let Some((units, count)) = dtype.units() else { return Ok((DType::U8, vec![MAX_TEXT as u64])) };
    let longest = grid.first().map_or(1, DimGrid::longest);
    let bytes = longest.checked_mul(count as u64).and_then(|n| n.checked_mul(units.size() as u64));
    if bytes.is_none_or(|bytes| bytes > MAX_TEXT as u64) {
        return Err(Error::value(format!(
            "expected chunks of at most {MAX_TEXT} bytes of text, but found {longest} elements of the type {}",
            dtype.name()
        )));
    }
    Ok((units, vec![longest, count as u64]))
}

/// Returns an element without the NULs at its end.
fn trimmed(element: &[u8]) -> &[u8] {
    &element[..element.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)]
}

/// Decodes a chunk of elements that have a fixed length.
fn fixed(
    format: &ChunkFormat,
    dtype: TextType,
    encoded: &[u8],
    (len, count): (u64, u64),
    wanted: u64,
    out: &mut Texts,
) -> Result<()> {
    let mut decoded = vec![0; format.decoded_bytes(&[len, count])?];
    format.decode(encoded, &[len, count], &mut decoded)?;
    let elements = decoded.chunks_exact(decoded.len() / len as usize).take(wanted as usize);
    if dtype == TextType::FixedBytes(count as usize) {
        return elements.map(trimmed).try_for_each(|element| out.push(element));
    }
    let mut text = String::new();
    for element in elements {
        text.clear();
        for &unit in element.as_chunks::<4>().0 {
            let unit = u32::from_ne_bytes(unit);
            let unit = if format.swap { unit.swap_bytes() } else { unit };
            text.push(char::from_u32(unit).ok_or_else(|| {
                Error::damaged(format!("expected text in UTF-32, but found the unit {unit:#x}, which is no character"))
            })?);
        }
        out.push(text.trim_end_matches('\0').as_bytes())?;
    }
    Ok(())
}

/// Decodes the bytes of a chunk of elements that have any length.
fn variable(bytes: &[u8], dtype: TextType, (len, wanted): (u64, u64), out: &mut Texts) -> Result<()> {
    let damaged = |found: String| {
        Error::damaged(format!(
            "expected {len} elements, each with its length before it, but found {found}; the chunk is damaged"
        ))
    };
    let number = |at: usize| {
        let number = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
        number
            .map(|number| u32::from_le_bytes(*number) as usize)
            .ok_or_else(|| damaged(format!("{} bytes", bytes.len())))
    };
    let count = number(0)?;
    if count as u64 != len {
        return Err(damaged(count.to_string()));
    }
    let mut at = 4;
    for i in 0..wanted {
        let size = number(at)?;
        at += 4;
        let element = at.checked_add(size).and_then(|end| bytes.get(at..end));
        let element = element.ok_or_else(|| damaged(format!("{size} bytes in element {i}, beyond the end")))?;
        if dtype.is_text() && std::str::from_utf8(element).is_err() {
            return Err(Error::damaged(format!("expected text in UTF-8, but found other bytes in element {i}")));
        }
        out.push(element)?;
        at += size;
    }
    Ok(())
}

impl TextArray {
    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        if self.len == 0 { 0 } else { self.grid.count() }
    }

    /// Returns the key of a chunk.
    pub fn key(&self, chunk: u64) -> String {
        format!("{}{}", self.prefix, self.keys.encode(&[chunk]).as_str())
    }

    /// Appends the elements of a chunk that lie in the array; `encoded` is `None` if the store lacks the chunk.
    ///
    /// # Errors
    /// If the chunk is damaged, or there is too much text.
    pub fn decode(&self, chunk: u64, encoded: Option<&[u8]>, out: &mut Texts) -> Result<()> {
        let (start, len) = (self.grid.start(chunk), self.grid.len(chunk));
        let wanted = len.min(self.len - start);
        self.layout.decode(self.dtype, self.fill.as_deref().unwrap_or_default(), encoded, (len, wanted), out)
    }
}

#[cfg(test)]
#[path = "tests_text.rs"]
mod tests;
