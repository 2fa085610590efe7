//! The breaks between segments, and the choice of segments.

use serde::de::{self, Deserialize, Deserializer, Unexpected};
use serde_json::Value;

use super::read;

/// Elements along the first of `dims` where a new segment begins. The breaks of all fields count together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breaks {
    /// Breaks as element numbers, in any order. Negative: from the end.
    pub at: Vec<i64>,
    /// Names of arrays that hold the end of each segment, in each store.
    pub ends: Vec<String>,
    /// Whether there are breaks where the coordinates along the dimension aren't evenly spaced.
    pub auto: bool,
    /// The breaks of `ends` and `auto`, filled in when the stores are read: one list for all stores, or one for each
    /// store if samples are cut from each store on its own.
    pub found: Vec<Vec<i64>>,
}

/// The text that stands for [`Breaks::auto`].
const AUTO: &str = "auto";

impl Breaks {
    /// Whether no breaks were given.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether some breaks are only known after values in the stores are read.
    pub fn are_stored(&self) -> bool {
        self.auto || !self.ends.is_empty()
    }
}

impl From<Vec<i64>> for Breaks {
    fn from(at: Vec<i64>) -> Self {
        Self { at, ..Self::default() }
    }
}

/// A choice of segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Segments {
    /// All of them.
    #[default]
    All,
    /// The segments with these numbers, in any order. Negative: from the end.
    Numbers(Vec<i64>),
    /// Tells for each segment whether it is chosen.
    Mask(Vec<bool>),
}

fn listed(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) => values,
        single => vec![single],
    }
}

fn wrong<E: de::Error>(found: &Value, expected: &str) -> E {
    E::invalid_type(Unexpected::Other(read::kind(found)), &expected)
}

impl<'de> Deserialize<'de> for Breaks {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let mut breaks = Self::default();
        for one in listed(Value::deserialize(value)?) {
            match one {
                Value::String(text) if text == AUTO => breaks.auto = true,
                Value::String(name) => breaks.ends.push(name),
                number => {
                    breaks.at.push(number.as_i64().ok_or_else(|| {
                        wrong::<D::Error>(&number, "whole numbers, the name of an array, or \"auto\"")
                    })?)
                }
            }
        }
        Ok(breaks)
    }
}

impl<'de> Deserialize<'de> for Segments {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "whole numbers, or true or false for each segment";
        let values = listed(Value::deserialize(value)?);
        if values.first().is_some_and(Value::is_boolean) {
            let one = |v: &Value| v.as_bool().ok_or_else(|| wrong(v, EXPECTED));
            return Ok(Self::Mask(values.iter().map(one).collect::<Result<_, D::Error>>()?));
        }
        let one = |v: &Value| v.as_i64().ok_or_else(|| wrong(v, EXPECTED));
        Ok(Self::Numbers(values.iter().map(one).collect::<Result<_, D::Error>>()?))
    }
}
