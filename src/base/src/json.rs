//! JSON as Python writes it, with bare `NaN` and `Infinity`.

use std::fmt::Display;

use serde::de::{self, Unexpected};
use serde_json::Value;

use crate::error::{Error, Result};

/// Marks a bare token (`NaN`, `Infinity`) that became a string, so that it can't be confused with a string of the same
/// letters.
const BARE: char = '\u{0}';

/// Parses JSON. It may begin with a byte order mark. Bare tokens become strings that [`bare_float`] understands.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let first = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(e) => e,
    };
    let wrong = |e: serde_json::Error| match bytes {
        [] => Error::value("expected JSON, but found an empty document; it was not written completely"),
        _ => Error::value(format!("expected JSON, but found {}: {e}", described(bytes))),
    };
    let Some(quoted) = quote_bare_tokens(bytes) else { return Err(wrong(first)) };
    serde_json::from_slice(&quoted).map_err(wrong)
}

/// Describes what isn't JSON by its first words, if it is text. Servers answer with pages that are meant for people.
fn described(bytes: &[u8]) -> String {
    const MAX_BYTES: usize = 400;
    const MAX_CHARS: usize = 60;
    let begin = &bytes[..bytes.len().min(MAX_BYTES)];
    // The end may cut a character in two.
    let text = match std::str::from_utf8(begin) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => std::str::from_utf8(&begin[..e.valid_up_to()]).unwrap_or_default(),
        Err(_) => "",
    };
    if text.is_empty() || text.contains(|c: char| c.is_control() && !c.is_whitespace()) {
        return "bytes that aren't".to_owned();
    }
    let words: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_CHARS).collect();
    if words.starts_with('<') {
        return format!("a page in HTML or XML that begins with {words:?} (does the server ask for a login?)");
    }
    format!("other text, which begins with {words:?}")
}

/// Returns the float of a bare `NaN`, `Infinity` or `-Infinity`. `None` for other strings.
pub fn bare_float(text: &str) -> Option<f64> {
    named_float(text.strip_prefix(BARE)?)
}

/// Returns the float that Zarr calls `NaN`, `Infinity` or `-Infinity`, quoted or bare. `None` for other strings.
pub(crate) fn named_float(text: &str) -> Option<f64> {
    Some(match text.strip_prefix(BARE).unwrap_or(text) {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        "-Infinity" => f64::NEG_INFINITY,
        _ => return None,
    })
}

/// Returns the document with bare tokens as strings; `None` if it has no bare tokens.
pub fn quote_bare_tokens(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len() + 64);
    let mut found = false;
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'"' {
            let start = i;
            i += 1;
            while i < bytes.len() && bytes[i] != b'"' {
                i += 1 + usize::from(bytes[i] == b'\\');
            }
            i = (i + 1).min(bytes.len());
            out.extend_from_slice(&bytes[start..i]);
            continue;
        }
        let token = [&b"NaN"[..], b"-Infinity", b"Infinity"].into_iter().find(|t| bytes[i..].starts_with(t));
        if let Some(token) = token {
            out.extend_from_slice(b"\"\\u0000");
            out.extend_from_slice(token);
            out.push(b'"');
            i += token.len();
            found = true;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    found.then_some(out)
}

/// Returns the JSON of a value as Python reads it, with bare `NaN` and `Infinity`.
pub fn with_bare_tokens(value: &Value) -> String {
    let mut text = value.to_string();
    for token in ["NaN", "Infinity", "-Infinity"] {
        text = text.replace(&format!("\"\\u0000{token}\""), token);
    }
    text
}

/// Returns a value as text for messages: its JSON, cut after 120 characters.
pub fn shown(value: &Value) -> String {
    let text = with_bare_tokens(value);
    match text.char_indices().nth(120) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// So that serde can tell what is wrong with arguments.
impl de::Error for Error {
    fn custom<T: Display>(message: T) -> Self {
        Self::value(message.to_string())
    }

    // The message doesn't contain the value, because it may be a secret.
    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let found = match found {
            Unexpected::Unit => "null",
            Unexpected::Bool(_) => "true or false",
            Unexpected::Signed(_) => "a whole number",
            Unexpected::Unsigned(_) | Unexpected::Float(_) => "a number that isn't whole or is too large",
            Unexpected::Str(_) => "a string",
            Unexpected::Seq => "a list",
            Unexpected::Map => "an object",
            Unexpected::Other(text) => text,
            _ => "something else",
        };
        Self::dtype(format!("expected {expected}, but found {found}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_tokens_and_strings() {
        let value = parse(br#"{"a": NaN, "b": [-Infinity, Infinity], "c": "NaN \" NaN", "d": 0.1}"#).unwrap();
        assert!(bare_float(value["a"].as_str().unwrap()).unwrap().is_nan());
        assert_eq!(bare_float(value["b"][0].as_str().unwrap()), Some(f64::NEG_INFINITY));
        assert_eq!(value["c"], "NaN \" NaN");
        assert_eq!(bare_float("NaN"), None, "a string is not a bare token");
        assert_eq!(value["d"].as_f64(), Some(0.1));
        assert_eq!(shown(&value["b"]), "[-Infinity,Infinity]");
    }

    #[test]
    fn hostile_documents() {
        for text in [&b"{"[..], b"NaN NaN", b"\"abc\\", b"\"\\", b"{\"a\": NaN", b"\xff\xfe", b""] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse("[".repeat(100_000).as_bytes()).is_err(), "depth must not overflow the stack");
    }

    #[test]
    fn what_is_no_json_is_told_by_its_first_words() {
        for (bytes, expected) in [
            (
                &b"<!doctype html>\n<html><body>Sign \"in\"</body></html>"[..],
                "a page in HTML or XML that begins with \"<!doctype html> <html><body>Sign \\\"in\\\"</body></html>\" (does",
            ),
            (b"{\"a\": oops", "other text, which begins with \"{\\\"a\\\": oops\": "),
            (b"\x02\x01\x21\x04", "bytes that aren't: "),
            (b"abc\xff", "bytes that aren't: "),
            ("ü".repeat(300).as_bytes(), &format!("other text, which begins with \"{}\": ", "ü".repeat(60))),
        ] {
            let error = parse(bytes).unwrap_err();
            assert!(error.message().starts_with(&format!("expected JSON, but found {expected}")), "{error}");
        }
    }
}
