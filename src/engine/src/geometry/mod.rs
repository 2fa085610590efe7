//! The spec applied to the shapes of the arrays: how many samples there are, and for each array which elements of it go
//! where in which output. Pure: no I/O, no device, no clock.

mod axes;
mod layout;
mod outputs;
mod starts;

pub use axes::Axis;
pub use outputs::{Channels, Placement};
pub use starts::Starts;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::order::Sample;
use crate::random::{below, key};
use crate::reader::OutputInfo;
use crate::spec::Spec;

/// What geometry knows of an array.
#[derive(Clone, Debug)]
pub struct ArrayShape {
    /// Its name, for messages.
    pub name: String,
    /// The names of its dimensions.
    pub dims: Vec<String>,
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
}

/// One dimension of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewDim {
    /// How it is read.
    pub role: Role,
    /// Its length as samples see it: after `pick`, over all stores.
    pub len: u64,
    /// The indices that it consists of, if `pick` names it.
    pub pick: Option<Vec<u64>>,
}

/// An array as samples see it.
#[derive(Clone, Debug)]
pub struct View {
    /// One entry per dimension of the stored array.
    pub dims: Vec<ViewDim>,
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
    /// The output's type.
    pub dtype: DType,
}

/// The whole of it.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// The dimensions that samples are cut along, as in `spec.dims`.
    pub axes: Vec<Axis>,
    /// Samples in an epoch.
    pub samples: u64,
    /// One per array.
    pub views: Vec<View>,
    /// Which elements go where.
    pub placements: Vec<Placement>,
    /// What [`Placement::norm`] points into.
    pub norms: Vec<Norm>,
    /// The outputs, the index output included.
    pub outputs: Vec<OutputInfo>,
    /// Of random starts.
    seed: u64,
}

/// Tells the keys of random starts from those of orders.
const CROP: u64 = 2;

impl Geometry {
    /// Applies `spec` to `arrays`.
    ///
    /// # Errors
    /// Whatever contradicts: unknown dimensions, lengths that differ, windows that don't fit.
    pub fn new(spec: &Spec, arrays: &[ArrayShape]) -> Result<Self> {
        let names = axes::sample_dims(spec, arrays)?;
        let views = views(spec, arrays, &names)?;
        let axes = axes::build(spec, arrays, &views, &names)?;
        let samples = axes
            .iter()
            .try_fold(1u64, |n, a| n.checked_mul(a.count() as u64))
            .filter(|&n| n < 1 << 62)
            .ok_or_else(|| Error::value("there are more than 2^62 samples; use larger steps"))?;
        let (outputs, placements, norms) = outputs::build(spec, arrays, &views, &axes)?;
        Ok(Self { axes, samples, views, placements, norms, outputs, seed: spec.seed_of_order() })
    }

    /// The start of a sample along each axis.
    pub fn start(&self, sample: Sample) -> Vec<i64> {
        let mut rest = sample.index as i64;
        let mut start = vec![0; self.axes.len()];
        for (i, axis) in self.axes.iter().enumerate().rev() {
            let k = if axis.random {
                let bits = key(&[self.seed, sample.epoch, sample.index, i as u64, CROP]);
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

/// Applies `pick` and the joining of stores to every array, and checks that arrays agree on the dimensions they share.
fn views(spec: &Spec, arrays: &[ArrayShape], axis_names: &[String]) -> Result<Vec<View>> {
    let reference = axes::reference(arrays);
    let mut picks = Vec::new();
    for pick in &spec.pick {
        let name = axes::resolve(&pick.dim, "pick", arrays, reference)?;
        if picks.iter().any(|(n, _)| *n == name) {
            return Err(Error::value(format!(
                "pick: dimension \"{name}\" is named twice; give all its indices at once"
            )));
        }
        if pick.indices.is_empty() {
            return Err(Error::value(format!("pick: dimension \"{name}\" has no index; give at least one")));
        }
        picks.push((name, &pick.indices));
    }
    if axis_names.is_empty() && spec.paths.len() > 1 {
        return Err(Error::value(format!(
            "path: expected one store, since array '{}' has no dimension along which {} could be joined; read them with a \
             reader each",
            arrays[0].name,
            spec.paths.len()
        )));
    }
    let mut lengths: Vec<(String, u64, String)> = Vec::new();
    let mut views = Vec::new();
    for array in arrays {
        let first = &array.parts[0];
        let mut joined = None;
        let mut dims = Vec::new();
        for (d, name) in array.dims.iter().enumerate() {
            let joins = array.parts.len() > 1 && axis_names.first() == Some(name);
            let mut len = first[d];
            if joins {
                let mut starts = vec![0];
                for part in &array.parts {
                    let end = starts[starts.len() - 1] + part[d].min(1 << 62);
                    starts.push(end);
                }
                len = starts[starts.len() - 1];
                joined = Some((d, starts));
            } else if let Some((p, part)) = array.parts.iter().enumerate().find(|(_, part)| part[d] != len) {
                return Err(Error::value(format!(
                    "path: array '{}' has length {len} along \"{name}\" in {} and {} in {}; stores are joined along \
                     \"{}\" and must agree on everything else",
                    array.name, spec.paths[0], part[d], spec.paths[p], axis_names[0]
                )));
            }
            if len > i64::MAX as u64 / 4 {
                return Err(Error::value(format!(
                    "array '{}': dimension \"{name}\" has length {len}, more than can be addressed",
                    array.name
                )));
            }
            let pick = match picks.iter().find(|(n, _)| n == name) {
                None => None,
                Some((_, indices)) => Some(resolve_pick(indices, len, name, &array.name)?),
            };
            let len = pick.as_ref().map_or(len, |p| p.len() as u64);
            match lengths.iter().find(|(n, ..)| n == name) {
                Some((_, other, of)) if *other != len => {
                    return Err(Error::value(format!(
                        "dimension \"{name}\" has length {len} in array '{}' but {other} in array '{of}'; \
                         read them with two readers, or pick the same indices of both",
                        array.name
                    )));
                }
                Some(_) => {}
                None => lengths.push((name.clone(), len, array.name.clone())),
            }
            let role = axis_names.iter().position(|n| n == name).map_or(Role::Whole, Role::Axis);
            if role == Role::Whole && len == 0 {
                return Err(Error::value(format!("array '{}': dimension \"{name}\" has length 0", array.name)));
            }
            dims.push(ViewDim { role, len, pick });
        }
        views.push(View { dims, joined });
    }
    Ok(views)
}

fn resolve_pick(indices: &[i64], len: u64, dim: &str, array: &str) -> Result<Vec<u64>> {
    indices
        .iter()
        .map(|&i| {
            let at = if i < 0 { i + len as i64 } else { i };
            if at < 0 || at >= len as i64 {
                return Err(Error::index(format!(
                    "pick: index {i} is outside dimension \"{dim}\" of array '{array}', which has length {len}"
                )));
            }
            Ok(at as u64)
        })
        .collect()
}

#[cfg(test)]
mod tests;
