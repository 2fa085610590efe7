//! Arrays of text by hand: all types, sharded and not, missing chunks, and hostile bytes.

use serde_json::json;

use super::*;

fn node(version: u8, metadata: Value) -> Node {
    let key = if version == 3 { "s/zarr.json" } else { "s/.zarray" };
    Node { version, prefix: "s/".into(), metadata, attributes: Map::new(), key: key.into() }
}

fn v2(dtype: &str, filters: Value, fill: Value) -> Value {
    json!({
        "zarr_format": 2, "shape": [5], "chunks": [3], "dtype": dtype, "fill_value": fill, "order": "C",
        "filters": filters, "compressor": null
    })
}

fn v3(data_type: Value, codecs: Value, fill: Value) -> Value {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": [5], "data_type": data_type, "fill_value": fill,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": codecs
    })
}

fn text(version: u8, metadata: Value) -> TextArray {
    describe(&node(version, metadata)).unwrap().unwrap()
}

fn decoded(array: &TextArray, chunk: u64, encoded: Option<&[u8]>) -> Result<Vec<Vec<u8>>> {
    let mut texts = Texts::default();
    array.decode(chunk, encoded, &mut texts)?;
    let starts = std::iter::once(0).chain(texts.ends.iter().copied());
    Ok(starts.zip(&texts.ends).map(|(start, &end)| texts.bytes[start as usize..end as usize].to_vec()).collect())
}

fn utf32(texts: &[&str], chars: usize, big: bool) -> Vec<u8> {
    let padded = |text: &&str| text.chars().map(u32::from).chain(std::iter::repeat(0)).take(chars).collect::<Vec<_>>();
    let bytes = |unit: u32| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
    texts.iter().flat_map(padded).flat_map(bytes).collect()
}

fn variable_bytes(elements: &[&[u8]]) -> Vec<u8> {
    let number = |n: usize| (n as u32).to_le_bytes();
    let each = elements.iter().flat_map(|element| [&number(element.len())[..], element].concat());
    number(elements.len()).into_iter().chain(each).collect()
}

#[test]
fn every_type_is_decoded() {
    let bytes = json!([{"name": "bytes", "configuration": {"endian": "little"}}]);
    let big = json!([{"name": "bytes", "configuration": {"endian": "big"}}]);
    let fixed = |bytes: u64| json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": bytes}});
    let s3 = json!({"name": "null_terminated_bytes", "configuration": {"length_bytes": 3}});
    let vlen = |id: &str| json!([{"id": id}]);
    let words: [&str; 3] = ["ab", "", "日本"];
    let of_words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
    let plain: Vec<Vec<u8>> = vec![b"ab".to_vec(), b"".to_vec(), b"a\0b".to_vec()];
    let stored = variable_bytes(&words.map(str::as_bytes));
    let stored_bytes = variable_bytes(&[b"ab", b"", b"a\0b"]);
    for (version, metadata, name, encoded, expected) in [
        (2, v2("<U3", Value::Null, json!("")), "<U3", utf32(&words, 3, false), &of_words),
        (2, v2(">U3", Value::Null, json!("")), "<U3", utf32(&words, 3, true), &of_words),
        (3, v3(fixed(12), bytes.clone(), json!("")), "<U3", utf32(&words, 3, false), &of_words),
        (3, v3(fixed(12), big, json!("")), "<U3", utf32(&words, 3, true), &of_words),
        (2, v2("|S3", Value::Null, Value::Null), "|S3", b"ab\0\0\0\0a\0b".to_vec(), &plain),
        (3, v3(s3, json!(["bytes"]), json!("")), "|S3", b"ab\0\0\0\0a\0b".to_vec(), &plain),
        (2, v2("|O", vlen("vlen-utf8"), json!("")), "str", stored.clone(), &of_words),
        (3, v3(json!("string"), json!(["vlen-utf8"]), json!("")), "str", stored, &of_words),
        (2, v2("|O", vlen("vlen-bytes"), json!("")), "bytes", stored_bytes.clone(), &plain),
        (3, v3(json!("variable_length_bytes"), json!(["vlen-bytes"]), json!("")), "bytes", stored_bytes, &plain),
    ] {
        let array = text(version, metadata);
        assert_eq!((array.len, array.chunks(), array.dtype.name().as_str()), (5, 2, name));
        assert_eq!(decoded(&array, 0, Some(&encoded)).unwrap(), *expected, "{name}");
        assert_eq!(decoded(&array, 1, Some(&encoded)).unwrap(), expected[..2], "{name}: the array's end");
    }
    assert_eq!(text(2, v2("<U3", Value::Null, json!(""))).key(1), "s/1");
    assert_eq!(text(3, v3(fixed(12), bytes, json!(""))).key(1), "s/c/1");
}

#[test]
fn missing_chunks_have_the_fill_value() {
    for (metadata, fill) in [
        (v2("<U3", Value::Null, json!("long")), &b"lon"[..]),
        (v2("<U3", Value::Null, Value::Null), b""),
        (v2("|S3", Value::Null, json!("YWJjZA==")), b"abc"),
        (v2("|O", json!([{"id": "vlen-utf8"}]), json!(0)), b"0"),
        (v2("|O", json!([{"id": "vlen-utf8"}]), json!("none")), b"none"),
        (v2("|O", json!([{"id": "vlen-bytes"}]), json!([1, 2])), &[1, 2]),
    ] {
        let array = text(2, metadata);
        assert_eq!(decoded(&array, 1, None).unwrap(), [fill, fill]);
    }
}

#[test]
fn shards_in_shards() {
    let inner = json!({"name": "sharding_indexed", "configuration": {
        "chunk_shape": [1], "codecs": ["vlen-utf8", {"name": "gzip", "configuration": {"level": 1}}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "index_location": "start"
    }});
    let outer = json!([{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [2], "codecs": [inner],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]
    }}]);
    let mut metadata = v3(json!("string"), outer, json!("-"));
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = json!([4]);
    let array = text(3, metadata);
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &variable_bytes(&[text.as_bytes()])).unwrap();
        encoder.finish().unwrap()
    };
    let number = |n: usize| (n as u64).to_le_bytes();
    let shard = |texts: [Option<&str>; 2]| {
        let (mut index, mut bytes) = (Vec::new(), Vec::new());
        for text in texts {
            let place = text.map(|text| {
                let chunk = gzip(text);
                bytes.extend(&chunk);
                (32 + bytes.len() - chunk.len(), chunk.len())
            });
            let (offset, len) = place.unwrap_or((usize::MAX, usize::MAX));
            index.extend([number(offset), number(len)].concat());
        }
        [index, bytes].concat()
    };
    let (first, second) = (shard([Some("a"), None]), shard([Some("ü"), Some("d")]));
    let index = [number(0), number(first.len()), number(first.len()), number(second.len())].concat();
    let encoded = [first, second, index].concat();
    let expected: Vec<&[u8]> = vec![b"a", b"-", "ü".as_bytes(), b"d"];
    assert_eq!(decoded(&array, 0, Some(&encoded)).unwrap(), expected);
    assert_eq!(decoded(&array, 1, Some(&encoded)).unwrap(), [b"a"], "the array's end");
    for at in 0..encoded.len() {
        let mut wrong = encoded.clone();
        wrong[at] ^= 0x41;
        let _ = decoded(&array, 0, Some(&wrong));
        let _ = decoded(&array, 0, Some(&encoded[..at]));
    }
}

#[test]
fn damaged_chunks_are_errors() {
    let array = text(2, v2("|O", json!([{"id": "vlen-utf8"}]), json!("")));
    let encoded = variable_bytes(&[b"ab", b"c", b"d"]);
    for cut in 0..encoded.len() {
        assert!(decoded(&array, 0, Some(&encoded[..cut])).is_err(), "cut at {cut}");
    }
    let mut huge = encoded.clone();
    huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    for (bytes, words) in [
        (variable_bytes(&[b"ab", b"c"]), "expected 3 elements, each with its length before it, but found 2"),
        (huge, "4294967295 bytes in element 0, beyond the end"),
        (variable_bytes(&[b"ab", b"\xff", b"d"]), "expected text in UTF-8, but found other bytes in element 1"),
    ] {
        let error = decoded(&array, 0, Some(&bytes)).unwrap_err();
        assert!(error.message().contains(words), "{error}");
    }
    let array = text(2, v2("<U1", Value::Null, json!("")));
    let error = decoded(&array, 0, Some(&[0, 0xd8, 0, 0].repeat(3))).unwrap_err();
    assert!(error.message().contains("the unit 0xd800, which is no character"), "{error}");
    assert!(decoded(&array, 0, Some(&[0; 8])).is_err());
    // A few compressed bytes claim 16 GiB.
    let zlib = json!({"id": "zlib", "level": 9});
    let mut metadata = v2("|O", json!([{"id": "vlen-utf8"}]), json!(""));
    metadata["compressor"] = json!({"id": "lz4"});
    let error = decoded(&text(2, metadata.clone()), 0, Some(&[255, 255, 255, 255, 0x1f, 0, 1, 0])).unwrap_err();
    assert!(error.message().contains("decoded bytes"), "{error}");
    metadata["compressor"] = zlib;
    assert!(decoded(&text(2, metadata), 0, Some(b"nothing")).is_err());
}

#[test]
fn what_is_no_text_and_what_is_wrong() {
    for metadata in [
        v2("<f4", Value::Null, json!(0)),
        v2("|O", json!([{"id": "json2"}]), json!(0)),
        v2("|V4", Value::Null, json!("")),
    ] {
        assert!(describe(&node(2, metadata)).unwrap().is_none());
    }
    let wrong =
        |version: u8, metadata: Value| describe(&node(version, metadata)).err().expect("an error").message().to_owned();
    let string = |codecs: Value| v3(json!("string"), codecs, json!(""));
    assert!(wrong(3, string(json!(["vlen-bytes"]))).contains("but found vlen-bytes"));
    assert!(wrong(3, string(json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [3], "codecs": ["vlen-utf8"]}}, "crc32c"]))).contains("sharding_indexed, crc32c"));
    let mut metadata = string(json!(["vlen-utf8"]));
    metadata["shape"] = json!([5, 2]);
    assert!(wrong(3, metadata).contains("found the shape [5, 2]"));
    let mut metadata = v2("<U3", Value::Null, json!(""));
    metadata["chunks"] = json!([1u64 << 40]);
    assert!(wrong(2, metadata).contains("expected chunks of at most 536870912 bytes of text"));
    assert!(wrong(2, v2("<U3", Value::Null, json!(0))).contains("fill_value: expected a value of the type <U3"));
}
