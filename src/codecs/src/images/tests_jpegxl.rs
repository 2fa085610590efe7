//! JPEG XL images that are refused before memory is taken for them, and what their configuration says.
//! `tests/integration/images.rs` compares values with imagecodecs.

use serde_json::{Value, json};

use super::header::{Header, Writer};
use super::reader::Reader;
use crate::images::tests::{decode, v2, v3};
use dali_zarr_base::dtype::DType;

const COLOR: &[u8] = include_bytes!("../../tests/images/color.jxl");
const SHAPE: &[u64] = &[17, 33, 3];

fn refused(encoded: &[u8], shape: &[u64]) -> String {
    let format = v3(json!(["imagecodecs_jpegxl"]), DType::U8, shape).unwrap();
    decode(&format, encoded, shape).unwrap_err().message().to_owned()
}

/// Adds each of some numbers with so many bits.
fn bits(writer: &mut Writer, fields: &[(u32, u32)]) {
    fields.iter().for_each(|&(count, value)| writer.bits(count, value));
}

/// The header of an image of 8 bits: RGB with other channels that are alpha, as XYB or not.
fn header(width: u32, height: u32, extra: u32, xyb: bool) -> Vec<u8> {
    let planar = false;
    let (colors, dtype, linear, narrow) = (3, DType::U8, false, true);
    Header { width, height, colors, extra, planar, dtype, bits: 8, xyb, linear, narrow }.written(false)
}

/// The beginning of a header of 64 x 64 pixels, up to its metadata.
fn sized() -> Writer {
    let mut writer = Writer::default();
    bits(&mut writer, &[(16, 0x0aff), (1, 1), (5, 7), (3, 1)]);
    writer
}

/// A header of 64 x 64 pixels, with these bits of metadata.
fn told(fields: &[(u32, u32)]) -> Vec<u8> {
    let mut writer = sized();
    bits(&mut writer, fields);
    bits(&mut writer, &[(1, 1)]);
    writer.bytes.extend([0; 40]);
    writer.bytes
}

/// The header of a frame and its table, with its sections.
fn frame(fields: &[(u32, u32)], sections: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::default();
    bits(&mut writer, fields);
    // In their order.
    bits(&mut writer, &[(1, 0)]);
    let mut table = Writer::default();
    sections.iter().for_each(|one| bits(&mut table, &[(2, 1), (14, one.len() as u32 - 1024)]));
    [writer.bytes, table.bytes, sections.concat()].concat()
}

/// Fields of a frame with frequencies, all as usual.
const USUAL: &[(u32, u32)] = &[(1, 1)];
/// Fields of a frame with samples as they are, without XYB and filters, and with groups of 128 x 128.
const MODULAR: &[(u32, u32)] = &[
    (1, 0),
    (2, 0),
    (1, 1),
    (2, 0),
    (1, 0),
    (2, 0),
    (2, 0),
    (2, 0),
    (1, 0),
    (2, 0),
    (1, 1),
    (2, 0),
    (1, 0),
    (1, 0),
    (2, 0),
    (2, 0),
    (2, 0),
];

/// Fills a section up to the least size of `frame`.
fn section(fields: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    fields(&mut writer);
    let len = writer.bytes.len().max(1024);
    writer.bytes.resize(len, 0);
    writer.bytes
}

/// A code of one symbol, which is zero, for these contexts.
fn zeros(writer: &mut Writer, contexts: u32) {
    bits(writer, &[(1, 0)]);
    if contexts > 1 {
        bits(writer, &[(1, 1), (2, 0)]);
    }
    bits(writer, &[(1, 1), (4, 15), (1, 0)]);
}

/// What is before a stream of samples: the usual quantisation, and a tree of one leaf.
fn global(writer: &mut Writer) {
    bits(writer, &[(1, 1), (1, 1)]);
    zeros(writer, 6);
    zeros(writer, 1);
}

/// The same, where frequencies are coded.
fn global_of_frequencies(writer: &mut Writer) {
    bits(writer, &[(1, 1), (13, 100 << 2), (2, 0), (1, 1), (1, 1), (1, 1)]);
    zeros(writer, 6);
    zeros(writer, 1);
}

/// The header of a stream with the tree of all, and these transforms.
fn stream(writer: &mut Writer, transforms: &[&[(u32, u32)]]) {
    bits(writer, &[(1, 1), (1, 1)]);
    match transforms.len() as u32 {
        count @ (0 | 1) => bits(writer, &[(2, count)]),
        count => bits(writer, &[(2, 2), (4, count - 2)]),
    }
    transforms.iter().for_each(|fields| bits(writer, fields));
}

/// A palette of three channels, with the most colours.
const PALETTE: &[(u32, u32)] = &[(2, 1), (5, 0), (2, 1), (2, 3), (16, 0xffff), (2, 3), (16, 0xffff), (4, 0)];
/// A palette of a channel, with no colours.
const SMALL: &[(u32, u32)] = &[(2, 1), (5, 0), (2, 0), (2, 0), (8, 0), (2, 0), (4, 0)];
/// Halves of a channel, once.
const SQUEEZE: &[(u32, u32)] = &[(2, 2), (2, 1), (4, 0), (2, 0), (5, 0), (2, 0)];

#[test]
fn headers_that_take_memory_are_refused() {
    let usual = |more: &[(u32, u32)]| [&[(1, 0), (1, 0), (1, 0), (2, 0), (1, 1)], more].concat();
    for (fields, text) in [
        (&[(1, 0), (1, 1), (3, 5)][..], "orientation"),
        (&[(1, 0), (1, 1), (3, 0), (1, 1)], "an intrinsic size"),
        (&[(1, 0), (1, 1), (3, 0), (1, 0), (1, 1)], "a preview"),
        (&[(1, 0), (1, 1), (3, 0), (1, 0), (1, 0), (1, 1)], "several frames"),
        (&[(1, 0), (1, 0), (1, 0), (2, 3), (6, 23), (1, 1), (2, 0), (1, 1), (1, 1), (2, 0)], "Whole(24)"),
        (
            &[(1, 0), (1, 0), (1, 1), (2, 2), (4, 6), (1, 1), (2, 0), (1, 1), (1, 1), (2, 0)],
            "Float { bits: 24, exponent: 7 }",
        ),
        // As in the file of 52 bytes whose profile takes 268 MB.
        (&usual(&[(2, 0), (1, 1), (1, 0), (1, 1)]), "a colour profile"),
        (&usual(&[(2, 0), (1, 1), (1, 0), (1, 0), (2, 2), (4, 0)]), "the space 2"),
        (&usual(&[(2, 0), (1, 1), (1, 0), (1, 0), (2, 0), (2, 1), (2, 1), (1, 1), (24, 1), (2, 0)]), "neither sRGB"),
        (&usual(&[(2, 0), (1, 1), (1, 1), (2, 1), (4, 0)]), "extensions"),
        (&usual(&[(2, 3), (12, 4095)]), "4096 channels"),
        (&usual(&[(2, 2), (4, 0), (1, 1), (1, 1), (1, 1), (1, 1), (2, 0)]), "several channels"),
        (&usual(&[(2, 1), (1, 0), (2, 2), (4, 0)]), "the type 2"),
        (&usual(&[(2, 1), (1, 0), (2, 1), (1, 0), (2, 1), (2, 0), (2, 0)]), "different types"),
        (&usual(&[(2, 1), (1, 0), (2, 1), (1, 0), (2, 0), (2, 1), (2, 0)]), "fewer pixels"),
    ] {
        let error = refused(&told(fields), &[64, 64, 3]);
        assert!(error.contains(text), "{text}: {error}");
    }
    let mut tuned = sized();
    bits(&mut tuned, &[(1, 1), (1, 0), (1, 0)]);
    assert!(refused(&tuned.bytes, &[64, 64, 3]).contains("its own transform of colours"));
    let other = refused(&header(1 << 29, 1 << 29, 0, true), SHAPE);
    assert!(other.contains("536870912 rows of 536870912 pixels with 3 channels of uint8"), "{other}");
    for (encoded, text) in [(&COLOR[..3], "truncated"), (b"\xff\xd8\xff", "no header"), (&[0xff], "truncated")] {
        assert!(refused(encoded, SHAPE).contains(text), "{text}");
    }
}

#[test]
fn the_header_for_the_decoder_says_the_same() {
    for (dtype, depth) in [(DType::U8, 8), (DType::U8, 5), (DType::U16, 12), (DType::F16, 16), (DType::F32, 32)] {
        for (colors, extra, planar) in [(1, 0, false), (1, 1, false), (3, 0, false), (3, 1, false), (1, 3, true)] {
            for (xyb, linear, wide) in [(true, false, true), (false, true, false), (true, true, false)] {
                let (width, height, bits) = (70_000, 1 << 29, depth);
                let made = Header { width, height, colors, extra, planar, dtype, bits, xyb, linear, narrow: !wide };
                let read = Header::read(&mut Reader::new(&made.written(wide))).unwrap();
                assert_eq!(format!("{made:?}"), format!("{read:?}"));
            }
        }
    }
}

#[test]
fn frames_beside_the_image_are_refused() {
    let start = [(1, 0), (2, 0), (1, 0)];
    for (fields, text) in [
        (&[(1, 0), (2, 1), (1, 0), (2, 0)][..], "a frame of the type 1"),
        (&[(1, 0), (2, 3), (1, 0), (2, 0)], "a frame of the type 3"),
        (&[&start[..], &[(2, 1), (4, 0)]].concat(), "noise"),
        (&[&start[..], &[(2, 1), (4, 1)]].concat(), "patches without a frame"),
        (&[&start[..], &[(2, 1), (4, 15)]].concat(), "splines"),
        (&[&start[..], &[(2, 2), (8, 15)]].concat(), "a frame of low frequencies"),
        (&[&start[..], &[(2, 1), (4, 7)]].concat(), "unknown flags"),
        (&[&start[..], &[(2, 0), (2, 0), (6, 19), (2, 1)]].concat(), "progressive"),
        (&[&start[..], &[(2, 0), (2, 0), (6, 19), (2, 0), (1, 1)]].concat(), "a place of its own"),
        (&[&start[..], &[(2, 0), (2, 0), (6, 19), (2, 0), (1, 0), (2, 2)]].concat(), "blended"),
        (&[&start[..], &[(2, 0), (2, 0), (6, 19), (2, 0), (1, 0), (2, 0), (1, 0)]].concat(), "several frames"),
        // Not shown: as large as the image, one pixel larger, and not for patches.
        (&[(1, 0), (2, 2), (1, 1), (2, 0), (2, 0), (2, 1), (1, 1), (2, 0), (8, 64), (2, 0), (8, 65)], "larger"),
        (&[(1, 0), (2, 2), (1, 1), (2, 0), (2, 0), (2, 1), (1, 0), (2, 0), (1, 0)], "isn't for patches"),
    ] {
        let mut encoded = [header(64, 64, 0, true), frame(fields, &[])].concat();
        encoded.extend([0; 40]);
        let error = refused(&encoded, &[64, 64, 3]);
        assert!(error.contains(text), "{text}: {error}");
    }
    // Two frames for patches.
    let fields = [(1, 0), (2, 2), (1, 1), (2, 0), (2, 0), (2, 1), (1, 0), (2, 0), (1, 1), (2, 0), (1, 1)];
    let patches = frame(&fields, &[section(global)]);
    let error = refused(&[header(64, 64, 0, true), patches.clone(), patches].concat(), &[64, 64, 3]);
    assert!(error.contains("several frames that aren't shown"), "{error}");
    // YCbCr, channels of other sizes, and lossy ones that would stand behind coefficients.
    for (extra, xyb, fields, text) in [
        (0, false, &[(1, 0), (2, 0), (1, 0), (2, 0), (1, 1)][..], "YCbCr"),
        (1, true, &[(1, 0), (2, 0), (1, 0), (2, 0), (2, 0), (2, 1)], "fewer pixels"),
    ] {
        let encoded = [header(64, 64, extra, xyb), frame(fields, &[]), vec![0; 40]].concat();
        assert!(refused(&encoded, &[64, 64, 3 + u64::from(extra)]).contains(text), "{text}");
    }
    let sections = vec![section(global_of_frequencies); 5];
    let error = refused(&[header(300, 20, 1, true), frame(USUAL, &sections)].concat(), &[20, 300, 4]);
    assert!(error.contains("several groups"), "{error}");
    // A table that is longer than the file.
    let error = refused(&[header(3000, 2000, 0, true), vec![1, 0, 0]].concat(), &[2000, 3000, 3]);
    assert!(error.contains("truncated"), "{error}");
}

/// Frequencies with one section: the transforms of a stream of low frequencies, and of what describes blocks.
fn frequencies(low: &[&[(u32, u32)]], blocks: &[&[(u32, u32)]], more: &[(u32, u32)]) -> Vec<u8> {
    let one = section(|writer| {
        global_of_frequencies(writer);
        bits(writer, &[(2, 0)]);
        stream(writer, low);
        bits(writer, &[(6, 63)]);
        stream(writer, blocks);
        bits(writer, more);
        zeros(writer, 15 * 495);
    });
    [header(64, 64, 0, true), frame(USUAL, &[one])].concat()
}

/// Samples with groups of 128 x 128: the transforms of all, and of each group.
fn samples(all: &[&[(u32, u32)]], each: &[&[(u32, u32)]]) -> Vec<u8> {
    let first = section(|writer| {
        global(writer);
        stream(writer, all);
    });
    let group = section(|writer| stream(writer, each));
    [header(200, 100, 0, false), frame(MODULAR, &[first, group.clone(), group.clone(), group.clone(), group])].concat()
}

#[test]
fn sections_in_another_order() {
    let group = section(|writer| stream(writer, &[]));
    let first = section(|writer| {
        global(writer);
        stream(writer, &[]);
    });
    let mut writer = Writer::default();
    bits(&mut writer, MODULAR);
    // A code of 0 to 3 with two bits each, for all contexts.
    bits(&mut writer, &[(1, 1), (1, 0), (1, 1), (2, 0), (1, 1), (4, 15), (1, 1), (4, 1), (1, 1)]);
    bits(&mut writer, &[(2, 1), (2, 3), (2, 0), (2, 1), (2, 2), (2, 3), (1, 0)]);
    // Three sections stand elsewhere: the third place of all, then of those that are left the first and the second.
    bits(&mut writer, &[(2, 3), (2, 1), (2, 0), (2, 2)]);
    let mut table = Writer::default();
    let sections = [group.clone(), group.clone(), first, group.clone(), group];
    sections.iter().for_each(|one| bits(&mut table, &[(2, 1), (14, one.len() as u32 - 1024)]));
    let encoded = [header(200, 100, 0, false), writer.bytes, table.bytes, sections.concat()].concat();
    let format = v3(json!(["imagecodecs_jpegxl"]), DType::U8, &[100, 200, 3]).unwrap();
    assert!(decode(&format, &encoded, &[100, 200, 3]).unwrap().iter().all(|&value| value == 0));
}

#[test]
fn transforms_that_take_memory_are_refused() {
    let shape = &[64, 64, 3];
    let format = v3(json!(["imagecodecs_jpegxl"]), DType::U8, shape).unwrap();
    let gray = decode(&format, &frequencies(&[], &[], &[(1, 1), (2, 2)]), shape).unwrap();
    assert!(gray.windows(2).all(|two| two[0] == two[1]));
    for (low, blocks) in [(&[PALETTE][..], &[][..]), (&[], &[PALETTE]), (&[SQUEEZE], &[]), (&[], &[SMALL])] {
        let error = refused(&frequencies(low, blocks, &[(1, 1), (2, 2)]), shape);
        assert!(error.contains("transforms of low frequencies"), "{error}");
    }
    let error = refused(&frequencies(&[], &[], &[(1, 0), (2, 2)]), shape);
    assert!(error.contains("tables of quantisation"), "{error}");

    let shape = &[100, 200, 3];
    let format = v3(json!(["imagecodecs_jpegxl"]), DType::U8, shape).unwrap();
    let black = decode(&format, &samples(&[], &[]), shape).unwrap();
    assert!(black.iter().all(|&value| value == 0));
    for (all, each, text) in [
        (&[][..], &[PALETTE][..], "palettes of 413181 numbers"),
        (&[SQUEEZE], &[], "squeezed"),
        (&[], &[SQUEEZE], "squeezed"),
        (&[SMALL; 9], &[], "9 transforms"),
        (&[], &[SMALL; 9], "9 transforms"),
        // Of all groups: the crate itself compares it with the image.
        (&[PALETTE], &[], "expected imagecodecs_jpegxl data"),
    ] {
        let error = refused(&samples(all, each), shape);
        assert!(error.contains(text), "{text}: {error}");
    }
}

#[test]
fn trees_and_codes_that_take_memory_are_refused() {
    let with = |code: &dyn Fn(&mut Writer)| {
        let one = section(|writer| {
            bits(writer, &[(1, 1), (1, 1)]);
            code(writer);
        });
        refused(&[header(64, 64, 0, false), frame(MODULAR, &[one])].concat(), &[64, 64, 3])
    };
    // Contexts of values, of properties and of leaves have codes 0, 1 and 2 of one symbol each.
    let contexts = [(1, 0), (1, 1), (2, 2), (2, 0), (2, 1), (2, 2), (2, 2), (2, 2), (2, 2), (1, 1), (12, 0xfff)];
    // Each node splits, and takes no bits.
    let endless = with(&|writer| {
        bits(writer, &contexts);
        bits(writer, &[(1, 0), (1, 1), (4, 3), (3, 0), (1, 0)]);
        bits(writer, &[(2, 1), (2, 0), (4, 4)]);
    });
    assert!(endless.contains("more than 1792 nodes, or more than 64 steps"), "{endless}");
    // Three codes of 32,000 symbols.
    let large = with(&|writer| {
        bits(writer, &contexts);
        bits(writer, &[(1, 1), (4, 14), (14, 15_000), (1, 1), (4, 14), (14, 15_000), (1, 1), (4, 14), (14, 15_000)]);
    });
    assert!(large.contains("too many symbols"), "{large}");
    // Copies before there is a number.
    let copies = with(&|writer| {
        bits(
            writer,
            &[(1, 1), (2, 3), (15, 0), (2, 0), (4, 8), (1, 1), (2, 0), (1, 1), (4, 15), (1, 1), (4, 3), (3, 0)],
        );
        bits(writer, &[(2, 1), (2, 0), (4, 8)]);
    });
    assert!(copies.contains("copies what isn't there"), "{copies}");
}

#[test]
fn containers() {
    let boxed = |kind: &[u8], inside: &[u8]| [&(8 + inside.len() as u32).to_be_bytes(), kind, inside].concat();
    let start = [boxed(b"JXL ", &[13, 10, 0x87, 10]), boxed(b"ftyp", b"jxl \0\0\0\0jxl ")].concat();
    let part = |number: u32, bytes: &[u8]| boxed(b"jxlp", &[&number.to_be_bytes(), bytes].concat());
    let (one, two) = COLOR.split_at(500);
    let last = 1 << 31;
    let format = v3(json!(["imagecodecs_jpegxl"]), DType::U8, SHAPE).unwrap();
    let expected = decode(&format, COLOR, SHAPE).unwrap();
    let skipped = [boxed(b"jxll", &[10]), boxed(b"brob", b"Exif\0"), boxed(b"jbrd", &[0; 9])].concat();
    let long = [&[0, 0, 0, 1], &b"jxlc"[..], &(COLOR.len() as u64 + 16).to_be_bytes(), COLOR].concat();
    for rest in [
        [skipped.clone(), boxed(b"jxlc", COLOR)].concat(),
        [&[0; 4], &b"jxlc"[..], COLOR].concat(),
        long,
        part(last, COLOR),
        [part(0, one), skipped, part(last | 1, two)].concat(),
    ] {
        assert_eq!(decode(&format, &[start.clone(), rest].concat(), SHAPE).unwrap(), expected);
    }
    for (rest, text) in [
        ([part(1, one), part(last, two)].concat(), "aren't in order"),
        ([part(0, one), part(last | 2, two)].concat(), "aren't in order"),
        ([part(0, one), boxed(b"jxlc", two)].concat(), "beside the parts"),
        (part(0, one), "the last part"),
        (boxed(b"jxlp", &[0, 0]), "a box is truncated"),
        (boxed(b"free", &[]), "no codestream"),
        (vec![0, 0, 0, 99, b'j'], "a box is truncated"),
        (vec![0, 0, 0, 3, b'j', b'x', b'l', b'c'], "a box is truncated"),
        (vec![0, 0, 0, 1, b'j', b'x', b'l', b'c', 0xff], "a box is truncated"),
    ] {
        let error = refused(&[start.clone(), rest].concat(), SHAPE);
        assert!(error.contains(text) && error.contains("damaged"), "{text}: {error}");
    }
}

#[test]
fn output_that_is_not_aligned() {
    let encoded = include_bytes!("../../tests/images/float.jxl");
    let format = v3(json!(["imagecodecs_jpegxl"]), DType::F32, SHAPE).unwrap();
    let expected = decode(&format, encoded, SHAPE).unwrap();
    let mut room = vec![0; expected.len() + 4];
    for at in 0..4 {
        let out = &mut room[at..at + expected.len()];
        format.decode(encoded, SHAPE, out).unwrap();
        assert_eq!(out, expected);
    }
}

#[test]
fn what_configurations_say() {
    let told = |fields: Value| {
        let mut codec = fields;
        codec["id"] = json!("imagecodecs_jpegxl");
        v2(codec, DType::F16, &[4, 4]).map(|format| format.chain.lossy_images()).map_err(|e| e.message().to_owned())
    };
    for (fields, lossy) in [
        (json!({}), None),
        (json!({"level": 99, "numthreads": 1, "lossless": null}), None),
        (json!({"lossless": true, "effort": 9, "keeporientation": true, "index": 0}), Some(false)),
        (json!({"lossless": false, "distance": 1.5, "planar": false, "usecontainer": true}), Some(true)),
    ] {
        assert_eq!(told(fields.clone()), Ok(lossy), "{fields}");
    }
    for (fields, text) in [
        (json!({"index": 1}), "index: expected 0"),
        (json!({"keeporientation": 3}), "keeporientation: expected true or false"),
        (json!({"gamma": 1}), "gamma: 1"),
    ] {
        let error = told(fields).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    let error = v2(json!({"id": "imagecodecs_jpegxl"}), DType::I16, &[4, 4]).unwrap_err();
    assert!(error.message().contains("expected elements of the type uint8, uint16, float16, float32"), "{error}");
}
