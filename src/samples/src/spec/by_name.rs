//! Arguments with one value for all dimensions or outputs, a list of values, or values by name.

use serde::de::{self, Deserialize, Deserializer, Unexpected};
use serde_json::Value;

use super::{DimKey, read};
use dali_zarr_base::dtype::DType;

/// A number for each of `dims`: a whole one, if no other type is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerDim<T = i64> {
    /// Values in the order of `dims`. Empty: the default for every dimension.
    Listed(Vec<T>),
    /// Values by dimension. Other dimensions have the default.
    ByDim(Vec<(DimKey, T)>),
    /// Values by output. Other outputs have the default for every dimension. The values are never `ByOutput`
    /// themselves.
    ByOutput(Vec<(String, Self)>),
}

impl<T> PerDim<T> {
    /// Makes the default for every dimension.
    pub const fn new() -> Self {
        Self::Listed(Vec::new())
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Listed(values) if values.is_empty())
    }

    /// Returns the dimensions that are named, in the order of their first mention.
    pub fn dims(&self) -> Vec<DimKey> {
        match self {
            Self::Listed(_) => Vec::new(),
            Self::ByDim(values) => values.iter().map(|(dim, _)| dim.clone()).collect(),
            Self::ByOutput(values) => {
                let mut all: Vec<DimKey> = Vec::new();
                for dim in values.iter().flat_map(|(_, of)| of.dims()) {
                    if !all.contains(&dim) {
                        all.push(dim);
                    }
                }
                all
            }
        }
    }
}

impl<T> Default for PerDim<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> From<Vec<T>> for PerDim<T> {
    fn from(values: Vec<T>) -> Self {
        Self::Listed(values)
    }
}

impl<T> FromIterator<T> for PerDim<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self::Listed(values.into_iter().collect())
    }
}

/// A value for each output. With `stack_arrays`, a value for each array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerOutput<T> {
    /// No value, one for all outputs, or one for each array. Some arguments also allow one for each channel of a stack.
    Listed(Vec<T>),
    /// Values by output. A list of several values is for the array's channels.
    ByOutput(Vec<(String, Vec<T>)>),
}

impl<T: Copy> PerOutput<T> {
    /// Makes the default for all outputs.
    pub const fn new() -> Self {
        Self::Listed(Vec::new())
    }

    /// Makes one value for all outputs.
    pub fn one(value: T) -> Self {
        Self::Listed(vec![value])
    }

    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Listed(values) if values.is_empty())
    }

    /// Returns the value of the output `name` of the `i`-th array. `None` if no value was given for it.
    pub fn of(&self, name: &str, i: usize) -> Option<T> {
        match self {
            Self::Listed(values) => values.get(i).or(values.first()).copied(),
            Self::ByOutput(values) => values.iter().find(|(n, _)| n == name).and_then(|(_, v)| v.first().copied()),
        }
    }

    /// Returns all values that were given.
    pub fn values(&self) -> impl Iterator<Item = T> {
        let (listed, by_output) = match self {
            Self::Listed(values) => (values.as_slice(), [].as_slice()),
            Self::ByOutput(values) => ([].as_slice(), values.as_slice()),
        };
        listed.iter().chain(by_output.iter().flat_map(|(_, values)| values)).copied()
    }
}

impl<T: Copy> Default for PerOutput<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> From<Vec<T>> for PerOutput<T> {
    fn from(values: Vec<T>) -> Self {
        Self::Listed(values)
    }
}

/// A list of dimensions for all outputs, or one for each output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputDims {
    /// The dimensions of all outputs. Empty: none were given.
    All(Vec<DimKey>),
    /// The dimensions by output. For other outputs none were given.
    ByOutput(Vec<(String, Vec<DimKey>)>),
}

impl OutputDims {
    /// Whether nothing was given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for OutputDims {
    fn default() -> Self {
        Self::All(Vec::new())
    }
}

impl<'de> Deserialize<'de> for OutputDims {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        match Value::deserialize(value)? {
            Value::Object(values) => {
                let of = |(name, value): (String, Value)| Ok((name, list(&value)?));
                Ok(Self::ByOutput(values.into_iter().map(of).collect::<Result<_, D::Error>>()?))
            }
            value => Ok(Self::All(list(&value)?)),
        }
    }
}

/// A type of values in lists and dictionaries.
trait Scalar: Sized {
    /// Reads a value. `None` if it has the wrong type.
    fn of(value: &Value) -> Option<Self>;
    /// Describes the expected type, for messages.
    fn expected() -> String;
    /// Describes a value of the wrong type, for messages.
    fn found(value: &Value) -> String {
        read::kind(value).to_owned()
    }
}

impl Scalar for i64 {
    fn of(value: &Value) -> Option<Self> {
        value.as_i64()
    }

    fn expected() -> String {
        "a whole number".into()
    }
}

impl Scalar for DimKey {
    fn of(value: &Value) -> Option<Self> {
        value.as_i64().map(Self::Index).or_else(|| value.as_str().map(Self::parse))
    }

    fn expected() -> String {
        "a dimension's name or position".into()
    }
}

impl Scalar for bool {
    fn of(value: &Value) -> Option<Self> {
        value.as_bool()
    }

    fn expected() -> String {
        "true or false".into()
    }
}

impl Scalar for f64 {
    fn of(value: &Value) -> Option<Self> {
        value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
    }

    fn expected() -> String {
        "a number, \"nan\", \"inf\" or \"-inf\"".into()
    }
}

impl Scalar for DType {
    fn of(value: &Value) -> Option<Self> {
        let name = value.as_str()?;
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    fn expected() -> String {
        format!("one of {}", Self::ALL.map(Self::name).join(", "))
    }

    fn found(value: &Value) -> String {
        value.as_str().map_or_else(|| read::kind(value).to_owned(), |text| format!("{text:?}"))
    }
}

fn scalar<T: Scalar, E: de::Error>(value: &Value) -> Result<T, E> {
    T::of(value).ok_or_else(|| E::invalid_type(Unexpected::Other(&T::found(value)), &T::expected().as_str()))
}

/// Reads one value, or a list of values.
fn list<T: Scalar, E: de::Error>(value: &Value) -> Result<Vec<T>, E> {
    match value {
        Value::Array(values) => values.iter().map(scalar).collect(),
        single => Ok(vec![scalar(single)?]),
    }
}

fn per_dim<T: Scalar, E: de::Error>(value: &Value) -> Result<PerDim<T>, E> {
    let Value::Object(values) = value else { return Ok(PerDim::Listed(list(value)?)) };
    if values.values().any(|value| value.is_object() || value.is_array()) {
        let of = |(name, value): (&String, &Value)| match per_dim(value)? {
            PerDim::ByOutput(_) => Err(E::invalid_type(Unexpected::Map, &T::expected().as_str())),
            one => Ok((name.clone(), one)),
        };
        return Ok(PerDim::ByOutput(values.iter().map(of).collect::<Result<_, E>>()?));
    }
    let of = |(dim, value): (&String, &Value)| Ok((DimKey::parse(dim), scalar(value)?));
    Ok(PerDim::ByDim(values.iter().map(of).collect::<Result<_, E>>()?))
}

impl<'de, T: Scalar> Deserialize<'de> for PerDim<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        per_dim(&Value::deserialize(value)?)
    }
}

impl<'de, T: Scalar> Deserialize<'de> for PerOutput<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        match Value::deserialize(value)? {
            Value::Object(values) => {
                let of = |(name, value): (String, Value)| Ok((name, list(&value)?));
                Ok(Self::ByOutput(values.into_iter().map(of).collect::<Result<_, D::Error>>()?))
            }
            value => Ok(Self::Listed(list(&value)?)),
        }
    }
}
