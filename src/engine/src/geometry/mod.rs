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

pub use axes::Axis;
pub(crate) use axes::{resolve, sample_dims};
pub use cuts::Cut;
pub use outputs::{Channels, Placement};
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
    /// The outputs, the index output included.
    pub outputs: Vec<OutputInfo>,
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
        let samples = samples.ok_or_else(|| Error::value("there are more than 2^62 samples; use larger steps"))?;
        let (outputs, placements, norms) = outputs::build(spec, arrays, &views, &axes)?;
        Ok(Self {
            axes,
            table,
            samples,
            views,
            placements,
            norms,
            outputs,
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
        if spec.samples.concat == Concat::Dims || arrays[0].parts.len() == 1 {
            return Ok(vec![Self::with_starts(spec, arrays, table)?]);
        }
        let mut all: Vec<Self> = Vec::new();
        let mut first = 0u64;
        for (store, path) in spec.source.paths.iter().enumerate() {
            let own = spec.clone().with(|s| {
                s.source.paths = vec![path.clone()];
                for pick in &mut s.source.pick {
                    if pick.indices.len() > 1 {
                        pick.indices = pick.indices.get(store).into_iter().cloned().collect();
                    }
                }
            });
            let shapes: Vec<ArrayShape> = arrays.iter().map(|array| array.of_store(store)).collect();
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
    pub fn start(&self, sample: Sample) -> Vec<i64> {
        if let Some(table) = &self.table {
            return table.start(sample.index).to_vec();
        }
        let mut rest = (sample.index / self.per_start) as i64;
        let mut start = vec![0; self.axes.len()];
        for (i, axis) in self.axes.iter().enumerate().rev() {
            let k = if axis.random {
                let bits = key(&[self.seed, sample.epoch, self.first + sample.index, i as u64, CROP]);
                below(bits, axis.starts.count() as u64) as i64
            } else {
                let k = rest % axis.count();
                rest /= axis.count();
                k
            };
            start[i] = axis.starts.at(k);
        }
        start
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
