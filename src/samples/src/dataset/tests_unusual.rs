//! Stores with valid arrays, but with unusual, missing or damaged metadata above or beside them. And the error texts
//! for arrays that aren't valid.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::tests::{group, open, v2, v3, write};
use super::*;
use dali_zarr_base::error::ErrorKind;

fn a_v3() -> Value {
    v3(&[4], json!(["x"]))
}

fn message(result: Result<Dataset>) -> String {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::Value, "{error}");
    error.message().to_owned()
}

/// Returns the keys of the first chunks of these arrays.
fn keys(root: &Path, arrays: &[&str]) -> Vec<String> {
    let dataset = open(&[root], arrays).unwrap_or_else(|e| panic!("{arrays:?}: {e}"));
    dataset.arrays.iter().map(|a| a.parts[0].key(&vec![0; a.parts[0].shape.len()])).collect()
}

#[test]
fn a_root_without_a_group() {
    let dir = tempfile::tempdir().unwrap();
    let error = message(open(&[dir.path()], &["a"]));
    assert!(error.contains("found none of zarr.json") && error.contains("check the path"), "{error}");
    write(dir.path(), "deep/er/a/zarr.json", &a_v3());
    assert_eq!(keys(dir.path(), &["deep/er/a"]), ["deep/er/a/c/0"]);
    let error = message(open(&[dir.path()], &[]));
    assert!(error.contains("found none of zarr.json"), "folders in folders aren't looked through: {error}");
    write(dir.path(), "b/.zarray", &v2());
    assert_eq!(keys(dir.path(), &[]), ["b/0.0"]);
    assert_eq!(keys(dir.path(), &["b", "deep/er/a"]), ["b/0.0", "deep/er/a/c/0"]);
    let error = message(open(&[dir.path()], &["b", "c"]));
    assert!(error.contains("expected an array 'c', but found only the array 'b'"), "{error}");
}

#[test]
fn arrays_of_one_version_below_groups_of_the_other() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    group(new.path());
    write(old.path(), ".zgroup", &json!({"zarr_format": 2}));
    for root in [old.path(), new.path()] {
        write(root, "a/zarr.json", &a_v3());
        write(root, "b/.zarray", &v2());
        write(root, "b/.zattrs", &json!({"_ARRAY_DIMENSIONS": ["y", "x"]}));
        assert_eq!(keys(root, &["a", "b"]), ["a/c/0", "b/0.0"]);
        assert_eq!(open(&[root], &["b"]).unwrap().arrays[0].dims.names, ["y", "x"]);
        let error = message(open(&[root], &["c"]));
        assert!(error.contains("found the arrays 'a', 'b'"), "{error}");
    }
    // Consolidated metadata of one version don't hide the other.
    let documents = json!({".zgroup": {"zarr_format": 2}, "b/.zarray": v2()});
    write(old.path(), ".zmetadata", &json!({"zarr_consolidated_format": 1, "metadata": documents}));
    assert_eq!(keys(old.path(), &["a", "b"]), ["a/c/0", "b/0.0"]);
    // An array with documents of both versions is read in the version of the group.
    write(old.path(), "b/zarr.json", &a_v3());
    write(new.path(), "a/.zarray", &v2());
    assert_eq!((keys(old.path(), &["b"]), keys(new.path(), &["a"])), (vec!["b/0.0".into()], vec!["a/c/0".into()]));
}

#[test]
fn damaged_documents_of_groups() {
    for metadata in
        ["", "{", "[]", "null", "{}", "{\"metadata\": 3}", "{\"metadata\": {}}", "{\"metadata\": {\"a/.zarray\": 1}}"]
    {
        for zgroup in [None, Some(""), Some("{"), Some("{\"zarr_format\": 2}")] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(".zmetadata"), metadata).unwrap();
            if let Some(text) = zgroup {
                fs::write(dir.path().join(".zgroup"), text).unwrap();
            }
            let told = metadata.contains("a/.zarray") || metadata.is_empty();
            let error = message(open(&[dir.path()], &["a"]));
            assert!(told || error.contains(".zmetadata"), "{metadata:?} {zgroup:?}: {error}");
            write(dir.path(), "a/.zarray", &v2());
            assert_eq!(keys(dir.path(), &["a"]), ["a/0.0"], "{metadata:?} {zgroup:?}");
            if !metadata.contains("a/.zarray") {
                assert_eq!(keys(dir.path(), &[]), ["a/0.0"], "{metadata:?} {zgroup:?}");
            }
        }
    }
    for consolidated in [
        json!(null),
        json!(3),
        json!({}),
        json!({"metadata": null}),
        json!({"metadata": {}}),
        json!({"metadata": {"a": 5}}),
        json!({"metadata": {"a": {}}}),
        json!({"kind": "other", "metadata": {"a": {"zarr_format": 3}}}),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let root = json!({"zarr_format": 3, "node_type": "group", "consolidated_metadata": consolidated});
        write(dir.path(), "zarr.json", &root);
        write(dir.path(), "a/zarr.json", &a_v3());
        assert_eq!(keys(dir.path(), &["a"]), ["a/c/0"], "{consolidated}");
    }
    for root in ["", "{", "[]", "<html>"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("zarr.json"), root).unwrap();
        assert!(message(open(&[dir.path()], &["a"])).contains("zarr.json: expected"), "{root:?}");
        write(dir.path(), "a/zarr.json", &a_v3());
        assert_eq!(keys(dir.path(), &["a"]), ["a/c/0"], "{root:?}");
        assert_eq!(keys(dir.path(), &[]), ["a/c/0"], "{root:?}");
    }
    // A damaged group below the root doesn't hide other arrays.
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), ".zgroup", &json!({"zarr_format": 2}));
    write(dir.path(), "a/.zarray", &v2());
    fs::create_dir(dir.path().join("b")).unwrap();
    fs::write(dir.path().join("b/.zgroup"), "{").unwrap();
    assert_eq!(keys(dir.path(), &[]), ["a/0.0"]);
    fs::write(dir.path().join("b/.zarray"), "").unwrap();
    let error = message(open(&[dir.path()], &["b"]));
    assert!(error.contains("b/.zarray: expected JSON, but found an empty document"), "{error}");
}

#[test]
fn documents_as_editors_and_other_languages_write_them() {
    let dir = tempfile::tempdir().unwrap();
    let marked = |value: &Value| format!("\u{feff}{value}");
    let mut new = a_v3();
    new["zarr_format"] = json!(3.0);
    fs::write(dir.path().join("zarr.json"), marked(&json!({"zarr_format": 3.0, "node_type": "group"}))).unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    fs::write(dir.path().join("a/zarr.json"), marked(&new)).unwrap();
    let mut old = v2();
    old["zarr_format"] = json!(2.0);
    write(dir.path(), "b/.zarray", &old);
    assert_eq!(keys(dir.path(), &["a", "b"]), ["a/c/0", "b/0.0"]);
    old["zarr_format"] = json!(2.5);
    write(dir.path(), "b/.zarray", &old);
    assert!(message(open(&[dir.path()], &["b"])).contains("expected 2, but found 2.5"));
}

#[test]
fn shards_without_codecs_of_their_index() {
    let dir = tempfile::tempdir().unwrap();
    for around in [json!([]), json!(["crc32c"])] {
        let mut array = a_v3();
        let shards = json!({"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": ["bytes"]}});
        let codecs: Vec<_> = [shards].into_iter().chain(around.as_array().unwrap().clone()).collect();
        array["codecs"] = json!(codecs);
        write(dir.path(), "zarr.json", &array);
        let part = &open(&[dir.path()], &[]).unwrap().arrays[0].parts[0];
        match &part.sharding {
            // Two entries of 16 bytes, and a checksum.
            Some(sharding) => assert_eq!((sharding.entries(), sharding.index_bytes), (2, 36)),
            None => {
                let index: Vec<u8> = [0u64, 2, 2, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
                let sealed = |mut bytes: Vec<u8>| {
                    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
                    bytes
                };
                let shard = sealed([vec![1, 2, 3, 4], sealed(index)].concat());
                let mut out = [0; 4];
                part.format.decode(&shard, &[2], &mut out).unwrap();
                assert_eq!(out, [1, 2, 3, 4]);
            }
        }
        assert_eq!(part.sharding.is_some(), around == json!([]));
    }
}

/// Errors use the words of the metadata, not those of the libraries that read them.
#[test]
fn messages_are_in_the_words_of_metadata() {
    let codec = |name: &str, configuration: Value| json!({"name": name, "configuration": configuration});
    let shards = |inner: Value, index: Value| {
        codec("sharding_indexed", json!({"chunk_shape": [2], "codecs": inner, "index_codecs": index}))
    };
    let new: Vec<(&str, Value, &str)> = vec![
        ("codecs", json!([codec("bytes", json!({"endian": 4}))]), "4"),
        ("codecs", json!(["bytes", codec("zstd", json!({"level": "high"})), "gzip", "nonsense"]), "nonsense"),
        ("codecs", json!(["bytes", codec("frobnicate", json!({"level": 4, "x": {"y": [1]}}))]), "frobnicate"),
        ("codecs", json!(["crc32c", "bytes"]), "crc32c stands before the codec"),
        ("codecs", json!([codec("packbits", json!({"padding_encoding": 4}))]), "packbits"),
        ("codecs", json!([codec("packbits", json!({"first_bit": {"a": 4}}))]), "packbits"),
        (
            "codecs",
            json!([shards(json!([codec("packbits", json!({"first_bit": "x"}))]), json!(["bytes"]))]),
            "packbits",
        ),
        ("codecs", json!([shards(json!(["bytes", "nonsense"]), json!(["bytes"])), "crc32c"]), "nonsense"),
        ("codecs", json!([shards(json!(["bytes"]), json!(["bytes", "nonsense"]))]), "nonsense"),
        ("codecs", json!(["crc32c"]), "crc32c"),
        ("codecs", json!(["bytes", "packbits"]), "packbits"),
        ("codecs", json!([{"name": 4}]), "4"),
        ("codecs", json!([{"id": "bytes"}]), "bytes"),
        ("codecs", json!([["bytes"]]), "bytes"),
        ("chunk_key_encoding", json!({"name": "default", "configuration": {"separator": 4}}), "4"),
        ("chunk_key_encoding", json!({"name": "v2", "configuration": {"separator": "-"}}), "\"-\""),
        ("chunk_key_encoding", json!({"name": {"a": 4}}), "{\"a\":4}"),
        ("chunk_key_encoding", json!(4), "4"),
        ("chunk_grid", json!({"name": "regular", "configuration": {"chunk_shape": {"a": 4}}}), "{\"a\":4}"),
        ("data_type", json!({"name": {"a": 4}}), "{\"a\":4}"),
        ("fill_value", json!({"a": 4}), "{\"a\":4}"),
    ];
    let old: Vec<(&str, Value, &str)> = vec![
        ("compressor", json!({"id": "frobnicate", "level": 4, "x": {"y": [1]}}), "frobnicate"),
        ("compressor", json!({"id": 4}), "4"),
        ("compressor", json!(4), "4"),
        ("filters", json!([{"id": "frobnicate", "x": {"a": 4}}]), "frobnicate"),
        ("filters", json!({"id": "delta"}), "delta"),
        ("filters", json!([{"id": "delta", "dtype": {"a": 4}}]), "{\"a\":4}"),
        ("filters", json!([{"id": "zfpy", "mode": 4}]), "zfpy"),
        ("dimension_separator", json!("-"), "dimension_separator: expected \".\" or \"/\", but found \"-\""),
        ("dimension_separator", json!({"a": 4}), "{\"a\":4}"),
        ("order", json!({"a": 4}), "{\"a\":4}"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let check = |file: &str, document: Value, key: &str, value: Value, words: &str| {
        let mut document = document;
        document[key] = value.clone();
        write(dir.path(), file, &document);
        let error = open(&[dir.path()], &[]).err().unwrap_or_else(|| panic!("{key} = {value} is taken"));
        fs::remove_file(dir.path().join(file)).unwrap();
        assert!(error.message().contains(words), "{key} = {value}: {error}");
        for foreign in [
            "untagged",
            "variant",
            "Number(",
            "String(",
            "Object {",
            "Array [",
            "Some(",
            "missing field",
            "invalid type",
        ] {
            assert!(!error.message().contains(foreign), "{key} = {value}: {error}");
        }
    };
    for (key, value, words) in new {
        check("zarr.json", a_v3(), key, value, words);
    }
    for (key, value, words) in old {
        check(".zarray", v2(), key, value, words);
    }
}
