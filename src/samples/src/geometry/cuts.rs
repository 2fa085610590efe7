//! How each array is cut along each axis. Users give values in the order of `dims`, by dimension or by output; here
//! they become one value for each array and axis.

use super::ArrayShape;
use super::dims::resolve;
use super::scaled::Scaled;
use crate::spec::{PerDim, PerOutput};
use dali_zarr_base::error::{Error, Result};

/// How an array is cut along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Elements per sample, at least 1.
    pub window: i64,
    /// Whether the sample lacks the dimension (its window is 1 then).
    pub dropped: bool,
    /// Distance between the elements of a sample.
    pub stride: i64,
    /// How the array's elements lie beside those of the axis; `None` if they have the same numbers.
    pub scaled: Option<Scaled>,
}

impl Cut {
    /// The cut of a single element, without its dimension.
    pub const ONE: Self = Self { window: 1, dropped: true, stride: 1, scaled: None };

    /// Returns the array's element at which a sample begins that starts at the element `at` of the axis.
    pub fn first(&self, at: i64) -> i64 {
        self.scaled.map_or(at, |scaled| scaled.start(at))
    }

    /// Returns the array's elements in a segment of the axis: the first one and one past the last one.
    pub fn within(&self, (from, to): (i64, i64)) -> (i64, i64) {
        self.scaled.map_or((from, to), |scaled| scaled.within((from, to)))
    }

    /// Returns the first and the last start at which the window lies in a segment of the axis.
    pub(super) fn fitting(&self, segment: (i64, i64)) -> (i64, i64) {
        match self.scaled {
            Some(scaled) => scaled.fitting(self.window, scaled.within(segment)),
            None => (segment.0, segment.1.saturating_sub(self.span().unwrap_or(1))),
        }
    }

    /// Returns the number of elements from the first one of a sample to its last one, including those that the stride
    /// skips; `None` for 2^62 or more.
    pub fn span(&self) -> Option<i64> {
        (self.window - 1).checked_mul(self.stride).and_then(|n| n.checked_add(1)).filter(|&n| n < 1 << 62)
    }
}

/// The values of one argument for each of the dimensions `names`; `None` where none was given.
pub(super) type Row<T = i64> = Vec<Option<T>>;

/// Returns the values of an argument: for each array a row, with an entry for each of the dimensions `names`.
///
/// # Errors
/// If a name is unknown, or if a list has another length than `names`.
pub(super) fn by_array<T: Copy>(
    what: &str,
    given: &PerDim<T>,
    names: &[String],
    arrays: &[ArrayShape],
) -> Result<Vec<Row<T>>> {
    let PerDim::ByOutput(by_output) = given else {
        return Ok(vec![common(what, given, names, arrays)?; arrays.len()]);
    };
    check_outputs(what, by_output.iter().map(|(name, _)| name.as_str()), arrays)?;
    let of = |array: &ArrayShape| match by_output.iter().find(|(name, _)| *name == array.output) {
        Some((_, given)) => common(what, given, names, arrays),
        None => Ok(vec![None; names.len()]),
    };
    arrays.iter().map(of).collect()
}

/// As [`by_array`], for an argument that is the same for all outputs: returns one row.
///
/// # Errors
/// Those of [`by_array`]; also if the values are given by output.
pub(super) fn common<T: Copy>(
    what: &str,
    given: &PerDim<T>,
    names: &[String],
    arrays: &[ArrayShape],
) -> Result<Row<T>> {
    match given {
        PerDim::Listed(values) if values.is_empty() => Ok(vec![None; names.len()]),
        PerDim::Listed(values) if values.len() == names.len() => Ok(values.iter().copied().map(Some).collect()),
        PerDim::Listed(values) => Err(Error::value(format!(
            "{what}: expected one value for each of dims ({}), found {}",
            names.join(", "),
            values.len()
        ))),
        PerDim::ByDim(values) => {
            let mut row = vec![None; names.len()];
            for (dim, value) in values {
                let name = resolve(dim, what, arrays)?;
                let Some(at) = names.iter().position(|n| *n == name) else {
                    return Err(Error::value(format!(
                        "{what}: samples aren't cut along dimension \"{name}\"; name it in dims too"
                    )));
                };
                if row[at].replace(*value).is_some() {
                    return Err(Error::value(format!("{what}: dimension \"{name}\" is named twice")));
                }
            }
            Ok(row)
        }
        PerDim::ByOutput(_) => Err(Error::value(format!(
            "{what}: expected values for dimensions, since the outputs of a sample have one start, but found values by output"
        ))),
    }
}

/// Checks that each key of an argument by output is the name of an output.
///
/// # Errors
/// If no output has that name.
pub(super) fn check_outputs<'a>(what: &str, given: impl Iterator<Item = &'a str>, arrays: &[ArrayShape]) -> Result<()> {
    for name in given {
        if arrays.iter().all(|array| array.output != name) {
            let known: Vec<String> = arrays.iter().map(|array| array.output.clone()).collect();
            return Err(Error::value(format!(
                "{what}: there is no output '{name}'; the outputs are {}",
                known.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
            ))
            .unknown(Some(name), known));
        }
    }
    Ok(())
}

/// Checks an argument with values for outputs. A list has at most one value, or one for each array. Values by output
/// have names of outputs, and one value each.
///
/// # Errors
/// If one of these doesn't hold.
pub(super) fn check<T: Copy>(what: &str, given: &PerOutput<T>, arrays: &[ArrayShape]) -> Result<()> {
    match given {
        PerOutput::Listed(values) if values.len() > 1 && values.len() != arrays.len() => Err(Error::value(format!(
            "{what}: expected one value, or one for each of the {} arrays, found {}",
            arrays.len(),
            values.len()
        ))),
        PerOutput::Listed(_) => Ok(()),
        PerOutput::ByOutput(values) => {
            check_outputs(what, values.iter().map(|(name, _)| name.as_str()), arrays)?;
            match values.iter().find(|(_, values)| values.len() != 1) {
                Some((name, values)) => {
                    Err(Error::value(format!("{what}: expected one value for '{name}', found {}", values.len())))
                }
                None => Ok(()),
            }
        }
    }
}

/// Returns the numbers of an argument for each array of a stack: `None`, one for the whole array, or one for each of
/// its channels. `channels` has the number of channels of each array.
///
/// # Errors
/// If there are several numbers, but neither one for each array nor one for each channel; if an output is unknown.
pub(super) fn per_channel(
    what: &str,
    given: &PerOutput<f64>,
    arrays: &[ArrayShape],
    channels: &[u64],
) -> Result<Vec<Option<Vec<f64>>>> {
    let total: u64 = channels.iter().sum();
    let is_stack = total != arrays.len() as u64 || channels.iter().any(|&n| n != 1);
    match given {
        PerOutput::Listed(values) => match values.len() {
            0 => Ok(vec![None; arrays.len()]),
            1 => Ok(vec![Some(values.clone()); arrays.len()]),
            n if n as u64 == total => {
                let mut rest = values.as_slice();
                let take = |&n: &u64| {
                    let (own, others) = rest.split_at(n as usize);
                    rest = others;
                    Some(own.to_vec())
                };
                Ok(channels.iter().map(take).collect())
            }
            n if n == arrays.len() => Ok(values.iter().map(|&value| Some(vec![value])).collect()),
            n => {
                let each = if is_stack {
                    format!(
                        "one value, one for each of the {} arrays, or one for each of the {total} channels",
                        arrays.len()
                    )
                } else {
                    format!("one value, or one for each of the {} arrays", arrays.len())
                };
                Err(Error::value(format!("{what}: expected {each}, found {n}")))
            }
        },
        PerOutput::ByOutput(values) => {
            check_outputs(what, values.iter().map(|(name, _)| name.as_str()), arrays)?;
            let of = |(array, &channels): (&ArrayShape, &u64)| {
                let Some((_, values)) = values.iter().find(|(name, _)| *name == array.output) else { return Ok(None) };
                if values.len() == 1 || values.len() as u64 == channels {
                    return Ok(Some(values.clone()));
                }
                let each = if channels > 1 {
                    format!("one value, or one for each of its {channels} channels,")
                } else {
                    "one value".into()
                };
                Err(Error::value(format!("{what}: expected {each} for '{}', found {}", array.output, values.len())))
            };
            arrays.iter().zip(channels).map(of).collect()
        }
    }
}
