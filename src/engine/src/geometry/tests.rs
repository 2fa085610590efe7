use super::*;
use crate::error::ErrorKind;
use crate::spec::{DimKey, OutOfBounds, Pick, Segments};

fn array(name: &str, dims: &[(&str, u64)]) -> ArrayShape {
    ArrayShape {
        two_fills: false,
        name: name.into(),
        output: name.into(),
        dims: dims.iter().map(|d| d.0.into()).collect(),
        parts: vec![dims.iter().map(|d| d.1).collect()],
        values: DType::F32,
        unclear: None,
    }
}

fn era5() -> Vec<ArrayShape> {
    let (time, lat, lon) = (("time", 10), ("lat", 7), ("lon", 9));
    vec![
        array("t2m", &[time, lat, lon]),
        array("z", &[time, ("level", 5), lat, lon]),
        array("lsm", &[lat, lon]),
        array("time", &[time]),
    ]
}

fn at(g: &Geometry, sample: Sample) -> Vec<i64> {
    g.start(sample).iter().map(|start| start.at).collect()
}

fn shapes(g: &Geometry) -> Vec<Vec<i64>> {
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
    let pick = vec![Pick { dim: DimKey::Name("level".into()), indices: vec![vec![0, -1, 2]] }];
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
    let pick = vec![Pick { dim: DimKey::Name("level".into()), indices: vec![vec![0, 1]] }];
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
    // Samples are cut along it.
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

/// The starts along the first axis of a dimension of 20.
fn starts(spec: Spec) -> Result<Vec<i64>> {
    let g = Geometry::new(&spec, &[array("a", &[("t", 20)])])?;
    Ok((0..g.samples).map(|index| g.start(Sample::new(0, index))[0].at).collect())
}

#[test]
fn windows_keep_to_their_side_of_a_break() {
    let spec = |policy| {
        Spec::default().with(|s| {
            s.samples.window = vec![3].into();
            s.samples.breaks = vec![-12, 3].into();
            s.samples.out_of_bounds_policy = policy;
        })
    };
    assert_eq!(starts(spec(OutOfBounds::Drop)).unwrap(), [0, 3, 9, 12, 15], "[6, 9) crosses 8");
    assert_eq!(starts(spec(OutOfBounds::Pad)).unwrap(), [0, 3, 6, 9, 12, 15, 18]);
    assert!(starts(spec(OutOfBounds::Error)).unwrap_err().message().contains("cross a break"));
    let tiles = spec(OutOfBounds::Error).with(|s| s.samples.window = vec![4].into());
    assert_eq!(starts(tiles.with(|s| s.samples.breaks = vec![8, 16].into())).unwrap(), [0, 4, 8, 12, 16]);
    let offsets = Spec::default().with(|s| {
        s.samples.window = vec![1].into();
        s.samples.offsets = vec![-1, 1];
        s.samples.breaks = vec![8].into();
    });
    assert_eq!(starts(offsets).unwrap(), [1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]);
    for bad in [0, 20, -20, 25] {
        let e = starts(Spec::default().with(|s| s.samples.breaks = vec![bad].into())).unwrap_err();
        assert!(e.message().contains("breaks") && e.message().contains(&bad.to_string()), "{e}");
    }
    let e = starts(Spec::default().with(|s| {
        s.samples.breaks = vec![10].into();
        s.samples.window = vec![11].into();
    }))
    .unwrap_err();
    assert!(e.message().contains("without a break"), "{e}");
}

#[test]
fn only_windows_that_are_read_count() {
    let spec = |offsets: &[i64], policy| {
        Spec::default().with(|s| {
            s.samples.window = vec![3].into();
            s.samples.step = vec![2].into();
            s.samples.offsets = offsets.to_vec();
            s.samples.roi_start = vec![1].into();
            s.samples.roi_end = vec![16].into();
            s.samples.out_of_bounds_policy = policy;
        })
    };
    let grid = [1, 3, 5, 7, 9, 11, 13, 15];
    for offsets in [&[0][..], &[-4], &[4], &[-9, -7], &[2, 5], &[-1, 3]] {
        assert_eq!(starts(spec(offsets, OutOfBounds::Pad)).unwrap(), grid);
        let fits = |s: &&i64| offsets.iter().all(|o| 1 <= **s + o && **s + o + 3 <= 16);
        let expected: Vec<i64> = grid.iter().filter(fits).copied().collect();
        assert_eq!(starts(spec(offsets, OutOfBounds::Drop)).unwrap(), expected, "{offsets:?}");
    }
    // With breaks: all windows on one side of each, whichever side the start is on.
    let with = |offsets: &[i64], policy| {
        spec(offsets, policy).with(|s| {
            s.samples.breaks = vec![8].into();
            s.samples.step = vec![1].into();
        })
    };
    assert_eq!(starts(with(&[-5], OutOfBounds::Drop)).unwrap(), [6, 7, 8, 9, 10, 13, 14, 15]);
    assert_eq!(starts(with(&[-5, -4], OutOfBounds::Drop)).unwrap(), [6, 7, 8, 9, 13, 14, 15]);
    // A sample that "drop" keeps is read whole under "pad" too; of others, what lies on the side of their start.
    let axis = &Geometry::new(&with(&[-5], OutOfBounds::Pad), &[array("a", &[("t", 20)])]).unwrap().axes[0];
    assert_eq!([10, 11, 12, 13].map(|s| axis.segment(axis.start(s - 1).segment)), [(1, 8), (8, 16), (8, 16), (8, 16)]);
    assert_eq!([1, 5, 6, 7, 8].map(|s| axis.segment(axis.start(s - 1).segment)), [(1, 8); 5]);
}

#[test]
fn arrays_without_dimensions_are_one_sample() {
    let arrays = [array("a", &[]), array("b", &[])];
    let spec = Spec::default().with(|s| {
        s.source.paths = vec!["p".into()];
        s.samples.offsets = vec![0, 0];
        s.samples.return_index = true;
    });
    let g = Geometry::new(&spec, &arrays).unwrap();
    assert_eq!((g.samples, g.axes.len()), (1, 0));
    assert_eq!(shapes(&g), [vec![], vec![], vec![], vec![], vec![0]]);
    assert_eq!(g.start(Sample::new(3, 0)), []);
    let g = Geometry::new(
        &spec.clone().with(|s| {
            s.samples.stack_arrays = true;
            s.samples.offsets = Vec::new();
        }),
        &arrays,
    )
    .unwrap();
    assert_eq!((shapes(&g), &*g.outputs[0].layout), (vec![vec![2], vec![0]], "C"));
    let of = |spec: Spec| Geometry::new(&spec, &arrays).unwrap_err().message().to_owned();
    for (what, spec) in [
        ("window", spec.clone().with(|s| s.samples.window = vec![0].into())),
        ("roi_end", spec.clone().with(|s| s.samples.roi_end = vec![1].into())),
        ("offsets", spec.clone().with(|s| s.samples.offsets = vec![0, 1])),
        ("breaks", spec.clone().with(|s| s.samples.breaks = vec![1].into())),
        ("random_crop", spec.clone().with(|s| s.samples.random_crop = vec![DimKey::Index(0)])),
    ] {
        let message = of(spec);
        assert!(message.starts_with(&format!("{what}: expected an array with dimensions")), "{message}");
    }
    assert!(of(spec.clone().with(|s| s.samples.dims = vec![DimKey::Index(0)])).contains("has 0 dimensions"));
    assert!(of(spec.with(|s| s.source.paths = vec!["p".into(), "q".into()])).contains("expected one store"));
}

#[test]
fn a_million_breaks_are_found_quickly() {
    let a = array("a", &[("t", 1 << 40)]);
    let breaks: Vec<i64> = (1..1_000_000).map(|i| i << 20).collect();
    let spec = Spec::default().with(|s| {
        s.samples.window = vec![3].into();
        s.samples.step = vec![1].into();
        s.samples.breaks = breaks.into();
    });
    let g = Geometry::new(&spec, &[a]).unwrap();
    assert_eq!(g.samples, (1 << 40) - 2 * 1_000_000);
    assert_eq!(at(&g, Sample::new(0, (1 << 20) - 2)), [1 << 20]);
    assert_eq!(g.axes[0].segment(g.axes[0].start(g.samples as i64 - 1).segment), (999_999 << 20, 1 << 40));
}

#[test]
fn borders_between_stores_are_breaks_if_asked_for() {
    let mut a = array("a", &[("t", 10)]);
    a.parts.push(vec![4]);
    let spec = Spec::default().with(|s| {
        s.source.paths = vec!["p".into(), "q".into()];
        s.samples.window = vec![2].into();
        s.samples.step = vec![1].into();
    });
    let of = |spec: &Spec| Geometry::new(spec, &[a.clone()]).unwrap();
    assert_eq!(of(&spec).samples, 13);
    let spec = spec.with(|s| s.samples.cross_stores = false);
    assert_eq!(of(&spec).axes[0].bounds, [0, 10, 14]);
    assert_eq!(of(&spec).samples, 12);
    let pick = vec![Pick { dim: DimKey::Name("t".into()), indices: vec![vec![0, 12, 13, 5, 6]] }];
    assert_eq!(of(&spec.with(|s| s.source.pick = pick)).axes[0].bounds, [0, 1, 3, 5]);
}

#[test]
fn random_crops_are_drawn_from_all_places_that_fit() {
    let dims = ["time", "lat", "lon"].map(|d| DimKey::Name(d.into())).to_vec();
    let spec = Spec::default().with(|s| {
        s.samples.dims = dims;
        s.samples.window = vec![1, 4, 3].into();
        s.samples.random_crop = vec![DimKey::Name("lat".into()), DimKey::Index(-1)];
        s.samples.roi_start = vec![0, 1, 0].into();
    });
    let g = Geometry::new(&spec, &era5()).unwrap();
    assert_eq!(g.samples, 10, "one for each time");
    let mut seen = std::collections::HashMap::new();
    for epoch in 0..2100 {
        for index in 0..10 {
            let start = at(&g, Sample::new(epoch, index));
            assert_eq!(start, at(&g, Sample::new(epoch, index)));
            assert_eq!(start[0], index as i64);
            *seen.entry((start[1], start[2])).or_insert(0u32) += 1;
        }
    }
    // 3 x 7 places, each a thousand times but for the noise of drawing.
    assert_eq!(seen.len(), 21);
    assert!(seen.keys().all(|&(lat, lon)| (1..=3).contains(&lat) && (0..=6).contains(&lon)));
    assert!(seen.values().all(|&n| n.abs_diff(1000) < 160), "{seen:?}");
    let other = Geometry::new(&spec.clone().with(|s| s.order.seed = 8), &era5()).unwrap();
    assert!((0..10).any(|index| other.start(Sample::new(0, index)) != g.start(Sample::new(0, index))));

    let of = |spec: Spec| Geometry::new(&spec, &era5()).unwrap_err().message().to_owned();
    let step = of(spec.clone().with(|s| s.samples.step = vec![1, 2, 0].into()));
    assert!(step.contains("step") && step.contains("random_crop") && step.contains("\"lat\""), "{step}");
    assert!(
        Geometry::new(&spec.clone().with(|s| s.samples.step = vec![2, 0, 0].into()), &era5())
            .is_ok_and(|g| g.samples == 5)
    );
    let outside = of(spec.clone().with(|s| s.samples.random_crop = vec![DimKey::Name("level".into())]));
    assert!(outside.contains("random_crop") && outside.contains("\"level\""), "{outside}");
    let twice = of(spec.clone().with(|s| s.samples.random_crop = vec![DimKey::Index(-1), DimKey::Name("lon".into())]));
    assert!(twice.contains("twice"), "{twice}");
    assert!(of(spec.clone().with(|s| s.samples.window = vec![1, 7, 3].into())).contains("no sample"));
    let pad = spec.with(|s| {
        s.samples.window = vec![1, 7, 3].into();
        s.samples.out_of_bounds_policy = OutOfBounds::Pad;
    });
    assert_eq!(
        Geometry::new(&pad, &era5()).unwrap().start(Sample::new(3, 2))[..2].iter().map(|s| s.at).collect::<Vec<_>>(),
        [2, 1]
    );
}

#[test]
fn segments_have_grids_of_their_own() {
    let spec = Spec::default().with(|s| {
        s.samples.window = vec![4].into();
        s.samples.step = vec![1].into();
        s.samples.breaks = vec![3, 10, -1].into();
        s.samples.out_of_bounds_policy = OutOfBounds::Edge;
        s.samples.pad_before = vec![1].into();
        s.samples.pad_after = vec![2].into();
        s.samples.return_mask = true;
        s.samples.return_index = true;
    });
    let of = |spec: &Spec| {
        let g = Geometry::new(spec, &[array("a", &[("t", 12)])])?;
        let index = |index| g.index(&g.start(Sample::new(0, index))).collect();
        Ok::<Vec<Vec<i64>>, Error>((0..g.samples).map(index).collect())
    };
    // Segments of 3, 7, 1 and 1 elements; starts from 1 before each to 2 before its end.
    let second = (2..=8).map(|s| vec![1, s]);
    let all: Vec<Vec<i64>> = [vec![0, -1], vec![0, 0], vec![0, 1]]
        .into_iter()
        .chain(second.clone())
        .chain([vec![2, 9], vec![3, 10]])
        .collect();
    assert_eq!(of(&spec).unwrap(), all);
    let chosen = |segments: Segments| of(&spec.clone().with(|s| s.samples.segments = segments));
    let expected: Vec<Vec<i64>> = second.chain([vec![3, 10]]).collect();
    assert_eq!(chosen(Segments::Numbers(vec![-1, 1])).unwrap(), expected);
    assert_eq!(chosen(Segments::Mask(vec![false, true, false, true])).unwrap(), expected);
    for (segments, message) in [
        (Segments::Numbers(vec![4]), "segments: segment 4 isn't one of the 4 segments between breaks"),
        (Segments::Numbers(vec![-5]), "segments: segment -5 isn't one of the 4 segments between breaks"),
        (
            Segments::Numbers(vec![i64::MIN]),
            "segments: segment -9223372036854775808 isn't one of the 4 segments between breaks",
        ),
        (Segments::Numbers(vec![1, -3]), "segments: expected each segment once, but found segment 1 twice"),
        (Segments::Numbers(vec![]), "segments: expected at least one of the 4 segments between breaks, found none"),
        (
            Segments::Mask(vec![false; 4]),
            "segments: expected at least one of the 4 segments between breaks, found none",
        ),
        (
            Segments::Mask(vec![true; 3]),
            "segments: expected true or false for each of the 4 segments between breaks, found 3",
        ),
    ] {
        assert_eq!(chosen(segments).unwrap_err().message(), message);
    }
    let g = Geometry::new(&spec, &[array("a", &[("t", 12)])]).unwrap();
    assert_eq!(shapes(&g), [vec![4], vec![4], vec![2]]);
    let drop = spec.clone().with(|s| s.samples.out_of_bounds_policy = OutOfBounds::Drop);
    assert!(
        of(&drop).unwrap_err().message().starts_with("pad_before: expected out_of_bounds_policy=\"pad\" or \"edge\"")
    );
    let far = spec.with(|s| s.samples.pad_after = vec![4].into());
    assert!(of(&far).unwrap_err().message().starts_with("pad_after: expected 0 to 3 along \"t\""));
}
