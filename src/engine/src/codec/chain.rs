//! From the codecs in metadata to a [`ChunkFormat`]. A transposition, a byte order and at most one compressor are taken
//! apart here. Filters, checksums and further compressors become a chain of this project ([`filters`]). Any other list
//! goes to zarrs as a whole.

use serde_json::{Map, Value, json};
use zarrs::array::Endianness;
use zarrs::metadata::v2::{ArrayMetadataV2Order, MetadataV2};
use zarrs::metadata::v3::MetadataV3;

use super::fallback::Fallback;
use super::{BloscCodec, ChunkFormat, Codec, Compression, Other, Packed, filters};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The codecs of an array or of a shard's inner chunks, in the order in which they encode.
pub(crate) struct CodecList(Vec<(String, Map<String, Value>)>);

/// The fields of v2 metadata that say how chunks are encoded.
pub(crate) struct V2Codecs {
    /// `order`: F.
    pub fortran: bool,
    /// From the data type.
    pub big_endian: bool,
    /// `filters`, empty for null.
    pub filters: Vec<Value>,
    /// `compressor`.
    pub compressor: Option<Value>,
}

impl CodecList {
    /// Reads the list `codecs` of v3 metadata.
    pub(crate) fn parse(codecs: &Value) -> Result<Self> {
        let wrong = |found: &Value| {
            Error::value(format!(
                "codecs: expected a list of names or of objects with a name, but found {}",
                crate::json::shown(found)
            ))
        };
        let list = codecs.as_array().ok_or_else(|| wrong(codecs))?;
        let mut out = Vec::with_capacity(list.len());
        for codec in list {
            out.push(match codec {
                Value::String(name) => (name.clone(), Map::new()),
                Value::Object(object) => {
                    let name = object.get("name").and_then(Value::as_str).ok_or_else(|| wrong(codec))?;
                    let configuration = match object.get("configuration") {
                        None | Some(Value::Null) => Map::new(),
                        Some(Value::Object(configuration)) => configuration.clone(),
                        Some(_) => return Err(wrong(codec)),
                    };
                    (name.to_owned(), configuration)
                }
                _ => return Err(wrong(codec)),
            });
        }
        if out.is_empty() {
            return Err(Error::value("codecs: expected at least the codec \"bytes\", but found an empty list"));
        }
        Ok(Self(out))
    }

    /// The configuration of the codec `name` if it is the only one.
    pub(crate) fn only(&self, name: &str) -> Option<&Map<String, Value>> {
        match self.0.as_slice() {
            [(n, configuration)] if n == name => Some(configuration),
            _ => None,
        }
    }

    /// Names and configurations.
    pub(crate) fn entries(&self) -> &[(String, Map<String, Value>)] {
        &self.0
    }

    /// How chunks with `ndim` dimensions of `dtype` are encoded; `largest` is the largest chunk's shape.
    pub(crate) fn format(&self, dtype: DType, fill: u64, largest: &[u64]) -> Result<ChunkFormat> {
        if let Some((order, swap, codec)) = self.direct(dtype, largest.len())? {
            return Ok(ChunkFormat { order, swap, codec, dtype });
        }
        filters::refuse(self.0.iter().map(|(name, _)| name.as_str()))?;
        if let Some((chain, order, swap)) = filters::v3(&self.0, dtype, largest)? {
            return Ok(ChunkFormat { order, swap, codec: undone_here(chain), dtype });
        }
        let names = self.0.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let list = self.0.iter().map(|(name, configuration)| normalised(name, configuration)).collect();
        let outer = self.0.last().and_then(|(name, configuration)| compression(name, configuration));
        other(names, list, outer, dtype, fill, largest)
    }

    /// The chain taken apart, if it is one that is decoded here.
    fn direct(&self, dtype: DType, ndim: usize) -> Result<Option<(Vec<usize>, bool, Codec)>> {
        let mut order: Vec<usize> = (0..ndim).collect();
        let mut rest = self.0.as_slice();
        while let [(name, configuration), tail @ ..] = rest
            && name == "transpose"
        {
            let step = transposition(configuration.get("order"), ndim)?;
            // The axes of this step are the stored axes of the one before.
            order = step.iter().map(|&axis| order[axis]).collect();
            rest = tail;
        }
        let [(name, configuration), tail @ ..] = rest else { return Ok(None) };
        if name != "bytes" {
            return Ok(None);
        }
        let swap = dtype.size() > 1 && foreign_endian(configuration)?;
        Ok(match tail {
            [] => Some((order, swap, Codec::Raw)),
            [(name, configuration)] => compression(name, configuration).map(|c| (order, swap, Codec::Gpu(c.into()))),
            _ => None,
        })
    }
}

impl V2Codecs {
    /// As [`CodecList::format`].
    pub(crate) fn format(&self, dtype: DType, fill: u64, largest: &[u64]) -> Result<ChunkFormat> {
        let ndim = largest.len();
        let id = |codec: &Value| codec.get("id").and_then(Value::as_str).map(str::to_owned);
        let unreadable = |codec: &Value| {
            Error::value(format!(
                "expected filters and compressor to be objects with an id, but found {}",
                crate::json::shown(codec)
            ))
        };
        let outer = match &self.compressor {
            None => None,
            Some(codec) => {
                let name = id(codec).ok_or_else(|| unreadable(codec))?;
                codec.as_object().and_then(|configuration| compression(&name, configuration))
            }
        };
        let mut order: Vec<usize> = (0..ndim).collect();
        if self.fortran {
            order.reverse();
        }
        let swap = dtype.size() > 1 && self.big_endian != cfg!(target_endian = "big");
        if self.filters.is_empty() && (self.compressor.is_none() || outer.is_some()) {
            return Ok(ChunkFormat { order, swap, codec: outer.map_or(Codec::Raw, |c| Codec::Gpu(c.into())), dtype });
        }
        let named = self.filters.iter().chain(&self.compressor).map(|codec| {
            let configuration = codec.as_object().cloned().unwrap_or_default();
            Ok((id(codec).ok_or_else(|| unreadable(codec))?, configuration))
        });
        let named = named.collect::<Result<Vec<_>>>()?;
        filters::refuse(named.iter().map(|(name, _)| name.as_str()))?;
        if let Some(chain) = filters::v2(&named, &order, dtype, largest)? {
            return Ok(ChunkFormat { order, swap, codec: undone_here(chain), dtype });
        }
        let mut names = Vec::new();
        let mut metadata = |codec: &Value| {
            let name = id(codec).ok_or_else(|| unreadable(codec))?;
            let mut codec = codec.clone();
            match name.as_str() {
                // What the writer asked for (-1 is "choose"). Each chunk's header has the value in use.
                "blosc" => codec["shuffle"] = json!(0),
                "pcodec" => codec = json!({"id": name}),
                _ => {}
            }
            names.push(name);
            serde_json::from_value::<MetadataV2>(codec.clone()).map_err(|_| unreadable(&codec))
        };
        let filters = self.filters.iter().map(&mut metadata).collect::<Result<Vec<_>>>()?;
        let compressor = self.compressor.as_ref().map(&mut metadata).transpose()?;
        let names = names.join(", ");
        let list = zarrs::convert::codec_metadata_v2_to_v3(
            if self.fortran { ArrayMetadataV2Order::F } else { ArrayMetadataV2Order::C },
            ndim,
            &MetadataV3::new(dtype.name()),
            Some(if self.big_endian { Endianness::Big } else { Endianness::Little }),
            &(!filters.is_empty()).then_some(filters),
            &compressor,
        )
        .map_err(|_| unknown(&names, "their configurations aren't known"))?;
        other(names, list, outer, dtype, fill, largest)
    }
}

/// A chain of this project: on the GPU too, if that may decode it.
fn undone_here(chain: filters::Chain) -> Codec {
    match Packed::new(chain) {
        Ok(packed) => Codec::Gpu(packed),
        Err(chain) => Codec::Other(Box::new(Other::Chain(chain))),
    }
}

fn other(
    names: String,
    list: Vec<MetadataV3>,
    outer: Option<Compression>,
    dtype: DType,
    fill: u64,
    largest: &[u64],
) -> Result<ChunkFormat> {
    let fallback = Fallback::new(names, &list, outer, dtype, fill, largest)?;
    Ok(ChunkFormat {
        order: (0..largest.len()).collect(),
        swap: false,
        codec: Codec::Other(Box::new(Other::Zarrs(fallback))),
        dtype,
    })
}

pub(super) fn unknown(names: &str, reason: impl std::fmt::Display) -> Error {
    Error::value(format!(
        "expected codecs that this reader has, but found {names}: {reason}; rewrite the array with another codec, or \
         leave it out"
    ))
}

/// The compressor of this name.
pub(super) fn compression(name: &str, configuration: &Map<String, Value>) -> Option<Compression> {
    let block = || configuration.get("blocksize").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    Some(match name {
        "zstd" | "numcodecs.zstd" => Compression::Zstd,
        "gzip" | "numcodecs.gzip" => Compression::Gzip,
        "zlib" | "numcodecs.zlib" => Compression::Zlib,
        "lz4" | "numcodecs.lz4" => Compression::Lz4,
        "blosc" | "numcodecs.blosc" => Compression::Blosc(
            match configuration.get("cname").and_then(Value::as_str) {
                Some("blosclz") => BloscCodec::BloscLz,
                Some("snappy") => BloscCodec::Snappy,
                Some("zlib") => BloscCodec::Zlib,
                Some("zstd") => BloscCodec::Zstd,
                _ => BloscCodec::Lz4,
            },
            block().unwrap_or(0),
        ),
        _ => return None,
    })
}

/// Whether the codec "bytes" with this configuration writes the other byte order than this machine's.
pub(super) fn foreign_endian(configuration: &Map<String, Value>) -> Result<bool> {
    let big = match configuration.get("endian") {
        None | Some(Value::Null) => cfg!(target_endian = "big"),
        Some(Value::String(e)) if e == "little" => false,
        Some(Value::String(e)) if e == "big" => true,
        Some(found) => {
            return Err(Error::value(format!(
                "codec \"bytes\": expected the endian \"little\" or \"big\", but found {}",
                crate::json::shown(found)
            )));
        }
    };
    Ok(big != cfg!(target_endian = "big"))
}

pub(super) fn transposition(order: Option<&Value>, ndim: usize) -> Result<Vec<usize>> {
    let wrong = || {
        Error::value(format!(
            "codec \"transpose\": expected the order to be a permutation of 0 to {}, but found {}",
            ndim.saturating_sub(1),
            crate::json::shown(order.unwrap_or(&Value::Null))
        ))
    };
    let order: Vec<usize> = match order {
        Some(Value::String(s)) if s == "C" => (0..ndim).collect(),
        Some(Value::String(s)) if s == "F" => (0..ndim).rev().collect(),
        Some(Value::Array(axes)) => axes
            .iter()
            .map(|axis| axis.as_u64().and_then(|a| usize::try_from(a).ok()))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..ndim) { Ok(order) } else { Err(wrong()) }
}

/// A codec as zarrs wants it: without the prefix of codecs that are in the specification too, and with the levels that
/// it asks for although only writers need them.
fn normalised(name: &str, configuration: &Map<String, Value>) -> MetadataV3 {
    let mut configuration = configuration.clone();
    let mut default = |key: &str, value: Value| {
        configuration.entry(key).or_insert(value);
    };
    let name = match name {
        "zstd" | "numcodecs.zstd" => {
            default("level", json!(0));
            default("checksum", json!(false));
            "zstd"
        }
        "gzip" | "numcodecs.gzip" => {
            default("level", json!(1));
            "gzip"
        }
        "numcodecs.zlib" | "numcodecs.bz2" => {
            default("level", json!(1));
            name
        }
        "blosc" | "numcodecs.blosc" => {
            // What readers need stands in each chunk's header.
            let cname = configuration.get("cname").cloned().unwrap_or(json!("lz4"));
            configuration = Map::new();
            configuration.insert("cname".into(), cname);
            configuration.insert("clevel".into(), json!(5));
            configuration.insert("shuffle".into(), json!("noshuffle"));
            configuration.insert("blocksize".into(), json!(0));
            "blosc"
        }
        // Each chunk's header has the values in use.
        "pcodec" | "numcodecs.pcodec" => {
            configuration = Map::new();
            name
        }
        "bytes" => {
            default("endian", json!("little"));
            name
        }
        "sharding_indexed" => {
            configuration.entry("index_codecs").or_insert(json!(["bytes", "crc32c"]));
            for key in ["codecs", "index_codecs"] {
                if let Some(list) = configuration.get(key).and_then(|list| CodecList::parse(list).ok()) {
                    let list: Vec<MetadataV3> = list.0.iter().map(|(n, c)| normalised(n, c)).collect();
                    configuration.insert(key.into(), json!(list));
                }
            }
            name
        }
        _ => name,
    };
    MetadataV3::new_with_configuration(name, configuration)
}
