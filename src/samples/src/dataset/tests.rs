//! Opens whole stores that are written by hand. Checks the arrays found, the keys that are read, and the error texts.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::hierarchy::Hierarchy;
use super::*;
use crate::spec::PerOutput;
use dali_zarr_stores::testing::Hooked;
use dali_zarr_stores::{Phase, block_on};

pub(super) fn v3(shape: &[u64], dims: Value) -> Value {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "int16", "fill_value": 7,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": vec![2; shape.len()]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "dimension_names": dims,
        "attributes": {"scale_factor": 0.5}
    })
}

pub(super) fn v2() -> Value {
    json!({
        "zarr_format": 2, "shape": [4, 6], "chunks": [2, 6], "dtype": ">f4", "compressor": {"id": "zlib", "level": 1},
        "fill_value": "NaN", "filters": null, "order": "F"
    })
}

pub(super) fn write(root: &Path, key: &str, value: &Value) {
    let path = root.join(key);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, value.to_string()).unwrap();
}

pub(super) fn group(root: &Path) {
    write(root, "zarr.json", &json!({"zarr_format": 3, "node_type": "group"}));
}

pub(super) fn open(paths: &[&Path], arrays: &[&str]) -> Result<Dataset> {
    Dataset::open(&Spec::default().with(|s| {
        s.source.paths = paths.iter().map(|p| p.to_str().unwrap().to_owned()).collect();
        s.source.arrays = arrays.iter().map(|a| (*a).into()).collect();
    }))
}

fn message(result: Result<Dataset>, kind: ErrorKind) -> String {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), kind, "{error}");
    error.message().to_owned()
}

/// Opens a store that records the keys that are read.
fn watched(root: &Path) -> (Hooked, Arc<Mutex<Vec<String>>>) {
    let opened = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&opened);
    let hook = move |key: &str| {
        seen.lock().unwrap().push(key.to_owned());
        None
    };
    (Hooked::open(root.to_str().unwrap(), hook), opened)
}

#[test]
fn consolidated_metadata_are_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = json!({"a": v3(&[4], json!(["x"])), "g": {"node_type": "group"}, "g/b": v3(&[4], json!(["x"]))});
    let root = json!({
        "zarr_format": 3, "node_type": "group",
        "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": nodes}
    });
    write(dir.path(), "zarr.json", &root);
    write(dir.path(), "late/zarr.json", &v3(&[4], json!(["x"])));
    let (store, opened) = watched(dir.path());
    let hierarchy = Hierarchy::open(&store).unwrap().unwrap();
    assert_eq!(hierarchy.names().unwrap().unwrap(), ["a", "g/b"]);
    for name in ["a", "g/b"] {
        assert!(hierarchy.array(name).unwrap().is_some());
    }
    assert_eq!(*opened.lock().unwrap(), ["zarr.json"]);
    assert!(hierarchy.array("late").unwrap().is_some(), "arrays that aren't consolidated are found too");
    assert_eq!(*opened.lock().unwrap(), ["zarr.json", "late/zarr.json"]);
    for name in ["g", "", "..", "g/../a", "nothing"] {
        assert!(hierarchy.array(name).unwrap().is_none(), "{name}");
    }
}

#[test]
fn consolidated_metadata_of_v2_are_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let attributes = json!({"_ARRAY_DIMENSIONS": ["y", "x"]});
    let documents = json!({".zgroup": {"zarr_format": 2}, "a/.zarray": v2(), "a/.zattrs": attributes});
    write(dir.path(), ".zmetadata", &json!({"zarr_consolidated_format": 1, "metadata": documents}));
    let (store, opened) = watched(dir.path());
    let hierarchy = Hierarchy::open(&store).unwrap().unwrap();
    let node = hierarchy.array("a").unwrap().unwrap();
    assert_eq!(*opened.lock().unwrap(), ["zarr.json", ".zmetadata"]);
    assert_eq!(node.key, ".zmetadata", "this array is only described there");

    let dataset = open(&[dir.path()], &[]).unwrap();
    let array = &dataset.arrays[0];
    assert_eq!((array.name.as_str(), array.dtype), ("a", DType::F32));
    assert_eq!(array.dims.names, ["y", "x"]);
    let format = &array.parts[0].format;
    assert_eq!((format.order.as_slice(), format.swap, format.chain.names()), (&[1, 0][..], true, "zlib"));
    assert_eq!(array.parts[0].key(&[1, 0]), "a/1.0");
}

#[test]
fn the_only_array_and_a_store_that_is_one() {
    let dir = tempfile::tempdir().unwrap();
    group(dir.path());
    assert!(message(open(&[dir.path()], &[]), ErrorKind::Value).contains("found no arrays"));
    write(dir.path(), "t2m/zarr.json", &v3(&[4], json!(["x"])));
    assert_eq!(open(&[dir.path()], &[]).unwrap().arrays[0].name, "t2m");
    let itself = open(&[&dir.path().join("t2m")], &[]).unwrap();
    assert_eq!((itself.arrays[0].name.as_str(), itself.arrays[0].parts[0].key(&[1])), ("t2m", "c/1".to_owned()));
    let error = message(open(&[&dir.path().join("t2m")], &["x"]), ErrorKind::Value);
    assert!(error.contains("the store is an array itself"), "{error}");
    write(dir.path(), "u10/zarr.json", &v3(&[4], json!(["x"])));
    let error = message(open(&[dir.path()], &[]), ErrorKind::Value);
    assert!(error.contains("found the arrays 't2m', 'u10'"), "{error}");
    let error = message(open(&[dir.path()], &["t2n"]), ErrorKind::Value);
    assert!(error.contains("expected an array 't2n', but found the arrays 't2m', 'u10'"), "{error}");
}

#[test]
fn joined_stores_must_agree() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = [a.path(), b.path()];
    for path in paths {
        group(path);
        write(path, "v/zarr.json", &v3(&[4, 3], json!(["time", "x"])));
    }
    let mut other = v3(&[9, 3], json!(["time", "x"]));
    other["chunk_grid"]["configuration"]["chunk_shape"] = json!([9, 1]);
    other["codecs"] = json!([{"name": "bytes", "configuration": {"endian": "big"}}, "zstd"]);
    write(b.path(), "v/zarr.json", &other);
    let dataset = open(&paths, &["v"]).unwrap();
    let parts = &dataset.arrays[0].parts;
    assert_eq!((parts[0].shape[0], parts[1].shape[0], parts[1].store), (4, 9, 1));
    assert!(!parts[0].format.swap && parts[1].format.swap, "chunks and codecs may differ");

    for (key, value, what) in [
        ("data_type", json!("int32"), "data type"),
        ("dimension_names", json!(["x", "time"]), "dimensions"),
        ("fill_value", json!(8), "fill value"),
    ] {
        let mut other = v3(&[4, 3], json!(["time", "x"]));
        other[key] = value;
        write(b.path(), "v/zarr.json", &other);
        let error = message(open(&paths, &["v"]), ErrorKind::Value);
        assert!(error.contains(&format!("expected the same {what}")), "{error}");
    }
    fs::remove_dir_all(b.path().join("v")).unwrap();
    assert!(message(open(&paths, &["v"]), ErrorKind::Value).contains(b.path().to_str().unwrap()));
}

#[test]
fn a_deleted_array_is_not_a_missing_chunk() {
    let dir = tempfile::tempdir().unwrap();
    group(dir.path());
    write(dir.path(), "v/zarr.json", &v3(&[4], json!(["x"])));
    let dataset = open(&[dir.path()], &["v"]).unwrap();
    let (part, store) = (&dataset.arrays[0].parts[0], dataset.stores[0].as_ref());
    let exists = || block_on(store, store.exists(part.metadata_key())).unwrap();
    let key = part.key(&[0]);
    assert!(block_on(store, store.get(&key, 100, Phase::Running)).unwrap().is_none() && exists());
    fs::remove_dir_all(dir.path().join("v")).unwrap();
    assert!(!exists());
}

#[test]
fn packed_arrays_are_decoded_unless_told_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let attributes = [
        ("packed", json!({"scale_factor": 0.5, "_FillValue": -9})),
        ("missing", json!({"missing_value": [-9, 8]})),
        ("nan", json!({"_FillValue": "AAAAAAAA+H8="})),
        ("wrong", json!({"_FillValue": "text"})),
        ("out of range", json!({"_FillValue": 1 << 20})),
        ("plain", json!({})),
    ];
    let names = attributes.each_ref().map(|(name, _)| (*name).to_owned());
    for (name, attributes) in attributes {
        let mut array = v3(&[4], json!(["x"]));
        array["data_type"] = json!(if name == "nan" { "float32" } else { "int16" });
        array["attributes"] = attributes;
        write(dir.path(), &format!("{name}/zarr.json"), &array);
    }
    write(dir.path(), "zarr.json", &json!({"zarr_format": 3, "node_type": "group"}));
    let read = |name: &str, mask_and_scale: Option<bool>| {
        let dataset = Dataset::open(&Spec::default().with(|s| {
            s.source.paths = vec![dir.path().to_str().unwrap().to_owned()];
            s.source.arrays = vec![name.into()];
            s.values.mask_and_scale = mask_and_scale.map_or(PerOutput::new(), PerOutput::one);
        }));
        dataset.map(|mut dataset| {
            let ArrayInfo { decoded, cf, parts, .. } = dataset.arrays.remove(0);
            (decoded, cf.decoded, parts.into_iter().next().unwrap().unmasked)
        })
    };
    let by_default = names.each_ref().map(|name| read(name, None).unwrap());
    let stored = |unmasked: Option<&str>| (false, DType::I16, unmasked.map(str::to_owned));
    assert_eq!(by_default[0], (true, DType::F64, None));
    assert_eq!(by_default[1], stored(Some("its attributes name missing values (-9, 8)")));
    assert_eq!(by_default[2], (false, DType::F32, None), "NaN is masked as it is");
    assert_eq!(by_default[3], stored(Some("its attributes name missing values (_FillValue = \"text\")")));
    assert_eq!(by_default[4], stored(None), "no value equals it");
    assert_eq!(by_default[5], stored(None));
    assert_eq!(read("missing", Some(true)).unwrap(), (true, DType::F32, None));
    assert!(read("wrong", Some(true)).is_err());
    for name in ["packed", "missing", "wrong"] {
        assert_eq!(read(name, Some(false)).unwrap(), stored(None), "{name}");
    }
}

#[test]
fn damaged_metadata_are_value_errors_that_name_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().to_str().unwrap();
    assert!(message(open(&[dir.path()], &["v"]), ErrorKind::Value).contains("found none of zarr.json"));
    for text in ["", "{", "[]", "3", "{\"node_type\": \"tree\"}", "\u{0}", "{\"node_type\": \"array\"}"] {
        fs::write(dir.path().join("zarr.json"), text).unwrap();
        let error = message(open(&[dir.path()], &[]), ErrorKind::Value);
        assert!(error.contains(name), "{text:?}: {error}");
    }
    fs::remove_file(dir.path().join("zarr.json")).unwrap();
    fs::create_dir(dir.path().join("zarr.json")).unwrap();
    assert!(message(open(&[dir.path()], &["v"]), ErrorKind::Value).contains("found a directory"));

    let dir = tempfile::tempdir().unwrap();
    let mut array = v3(&[4], json!(["x"]));
    array["data_type"] = json!("string");
    write(dir.path(), "zarr.json", &array);
    let error = message(open(&[dir.path()], &[]), ErrorKind::Type);
    assert!(error.contains("string") && error.contains("array '"), "{error}");
    fs::write(dir.path().join("zarr.json"), b"{").unwrap();
    let sparse = fs::OpenOptions::new().write(true).open(dir.path().join("zarr.json")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert!(message(open(&[dir.path()], &[]), ErrorKind::Value).contains("at most"), "a terabyte must not be read");
}

#[test]
fn damaged_chunks_of_every_kind_of_codec_never_panic() {
    let chains = [
        json!(["bytes"]),
        json!(["bytes", "zstd"]),
        json!(["bytes", "gzip"]),
        json!(["bytes", "numcodecs.zlib"]),
        json!(["bytes", "numcodecs.lz4"]),
        json!(["bytes", "blosc"]),
        json!(["bytes", "crc32c"]),
        json!(["bytes", "numcodecs.lz4", "crc32c"]),
        json!(["bytes", "numcodecs.bz2"]),
        json!([{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [2], "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"]}}, "crc32c"]),
        json!([{"name": "packbits"}]),
    ];
    let dir = tempfile::tempdir().unwrap();
    for chain in chains {
        let mut array = v3(&[64], json!(["x"]));
        array["codecs"] = chain.clone();
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!([64]);
        write(dir.path(), "zarr.json", &array);
        let dataset = open(&[dir.path()], &[]).unwrap_or_else(|e| panic!("{chain}: {e}"));
        let format = &dataset.arrays[0].parts[0].format;
        let mut out = [0; 128];
        let mut state = 1u64;
        for length in (0..200).chain([1000]) {
            let noise: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 56) as u8
                })
                .collect();
            let result = format.decode(&noise, &[64], &mut out);
            let plain = format.chain.is_empty() || chain == json!([{"name": "packbits"}]);
            assert!(result.is_err() || (plain && length > 0), "{chain} took {length} bytes of noise");
        }
        assert!(format.decode(&[], &[63], &mut out).is_err(), "the room must fit the shape");
    }
}

#[test]
fn shards_of_tiny_chunks_stay_within_their_bound() {
    let dir = tempfile::tempdir().unwrap();
    let mut array = v3(&[4096], json!(["x"]));
    array["chunk_grid"]["configuration"]["chunk_shape"] = json!([4096]);
    array["codecs"] = json!([{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [1], "codecs": ["bytes", "gzip"], "index_codecs": ["bytes", "crc32c"]}}, "crc32c"]);
    write(dir.path(), "zarr.json", &array);
    let part = &open(&[dir.path()], &[]).unwrap().arrays[0].parts[0];
    assert!(part.sharding.is_none(), "decoded whole");
    assert!(part.format.usual_encoded_bytes(8192) >= 4096 * (16 + 22) + 8);
}
