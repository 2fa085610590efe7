//! Tests that readers accept each other's states if their arguments mean the same.

use super::tests::{array, at, identity, named, refusal, state, store};
use super::*;
use dali_zarr_base::dtype::DType;
use dali_zarr_samples::spec::{DimKey, OutOfBounds, OutputDims, PerOutput, Pick};

#[test]
fn arguments_that_mean_the_same_are_the_same() {
    let folder = store();
    let base = at(folder.path()).with(|s| s.source.arrays = named(&["g/a"]));
    let shuffled = base.clone().with(|s| s.order.random_shuffle = true);
    let padded = base.clone().with(|s| {
        s.samples.window = vec![3].into();
        s.samples.out_of_bounds_policy = OutOfBounds::Pad;
    });
    let stacked = base.clone().with(|s| {
        s.source.arrays = named(&["g/a", "g/b"]);
        s.samples.stack_arrays = true;
    });
    let pick =
        |indices: &[i64]| vec![Pick { output: None, dim: DimKey::parse("level"), indices: vec![indices.to_vec()] }];
    let same: Vec<Vec<Spec>> = vec![
        vec![
            base.clone(),
            base.clone().with(|s| s.samples.dims = vec![DimKey::parse("time")]),
            base.clone().with(|s| s.samples.dims = vec![DimKey::parse("-3")]),
            base.clone().with(|s| {
                s.samples.window = vec![0].into();
                s.samples.step = vec![1].into();
                s.samples.stride = vec![1].into();
                s.samples.offsets = vec![0];
            }),
            // One element has no stride, and doesn't cross breaks.
            base.clone().with(|s| {
                s.samples.stride = vec![5].into();
                s.samples.breaks = vec![40, -7].into();
            }),
            base.clone().with(|s| {
                s.samples.roi_start = vec![0].into();
                s.samples.roi_end = vec![100].into();
            }),
            // Arguments without effect, since nothing is padded, missing or random.
            base.clone().with(|s| {
                s.samples.out_of_bounds_policy = OutOfBounds::Pad;
                s.samples.fill_value = PerOutput::one(7.0);
            }),
            base.clone().with(|s| s.samples.out_of_bounds_policy = OutOfBounds::Error),
            base.clone().with(|s| {
                s.values.mask_and_scale = PerOutput::one(true);
                s.order.seed = 9;
                s.order.initial_fill = Some(3);
                s.samples.cross_stores = false;
            }),
            base.clone().with(|s| {
                s.values.dtype = PerOutput::one(DType::I16);
                s.source.pick = pick(&[0, 1, -1]);
            }),
            // The same array, opened as a store.
            at(&folder.path().join("g/a")),
        ],
        vec![
            shuffled.clone(),
            shuffled.clone().with(|s| s.order.seed = 0x5eed),
            // A shuffle window of all samples, as with the default.
            shuffled.clone().with(|s| s.order.initial_fill = Some(100)),
        ],
        vec![
            padded.clone(),
            padded.clone().with(|s| {
                s.samples.fill_value = PerOutput::one(0.0);
                s.samples.step = vec![3].into();
                s.samples.roi_end = vec![100].into();
            }),
        ],
        vec![
            base.clone().with(|s| s.samples.window = vec![-1].into()),
            base.clone().with(|s| {
                s.samples.window = vec![100].into();
                s.samples.step = vec![3].into();
            }),
            base.clone().with(|s| {
                s.samples.window = vec![-1].into();
                s.samples.roi_end = vec![100].into();
                s.samples.out_of_bounds_policy = OutOfBounds::Error;
            }),
        ],
        vec![
            stacked.clone().with(|s| s.values.mean = vec![1.5].into()),
            stacked.clone().with(|s| {
                s.values.mean = vec![1.5; 2].into();
                s.values.stddev = vec![1.0].into();
                s.values.dtype = PerOutput::one(DType::F32);
            }),
        ],
        vec![
            base.clone().with(|s| s.values.mean = vec![1.0, 2.0, 3.0].into()),
            base.clone().with(|s| {
                s.values.mean = PerOutput::ByOutput(vec![("g/a".into(), vec![1.0, 2.0, 3.0])]);
                s.values.stddev = PerOutput::one(1.0);
                s.values.channels = OutputDims::All(vec![DimKey::Index(1)]);
            }),
        ],
        // Lists of equal numbers.
        vec![
            base.clone().with(|s| s.values.mean = vec![1.25].into()),
            base.clone().with(|s| s.values.mean = vec![1.25; 3].into()),
            base.clone().with(|s| s.values.mean = vec![1.25; 5].into()),
        ],
        // The same arrays in a store that begins at another group: not the same samples as above.
        vec![stacked.with(|s| {
            s.source.arrays = named(&["a", "b"]);
            s.source.paths = at(&folder.path().join("g")).source.paths;
            s.values.mean = vec![1.5].into();
        })],
    ];
    for (i, group) in same.iter().enumerate() {
        for then in group {
            // The order has one shard, since some of these readers have only one sample.
            let state = identity(then).write(&Order::new(&Spec::default(), 1).unwrap(), 0, 0);
            for (j, other) in same.iter().enumerate() {
                for now in other {
                    let read = identity(now).read(&state);
                    if i == j {
                        read.unwrap_or_else(|e| panic!("{e}\n{then:?}\n{now:?}"));
                    } else {
                        assert!(read.is_err(), "{then:?}\n{now:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn stores_that_are_joined_are_as_good_as_one() {
    let folder = tempfile::tempdir().unwrap();
    for (name, steps) in [("all", 100), ("one", 70), ("two", 30)] {
        array(&folder.path().join(name), [steps, 3, 5], 7, &json!({}));
    }
    let of = |names: &[&str]| {
        Spec::default().with(|s| {
            s.source.paths = names.iter().map(|n| folder.path().join(n).to_str().unwrap().to_owned()).collect();
            s.samples.window = vec![4].into();
            s.samples.step = vec![1].into();
        })
    };
    identity(&of(&["all"])).read(&state(&of(&["one", "two"]))).unwrap();
    identity(&of(&["one", "two"])).read(&state(&of(&["all"]))).unwrap();
    identity(&of(&["one", "two"])).read(&state(&of(&["one", "two"]))).unwrap();
    let message = refusal(&of(&["one", "two"]), &of(&["two", "one"]));
    assert!(message.contains(r#"stores: ["one","two"] in the checkpoint, ["two","one"] here"#), "{message}");
    // They differ if no sample may reach from one store into the next.
    let apart = |names: &[&str]| of(names).with(|s| s.samples.cross_stores = false);
    let message = refusal(&apart(&["one", "two"]), &apart(&["all"]));
    assert!(
        message.contains(r#"starts: [["67 from 0","27 from 70"]] in the checkpoint, [["97 from 0"]] here"#),
        "{message}"
    );
    let with = of(&["all"]).with(|s| s.samples.breaks = vec![70].into());
    identity(&with).read(&state(&apart(&["one", "two"]))).unwrap();
}
