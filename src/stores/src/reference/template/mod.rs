//! Templates of references: text with expressions in `{{ }}`. Jinja has many kinds of expressions, and references use
//! few.
//!
//! Supported are integers, text in quotes, names, `+ - * // % **`, `~`, parentheses, `'%03d' % name`, and calls of
//! templates with arguments by name. Anything else is an error, and isn't taken as text: what Jinja would make of it is
//! unknown here. Every value that is made counts against a [`Budget`], so no template can take unlimited memory or
//! time.
//!
//! This file splits a template into text and expressions. [`parser`] reads an expression, [`expression`] computes it.

mod expression;
mod parser;

use super::targets::MAX_URL;
use dali_zarr_base::error::{Error, Result};
use expression::Expr;
pub(super) use expression::Value;
use parser::Parser;

/// Most levels of nested expressions, and of nested calls of templates.
const MAX_DEPTH: usize = 32;
/// Most bytes of a template.
const MAX_TEXT: usize = 64 << 10;

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

/// A part of a template.
#[derive(Clone, Debug)]
enum TemplatePart {
    Text(String),
    Expr(Expr),
}

/// A template, ready to be rendered.
#[derive(Clone, Debug)]
pub(super) struct Template(Vec<TemplatePart>);

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
            pieces.push(TemplatePart::Expr(parser.all().map_err(|what| wrong(&what))?));
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
                TemplatePart::Text(text) => out.push_str(text),
                TemplatePart::Expr(expr) => match expr.value(names, budget, depth)? {
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
fn literal(text: &str) -> Result<Option<TemplatePart>, &'static str> {
    if text.contains("{%") || text.contains("{#") {
        return Err("expected expressions in {{ }} only, but found {% or {#, which aren't read");
    }
    Ok((!text.is_empty()).then(|| TemplatePart::Text(text.to_owned())))
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((at, _)) => format!("{:?}...", &text[..at]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestNames;

    impl Names for TestNames {
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
        Template::parse(text)?.render(&TestNames, &mut Budget::new(1 << 20))
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
        let error = many.render(&TestNames, &mut Budget::new(100_000)).unwrap_err();
        assert!(error.message().contains("less text"), "{error}");
    }
}
