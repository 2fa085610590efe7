//! JPEG streams of each kind, what their configurations say, and what is refused. `tests/integration/images.rs`
//! compares values with imagecodecs.

use serde_json::{Value, json};

use crate::images::tests::{decode, v2, v3};
use crate::{Chain, ImageFormat};
use dali_zarr_base::dtype::DType;

const COLOR: &[u8] = include_bytes!("../../tests/images/420.jpg");
const PROGRESSIVE: &[u8] = include_bytes!("../../tests/images/progressive.jpg");
const RESTARTS: &[u8] = include_bytes!("../../tests/images/restarts.jpg");
const SHAPE: &[u64] = &[17, 33, 3];

/// Decodes with fields of `imagecodecs_jpeg`.
fn with(fields: Value, encoded: &[u8], shape: &[u64]) -> Result<Vec<u8>, String> {
    let mut codec = fields;
    codec["id"] = json!("imagecodecs_jpeg");
    let format = v2(codec, DType::U8, shape).map_err(|e| e.message().to_owned())?;
    decode(&format, encoded, shape).map_err(|e| e.message().to_owned())
}

/// Returns the place of a segment's marker.
fn segment(encoded: &[u8], marker: u8) -> usize {
    encoded.windows(2).position(|two| two == [0xff, marker]).unwrap()
}

#[test]
fn headers_that_do_not_fit() {
    let sof = segment(COLOR, 0xc0);
    for (change, expected) in [
        (&[(5, 0), (6, 18)][..], "18 rows of 33 pixels with 3 channels of uint8"),
        (&[(7, 0xff), (8, 0xff)], "17 rows of 65535 pixels"),
        (&[(4, 12)], "12 bits"),
        (&[(1, 0xc3)], "lossless"),
        (&[(1, 0xc9)], "arithmetic"),
        (&[(1, 0xc5)], "segment 0xc5"),
        (&[(5, 0), (6, 0)], "frame is damaged"),
        (&[(11, 0x55)], "component is damaged"),
        (&[(13, 1)], "same number"),
        (&[(11, 0x44)], "whole number of samples|MCU|ends too early|decoded"),
    ] {
        let mut wrong = COLOR.to_vec();
        change.iter().for_each(|&(at, value)| wrong[sof + at] = value);
        let error = with(json!({}), &wrong, SHAPE).unwrap_err();
        assert!(expected.split('|').any(|one| error.contains(one)), "{change:?}: {error}");
    }
    let error = with(json!({}), COLOR, &[17, 33]).unwrap_err();
    assert!(error.contains("uint8 with the shape [17, 33]"), "{error}");
    assert!(with(json!({}), b"", SHAPE).unwrap_err().contains("no bytes at all"));
    assert!(with(json!({}), b"\x89PNG", SHAPE).unwrap_err().contains("begin"));
    let twice = [&COLOR[..COLOR.len() - 2], &COLOR[2..]].concat();
    assert!(with(json!({}), &twice, SHAPE).unwrap_err().contains("two frames"));
}

/// Four components of 4 x 4 blocks fill a row of pixels up to 32 rows, and a progressive image keeps coefficients for all.
#[test]
fn blocks_that_reach_far_beyond_the_pixels() {
    let mut thin = vec![0xff, 0xd8, 0xff, 0xc2, 0, 20, 8, 0, 1, 0xff, 0xff, 4];
    (1..=4).for_each(|id| thin.extend([id, 0x44, 0]));
    thin.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 0, 0, 1, 2, 3, 4, 0xff, 0xd9]);
    let error = with(json!({}), &thin, &[1, 65_535, 4]).unwrap_err();
    assert!(error.contains("far beyond its pixels"), "{error}");
}

#[test]
fn scans_that_are_not_complete() {
    let shape = &[25, 30, 3];
    let good = with(json!({}), PROGRESSIVE, shape).unwrap();
    let mut scans = Vec::new();
    let mut at = 0;
    while let Some(next) = PROGRESSIVE[at..].windows(2).position(|two| two == [0xff, 0xda]) {
        scans.push(at + next);
        at += next + 2;
    }
    assert!(scans.len() > 5);
    for &scan in &scans[1..] {
        let error = with(json!({}), &PROGRESSIVE[..scan], shape).unwrap_err();
        assert!(error.contains("wasn't written completely"), "{error}");
    }
    let again = [&PROGRESSIVE[..scans[1]], &PROGRESSIVE[scans[0]..]].concat();
    assert!(with(json!({}), &again, shape).unwrap_err().contains("twice"));
    // Without the end of the stream, all pixels are there.
    assert_eq!(with(json!({}), &PROGRESSIVE[..PROGRESSIVE.len() - 2], shape).unwrap(), good);
    let shape = &[50, 40, 3];
    with(json!({}), RESTARTS, shape).unwrap();
    for (from, to) in [(0xd1, 0xd2), (0xd2, 0xd0)] {
        let mut wrong = RESTARTS.to_vec();
        let at = segment(&wrong, from);
        wrong[at + 1] = to;
        assert!(with(json!({}), &wrong, shape).unwrap_err().contains("restart"), "{from:x}");
    }
    let mut wrong = RESTARTS.to_vec();
    let at = segment(&wrong, 0xd1);
    wrong.drain(at..at + 2);
    assert!(with(json!({}), &wrong, shape).is_err());
}

#[test]
fn colours() {
    let rgb = with(json!({}), COLOR, SHAPE).unwrap();
    for (fields, shape, expected) in [
        (json!({"colorspace_jpeg": "YCbCr", "colorspace_data": "RGB"}), SHAPE, Some(&rgb)),
        (json!({"colorspace_jpeg": 3, "colorspace_data": 2}), SHAPE, Some(&rgb)),
        (json!({"colorspace_jpeg": null, "colorspace_data": "rgb"}), SHAPE, Some(&rgb)),
        (json!({"colorspace_jpeg": "UNKNOWN", "colorspace_data": "UNKNOWN"}), SHAPE, Some(&rgb)),
        (json!({"colorspace_jpeg": "RGB"}), SHAPE, None),
        (json!({"colorspace_jpeg": "YCBCR"}), SHAPE, None),
        (json!({"colorspace_data": "GRAYSCALE"}), &[17, 33], None),
        (json!({"colorspace_jpeg": "RGB", "colorspace_data": "GRAY"}), &[17, 33, 1], None),
        (json!({"colorspace_data": "RGBA"}), &[17, 33, 4], None),
    ] {
        let found = with(fields.clone(), COLOR, shape).unwrap_or_else(|e| panic!("{fields}: {e}"));
        assert!(expected.is_none_or(|expected| *expected == found), "{fields}");
        if shape == [17, 33, 4] {
            let pixels = found.chunks_exact(4).zip(rgb.chunks_exact(3));
            assert!(pixels.clone().all(|(four, three)| four[..3] == *three && four[3] == 255), "{fields}");
        }
    }
    let raw = with(json!({"colorspace_jpeg": "YCBCR"}), COLOR, SHAPE).unwrap();
    let luma = with(json!({"colorspace_data": "GRAYSCALE"}), COLOR, &[17, 33]).unwrap();
    assert!(raw.chunks_exact(3).zip(&luma).all(|(pixel, luma)| pixel[0] == *luma));
    assert_eq!(with(json!({"colorspace_jpeg": "RGB"}), COLOR, SHAPE).unwrap(), raw, "as they are stored");
    for (fields, expected) in [
        (json!({"colorspace_data": "CMYK"}), "from which Cmyk can't be made"),
        (json!({"colorspace_jpeg": "CMYK"}), "3 components"),
        (json!({"colorspace_jpeg": "LAB"}), "colorspace_jpeg"),
        (json!({"lossless": true}), "lossless"),
        (json!({"quality": 90}), "quality"),
        (json!({"tables": "/9j/2f8"}), "tables"),
        (json!({"tables": 3}), "tables"),
        (json!({"header": [1]}), "header"),
    ] {
        let error = with(fields.clone(), COLOR, SHAPE).unwrap_err();
        assert!(error.contains(expected), "{fields}: {error}");
    }
}

#[test]
fn the_codec_of_zarr_extensions() {
    let expected = with(json!({}), COLOR, SHAPE).unwrap();
    for configuration in [
        json!({"quality": 85, "encoded_color_space": "ycbcr", "subsampling": [[2, 2], [1, 1], [1, 1]]}),
        json!({"quality": 85, "encoded_color_space": "ycbcr", "subsampling": "4:2:0"}),
        json!({}),
    ] {
        let format = v3(json!([{"name": "jpeg", "configuration": configuration}]), DType::U8, SHAPE).unwrap();
        assert_eq!(decode(&format, COLOR, SHAPE).unwrap(), expected);
    }
    for (configuration, expected) in [
        (json!({"quality": 101}), "quality"),
        (json!({"encoded_color_space": "xyb"}), "encoded_color_space"),
        (json!({"subsampling": [[2, 5]]}), "subsampling"),
        (json!({"level": 3}), "level"),
    ] {
        let error = v3(json!([{"name": "jpeg", "configuration": configuration}]), DType::U8, SHAPE).unwrap_err();
        assert!(error.message().contains(expected), "{error}");
    }
    assert!(v2(json!({"id": "jpeg"}), DType::U8, SHAPE).is_err(), "a codec of v3");
}

/// What the GPU's engine takes: whole baseline images with the usual sampling, whose markers and restarts are in order.
#[test]
fn images_for_the_engine() {
    let format = |fields: Value, shape: &[u64]| {
        let mut codec = fields;
        codec["id"] = json!("imagecodecs_jpeg");
        v2(codec, DType::U8, shape).unwrap()
    };
    let taken = |encoded: &[u8], shape: &[u64]| format(json!({}), shape).image_for_gpu(encoded, shape);
    let image = taken(COLOR, SHAPE).unwrap();
    assert_eq!((image.range, image.width, image.height, image.channels), (0..COLOR.len(), 33, 17, 3));
    assert!(taken(COLOR, &[1, 17, 33, 3]).is_ok());
    assert_eq!(taken(COLOR, &[17, 33, 4]).unwrap_err(), "it is of another size than the chunk");
    assert_eq!(taken(PROGRESSIVE, &[25, 30, 3]).unwrap_err(), "it isn't a baseline image of one scan");
    // The end, a part of the scan with a restart, what stands behind the end.
    for cut in [COLOR.len() - 1, COLOR.len() / 2, 300, 2, 0] {
        assert!(taken(&COLOR[..cut], SHAPE).is_err(), "{cut}");
    }
    assert!(taken(&[COLOR, b"behind"].concat(), SHAPE).is_err());
    let scan = segment(COLOR, 0xda) + 14;
    for marker in [0xd0, 0xd9, 0xda, 0xc4] {
        let mut wrong = COLOR.to_vec();
        wrong.splice(scan + 40..scan + 40, [0xff, marker]);
        assert!(taken(&wrong, SHAPE).is_err(), "{marker:#x}");
    }
    // Segments that are skipped by their length, and what others may take for something else.
    let with_bytes = |at: usize, bytes: &[u8]| [&COLOR[..at], bytes, &COLOR[at..]].concat();
    for marker in [0xfe, 0xe1, 0xef] {
        assert!(taken(&with_bytes(2, &[0xff, marker, 0, 5, b'a', 0xff, 0xc0]), SHAPE).is_ok(), "{marker:#x}");
    }
    for hidden in [
        &[0xff, 0x01][..],
        &[0xff, 0xf0, 0, 3, 1],
        &[0xff, 0x02, 0, 2],
        &[0xff],
        &[0],
        &[0xff, 0xd8],
        &[0xff, 0xfe, 0, 1],
    ] {
        assert!(taken(&with_bytes(2, hidden), SHAPE).is_err(), "{hidden:x?}");
    }
    assert!(taken(&with_bytes(COLOR.len() - 2, &[0xff, 0xfe, 0, 3, 7]), SHAPE).is_err());
    let wide = [&[0xff, 0xdb, 0, 131, 0x13][..], &[0, 9].repeat(64)].concat();
    assert!(taken(&with_bytes(2, &wide), SHAPE).is_err());
    // Letters for colours, sampling 4:1:1, a table that isn't there.
    let sof = segment(COLOR, 0xc0);
    for (at, value) in [(1, 0xc1), (11, 0x41), (14, 0x12), (12, 3)] {
        let mut wrong = COLOR.to_vec();
        wrong[sof + at] = value;
        assert!(taken(&wrong, SHAPE).is_err(), "{at}");
    }
    // What the metadata say already.
    let of_others =
        [json!({"colorspace_jpeg": "RGB"}), json!({"colorspace_jpeg": "YCBCR"}), json!({"colorspace_data": "CMYK"})];
    for colours in of_others {
        let format = format(colours, SHAPE);
        assert_eq!(format.image_for_gpu(COLOR, SHAPE).unwrap_err(), "its colours are for the CPU");
        assert!(format.gpu_chain().is_none());
    }
    let both = json!({"colorspace_jpeg": "YCBCR", "colorspace_data": "RGB"});
    assert!(format(both, SHAPE).gpu_chain().is_some() && format(json!({}), &[17, 33, 4]).gpu_chain().is_none());
    // Tables that are stored elsewhere are nothing for the GPU.
    let chain = format(json!({}), SHAPE);
    assert_eq!(chain.gpu_chain().and_then(Chain::image_format), Some(ImageFormat::Jpeg));
    let tables = json!({"header": "/9g="});
    assert!(format(tables, SHAPE).gpu_chain().is_none());
}

#[test]
fn restarts_for_the_engine() {
    let shape = &[50, 40, 3];
    let format = v2(json!({"id": "imagecodecs_jpeg"}), DType::U8, shape).unwrap();
    assert!(format.image_for_gpu(RESTARTS, shape).is_ok());
    let places: Vec<usize> = RESTARTS
        .windows(2)
        .enumerate()
        .filter(|(_, two)| two[0] == 0xff && matches!(two[1], 0xd0..=0xd7))
        .map(|(at, _)| at)
        .collect();
    assert!(places.len() > 1);
    for &at in &places {
        let mut wrong = RESTARTS.to_vec();
        wrong[at + 1] ^= 1;
        assert!(format.image_for_gpu(&wrong, shape).is_err(), "{at}");
        wrong.drain(at..at + 2);
        assert!(format.image_for_gpu(&wrong, shape).is_err(), "{at}");
    }
}
