//! Sharding: a shard is one object with many inner chunks and an index of their ranges.
//!
//! Specification: Zarr v3, codec `sharding_indexed`. Shards are read by their index if this is the array's only codec,
//! the shards are regular, and the index consists of plain integers with an optional CRC-32C. Other shards are decoded
//! whole.

use serde_json::{Map, Value, json};

use super::grid::{DimGrid, chunk_shape};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;
use dali_zarr_codecs::CodecList;
use dali_zarr_stores::ByteRange;

/// How a shard is divided, and how its index is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Number of inner chunks along each dimension of a shard.
    pub chunks_per_shard: Vec<u64>,
    /// Whether the index is at the end of the shard, or else at its start.
    pub index_at_end: bool,
    /// Length of the encoded index in bytes.
    pub index_bytes: usize,
    /// Whether the numbers of the index are big-endian.
    big_endian: bool,
    /// Whether a CRC-32C follows the index.
    checksum: bool,
}

impl Sharding {
    /// Returns the number of inner chunks in a shard.
    pub fn entries(&self) -> usize {
        (self.index_bytes - if self.checksum { 4 } else { 0 }) / 16
    }

    /// Returns the coordinates of the shard that holds the inner chunk at `chunk`, and the chunk's entry in the shard's
    /// index.
    pub fn shard_of(&self, chunk: &[u64]) -> (Vec<u64>, usize) {
        let shard = chunk.iter().zip(&self.chunks_per_shard).map(|(&c, &n)| c / n).collect();
        let entry = chunk.iter().zip(&self.chunks_per_shard).fold(0, |entry, (&c, &n)| entry * n + c % n);
        (shard, entry as usize)
    }

    /// Returns where in a shard its encoded index is. Its length is [`Self::index_bytes`].
    pub fn index_range(&self) -> ByteRange {
        if self.index_at_end { ByteRange::Last } else { ByteRange::From(0) }
    }

    /// Decodes the index of a shard of `object_len` bytes. Returns for each entry the offset and the length in bytes of
    /// the encoded inner chunk in the shard, or `None` if the inner chunk isn't stored.
    ///
    /// # Errors
    /// If the shard is too short to have an index, or the index is damaged or points outside the shard.
    pub fn decode_index(&self, bytes: &[u8], object_len: u64) -> Result<Vec<Option<(u64, u64)>>> {
        let damaged = |found: String| {
            Error::damaged(format!(
                "expected a shard index of {} bytes, but {found}; the shard is damaged",
                self.index_bytes
            ))
        };
        if object_len < self.index_bytes as u64 {
            return Err(Error::damaged(format!(
                "expected a shard with an index of {} bytes, but found {object_len} bytes in all; the shard is truncated",
                self.index_bytes
            )));
        }
        if bytes.len() != self.index_bytes {
            return Err(damaged(format!("found {}", bytes.len())));
        }
        let entries = if self.checksum {
            let (entries, checksum) = bytes.split_at(bytes.len() - 4);
            let stored = u32::from_le_bytes([checksum[0], checksum[1], checksum[2], checksum[3]]);
            let computed = crc32c::crc32c(entries);
            if stored != computed {
                return Err(damaged(format!("its CRC-32C is {computed:#010x} where {stored:#010x} is stored")));
            }
            entries
        } else {
            bytes
        };
        let number =
            |bytes: &[u8; 8]| if self.big_endian { u64::from_be_bytes(*bytes) } else { u64::from_le_bytes(*bytes) };
        let (numbers, _) = entries.as_chunks::<8>();
        let (pairs, _) = numbers.as_chunks::<2>();
        pairs
            .iter()
            .enumerate()
            .map(|(entry, [offset, len])| match (number(offset), number(len)) {
                (u64::MAX, u64::MAX) => Ok(None),
                (offset, len) if offset.checked_add(len).is_some_and(|end| end <= object_len) => {
                    Ok(Some((offset, len)))
                }
                (offset, len) => Err(damaged(format!(
                    "inner chunk {entry} has {len} bytes at {offset}, outside of the shard's {object_len}"
                ))),
            })
            .collect()
    }
}

/// The result of [`parse`].
pub(super) struct Shards {
    pub sharding: Sharding,
    /// The grid of inner chunks over the whole array.
    pub grid: Vec<DimGrid>,
    /// The codecs of the inner chunks.
    pub codecs: CodecList,
}

/// Reads the configuration of `sharding_indexed`. `None` for shards that can only be decoded whole.
pub(super) fn parse(configuration: &Map<String, Value>, shape: &[u64], grid: &[DimGrid]) -> Result<Option<Shards>> {
    let field = |key: &str| configuration.get(key).unwrap_or(&Value::Null);
    let inner = chunk_shape(field("chunk_shape"), shape.len())?;
    let codecs = CodecList::parse(field("codecs"))?;
    let index_at_end = match field("index_location") {
        Value::Null => true,
        Value::String(s) if s == "end" => true,
        Value::String(s) if s == "start" => false,
        found => {
            return Err(Error::value(format!(
                "sharding_indexed: expected the index_location \"start\" or \"end\", but found {}",
                shown(found)
            )));
        }
    };
    let index_codecs = match field("index_codecs") {
        Value::Null => &json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]),
        given => given,
    };
    let (big_endian, checksum) = match CodecList::parse(index_codecs)?.entries() {
        [(bytes, endian)] if bytes == "bytes" => (is_big(endian), false),
        [(bytes, endian), (crc, _)] if bytes == "bytes" && crc == "crc32c" => (is_big(endian), true),
        _ => return Ok(None),
    };
    let mut chunks_per_shard = Vec::with_capacity(shape.len());
    for (&chunk, dim) in inner.iter().zip(grid) {
        match dim {
            DimGrid::Regular { chunk: shard, .. } if shard.is_multiple_of(chunk) => {
                chunks_per_shard.push(shard / chunk)
            }
            DimGrid::Regular { chunk: shard, .. } => {
                return Err(Error::value(format!(
                    "sharding_indexed: expected inner chunks that divide a shard, but found an extent of {chunk} in one \
                     of {shard}"
                )));
            }
            DimGrid::Irregular(_) => return Ok(None),
        }
    }
    let index_bytes = chunks_per_shard
        .iter()
        .try_fold(16u64, |bytes, &n| bytes.checked_mul(n))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|&bytes| bytes <= 1 << 32)
        .ok_or_else(|| {
            Error::value(format!(
                "sharding_indexed: expected a shard index of at most 4 GiB, but found {chunks_per_shard:?} inner chunks"
            ))
        })?
        + if checksum { 4 } else { 0 };
    let sharding = Sharding { chunks_per_shard, index_at_end, index_bytes, big_endian, checksum };
    let grid = inner.iter().zip(shape).map(|(&chunk, &extent)| DimGrid::regular(chunk, extent)).collect();
    Ok(Some(Shards { sharding, grid, codecs }))
}

fn is_big(configuration: &Map<String, Value>) -> bool {
    match configuration.get("endian").and_then(Value::as_str) {
        Some(endian) => endian == "big",
        None => cfg!(target_endian = "big"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(index_codecs: Value, shard: u64) -> Result<Option<Shards>> {
        let configuration = json!({"chunk_shape": [2, 3], "codecs": ["bytes"], "index_codecs": index_codecs});
        parse(configuration.as_object().unwrap(), &[8, 12], &[DimGrid::regular(shard, 8), DimGrid::regular(6, 12)])
    }

    #[test]
    fn index_entries_and_slots() {
        let sharding = shards(json!([{"name": "bytes", "configuration": {"endian": "big"}}, "crc32c"]), 4)
            .unwrap()
            .unwrap()
            .sharding;
        assert_eq!((sharding.entries(), sharding.index_bytes), (4, 68));
        assert_eq!(sharding.shard_of(&[3, 2]), (vec![1, 1], 2));
        assert_eq!(sharding.shard_of(&[0, 3]), (vec![0, 1], 1));
        assert_eq!(sharding.index_range(), ByteRange::Last);

        let mut bytes: Vec<u8> =
            [0, 10, u64::MAX, u64::MAX, 10, 0, 122, 10].iter().flat_map(|n: &u64| n.to_be_bytes()).collect();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        let index = sharding.decode_index(&bytes, 200).unwrap();
        assert_eq!(index, [Some((0, 10)), None, Some((10, 0)), Some((122, 10))]);
        let error = sharding.decode_index(&bytes, 131).unwrap_err();
        assert!(error.message().contains("inner chunk 3 has 10 bytes at 122"), "{error}");
        let error = sharding.decode_index(&bytes, 67).unwrap_err();
        assert!(error.message().contains("67 bytes in all"), "{error}");
        bytes[5] ^= 1;
        assert!(sharding.decode_index(&bytes, 200).unwrap_err().message().contains("CRC-32C"));
        assert!(sharding.decode_index(&bytes[1..], 200).is_err());
    }

    #[test]
    fn an_end_beyond_u64_is_damage() {
        let sharding =
            shards(json!([{"name": "bytes", "configuration": {"endian": "little"}}]), 4).unwrap().unwrap().sharding;
        let mut bytes = vec![0xff; 64];
        bytes[..8].copy_from_slice(&7u64.to_le_bytes());
        assert!(sharding.decode_index(&bytes, u64::MAX).is_err());
    }

    #[test]
    fn shards_that_stay_closed_or_are_wrong() {
        assert!(shards(json!(["bytes", "gzip"]), 4).unwrap().is_none());
        assert!(shards(json!(["bytes"]), 5).is_err());
    }
}
