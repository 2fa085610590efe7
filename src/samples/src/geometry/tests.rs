use super::*;
use crate::spec::{DimKey, OutOfBounds, Pick};
use dali_zarr_base::error::ErrorKind;

pub(super) fn array(name: &str, dims: &[(&str, u64)]) -> ArrayShape {
    ArrayShape {
        aligned: None,
        places: Vec::new(),
        stored: "float32".into(),
        complex_fill_parts_differ: false,
        ragged: None,
        name: name.into(),
        output: name.into(),
        dims: dims.iter().map(|d| d.0.into()).collect(),
        parts: vec![dims.iter().map(|d| d.1).collect()],
        values: DType::F32,
        unclear: None,
    }
}

pub(super) fn era5() -> Vec<ArrayShape> {
    let (time, lat, lon) = (("time", 10), ("lat", 7), ("lon", 9));
    vec![
        array("t2m", &[time, lat, lon]),
        array("z", &[time, ("level", 5), lat, lon]),
        array("lsm", &[lat, lon]),
        array("time", &[time]),
    ]
}

pub(super) fn at(g: &Geometry, sample: Sample) -> Vec<i64> {
    g.start(sample).iter().map(|start| start.at).collect()
}

pub(super) fn shapes(g: &Geometry) -> Vec<Vec<i64>> {
    g.outputs.iter().map(|o| o.shape.clone()).collect()
}

#[test]
fn separate_outputs_of_era5() {
    let spec = Spec::default().with(|s| {
        s.samples.offsets = vec![0, 1];
        s.samples.return_index = true;
    });
    let g = Geometry::new(&spec, &era5()).unwrap();
    let group = [vec![7, 9], vec![5, 7, 9], vec![7, 9], vec![]];
    assert_eq!(shapes(&g), [&group[..], &group[..], &[vec![1]]].concat());
    assert_eq!(g.samples, 9);
    assert_eq!(g.outputs[0].layout, "HW");
    assert_eq!(at(&g, Sample::new(0, 8)), [8]);
}

#[test]
fn stacked_channels_of_era5() {
    let pick = vec![Pick { output: None, dim: DimKey::Name("level".into()), indices: vec![vec![0, -1, 2]] }];
    let spec = Spec::default().with(|s| {
        s.samples.stack_arrays = true;
        s.source.pick = pick;
    });
    let g = Geometry::new(&spec, &era5()).unwrap();
    assert_eq!(shapes(&g), [[6, 7, 9]]);
    assert_eq!(g.outputs[0].layout, "CHW");
    assert_eq!(g.placements[1].strides, [0, 63, 9, 1]);
    assert_eq!(g.placements[2].base, 4 * 63);
    assert_eq!(g.placements[3].broadcast, [(7, 9), (9, 1)]);
    assert_eq!(g.views[1].dims[1].picked(0), Some(&[0, 4, 2][..]));
}

#[test]
fn tiles_keep_levels_as_channels() {
    let dims = ["time", "lat", "lon"].map(|d| DimKey::Name(d.into())).to_vec();
    let spec = Spec::default().with(|s| {
        s.samples.stack_arrays = true;
        s.samples.dims = dims;
        s.samples.window = vec![2, 4, 4].into();
        s.samples.step = vec![1, 3, 4].into();
    });
    let g = Geometry::new(&spec, &era5()).unwrap();
    assert_eq!(shapes(&g), [[8, 2, 4, 4]]);
    assert_eq!(g.samples, 9 * 2 * 2);
    assert_eq!(at(&g, Sample::new(0, 5)), [1, 0, 4]);
    assert_eq!(g.placements[2].broadcast, [(2, 16)], "the mask is repeated along time");
}

#[test]
fn normalised_per_channel_or_array() {
    let pick = vec![Pick { output: None, dim: DimKey::Name("level".into()), indices: vec![vec![0, 1]] }];
    let spec = Spec::default().with(|s| {
        s.samples.stack_arrays = true;
        s.source.pick = pick;
        s.values.mean = vec![1., 2., 3., 4., 5.].into();
        s.values.stddev = vec![2.].into();
    });
    let g = Geometry::new(&spec, &era5()).unwrap();
    assert_eq!(g.norms.iter().map(|n| n.mean_stddev.unwrap().0).collect::<Vec<_>>(), [1., 2., 3., 4., 5.]);
    assert_eq!(g.placements[1].channels, Some(Channels { dims: vec![(1, 1)], table: None, is_own: false }));
    assert_eq!(g.placements[2].norm, 3);
    let spec = spec.with(|s| s.values.mean = vec![1., 2., 3., 4.].into());
    assert_eq!(Geometry::new(&spec, &era5()).unwrap().norms.len(), 4);
    let spec = spec.with(|s| s.values.mean = vec![1., 2., 3.].into());
    assert!(Geometry::new(&spec, &era5()).unwrap_err().message().contains("5 channels"));
}

#[test]
fn channels_of_one_array() {
    let images = [array("img", &[("t", 10), ("y", 6), ("x", 5), ("c", 3)]), array("act", &[("t", 10), ("k", 7)])];
    let named = |channels: &str| serde_json::from_str(channels).unwrap();
    let of = |arrays: &[ArrayShape], channels: &str, mean: &[(&str, usize)]| {
        let spec = Spec::default().with(|s| {
            s.samples.dims = vec![DimKey::Name("t".into())];
            s.values.channels = named(channels);
            let list = |&(name, n): &(&str, usize)| (name.to_owned(), (0..n).map(|i| i as f64).collect());
            s.values.mean = crate::spec::PerOutput::ByOutput(mean.iter().map(list).collect());
        });
        let g = Geometry::new(&spec, arrays).map_err(|e| e.message().to_owned())?;
        let own = |a: usize| {
            g.own_channels(a).map(|dims| dims.map(|d| arrays[a].dims[d].clone()).collect::<Vec<_>>().join("+"))
        };
        Ok((0..arrays.len()).map(|a| own(a).unwrap_or_default()).collect::<Vec<_>>())
    };
    let both = [("img", 3), ("act", 7)];
    assert_eq!(of(&images, "[]", &both), Ok(vec!["c".into(), "k".into()]), "the only dimensions with as many");
    assert_eq!(of(&images, "-1", &both), Ok(vec!["c".into(), "k".into()]), "of each array");
    assert_eq!(of(&images, r#"{"act": 1}"#, &both), Ok(vec!["c".into(), "k".into()]));
    assert_eq!(of(&images, r#"["c", "y"]"#, &[("img", 18)]), Ok(vec!["y+c".into(), String::new()]));
    assert_eq!(of(&images, "[]", &[("img", 1), ("act", 1)]), Ok(vec![String::new(), String::new()]));
    // Channels along a dimension that samples are cut along.
    assert_eq!(of(&images, "\"t\"", &[("act", 10)]), Ok(vec![String::new(), "t".into()]));
    let square = [array("img", &[("t", 10), ("y", 3), ("x", 3), ("c", 3)])];
    for (arrays, channels, mean, words) in [
        (&images[..], "[]", &[("img", 4)][..], "\"y\" 6, \"x\" 5, \"c\" 3), found 4"),
        (&images, "[]", &[("act", 10)], "\"k\" 7), found 10"),
        (&square, "[]", &[("img", 3)], "channels={\"img\": \"c\"}"),
        (&images, "\"c\"", &[("img", 2)], "each of the 3 elements along channels (\"c\" 3), found 2"),
        (&images, "\"c\"", &both, "'act', which has none of the dimensions of channels, found 7"),
        (&images, "\"d\"", &both, "no array has a dimension \"d\""),
        (&images, "9", &both, "no array has the position 9"),
        (&images, r#"{"act": "c"}"#, &both, "expected dimensions of 'act' (t, k), but found \"c\""),
        (&images, r#"{"a": "c"}"#, &both, "channels: there is no output 'a'"),
        (&images, r#"["c", -1]"#, &[("img", 3)], "\"c\" is named twice"),
        (&images, "[]", &[("img", 0)], "at least one value for 'img'"),
    ] {
        let message: String = of(arrays, channels, mean).unwrap_err();
        assert!(message.contains(words), "{message}");
    }
    let spec = |mean: usize, stddev: usize| {
        Spec::default().with(|s| {
            s.values.mean = vec![1.0; mean].into();
            s.values.stddev = vec![1.0; stddev].into();
        })
    };
    assert_eq!(Geometry::new(&spec(3, 1), &images[..1]).unwrap().norms.len(), 3, "a list of the only array");
    let message = |spec: &Spec, arrays: &[ArrayShape]| Geometry::new(spec, arrays).unwrap_err().message().to_owned();
    assert!(message(&spec(3, 5), &images[..1]).contains("found 3 and 5"));
    assert!(message(&spec(3, 1), &images).contains("mean={\"img\": [...]}"));
    assert_eq!(Geometry::new(&spec(2, 1), &images).unwrap().norms.len(), 2, "one for each array");
}

#[test]
fn channels_beside_those_of_a_stack() {
    let spec = |n: usize, channels: &str| {
        Spec::default().with(|s| {
            s.samples.stack_arrays = true;
            s.values.channels = serde_json::from_str(channels).unwrap();
            s.values.mean = vec![1.0; n].into();
        })
    };
    let levels = [array("u", &[("t", 4), ("l", 3), ("x", 5)]), array("z", &[("t", 4), ("l", 3), ("x", 5)])];
    let g = Geometry::new(&spec(6, "\"l\""), &levels).unwrap();
    assert_eq!((g.norms.len(), g.placements[1].norm, shapes(&g)), (6, 3, vec![vec![2, 3, 5]]));
    assert_eq!(g.placements[1].channels.as_ref().unwrap().dims, [(1, 1)]);
    assert!(Geometry::new(&spec(6, "[]"), &levels).is_err());
}

#[test]
fn windows_and_policies() {
    let a = [array("a", &[("t", 10)])];
    let with = |window: i64, step: i64, stride: i64, offsets: &[i64], policy| {
        let spec = Spec::default().with(|s| {
            s.samples.window = vec![window].into();
            s.samples.step = vec![step].into();
            s.samples.stride = vec![stride].into();
            s.samples.offsets = offsets.to_vec();
            s.samples.out_of_bounds_policy = policy;
        });
        Geometry::new(&spec, &a).map(|g| (g.axes[0].starts.at(0).0, g.axes[0].count()))
    };
    assert_eq!(with(3, 3, 1, &[], OutOfBounds::Drop).unwrap(), (0, 3));
    assert_eq!(with(3, 3, 1, &[], OutOfBounds::Pad).unwrap(), (0, 4));
    assert_eq!(with(3, 1, 4, &[], OutOfBounds::Drop).unwrap(), (0, 2));
    assert_eq!(with(2, 1, 1, &[-2, 1], OutOfBounds::Drop).unwrap(), (2, 6));
    assert_eq!(with(2, 3, 1, &[-2, 1], OutOfBounds::Drop).unwrap(), (3, 2), "starts are multiples of the step");
    assert_eq!(with(-1, 1, 1, &[], OutOfBounds::Drop).unwrap(), (0, 1));
    assert_eq!(with(5, 5, 1, &[], OutOfBounds::Error).unwrap(), (0, 2));
    assert!(with(3, 3, 1, &[], OutOfBounds::Error).unwrap_err().message().contains("don't tile"));
    assert!(with(11, 1, 1, &[], OutOfBounds::Drop).unwrap_err().message().contains("no sample"));
    let far = with(1, 1, 1, &[1000, 0], OutOfBounds::Drop).unwrap_err();
    assert!(far.message().contains("spans 1001 elements (window 1, stride 1, offsets from 0 to 1000)"), "{far}");
    assert!(with(-2, 1, 1, &[], OutOfBounds::Drop).is_err());
}

#[test]
fn stores_are_joined() {
    let mut a = array("a", &[("t", 10), ("x", 3)]);
    a.parts.push(vec![4, 3]);
    let spec = Spec::default().with(|s| s.source.paths = vec!["p".into(), "q".into()]);
    let g = Geometry::new(&spec, &[a.clone()]).unwrap();
    assert_eq!(g.samples, 14);
    assert_eq!(g.views[0].joined, Some((0, vec![0, 10, 14])));
    a.parts[1][1] = 5;
    assert!(Geometry::new(&spec, &[a]).unwrap_err().message().contains("joined along"));
}

#[test]
fn stores_have_indices_of_their_own() {
    let mut a = array("a", &[("t", 10), ("level", 3)]);
    a.parts.push(vec![4, 5]);
    let mut constant = array("c", &[("level", 3)]);
    constant.parts.push(vec![5]);
    let arrays = [a, constant];
    let of = |pick: &[&str]| {
        let pick = pick.iter().map(|text| Pick::parse(text).unwrap()).collect();
        Geometry::new(
            &Spec::default().with(|s| {
                s.source.paths = vec!["p".into(), "q".into()];
                s.source.pick = pick;
            }),
            &arrays,
        )
    };
    let g = of(&["level=2,0|4,-1"]).unwrap();
    assert_eq!(shapes(&g), [vec![2], vec![2]]);
    for view in &g.views {
        let dim = view.dims.last().unwrap();
        assert_eq!([dim.picked(0).unwrap(), dim.picked(1).unwrap()], [[2, 0], [4, 4]]);
        assert_eq!((dim.len, &dim.role), (2, &Role::Whole));
    }
    let same = of(&["level=1,2|-4,2"]).unwrap();
    assert_eq!(same.views[0].dims[1].pick.as_ref().unwrap().lists(), [[1, 2]], "one list, if they don't differ");
    assert_eq!(
        of(&["t=3,12", "level=0|0"]).unwrap().views[0].dims[0].picked(1),
        Some(&[3, 12][..]),
        "counted over all stores"
    );
    for (pick, kind, words) in [
        (&["level=0,3|0,3"][..], ErrorKind::Index, &["index 3", "\"level\" of array 'a' in store p", "length 3"][..]),
        (&["level=2|-6"], ErrorKind::Index, &["index -6", "in store q", "length 5"]),
        (&["t=14", "level=0|0"], ErrorKind::Index, &["index 14", "length 14"]),
        (&["level=1"], ErrorKind::Value, &["length 3 along \"level\" in p and 5 in q"]),
        (&["level=1|2|3"], ErrorKind::Value, &["one for each store of path (2), but found 3"]),
        (&["level=1,2|3"], ErrorKind::Value, &["as many indices of \"level\" for each store, but found 2 and 1"]),
        (&["t=1|2"], ErrorKind::Value, &["joined along \"t\"", "expected one list"]),
        (&["level=1|2", "-1=1|2"], ErrorKind::Value, &["named twice"]),
    ] {
        let e = of(pick).unwrap_err();
        assert!(e.kind() == kind && words.iter().all(|w| e.message().contains(w)), "{pick:?}: {e}");
    }
}

#[test]
fn outputs_have_indices_of_their_own() {
    let arrays =
        [array("a", &[("t", 10), ("level", 5)]), array("b", &[("t", 10), ("level", 5)]), array("c", &[("t", 10)])];
    let of = |picks: &[(Option<&str>, &str)]| {
        let pick = |(output, text): &(Option<&str>, &str)| Pick {
            output: output.map(str::to_owned),
            ..Pick::parse(text).unwrap()
        };
        Geometry::new(&Spec::default().with(|s| s.source.pick = picks.iter().map(pick).collect()), &arrays)
    };
    let g = of(&[(Some("b"), "level=4,0,-2"), (Some("a"), "-1=1"), (None, "t=3,7")]).unwrap();
    assert_eq!(shapes(&g), [vec![1], vec![3], vec![]]);
    assert_eq!(g.views[1].dims[1].picked(0), Some(&[4, 0, 3][..]));
    assert_eq!((g.views[0].dims[1].picked(0), g.samples), (Some(&[1][..]), 2));
    assert_eq!(shapes(&of(&[(Some("b"), "level=2")]).unwrap()), [vec![5], vec![1], vec![]]);
    let same = of(&[(Some("a"), "t=3,7"), (Some("b"), "t=3,7"), (Some("c"), "0=3,7")]).unwrap();
    assert_eq!((same.samples, same.views[2].dims[0].picked(0)), (2, Some(&[3, 7][..])));
    for (picks, kind, words) in [
        (&[(Some("d"), "level=0")][..], ErrorKind::Value, &["pick: there is no output 'd'", "'a', 'b', 'c'"][..]),
        (&[(Some("c"), "level=0")], ErrorKind::Value, &["pick: no array has a dimension \"level\"", "are t"]),
        (&[(Some("b"), "level=5")], ErrorKind::Index, &["index 5", "array 'b'", "length 5"]),
        (&[(Some("b"), "level=1"), (Some("b"), "1=2")], ErrorKind::Value, &["\"level\" of output 'b' is named twice"]),
        (&[(Some("b"), "level=1"), (None, "level=2")], ErrorKind::Value, &["is named twice"]),
        (&[(None, "level=1"), (Some("b"), "level=2")], ErrorKind::Value, &["is named twice"]),
        (&[(Some("b"), "t=1,2")], ErrorKind::Value, &["along \"t\", one of dims", "for 'b' than for 'a'"]),
        (&[(Some("a"), "t=1,2"), (Some("b"), "t=1,2")], ErrorKind::Value, &["for 'c' than for 'a'"]),
    ] {
        let e = of(picks).unwrap_err();
        assert!(e.kind() == kind && words.iter().all(|w| e.message().contains(w)), "{picks:?}: {e}");
    }
}

#[test]
fn unclear_names_are_addressed_by_position() {
    let mut a = array("a", &[("dim_0", 4), ("dim_1", 6)]);
    a.unclear = Some(Unclear { names: vec!["x".into()], stored: "dimension_names [\"x\",\"x\"]".into() });
    let arrays = [a, array("b", &[("x", 3)])];
    let one = |key: &str| vec![DimKey::parse(key)];
    let g = Geometry::new(
        &Spec::default().with(|s| {
            s.samples.dims = one("1");
            s.samples.window = vec![2].into();
        }),
        &arrays,
    )
    .unwrap();
    assert_eq!((g.samples, shapes(&g)), (3, vec![vec![4, 2], vec![3]]));
    for spec in [
        Spec::default().with(|s| s.samples.dims = one("x")),
        Spec::default().with(|s| {
            s.samples.dims = one("0");
            s.samples.random_crop = one("x");
        }),
        Spec::default().with(|s| s.source.pick = vec![Pick::parse("x=0").unwrap()]),
    ] {
        let e = Geometry::new(&spec, &arrays).unwrap_err();
        assert!(e.message().contains("\"x\", and array 'a' has dimension_names [\"x\",\"x\"]"), "{e}");
    }
}

#[test]
fn wrong_names_are_listed() {
    let of = |spec: Spec| Geometry::new(&spec, &era5()).unwrap_err();
    let e = of(Spec::default().with(|s| s.samples.dims = vec![DimKey::Name("tyme".into())]));
    assert!(e.message().contains("time, lat, lon, level") && e.kind() == ErrorKind::Value, "{e}");
    let e = of(Spec::default().with(|s| s.samples.dims = vec![DimKey::Index(4)]));
    assert!(e.message().contains("4 dimensions"), "{e}");
    let e = of(Spec::default().with(|s| s.source.pick = vec![Pick::parse("level=5").unwrap()]));
    assert!(e.kind() == ErrorKind::Index && e.message().contains("length 5"), "{e}");
    let e = of(Spec::default().with(|s| s.samples.window = vec![1, 2].into()));
    assert!(e.message().contains("one value for each"), "{e}");
}

#[test]
fn stacks_need_one_type() {
    let mut arrays = era5();
    arrays[3].values = DType::I64;
    let spec = Spec::default().with(|s| s.samples.stack_arrays = true);
    let e = Geometry::new(&spec, &arrays).unwrap_err();
    assert!(e.kind() == ErrorKind::Type && e.message().contains("dtype="), "{e}");
    assert!(Geometry::new(&spec.with(|s| s.values.dtype = crate::spec::PerOutput::one(DType::F32)), &arrays).is_ok());
}
