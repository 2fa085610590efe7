//! Images as chunks: how they fit, what is refused, and damage. `tests/test_images.py` compares values with
//! imagecodecs.

use serde_json::{Value, json};

use crate::{ChunkFormat, CodecList, V2Codecs};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::Result;

pub(super) fn v2(compressor: Value, dtype: DType, shape: &[u64]) -> Result<ChunkFormat> {
    let (filters, compressor) = (vec![], Some(compressor));
    V2Codecs { fortran: false, kept_dims: 0, big_endian: false, filters, compressor }.format(dtype, 0, shape)
}

pub(super) fn v3(codecs: Value, dtype: DType, shape: &[u64]) -> Result<ChunkFormat> {
    CodecList::parse(&codecs)?.format(dtype, 0, shape)
}

pub(super) fn decode(format: &ChunkFormat, encoded: &[u8], shape: &[u64]) -> Result<Vec<u8>> {
    let mut out = vec![0xaa; format.decoded_bytes(shape)?];
    format.decode(encoded, shape, &mut out)?;
    Ok(out)
}

/// Returns bytes that differ from each other, for an image with this many.
fn pixels(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn png(width: u32, height: u32, color: ::png::ColorType, depth: ::png::BitDepth, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut out, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == ::png::ColorType::Indexed {
        encoder.set_palette(vec![10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120]);
    }
    encoder.write_header().unwrap().write_image_data(data).unwrap();
    out
}

#[test]
fn png_of_each_kind() {
    use ::png::BitDepth::{Eight, Four, One, Sixteen, Two};
    use ::png::ColorType::{Grayscale, GrayscaleAlpha, Indexed, Rgb, Rgba};
    for (color, channels) in [(Grayscale, 1), (GrayscaleAlpha, 2), (Rgb, 3), (Rgba, 4)] {
        for (depth, dtype, size) in [(Eight, DType::U8, 1), (Sixteen, DType::U16, 2)] {
            let data = pixels(5 * 7 * channels * size);
            let encoded = png(5, 7, color, depth, &data);
            let mut expected = data.clone();
            if size == 2 && cfg!(target_endian = "little") {
                expected.chunks_exact_mut(2).for_each(|element| element.swap(0, 1));
            }
            let shapes: [&[u64]; 3] =
                [&[7, 5, channels as u64], &[1, 7, 5, channels as u64], &[7, 1, 5, channels as u64]];
            for shape in shapes {
                let format = v2(json!({"id": "imagecodecs_png", "level": 3, "squeeze": null}), dtype, shape).unwrap();
                assert!(format.gpu_chain().is_none() && encoded.len() <= format.usual_encoded_bytes(data.len()));
                assert_eq!(decode(&format, &encoded, shape).unwrap(), expected, "{color:?} {depth:?}");
                for codecs in [json!(["imagecodecs_png"]), json!(["bytes", "imagecodecs_png"])] {
                    let format = v3(codecs, dtype, shape).unwrap();
                    assert_eq!(decode(&format, &encoded, shape).unwrap(), expected, "{color:?} {depth:?}");
                }
            }
            for cut in 0..encoded.len() - 12 {
                let format = v3(json!(["imagecodecs_png"]), dtype, shapes[0]).unwrap();
                assert!(decode(&format, &encoded[..cut], shapes[0]).is_err(), "cut at {cut}");
            }
        }
    }
    let format = v3(json!(["imagecodecs_png"]), DType::U8, &[1, 4]).unwrap();
    for (depth, data, expected) in [
        (One, &[0b1011_0000][..], [255, 0, 255, 255]),
        (Two, &[0b1011_0001], [170, 255, 0, 85]),
        (Four, &[0x1f, 0x08], [17, 255, 0, 136]),
    ] {
        assert_eq!(decode(&format, &png(4, 1, Grayscale, depth, data), &[1, 4]).unwrap(), expected);
    }
    let format = v3(json!(["imagecodecs_png"]), DType::U8, &[1, 2, 3]).unwrap();
    assert_eq!(
        decode(&format, &png(2, 1, Indexed, Two, &[0b1001_0000]), &[1, 2, 3]).unwrap(),
        [70, 80, 90, 40, 50, 60]
    );
}

#[test]
fn images_of_other_chunks_are_refused_before_memory_is_taken() {
    use ::png::BitDepth::{Eight, Sixteen};
    use ::png::ColorType::{Grayscale, Rgb};
    let image = png(5, 7, Rgb, Eight, &pixels(105));
    for (shape, dtype) in [
        (&[7, 6, 3][..], DType::U8),
        (&[5, 7, 3], DType::U8),
        (&[7, 5, 4], DType::U8),
        (&[7, 5], DType::U8),
        (&[3, 7, 5], DType::U8),
        (&[7, 5, 3], DType::U16),
        (&[14, 5, 3], DType::U8),
    ] {
        let format = v3(json!(["imagecodecs_png"]), dtype, shape).unwrap();
        let error = decode(&format, &image, shape).unwrap_err();
        assert!(error.message().contains("7 rows of 5 pixels with 3 channels of uint8"), "{shape:?}: {error}");
        assert!(error.message().contains(&format!("{shape:?}")), "{error}");
    }
    // A header that claims 4 billion pixels.
    let mut bomb = png(1, 1, Grayscale, Sixteen, &[0, 0]);
    bomb[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let sum = crc32fast::hash(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&sum.to_be_bytes());
    let format = v3(json!(["imagecodecs_png"]), DType::U16, &[1, 1]).unwrap();
    let error = decode(&format, &bomb, &[1, 1]).unwrap_err();
    assert!(error.message().contains("65536") || error.message().contains("imit"), "{error}");
}

#[test]
fn images_in_chains() {
    let image = png(4, 6, ::png::ColorType::Grayscale, ::png::BitDepth::Eight, &pixels(24));
    let mut packed = Vec::with_capacity(1000);
    zstd_safe::compress(&mut packed, &image, 3).unwrap();
    packed.extend(crc32c::crc32c(&packed).to_le_bytes());
    let format = v3(json!(["imagecodecs_png", "zstd", "crc32c"]), DType::U8, &[6, 4]).unwrap();
    assert_eq!(decode(&format, &packed, &[6, 4]).unwrap(), pixels(24));
    // Behind a transposition, which is left to the assembler, and behind differences.
    let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
    let format = v3(json!([transpose, "imagecodecs_png"]), DType::U8, &[4, 6]).unwrap();
    assert_eq!(format.order, [1, 0]);
    assert_eq!(decode(&format, &image, &[4, 6]).unwrap(), pixels(24));
    let format = v3(json!(["imagecodecs_delta", "imagecodecs_png"]), DType::U8, &[6, 4]).unwrap();
    let mut sums = pixels(24);
    for row in sums.chunks_exact_mut(4) {
        (1..4).for_each(|at| row[at] = row[at].wrapping_add(row[at - 1]));
    }
    assert_eq!(decode(&format, &image, &[6, 4]).unwrap(), sums);
    let error = v3(json!(["bytes", "zstd", "imagecodecs_png"]), DType::U8, &[6, 4]).unwrap_err();
    assert!(error.message().contains("behind a compressor"), "{error}");
    // virtual-tiff: channels behind the pixels.
    let transpose = json!({"name": "transpose", "configuration": {"order": [0, 2, 1]}});
    let chunky = json!({"name": "ChunkyCodec", "configuration": {"endian": "little"}});
    let format = v3(json!([transpose, chunky, "imagecodecs_png"]), DType::U8, &[3, 6, 4]).unwrap();
    assert_eq!(format.order, [1, 2, 0], "rows, columns, channels");
    let image = png(4, 6, ::png::ColorType::Rgb, ::png::BitDepth::Eight, &pixels(72));
    assert_eq!(decode(&format, &image, &[3, 6, 4]).unwrap(), pixels(72));
}

#[test]
fn configurations_that_are_refused() {
    let fortran = V2Codecs {
        fortran: true,
        kept_dims: 0,
        big_endian: false,
        filters: vec![],
        compressor: Some(json!({"id": "imagecodecs_png"})),
    };
    let error = fortran.format(DType::U8, 0, &[4, 4]).unwrap_err();
    assert!(error.message().contains("imagecodecs_png: images have no order \"F\""), "{error}");
    let error = v2(json!({"id": "imagecodecs_png", "gamma": 2}), DType::U8, &[4, 4]).unwrap_err();
    assert!(error.message().contains("gamma: 2"), "{error}");
    let error = v2(json!({"id": "imagecodecs_png"}), DType::F32, &[4, 4]).unwrap_err();
    assert!(error.message().contains("expected elements of the type uint8, uint16, but found float32"), "{error}");
    for name in ["imagecodecs_lzw", "imagecodecs_deflate"] {
        let error = v2(json!({"id": name, "window": 3}), DType::U8, &[4, 4]).unwrap_err();
        assert!(error.message().contains("window: 3"), "{error}");
    }
    let error = v2(json!({"id": "imagecodecs_deflate", "raw": 3}), DType::U8, &[4, 4]).unwrap_err();
    assert!(error.message().contains("raw: expected true or false"), "{error}");
}
