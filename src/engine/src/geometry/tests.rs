use super::*;
use crate::error::ErrorKind;
use crate::spec::{DimKey, OutOfBounds, Pick};

fn array(name: &str, dims: &[(&str, u64)]) -> ArrayShape {
    ArrayShape {
        name: name.into(),
        dims: dims.iter().map(|d| d.0.into()).collect(),
        parts: vec![dims.iter().map(|d| d.1).collect()],
        values: DType::F32,
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

fn shapes(g: &Geometry) -> Vec<Vec<i64>> {
    g.outputs.iter().map(|o| o.shape.clone()).collect()
}

#[test]
fn separate_outputs_of_era5() {
    let spec = Spec { offsets: vec![0, 1], return_index: true, ..Spec::default() };
    let g = Geometry::new(&spec, &era5()).unwrap();
    let group = [vec![7, 9], vec![5, 7, 9], vec![7, 9], vec![]];
    assert_eq!(shapes(&g), [&group[..], &group[..], &[vec![1]]].concat());
    assert_eq!(g.samples, 9);
    assert_eq!(g.outputs[0].layout, "HW");
    assert_eq!(g.start(8), [8]);
}

#[test]
fn stacked_channels_of_era5() {
    let pick = vec![Pick { dim: DimKey::Name("level".into()), indices: vec![0, -1, 2] }];
    let spec = Spec { stack_arrays: true, pick, ..Spec::default() };
    let g = Geometry::new(&spec, &era5()).unwrap();
    assert_eq!(shapes(&g), [[6, 7, 9]]);
    assert_eq!(g.outputs[0].layout, "CHW");
    assert_eq!(g.placements[1].strides, [0, 63, 9, 1]);
    assert_eq!(g.placements[2].base, 4 * 63);
    assert_eq!(g.placements[3].broadcast, [(7, 9), (9, 1)]);
    assert_eq!(g.views[1].dims[1].pick, Some(vec![0, 4, 2]));
}

#[test]
fn tiles_keep_levels_as_channels() {
    let dims = ["time", "lat", "lon"].map(|d| DimKey::Name(d.into())).to_vec();
    let spec = Spec { stack_arrays: true, dims, window: vec![2, 4, 4], step: vec![1, 3, 4], ..Spec::default() };
    let g = Geometry::new(&spec, &era5()).unwrap();
    assert_eq!(shapes(&g), [[8, 2, 4, 4]]);
    assert_eq!(g.samples, 9 * 2 * 2);
    assert_eq!(g.start(5), [1, 0, 4]);
    assert_eq!(g.placements[2].broadcast, [(2, 16)], "the mask is repeated along time");
}

#[test]
fn normalised_per_channel_or_array() {
    let pick = vec![Pick { dim: DimKey::Name("level".into()), indices: vec![0, 1] }];
    let spec = Spec { stack_arrays: true, pick, mean: vec![1., 2., 3., 4., 5.], stddev: vec![2.], ..Spec::default() };
    let g = Geometry::new(&spec, &era5()).unwrap();
    assert_eq!(g.norms.iter().map(|n| n.mean_stddev.unwrap().0).collect::<Vec<_>>(), [1., 2., 3., 4., 5.]);
    assert_eq!(g.placements[1].channels, Some(Channels { dims: vec![(1, 1)] }));
    assert_eq!(g.placements[2].norm, 3);
    let spec = Spec { mean: vec![1., 2., 3., 4.], ..spec };
    assert_eq!(Geometry::new(&spec, &era5()).unwrap().norms.len(), 4);
    let spec = Spec { mean: vec![1., 2., 3.], ..spec };
    assert!(Geometry::new(&spec, &era5()).unwrap_err().message().contains("5 channels"));
}

#[test]
fn windows_and_policies() {
    let a = [array("a", &[("t", 10)])];
    let with = |window: i64, step: i64, stride: i64, offsets: &[i64], policy| {
        let spec = Spec {
            window: vec![window],
            step: vec![step],
            stride: vec![stride],
            offsets: offsets.to_vec(),
            out_of_bounds_policy: policy,
            ..Spec::default()
        };
        Geometry::new(&spec, &a).map(|g| (g.axes[0].first, g.axes[0].count))
    };
    assert_eq!(with(3, 3, 1, &[], OutOfBounds::Drop).unwrap(), (0, 3));
    assert_eq!(with(3, 3, 1, &[], OutOfBounds::Pad).unwrap(), (0, 4));
    assert_eq!(with(3, 1, 4, &[], OutOfBounds::Drop).unwrap(), (0, 2));
    assert_eq!(with(2, 1, 1, &[-2, 1], OutOfBounds::Drop).unwrap(), (2, 6));
    assert_eq!(with(-1, 1, 1, &[], OutOfBounds::Drop).unwrap(), (0, 1));
    assert_eq!(with(5, 5, 1, &[], OutOfBounds::Error).unwrap(), (0, 2));
    assert!(with(3, 3, 1, &[], OutOfBounds::Error).unwrap_err().message().contains("don't tile"));
    assert!(with(11, 1, 1, &[], OutOfBounds::Drop).unwrap_err().message().contains("no sample"));
    assert!(with(-2, 1, 1, &[], OutOfBounds::Drop).is_err());
}

#[test]
fn stores_are_joined() {
    let mut a = array("a", &[("t", 10), ("x", 3)]);
    a.parts.push(vec![4, 3]);
    let spec = Spec { paths: vec!["p".into(), "q".into()], ..Spec::default() };
    let g = Geometry::new(&spec, &[a.clone()]).unwrap();
    assert_eq!(g.samples, 14);
    assert_eq!(g.views[0].joined, Some((0, vec![0, 10, 14])));
    a.parts[1][1] = 5;
    assert!(Geometry::new(&spec, &[a]).unwrap_err().message().contains("joined along"));
}

#[test]
fn wrong_names_are_listed() {
    let of = |spec: Spec| Geometry::new(&spec, &era5()).unwrap_err();
    let e = of(Spec { dims: vec![DimKey::Name("tyme".into())], ..Spec::default() });
    assert!(e.message().contains("time, lat, lon, level") && e.kind() == ErrorKind::Value, "{e}");
    let e = of(Spec { dims: vec![DimKey::Index(4)], ..Spec::default() });
    assert!(e.message().contains("4 dimensions"), "{e}");
    let e = of(Spec { pick: vec![Pick::parse("level=5").unwrap()], ..Spec::default() });
    assert!(e.kind() == ErrorKind::Index && e.message().contains("length 5"), "{e}");
    let e = of(Spec { window: vec![1, 2], ..Spec::default() });
    assert!(e.message().contains("one value for each"), "{e}");
}

#[test]
fn stacks_need_one_type() {
    let mut arrays = era5();
    arrays[3].values = DType::I64;
    let spec = Spec { stack_arrays: true, ..Spec::default() };
    let e = Geometry::new(&spec, &arrays).unwrap_err();
    assert!(e.kind() == ErrorKind::Type && e.message().contains("dtype="), "{e}");
    assert!(Geometry::new(&Spec { dtype: Some(DType::F32), ..spec }, &arrays).is_ok());
}
