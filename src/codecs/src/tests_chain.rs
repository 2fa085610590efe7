//! Chains made from metadata: sizes, orders, limits, damage. `tests/test_codec_matrix.py` compares the values of every
//! codec with zarr-python.

use serde_json::{Value, json};

use crate::{ChunkFormat, CodecList, Compression, V2Codecs};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::Result;

fn v3(codecs: Value, dtype: DType, shape: &[u64]) -> Result<ChunkFormat> {
    CodecList::parse(&codecs)?.format(dtype, 0, shape)
}

fn v2(filters: Value, compressor: Value, dtype: DType, shape: &[u64]) -> Result<ChunkFormat> {
    let compressor = Some(compressor).filter(|c| !c.is_null());
    let filters = filters.as_array().unwrap().clone();
    V2Codecs { fortran: false, kept_dims: 0, big_endian: false, filters, compressor }.format(dtype, 0, shape)
}

fn decode(format: &ChunkFormat, encoded: &[u8], shape: &[u64]) -> Result<Vec<u8>> {
    let mut out = vec![0xaa; format.decoded_bytes(shape)?];
    format.decode(encoded, shape, &mut out)?;
    Ok(out)
}

fn little(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn types_change_along_a_chain() {
    // Encoding turns bools into packed bits, these into differences, and puts a checksum before them.
    let format = v2(
        json!([{"id": "packbits"}, {"id": "delta", "dtype": "|u1", "astype": "<i2"}, {"id": "crc32"}]),
        Value::Null,
        DType::Bool,
        &[12],
    )
    .unwrap();
    // Differences in int16 of the bytes: 4 (unused bits), 1010 1010, 1100 0000.
    let deltas = [4i16, 0xaa - 4, 0xc0 - 0xaa].map(i16::to_le_bytes).concat();
    let encoded = [crc32fast::hash(&deltas).to_le_bytes().as_slice(), &deltas].concat();
    assert_eq!(format.usual_encoded_bytes(12), encoded.len());
    assert_eq!(decode(&format, &encoded, &[12]).unwrap(), [1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0]);
    for cut in 0..encoded.len() {
        assert!(decode(&format, &encoded[..cut], &[12]).is_err());
    }
    assert!(decode(&format, &encoded, &[13]).is_err(), "another shape");
}

#[test]
fn transpositions_before_and_behind_filters() {
    let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}});
    let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
    let bytes = |endian| json!({"name": "bytes", "configuration": {"endian": endian}});
    let encoded = little(&[1, 1, 1, 1, 1, 1]);
    let format = v3(json!([transpose, delta, bytes("little")]), DType::I32, &[2, 3]).unwrap();
    assert_eq!(format.order, [1, 0], "left to the assembler");
    assert_eq!(decode(&format, &encoded, &[2, 3]).unwrap(), little(&[1, 2, 3, 4, 5, 6]));
    let format = v3(json!([delta, transpose, bytes("big")]), DType::I32, &[2, 3]).unwrap();
    assert_eq!((format.order.as_slice(), format.swap), ([0, 1].as_slice(), false));
    let encoded: Vec<u8> = [1i32, 4, 2, 5, 3, 6].iter().flat_map(|v| v.to_be_bytes()).collect();
    assert_eq!(decode(&format, &encoded, &[2, 3]).unwrap(), little(&[1, 3, 6, 10, 15, 21]));
    let format = v3(json!([transpose, bytes("big"), "crc32c"]), DType::I32, &[2, 3]).unwrap();
    assert!(format.swap, "left to the assembler");
}

#[test]
fn limits_hold_where_sizes_are_unknown() {
    let format = v3(json!(["bytes", "numcodecs.lz4", "zstd", "crc32c"]), DType::U8, &[1000]).unwrap();
    let pack = |inner: &[u8]| {
        let mut encoded = Vec::with_capacity(zstd_safe::compress_bound(inner.len()));
        zstd_safe::compress(&mut encoded, inner, 3).unwrap();
        let sum = crc32c::crc32c(&encoded);
        encoded.extend(sum.to_le_bytes());
        encoded
    };
    let mut inner = 1000u32.to_le_bytes().to_vec();
    inner.extend(lz4_flex::block::compress(&[7; 1000]));
    assert_eq!(decode(&format, &pack(&inner), &[1000]).unwrap(), [7; 1000]);
    // A small frame that decodes to 100 MiB of zero bytes.
    let bomb = pack(&vec![0; 100 << 20]);
    assert!(bomb.len() < 20_000);
    let error = decode(&format, &bomb, &[1000]).unwrap_err();
    assert!(error.message().contains("expected at most"), "{error}");
    inner[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = decode(&format, &pack(&inner), &[1000]).unwrap_err();
    assert!(error.message().contains("expected 1000 decoded bytes, but found 4294967295"), "{error}");
}

#[test]
fn honest_chunks_are_within_their_bounds() {
    let wide = json!({"name": "numcodecs.astype", "configuration": {"encode_dtype": "<f8"}});
    for (codecs, decoded, least, scratch) in [
        (json!(["bytes", "numcodecs.crc32", "numcodecs.adler32", "crc32c"]), 1000, 1012, 0),
        (json!([wide, "bytes"]), 1000, 8000, 0),
        (json!([wide, "bytes", "numcodecs.crc32", "numcodecs.shuffle", "crc32c"]), 1000, 8008, 8000 + 8004),
        (json!(["numcodecs.packbits", "bytes"]), 1000, 126, 0),
        (json!(["numcodecs.packbits", "bytes", "numcodecs.shuffle"]), 1000, 126, 126),
    ] {
        let dtype = if codecs[0] == "numcodecs.packbits" { DType::Bool } else { DType::U8 };
        let format = v3(codecs.clone(), dtype, &[1000]).unwrap();
        assert_eq!(format.usual_encoded_bytes(decoded), least, "{codecs}");
        assert_eq!(format.scratch_bytes(decoded), scratch, "{codecs}");
    }
    let noise: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for preset in [0, 6] {
        let options = liblzma::stream::LzmaOptions::new_preset(preset).unwrap();
        let mut stream = liblzma::stream::Stream::new_lzma_encoder(&options).unwrap();
        let mut encoded = Vec::with_capacity(2 * noise.len());
        stream.process_vec(&noise, &mut encoded, liblzma::stream::Action::Finish).unwrap();
        let format = v2(json!([]), json!({"id": "lzma", "format": 2}), DType::U8, &[100_000]).unwrap();
        assert!(encoded.len() <= format.usual_encoded_bytes(noise.len()));
        assert_eq!(decode(&format, &encoded, &[100_000]).unwrap(), noise);
    }
}

#[test]
fn what_the_gpu_may_decode() {
    let zlib = Some(Compression::Zlib);
    let shuffle = |size: u32| json!({"name": "numcodecs.shuffle", "configuration": {"elementsize": size}});
    let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}});
    for (codecs, expected) in [
        (json!(["bytes", "zstd", "crc32c"]), Some((Some(Compression::Zstd), 1))),
        (json!(["bytes", "numcodecs.zlib", "numcodecs.crc32", "numcodecs.adler32"]), Some((zlib, 1))),
        (json!(["bytes", shuffle(4), "numcodecs.zlib"]), Some((zlib, 4))),
        (json!(["bytes", shuffle(3), "numcodecs.zlib", "crc32c"]), Some((zlib, 3))),
        (json!(["bytes", shuffle(0), "numcodecs.zlib"]), Some((zlib, 1))),
        (json!(["bytes", "crc32c"]), Some((None, 1))),
        (json!(["bytes", shuffle(255)]), Some((None, 255))),
        (json!(["numcodecs.bitround", "bytes", "numcodecs.zlib"]), Some((zlib, 1))),
        // Not for the GPU: too long elements, bytes that are shuffled twice, a checksum that isn't last, other codecs.
        (json!(["bytes", shuffle(256)]), None),
        (json!(["bytes", shuffle(2), "blosc"]), None),
        (json!(["bytes", "crc32c", "numcodecs.zlib"]), None),
        (json!(["bytes", "numcodecs.zlib", shuffle(2)]), None),
        (json!(["bytes", "zstd", "numcodecs.zlib"]), None),
        (json!(["bytes", "numcodecs.bz2", "crc32c"]), None),
        (json!([delta, "bytes", "numcodecs.zlib"]), None),
    ] {
        let format = v3(codecs.clone(), DType::I16, &[510]).unwrap();
        assert_eq!(format.gpu_chain().map(|p| (p.compression(), p.shuffle())), expected, "{codecs}");
    }
    let in_order = |codecs| v3(codecs, DType::I16, &[510]).unwrap().gpu_chain().unwrap().decodes_in_order();
    assert!(in_order(json!(["bytes", "zstd", "crc32c"])) && in_order(json!(["bytes", "crc32c"])));
    assert!(!in_order(json!(["bytes", shuffle(2), "numcodecs.zlib"])));
    let blosc = json!({"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 0});
    let blosc = v2(json!([]), blosc, DType::I16, &[510]).unwrap();
    assert!(!blosc.gpu_chain().unwrap().decodes_in_order(), "each chunk says how its bytes are shuffled");
    let quantize = |astype| {
        v2(
            json!([{"id": "quantize", "digits": 1, "dtype": "<f4", "astype": astype}]),
            json!({"id": "zlib"}),
            DType::F32,
            &[4],
        )
    };
    assert!(quantize("<f4").unwrap().gpu_chain().is_some(), "nothing to undo");
    assert!(quantize("<f2").unwrap().gpu_chain().is_none());

    let format = v2(json!([{"id": "zlib"}, {"id": "crc32"}]), json!({"id": "crc32c"}), DType::U8, &[9]).unwrap();
    let packed = format.gpu_chain().unwrap();
    let mut encoded = [crc32fast::hash(b"between").to_le_bytes().as_slice(), b"between"].concat();
    encoded.extend(crc32c::crc32c(&encoded).to_le_bytes());
    assert_eq!(packed.strip_checksums(&encoded).unwrap(), 4..11);
    for at in 0..encoded.len() {
        let mut wrong = encoded.clone();
        wrong[at] ^= 0x20;
        assert!(packed.strip_checksums(&wrong).is_err() && packed.strip_checksums(&encoded[..at]).is_err(), "{at}");
    }
}

#[test]
fn damage_never_panics() {
    let chains = [
        json!([{"name": "numcodecs.delta", "configuration": {"dtype": "i2"}}, "bytes", "numcodecs.bz2"]),
        json!([{"name": "cast_value", "configuration": {"data_type": "float64"}}, "bytes", "numcodecs.zlib"]),
        json!([{"name": "scale_offset", "configuration": {"scale": 3}}, "bytes", "numcodecs.fletcher32"]),
        json!(["bytes", "numcodecs.shuffle", "numcodecs.lzma"]),
        json!(["bytes", "numcodecs.jenkins_lookup3", "blosc"]),
        json!(["bytes", "zstd", "gzip"]),
        json!(["bytes", "blosc", "numcodecs.blosc"]),
    ];
    let mut state = 9u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as usize
    };
    for chain in chains {
        let format = v3(chain.clone(), DType::I16, &[64]).unwrap();
        assert!(!format.chain.is_empty() && !format!("{:?}", format.chain).contains("ZarrsCodec"), "{chain}");
        for _ in 0..300 {
            let noise: Vec<u8> = (0..random() % 300).map(|_| random() as u8).collect();
            assert!(decode(&format, &noise, &[64]).is_err(), "{chain}");
        }
    }
}

#[test]
fn refusals_name_the_codec_and_the_way_out() {
    for name in ["json2", "pickle", "vlen-utf8", "vlen-array", "categorize", "msgpack2"] {
        let errors = [
            v2(json!([{"id": name}]), Value::Null, DType::U8, &[4]).unwrap_err(),
            v2(json!([]), json!({"id": name}), DType::U8, &[4]).unwrap_err(),
            v3(json!(["bytes", format!("numcodecs.{name}")]), DType::U8, &[4]).unwrap_err(),
        ];
        for error in errors {
            assert!(error.message().contains(name) && error.message().contains("leave it out"), "{error}");
        }
    }
    for (filter, expected) in [
        (json!({"id": "delta"}), "dtype"),
        (json!({"id": "delta", "dtype": "<c8"}), "<c8"),
        (json!({"id": "quantize", "dtype": "<i4"}), "floating"),
        (json!({"id": "fixedscaleoffset", "dtype": "<f4", "offset": 1}), "scale"),
        (json!({"id": "crc32", "location": "middle"}), "middle"),
        (json!({"id": "shuffle", "elementsize": -1}), "elementsize"),
        (json!({"id": "jenkins_lookup3", "prefix": "x"}), "prefix"),
        (json!({"id": "delta", "dtype": "<i8"}), "whole number of elements of 8 bytes"),
    ] {
        let error = v2(json!([filter]), Value::Null, DType::U8, &[12]).unwrap_err();
        assert!(error.message().contains(expected), "{filter}: {error}");
    }
    let error = v2(json!([{"id": "zlib"}, {"id": "delta", "dtype": "|u1"}]), Value::Null, DType::U8, &[4]).unwrap_err();
    assert!(error.message().contains("behind a compressor"), "{error}");
}

/// Decoding takes the configuration from the chunk's header, and ignores the one in the metadata.
#[test]
fn pcodec_of_every_configuration() {
    use zarrs::array::{ArrayBytes, ArrayToBytesCodecTraits, CodecChain, CodecOptions, DataType, FillValue};
    use zarrs::metadata::v3::MetadataV3;

    let shape = [std::num::NonZeroU64::new(300).unwrap()];
    let data = little(&(0..300).map(|i| i * i % 977).collect::<Vec<_>>());
    for (written, told) in [
        (json!({"delta_spec": "try_consecutive", "delta_encoding_order": 2}), json!({"delta_spec": "try_consecutive"})),
        (json!({"delta_spec": "try_lookback"}), json!({"delta_spec": "try_lookback", "mode_spec": "auto"})),
        (json!({"delta_spec": "none"}), json!({"delta_spec": "try_conv1", "mode_spec": "try_int_mult", "level": 13})),
    ] {
        let metadata: MetadataV3 =
            serde_json::from_value(json!({"name": "numcodecs.pcodec", "configuration": written})).unwrap();
        let chain = CodecChain::from_metadata(&[metadata]).unwrap();
        let (dtype, fill) = (DataType::from_metadata(&MetadataV3::new("int32")).unwrap(), FillValue::new(vec![0; 4]));
        let encoded =
            chain.encode(ArrayBytes::new_flen(data.clone()), &shape, &dtype, &fill, &CodecOptions::default()).unwrap();
        let new = v3(json!([{"name": "numcodecs.pcodec", "configuration": told.clone()}]), DType::I32, &[300]).unwrap();
        assert_eq!(decode(&new, &encoded, &[300]).unwrap(), data, "{told}");
        let mut old = told.clone();
        old["id"] = json!("pcodec");
        let old = v2(json!([]), old, DType::I32, &[300]).unwrap();
        assert_eq!(decode(&old, &encoded, &[300]).unwrap(), data, "{told}");
    }
}

#[test]
fn base64_anywhere_in_a_chain() {
    let data: Vec<u8> = (0..50).map(|i| i * 5).collect();
    let text = |bytes: &[u8]| {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let digits = |group: &[u8]| {
            let bits = group.iter().fold(0u32, |bits, &b| bits << 8 | u32::from(b)) << (8 * (3 - group.len()));
            let digit = |i: usize| if i <= group.len() { DIGITS[(bits >> (18 - 6 * i)) as usize & 63] } else { b'=' };
            [digit(0), digit(1), digit(2), digit(3)]
        };
        bytes.chunks(3).flat_map(digits).collect::<Vec<u8>>()
    };
    let alone = v2(json!([]), json!({"id": "base64"}), DType::U8, &[50]).unwrap();
    assert!(alone.gpu_chain().is_none(), "not on the GPU");
    assert_eq!(alone.usual_encoded_bytes(50), text(&data).len());
    assert_eq!(decode(&alone, &text(&data), &[50]).unwrap(), data);
    let error = decode(&alone, &text(&data)[..66], &[50]).unwrap_err();
    assert!(error.message().contains("expected base64 data") && error.message().contains("group"), "{error}");
    let error = decode(&alone, &text(&data[1..]), &[50]).unwrap_err();
    assert!(error.message().contains("expected 50 decoded bytes, but found 49"), "{error}");
    // Base64 after a compressor, and before one.
    let mut packed = Vec::with_capacity(1000);
    zstd_safe::compress(&mut packed, &data, 3).unwrap();
    let format = v2(json!([{"id": "zstd"}]), json!({"id": "base64"}), DType::U8, &[50]).unwrap();
    assert_eq!(decode(&format, &text(&packed), &[50]).unwrap(), data);
    let mut packed = Vec::with_capacity(1000);
    zstd_safe::compress(&mut packed, &text(&data), 3).unwrap();
    let format = v3(json!(["bytes", "numcodecs.base64", "zstd"]), DType::U8, &[50]).unwrap();
    assert_eq!(decode(&format, &packed, &[50]).unwrap(), data);
}

#[test]
fn codecs_that_only_zarrs_has_are_steps_like_others() {
    use zarrs::array::{ArrayBytes, ArrayToBytesCodecTraits, CodecChain, CodecOptions, DataType, FillValue};
    use zarrs::metadata::v3::MetadataV3;

    let zstd = |data: &[u8]| {
        let mut encoded = Vec::with_capacity(zstd_safe::compress_bound(data.len()));
        zstd_safe::compress(&mut encoded, data, 3).unwrap();
        encoded
    };
    let shards = json!({"name": "sharding_indexed", "configuration": {
        "chunk_shape": [10], "codecs": ["bytes", "zstd"], "index_codecs": ["bytes", "crc32c"]}});
    let by_zarrs = |codec: &Value, data: &[u8]| {
        let mut codec = codec.clone();
        if codec["name"] == "sharding_indexed" {
            let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
            let zstd = json!({"name": "zstd", "configuration": {"level": 1, "checksum": false}});
            codec["configuration"]["codecs"] = json!([bytes, zstd]);
            codec["configuration"]["index_codecs"] = json!([bytes, {"name": "crc32c"}]);
        }
        let metadata: MetadataV3 = serde_json::from_value(codec).unwrap();
        let chain = CodecChain::from_metadata(&[metadata]).unwrap();
        let shape = [std::num::NonZeroU64::new(30).unwrap()];
        let (dtype, fill) = (DataType::from_metadata(&MetadataV3::new("uint16")).unwrap(), FillValue::new(vec![7, 0]));
        let bytes = ArrayBytes::new_flen(data.to_vec());
        chain.encode(bytes, &shape, &dtype, &fill, &CodecOptions::default()).unwrap().into_owned()
    };
    // All elements of the second inner chunk are the fill value, so it isn't stored.
    let value = |i| if (10..20).contains(&i) { 7 } else { i * 300 };
    let data: Vec<u8> = (0..30u16).flat_map(|i| value(i).to_le_bytes()).collect();
    for serializer in [json!({"name": "packbits"}), json!({"name": "numcodecs.pcodec"}), shards.clone()] {
        let inner = by_zarrs(&serializer, &data);
        let codecs = json!([serializer, "numcodecs.zstd", "crc32c"]);
        let format = CodecList::parse(&codecs).unwrap().format(DType::U16, 7, &[30]).unwrap();
        let sealed = |stream: &[u8]| [stream, &crc32c::crc32c(stream).to_le_bytes()].concat();
        let encoded = sealed(&zstd(&inner));
        assert!(format.gpu_chain().is_none() && encoded.len() <= format.usual_encoded_bytes(60), "{codecs}");
        assert_eq!(decode(&format, &encoded, &[30]).unwrap(), data, "{codecs}");
        for cut in 0..encoded.len() {
            assert!(decode(&format, &encoded[..cut], &[30]).is_err(), "{codecs} cut at {cut}");
        }
        // This project decodes zstd, to at most the bytes that the serializer may have written.
        let error = decode(&format, &sealed(&zstd(&vec![0; 100 << 20])), &[30]).unwrap_err();
        assert!(error.message().contains("decoded bytes, but found"), "{codecs}: {error}");
    }
    let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": "u1"}});
    let error = v3(json!([delta, shards]), DType::U8, &[30]).unwrap_err();
    assert!(error.message().contains("sharding_indexed") && error.message().contains("fill value"), "{error}");
    let error = v3(json!(["zstd", "bytes"]), DType::U8, &[30]).unwrap_err();
    assert!(error.message().contains("zstd stands before"), "{error}");
    let error = v3(json!([delta]), DType::U8, &[30]).unwrap_err();
    assert!(error.message().contains("none of them turns elements into bytes"), "{error}");
}
