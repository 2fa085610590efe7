//! Expressions of templates, and their values. Arithmetic and formats are those of Python.

use super::{Budget, MAX_DEPTH, Named, Names, shown};
use crate::reference::targets::MAX_URL;
use dali_zarr_base::error::{Error, Result};

/// The value of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reference) enum Value {
    Int(i128),
    Text(String),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(n) => write!(f, "{n}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    Value(Value),
    Name(String),
    Call(String, Vec<(String, Expr)>),
    Negative(Box<Expr>),
    Binary(Op, Box<(Expr, Expr)>),
}

/// An operator with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Concat,
}

impl Expr {
    /// Computes the value. `depth` counts the calls of templates around the expression.
    ///
    /// # Errors
    /// As [`Template::render`](super::Template::render).
    pub fn value(&self, names: &dyn Names, budget: &mut Budget, depth: usize) -> Result<Value> {
        let value = match self {
            Self::Value(value) => value.clone(),
            Self::Name(name) => match names.named(name) {
                Some(Named::Value(value)) => value.clone(),
                Some(Named::Function(_)) => {
                    return Err(Error::runtime(format!(
                        "expected arguments for template {name:?}, as in {name}(x='text')"
                    )));
                }
                None => return Err(unknown(name)),
            },
            Self::Call(name, arguments) => {
                let Some(Named::Function(template)) = names.named(name) else { return Err(unknown(name)) };
                if depth >= MAX_DEPTH {
                    return Err(Error::runtime("expected calls of templates that lie less deep in each other"));
                }
                let value = |(name, e): &(String, Self)| Ok((name.clone(), e.value(names, budget, depth)?));
                let arguments = arguments.iter().map(value).collect::<Result<Vec<_>>>()?;
                // As in fsspec, a template sees its arguments alone: it can't call others, nor itself.
                Value::Text(template.render_at(&arguments, budget, depth + 1)?)
            }
            Self::Negative(of) => match of.value(names, budget, depth)? {
                Value::Int(n) => Value::Int(n.checked_neg().ok_or_else(large)?),
                Value::Text(text) => return Err(no_number("-", &text)),
            },
            Self::Binary(op, of) => {
                let (a, b) = (of.0.value(names, budget, depth)?, of.1.value(names, budget, depth)?);
                binary(*op, a, b)?
            }
        };
        if let Value::Text(text) = &value
            && text.len() > MAX_URL
        {
            return Err(Error::runtime(format!(
                "expected text of at most {MAX_URL} bytes in templates, but found more"
            )));
        }
        budget.take(if let Value::Text(text) = &value { text.len() } else { 0 })?;
        Ok(value)
    }
}

fn unknown(name: &str) -> Error {
    Error::runtime(format!("expected the name of a template or dimension, but found {}", shown(name)))
}

fn large() -> Error {
    Error::damaged("expected smaller numbers in templates; the references are damaged")
}

fn no_number(op: &str, text: &str) -> Error {
    Error::runtime(format!("expected a number for {op} in a template, but found {}", shown(text)))
}

fn binary(op: Op, a: Value, b: Value) -> Result<Value> {
    let (a, b) = match (op, a, b) {
        (Op::Concat, a, b) => return Ok(Value::Text(format!("{a}{b}"))),
        (Op::Add, Value::Text(a), Value::Text(b)) => return Ok(Value::Text(a + &b)),
        (Op::Mod, Value::Text(format), value) => return formatted(&format, &value).map(Value::Text),
        (_, Value::Int(a), Value::Int(b)) => (a, b),
        (_, Value::Text(text), _) | (_, _, Value::Text(text)) => return Err(no_number("arithmetic", &text)),
    };
    if matches!(op, Op::Div | Op::Mod) && b == 0 {
        return Err(Error::runtime("expected a divisor in a template, but found 0"));
    }
    let down = matches!(op, Op::Div | Op::Mod) && a.checked_rem(b).is_some_and(|r| r != 0 && (r < 0) != (b < 0));
    let n = match op {
        Op::Add => a.checked_add(b),
        Op::Sub => a.checked_sub(b),
        Op::Mul => a.checked_mul(b),
        // As in Python: the quotient is rounded towards minus infinity, and the remainder has the sign of the divisor.
        Op::Div => a.checked_div(b).map(|q| if down { q - 1 } else { q }),
        Op::Mod => a.checked_rem(b).map(|r| if down { r + b } else { r }),
        Op::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        Op::Concat => None,
    };
    n.map(Value::Int).ok_or_else(large)
}

/// Returns Python's `format % value`, for one value as a decimal number or text.
fn formatted(format: &str, value: &Value) -> Result<String> {
    let wrong = || {
        Error::runtime(format!(
            "expected one of %d, %03d (any width) and %s in the format {} of a template, and %% for a percent sign",
            shown(format)
        ))
    };
    let mut out = String::new();
    let mut used = false;
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let zeros = rest.starts_with('0');
        let width: usize = if digits == 0 { 0 } else { rest[..digits].parse().map_err(|_| wrong())? };
        let kind = rest[digits..].chars().next().ok_or_else(wrong)?;
        rest = &rest[digits + kind.len_utf8()..];
        if std::mem::replace(&mut used, true) || width > MAX_URL {
            return Err(wrong());
        }
        match (kind, value) {
            ('d' | 'i', Value::Int(n)) if zeros => out.push_str(&format!("{n:0width$}")),
            ('d' | 'i' | 's', Value::Int(n)) => out.push_str(&format!("{n:>width$}")),
            ('s', Value::Text(text)) => out.push_str(&format!("{text:>width$}")),
            _ => return Err(wrong()),
        }
    }
    out.push_str(rest);
    if used { Ok(out) } else { Err(wrong()) }
}
