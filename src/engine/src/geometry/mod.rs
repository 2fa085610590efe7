//! The geometry of samples: the spec applied to the shapes of the arrays. It says how many samples there are, and which
//! elements of each array go where in which output. Pure: no I/O, no device, no clock.

mod axes;
mod cuts;
mod layout;
mod outputs;
mod picked;
mod ragged;
mod starts;
mod table_starts;

pub use axes::{Axis, Start};
pub(crate) use axes::{resolve, sample_dims};
pub use cuts::Cut;
pub use outputs::{Channels, Mask, Placement};
pub use picked::Picked;
pub use ragged::Rows;
pub use starts::Starts;
pub use table_starts::TableStarts;

use std::sync::Arc;

use crate::batch::OutputInfo;
use crate::dataset::Unclear;
use crate::dtype::DType;
use crate::error::{Error, Result, Site};
use crate::order::Sample;
use crate::random::{below, key};
use crate::spec::{Concat, OutOfBounds, Spec};
use crate::table::Table;

/// An array as geometry needs it.
#[derive(Clone, Debug)]
pub struct ArrayShape {
    /// Its name, for messages.
    pub name: String,
    /// The name of its output.
    pub output: String,
    /// The names of its dimensions, all different.
    pub dims: Vec<String>,
    /// Stored names that aren't among them, since they don't tell which dimension is meant.
    pub unclear: Option<Unclear>,
    /// Its shape in each store.
    pub parts: Vec<Vec<u64>>,
    /// The element type that its values have before normalisation and cast.
    pub values: DType,
    /// Whether missing chunks have another value at odd indices along the last dimension: imaginary parts.
    pub two_fills: bool,
}

/// How one dimension of an array is read for a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Along this entry of [`Geometry::axes`]: its position depends on the sample.
    Axis(usize),
    /// Whole, in every sample.
    Whole,
    /// The elements of the sample's row: see [`Geometry::rows`].
    Ragged,
}

/// One dimension of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewDim {
    /// How it is read.
    pub role: Role,
    /// Its length as samples see it: after `pick`, over all stores.
    pub len: u64,
    /// The indices that it consists of, if `pick` names it.
    pub pick: Option<Picked>,
}

impl ArrayShape {
    /// The array in one store alone.
    fn of_store(&self, store: usize) -> Self {
        Self { parts: vec![self.parts[store].clone()], ..self.clone() }
    }
}

impl ViewDim {
    /// The indices that it consists of in one store, if `pick` names it; those of the joined dimension count over all
    /// stores.
    pub fn picked(&self, store: usize) -> Option<&[u64]> {
        self.pick.as_ref().map(|pick| pick.of(store))
    }
}

/// An array as samples see it.
#[derive(Clone, Debug)]
pub struct View {
    /// One entry per dimension of the stored array.
    pub dims: Vec<ViewDim>,
    /// How it is cut along each entry of [`Geometry::axes`].
    pub cuts: Vec<Cut>,
    /// The dimension along which several stores are joined, with the first index of each store and the end of the last.
    pub joined: Option<(usize, Vec<u64>)>,
}

/// Normalisation of one array or channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Which array.
    pub array: usize,
    /// Subtracted and divided by, if asked for.
    pub mean_stddev: Option<(f64, f64)>,
    /// The value of elements outside the region of interest, as a value of the output.
    pub fill: f64,
    /// The output's type.
    pub dtype: DType,
    /// Whether missing chunks have the imaginary part of the fill value.
    pub imaginary: bool,
}

/// The whole of it.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// The dimensions that samples are cut along, as in `spec.samples.dims`.
    pub axes: Vec<Axis>,
    /// The samples of a table of starts; `None` if samples start on the axes' grids.
    pub table: Option<TableStarts>,
    /// Samples that there are.
    pub samples: u64,
    /// One per array.
    pub views: Vec<View>,
    /// Which elements go where.
    pub placements: Vec<Placement>,
    /// What [`Placement::norm`] points into.
    pub norms: Vec<Norm>,
    /// The outputs, those of the mask and the index included.
    pub outputs: Vec<OutputInfo>,
    /// The output that tells which elements weren't padded, if there is one.
    pub mask: Option<Mask>,
    /// Whether elements out of bounds repeat those at the edge.
    pub repeats_edges: bool,
    /// Whether the index of a sample has the number of its segment.
    pub names_segments: bool,
    /// The rows of ragged arrays, along the first axis.
    pub rows: Option<Rows>,
    /// Whether the index output begins with the number of the store.
    pub names_store: bool,
    /// How many samples there are for each start.
    pub per_start: u64,
    /// Of random starts.
    seed: u64,
    /// The number of its first sample among those of all stores, if these come one after the other.
    first: u64,
}

/// Makes the keys of random starts differ from those of orders.
const CROP: u64 = 2;

impl Geometry {
    /// Applies `spec` to `arrays`.
    ///
    /// # Errors
    /// If arguments contradict each other or the arrays: unknown dimensions, lengths that differ, windows that don't
    /// fit.
    pub fn new(spec: &Spec, arrays: &[ArrayShape]) -> Result<Self> {
        Self::with_starts(spec, arrays, None)
    }

    /// As [`Self::new`], for samples that start where `table` says.
    ///
    /// # Errors
    /// As [`Self::new`]; if the table contradicts the arguments, or a row is out of bounds and may not be.
    pub fn with_starts(spec: &Spec, arrays: &[ArrayShape], table: Option<Arc<Table<i64>>>) -> Result<Self> {
        let names = axes::sample_dims(spec, arrays)?;
        let mut views = views(spec, arrays, &names)?;
        // The rows of a table are checked instead of the grids of starts.
        let lenient = table.as_ref().map(|_| spec.clone().with(|s| s.samples.out_of_bounds_policy = OutOfBounds::Pad));
        let (axes, cuts) = axes::build(lenient.as_ref().unwrap_or(spec), arrays, &views, &names)?;
        views.iter_mut().zip(cuts).for_each(|(view, cuts)| view.cuts = cuts);
        let table = table.map(|table| TableStarts::new(spec, &axes, table)).transpose()?;
        let each = spec.samples.samples_per_volume as u64;
        let samples = match &table {
            Some(table) => Some(table.count()),
            None => axes.iter().try_fold(each, |n, a| n.checked_mul(a.count() as u64)).filter(|&n| n < 1 << 62),
        };
        let samples = samples.ok_or_else(axes::too_many)?;
        let outputs::Built { outputs, placements, norms, mask } = outputs::build(spec, arrays, &views, &axes)?;
        Ok(Self {
            axes,
            table,
            samples,
            views,
            placements,
            norms,
            outputs,
            mask,
            repeats_edges: spec.samples.out_of_bounds_policy == OutOfBounds::Edge,
            names_segments: spec.samples.names_segments(),
            rows: None,
            names_store: spec.samples.concat == Concat::Samples,
            per_start: spec.samples.samples_per_volume as u64,
            seed: spec.order.effective_seed(),
            first: 0,
        })
    }

    /// As [`Self::new`], but the first axis counts `rows`, and arrays that these divide are ragged.
    ///
    /// # Errors
    /// As [`Self::new`], or if an array doesn't fit the rows.
    pub fn with_rows(spec: &Spec, arrays: &[ArrayShape], table: Option<Arc<Table<i64>>>, rows: Rows) -> Result<Self> {
        let as_rows = ragged::AsRows::new(spec, arrays, &rows)?;
        let mut geometry = Self::with_starts(spec, &as_rows.arrays, table)?;
        ragged::apply(spec, &mut geometry, arrays, &as_rows, rows)?;
        Ok(geometry)
    }

    /// The geometries of `spec`: one, or with `concat="samples"` one for each store. Their outputs are the same.
    ///
    /// # Errors
    /// Those of [`Self::new`]; if samples of the stores have different shapes.
    pub fn of_stores(spec: &Spec, arrays: &[ArrayShape], table: Option<Arc<Table<i64>>>) -> Result<Vec<Self>> {
        if table.is_some() && spec.samples.concat == Concat::Samples {
            return Err(Error::value(
                "starts, concat: a table of starts can't name stores that come one after the other yet; give a reader for each store",
            ));
        }
        if !is_by_store(spec, arrays) {
            return Ok(vec![Self::with_starts(spec, arrays, table)?]);
        }
        let mut all: Vec<Self> = Vec::new();
        let mut first = 0u64;
        for (store, path) in spec.source.paths.iter().enumerate() {
            let (own, shapes) = of_store(spec, arrays, store);
            let mut geometry = Self::new(&own, &shapes).map_err(|e| e.at(Site::store(path)))?;
            geometry.first = first;
            first = first.saturating_add(geometry.samples);
            if let Some(before) = all.first()
                && let Some((a, b)) = before.outputs.iter().zip(&geometry.outputs).find(|(a, b)| a != b)
            {
                return Err(Error::value(format!(
                    "concat=\"samples\": expected samples of one shape in all stores, but output '{}' has {:?} in {} and {:?} in \
                     {path}; name more of its dimensions in dims, with a window",
                    a.name, a.shape, spec.source.paths[0], b.shape
                )));
            }
            all.push(geometry);
        }
        Ok(all)
    }

    /// The start of a sample along each axis.
    pub fn start(&self, sample: Sample) -> Vec<Start> {
        if let Some(table) = &self.table {
            let one = |(axis, &at): (&Axis, &i64)| Start { at, segment: axis.around(at) };
            return self.axes.iter().zip(table.start(sample.index)).map(one).collect();
        }
        let mut rest = (sample.index / self.per_start) as i64;
        let mut start = vec![Start { at: 0, segment: 0 }; self.axes.len()];
        for (i, axis) in self.axes.iter().enumerate().rev() {
            let k = if axis.random {
                let bits = key(&[self.seed, sample.epoch, self.first + sample.index, i as u64, CROP]);
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

    /// What the index output has for a sample of a store: the number of the segment, where samples are named by it, and the start
    /// along each axis.
    pub fn index<'a>(&self, start: &'a [Start]) -> impl Iterator<Item = i64> + use<'a> {
        let segment = start.first().filter(|_| self.names_segments).map(|first| first.segment as i64);
        segment.into_iter().chain(start.iter().map(|one| one.at))
    }

    /// How many of the dimension's elements that a window reads, from `first` on, lie before its segment, and how many before
    /// its end: the numbers of the first and one past the last that need no padding.
    pub fn inside(&self, axis: usize, cut: Cut, start: Start, offset: i64) -> std::ops::Range<i64> {
        let (from, to) = self.axes[axis].segment(start.segment);
        let first = start.at + if axis == 0 { offset } else { 0 };
        let below = from - first;
        let k0 = if below > 0 { (below - 1) / cut.stride + 1 } else { 0 };
        let room = to - 1 - first;
        let k1 = if room < 0 { 0 } else { room / cut.stride + 1 };
        k0.min(cut.window)..k1.clamp(0, cut.window)
    }
}

/// Whether samples are cut from each store on its own.
pub(crate) fn is_by_store(spec: &Spec, arrays: &[ArrayShape]) -> bool {
    spec.samples.concat == Concat::Samples && arrays[0].parts.len() > 1
}

/// What a spec says of one of several stores, and the arrays in it.
pub(crate) fn of_store(spec: &Spec, arrays: &[ArrayShape], store: usize) -> (Spec, Vec<ArrayShape>) {
    let own = spec.clone().with(|s| {
        s.source.paths = vec![s.source.paths[store].clone()];
        for pick in &mut s.source.pick {
            if pick.indices.len() > 1 {
                pick.indices = pick.indices.get(store).into_iter().cloned().collect();
            }
        }
        let found = &mut s.samples.breaks.found;
        *found = found.get_mut(store).map(std::mem::take).into_iter().collect();
    });
    (own, arrays.iter().map(|array| array.of_store(store)).collect())
}

/// The first of `dims`, along which breaks are.
pub(crate) struct FirstDim {
    /// Its name.
    pub name: String,
    /// The first element of each store, and the end of the last one.
    pub stores: Vec<u64>,
    /// The elements of all stores that it consists of, if `pick` names it.
    pub pick: Option<Vec<u64>>,
}

impl FirstDim {
    /// That of `spec` in `arrays`; `None` if no array has a dimension.
    ///
    /// # Errors
    /// Those of [`Geometry::new`] about dimensions, `pick` and stores.
    pub fn of(spec: &Spec, arrays: &[ArrayShape]) -> Result<Option<Self>> {
        let names = axes::sample_dims(spec, arrays)?;
        let views = views(spec, arrays, &names)?;
        let along = |view: &View| view.dims.iter().position(|dim| dim.role == Role::Axis(0));
        let Some((array, d)) = views.iter().enumerate().find_map(|(a, view)| Some((a, along(view)?))) else {
            return Ok(None);
        };
        let stores = match &views[array].joined {
            Some((joined, starts)) if *joined == d => starts.clone(),
            _ => vec![0, arrays[array].parts[0][d]],
        };
        let pick = views[array].dims[d].picked(0).map(<[u64]>::to_vec);
        Ok(Some(Self { name: names[0].clone(), stores, pick }))
    }

    /// Its length in a store, without `pick`.
    pub fn len(&self, store: usize) -> u64 {
        self.stores[store + 1] - self.stores[store]
    }
}

/// Applies `pick` and the joining of stores to every array, and checks that arrays agree on the dimensions that tie them
/// together: those that samples are cut along, and all in a stack.
fn views(spec: &Spec, arrays: &[ArrayShape], axis_names: &[String]) -> Result<Vec<View>> {
    let picks = picked::by_name(spec, arrays)?;
    if axis_names.is_empty() && spec.source.paths.len() > 1 {
        return Err(Error::value(format!(
            "path: expected one store, since array '{}' has no dimension along which {} could be joined; read them with a \
             reader each",
            arrays[0].name,
            spec.source.paths.len()
        )));
    }
    let mut lengths: Vec<(String, u64, String)> = Vec::new();
    let mut views = Vec::new();
    for array in arrays {
        let mut joined = None;
        let mut dims = Vec::new();
        for (d, name) in array.dims.iter().enumerate() {
            let lists = picks.get(name).copied();
            let has_own = lists.is_some_and(|lists| lists.len() > 1);
            let mut stored: Vec<u64> = array.parts.iter().map(|part| part[d]).collect();
            if stored.len() > 1 && axis_names.first() == Some(name) {
                if has_own {
                    return Err(Error::value(format!(
                        "pick: stores are joined along \"{name}\", so that its indices count over all of them; expected one \
                         list of indices, but found one for each store"
                    )));
                }
                let mut starts = vec![0u64];
                for len in &stored {
                    starts.push(starts[starts.len() - 1].saturating_add(*len));
                }
                stored = vec![starts[starts.len() - 1]];
                joined = Some((d, starts));
            } else if let Some(p) = stored.iter().position(|&len| len != stored[0] && !has_own) {
                return Err(Error::value(format!(
                    "path: array '{}' has length {} along \"{name}\" in {} and {} in {}; stores are joined along \"{}\" \
                     and must agree on everything else",
                    array.name, stored[0], spec.source.paths[0], stored[p], spec.source.paths[p], axis_names[0]
                )));
            }
            if let Some(len) = stored.iter().find(|&&len| len > i64::MAX as u64 / 4) {
                return Err(Error::value(format!(
                    "array '{}': dimension \"{name}\" has length {len}, more than can be addressed",
                    array.name
                )));
            }
            let pick =
                lists.map(|lists| Picked::new(lists, &stored, name, &array.name, &spec.source.paths)).transpose()?;
            let len = pick.as_ref().map_or(stored[0], Picked::len);
            let role = axis_names.iter().position(|n| n == name).map_or(Role::Whole, Role::Axis);
            let is_shared = role != Role::Whole || spec.samples.stack_arrays;
            match lengths.iter().find(|(n, ..)| n == name && is_shared) {
                Some((_, other, of)) if *other != len => {
                    return Err(Error::value(format!(
                        "dimension \"{name}\" has length {len} in array '{}' but {other} in array '{of}'; pick as many \
                         indices of both, or leave one of the arrays out",
                        array.name
                    )));
                }
                Some(_) => {}
                None => lengths.push((name.clone(), len, array.name.clone())),
            }
            if role == Role::Whole && len == 0 {
                return Err(Error::value(format!("array '{}': dimension \"{name}\" has length 0", array.name)));
            }
            dims.push(ViewDim { role, len, pick });
        }
        views.push(View { dims, cuts: Vec::new(), joined });
    }
    Ok(views)
}

#[cfg(test)]
mod tests;
