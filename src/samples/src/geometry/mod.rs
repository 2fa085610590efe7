//! The geometry of samples: the spec applied to the shapes of the arrays. It says how many samples there are, and which
//! elements of each array go where in which output. Pure: no I/O, no device, no clock.

mod aligned;
mod axes;
mod between;
mod breaks;
mod by_store;
mod cuts;
mod dims;
mod filled;
mod find;
mod first_dim;
mod layout;
mod missing;
mod normalised;
mod outputs;
mod outside;
mod picked;
mod placement;
mod ragged;
mod requested;
mod rows;
mod scaled;
mod scaling;
mod scratch;
mod squeezed;
mod starts;
mod table_starts;
mod transposed;
mod views;

pub use aligned::{Alignment, align};
pub use axes::{Axis, Start};
pub use between::{Between, Pair};
pub use breaks::merged;
pub use by_store::{ByStore, is_by_store};
pub use cuts::Cut;
pub use dims::{resolve, sample_dims};
pub use first_dim::FirstDim;
pub use missing::Missing;
pub use normalised::Channels;
pub use outputs::Mask;
pub use outside::OUTSIDE;
pub use picked::Picked;
pub use placement::{Placement, Scratch};
pub use rows::{RowSpan, Rows};
pub use scaled::{Place, Scaled};
pub use scaling::grid_of;
pub use starts::Starts;
pub use table_starts::TableStarts;
use views::views;
pub use views::{Role, View, ViewDim};

use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::batch::OutputInfo;
use crate::dataset::Unclear;
use crate::order::Sample;
use crate::spec::{Concat, OutOfBounds, PerDim, Spec};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::random::{below, key};
use dali_zarr_base::table::Table;

/// A list with an entry for each dimension. Planning makes several for each array of each sample, so lists of up to
/// four entries need no allocation.
pub type DimVec<T> = SmallVec<[T; 4]>;

/// What the geometry needs to know about an array.
#[derive(Clone, Debug)]
pub struct ArrayShape {
    /// Its name, for messages.
    pub name: String,
    /// The name of its output.
    pub output: String,
    /// The names of its dimensions, all different.
    pub dims: Vec<String>,
    /// Names in the metadata that aren't in `dims`, because they don't tell which dimension is meant; `None` if there
    /// are none.
    pub unclear: Option<Unclear>,
    /// Its shape in each store. A single shape, if several stores are joined: it has a store of its own.
    pub parts: Vec<Vec<u64>>,
    /// Which of its elements belongs to each element along the first of `dims`; `None` if those with the same number
    /// do. Its dimension has the name of the first of `dims` then.
    pub aligned: Option<Alignment>,
    /// Where its elements lie along each of its dimensions, in a unit that all arrays share; `None` where they have no places.
    /// One list for each of `parts`; empty without `scale_by`.
    pub places: Vec<Vec<Option<Place>>>,
    /// Element type of its decoded values, before normalisation and cast.
    pub values: DType,
    /// The stored type, as NumPy names it.
    pub stored: String,
    /// Whether the fill value is a complex number with different parts. In missing chunks, odd indices along the last
    /// dimension (imaginary parts) then have another value than even ones.
    pub complex_fill_parts_differ: bool,
    /// If it is seen as if it had one element for each row: the stored name of the dimension that the row's elements lie
    /// along, which a sample has in front. `None` for all other arrays.
    pub ragged: Option<String>,
}

/// Normalisation of one array or channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Index of the array.
    pub array: usize,
    /// The number that replaces NaN, rounded to the type of the array's values. `None` if it wasn't asked for, or if
    /// the array's values aren't floating-point.
    pub fillna: Option<f64>,
    /// The mean to subtract and the stddev to divide by, after `fillna`; `None` if neither was asked for.
    pub mean_stddev: Option<(f64, f64)>,
    /// The value of elements out of bounds, as it is in the output: it isn't normalised.
    pub fill: f64,
    /// The output's type.
    pub dtype: DType,
    /// Whether the elements are imaginary parts: missing chunks then have the imaginary part of the fill value.
    pub imaginary: bool,
}

impl ArrayShape {
    /// Whether its dimensions may be those of samples: not so if it is aligned to other arrays.
    pub fn has_own_axis(&self) -> bool {
        self.aligned.as_ref().is_none_or(Alignment::is_own)
    }
}

/// Values that say which samples there are, in addition to the spec and the arrays. They are read before the geometry
/// is made.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// The table of starts, if the argument `starts` was given.
    pub starts: Option<Arc<Table<i64>>>,
    /// The rows of ragged arrays, if there are any.
    pub rows: Option<Rows>,
    /// The elements along the first of `dims` whose data are declared missing, for each array: one list for all stores,
    /// or one for each store if samples are cut from each store on its own. Empty: none are.
    pub missing: Vec<Vec<Vec<i64>>>,
    /// The labels of the elements along the first of `dims`, after `pick`, as numbers that have distances: one list for all
    /// stores, or one for each store. Empty, as each list may be: elements are at equal distances.
    pub labels: Vec<Vec<f64>>,
    /// Where the elements of each array lie, see [`ArrayShape::places`]. Empty without `scale_by`.
    pub places: Vec<Vec<Vec<Option<Place>>>>,
}

/// What is known of the elements along the first of `dims`, see [`Inputs`].
#[derive(Clone, Copy, Default)]
struct Elements<'a> {
    missing: &'a [Vec<i64>],
    labels: &'a [f64],
}

impl Inputs {
    /// Returns what is known in one store, or in all stores together.
    fn elements(&self, store: usize) -> Elements<'_> {
        Elements {
            missing: self.missing.get(store).map_or(&[], Vec::as_slice),
            labels: self.labels.get(store).map_or(&[], Vec::as_slice),
        }
    }
}

/// The geometry of all stores together, or of one of them.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// The dimensions that samples are cut along, in the order of `spec.samples.dims`.
    pub axes: Vec<Axis>,
    /// The table of starts, with the samples of all stores; `None` if samples start on the axes' grids.
    pub table: Option<TableStarts>,
    /// Number of samples; with a table, the number in all stores.
    pub samples: u64,
    /// How samples see each array.
    pub views: Vec<View>,
    /// Where each array goes in the outputs.
    pub placements: Vec<Placement>,
    /// The normalisations. [`Placement::norm`] is an index into them.
    pub norms: Vec<Norm>,
    /// For each array with a table of channels, the range of `norms` of its channels, which differ in mean and stddev
    /// only. [`Channels::table`] is an index into this list.
    pub tables: Vec<Range<usize>>,
    /// The outputs, those of the mask and the index included.
    pub outputs: Vec<OutputInfo>,
    /// The shape of a sample in each output, if samples are cut from each store on its own and some outputs are ragged
    /// therefore; empty otherwise.
    pub own_shapes: Vec<Vec<i64>>,
    /// Whether an output has other dimensions, or another order of them, than it would have without `transpose` and `squeeze`.
    pub is_transposed: bool,
    /// The outputs that tell which elements weren't padded: none, one, or with `scale_by` one for each array.
    pub masks: Vec<Mask>,
    /// Whether samples may start outside of the region, since elements out of bounds are padded or repeat those at the edge, and
    /// no argument says how far windows may reach.
    pub may_start_outside: bool,
    /// Whether elements out of bounds repeat those at the edge.
    pub repeats_edges: bool,
    /// The elements along the first axis, in ascending order, of which some array's data are missing and filled
    /// (`fill_missing`). The mask is false for them.
    pub filled: Vec<i64>,
    /// Whether the index output has the number of the sample's segment.
    pub names_segments: bool,
    /// The rows of ragged arrays, along the first axis.
    pub rows: Option<Rows>,
    /// Numbers that are added to the start in the index output, for each store and each axis; empty: nothing is added.
    index_origins: Vec<Vec<i64>>,
    /// Whether the index output begins with the number of the store.
    pub names_store: bool,
    /// Number of samples for each start (`samples_per_volume`).
    pub per_start: u64,
    /// Number of elements whose data are declared missing, and of samples that are left out because they read some.
    pub missing: (usize, u64),
    /// Seed of random starts.
    seed: u64,
}

/// Makes the keys of random starts differ from those of orders.
const CROP: u64 = 2;

impl Geometry {
    /// Applies `spec` to `arrays`, without a table or rows. Returns the first geometry of [`Self::of`].
    ///
    /// # Errors
    /// As [`Self::of`].
    #[cfg(test)]
    pub fn new(spec: &Spec, arrays: &[ArrayShape]) -> Result<Self> {
        Self::of(spec, arrays, Inputs::default()).map(|mut all| all.remove(0))
    }

    /// Applies `spec` to `arrays`. Returns one geometry, or with `concat="samples"` one for each store, all with the
    /// same outputs.
    ///
    /// # Errors
    /// If arguments contradict each other, the arrays or the inputs: unknown dimensions, lengths that differ, windows
    /// that don't fit, rows of a table that are out of bounds where the policy forbids it, samples that have another
    /// number of channels in another store.
    pub fn of(spec: &Spec, arrays: &[ArrayShape], inputs: Inputs) -> Result<Vec<Self>> {
        if spec.samples.scale_by.is_some() && inputs.rows.is_some() {
            return Err(Error::value("scale_by: expected none with ragged or ragged_ends, whose rows have no places"));
        }
        if let (true, PerDim::ByOutput(windows)) = (spec.source.is_grouped(), &spec.samples.window_lengths)
            && let Some(array) = arrays.iter().find(|array| windows.iter().all(|(name, _)| *name != array.output))
        {
            return Err(Error::value(format!(
                "scale_by, groups: expected a window for each output, but found none for '{}'; read it with another reader",
                array.output
            )));
        }
        let placed: Vec<ArrayShape>;
        let arrays = if inputs.places.is_empty() {
            arrays
        } else {
            let of = |(array, places): (&ArrayShape, &Vec<_>)| ArrayShape { places: places.clone(), ..array.clone() };
            placed = arrays.iter().zip(&inputs.places).map(of).collect();
            &placed
        };
        let (starts, rows) = (inputs.starts.clone(), inputs.rows.clone());
        let as_rows = rows.map(|rows| ragged::AsRows::new(spec, arrays, rows)).transpose()?;
        let seen = as_rows.as_ref().map_or(arrays, |rows| &rows.arrays);
        let mut all = if is_by_store(spec, seen) {
            Self::of_stores(spec, seen, &inputs, starts.is_some())?
        } else {
            vec![Self::cut(spec, seen, inputs.elements(0), starts.is_some(), axes::Empty::Refused)?]
        };
        if let Some(table) = starts {
            let axes: Vec<&[Axis]> = all.iter().map(|geometry| &*geometry.axes).collect();
            let table = TableStarts::new(spec, &axes, table)?;
            for geometry in &mut all {
                geometry.samples = table.count();
                geometry.missing.1 = 0;
                geometry.table = Some(table.clone());
            }
            all[0].missing.1 = table.left_out();
        }
        if let Some(as_rows) = as_rows {
            ragged::apply(spec, &mut all[0], arrays, as_rows)?;
        }
        Ok(all)
    }

    /// Returns one geometry for each store.
    fn of_stores(spec: &Spec, arrays: &[ArrayShape], inputs: &Inputs, has_table: bool) -> Result<Vec<Self>> {
        let by_store = ByStore::new(spec, arrays);
        let mut all: Vec<Self> = Vec::with_capacity(spec.source.paths.len());
        for (store, path) in spec.source.paths.iter().enumerate() {
            let (own, shapes) = by_store.of(store);
            let geometry = Self::cut(&own, &shapes, inputs.elements(store), has_table, axes::Empty::Allowed);
            all.push(geometry.map_err(|e| e.at(Site::store(path)))?);
        }
        for output in 0..all.first().map_or(0, |geometry| geometry.outputs.len()) {
            let most = all.iter().map(|geometry| geometry.outputs[output].scratch).max().unwrap_or(0);
            all.iter_mut().for_each(|geometry| geometry.outputs[output].scratch = most);
        }
        if !has_table && all.iter().all(|geometry| geometry.samples == 0) {
            // The first store's error says what doesn't fit.
            let (own, shapes) = by_store.of(0);
            let path = &spec.source.paths[0];
            Self::cut(&own, &shapes, inputs.elements(0), has_table, axes::Empty::Refused)
                .map_err(|e| e.at(Site::store(path)))?;
        }
        by_store::in_common(spec, &mut all, has_table)?;
        Ok(all)
    }

    /// Returns one geometry for all stores. With a table, its number of samples is 0 until the table is applied.
    fn cut(
        spec: &Spec,
        arrays: &[ArrayShape],
        elements: Elements<'_>,
        has_table: bool,
        empty: axes::Empty,
    ) -> Result<Self> {
        let names = sample_dims(spec, arrays)?;
        let mut views = views(spec, arrays, &names)?;
        // With a table, its rows are checked later. So the grids of starts must not fail here.
        let is_strict = has_table && !spec.samples.out_of_bounds_policy.fills();
        let lenient = is_strict.then(|| spec.clone().with(|s| s.samples.out_of_bounds_policy = OutOfBounds::Pad));
        let empty = if has_table { axes::Empty::Allowed } else { empty };
        let mut missing = aligned::missing(arrays, &views, elements.missing);
        let filled = filled::apply(spec, arrays, &mut views, &mut missing, elements.labels)?;
        let missing = &missing;
        let (axes, cuts) = axes::build(lenient.as_ref().unwrap_or(spec), arrays, &views, &names, missing, empty)?;
        views.iter_mut().zip(cuts).for_each(|(view, cuts)| view.cuts = cuts);
        let has_missing = !filled.is_empty() || missing.iter().any(|of| !of.is_empty());
        if has_missing && axes.first().is_some_and(|first| first.scaled.is_some()) {
            return Err(Error::value(format!(
                "scale_by: expected arrays whose elements along the first of dims, \"{}\", are all there, but found some that are declared \
                 missing; use missing_dates=\"keep\", or put another dimension first",
                axes[0].name
            )));
        }
        let each = spec.samples.samples_per_volume as u64;
        let samples = match has_table {
            true => Some(0),
            false => axes.iter().try_fold(each, |n, a| n.checked_mul(a.count() as u64)).filter(|&n| n < 1 << 62),
        };
        let samples = samples.ok_or_else(axes::too_many)?;
        let missing = axes.first().map_or((0, 0), |first| {
            let (from, to) = first.region();
            let of_filled = filled.iter().filter(|&&at| from <= at && at < to).count();
            let others = axes[1..].iter().map(Axis::count).fold(each, |n, count| n.saturating_mul(count as u64));
            // With random starts there are as many samples, unless no start is left.
            let all = if first.random { first.left_out.min(1) * i64::from(first.count() == 0) } else { first.left_out };
            let of_others = first.missing.as_ref().map_or(0, |missing| missing.count(from, to));
            (of_filled + of_others, others.saturating_mul(all as u64))
        });
        let outputs::Built { outputs, placements, norms, tables, is_transposed, masks } =
            outputs::build(spec, arrays, &views, &axes)?;
        Ok(Self {
            axes,
            table: None,
            samples,
            views,
            placements,
            norms,
            tables,
            outputs,
            own_shapes: Vec::new(),
            is_transposed,
            masks,
            may_start_outside: spec.samples.out_of_bounds_policy.fills()
                && spec.samples.pad_before.is_empty()
                && spec.samples.pad_after.is_empty(),
            repeats_edges: spec.samples.out_of_bounds_policy == OutOfBounds::Edge,
            filled,
            names_segments: spec.samples.names_segments(),
            rows: None,
            index_origins: spec.samples.index_origins.clone(),
            names_store: spec.samples.concat == Concat::Samples,
            per_start: spec.samples.samples_per_volume as u64,
            missing,
            seed: spec.order.effective_seed(),
        })
    }

    /// Returns the dimensions of an array along which each element is a channel with its own mean and stddev. `None` if
    /// the array has no channels, or only those that a stack makes of it.
    pub fn own_channels(&self, array: usize) -> Option<impl Iterator<Item = usize>> {
        let channels = self.placements.iter().find(|p| p.array == array)?.channels.as_ref()?;
        channels.is_own.then(|| channels.dims.iter().map(|&(d, _)| d))
    }

    /// Returns the start of a sample along each axis.
    pub fn start(&self, sample: Sample) -> DimVec<Start> {
        if let Some(table) = &self.table {
            let one = |(axis, &at): (&Axis, &i64)| Start { at, segment: axis.segment_of_start(at) };
            let given = table.start(sample.index);
            // The table may lack the last columns if their axes have a single element.
            let single = self.axes.iter().map(|axis| &axis.bounds[0]).skip(given.len());
            return self.axes.iter().zip(given.iter().chain(single)).map(one).collect();
        }
        if let Some(outside) = sample.index.checked_sub(OUTSIDE) {
            return self.start_outside(outside);
        }
        let mut rest = (sample.index / self.per_start) as i64;
        let mut start = smallvec![Start { at: 0, segment: 0 }; self.axes.len()];
        for (i, axis) in self.axes.iter().enumerate().rev() {
            let k = if axis.random {
                let bits = key(&[self.seed, sample.epoch, sample.draw, i as u64, CROP]);
                below(bits, axis.starts.count() as u64) as i64
            } else {
                let k = rest % axis.count();
                rest /= axis.count();
                k
            };
            start[i] = axis.start(k);
        }
        start
    }

    /// Returns what the index output has for a sample, without the number of the store: the number of the segment if
    /// `names_segments` is set, then the position of the start along each axis.
    pub fn index<'a>(&'a self, start: &'a [Start]) -> impl Iterator<Item = i64> + use<'a> {
        let segment = start.first().filter(|_| self.names_segments).map(|first| first.segment as i64);
        let origins = (!self.index_origins.is_empty()).then(|| self.index_origins.get(self.store_of(start))).flatten();
        let origin = move |a: usize| origins.and_then(|of| of.get(a)).copied().unwrap_or(0);
        segment.into_iter().chain(start.iter().enumerate().map(move |(a, one)| one.at + origin(a)))
    }

    /// Returns the number of the store in which a sample with this start begins; 0 if stores aren't joined.
    fn store_of(&self, start: &[Start]) -> usize {
        let joined =
            self.views.iter().find_map(|view| view.joined.as_ref().map(|(d, stores)| (&view.dims[*d], stores)));
        let (Some((dim, stores)), Some(first)) = (joined, start.first()) else { return 0 };
        let at = first.at.clamp(0, dim.len as i64 - 1) as u64;
        let at = dim.picked(0).map_or(at, |pick| pick[at as usize]);
        stores[..stores.len() - 1].partition_point(|&first| first <= at).max(1) - 1
    }

    /// Returns which elements of a window, counted from 0, lie in the sample's segment and so need no padding.
    pub fn inside(&self, axis: usize, cut: Cut, start: Start, offset: i64) -> Range<i64> {
        let (from, to) = cut.within(self.axes[axis].segment(start.segment));
        let first = cut.first(start.at + if axis == 0 { offset } else { 0 });
        let below = from - first;
        let k0 = if below > 0 { (below - 1) / cut.stride + 1 } else { 0 };
        let room = to - 1 - first;
        let k1 = if room < 0 { 0 } else { room / cut.stride + 1 };
        k0.min(cut.window)..k1.clamp(0, cut.window)
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_starts;
#[cfg(test)]
mod tests_stores;
