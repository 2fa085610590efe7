//! Templates of references: text with expressions of Jinja in `{{ }}`, which the crate minijinja renders.
//!
//! References come from strangers, so a rendering is bounded in time and memory by minijinja's fuel, and all of a
//! document's by a [`Budget`]. Of Jinja's filters and functions only `format` is known, and there are no statements and
//! lists (`expressions.rs`). Only text and integers can be rendered, since minijinja writes large floats otherwise than
//! Python. What isn't known is an error.

mod expressions;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::value::{Kwargs, Object, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, ErrorKind, Output, State, UndefinedBehavior, Value, filters};

use super::targets::MAX_URL;
use dali_zarr_base::error::{Error, Result};

/// Most bytes of a template.
const MAX_TEXT: usize = 64 << 10;
/// Fuel of one rendering. A step takes 1, and so do 64 bytes of text.
const FUEL: u64 = 1 << 16;

/// The name of the template in the environment of a [`Template`].
const ONLY: &str = "template";

/// The fuel that all templates of a document may still use.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    /// The budget for all templates of a document. It is enough for ten million references of a few expressions, which
    /// take a minute or two.
    pub const ALL: u64 = 6 << 27;

    pub fn new(fuel: u64) -> Self {
        Self(fuel)
    }

    /// Uses some.
    ///
    /// # Errors
    /// If it is exceeded.
    pub fn take(&mut self, fuel: u64) -> Result<()> {
        self.0 = self.0.checked_sub(fuel).ok_or_else(|| {
            Error::runtime("expected templates that make less text than this; write the references without templates")
        })?;
        Ok(())
    }
}

/// Whether a text has expressions.
pub(super) fn has_expressions(text: &str) -> bool {
    text.contains("{{")
}

/// The names that expressions may use: text, and functions that make text from arguments.
#[derive(Clone, Debug)]
pub(super) struct Names(Environment<'static>);

impl Names {
    /// Makes names from text. Text without expressions stands for itself. With expressions it is a function and waits
    /// for arguments.
    ///
    /// # Errors
    /// If a text with expressions isn't a template.
    pub fn new(templates: BTreeMap<String, String>) -> Result<Self> {
        let (functions, plain): (Vec<_>, Vec<_>) = templates.into_iter().partition(|(_, text)| has_expressions(text));
        let mut inner = environment();
        for (name, text) in &functions {
            add(&mut inner, name.clone(), text)?;
        }
        let (inner, mut names) = (Arc::new(inner), environment());
        for (name, _) in functions {
            let function = Function { templates: Arc::clone(&inner), name: name.clone() };
            names.add_global(name, Value::from_object(function));
        }
        plain.into_iter().for_each(|(name, text)| names.add_global(name, text));
        Ok(Self(names))
    }
}

/// A template, ready to be rendered.
#[derive(Debug)]
pub(super) struct Template(Environment<'static>);

impl Template {
    /// Parses `text`, in which expressions may use `names`. As in Jinja, one line end at its end is dropped, and other
    /// line ends become `\n`.
    ///
    /// # Errors
    /// If the text is too long, or isn't a template.
    pub fn parse(text: &str, names: &Names) -> Result<Self> {
        let mut environment = names.0.clone();
        add(&mut environment, ONLY.to_owned(), text)?;
        Ok(Self(environment))
    }

    /// Returns the text with the values of its expressions in their places. `values` has further names.
    ///
    /// # Errors
    /// If a name is unknown, an operand isn't a number, the text is too long, or the budget is exceeded.
    pub fn render(&self, values: Value, budget: &mut Budget) -> Result<String> {
        let rendered = render(&self.0, ONLY, values.clone());
        let (text, fuel) = rendered.map_err(|e| self.explained(&e, &values))?;
        // Copying the environment and finding the names takes about as long as some steps.
        budget.take(fuel + 8)?;
        Ok(text)
    }

    fn explained(&self, e: &minijinja::Error, values: &Value) -> Error {
        match e.kind() {
            ErrorKind::UndefinedError | ErrorKind::UnknownFunction => {
                let known = |name: &String| {
                    self.0.globals().any(|(global, _)| global == name)
                        || values.get_attr(name).is_ok_and(|v| !v.is_undefined())
                };
                let used = self.0.get_template(ONLY).map(|template| template.undeclared_variables(false));
                let mut unknown: Vec<_> = used.unwrap_or_default().into_iter().filter(|name| !known(name)).collect();
                unknown.sort();
                let found = match &unknown[..] {
                    // It is an argument of a function.
                    [] => e.to_string(),
                    names => names.iter().map(|name| shown(name)).collect::<Vec<_>>().join(", "),
                };
                Error::runtime(format!("expected the name of a template or dimension, but found {found}"))
            }
            ErrorKind::OutOfFuel => Error::runtime(
                "expected a template that makes less text, or takes fewer steps, than this; write the reference without \
                 templates",
            ),
            _ => Error::runtime(format!("expected a template that can be rendered, but found another: {e}")),
        }
    }
}

/// A template as a function.
#[derive(Debug)]
struct Function {
    templates: Arc<Environment<'static>>,
    name: String,
}

impl Object for Function {
    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, minijinja::Error> {
        let failed = |what: String| minijinja::Error::new(ErrorKind::InvalidOperation, what);
        let (arguments,): (Kwargs,) = from_args(args)
            .map_err(|_| failed(format!("expected arguments by name, as in {}(x='text')", self.name)))?;
        let mut values = BTreeMap::new();
        for name in arguments.args() {
            let value: Value = arguments.get(name)?;
            // A function as an argument could call itself without end.
            if !matches!(value.kind(), ValueKind::String | ValueKind::Number) {
                return Err(failed(format!("expected text or a number as {name}, but found {}", value.kind())));
            }
            values.insert(name, value);
        }
        // As in fsspec, a template sees its arguments alone.
        let (text, fuel) = render(&self.templates, &self.name, Value::from(values)).map_err(|e| match e.kind() {
            ErrorKind::UndefinedError | ErrorKind::UnknownFunction => {
                let name = shown(&self.name);
                failed(format!(
                    "expected the name of a template or argument in template {name}, but found another: {e}"
                ))
            }
            _ => e,
        })?;
        state.consume_fuel(fuel)?;
        Ok(text.into())
    }
}

/// Returns an environment that knows nothing but the filter `format`.
fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_fuel(Some(FUEL));
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(write);
    environment.add_filter("format", format);
    environment
}

/// Adds a template to an environment.
fn add(environment: &mut Environment<'static>, name: String, text: &str) -> Result<()> {
    let wrong = |what: &str| Error::runtime(format!("template {}: {what}", shown(text)));
    if text.len() > MAX_TEXT {
        return Err(wrong(&format!("expected at most {MAX_TEXT} bytes, but found {}", text.len())));
    }
    expressions::check(text).map_err(|what| wrong(&what))?;
    let lines =
        if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n").into() } else { Cow::Borrowed(text) };
    let source = expressions::as_filter(&lines).into_owned();
    environment
        .add_template_owned(name, source)
        .map_err(|e| wrong(&format!("expected a template of Jinja, but found another: {e}")))
}

/// Renders a template. Returns the text and the used fuel.
fn render(environment: &Environment<'static>, name: &str, values: Value) -> Result<(String, u64), minijinja::Error> {
    let rendered = environment.get_template(name)?.render_captured(values)?;
    let fuel = rendered.state().fuel_levels().map_or(0, |(used, _)| used);
    let text = rendered.into_output();
    if text.len() > MAX_URL {
        let what = format!("expected templates to make at most {MAX_URL} bytes, but found more");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, what));
    }
    Ok((text, fuel))
}

/// Writes the value of an expression.
fn write(out: &mut Output, _: &mut State<'_, '_>, value: &Value) -> Result<(), minijinja::Error> {
    let failed = |what: String| Err(minijinja::Error::new(ErrorKind::InvalidOperation, what));
    match (value.as_str(), value.kind()) {
        (Some(text), _) => Ok(out.write_str(text)?),
        (None, ValueKind::Number) if value.is_integer() => Ok(write!(out, "{value}")?),
        (None, ValueKind::Undefined) => Err(ErrorKind::UndefinedError.into()),
        (None, kind) => match value.downcast_object_ref::<Function>() {
            Some(Function { name, .. }) => {
                failed(format!("expected arguments for template {}, as in {name}(x='text')", shown(name)))
            }
            None => failed(format!("expected text or an integer, but found {kind}")),
        },
    }
}

/// Jinja's filter. As in Python, all values must be used.
fn format(state: &mut State, text: &Value, values: Rest<ValueOrKwargs>) -> Result<Value, minijinja::Error> {
    let formats = text.as_str().map(|text| text.replace("%%", "").matches('%').count());
    if formats != Some(values.len()) {
        let what = "expected as many formats such as %03d as values, but found others";
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, what));
    }
    filters::format(state, text, values)
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{:?}...", &text[..at]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests;
