//! Codecs that only zarrs has, as steps of a chain: shards that are decoded whole, and codecs of other projects.
//!
//! zarrs decodes to its own memory, so a step costs one more copy. Where the size is known before, a chunk's headers
//! must never decide how much memory is taken.

use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Map, Value, json};
use zarrs::array::{ArrayBytes, BytesRepresentation, Codec, CodecOptions, DataType, FillValue};
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{PluginCreateError, ZarrVersion};

use super::chain::{Side, Size, Step};
use super::codec_entry::Format;
use super::codec_list::{CodecList, unknown};
use super::{damaged, wrong_size};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Result, panic_text};
use dali_zarr_base::json::shown;

/// A codec that zarrs decodes.
#[derive(Debug)]
pub(super) struct ZarrsCodec {
    name: String,
    codec: Codec,
    /// The type of the decoded elements.
    dtype: DType,
    data_type: DataType,
    fill: FillValue,
    /// The most bytes that encoders usually write for the largest chunk: the larger of zarrs' bound, where it has one,
    /// and an estimate.
    usual: usize,
}

impl ZarrsCodec {
    /// Makes the step of the codec `name`. `side` is its decoded side for the largest chunk. `fill` is the fill value
    /// at this place, `None` after filters that change values.
    ///
    /// # Errors
    /// If zarrs doesn't have the codec either, or refuses this configuration.
    pub(super) fn new(
        name: &str,
        format: Format,
        configuration: &Map<String, Value>,
        side: &Side,
        fill: Option<&FillValue>,
    ) -> Result<Self> {
        // zarrs names codecs of v2 with this prefix.
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
            // Other codecs don't use the fill value.
            None if !sharded => FillValue::new(vec![0; dtype.size()]),
            None => return Err(unknown(name, "a filter stands before it, which makes its fill value unknown")),
        };
        let mut codec = Self { name: name.to_owned(), codec, dtype, data_type, fill, usual: 0 };
        // zarrs counts each inner chunk of a shard as large as the whole shard, which gives gigabytes for a few
        // thousand inner chunks.
        let bound = codec.encoded_size(&side.shape).map_err(|e| unknown(name, e))?.filter(|_| !sharded);
        let bound = bound.and_then(|encoded| usize::try_from(encoded.size()?).ok()).unwrap_or(0);
        let elements = side.elements(dtype.size()).map_err(|e| unknown(name, e))?;
        codec.usual =
            bound.max(generous(elements * dtype.size()).saturating_add(elements.saturating_mul(overhead(&metadata))));
        Ok(codec)
    }

    /// Returns the encoded size of a chunk of `shape`, if the codec is a serializer (array to bytes). Otherwise `None`.
    fn encoded_size(&self, shape: &[u64]) -> Result<Option<BytesRepresentation>, String> {
        let Codec::ArrayToBytes(codec) = &self.codec else { return Ok(None) };
        let shape = nonzero(shape)?;
        caught(|| codec.encoded_representation(&shape, &self.data_type, &self.fill).map_err(|e| e.to_string()))
            .map(Some)
    }

    /// Whether the codec turns elements into bytes.
    pub(super) fn is_serializer(&self) -> bool {
        matches!(self.codec, Codec::ArrayToBytes(_))
    }

    /// Returns the fill value of the encoded side. `None` if it is unknown, or if that side is bytes.
    pub(super) fn encoded_fill(&self) -> Option<FillValue> {
        match &self.codec {
            Codec::ArrayToArray(codec) => {
                caught(|| codec.encoded_fill_value(&self.data_type, &self.fill).map_err(|e| e.to_string())).ok()
            }
            _ => None,
        }
    }
}

/// Returns the fill value that has the bits `fill`.
pub(super) fn fill_value(fill: u64, dtype: DType) -> FillValue {
    let mut bytes = fill.to_le_bytes()[..dtype.size()].to_vec();
    if cfg!(target_endian = "big") {
        bytes.reverse();
    }
    FillValue::new(bytes)
}

/// Returns a generous estimate of the encoded bytes for `decoded` bytes and an unknown codec.
fn generous(decoded: usize) -> usize {
    decoded.saturating_add(decoded / 4).saturating_add(65_536)
}

impl Step for ZarrsCodec {
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
        // One thread for each chunk: the reader's own threads decode chunks in parallel.
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
        // The codec may be a shard, and a shard may have gaps.
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

/// Returns why zarrs refuses a codec or a codec nested in it, or `None` if it accepts them. zarrs' own messages aren't
/// used, because they show its Rust types.
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

/// Returns the bytes per element that a shard may add: 80 for each inner chunk (an index entry of 16 bytes, and its
/// codecs' headers), and those of shards within it. 0 for other codecs.
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

/// Runs code of zarrs and turns a panic into an error, because damaged chunks or metadata must not end the process.
fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|panic| Err(format!("the codec panicked: {}", panic_text(&*panic))))
}

/// Returns a codec's metadata in the form that zarrs accepts. The prefix "numcodecs." is dropped for codecs that are in
/// the specification too. Fields that zarrs requires but only writers use, such as levels, get defaults.
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
            // Readers take these values from each chunk's header, so any valid ones will do.
            let cname = configuration.get("cname").cloned().unwrap_or(json!("lz4"));
            configuration = Map::new();
            configuration.insert("cname".into(), cname);
            configuration.insert("clevel".into(), json!(5));
            configuration.insert("shuffle".into(), json!("noshuffle"));
            configuration.insert("blocksize".into(), json!(0));
            "blosc"
        }
        // Readers take these values from each chunk's header.
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
