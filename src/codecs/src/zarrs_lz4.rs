//! LZ4 for zarrs. No chain of an array asks zarrs for it: [`super::registry`] has the codec, with the decoder that is
//! used here too. But zarrs decodes shards that lie in other shards or under filters ([`super::zarrs_codec`]), and it
//! must know the codecs of their inner chunks. zarrs itself has the other compressors that are common in shards.

use std::borrow::Cow;
use std::sync::Arc;

use zarrs::array::codec::api::{
    BytesToBytesCodecTraits, CodecPluginV3, PartialDecoderCapability, PartialEncoderCapability,
};
use zarrs::array::{
    ArrayBytesRaw, BytesRepresentation, Codec, CodecError, CodecMetadataOptions, CodecOptions, CodecTraits,
    CodecTraitsV3, RecommendedConcurrency,
};
use zarrs::metadata::Configuration;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{PluginCreateError, ZarrVersion};

use super::lz4::{decode, header};
use dali_zarr_base::error::Result;

/// LZ4 as zarrs sees it.
#[derive(Debug)]
struct Lz4;

zarrs::plugin::impl_extension_aliases!(Lz4, v3: "numcodecs.lz4", ["lz4"], v2: "lz4", []);
inventory::submit! { CodecPluginV3::new::<Lz4>() }

impl CodecTraitsV3 for Lz4 {
    // `acceleration` only concerns writers.
    fn create(_: &MetadataV3) -> Result<Codec, PluginCreateError> {
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
        let other = |e: dali_zarr_base::error::Error| CodecError::Other(e.message().to_owned());
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
    use serde_json::json;

    use crate::CodecList;
    use dali_zarr_base::dtype::DType;

    #[test]
    fn shards_that_zarrs_decodes_hold_lz4() {
        // "abcabcabcabcabcabcab" + "12345", after the decoded size.
        let block = [25, 0, 0, 0, 0x3d, b'a', b'b', b'c', 3, 0, 0x50, b'1', b'2', b'3', b'4', b'5'];
        let codecs = json!(["bytes", "numcodecs.lz4"]);
        let shards = json!({"name": "sharding_indexed", "configuration": {"chunk_shape": [25], "codecs": codecs}});
        let format = CodecList::parse(&json!([shards, "crc32c"])).unwrap().format(DType::U8, 0, &[25]).unwrap();
        let sealed = |bytes: Vec<u8>| [&bytes[..], &crc32c::crc32c(&bytes).to_le_bytes()].concat();
        let decode = |block: &[u8]| {
            let index = [0u64.to_le_bytes(), (block.len() as u64).to_le_bytes()].concat();
            let mut out = vec![0; 25];
            format.decode(&sealed([block, &sealed(index)].concat()), &[25], &mut out).map(|()| out)
        };
        assert_eq!(decode(&block).unwrap(), b"abcabcabcabcabcabcab12345");
        let mut claims_more = block;
        claims_more[3] = 0x7f;
        let error = decode(&claims_more).unwrap_err();
        assert!(error.message().contains("expected at most 25 decoded bytes"), "{error}");
        for cut in 0..block.len() {
            assert!(decode(&block[..cut]).is_err(), "cut at {cut}");
        }
    }
}
