//! Generators of version 1: they make references from expressions, one for each combination of the values of some
//! dimensions.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::template::{Budget, Named, Names, Template, Value};
use dali_zarr_base::error::{Error, Result};

/// Most references that all generators of a document may make.
const MAX_MADE: u64 = 1 << 24;

/// The templates of a document: text, and functions that make text from arguments.
#[derive(Debug, Default)]
pub(super) struct Templates(HashMap<String, Text>);

#[derive(Debug)]
enum Text {
    Plain(Value),
    Function(Template),
}

impl Templates {
    /// Reads the document's member `templates`; without it there are none.
    ///
    /// # Errors
    /// If it isn't an object of text, or a template can't be read.
    pub fn new(templates: Option<&Json>) -> Result<Self> {
        let none = serde_json::Map::new();
        let templates = match templates {
            None => &none,
            Some(templates) => templates.as_object().ok_or_else(|| wrong("templates to be an object"))?,
        };
        let text = |(name, text): (&String, &Json)| {
            let text = text.as_str().ok_or_else(|| wrong("templates to be text"))?;
            // Text without expressions stands for itself. With expressions it is a function and waits for arguments.
            let text = if super::template::has_expressions(text) {
                Text::Function(Template::parse(text)?)
            } else {
                Text::Plain(Value::Text(text.to_owned()))
            };
            Ok((name.clone(), text))
        };
        templates.iter().map(text).collect::<Result<_>>().map(Self)
    }

    /// Whether there are no templates. Then URLs are taken literally.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Names for Templates {
    fn named(&self, name: &str) -> Option<Named<'_>> {
        self.0.get(name).map(|text| match text {
            Text::Plain(value) => Named::Value(value),
            Text::Function(template) => Named::Function(template),
        })
    }
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
                Json::String(text) => Ok(Value::Text(text.clone())),
                other => other.as_i64().map(|n| Value::Int(n.into())).ok_or_else(wrong),
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
            Self::Range { start, step, .. } => Value::Int(i128::from(*start) + i128::from(*step) * i128::from(i)),
        }
    }
}

/// One value of each dimension. They hide templates of the same names.
struct Point<'a> {
    values: Vec<(String, Value)>,
    templates: &'a Templates,
}

impl Names for Point<'_> {
    fn named(&self, name: &str) -> Option<Named<'_>> {
        self.values.named(name).or_else(|| self.templates.named(name))
    }
}

/// Calls `add` with each reference that the member `gen` of a document makes: key, URL, and offset and length if the
/// reference is to a part of a file.
///
/// # Errors
/// If it can't be read, or makes too much.
pub(super) fn generate(
    generators: &Json,
    templates: &Templates,
    budget: &mut Budget,
    mut add: impl FnMut(&str, &str, Option<(u64, u64)>) -> Result<()>,
) -> Result<()> {
    let mut made = 0u64;
    let generators = generators.as_array().ok_or_else(|| wrong("gen to be a list"))?;
    for (number, generator) in generators.iter().enumerate() {
        one(generator, templates, budget, &mut made, &mut add).map_err(|e| e.within(format!("gen {number}")))?;
    }
    Ok(())
}

fn one(
    generator: &Json,
    templates: &Templates,
    budget: &mut Budget,
    made: &mut u64,
    add: &mut impl FnMut(&str, &str, Option<(u64, u64)>) -> Result<()>,
) -> Result<()> {
    let template = |name: &str| match generator.get(name) {
        None => Ok(None),
        Some(Json::String(text)) => Template::parse(text).map(Some).map_err(|e| e.within(name)),
        // As Jinja would render it.
        Some(Json::Number(n)) => Template::parse(&n.to_string()).map(Some),
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
    let values = dimensions.iter().map(|(name, _)| (name.clone(), Value::Int(0))).collect();
    let mut point = Point { values, templates };
    for i in 0..count.unwrap_or(0) {
        // The last dimension moves fastest.
        let mut rest = i;
        for (at, (_, dimension)) in dimensions.iter().enumerate().rev() {
            point.values[at].1 = dimension.value(rest % dimension.len());
            rest /= dimension.len();
        }
        let mut number = |template: &Template| {
            let text = template.render(&point, budget)?;
            let found = || Error::runtime(format!("expected a number of bytes, but found {text:?}"));
            text.trim().parse::<u64>().map_err(|_| found())
        };
        let range = match &range {
            Some((offset, length)) => Some((number(offset)?, number(length)?)),
            None => None,
        };
        add(&key.render(&point, budget)?, &url.render(&point, budget)?, range)?;
    }
    Ok(())
}

fn wrong(expected: &str) -> Error {
    Error::runtime(format!("expected {expected}, but found something else"))
}
