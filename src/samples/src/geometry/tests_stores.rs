//! Samples that are cut from each store on its own: their shapes, and what a batch of them may have at most.

use super::tests::array;
use super::*;
use crate::batch::Ragged;
use crate::spec::{DimKey, OutOfBounds, PerDim};

/// Arrays with points and cells in each of three stores.
fn meshes() -> Vec<ArrayShape> {
    let of = |name: &str, dims: &[(&str, u64)], lens: [u64; 3]| {
        let mut array = array(name, dims);
        array.parts = lens.iter().map(|&len| [&[len], &array.parts[0][1..]].concat()).collect();
        array
    };
    vec![
        of("coords", &[("points", 0), ("xyz", 3)], [1000, 1137, 40]),
        of("pressure", &[("cells", 0)], [2000, 7, 0]),
        of("inlet", &[("xyz", 0)], [3, 3, 3]),
    ]
}

fn spec(change: impl FnOnce(&mut Spec)) -> Spec {
    let paths = ["a", "b", "c"].map(str::to_owned).to_vec();
    Spec::default()
        .with(|s| {
            s.source.paths = paths;
            s.samples.concat = Concat::Samples;
            s.batch_size = 4;
        })
        .with(change)
}

fn groups(change: impl FnOnce(&mut Spec)) -> Spec {
    spec(|s| {
        s.source.groups = vec!["*".into()];
        change(s);
    })
}

fn of(spec: &Spec) -> Result<Vec<Geometry>> {
    Geometry::of(spec, &meshes(), Inputs::default())
}

#[test]
fn groups_are_read_whole_and_differ_where_their_shapes_do() {
    let all = of(&groups(|s| s.samples.return_index = true)).unwrap();
    assert_eq!(all.iter().map(|g| g.samples).collect::<Vec<_>>(), [1, 1, 1]);
    assert!(all.iter().all(|g| g.outputs == all[0].outputs && g.axes.is_empty()));
    let outputs: Vec<_> = all[0].outputs.iter().map(|o| (o.shape.clone(), o.ragged.clone())).collect();
    let ragged = |most| Some(Ragged { dims: vec![0], most });
    // Three samples in an epoch: a batch of four has each at most four times.
    assert_eq!(outputs[0], (vec![1137, 3], ragged(4 * 1137 * 3)));
    assert_eq!(outputs[1], (vec![2000], ragged(4 * 2000)));
    assert_eq!(outputs[2..], [(vec![3], None), (vec![1], None)]);
    assert_eq!(all[2].own_shapes, [vec![40, 3], vec![0], vec![3], vec![1]]);
}

#[test]
fn a_window_takes_a_part_and_others_stay_whole() {
    let cut = |window: PerDim, policy| {
        let spec = groups(|s| {
            s.samples.window = window;
            s.samples.random_crop = vec![DimKey::Name("points".into())];
            s.samples.out_of_bounds_policy = policy;
        });
        of(&spec)
    };
    let by_dim = || PerDim::ByDim(vec![(DimKey::Name("points".into()), 100)]);
    let all = cut(by_dim(), OutOfBounds::Drop).unwrap();
    assert_eq!(all.iter().map(|g| g.samples).collect::<Vec<_>>(), [1, 1, 0], "the last group is too small");
    assert_eq!((all[0].outputs[0].shape.clone(), all[0].outputs[0].ragged.clone()), (vec![100, 3], None));
    assert_eq!(all[0].outputs[1].shape, [2000], "of groups with samples");
    let padded = cut(by_dim(), OutOfBounds::Pad).unwrap();
    assert_eq!(padded.iter().map(|g| g.samples).collect::<Vec<_>>(), [1, 1, 1]);
    assert!(cut(by_dim(), OutOfBounds::Error).unwrap_err().to_string().contains("\"error\""));
    let by_output = PerDim::ByOutput(vec![("coords".into(), by_dim())]);
    assert_eq!(cut(by_output, OutOfBounds::Drop).unwrap()[0].own_shapes[..2], [vec![100, 3], vec![2000]]);
    let of_none = PerDim::ByOutput(vec![("pressure".into(), by_dim())]);
    assert!(cut(of_none, OutOfBounds::Drop).unwrap_err().message().contains("window: expected a window for an output"));
    let alone = of(&groups(|s| s.samples.random_crop = vec![DimKey::Index(0)])).unwrap_err();
    assert!(alone.message().contains("random_crop: expected dims or window"), "{alone}");
}

#[test]
fn arrays_without_names_may_have_other_lengths_if_they_are_read_whole() {
    let mut arrays = meshes();
    arrays.iter_mut().for_each(|array| array.dims = (0..array.dims.len()).map(|d| format!("dim_{d}")).collect());
    let first = |name: &str| (name.to_owned(), PerDim::ByDim(vec![(DimKey::Name("dim_0".into()), 10)]));
    let cut = |windows: Vec<(String, PerDim)>| {
        let spec = groups(|s| s.samples.window = PerDim::ByOutput(windows));
        Geometry::of(&spec, &arrays, Inputs::default())
    };
    let all = cut(vec![first("coords")]).unwrap();
    assert_eq!(all.iter().map(|g| g.samples).collect::<Vec<_>>(), [100, 113, 4]);
    assert_eq!(all[1].own_shapes, [vec![10, 3], vec![7], vec![3]]);
    assert!(cut(vec![first("coords"), first("pressure")]).unwrap_err().message().contains("length"));
}

#[test]
fn stores_of_windows_over_their_whole_length_differ() {
    let whole = |change: fn(&mut Spec)| {
        let spec = spec(|s| {
            (s.samples.dims, s.samples.window) = (vec![DimKey::Name("points".into())], vec![-1].into());
            s.samples.return_mask = true;
            change(s);
        });
        Geometry::of(&spec, &meshes()[..1], Inputs::default()).unwrap()
    };
    let most = |all: &[Geometry]| all[0].outputs[0].ragged.as_ref().unwrap().most;
    let all = whole(|_| {});
    assert_eq!(all[0].outputs[1].ragged, Some(Ragged { dims: vec![0], most: 4 * 1137 }), "the mask");
    assert_eq!(most(&all), 4 * 1137 * 3);
    assert_eq!(most(&whole(|s| s.batch_size = 1)), 1137 * 3);
    let large = whole(|s| (s.samples.window, s.samples.step) = (vec![0].into(), vec![1].into()));
    assert!(large.iter().all(|g| g.outputs[0].ragged.is_none() && g.own_shapes.is_empty()), "elements have one shape");
}

#[test]
fn memory_is_that_of_as_many_large_samples_as_a_batch_may_have() {
    // 977 crops of 8 x 12 elements, and 100 of 8 x 30.
    let mut image = array("image", &[("z", 984), ("x", 12)]);
    image.parts.push(vec![107, 30]);
    let most = |change: fn(&mut Spec)| {
        let spec = spec(|s| {
            s.source.paths.truncate(2);
            (s.samples.window, s.samples.step) = (vec![8].into(), vec![1].into());
            s.batch_size = 900;
            change(s);
        });
        let all = Geometry::of(&spec, std::slice::from_ref(&image), Inputs::default()).unwrap();
        all[0].outputs[0].ragged.as_ref().unwrap().most
    };
    assert_eq!(most(|_| {}), 3 * (100 * 240 + 200 * 96), "300 samples, each three times");
    assert_eq!(most(|s| s.order.pad_last_batch = true), 900 * 240);
}

#[test]
fn stores_must_agree_on_channels_and_have_samples_of_a_possible_size() {
    let with = |parts: [Vec<u64>; 2], change: fn(&mut Spec)| {
        let mut image = array("image", &[("c", 1), ("y", 1)]);
        image.parts = parts.to_vec();
        let spec = spec(|s| {
            s.source.paths.truncate(2);
            (s.samples.dims, s.samples.window) = (vec![DimKey::Name("y".into())], vec![-1].into());
            change(s);
        });
        Geometry::of(&spec, &[image], Inputs::default())
    };
    let by_channel: fn(&mut Spec) =
        |s| s.values.mean = crate::spec::PerOutput::ByOutput(vec![("image".into(), vec![1.0, 2.0])]);
    assert!(with([vec![2, 50], vec![2, 60]], by_channel).is_ok());
    let nan: fn(&mut Spec) = |s| s.samples.fill_value = vec![f64::NAN].into();
    assert!(with([vec![2, 50], vec![2, 60]], nan).is_ok(), "equal norms with NaN");
    assert!(with([vec![2, 50], vec![3, 60]], by_channel).is_err(), "two means for three channels");
    let one: fn(&mut Spec) = |s| (s.samples.stack_arrays, s.values.mean) = (true, vec![1.0].into());
    let stacked = with([vec![2, 50], vec![3, 60]], one).unwrap();
    let shapes = (&stacked[0].outputs[0].shape[..], &stacked[0].own_shapes[0][..]);
    assert_eq!(shapes, (&[1, 3, 60][..], &[1, 2, 50][..]), "a stack of one array has one channel");
    let huge = with([vec![1 << 43, 1], vec![1, 1 << 43]], |_| {}).unwrap_err();
    assert!(huge.message().contains("all stores are at most"), "{huge}");
}
