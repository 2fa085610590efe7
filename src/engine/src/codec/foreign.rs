//! Codecs that only zarrs has, as steps of a chain: shards that are decoded whole, and codecs of other projects.
//!
//! zarrs decodes to memory of its own, so that a step costs one more copy. It must never let a chunk's claims about itself decide
//! how much memory is taken, where that can be told before.

use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Map, Value, json};
use zarrs::array::{ArrayBytes, BytesRepresentation, Codec, CodecOptions, DataType, FillValue};
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{PluginCreateError, ZarrVersion};

use super::chain::{Side, Size, Step};
use super::metadata::{CodecList, unknown};
use super::registry::Format;
use super::{damaged, wrong_size};
use crate::dtype::DType;
use crate::error::{Result, panic_text};
use crate::json::shown;

/// A codec that zarrs undoes.
#[derive(Debug)]
pub(super) struct Foreign {
    name: String,
    codec: Codec,
    /// Of the decoded elements.
    dtype: DType,
    data_type: DataType,
    fill: FillValue,
    /// The most bytes to which the largest chunk is usually encoded, as far as zarrs knows.
    usual: usize,
}

impl Foreign {
    /// The codec `name` behind `side`, the largest one. `fill` is the fill value at this place, which is not known behind filters that
    /// change values.
    ///
    /// # Errors
    /// If zarrs doesn't have it either, or not with this configuration.
    pub(super) fn new(
        name: &str,
        format: Format,
        configuration: &Map<String, Value>,
        side: &Side,
        fill: Option<&FillValue>,
    ) -> Result<Self> {
        // As zarrs names codecs of v2.
        let prefix = if format == Format::V2 { "numcodecs." } else { "" };
        let metadata = normalised(&format!("{prefix}{name}"), configuration);
        let codec = match caught(|| Ok(Codec::from_metadata(&metadata))) {
            Ok(Ok(codec @ (Codec::ArrayToArray(_) | Codec::ArrayToBytes(_)))) => codec,
            _ => return Err(unknown(name, refused(name, &metadata).unwrap_or_else(|| no_decoder(name)))),
        };
        let dtype = side.dtype;
        let data_type = DataType::from_metadata(&MetadataV3::new(dtype.name())).map_err(|e| unknown(name, e))?;
        let sharded = metadata.name() == "sharding_indexed";
        let fill = match fill {
            Some(fill) => fill.clone(),
            // Others have no use for it.
            None if !sharded => FillValue::new(vec![0; dtype.size()]),
            None => return Err(unknown(name, "a filter stands before it, which makes its fill value unknown")),
        };
        let mut codec = Self { name: name.to_owned(), codec, dtype, data_type, fill, usual: 0 };
        // zarrs counts each inner chunk of a shard as large as the whole shard, which is gigabytes for a few thousand of them.
        let bound = codec.encoded_size(&side.shape).map_err(|e| unknown(name, e))?.filter(|_| !sharded);
        let bound = bound.and_then(|encoded| usize::try_from(encoded.size()?).ok()).unwrap_or(0);
        let elements = side.elements(dtype.size()).map_err(|e| unknown(name, e))?;
        codec.usual =
            bound.max(generous(elements * dtype.size()).saturating_add(elements.saturating_mul(overhead(&metadata))));
        Ok(codec)
    }

    /// The size of a chunk of `shape` that a serializer encodes; `None` of other codecs.
    fn encoded_size(&self, shape: &[u64]) -> Result<Option<BytesRepresentation>, String> {
        let Codec::ArrayToBytes(codec) = &self.codec else { return Ok(None) };
        let shape = nonzero(shape)?;
        caught(|| codec.encoded_representation(&shape, &self.data_type, &self.fill).map_err(|e| e.to_string()))
            .map(Some)
    }

    /// Whether its encoded side is bytes.
    pub(super) fn is_serializer(&self) -> bool {
        matches!(self.codec, Codec::ArrayToBytes(_))
    }

    /// The fill value of its encoded side.
    pub(super) fn encoded_fill(&self) -> Option<FillValue> {
        match &self.codec {
            Codec::ArrayToArray(codec) => {
                caught(|| codec.encoded_fill_value(&self.data_type, &self.fill).map_err(|e| e.to_string())).ok()
            }
            _ => None,
        }
    }
}

/// The fill value whose bits are `fill`.
pub(super) fn fill_value(fill: u64, dtype: DType) -> FillValue {
    let mut bytes = fill.to_le_bytes()[..dtype.size()].to_vec();
    if cfg!(target_endian = "big") {
        bytes.reverse();
    }
    FillValue::new(bytes)
}

/// Bytes to which `decoded` bytes are usually encoded by a codec of which nothing is known.
fn generous(decoded: usize) -> usize {
    decoded.saturating_add(decoded / 4).saturating_add(65_536)
}

impl Step for Foreign {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        let bytes = side.elements(self.dtype.size())? * self.dtype.size();
        match &self.codec {
            Codec::ArrayToArray(codec) => {
                let (shape, data_type) = caught(|| {
                    let shape = nonzero(&side.shape)?;
                    let shape = codec.encoded_shape(&shape).map_err(|e| e.to_string())?;
                    Ok((shape, codec.encoded_data_type(&self.data_type).map_err(|e| e.to_string())?))
                })?;
                let dtype = data_type.name(ZarrVersion::V3).and_then(|name| DType::from_name(&name));
                let dtype =
                    dtype.ok_or_else(|| format!("{} gives elements of a type that DALI doesn't have", self.name))?;
                let shape: Vec<u64> = shape.iter().map(|extent| extent.get()).collect();
                Ok(Side { shape, ..side.converted(self.dtype, dtype)? })
            }
            _ => {
                let size = match self.encoded_size(&side.shape)? {
                    Some(BytesRepresentation::FixedSize(size)) => {
                        Size::Exactly(usize::try_from(size).map_err(|e| e.to_string())?)
                    }
                    _ => Size::AtMost(self.max_inside(bytes)),
                };
                Ok(Side { size, ..side.clone() })
            }
        }
    }

    fn decode(&self, input: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        // Decoding is spread over the reader's own threads, chunk by chunk.
        let options = CodecOptions::default().with_concurrent_target(1);
        let decoded = caught(|| {
            let shape = nonzero(shape)?;
            let (data_type, fill) = (&self.data_type, &self.fill);
            let decoded = match &self.codec {
                Codec::ArrayToArray(codec) => {
                    codec.decode(ArrayBytes::new_flen(input), &shape, data_type, fill, &options)
                }
                Codec::ArrayToBytes(codec) => codec.decode(input.into(), &shape, data_type, fill, &options),
                Codec::BytesToBytes(_) => return Err(no_decoder(&self.name)),
            };
            decoded.and_then(|bytes| Ok(bytes.into_fixed()?)).map_err(|e| e.to_string())
        })
        .map_err(|reason| damaged(&self.name, input.len(), reason))?;
        if decoded.len() != out.len() {
            return Err(wrong_size(out.len(), decoded.len()));
        }
        out.copy_from_slice(&decoded);
        Ok(())
    }

    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        self.usual.max(generous(decoded))
    }

    fn max_encoded_bytes(&self, _decoded: usize) -> usize {
        // It may be a shard, which may have gaps.
        usize::MAX
    }

    fn max_inside(&self, decoded: usize) -> usize {
        self.usual_encoded_bytes(decoded).saturating_mul(2)
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        decoded
    }
}

fn no_decoder(name: &str) -> String {
    format!("there is no decoder for {name}")
}

/// Why zarrs doesn't take a codec, or one inside it; what zarrs says of it shows its own types.
fn refused(name: &str, codec: &MetadataV3) -> Option<String> {
    let inner = |key: &str| {
        let list: Vec<MetadataV3> = serde_json::from_value(codec.configuration()?.get(key)?.clone()).ok()?;
        list.iter().find_map(|codec| refused(codec.name(), codec))
    };
    if let Some(reason) = inner("codecs").or_else(|| inner("index_codecs")) {
        return Some(reason);
    }
    match catch_unwind(AssertUnwindSafe(|| Codec::from_metadata(codec))) {
        Ok(Ok(_)) => None,
        Ok(Err(PluginCreateError::Unsupported(_) | PluginCreateError::NameInvalid { .. })) => Some(no_decoder(name)),
        _ => {
            let given = codec.configuration().map_or(json!({}), |given| json!(given));
            Some(format!("{name} has no such configuration as {}", shown(&given)))
        }
    }
}

/// Bytes for each element that a shard may add: an index entry of 16 bytes for each inner chunk, and its codecs' headers.
fn overhead(codec: &MetadataV3) -> usize {
    let of_a_shard = || {
        let configuration = codec.configuration().filter(|_| codec.name() == "sharding_indexed")?;
        let inner = configuration.get("chunk_shape")?.as_array()?;
        let elements: u64 = inner.iter().filter_map(Value::as_u64).fold(1, u64::saturating_mul);
        let nested: Vec<MetadataV3> = serde_json::from_value(configuration.get("codecs")?.clone()).ok()?;
        let nested = nested.iter().map(overhead).fold(0, usize::saturating_add);
        Some(usize::try_from(80u64.div_ceil(elements.max(1))).unwrap_or(80).saturating_add(nested))
    };
    of_a_shard().unwrap_or(0)
}

fn nonzero(shape: &[u64]) -> Result<Vec<NonZeroU64>, String> {
    let shape_of = |shape: &[u64]| shape.iter().map(|&extent| NonZeroU64::new(extent)).collect::<Option<_>>();
    shape_of(shape).ok_or_else(|| format!("its chunks have the shape {shape:?}, without elements"))
}

/// Runs foreign code; a panic in it is the chunk's or the metadata's fault, not the process's.
fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|panic| Err(format!("the codec panicked: {}", panic_text(&*panic))))
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
                    let list: Vec<MetadataV3> = list.entries().iter().map(|(n, c)| normalised(n, c)).collect();
                    configuration.insert(key.into(), json!(list));
                }
            }
            name
        }
        _ => name,
    };
    MetadataV3::new_with_configuration(name, configuration)
}
