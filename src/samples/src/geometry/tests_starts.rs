//! Where samples start: windows, breaks, segments, crops.

use super::tests::{array, at, era5, shapes};
use super::*;
use crate::spec::{DimKey, OutOfBounds, Pick, Segments};
use dali_zarr_base::error::Error;

/// Returns the starts of samples along a dimension of 20 elements.
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
    // With breaks: all windows lie on one side of each break. The start may lie on the other side.
    let with = |offsets: &[i64], policy| {
        spec(offsets, policy).with(|s| {
            s.samples.breaks = vec![8].into();
            s.samples.step = vec![1].into();
        })
    };
    assert_eq!(starts(with(&[-5], OutOfBounds::Drop)).unwrap(), [6, 7, 8, 9, 10, 13, 14, 15]);
    assert_eq!(starts(with(&[-5, -4], OutOfBounds::Drop)).unwrap(), [6, 7, 8, 9, 13, 14, 15]);
    // A sample that "drop" keeps is read whole under "pad" too. Of any other sample, only the elements on its start's
    // side of the break are read.
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
    assert!(g.start(Sample::new(3, 0)).is_empty());
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
    let pick = vec![Pick { output: None, dim: DimKey::Name("t".into()), indices: vec![vec![0, 12, 13, 5, 6]] }];
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
    // 3 x 7 places, each drawn about a thousand times.
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
