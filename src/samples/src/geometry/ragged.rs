//! Rows of different lengths. Of a ragged array, sample `i` has the elements from offset `i` to before offset `i + 1`.
//! Of any other array, it has element `i`.
//!
//! Axes and outputs are first made as if a ragged array had one element for each row. [`apply`] then puts the row's
//! elements in place of this element, as the first dimension of the sample.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::by_store::repeats;
use super::{ArrayShape, Geometry, Role, Rows, TableStarts, layout};
use crate::batch::Ragged;
use crate::spec::{Concat, DimKey, Spec};
use dali_zarr_base::error::{Error, Result};

impl Rows {
    /// Returns the arrays as if each had one element for each row.
    ///
    /// # Errors
    /// If an array doesn't fit the rows, or if `spec` has arguments that can't be combined with rows.
    pub fn shapes(&self, spec: &Spec, arrays: &[ArrayShape]) -> Result<Vec<ArrayShape>> {
        Ok(AsRows::new(spec, arrays, self.clone())?.arrays)
    }
}

/// The arrays as if each had one element for each row.
pub(super) struct AsRows {
    pub arrays: Vec<ArrayShape>,
    rows: Rows,
    /// The name of the first dimension of all these arrays: the rows.
    dim: String,
    /// For each array, whether it is ragged.
    ragged: Vec<bool>,
}

impl AsRows {
    pub fn new(spec: &Spec, arrays: &[ArrayShape], rows: Rows) -> Result<Self> {
        let refused = [
            ("stack_arrays", spec.samples.stack_arrays, "channels of one output have one shape"),
            ("offsets", spec.samples.offsets.iter().any(|&o| o != 0), "all outputs of a sample are of one row"),
            ("concat", spec.samples.concat == Concat::Samples, "stores are joined row by row"),
        ];
        if let Some((what, _, why)) = refused.into_iter().find(|(_, given, _)| *given) {
            return Err(Error::value(format!(
                "{what}: expected none with {}, since {why}; leave it out",
                rows.argument
            )));
        }
        let ragged = rows.classify(spec, arrays)?;
        let first = |is_ragged: bool| {
            arrays.iter().zip(&ragged).find(|(_, r)| **r == is_ragged).map(|(array, _)| array.dims[0].clone())
        };
        let free = |name: &String| arrays.iter().all(|array| !array.dims[1..].contains(name));
        let asked = match spec.samples.dims.first() {
            Some(DimKey::Name(name)) => arrays.iter().find_map(|a| a.dims.first().filter(|dim| *dim == name).cloned()),
            _ => None,
        };
        let dim = asked.into_iter().chain(first(false)).chain(first(true)).find(free).unwrap_or_else(|| "rows".into());
        let as_rows = |(array, is_ragged): (&ArrayShape, &bool)| {
            let mut array = array.clone();
            array.ragged = is_ragged.then(|| array.dims[0].clone());
            array.dims[0].clone_from(&dim);
            array.parts.iter_mut().zip(&rows.stores).for_each(|(part, of)| part[0] = of.0);
            array
        };
        Ok(Self { arrays: arrays.iter().zip(&ragged).map(as_rows).collect(), rows, dim, ragged })
    }
}

/// Puts the elements of the rows into a geometry that was made with one element for each row. `stored` has the arrays
/// as they are stored.
///
/// # Errors
/// If samples are cut along the rows in a way that rows don't allow, or if a row is too large.
pub(super) fn apply(spec: &Spec, geometry: &mut Geometry, stored: &[ArrayShape], as_rows: AsRows) -> Result<()> {
    let AsRows { mut rows, dim: rows_dim, ragged, .. } = as_rows;
    let argument = rows.argument.clone();
    let refuse = |what: &str, expected: &str| Err(Error::value(format!("{what}: {expected} with {argument}")));
    let axis = &geometry.axes[0];
    if axis.name != rows_dim {
        return refuse("dims", &format!("expected the rows (\"{rows_dim}\") first, but found \"{}\",", axis.name));
    }
    let cuts = || geometry.views.iter().map(|view| view.cuts[0]);
    let is_windowed = cuts().any(|cut| !cut.dropped);
    if is_windowed || cuts().any(|cut| cut.stride != 1) {
        let what = if is_windowed { "window" } else { "stride" };
        return refuse(
            what,
            "expected none along the rows, since a sample is one row; leave it out or give its default",
        );
    }
    let (from, to) = axis.region();
    if let Some(table) = &geometry.table
        && let Some(k) = (0..table.count()).find(|&k| !(from..to).contains(&table.start(k)[0]))
    {
        let found = table.start(k)[0];
        return refuse("starts", &format!("expected rows from {from} to before {to}, but found {found} (sample {k})"));
    }
    if axis.random {
        return refuse("random_crop", "expected other dimensions than the rows");
    }
    for (a, _) in ragged.iter().enumerate().filter(|(_, ragged)| **ragged) {
        let view = &mut geometry.views[a];
        let dim = &mut view.dims[0];
        dim.role = Role::Ragged;
        dim.len = stored[a].parts.iter().map(|part| part[0]).sum();
        rows.pick = dim.pick.take().or(rows.pick);
        if let Some((_, starts)) = &mut view.joined {
            let lens = stored[a].parts.iter().map(|part| part[0]);
            *starts = std::iter::once(0)
                .chain(lens.scan(0, |sum, len| {
                    *sum += len;
                    Some(*sum)
                }))
                .collect();
        }
    }
    let (longest, in_batch) = bounds(spec, geometry, &rows);
    for placement in &mut geometry.placements {
        if !ragged[placement.array] {
            continue;
        }
        if placement.channels.iter().any(|channels| channels.dims.iter().any(|&(d, _)| d == 0)) {
            return refuse("channels", "expected other dimensions than the rows");
        }
        let array = &stored[placement.array];
        let output = &mut geometry.outputs[placement.output];
        placement.strides[0] = output.shape.iter().product();
        let of_element = placement.strides[0] as u64;
        let row_bytes = u128::from(of_element) * output.dtype.size() as u128;
        if row_bytes * u128::from(longest.max(in_batch)) >= 1 << 46 {
            return Err(Error::value(format!(
                "output '{}': the longest row has {longest} elements of {row_bytes} bytes, and a batch up to {in_batch}, which is too \
                 much; use max_length or a smaller batch_size",
                output.name
            )));
        }
        output.dims.insert(0, array.dims[0].clone());
        output.layout = layout::of(&output.dims);
        output.shape.insert(0, longest as i64);
        output.ragged = Some(Ragged { dims: vec![0], most: of_element * in_batch });
    }
    geometry.rows = Some(rows);
    Ok(())
}

/// Returns the number of elements of the longest row, and the maximum number that all rows of a batch have together.
fn bounds(spec: &Spec, geometry: &Geometry, rows: &Rows) -> (u64, u64) {
    let batch = spec.batch_size as u64;
    // There is a position for each sample of a table, or without a table for each row.
    let starts = &geometry.axes[0].starts;
    let count = geometry.table.as_ref().map_or(starts.count() as u64, TableStarts::count);
    let position = |k: u64| geometry.table.as_ref().map_or_else(|| starts.at(k as i64).0, |table| table.start(k)[0]);
    let others = geometry.samples / count;
    let times = repeats(spec, geometry.samples, others);
    let distinct = batch.div_ceil(times.max(1)) as usize;
    let mut largest: BinaryHeap<Reverse<u64>> = BinaryHeap::with_capacity(distinct + 1);
    for k in 0..count {
        let length = rows.span(position(k)).len;
        if largest.len() < distinct {
            largest.push(Reverse(length));
        } else if let Some(mut least) = largest.peek_mut()
            && least.0 < length
        {
            *least = Reverse(length);
        }
    }
    let longest = largest.iter().map(|length| length.0).max().unwrap_or(0);
    let sum = largest.iter().fold(0u64, |sum, length| sum.saturating_add(length.0));
    (longest, sum.saturating_mul(times).min(longest.saturating_mul(batch)))
}

#[cfg(test)]
mod tests {
    use super::super::Inputs;
    use super::*;
    use crate::order::Sample;
    use crate::spec::OrderSource;
    use dali_zarr_base::dtype::DType;

    fn array(name: &str, dims: &[(&str, u64)]) -> ArrayShape {
        ArrayShape {
            aligned: None,
            places: Vec::new(),
            stored: "float32".into(),
            complex_fill_parts_differ: false,
            ragged: None,
            name: name.into(),
            output: name.into(),
            dims: dims.iter().map(|(dim, _)| (*dim).into()).collect(),
            unclear: None,
            parts: vec![dims.iter().map(|(_, len)| *len).collect()],
            values: DType::F32,
        }
    }

    /// Returns the first element and the length of a row.
    fn pair(rows: &Rows, at: i64) -> (u64, u64) {
        let span = rows.span(at);
        (span.first, span.len)
    }

    fn rows(offsets: &[u64], max_length: Option<u64>) -> Result<Rows> {
        Rows::new("ragged=\"X/indptr\"".into(), "X/indptr", vec![offsets.to_vec()], max_length)
    }

    const OFFSETS: [u64; 6] = [0, 3, 3, 10, 11, 20];

    fn csr() -> [ArrayShape; 3] {
        [array("X/data", &[("dim_0", 20)]), array("obs/label", &[("dim_0", 5)]), array("X/xyz", &[("n", 20), ("c", 3)])]
    }

    fn of(spec: &Spec, arrays: &[ArrayShape], rows: Rows) -> Result<Geometry> {
        Geometry::of(spec, arrays, Inputs { rows: Some(rows), ..Inputs::default() }).map(|mut all| all.remove(0))
    }

    #[test]
    fn arrays_are_ragged_or_have_an_element_for_each_row() {
        let spec = Spec::default().with(|s| {
            s.batch_size = 2;
            s.samples.return_index = true;
        });
        let g = of(&spec, &csr(), rows(&OFFSETS, None).unwrap()).unwrap();
        assert_eq!(g.samples, 5);
        let shapes: Vec<_> = g.outputs.iter().map(|o| (o.shape.clone(), o.ragged.clone())).collect();
        let most = |most| Some(Ragged { dims: vec![0], most });
        assert_eq!(shapes, [(vec![9], most(18)), (vec![], None), (vec![9, 3], most(54)), (vec![1], None)]);
        assert_eq!(g.placements[2].strides, [3, 1]);
        let spans: Vec<_> = (0..5).map(|i| pair(g.rows.as_ref().unwrap(), i)).collect();
        assert_eq!(spans, [(0, 3), (3, 0), (3, 7), (10, 1), (11, 9)]);
        let cut = of(&spec, &csr(), rows(&OFFSETS, Some(4)).unwrap()).unwrap();
        assert_eq!((cut.outputs[0].shape[0], pair(&cut.rows.unwrap(), 4)), (4, (11, 4)));
    }

    #[test]
    fn memory_is_bounded_by_the_longest_rows_of_a_batch() {
        let offsets: Vec<u64> = (0..=1000u64).map(|i| i * 2 + if i > 500 { 98 } else { 0 }).collect();
        let arrays = [array("X/data", &[("dim_0", 2098)])];
        let most = |change: fn(&mut Spec)| {
            let spec = Spec::default().with(|s| s.batch_size = 100).with(change);
            of(&spec, &arrays, rows(&offsets, None).unwrap()).unwrap().outputs[0].ragged.clone().unwrap().most
        };
        assert_eq!(most(|_| {}), 3 * (100 + 33 * 2), "one of 100 and others of 2, each three times");
        assert_eq!(most(|s| s.order.pad_last_batch = true), 100 * 100);
        assert_eq!(most(|s| s.order.order = OrderSource::Pushed), 100 * 100);
        assert_eq!(most(|s| s.batch_size = 1), 100);
        assert_eq!(most(|s| s.order.num_shards = 1000), 100 * 100, "a shard of one row");
        assert_eq!(most(|s| s.samples.roi_start = vec![501].into()), 100 * 2, "the long row is outside");
    }

    #[test]
    fn what_rows_cannot_have_is_refused() {
        let error = |change: fn(&mut Spec)| {
            let spec = Spec::default().with(change);
            of(&spec, &csr(), rows(&OFFSETS, None).unwrap()).unwrap_err().message().to_owned()
        };
        for (what, message) in [
            ("stack_arrays", error(|s| s.samples.stack_arrays = true)),
            ("offsets", error(|s| s.samples.offsets = vec![0, 1])),
            ("window", error(|s| s.samples.window = vec![2].into())),
            ("stride", error(|s| s.samples.stride = vec![2].into())),
            ("random_crop", error(|s| s.samples.random_crop = vec![DimKey::Index(0)])),
            ("dims", error(|s| s.samples.dims = vec![DimKey::Name("c".into())])),
        ] {
            assert!(message.starts_with(what) && message.contains("X/indptr"), "{message}");
        }
        let fits = |arrays: &[ArrayShape]| of(&Spec::default(), arrays, rows(&OFFSETS, None).unwrap());
        let message = |arrays: &[ArrayShape]| fits(arrays).unwrap_err().message().to_owned();
        let short = message(&[array("X/data", &[("n", 19)])]);
        assert!(
            short.contains("20 elements") && short.contains("of 5") && short.contains("'X/data' has 19"),
            "{short}"
        );
        assert!(fits(&[array("X/data", &[("n", 21)])]).is_ok(), "elements behind the last row");
        assert!(message(&[array("X/data", &[("n", 21)]), array("X/other", &[("n", 20)])]).contains("one length"));
        assert!(message(&[array("X/data", &[])]).contains("no dimension"));
        assert!(message(&[array("y", &[("n", 5)])]).contains("leave ragged out"));
        let descending = rows(&[0, 5, 4, 3], None).unwrap_err();
        assert!(descending.message().contains("entry 2 is 4, after 5"), "{descending}");
        assert!(rows(&[0], None).unwrap_err().message().contains("at least one row"));
        assert!(rows(&[], None).is_err() && rows(&[0, u64::MAX / 2], None).is_err());
    }

    #[test]
    fn equal_lengths_are_told_apart_by_group_and_name() {
        let arrays = [array("X/data", &[("n", 4)]), array("obs/label", &[("obs", 4)])];
        let ragged = |spec: &Spec| {
            let g = of(spec, &arrays, rows(&[0, 0, 2, 2, 4], None).unwrap()).unwrap();
            g.outputs.iter().map(|o| o.ragged.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(ragged(&Spec::default()), [true, false]);
        assert_eq!(ragged(&Spec::default().with(|s| s.samples.dims = vec![DimKey::Name("obs".into())])), [false, true]);
    }

    #[test]
    fn rows_are_picked_and_cut_by_other_axes() {
        let arrays = [array("frames", &[("t", 20), ("y", 8), ("x", 6)]), array("label", &[("episode", 5)])];
        let spec = Spec::default().with(|s| {
            s.samples.dims = ["t", "y"].map(|d| DimKey::Name(d.into())).to_vec();
            s.samples.window = vec![0, 4].into();
            s.source.pick =
                vec![crate::spec::Pick { output: None, dim: DimKey::Name("t".into()), indices: vec![vec![4, 2]] }];
        });
        let g = of(&spec, &arrays, rows(&OFFSETS, None).unwrap()).unwrap();
        assert_eq!((g.samples, &g.outputs[0].shape[..], &*g.outputs[0].layout), (4, &[9, 4, 6][..], "FHW"));
        let rows = g.rows.as_ref().unwrap();
        let starts: Vec<_> =
            (0..4).map(|index| g.start(Sample::new(0, index)).iter().map(|s| s.at).collect::<Vec<_>>()).collect();
        assert_eq!(starts, [[0, 0], [0, 4], [1, 0], [1, 4]]);
        assert_eq!((pair(rows, 0), pair(rows, 1)), ((11, 9), (3, 7)));
    }

    #[test]
    fn stores_are_joined_row_by_row() {
        let mut data = array("X/data", &[("n", 5)]);
        let mut label = array("y", &[("obs", 2)]);
        data.parts.push(vec![7]);
        label.parts.push(vec![3]);
        let spec = Spec::default().with(|s| s.source.paths = vec!["p".into(), "q".into()]);
        let stores = vec![vec![0, 4, 5], vec![0, 0, 6, 7]];
        let joined = Rows::new("ragged=\"p\"".into(), "p", stores, None).unwrap();
        let g = of(&spec, &[data.clone(), label], joined.clone()).unwrap();
        assert_eq!((g.samples, g.views[0].joined.clone()), (5, Some((0, vec![0, 5, 12]))));
        assert_eq!((0..5).map(|i| pair(&joined, i)).collect::<Vec<_>>(), [(0, 4), (4, 1), (5, 0), (5, 6), (11, 1)]);
        data.parts[1][0] = 8;
        assert!(of(&spec, &[data], joined).is_err(), "elements between the stores' rows");
        assert!(Rows::new("p".into(), "p", vec![vec![0, 1], vec![1, 2]], None).is_err());
    }
}
