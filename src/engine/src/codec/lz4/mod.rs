//! LZ4 as numcodecs writes it: the decoded size as a little-endian u32, then one LZ4 block. Its name is `lz4` in v2 and
//! `numcodecs.lz4` in v3. zarrs has neither, so both are registered with it here, for chains that zarrs decodes.
//!
//! Specification: the LZ4 block format, and numcodecs' header. Decoded on the CPU by lz4_flex; on the GPU by `dz_lz4`.

pub(super) mod streams;

use std::borrow::Cow;
use std::sync::Arc;

use zarrs::array::codec::api::{
    BytesToBytesCodecTraits, CodecPluginV2, CodecPluginV3, PartialDecoderCapability, PartialEncoderCapability,
};
use zarrs::array::{
    ArrayBytesRaw, BytesRepresentation, Codec, CodecError, CodecMetadataOptions, CodecOptions, CodecTraits,
    CodecTraitsV2, CodecTraitsV3, RecommendedConcurrency,
};
use zarrs::metadata::Configuration;
use zarrs::metadata::v2::MetadataV2;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{PluginCreateError, ZarrVersion};

use super::{Compression, damaged, wrong_size};
use crate::error::Result;

/// Fills `out` from the block in `encoded`.
pub(super) fn decode(encoded: &[u8], out: &mut [u8]) -> Result<()> {
    let (size, block) = header(encoded)?;
    if size != out.len() {
        return Err(wrong_size(out.len(), size));
    }
    let written =
        lz4_flex::block::decompress_into(block, out).map_err(|e| damaged(Compression::Lz4, encoded.len(), e))?;
    if written == size { Ok(()) } else { Err(wrong_size(size, written)) }
}

/// Returns the decoded size, and the block after it.
fn header(encoded: &[u8]) -> Result<(usize, &[u8])> {
    let Some((size, block)) = encoded.split_first_chunk::<4>() else {
        return Err(damaged(Compression::Lz4, encoded.len(), "the data ends within the size before the block"));
    };
    Ok((u32::from_le_bytes(*size) as usize, block))
}

/// The codec for zarrs.
#[derive(Debug)]
struct Lz4;

zarrs::plugin::impl_extension_aliases!(Lz4, v3: "numcodecs.lz4", ["lz4"], v2: "lz4", []);
inventory::submit! { CodecPluginV3::new::<Lz4>() }
inventory::submit! { CodecPluginV2::new::<Lz4>() }

impl CodecTraitsV3 for Lz4 {
    // `acceleration` only concerns writers.
    fn create(_: &MetadataV3) -> Result<Codec, PluginCreateError> {
        Ok(Codec::BytesToBytes(Arc::new(Self)))
    }
}

impl CodecTraitsV2 for Lz4 {
    fn create(_: &MetadataV2) -> Result<Codec, PluginCreateError> {
        Ok(Codec::BytesToBytes(Arc::new(Self)))
    }
}

impl CodecTraits for Lz4 {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn configuration(&self, _: ZarrVersion, _: &CodecMetadataOptions) -> Option<Configuration> {
        Some(Configuration::default())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability { partial_read: false, partial_decode: false }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability { partial_encode: false }
    }
}

impl BytesToBytesCodecTraits for Lz4 {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(&self, _: &BytesRepresentation) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }

    fn encode<'a>(&self, _: ArrayBytesRaw<'a>, _: &CodecOptions) -> Result<ArrayBytesRaw<'a>, CodecError> {
        Err(CodecError::Other("numcodecs.lz4 is only read".into()))
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        representation: &BytesRepresentation,
        _: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let other = |e: crate::error::Error| CodecError::Other(e.message().to_owned());
        let (size, _) = header(&encoded).map_err(other)?;
        // LZ4 expands at most 255 times: a larger size is refused before memory is taken for it.
        let most = representation.size().unwrap_or(encoded.len() as u64 * 255);
        if size as u64 > most {
            return Err(CodecError::Other(format!("expected at most {most} decoded bytes, but found {size}")));
        }
        let mut out = vec![0; size];
        decode(&encoded, &mut out).map_err(other)?;
        Ok(Cow::Owned(out))
    }

    fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
        decoded.size().map_or(BytesRepresentation::UnboundedSize, |size| {
            BytesRepresentation::BoundedSize(size.saturating_add(size / 255).saturating_add(20))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "abcabcabcabcabcabcab" + "12345" in LZ4: 3 literals, a match of 17 at distance 3, 5 literals.
    const ENCODED: [u8; 16] = [25, 0, 0, 0, 0x3d, b'a', b'b', b'c', 3, 0, 0x50, b'1', b'2', b'3', b'4', b'5'];

    #[test]
    fn a_block_by_hand() {
        let mut out = [0; 25];
        decode(&ENCODED, &mut out).unwrap();
        assert_eq!(&out, b"abcabcabcabcabcabcab12345");
    }

    #[test]
    fn damage_never_panics() {
        let mut out = [0; 25];
        for cut in 0..ENCODED.len() {
            assert!(decode(&ENCODED[..cut], &mut out).is_err(), "cut at {cut}");
        }
        let error = decode(&ENCODED, &mut [0; 24]).unwrap_err();
        assert!(error.message().contains("expected 24 decoded bytes, but found 25"), "{error}");
        for at in 4..ENCODED.len() {
            for bit in 0..8 {
                let mut wrong = ENCODED;
                wrong[at] ^= 1 << bit;
                let _ = decode(&wrong, &mut out);
            }
        }
        let mut far = ENCODED;
        far[8] = 200;
        assert!(decode(&far, &mut out).is_err(), "a match before the start");
    }
}
