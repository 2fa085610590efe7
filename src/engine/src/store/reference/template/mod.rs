//! Templates of references: text with expressions in `{{ }}`. Jinja has many kinds of expressions, and references use
//! few.
//!
//! Supported are integers, text in quotes, names, `+ - * // % **`, `~`, parentheses, `'%03d' % name`, and calls of
//! templates with arguments by name. Anything else is an error, and isn't taken as text: what Jinja would make of it is
//! unknown here. Every value that is made counts against a [`Budget`], so no template can take unlimited memory or
//! time.

mod parser;

use super::targets::MAX_URL;
use crate::error::{Error, Result};
use parser::Parser;

/// Most levels of nested expressions, and of nested calls of templates.
const MAX_DEPTH: usize = 32;
/// Most bytes of a template.
const MAX_TEXT: usize = 64 << 10;

/// The value of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
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

/// What may still be spent on templates: a step costs 16, and each byte of text that it makes costs 1.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Budget {
    /// The budget for all templates of a document. It is enough for ten million references of a few expressions, which
    /// take a minute or so.
    pub const ALL: u64 = 6 << 30;

    pub fn new(steps: u64) -> Self {
        Self(steps)
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.checked_sub(16 + bytes as u64).ok_or_else(|| {
            Error::runtime("expected templates that make less text than this; write the references without templates")
        })?;
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expr {
    Value(Value),
    Name(String),
    Call(String, Vec<(String, Expr)>),
    Negative(Box<Expr>),
    Binary(Op, Box<(Expr, Expr)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Concat,
}

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Expr(Expr),
}

/// A template, ready to be rendered.
#[derive(Clone, Debug)]
pub(super) struct Template(Vec<Piece>);

/// What a name in an expression stands for.
pub(super) enum Named<'a> {
    Value(&'a Value),
    /// A template that is called with arguments.
    Function(&'a Template),
}

/// Looks up the names in expressions.
pub(super) trait Names {
    fn named(&self, name: &str) -> Option<Named<'_>>;
}

/// The arguments of a call.
impl Names for Vec<(String, Value)> {
    fn named(&self, name: &str) -> Option<Named<'_>> {
        self.iter().rev().find(|(n, _)| n == name).map(|(_, value)| Named::Value(value))
    }
}

/// Whether a text has expressions.
pub(super) fn has_expressions(text: &str) -> bool {
    text.contains("{{")
}

impl Template {
    /// Parses `text`. As in Jinja, one line end at its end is dropped, and other line ends become `\n`.
    ///
    /// # Errors
    /// If the text is too long, or has anything of Jinja that isn't read.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |what: &str| Error::runtime(format!("template {}: {what}", shown(text)));
        if text.len() > MAX_TEXT {
            return Err(wrong(&format!("expected at most {MAX_TEXT} bytes, but found {}", text.len())));
        }
        let text = if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text.to_owned() };
        let mut pieces = Vec::new();
        let mut rest = text.strip_suffix('\n').unwrap_or(&text);
        while let Some(at) = rest.find("{{") {
            pieces.extend(literal(&rest[..at]).map_err(wrong)?);
            let mut parser = Parser::new(&rest[at + 2..]);
            pieces.push(Piece::Expr(parser.all().map_err(|what| wrong(&what))?));
            rest = parser.rest();
        }
        pieces.extend(literal(rest).map_err(wrong)?);
        Ok(Self(pieces))
    }

    /// Returns the text with the values of its expressions in their places. `names` gives the values of names.
    ///
    /// # Errors
    /// If a name is unknown, an operand isn't a number, the text is too long, or the budget is exceeded.
    pub fn render(&self, names: &dyn Names, budget: &mut Budget) -> Result<String> {
        self.render_at(names, budget, 0)
    }

    fn render_at(&self, names: &dyn Names, budget: &mut Budget, depth: usize) -> Result<String> {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Expr(expr) => match expr.value(names, budget, depth)? {
                    Value::Text(text) => out.push_str(&text),
                    Value::Int(n) => out.push_str(&n.to_string()),
                },
            }
            if out.len() > MAX_URL {
                return Err(Error::runtime(format!(
                    "expected templates to make at most {MAX_URL} bytes, but found more"
                )));
            }
        }
        budget.take(out.len())?;
        Ok(out)
    }
}

/// Makes the piece for text outside of expressions; `None` if the text is empty.
fn literal(text: &str) -> Result<Option<Piece>, &'static str> {
    if text.contains("{%") || text.contains("{#") {
        return Err("expected expressions in {{ }} only, but found {% or {#, which aren't read");
    }
    Ok((!text.is_empty()).then(|| Piece::Text(text.to_owned())))
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{:?}...", &text[..at]),
        None => format!("{text:?}"),
    }
}

impl Expr {
    fn value(&self, names: &dyn Names, budget: &mut Budget, depth: usize) -> Result<Value> {
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Some_;

    impl Names for Some_ {
        fn named(&self, name: &str) -> Option<Named<'_>> {
            static FUNCTIONS: std::sync::LazyLock<[Template; 2]> =
                std::sync::LazyLock::new(|| ["<{{c}}>", "{{c}}{{c}}"].map(|t| Template::parse(t).unwrap()));
            static VALUES: std::sync::LazyLock<[Value; 2]> =
                std::sync::LazyLock::new(|| [Value::Int(7), Value::Text("server".into())]);
            match name {
                "i" => Some(Named::Value(&VALUES[0])),
                "u" => Some(Named::Value(&VALUES[1])),
                "f" => Some(Named::Function(&FUNCTIONS[0])),
                "twice" => Some(Named::Function(&FUNCTIONS[1])),
                _ => None,
            }
        }
    }

    fn rendered(text: &str) -> Result<String> {
        Template::parse(text)?.render(&Some_, &mut Budget::new(1 << 20))
    }

    #[test]
    fn as_jinja_renders_them() {
        for (text, expected) in [
            ("", ""),
            ("plain } { text", "plain } { text"),
            ("http://{{u}}_{{ i }}", "http://server_7"),
            ("{{(i + 1) * 1000}}", "8000"),
            ("{{ 2 + 3 * 4 }}", "14"),
            ("{{ 2 ** 3 ** 2 }}", "64"),
            ("{{ -2 ** 2 }}", "4"),
            ("{{ 10 - 3 - 2 }}", "5"),
            (
                "{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 // -2 }} {{ 7 % -3 }} {{ -7 // -2 }} {{ -6 % -3 }} {{ 6 // -3 }}",
                "-4 2 -4 -2 3 0 -2",
            ),
            ("{{ 1 + 2 ~ 3 }}", "error"),
            ("{{ i ~ '-' ~ u }}", "7-server"),
            ("{{ 'a' + \"b\" }}", "ab"),
            ("{{ '%03d' % i }}.{{ '%d%%' % i }}{{ '%3s' % 'x' }}", "007.7%  x"),
            ("{{f(c='text')}}", "<text>"),
            ("{{ f( c = f(c=i + 1), d=2 ) ~ '!' }}", "<<8>>!"),
            ("{{i}}{{i}}\u{e9}{{u}}", "77\u{e9}server"),
            ("{{'}}'}}", "}}"),
            ("a\r\n{{i}}\rb\n\n", "a\n7\nb\n"),
            ("{{i}}\r\n", "7"),
        ] {
            match rendered(text) {
                Ok(found) => assert_eq!(found, expected, "{text}"),
                Err(e) => assert_eq!(expected, "error", "{text}: {e}"),
            }
        }
    }

    #[test]
    fn what_is_not_read_is_an_error() {
        let deep = |n| format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n));
        assert_eq!(rendered(&deep(20)).unwrap(), "1");
        for (text, words) in [
            ("{{ i", "expected }}, but found the end"),
            ("{{", "expected a value, but found the end"),
            ("{{}}", "expected a value, but found }}"),
            ("{{ i i }}", "expected }}, but found i"),
            ("{{ i / 2 }}", "but found /"),
            ("{{ 1.5 }}", "expected an integer"),
            ("{{ nothing }}", "but found \"nothing\""),
            ("{{ f }}", "expected arguments for template \"f\""),
            ("{{ f() }}", "but found \"c\""),
            ("{{ u(c=1) }}", "but found \"u\""),
            ("{{ f('x') }}", "arguments by name"),
            ("{{ i | int }}", "but found '|'"),
            ("{{ range(1) }}", "by name"),
            ("{% for i in range(9) %}x{% endfor %}", "{% or {#"),
            ("{{-i}}", "space after {{"),
            ("{{ 'a' * 9 }}", "expected a number"),
            ("{{ -u }}", "expected a number"),
            ("{{ i // 0 }}", "divisor"),
            ("{{ 9 ** 9 ** 9 }}", "smaller numbers"),
            ("{{ 2 ** -1 }}", "smaller numbers"),
            ("{{ 999999999999999999999999999999999999999999 }}", "expected an integer"),
            ("{{ '%99999999999999999999d' % i }}", "expected one of %d"),
            ("{{ '%999999999d' % i }}", "expected one of %d"),
            ("{{ '%d%d' % i }}", "expected one of %d"),
            ("{{ '%' % i }}", "expected one of %d"),
            ("{{ 'a\\'b' }}", "backslashes"),
            (&deep(40), "shorter expression"),
            (&format!("{{{{ {}1 }}}}", "-".repeat(50_000)), "shorter expression"),
            (&format!("{{{{  {}1 }}}}", "- ".repeat(20_000)), "shorter expression"),
            (&format!("{{{{ 1{} }}}}", "+1".repeat(20_000)), "shorter expression"),
            (&"x".repeat(MAX_TEXT + 1), "at most 65536 bytes"),
        ] {
            let error = rendered(text).unwrap_err();
            assert!(error.message().contains(words), "{}: {error}", shown(text));
        }
    }

    #[test]
    fn text_that_doubles_and_calls_without_end_are_bounded() {
        let mut text = "'x'".to_owned();
        for _ in 0..25 {
            text = format!("twice(c={text})");
        }
        let error = rendered(&format!("{{{{ {text} }}}}")).unwrap_err();
        assert!(error.message().contains("at most 65536 bytes"), "{error}");
        let many = Template::parse(&"{{f(c=u)}}".repeat(6000)).unwrap();
        let error = many.render(&Some_, &mut Budget::new(100_000)).unwrap_err();
        assert!(error.message().contains("less text"), "{error}");
    }
}
