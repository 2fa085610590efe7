//! References as JSON: version 0, an object of keys, and version 1, which has templates and generators too.
//!
//! A value is text (base64 after `base64:`), a metadata document as an object, `[URL]` for a whole file, or
//! `[URL, offset, length]`. The text is walked twice, since templates may come after the references. It never becomes a
//! tree of values, which would take many times its memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use minijinja::Value;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::generator::{generate, names};
use super::index::Index;
use super::template::{Budget, Names, Template, has_expressions};
use super::url::Resolver;
use dali_zarr_base::base64;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::quote_bare_tokens;

/// Most bytes of each of the members `templates` and `gen`.
const MAX_PART: usize = 16 << 20;
/// Prefix of inline values in base64.
const BASE64: &[u8] = b"base64:";

/// Reads the references of a document.
///
/// # Errors
/// If it isn't a document of references, or its references take too much memory.
pub(super) fn parse(bytes: &[u8], resolver: Resolver) -> Result<Index> {
    let parsed = parse_within(bytes, resolver.clone(), Budget::new(Budget::ALL));
    match parsed.is_err().then(|| quote_bare_tokens(bytes)).flatten() {
        // Metadata documents that are objects in it may have NaN, which isn't JSON.
        Some(quoted) => parse_within(&quoted, resolver, Budget::new(Budget::ALL)),
        None => parsed,
    }
}

fn parse_within(bytes: &[u8], resolver: Resolver, budget: Budget) -> Result<Index> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        Error::runtime(format!("expected references as JSON, but found bytes that aren't UTF-8 at {}", e.valid_up_to()))
    })?;
    let (mut version, mut templates, mut generators, mut refs) = (None, None, None, None);
    members(text, |key, value| {
        match key {
            "version" => version = Some(value),
            "templates" => templates = Some(value),
            "gen" => generators = Some(value),
            "refs" => refs = Some(value),
            _ => {}
        }
        Ok(())
    })?;
    let mut builder = Builder { index: Index::default(), names: None, budget, resolver, last: None };
    match version.map(RawValue::get) {
        None => members(text, |key, value| builder.add(key, value))?,
        Some("1") => {
            let templates = templates.map(|t| part("templates", t)).transpose()?;
            let templates = templates.filter(|t| t.as_object().is_none_or(|t| !t.is_empty()));
            builder.names = templates.map(|templates| names(&templates)).transpose()?;
            if let Some(refs) = refs {
                members(refs.get(), |key, value| builder.add(key, value))?;
            }
            if let Some(generators) = generators {
                builder.generate(&part("gen", generators)?)?;
            }
        }
        Some(other) => {
            return Err(Error::runtime(format!("expected version 1 of references, or none, but found {}", cut(other))));
        }
    }
    builder.index.finish();
    Ok(builder.index)
}

/// Returns the bytes of an inline value, decoded if it is base64.
///
/// # Errors
/// If it claims to be base64, but isn't.
pub(super) fn inline(value: &[u8]) -> Result<Cow<'_, [u8]>> {
    let Some(encoded) = value.strip_prefix(BASE64) else { return Ok(Cow::Borrowed(value)) };
    let wrong =
        || Error::damaged("expected base64 after base64:, but found something else; the references are damaged");
    base64::decode(encoded).map(Cow::Owned).map_err(|_| wrong())
}

struct Builder {
    index: Index,
    /// The templates; `None` if there are none. Then URLs are taken literally.
    names: Option<Names>,
    budget: Budget,
    resolver: Resolver,
    /// The URL of the last reference, as the document has it, and its number.
    last: Option<(String, u32)>,
}

impl Builder {
    fn add(&mut self, key: &str, value: &RawValue) -> Result<()> {
        self.add_value(key, value.get()).map_err(|e| e.within(format!("key {:?}", cut(key))))
    }

    fn add_value(&mut self, key: &str, value: &str) -> Result<()> {
        match value.as_bytes().first() {
            Some(b'{') => self.add_inline(key, value.as_bytes()),
            Some(b'"') => {
                // Text without escapes isn't copied. Long values have no escapes.
                let text = match value[1..value.len() - 1].contains('\\') {
                    false => Cow::Borrowed(&value[1..value.len() - 1]),
                    true => Cow::Owned(serde_json::from_str::<String>(value).map_err(|_| unread(value))?),
                };
                self.add_inline(key, &inline(text.as_bytes())?)
            }
            _ => match serde_json::from_str::<(String, u64, u64)>(value) {
                Ok((url, offset, len)) => self.add_file(key, url, Some((offset, len)), true),
                Err(_) => match serde_json::from_str::<(String,)>(value) {
                    Ok((url,)) => self.add_file(key, url, None, true),
                    Err(_) => Err(unread(value)),
                },
            },
        }
    }

    fn add_inline(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let i = self.index.push(key)?;
        let place = self.index.targets().bytes(value);
        self.index.targets().set_inline(i, &place);
        self.index.targets().check()
    }

    /// Adds a reference to a file. If `template` is true, its URL may have expressions.
    fn add_file(&mut self, key: &str, url: String, range: Option<(u64, u64)>, template: bool) -> Result<()> {
        let number = match &self.last {
            Some((last, number)) if *last == url => *number,
            _ => {
                let names = self.names.as_ref().filter(|_| template && has_expressions(&url));
                let rendered = match names {
                    Some(names) => Cow::Owned(Template::parse(&url, names)?.render(Value::from(()), &mut self.budget)?),
                    None => Cow::Borrowed(&*url),
                };
                let number = self.index.targets().url(&self.resolver.resolve(&rendered)?)?;
                self.last = Some((url, number));
                number
            }
        };
        let i = self.index.push(key)?;
        self.index.targets().set_file(i, number, range)
    }

    fn generate(&mut self, generators: &Json) -> Result<()> {
        let names = match self.names.take() {
            Some(names) => names,
            None => Names::new(BTreeMap::new())?,
        };
        let mut budget = std::mem::replace(&mut self.budget, Budget::new(0));
        self.last = None;
        generate(generators, &names, &mut budget, |key, url, range| self.add_file(key, url.to_owned(), range, false))
    }
}

/// Parses a member of the document that must be small.
fn part(name: &str, value: &RawValue) -> Result<Json> {
    if value.get().len() > MAX_PART {
        return Err(Error::runtime(format!(
            "{name}: expected at most {MAX_PART} bytes, but found {}",
            value.get().len()
        )));
    }
    serde_json::from_str(value.get()).map_err(|e| not_json(&e))
}

fn unread(value: &str) -> Error {
    Error::runtime(format!(
        "expected a reference (text, a metadata document, [URL] or [URL, offset, length]), but found {}",
        cut(value)
    ))
}

fn not_json(e: &serde_json::Error) -> Error {
    Error::runtime(format!(
        "expected references as JSON, but found other text at line {}, column {}",
        e.line(),
        e.column()
    ))
}

/// Returns the beginning of a text, for messages.
fn cut(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// Parses `text` as a JSON object, and calls `member` for each of its members, in their order.
///
/// # Errors
/// If `text` isn't a JSON object; and the first error of `member`, which isn't called again.
fn members<'a>(text: &'a str, member: impl FnMut(&str, &'a RawValue) -> Result<()>) -> Result<()> {
    let mut failed = None;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer.deserialize_map(Members { member, failed: &mut failed });
    let read = read.and_then(|()| deserializer.end());
    failed.map_or_else(|| read.map_err(|e| not_json(&e)), Err)
}

struct Members<'f, F> {
    member: F,
    failed: &'f mut Option<Error>,
}

impl<'a, F: FnMut(&str, &'a RawValue) -> Result<()>> Visitor<'a> for Members<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'a, str>>()? {
            let value: &'a RawValue = map.next_value()?;
            if let Err(e) = (self.member)(&key, value) {
                *self.failed = Some(e);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::targets::Target;
    use super::*;

    fn read(text: &str) -> Result<Index> {
        parse(text.as_bytes(), Resolver::at("/data/dir"))
    }

    fn shown(index: &Index, key: &str) -> String {
        match index.find(key) {
            None => "none".into(),
            Some(Target::Inline(bytes)) => format!("{:?}", String::from_utf8_lossy(bytes)),
            Some(Target::Whole(url)) => url.to_string(),
            Some(Target::Range { url, offset, len }) => format!("{url} {offset} {len}"),
        }
    }

    #[test]
    fn version_0() {
        let index = read(
            r#" {".zgroup": "{\"zarr_format\": 2}", "a/.zarray": {"shape": [2], "chunks": [1]}, "a/0": ["s3:\/\/b\/f.nc", 5, 7],
                "a/1": ["rel/f.nc"], "a/2": ["/abs/{{f}}", 0, 0], "a/3": "base64:AAEC/w==", "a/4": "plain text \u00e9", "a/5": ""} "#,
        )
        .unwrap();
        for (key, expected) in [
            (".zgroup", r#""{\"zarr_format\": 2}""#),
            ("a/.zarray", r#""{\"shape\": [2], \"chunks\": [1]}""#),
            ("a/0", "s3://b/f.nc 5 7"),
            ("a/1", "file:///data/dir/rel/f.nc"),
            ("a/2", "file:///abs/{{f}} 0 0"),
            ("a/4", "\"plain text \u{e9}\""),
            ("a/5", "\"\""),
            ("a/6", "none"),
        ] {
            assert_eq!(shown(&index, key), expected, "{key}");
        }
        assert_eq!(index.find("a/3"), Some(Target::Inline(&[0, 1, 2, 255])));
        let index =
            read(r#"{"a/.zarray": {"fill_value": NaN, "x": "NaN"}, "b": "NaN", "c": "base64:AA\nEC /w=="}"#).unwrap();
        let Some(Target::Inline(document)) = index.find("a/.zarray") else { panic!("not inline") };
        let document = dali_zarr_base::json::parse(document).unwrap();
        assert!(dali_zarr_base::json::bare_float(document["fill_value"].as_str().unwrap()).unwrap().is_nan());
        assert_eq!((document["x"].as_str(), shown(&index, "b").as_str()), (Some("NaN"), "\"NaN\""));
        assert_eq!(index.find("c"), Some(Target::Inline(&[0, 1, 2, 255])));
    }

    #[test]
    fn version_1_with_templates_and_generators() {
        // The example of the specification, with templates after the references, which JSON allows.
        let index = read(
            r#"{"version": 1, "gen": [{"key": "gen_key{{i}}", "url": "http://{{u}}_{{i}}", "offset": "{{(i + 1) * 1000}}",
                "length": "1000", "dimensions": {"i": {"stop": 5}}},
                {"key": "key4", "url": "{{f(c='g')}}{{n}}{{i}}", "dimensions": {"i": {"start": 5, "stop": 0, "step": -3}, "n": ["a", 7]}}],
                "refs": {"key0": "data", "key1": ["http://target_url", 10000, 100], "key2": ["http://{{u}}", 10000, 100],
                "key3": ["http://{{ f(c='text') }}", 10000, 100], "key4": ["http://target_url"]},
                "templates": {"u": "server.domain/path", "f": "s3://{{c}}/"}, "other": [1, {}]}"#,
        )
        .unwrap();
        for (key, expected) in [
            ("key0", "\"data\""),
            ("key1", "http://target_url 10000 100"),
            ("key2", "http://server.domain/path 10000 100"),
            ("key3", "http://s3://text/ 10000 100"),
            ("gen_key0", "http://server.domain/path_0 1000 1000"),
            ("gen_key4", "http://server.domain/path_4 5000 1000"),
            ("gen_key5", "none"),
            // Several references have this key. The last one counts, which a generator made.
            ("key4", "s3://g/72"),
        ] {
            assert_eq!(shown(&index, key), expected, "{key}");
        }
        assert_eq!(index.len(), 10);
        let none = read(r#"{"version": 1, "refs": {"a": ["s3://b/{{x}}"]}, "templates": {}}"#).unwrap();
        assert_eq!(shown(&none, "a"), "s3://b/{{x}}", "without templates URLs are what they are");
    }

    #[test]
    fn other_documents_are_errors() {
        let generator = |text: &str| format!(r#"{{"version": 1, "templates": {{"u": "x"}}, "gen": [{{{text}}}]}}"#);
        let cycle =
            r#"{"version": 1, "templates": {"f": "{{g(c=c)}}", "g": "{{f(c=c)}}"}, "refs": {"a": ["{{f(c=1)}}"]}}"#;
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        for (text, words) in [
            ("", "as JSON"),
            ("[]", "as JSON"),
            ("{\"a\": ", "as JSON"),
            ("{} x", "line 1, column 4"),
            (r#"{"version": 2}"#, "version 1 of references, or none, but found 2"),
            (r#"{"version": 1, "refs": []}"#, "as JSON"),
            (r#"{"version": 1, "refs": {}, "templates": {"a": 1}}"#, "templates to be text"),
            (r#"{"a": 1}"#, "key \"a\": expected a reference"),
            (r#"{"a": null}"#, "expected a reference"),
            (r#"{"a": [null, 0, 1]}"#, "expected a reference"),
            (r#"{"a": []}"#, "expected a reference"),
            (r#"{"a": ["u", 1]}"#, "expected a reference"),
            (r#"{"a": ["u", 1, 2, 3]}"#, "expected a reference"),
            (r#"{"a": ["u", -1, 2]}"#, "expected a reference"),
            (r#"{"a": ["u", 1.5, 2]}"#, "expected a reference"),
            (r#"{"a": ["u", 18446744073709551615, 2]}"#, "a range within a file"),
            (r#"{"a": "base64:AAA"}"#, "expected base64"),
            (r#"{"a": "\ud800"}"#, "expected a reference"),
            (&deep, "expected a reference"),
            (cycle, "g is unknown"),
            (r#"{"version": 1, "templates": {"u": "x"}, "refs": {"a": ["{{v}}"]}}"#, "key \"a\": expected the name"),
            (&generator(r#""key": "k", "url": "u""#), "gen 0: expected an object \"dimensions\""),
            (&generator(r#""url": "u", "dimensions": {}"#), "a member \"key\""),
            (&generator(r#""key": "k", "url": "u", "offset": "0", "dimensions": {}"#), "both of offset and length"),
            (
                &generator(r#""key": "k", "url": "u", "offset": "-1", "length": "1", "dimensions": {}"#),
                "a number of bytes",
            ),
            (
                &generator(r#""key": "k", "url": "u", "dimensions": {"i": {"stop": 5, "step": 0}}"#),
                "start, stop and step",
            ),
            (&generator(r#""key": "k", "url": "u", "dimensions": {"i": {}}"#), "start, stop and step"),
            (&generator(r#""key": "k", "url": "u", "dimensions": {"i": [1.5]}"#), "lists of integers or text"),
            (
                &generator(r#""key": "k", "url": "u", "dimensions": {"i": {"stop": 16777217}}"#),
                "at most 16777216 references",
            ),
            (
                &generator(
                    r#""key": "k", "url": "u", "dimensions": {"i": {"start": -9223372036854775808, "stop": 9223372036854775807},
                        "j": {"stop": 9223372036854775807}}"#,
                ),
                "at most 16777216 references",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message().contains(words), "{}: {error}", cut(text));
        }
        assert!(parse(b"\xff{}", Resolver::at("/")).is_err());
    }

    #[test]
    fn generators_that_take_long_end() {
        // Each reference takes 60 kB of text to make, and none of it remains.
        let text = format!(
            r#"{{"version": 1, "templates": {{"f": "{{{{1}}}}"}}, "gen": [{{"key": "k", "url": "{{{{f(c='{}')}}}}",
                "dimensions": {{"i": {{"stop": 16777216}}}}}}]}}"#,
            "x".repeat(60_000)
        );
        let error = parse_within(text.as_bytes(), Resolver::at("/"), Budget::new(1 << 20)).unwrap_err();
        assert!(error.message().contains("less text"), "{error}");
    }
}
