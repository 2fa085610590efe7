//! Normalisation: one mean and stddev for a whole array, or one for each of its channels.
//!
//! An array's channels are the elements along the dimensions that `channels` names. In a stack, the elements along the
//! dimensions that become channels of the stack are channels too. If neither gives channels, they lie along the only
//! dimension of a sample that has as many elements as there are numbers.

use super::cuts::{check_outputs, per_channel};
use super::{ArrayShape, Norm, Role, View, filled, resolve};
use crate::spec::{DimKey, OutputDims, PerOutput, Spec};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// Maximum number of channels of an array, other than those of a stack. Each channel has an operation.
const MAX_CHANNELS: u64 = 1 << 16;

/// Numbers the channels of one array: a channel's number is the sum of index times weight over `dims`. The index counts
/// along the whole dimension, also if samples are cut along it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Dimensions of the array, each with its weight. The last one moves fastest.
    pub dims: Vec<(usize, u64)>,
    /// Index into [`super::Geometry::tables`] of the table with the numbers of all channels; `None` if there is no
    /// table.
    pub table: Option<usize>,
    /// Whether the user gave numbers for other channels than those that a stack makes of the array.
    pub is_own: bool,
}

impl Channels {
    /// Numbers the elements along these dimensions in row-major order.
    pub(super) fn along(dims: &[usize], view: &View, table: Option<usize>, is_own: bool) -> Self {
        let mut weights = vec![1u64; dims.len()];
        for d in (0..dims.len().saturating_sub(1)).rev() {
            weights[d] = weights[d + 1] * view.dims[dims[d + 1]].len;
        }
        Self { dims: dims.iter().copied().zip(weights).collect(), table, is_own }
    }
}

/// The normalisation of one array: one for all of it, or one for each of its channels.
pub(super) struct Normalised {
    pub norms: Vec<Norm>,
    /// The dimensions of its channels. They matter only if there are several norms.
    pub dims: Vec<usize>,
}

/// The means or the stddevs of each array: `None`, one, or one for each channel.
type Numbers = Vec<Option<Vec<f64>>>;

impl Normalised {
    pub fn dtype(&self) -> DType {
        self.norms[0].dtype
    }

    /// Returns the normalisation of each array of a stack. For each array, `stacked` has the dimensions that become
    /// channels of the stack.
    ///
    /// # Errors
    /// If the count of numbers is neither that of the arrays nor that of the channels, or if a number can't normalise
    /// (not finite, or a stddev of 0).
    pub fn stacked(spec: &Spec, arrays: &[ArrayShape], views: &[View], stacked: &[Vec<usize>]) -> Result<Vec<Self>> {
        let values = &spec.values;
        let with_named = |(dims, named): (&Vec<usize>, Option<Vec<usize>>)| {
            let others = named.into_iter().flatten().filter(|d| !dims.contains(d));
            sorted(dims.iter().copied().chain(others).collect())
        };
        let dims: Vec<Vec<usize>> = stacked.iter().zip(named(&values.channels, arrays)?).map(with_named).collect();
        let counts: Vec<u64> = dims.iter().zip(views).map(|(dims, view)| count(dims, view)).collect();
        if dims != stacked {
            counts.iter().try_for_each(|&count| too_many(count))?;
        }
        let means = per_channel("mean", &values.mean, arrays, &counts)?;
        let stddevs = per_channel("stddev", &values.stddev, arrays, &counts)?;
        all(spec, arrays, &means, &stddevs, dims)
    }

    /// Returns the normalisation of each array, where each has an output of its own.
    ///
    /// # Errors
    /// If the count of numbers is neither that of the arrays nor that of an array's channels, if it isn't clear which
    /// dimension the channels lie along, or if a number can't normalise.
    pub fn separate(spec: &Spec, arrays: &[ArrayShape], views: &[View]) -> Result<Vec<Self>> {
        let values = &spec.values;
        let (means, stddevs) = (of_arrays("mean", &values.mean, arrays)?, of_arrays("stddev", &values.stddev, arrays)?);
        let named = named(&values.channels, arrays)?;
        let of_array = |a: usize| {
            let given = [("mean", &means[a]), ("stddev", &stddevs[a])];
            let lists: Vec<(&str, usize)> = given
                .iter()
                .filter_map(|(what, numbers)| numbers.as_ref().map(|numbers| (*what, numbers.len())))
                .filter(|&(_, n)| n != 1)
                .collect();
            let Some(&(what, count)) = lists.first() else { return Ok(Vec::new()) };
            match &named[a] {
                Some(dims) => lists.iter().try_for_each(|&(what, n)| fits(what, n, &arrays[a], &views[a], dims)),
                None => same(lists.as_slice(), &arrays[a]),
            }?;
            named[a].clone().map_or_else(|| only(what, count, &arrays[a], &views[a]), Ok)
        };
        let dims = (0..arrays.len()).map(of_array).collect::<Result<_>>()?;
        all(spec, arrays, &means, &stddevs, dims)
    }
}

/// Makes the norms of each array from its means and stddevs. `dims` has the dimensions of each array's channels.
fn all(
    spec: &Spec,
    arrays: &[ArrayShape],
    means: &Numbers,
    stddevs: &Numbers,
    dims: Vec<Vec<usize>>,
) -> Result<Vec<Normalised>> {
    let values = &spec.values;
    for (what, of_arrays) in [("mean", means), ("stddev", stddevs)] {
        let all = of_arrays.iter().flatten().flatten();
        if let Some(v) = all.copied().find(|v| !v.is_finite() || (what == "stddev" && *v == 0.0)) {
            return Err(Error::value(format!("{what}: expected finite numbers other than a stddev of 0, found {v}")));
        }
    }
    if values.fillna.values().any(f64::is_nan) {
        return Err(Error::value("fillna: expected a number that takes the place of NaN, found NaN"));
    }
    let one = |(a, dims): (usize, Vec<usize>)| {
        let array = &arrays[a];
        let of = |values: &Option<Vec<f64>>, c: usize| values.as_ref().map(|v| if v.len() == 1 { v[0] } else { v[c] });
        let asked = means[a].is_some() || stddevs[a].is_some();
        let dtype = values.dtype.of(&array.output, a).unwrap_or(if asked { DType::F32 } else { array.values });
        let fill = filled::value(spec, array, dtype, spec.samples.fill_value.of(&array.output, a), asked)?;
        let fillna = values.fillna.of(&array.output, a).and_then(|value| array.values.nearest(value));
        let count = [&means[a], &stddevs[a]].into_iter().flatten().map(Vec::len).max().unwrap_or(1).max(1);
        let norm = |c: usize| {
            let pair = (of(&means[a], c).unwrap_or(0.0), of(&stddevs[a], c).unwrap_or(1.0));
            Norm { array: a, fillna, mean_stddev: asked.then_some(pair), fill, dtype, imaginary: false }
        };
        Ok(Normalised { norms: (0..count).map(norm).collect(), dims })
    };
    dims.into_iter().enumerate().map(one).collect()
}

/// Returns the numbers of each array as the user gave them. They aren't compared with its channels yet.
fn of_arrays(what: &str, given: &PerOutput<f64>, arrays: &[ArrayShape]) -> Result<Numbers> {
    match given {
        PerOutput::Listed(values) => match values.len() {
            0 => Ok(vec![None; arrays.len()]),
            1 => Ok(vec![Some(values.clone()); arrays.len()]),
            _ if arrays.len() == 1 => Ok(vec![Some(values.clone())]),
            n if n == arrays.len() => Ok(values.iter().map(|&value| Some(vec![value])).collect()),
            n => Err(Error::value(format!(
                "{what}: expected one value, or one for each of the {} arrays, found {n}; give those of an array's channels by \
                 output, as in {what}={{\"{}\": [...]}}",
                arrays.len(),
                arrays[0].output
            ))),
        },
        PerOutput::ByOutput(values) => {
            check_outputs(what, values.iter().map(|(name, _)| name.as_str()), arrays)?;
            let of = |array: &ArrayShape| values.iter().find(|(name, _)| *name == array.output).map(|(_, v)| v.clone());
            match values.iter().find(|(_, values)| values.is_empty()) {
                Some((name, _)) => {
                    Err(Error::value(format!("{what}: expected at least one value for '{name}', found none")))
                }
                None => Ok(arrays.iter().map(of).collect()),
            }
        }
    }
}

/// Returns the dimensions of each array that `channels` names, in ascending order; `None` if `channels` says nothing
/// about the array.
fn named(given: &OutputDims, arrays: &[ArrayShape]) -> Result<Vec<Option<Vec<usize>>>> {
    match given {
        OutputDims::All(keys) if keys.is_empty() => Ok(vec![None; arrays.len()]),
        OutputDims::All(keys) => {
            let found: Vec<Vec<usize>> =
                arrays.iter().map(|array| dims_of(keys, array, arrays).map(sorted)).collect::<Result<_>>()?;
            for key in keys {
                // An unknown name was refused above, so this refuses unknown positions.
                if arrays.iter().all(|array| position(key, array).is_none()) {
                    return Err(Error::value(format!(
                        "channels: expected a dimension, but no array has the position {key}"
                    )));
                }
            }
            Ok(found.into_iter().map(Some).collect())
        }
        OutputDims::ByOutput(by_output) => {
            check_outputs("channels", by_output.iter().map(|(name, _)| name.as_str()), arrays)?;
            let of = |array: &ArrayShape| {
                let Some((_, keys)) = by_output.iter().find(|(name, _)| *name == array.output) else { return Ok(None) };
                match keys.iter().find(|key| position(key, array).is_none()) {
                    Some(key) => Err(Error::value(format!(
                        "channels: expected dimensions of '{}' ({}), but found {key}",
                        array.output,
                        array.dims.join(", ")
                    ))),
                    None => Ok(Some(sorted(dims_of(keys, array, arrays)?))),
                }
            };
            arrays.iter().map(of).collect()
        }
    }
}

/// Returns the dimensions of an array that are among `keys`.
fn dims_of(keys: &[DimKey], array: &ArrayShape, arrays: &[ArrayShape]) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for key in keys {
        if let DimKey::Name(_) = key {
            resolve(key, "channels", arrays)?;
        }
        let Some(d) = position(key, array) else { continue };
        if found.contains(&d) {
            return Err(Error::value(format!("channels: dimension \"{}\" is named twice", array.dims[d])));
        }
        found.push(d);
    }
    Ok(found)
}

fn sorted(mut dims: Vec<usize>) -> Vec<usize> {
    dims.sort_unstable();
    dims
}

/// Returns which dimension of an array `key` is; `None` if the array lacks it. A number is a position among the array's
/// own dimensions.
fn position(key: &DimKey, array: &ArrayShape) -> Option<usize> {
    match key {
        DimKey::Name(name) => array.dims.iter().position(|dim| dim == name),
        DimKey::Index(i) => {
            let at = if *i < 0 { i.checked_add(array.dims.len() as i64)? } else { *i };
            usize::try_from(at).ok().filter(|&at| at < array.dims.len())
        }
    }
}

/// Formats the dimensions with their lengths, for messages.
fn lengths(dims: &[usize], array: &ArrayShape, view: &View) -> String {
    dims.iter().map(|&d| format!("\"{}\" {}", array.dims[d], view.dims[d].len)).collect::<Vec<_>>().join(", ")
}

/// Returns the number of elements along the dimensions together.
fn count(dims: &[usize], view: &View) -> u64 {
    dims.iter().fold(1u64, |n, &d| n.saturating_mul(view.dims[d].len))
}

/// Checks that there are as many numbers as elements along the dimensions.
fn fits(what: &str, n: usize, array: &ArrayShape, view: &View, dims: &[usize]) -> Result<()> {
    let count = count(dims, view);
    if dims.is_empty() {
        return Err(Error::value(format!(
            "{what}: expected one value for '{}', which has none of the dimensions of channels, found {n}",
            array.output
        )));
    }
    if count != n as u64 {
        return Err(Error::value(format!(
            "{what}: expected one value for '{}', or one for each of the {count} elements along channels ({}), found {n}",
            array.output,
            lengths(dims, array, view)
        )));
    }
    too_many(count)
}

fn too_many(count: u64) -> Result<()> {
    if count > MAX_CHANNELS {
        return Err(Error::value(format!("channels: expected {MAX_CHANNELS} at most, found {count}")));
    }
    Ok(())
}

/// Checks that an array's lists of means and of stddevs have the same length.
fn same(lists: &[(&str, usize)], array: &ArrayShape) -> Result<()> {
    if let [(_, mean), (_, stddev)] = lists
        && mean != stddev
    {
        return Err(Error::value(format!(
            "mean, stddev: expected as many values of one as of the other for '{}', found {mean} and {stddev}",
            array.output
        )));
    }
    Ok(())
}

/// Finds the only dimension that has `count` elements, among those that every sample has whole.
fn only(what: &str, count: usize, array: &ArrayShape, view: &View) -> Result<Vec<usize>> {
    let whole: Vec<usize> = (0..view.dims.len()).filter(|&d| view.dims[d].role == Role::Whole).collect();
    let fitting: Vec<usize> = whole.iter().copied().filter(|&d| view.dims[d].len == count as u64).collect();
    let output = &array.output;
    match fitting.as_slice() {
        [d] => too_many(count as u64).map(|()| vec![*d]),
        [] if whole.is_empty() => {
            Err(Error::value(format!("{what}: expected one value for '{output}', found {count}")))
        }
        [] => Err(Error::value(format!(
            "{what}: expected one value for '{output}', or as many as one of its dimensions has ({}), found {count}",
            lengths(&whole, array, view)
        ))),
        [.., last] => Err(Error::value(format!(
            "{what}: expected to know which dimension of '{output}' the {count} values are along, since several have as many \
             elements ({}); name it, as in channels={{\"{output}\": \"{}\"}}",
            lengths(&fitting, array, view),
            array.dims[*last]
        ))),
    }
}
