//! JPEG 2000 codestreams that are refused before memory is taken for them, and what their configuration says.
//! `tests/integration/images.rs` compares values with imagecodecs.

use serde_json::{Value, json};

use crate::images::tests::{decode, v2, v3};
use crate::{Chain, ImageFormat};
use dali_zarr_base::dtype::DType;

const GRAY: &[u8] = include_bytes!("../../tests/images/gray.j2k");
const SHAPE: &[u64] = &[13, 19];
/// Places in the codestream: fields of SIZ, and of COD after it.
const WIDTH: usize = 8;
const TILE: usize = 24;
const CHANNELS: usize = 40;
const COMPONENT: usize = 42;
const COD: usize = 45;

fn refused(encoded: &[u8], shape: &[u64]) -> String {
    let format = v3(json!(["imagecodecs_jpeg2k"]), DType::U8, shape).unwrap();
    decode(&format, encoded, shape).unwrap_err().message().to_owned()
}

/// Returns the image with other bytes at a place.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut changed = GRAY.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    changed
}

/// Returns the image with more bytes at a place.
fn inserted(at: usize, bytes: &[u8]) -> Vec<u8> {
    [&GRAY[..at], bytes, &GRAY[at..]].concat()
}

/// Returns the place of the first tile-part.
fn tile_part() -> usize {
    GRAY.windows(4).position(|four| four == [0xff, 0x90, 0, 10]).unwrap()
}

/// Returns a header of an image with these tiles, levels, blocks and precincts, and no tile-parts.
fn header(size: [u32; 2], tile: [u32; 2], layers: u16, levels: u8, block: [u8; 2], precinct: Option<u8>) -> Vec<u8> {
    let mut out = vec![0xff, 0x4f, 0xff, 0x51, 0, 41, 0, 0];
    for number in [size[0], size[1], 0, 0, tile[0], tile[1], 0, 0] {
        out.extend(number.to_be_bytes());
    }
    out.extend([0, 1, 7, 1, 1]);
    let precincts = vec![precinct.unwrap_or(0); precinct.map_or(0, |_| usize::from(levels) + 1)];
    out.extend([0xff, 0x52, 0, 12 + precincts.len() as u8, u8::from(precinct.is_some()), 2]);
    out.extend(layers.to_be_bytes());
    out.extend([0, levels, block[0], block[1], 0, 1]);
    out.extend(precincts);
    out.extend([0xff, 0x5c, 0, 4 + 3 * levels, 0x40]);
    out.extend(vec![0x40; 1 + 3 * usize::from(levels)]);
    out.extend([0xff, 0x90, 0, 10]);
    out
}

#[test]
fn other_images_are_refused_by_their_header() {
    let other = refused(&with(WIDTH, &20u32.to_be_bytes()), SHAPE);
    assert!(other.contains("13 rows of 20 pixels with 1 channels of uint8"), "{other}");
    for (at, bytes, text) in [
        (WIDTH, &u32::MAX.to_be_bytes()[..], "don't cover"),
        (TILE, &[0; 4], "don't cover"),
        (16, &[0, 0, 1, 0], "don't cover"),
        (COMPONENT, &[0x87], "channels of int8"),
        (COMPONENT, &[11], "channels of uint16"),
        (COMPONENT, &[23], "24 bits"),
        (COMPONENT + 1, &[2], "fewer samples"),
        (CHANNELS, &[0, 0], "0 components"),
        (CHANNELS, &[0xff, 0xff], "65535 components"),
        (6, &[0x40], "HTJ2K"),
        (COD + 12, &[0x40], "HTJ2K"),
        (COD + 9, &[33], "more levels"),
        (COD + 10, &[8, 8], "larger blocks"),
        (COD + 3, &[13], "wrong precincts"),
        (0, &[0xff, 0xd8], "no header"),
        (COD, &[0xff, 0x50], "ff50 for the image"),
    ] {
        let error = refused(&with(at, bytes), SHAPE);
        assert!(error.contains(text), "{at} {bytes:?}: {error}");
    }
}

/// A million pixels, of which a few have a tile, a precinct, or a code-block of their own.
#[test]
fn structures_that_need_more_memory_than_pixels_are_refused() {
    let shape = &[1024, 1024];
    for (tile, layers, levels, block, precinct, text) in [
        ([1, 1], 1, 0, [4, 4], None, "1048576 tiles"),
        ([5, 5], 1, 0, [4, 4], None, "its tiles and blocks need"),
        ([1024, 1024], 1, 0, [4, 4], Some(0x00), "its tiles and blocks need"),
        ([1024, 1024], 1, 1, [4, 4], Some(0x11), "its tiles and blocks need"),
        ([1024, 1024], 32, 5, [0, 0], None, "its tiles and blocks need"),
        ([8, 8], 1, 32, [4, 4], Some(0xff), "its tiles and blocks need"),
        ([1024, 1024], 1, 1, [4, 4], Some(0x00), "wrong precincts"),
        // What is usual passes, and lacks its tiles.
        ([1024, 1024], 12, 6, [4, 4], None, "truncated"),
        ([256, 256], 1, 5, [3, 3], Some(0x77), "truncated"),
    ] {
        let error = refused(&header([1024, 1024], tile, layers, levels, block, precinct), shape);
        assert!(error.contains(text), "{tile:?} {layers} {levels} {block:?} {precinct:?}: {error}");
    }
}

#[test]
fn damaged_structures_are_refused() {
    let part = tile_part();
    for (encoded, text) in [
        (inserted(part, &[0xff, 0x5f, 0, 9, 0, 0, 0, 1, 6, 1, 0]), "ff5f for the image"),
        (inserted(part, &[0xff, 0x60, 0, 3, 0]), "ff60 for the image"),
        (inserted(part, &[0xff, 0x5d, 0, 4, 0, 0]), "ff5d has a wrong length"),
        (inserted(part + 12, &[0xff, 0x52, 0, 3, 0]), "ff52 for a tile"),
        (inserted(part + 12, &[0xff, 0x61, 0, 3, 0]), "ff61 for a tile"),
        (with(part + 5, &[3]), "a tile 3, of 1"),
        (with(part + 6, &[0, 0, 0, 0]), "tile 0 has a wrong length"),
        (with(part + 6, &[0, 1, 0, 0]), "tile 0 is truncated"),
        (with(part + 3, &[11]), "a tile-part's header"),
        (with(TILE, &[0, 0, 0, 10]), "its tile 1 is missing"),
        (GRAY[..GRAY.len() - 2].to_vec(), "truncated"),
        (GRAY[..3].to_vec(), "truncated"),
    ] {
        let error = refused(&encoded, SHAPE);
        assert!(error.contains(text) && error.contains("damaged"), "{text}: {error}");
    }
    // Other bytes in place of a packet's header.
    let data = part + 14;
    for byte in [0x80u8, 0xfe, 0x55] {
        let mut wrong = GRAY.to_vec();
        wrong[data..data + 40].fill(byte);
        assert!(refused(&wrong, SHAPE).contains("imagecodecs_jpeg2k"));
    }
}

/// What the GPU takes: what OpenJPEG writes by default, alone or in a file.
#[test]
fn images_for_the_gpu() {
    let format = v3(json!(["imagecodecs_jpeg2k"]), DType::U8, SHAPE).unwrap();
    let taken = |encoded: &[u8]| format.image_for_gpu(encoded, SHAPE);
    let image = taken(GRAY).unwrap();
    assert_eq!((image.range, image.width, image.height, image.channels), (0..GRAY.len(), 19, 13, 1));
    assert_eq!((image.bits, image.signed), (8, false));
    assert_eq!(format.gpu_chain().and_then(Chain::image_format), Some(ImageFormat::Jpeg2k));
    // Only the codestream is for the GPU.
    let file = [&[0, 0, 0, 12], &b"jP  "[..], &[13, 10, 0x87, 10], &[0; 4], b"jp2c", GRAY, b"behind"].concat();
    assert_eq!(taken(&file).unwrap().range, 20..20 + GRAY.len());
    let part = tile_part();
    let comment = [0xff, 0x64, 0, 6, 0, 1, b'a', b'b'];
    assert!(taken(&inserted(part, &comment)).is_ok());
    let qcd = GRAY.windows(2).position(|two| two == [0xff, 0x5c]).unwrap();
    let lengths = [0xff, 0x55, 0, 4, 0, 0];
    let unusual = "it has parts that usual encoders don't write";
    for (encoded, reason) in [
        (with(WIDTH, &20u32.to_be_bytes()), "it is damaged, or of another array"),
        (with(WIDTH, &[0xff; 4]), "it is damaged, or of another array"),
        (GRAY[..GRAY.len() - 1].to_vec(), "it is damaged, or of another array"),
        // Lengths of tiles, modes of blocks, markers around packets, colours of one channel, other steps.
        (inserted(part, &lengths), unusual),
        (with(COD + 12, &[1]), unusual),
        (with(COD + 4, &[2]), unusual),
        (with(COD + 8, &[1]), unusual),
        (with(COD + 13, &[0]), unusual),
        (inserted(COD, &GRAY[COD..COD + 14]), unusual),
        (inserted(qcd, &GRAY[qcd..part]), unusual),
        (inserted(COD, &GRAY[qcd..qcd + 6]), unusual),
        (with(COD + 10, &[1]), unusual),
        (with(TILE, &[0, 0, 0, 20]), unusual),
        (with(7, &[9]), unusual),
        (with(part + 11, &[2]), unusual),
        (with(part + 10, &[1]), unusual),
    ] {
        assert_eq!(taken(&encoded).unwrap_err(), reason, "{encoded:x?}");
    }
    // Of signs the library knows those of two bytes.
    let (signed, bytes) =
        (include_bytes!("../../tests/images/signed.jp2"), include_bytes!("../../tests/images/bytes.j2k"));
    let of = |dtype, shape| v3(json!(["imagecodecs_jpeg2k"]), dtype, shape).unwrap();
    let image = of(DType::I16, &[30, 40]).image_for_gpu(signed, &[30, 40]).unwrap();
    assert_eq!((image.bits, image.signed), (16, true));
    let shape = &[17, 33, 3];
    assert!(of(DType::I8, shape).image_for_gpu(bytes, shape).is_ok() && of(DType::I8, shape).gpu_chain().is_none());
}

#[test]
fn boxes_that_change_values_are_refused() {
    let boxed = |kind: &[u8], inside: &[u8]| {
        let mut out = (8 + inside.len() as u32).to_be_bytes().to_vec();
        out.extend(kind);
        out.extend(inside);
        out
    };
    let file = |header: &[u8], last: &[u8]| {
        let mut out = boxed(b"jP  ", &[13, 10, 0x87, 10]);
        out.extend(boxed(b"ftyp", b"jp2 \0\0\0\0jp2 "));
        out.extend(boxed(b"jp2h", header));
        out.extend(last);
        out
    };
    let stream = boxed(b"jp2c", GRAY);
    let format = v3(json!(["imagecodecs_jpeg2k"]), DType::U8, SHAPE).unwrap();
    let expected = decode(&format, GRAY, SHAPE).unwrap();
    let open_end = [&[0; 4], &b"jp2c"[..], GRAY].concat();
    let long = [&[0, 0, 0, 1], &b"jp2c"[..], &(GRAY.len() as u64 + 16).to_be_bytes(), GRAY].concat();
    let gray = boxed(b"colr", &[1, 0, 0, 0, 0, 0, 17]);
    let opacity = boxed(b"cdef", &[0, 2, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0]);
    for (header, last) in [(&gray, &stream), (&opacity, &open_end), (&gray, &long)] {
        assert_eq!(decode(&format, &file(header, last), SHAPE).unwrap(), expected);
    }
    for (header, last, text) in [
        (boxed(b"pclr", &[0; 9]), &stream, "a palette"),
        (boxed(b"colr", &[1, 0, 0, 0, 0, 0, 18]), &stream, "sYCC"),
        (boxed(b"cdef", &[0, 1, 0, 0, 0, 0, 0, 2]), &stream, "another order"),
        (vec![0, 0, 0, 99, b'c'], &stream, "a box is truncated"),
        (vec![0, 0, 0, 3, b'c', b'o', b'l', b'r'], &stream, "a box is truncated"),
        (gray.clone(), &gray, "no codestream"),
        (gray.clone(), &[0, 0, 0, 1, b'j', b'p', b'2', b'c', 0xff].to_vec(), "a box is truncated"),
    ] {
        let error = refused(&file(&header, last), SHAPE);
        assert!(error.contains(text), "{text}: {error}");
    }
}

#[test]
fn what_configurations_say() {
    let told = |fields: Value| {
        let mut codec = fields;
        codec["id"] = json!("imagecodecs_jpeg2k");
        v2(codec, DType::U16, &[4, 4]).map(|format| format.chain.lossy_images()).map_err(|e| e.message().to_owned())
    };
    for (fields, lossy) in [
        (json!({}), None),
        (json!({"reversible": true, "level": null}), Some(false)),
        (json!({"reversible": true, "level": 0}), Some(false)),
        (json!({"reversible": true, "level": 40}), Some(true)),
        (json!({"reversible": false}), Some(true)),
        (json!({"level": 40, "planar": false, "tile": null, "mct": true}), Some(true)),
    ] {
        assert_eq!(told(fields.clone()), Ok(lossy), "{fields}");
    }
    assert!(told(json!({"planar": true})).unwrap_err().contains("planar: expected false or null"));
    assert!(told(json!({"reduce": 1})).unwrap_err().contains("reduce: 1"));
    let error = v2(json!({"id": "imagecodecs_jpeg2k"}), DType::F32, &[4, 4]).unwrap_err();
    assert!(error.message().contains("expected elements of the type uint8, uint16, int8, int16"), "{error}");
    for (codec, lossy) in [
        (json!({"id": "imagecodecs_jpeg"}), Some(true)),
        (json!({"id": "imagecodecs_png"}), Some(false)),
        (json!({"id": "imagecodecs_webp"}), None),
        (json!({"id": "imagecodecs_webp", "lossless": true}), Some(false)),
        (json!({"id": "imagecodecs_webp", "lossless": false}), Some(true)),
        (json!({"id": "zstd"}), Some(false)),
    ] {
        assert_eq!(v2(codec.clone(), DType::U8, &[4, 4, 3]).unwrap().chain.lossy_images(), lossy, "{codec}");
    }
    let chain = json!(["imagecodecs_delta", "imagecodecs_jpeg2k", "zstd"]);
    assert_eq!(v3(chain, DType::U8, &[4, 4]).unwrap().chain.lossy_images(), None);
}
