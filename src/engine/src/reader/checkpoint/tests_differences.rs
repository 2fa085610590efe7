//! Tests which readers refuse each other's states, and what the error says.

use super::tests::{array, at, identity, named, refusal, state, store};
use super::*;
use dali_zarr_base::dtype::DType;
use dali_zarr_samples::spec::{DimKey, OutOfBounds, PerOutput, Pick};

#[test]
fn arrays_are_told_apart_by_their_names() {
    let folder = tempfile::tempdir().unwrap();
    for group in ["", "g", "h", "h/g"] {
        std::fs::create_dir_all(folder.path().join(group)).unwrap();
        std::fs::write(folder.path().join(group).join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    }
    for name in ["a", "a.zarr", "g/a", "g/b", "h/g/a"] {
        array(&folder.path().join(name), [100, 3, 5], 7, &json!({}));
    }
    let inside = |name: &str| at(folder.path()).with(|s| s.source.arrays = named(&[name]));
    let root = |path: &str| at(&folder.path().join(path));
    for (then, now) in [
        (inside("a"), inside("g/a")),
        (inside("g/a"), inside("h/g/a")),
        (inside("a"), inside("a.zarr")),
        (root("g/a"), root("g/b")),
        (inside("g/b"), root("g/a")),
        (inside("g/a"), root("g").with(|s| s.source.arrays = named(&["a"]))),
    ] {
        refusal(&then, &now);
        refusal(&now, &then);
    }
    for (then, now) in
        [(inside("h/g/a"), root("h/g/a")), (inside("a.zarr"), root("a.zarr")), (root("a.zarr"), root("g/a"))]
    {
        identity(&now).read(&state(&then)).unwrap();
        identity(&then).read(&state(&now)).unwrap();
    }
}

#[test]
fn zeros_have_signs() {
    let folder = store();
    let base = at(folder.path()).with(|s| {
        s.source.arrays = named(&["g/a"]);
        s.values.dtype = PerOutput::one(DType::F32);
    });
    let padded = |fill: f64| {
        base.clone().with(|s| {
            s.samples.window = vec![3].into();
            s.samples.out_of_bounds_policy = OutOfBounds::Pad;
            s.samples.fill_value = PerOutput::one(fill);
        })
    };
    let message = refusal(&padded(-0.0), &padded(0.0));
    assert!(message.contains("fill_value: \"-0.0\" in the checkpoint, 0.0 here"), "{message}");
    let centred = |mean: f64| base.clone().with(|s| s.values.mean = vec![mean].into());
    let message = refusal(&centred(0.0), &centred(-0.0));
    assert!(message.contains("mean: 0.0 in the checkpoint, \"-0.0\" here"), "{message}");
    identity(&centred(-0.0)).read(&state(&centred(-0.0))).unwrap();
}

#[test]
fn what_differs_is_named() {
    let folder = store();
    let base = at(folder.path()).with(|s| {
        s.source.arrays = named(&["g/a"]);
        s.order.random_shuffle = true;
        s.order.seed = 3;
    });
    let few = base.clone().with(|s| s.order.initial_fill = Some(20));
    let padded = base.clone().with(|s| {
        s.samples.window = vec![4].into();
        s.samples.step = vec![3].into();
        s.samples.out_of_bounds_policy = OutOfBounds::Pad;
    });
    let crop = |dim: &str| {
        base.clone().with(|s| {
            s.samples.dims = vec![DimKey::parse("level"), DimKey::parse("x")];
            s.samples.window = vec![2, 2].into();
            s.samples.random_crop = vec![DimKey::parse(dim)];
        })
    };
    let pick = |indices: &[i64]| {
        let pick = vec![Pick { output: None, dim: DimKey::parse("level"), indices: vec![indices.to_vec()] }];
        base.clone().with(|s| s.source.pick = pick)
    };
    let stores = |pick: &str| {
        let paths = vec![base.source.paths[0].clone(); 2];
        base.clone().with(|s| {
            s.source.paths = paths;
            s.source.pick = vec![Pick::parse(pick).unwrap()];
        })
    };
    for (then, now, parts) in [
        (base.clone(), base.clone().with(|s| s.order.seed = 4), &["seed: 3 in the checkpoint, 4 here"][..]),
        (base.clone(), base.clone().with(|s| s.order.seed = -1), &["seed: 3 in the checkpoint, the default here"]),
        (
            base.clone(),
            base.clone().with(|s| s.samples.step = vec![2].into()),
            &[
                "step: [1] in the checkpoint, [2] here",
                r#"starts: [["100 from 0"]] in the checkpoint, [["50 from 0"]] here"#,
                "samples in an epoch: 100 in the checkpoint, 50 here",
            ],
        ),
        (
            base.clone(),
            base.clone().with(|s| {
                s.samples.roi_start = vec![1].into();
                s.samples.roi_end = vec![-1].into();
            }),
            &[r#"[["98 from 1"]] here"#],
        ),
        (
            base.clone(),
            base.clone().with(|s| s.samples.offsets = vec![0, 0]),
            &["offsets: [0] in the checkpoint, [0,0] here"],
        ),
        (
            base.clone(),
            base.clone().with(|s| s.order.random_shuffle = false),
            &["random_shuffle: true", "seed: 3", "none here"],
        ),
        (
            base.clone(),
            base.clone().with(|s| s.samples.return_index = true),
            &["return_index: false in the checkpoint, true here"],
        ),
        (
            base.clone(),
            base.clone().with(|s| s.samples.stack_arrays = true),
            &["stack_arrays: false in the checkpoint, true here"],
        ),
        (
            base.clone(),
            base.clone().with(|s| s.values.mean = vec![0.5].into()),
            &["'a': dtype", "array 'a': mean: none in the checkpoint, 0.5 here"],
        ),
        (
            base.clone(),
            base.clone().with(|s| s.values.dtype = PerOutput::one(DType::F64)),
            &["array 'a': dtype: \"int16\" in the checkpoint, \"float64\" here"],
        ),
        (
            base.clone(),
            base.clone().with(|s| s.source.arrays = named(&["g/b"])),
            &["array 'b': name: \"a\" in the checkpoint, \"b\" here"],
        ),
        (
            base.clone(),
            base.clone().with(|s| {
                s.source.arrays = named(&["b"]);
                s.source.paths = at(&folder.path().join("g")).source.paths;
            }),
            &["name: \"a\""],
        ),
        (
            base.clone(),
            base.clone().with(|s| {
                s.source.arrays = Vec::new();
                s.source.paths = at(&folder.path().join("g/b")).source.paths;
            }),
            &["name: \"a\""],
        ),
        (base.clone(), pick(&[0, 1]), &[r#"array 'a': shape: ["time",3,5] in the checkpoint, ["time",2,5] here"#]),
        (pick(&[1, 2]), pick(&[2, 1]), &[r#"shape: ["time",[1,2],5] in the checkpoint, ["time",[2,1],5] here"#]),
        (
            stores("level=1,2|2,1"),
            stores("level=1,2"),
            &[r#"["time",[[1,2],[2,1]],5] in the checkpoint, ["time",[1,2],5] here"#],
        ),
        (
            few.clone(),
            base.clone().with(|s| s.order.initial_fill = Some(21)),
            &["initial_fill: 20 in the checkpoint, 21 here"],
        ),
        (few, base.clone(), &["samples that share chunks", "14 times 7", "1 times 2", "none here"]),
        (
            padded.clone(),
            padded.clone().with(|s| s.samples.fill_value = PerOutput::one(2.0)),
            &["fill_value: 0.0 in the checkpoint, 2.0 here"],
        ),
        (
            padded.clone(),
            padded.clone().with(|s| s.samples.breaks = vec![50].into()),
            &["region and breaks: [[0,100]] in the checkpoint, [[0,50,100]] here"],
        ),
        (crop("level"), crop("x"), &[r#"random_crop: ["level"] in the checkpoint, ["x"] here"#]),
        (
            padded.clone().with(|s| s.samples.stride = vec![2].into()),
            padded,
            &["stride: [2] in the checkpoint, [1] here"],
        ),
    ] {
        let message = refusal(&then, &now);
        for part in parts {
            assert!(message.contains(part), "{part}: {message}");
        }
        refusal(&now, &then);
    }
}

#[test]
fn windows_beyond_a_break_from_their_start_count() {
    let folder = store();
    let of = |offsets: &[i64], breaks: &[i64]| {
        at(folder.path()).with(|s| {
            s.source.arrays = named(&["g/a"]);
            s.samples.offsets = offsets.to_vec();
            s.samples.breaks = breaks.to_vec().into();
            s.samples.out_of_bounds_policy = OutOfBounds::Pad;
        })
    };
    let name = "windows beyond a break from their start";
    for (offsets, breaks, expected) in [
        (&[6][..], &[50][..], json!("read")),
        (&[-6], &[50], json!("read")),
        // Without a break, or with a window at the start, older versions read the same.
        (&[6], &[], Value::Null),
        (&[0, 6], &[50], Value::Null),
        (&[-6, 6], &[50], Value::Null),
        // No segment has room for all windows of a sample.
        (&[10, 70], &[50], Value::Null),
    ] {
        let spec = of(offsets, breaks);
        let mut then: Value = serde_json::from_str(&state(&spec)).unwrap();
        assert_eq!(then["cut"][name], expected, "{offsets:?} {breaks:?}");
        then["cut"].as_object_mut().unwrap().remove(name);
        assert_eq!(identity(&spec).read(&then.to_string()).is_ok(), expected.is_null(), "{offsets:?} {breaks:?}");
    }
}

#[test]
fn decoding_counts_where_there_is_something_to_decode() {
    let folder = tempfile::tempdir().unwrap();
    array(&folder.path().join("plain"), [100, 3, 5], 7, &json!({}));
    array(&folder.path().join("packed"), [100, 3, 5], 7, &json!({"scale_factor": 0.5}));
    array(&folder.path().join("unsigned"), [100, 3, 5], 7, &json!({"_Unsigned": "true"}));
    let of = |name: &str, decode: Option<bool>| {
        at(&folder.path().join(name))
            .with(|s| s.values.mask_and_scale = decode.map_or(PerOutput::new(), PerOutput::one))
    };
    let (yes, no) = (Some(true), Some(false));
    identity(&of("plain", yes)).read(&state(&of("plain", no))).unwrap();
    // If `mask_and_scale` is left out, the state has what the reader decided.
    identity(&of("packed", None)).read(&state(&of("packed", yes))).unwrap();
    identity(&of("unsigned", None)).read(&state(&of("unsigned", no))).unwrap();
    refusal(&of("packed", None), &of("packed", no));
    let message = refusal(&of("packed", yes), &of("packed", no));
    assert!(message.contains("mask_and_scale: {") && message.contains("\"scale_factor\":0.5"), "{message}");
    // Decoding only reads the bits as another type.
    let cast = |mask_and_scale| of("unsigned", mask_and_scale).with(|s| s.values.dtype = PerOutput::one(DType::F32));
    let message = refusal(&cast(yes), &cast(no));
    assert!(message.contains("mask_and_scale: {") && message.contains("\"from\":\"uint16\""), "{message}");
}

#[test]
fn chunks_count_where_the_order_depends_on_them() {
    let folder = tempfile::tempdir().unwrap();
    array(&folder.path().join("old/a"), [100, 3, 5], 7, &json!({}));
    array(&folder.path().join("new/a"), [100, 3, 5], 8, &json!({}));
    let of = |name: &str, random_shuffle| {
        let path = folder.path().join(name).join("a");
        at(&path).with(|s| {
            s.order.random_shuffle = random_shuffle;
            s.order.initial_fill = Some(20);
        })
    };
    identity(&of("new", false)).read(&state(&of("old", false))).unwrap();
    let message = refusal(&of("old", true), &of("new", true));
    assert!(
        message.contains("samples that share chunks: [[\"14 times 7\",\"1 times 2\"]] in the checkpoint"),
        "{message}"
    );
}

#[test]
fn long_lists_stay_short_and_still_differ() {
    let folder = store();
    let long = |last: i64| {
        let offsets = (0..9_000).map(|i| i % 50).chain([last]).collect();
        at(folder.path()).with(|s| {
            s.source.arrays = named(&["g/a"]);
            s.samples.offsets = offsets;
        })
    };
    let text = state(&long(1));
    assert!(text.len() < 2000, "{}", text.len());
    assert!(identity(&long(1)).read(&text).is_ok());
    let message = refusal(&long(1), &long(2));
    assert!(message.contains("offsets: \"9001 entries with hash"), "{message}");
}
