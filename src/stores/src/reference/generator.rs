//! Generators of version 1: they make references from expressions, one for each combination of the values of some
//! dimensions.

use std::collections::BTreeMap;

use minijinja::Value;
use serde_json::Value as Json;

use super::template::{Budget, Names, Template};
use dali_zarr_base::error::{Error, Result};

/// Most references that all generators of a document may make.
const MAX_MADE: u64 = 1 << 24;

/// Reads the member `templates` of a document.
///
/// # Errors
/// If it isn't an object of text, or a template can't be read.
pub(super) fn names(templates: &Json) -> Result<Names> {
    let templates = templates.as_object().ok_or_else(|| wrong("templates to be an object"))?;
    let text = |(name, text): (&String, &Json)| {
        let text = text.as_str().ok_or_else(|| wrong("templates to be text"))?;
        Ok((name.clone(), text.to_owned()))
    };
    Names::new(templates.iter().map(text).collect::<Result<_>>()?)
}

/// The values of one dimension.
enum Dimension {
    List(Vec<Value>),
    Range { start: i64, step: i64, len: u64 },
}

impl Dimension {
    fn new(json: &Json) -> Result<Self> {
        let expected = "dimensions to be lists of integers or text, or objects with integers start, stop and step";
        let wrong = || wrong(expected);
        if let Some(list) = json.as_array() {
            let value = |json: &Json| match json {
                Json::String(text) => Ok(Value::from(text.as_str())),
                other => other.as_i64().map(Value::from).ok_or_else(wrong),
            };
            return Ok(Self::List(list.iter().map(value).collect::<Result<_>>()?));
        }
        let range = json.as_object().ok_or_else(wrong)?;
        let number = |name, default: Option<i64>| match range.get(name) {
            None => default.ok_or_else(wrong),
            Some(n) => n.as_i64().ok_or_else(wrong),
        };
        let (start, stop, step) = (number("start", Some(0))?, number("stop", None)?, number("step", Some(1))?);
        let distance =
            if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
        let step_size = u128::from(step.unsigned_abs());
        if step_size == 0 {
            return Err(wrong());
        }
        let len = u128::try_from(distance).unwrap_or(0).div_ceil(step_size) as u64;
        Ok(Self::Range { start, step, len })
    }

    fn len(&self) -> u64 {
        match self {
            Self::List(list) => list.len() as u64,
            Self::Range { len, .. } => *len,
        }
    }

    /// Returns value number `i`, which is less than [`Self::len`].
    fn value(&self, i: u64) -> Value {
        match self {
            Self::List(list) => list[i as usize].clone(),
            Self::Range { start, step, .. } => Value::from(i128::from(*start) + i128::from(*step) * i128::from(i)),
        }
    }
}

/// Calls `add` with each reference that the member `gen` of a document makes: key, URL, and offset and length if the
/// reference is to a part of a file.
///
/// # Errors
/// If it can't be read, or makes too much.
pub(super) fn generate(
    generators: &Json,
    names: &Names,
    budget: &mut Budget,
    mut add: impl FnMut(&str, &str, Option<(u64, u64)>) -> Result<()>,
) -> Result<()> {
    let mut made = 0u64;
    let generators = generators.as_array().ok_or_else(|| wrong("gen to be a list"))?;
    for (number, generator) in generators.iter().enumerate() {
        one(generator, names, budget, &mut made, &mut add).map_err(|e| e.within(format!("gen {number}")))?;
    }
    Ok(())
}

fn one(
    generator: &Json,
    names: &Names,
    budget: &mut Budget,
    made: &mut u64,
    add: &mut impl FnMut(&str, &str, Option<(u64, u64)>) -> Result<()>,
) -> Result<()> {
    let template = |name: &str| match generator.get(name) {
        None => Ok(None),
        Some(Json::String(text)) => Template::parse(text, names).map(Some).map_err(|e| e.within(name)),
        // As Jinja would render it.
        Some(Json::Number(n)) => Template::parse(&n.to_string(), names).map(Some),
        Some(_) => Err(wrong(&format!("{name} to be text"))),
    };
    let needed = |name| template(name)?.ok_or_else(|| wrong(&format!("a member {name:?}")));
    let (key, url) = (needed("key")?, needed("url")?);
    let range = match (template("offset")?, template("length")?) {
        (Some(offset), Some(length)) => Some((offset, length)),
        (None, None) => None,
        _ => return Err(wrong("both of offset and length, or none")),
    };
    let dimensions =
        generator.get("dimensions").and_then(Json::as_object).ok_or_else(|| wrong("an object \"dimensions\""))?;
    let dimensions =
        dimensions.iter().map(|(name, d)| Ok((name.clone(), Dimension::new(d)?))).collect::<Result<Vec<_>>>()?;
    let count = dimensions.iter().map(|(_, d)| d.len()).try_fold(1u64, u64::checked_mul);
    let all = count.and_then(|count| count.checked_add(*made)).filter(|&all| all <= MAX_MADE);
    *made = all.ok_or_else(|| {
        Error::runtime(format!(
            "expected generators to make at most {MAX_MADE} references, but found more; write Parquet references"
        ))
    })?;
    for i in 0..count.unwrap_or(0) {
        // The last dimension moves fastest.
        let mut rest = i;
        let value = |(name, dimension): &(String, Dimension)| {
            let value = dimension.value(rest % dimension.len());
            rest /= dimension.len();
            (name.clone(), value)
        };
        // They hide templates of the same names.
        budget.take(dimensions.len() as u64)?;
        let values = Value::from(dimensions.iter().rev().map(value).collect::<BTreeMap<_, _>>());
        let mut number = |template: &Template| {
            let text = template.render(values.clone(), budget)?;
            let found = || Error::runtime(format!("expected a number of bytes, but found {text:?}"));
            text.trim().parse::<u64>().map_err(|_| found())
        };
        let range = match &range {
            Some((offset, length)) => Some((number(offset)?, number(length)?)),
            None => None,
        };
        add(&key.render(values.clone(), budget)?, &url.render(values.clone(), budget)?, range)?;
    }
    Ok(())
}

fn wrong(expected: &str) -> Error {
    Error::runtime(format!("expected {expected}, but found something else"))
}
