//! Labels in stores that are written by hand: uncompressed v2 arrays of one chunk.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use dali_zarr_base::error::ErrorKind;

fn array(
    root: &Path,
    name: &str,
    dtype: &str,
    shape: &[usize],
    dims: &[&str],
    chunk: Option<&[u8]>,
    attributes: &Value,
) {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    let metadata = json!({
        "zarr_format": 2, "shape": shape, "chunks": shape.iter().map(|&n| n.max(1)).collect::<Vec<_>>(), "dtype": dtype,
        "fill_value": null, "order": "C", "filters": null, "compressor": null,
    });
    let mut all = json!({"_ARRAY_DIMENSIONS": dims});
    all.as_object_mut().unwrap().extend(attributes.as_object().unwrap().clone());
    fs::write(folder.join(".zarray"), metadata.to_string()).unwrap();
    fs::write(folder.join(".zattrs"), all.to_string()).unwrap();
    if let Some(bytes) = chunk {
        fs::write(folder.join(vec!["0"; shape.len()].join(".")), bytes).unwrap();
    }
}

/// Writes a store with the array `z` (time, level), the coordinate `time`, and the coordinate `level` of big-endian
/// int16, packed with a factor of 0.1.
fn store(root: &Path, times: &[f64], levels: &[i16]) {
    fs::create_dir_all(root).unwrap();
    fs::write(root.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    array(root, "z", "<f4", &[times.len(), levels.len()], &["time", "level"], None, &json!({}));
    let bytes: Vec<u8> = levels.iter().flat_map(|level| level.to_be_bytes()).collect();
    let packed = json!({"scale_factor": 0.1, "_FillValue": -1});
    array(root, "level", ">i2", &[levels.len()], &["level"], Some(&bytes), &packed);
    let bytes: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
    array(root, "time", "<f8", &[times.len()], &["time"], Some(&bytes), &json!({}));
}

fn spec(paths: &[&Path]) -> Spec {
    let paths = paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect();
    Spec::default().with(|s| {
        s.source.paths = paths;
        s.source.arrays = vec!["z".into()];
    })
}

fn found(spec: &Spec, dim: &str, labels: &[f64]) -> String {
    find(spec, &DimKey::parse(dim), labels).unwrap().to_string()
}

fn refused(spec: &Spec, dim: &str, labels: &[f64]) -> String {
    let error = find(spec, &DimKey::parse(dim), labels).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value, "{error}");
    error.message().to_owned()
}

#[test]
fn labels_are_decoded_values() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path(), &[0.0, 1.0], &[10, 100, 1000, -1, 5, 5]);
    let spec = spec(&[folder.path()]);
    assert_eq!(found(&spec, "level", &[10.0, 1.0]), "level=1,0", "not the stored 10");
    assert_eq!(found(&spec, "-1", &[100.0]), "-1=2", "a dimension by its position");
    assert_eq!(
        found(
            &spec.clone().with(|s| s.values.mask_and_scale = dali_zarr_samples::spec::PerOutput::one(true)),
            "level",
            &[1.0, 1.0]
        ),
        "level=0,0"
    );
    assert_eq!(found(&spec, "time", &[-0.0]), "time=0");
    for (label, words) in [
        (1000.0, "1000.0 isn't a coordinate of dimension \"level\" in store"),
        (0.5, "0.5 is the coordinate of 2 elements"),
        (-0.1, "1.0, 10.0, 100.0, NaN, 0.5, 0.5"),
        (f64::NAN, "NaN isn't a coordinate"),
    ] {
        let message = refused(&spec, "level", &[1.0, label]);
        assert!(message.contains(words), "{message}");
    }
    assert!(refused(&spec, "lev", &[1.0]).contains("no array has a dimension \"lev\""));
}

#[test]
fn float32_means_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path(), &[0.0], &[1, 2]);
    let bytes: Vec<u8> = [0.1f32, 0.2].iter().flat_map(|v| v.to_le_bytes()).collect();
    array(folder.path(), "level", "<f4", &[2], &["level"], Some(&bytes), &json!({}));
    assert_eq!(found(&spec(&[folder.path()]), "level", &[0.2]), "level=1");
    assert!(refused(&spec(&[folder.path()]), "level", &[0.25]).ends_with(": 0.1, 0.2"));
}

#[test]
fn each_store_has_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    store(&a, &[0.0, 1.0], &[10, 20, 30]);
    store(&b, &[2.0, 3.0, 4.0], &[30, 10, 20]);
    let both = spec(&[&a, &b]);
    assert_eq!(found(&both, "level", &[1.0, 3.0]), "level=0,2|1,0");
    assert_eq!(found(&both, "time", &[3.0, 0.0]), "time=3,0", "joined along it");
    let by_level = both.clone().with(|s| s.samples.dims = vec![DimKey::parse("level")]);
    assert!(
        refused(&by_level, "level", &[3.0])
            .contains("3.0 is the coordinate of 2 elements of dimension \"level\" in the 2")
    );
    assert!(
        refused(&both, "time", &[7.0]).contains("in the 2 stores that are joined along it: 0.0, 1.0, 2.0, 3.0, 4.0")
    );

    store(&b, &[2.0], &[10, 20, 30]);
    assert_eq!(found(&both, "level", &[1.0, 3.0]), "level=0,2");
    store(&b, &[2.0], &[10, 20, 30, 40]);
    assert_eq!(found(&both, "level", &[1.0, 3.0]), "level=0,2|0,2", "dimensions of different lengths");
    store(&b, &[2.0], &[10, 20, 40]);
    let message = refused(&both, "level", &[1.0, 3.0]);
    let b_shows = format!("3.0 isn't a coordinate of dimension \"level\" in store {}: 1.0, 2.0, 4.0", b.display());
    assert!(message.contains(&b_shows), "{message}");
    fs::remove_dir_all(b.join("level")).unwrap();
    let message = refused(&both, "level", &[1.0]);
    assert!(message.contains(&format!("store {} has no array 'level'", b.display())), "{message}");
}

#[test]
fn coordinates_must_fit() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path(), &[0.0], &[10, 20, 30]);
    let spec = spec(&[folder.path()]);
    let level = |dtype: &str, shape: &[usize], chunk: Option<&[u8]>, attributes: &Value| {
        array(folder.path(), "level", dtype, shape, &["level"], chunk, attributes);
        refused(&spec, "level", &[1.0])
    };
    assert!(
        level("<i2", &[4], None, &json!({}))
            .contains("expected the shape [3], with a coordinate for each element of array 'z'")
    );
    assert!(level("<i2", &[3, 1], None, &json!({})).contains("but found [3, 1]"));
    let message = level("<i2", &[3], None, &json!({"scale_factor": "x"}));
    assert!(message.contains("can't be looked up") && message.contains("scale_factor"), "{message}");

    array(folder.path(), "level", "|S3", &[3], &["level"], None, &json!({}));
    let error = find(&spec, &DimKey::parse("level"), &[1.0]).unwrap_err();
    assert!(error.kind() == ErrorKind::Type && error.message().contains("give indices"), "{error}");
    array(folder.path(), "level", "<i2", &[3], &["level"], Some(&[0; 5]), &json!({}));
    let error = find(&spec, &DimKey::parse("level"), &[1.0]).unwrap_err();
    assert!(error.kind() == ErrorKind::Runtime && error.message().contains("can't be read"), "{error}");

    // Too large coordinates are refused before anything is read.
    let many = 1usize << 40;
    array(folder.path(), "z", "<f4", &[1, many], &["time", "level"], None, &json!({}));
    assert!(
        level("<i2", &[many], None, &json!({}))
            .contains("expected at most 67108864 coordinates, but found 1099511627776")
    );
    array(folder.path(), "z", "<f4", &[1, 0], &["time", "level"], None, &json!({}));
    assert!(level("<i2", &[0], None, &json!({})).ends_with(": it has none"));
}

#[test]
fn coordinates_are_those_of_the_nearest_group() {
    let folder = tempfile::tempdir().unwrap();
    for (group, levels) in [("", &[30, 20, 10][..]), ("a", &[10, 20, 30]), ("b", &[10, 20, 30]), ("c", &[20, 10, 30])] {
        store(&folder.path().join(group), &[0.0], levels);
    }
    store(&folder.path().join("b/d"), &[0.0], &[10, 20, 30]);
    array(folder.path(), "surface", "<f4", &[1], &["time"], None, &json!({}));
    let of = |names: &[&str]| {
        let arrays = names.iter().map(|&name| name.into()).collect();
        spec(&[folder.path()]).with(|s| s.source.arrays = arrays)
    };
    assert_eq!(found(&of(&["surface", "a/z"]), "level", &[3.0]), "level=2");
    assert_eq!(found(&of(&["a/z", "b/d/z"]), "level", &[1.0]), "level=0");
    let message = refused(&of(&["a/z", "c/z"]), "level", &[2.0]);
    assert!(message.contains("other indices in array 'a/level' than in 'c/level'"), "{message}");
    assert_eq!(found(&of(&["a/z", "c/z"]), "level", &[3.0]), "level=2");

    for group in ["a", "b/d", "c"] {
        fs::remove_dir_all(folder.path().join(group).join("level")).unwrap();
    }
    assert_eq!(found(&of(&["b/d/z", "b/z"]), "level", &[1.0]), "level=0", "one group up");
    assert_eq!(found(&of(&["a/z", "c/z"]), "level", &[1.0]), "level=2", "the root's");
    assert!(
        refused(&of(&["b/d/z", "a/z"]), "level", &[1.0]).contains("other indices in array 'b/level' than in 'level'")
    );
    array(folder.path(), "a/y", "<f4", &[4], &["level"], None, &json!({}));
    let message = refused(&of(&["a/z", "a/y"]), "level", &[1.0]);
    assert!(
        message.contains("array 'level': expected the shape [4], with a coordinate for each element of array 'a/y'"),
        "{message}"
    );
    let itself = spec(&[&folder.path().join("a/z")]).with(|s| s.source.arrays = Vec::new());
    assert!(refused(&itself, "level", &[2.0]).contains("has no array 'level'"));
}
