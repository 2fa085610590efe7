//! Chunks that zarrs decodes on the CPU: whole shards, and codecs of other projects.
//!
//! zarrs decodes to memory of its own, so this path costs one more copy than the compressors beside it. It must never
//! let a chunk's claims about itself decide how much memory is taken, where that can be told before.

use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;
use zarrs::array::{
    ArrayBytesRaw, ArrayToBytesCodecTraits, BytesRepresentation, Codec, CodecChain, CodecOptions, DataType, FillValue,
};
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::PluginCreateError;

use super::chain::unknown;
use super::{Compression, damaged, wrong_size};
use crate::dtype::DType;
use crate::error::{Error, Result, panic_text};
use crate::json::shown;

/// A chain of codecs that zarrs undoes.
#[derive(Debug)]
pub struct Fallback {
    names: String,
    /// Undone here before the chain, so that it can't decode to more than it should.
    outer: Option<Compression>,
    /// Whether the last codec is Blosc, whose header claims a size.
    blosc: bool,
    chain: CodecChain,
    /// The chain without its last codec: the size before a Blosc codec.
    before_blosc: Option<CodecChain>,
    data_type: DataType,
    fill: FillValue,
    dtype: DType,
    max_encoded: usize,
}

impl Fallback {
    /// A chain of `codecs` (`names` in messages), of which the last may be `outer`, for chunks up to the shape
    /// `largest`.
    pub(super) fn new(
        names: String,
        codecs: &[MetadataV3],
        outer: Option<Compression>,
        dtype: DType,
        fill: u64,
        largest: &[u64],
    ) -> Result<Self> {
        let parse = |codecs: &[MetadataV3]| {
            caught(|| CodecChain::from_metadata(codecs).map_err(|e| e.to_string()))
                .map_err(|e| unknown(&names, refused(codecs).unwrap_or(e)))
        };
        let data_type = DataType::from_metadata(&MetadataV3::new(dtype.name())).map_err(|e| unknown(&names, e))?;
        let fill = fill.to_le_bytes()[..dtype.size()].to_vec();
        let fill = FillValue::new(if cfg!(target_endian = "big") { fill.into_iter().rev().collect() } else { fill });
        let shape = nonzero(largest)?;
        let size = |chain: &CodecChain| {
            caught(|| chain.encoded_representation(&shape, &data_type, &fill).map_err(|e| e.to_string()))
                .map_err(|e| unknown(&names, e))
        };
        let full = parse(codecs)?;
        // zarrs counts each inner chunk of a shard as large as the whole shard, which is gigabytes for a few thousand of them.
        let sharded = codecs.iter().any(|codec| codec.name() == "sharding_indexed");
        let bound = size(&full)?.size().filter(|_| !sharded);
        let decoded = super::decoded_bytes(largest, dtype)?;
        let per_chunk = (decoded / dtype.size()).saturating_mul(shard_overhead(codecs));
        let max_encoded = bound.and_then(|b| usize::try_from(b).ok()).unwrap_or(0);
        let max_encoded =
            max_encoded.max(decoded.saturating_add(decoded / 4).saturating_add(65_536).saturating_add(per_chunk));

        let blosc = codecs.last().is_some_and(|codec| codec.name() == "blosc");
        let shorter = match codecs {
            [shorter @ .., _] if outer.is_some() || blosc => Some(parse(shorter)?),
            _ => None,
        };
        let fixed = match &shorter {
            Some(chain) => matches!(size(chain)?, BytesRepresentation::FixedSize(_)),
            None => false,
        };
        let (chain, outer, before_blosc) = match (shorter.filter(|_| fixed), outer) {
            (Some(chain), Some(outer)) => (chain, Some(outer), None),
            (shorter, _) => (full, None, shorter),
        };
        Ok(Self { names, outer, blosc, chain, before_blosc, data_type, fill, dtype, max_encoded })
    }

    /// The codecs' names, in the order in which they encode.
    pub fn names(&self) -> &str {
        &self.names
    }

    /// See [`super::ChunkFormat::usual_encoded_bytes`].
    pub(super) fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        self.max_encoded.max(decoded.saturating_add(decoded / 4).saturating_add(65_536))
    }

    /// Fills `out` with a chunk of `shape`, in C order and native byte order.
    pub(super) fn decode(&self, encoded: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        let expected = out.len();
        let shape = nonzero(shape)?;
        let failed = |reason: String| damaged(&self.names, encoded.len(), reason);
        let fixed_size = |chain: &CodecChain| {
            caught(|| chain.encoded_representation(&shape, &self.data_type, &self.fill).map_err(|e| e.to_string()))
                .map(|r| r.size().and_then(|s| usize::try_from(s).ok()))
                .map_err(failed)
        };
        if let (true, Some(chain)) = (self.blosc, &self.before_blosc)
            && let Some(size) = fixed_size(chain)?
        {
            let claimed = blosc_sizes(encoded)?;
            if claimed != size {
                return Err(wrong_size(size, claimed));
            }
        }
        let encoded_here = match self.outer {
            None => ArrayBytesRaw::Borrowed(encoded),
            Some(outer) => {
                let size = fixed_size(&self.chain)?.ok_or_else(|| failed("its size is unknown".into()))?;
                let mut bytes = vec![0; size];
                outer.decode(encoded, &mut bytes)?;
                ArrayBytesRaw::Owned(bytes)
            }
        };
        // Decoding is spread over the reader's own threads, chunk by chunk.
        let options = CodecOptions::default().with_concurrent_target(1);
        let decoded = caught(|| {
            self.chain
                .decode(encoded_here, &shape, &self.data_type, &self.fill, &options)
                .and_then(|bytes| Ok(bytes.into_fixed()?))
                .map_err(|e| e.to_string())
        })
        .map_err(failed)?;
        if decoded.len() != expected {
            return Err(wrong_size(expected, decoded.len()));
        }
        debug_assert_eq!(expected % self.dtype.size(), 0);
        out.copy_from_slice(&decoded);
        Ok(())
    }
}

/// Which codec zarrs doesn't take, if it is one by itself; what zarrs says of it shows its own types.
fn refused(codecs: &[MetadataV3]) -> Option<String> {
    codecs.iter().find_map(|codec| {
        let name = codec.name();
        let inner = |key: &str| {
            let list = codec.configuration()?.get(key)?;
            refused(&serde_json::from_value::<Vec<MetadataV3>>(list.clone()).ok()?)
        };
        if let Some(reason) = inner("codecs").or_else(|| inner("index_codecs")) {
            return Some(reason);
        }
        match catch_unwind(AssertUnwindSafe(|| Codec::from_metadata(codec))) {
            Ok(Ok(_)) => None,
            Ok(Err(PluginCreateError::Unsupported(_) | PluginCreateError::NameInvalid { .. })) => {
                Some(format!("there is no decoder for {name}"))
            }
            _ => {
                let given = codec.configuration().map_or(json!({}), |given| json!(given));
                Some(format!("{name} has no such configuration as {}", shown(&given)))
            }
        }
    })
}

/// Bytes for each element that shards may add: an index entry of 16 bytes for each inner chunk, and its codecs' headers.
fn shard_overhead(codecs: &[MetadataV3]) -> usize {
    let shards = codecs.iter().filter(|codec| codec.name() == "sharding_indexed");
    shards
        .filter_map(|codec| {
            let configuration = codec.configuration()?;
            let inner = configuration.get("chunk_shape")?.as_array()?;
            let elements: u64 = inner.iter().filter_map(serde_json::Value::as_u64).fold(1, u64::saturating_mul);
            let nested: Vec<MetadataV3> = serde_json::from_value(configuration.get("codecs")?.clone()).ok()?;
            Some(usize::try_from(80u64.div_ceil(elements.max(1))).unwrap_or(80) + shard_overhead(&nested))
        })
        .sum()
}

/// The decoded size of Blosc data, from its header: the decoded size in bytes 4 to 7, the encoded size in bytes 12 to 15,
/// both little-endian.
pub(super) fn blosc_sizes(encoded: &[u8]) -> Result<usize> {
    let field = |at: usize| encoded.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let (Some(decoded), Some(size)) = (field(4), field(12)) else {
        return Err(Error::runtime(format!(
            "expected a Blosc header of 16 bytes, but found {} bytes in all; the chunk is truncated",
            encoded.len()
        )));
    };
    if size > encoded.len() {
        return Err(Error::runtime(format!(
            "expected {size} bytes, as the Blosc header says, but found {}; the chunk is truncated",
            encoded.len()
        )));
    }
    Ok(decoded)
}

fn nonzero(shape: &[u64]) -> Result<Vec<NonZeroU64>> {
    shape.iter().map(|&extent| NonZeroU64::new(extent)).collect::<Option<_>>().ok_or_else(|| {
        Error::value(format!("expected chunks with an extent of at least 1, but found the shape {shape:?}"))
    })
}

/// Runs foreign code; a panic in it is the chunk's or the metadata's fault, not the process's.
fn caught<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|panic| Err(format!("the codec panicked: {}", panic_text(&*panic))))
}
