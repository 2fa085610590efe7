//! How messages show paths and URLs: without secrets, and on one line.

use std::borrow::Cow;
use std::path::Path;

use url::Url;

use crate::service::Service;

/// Returns a text on one line: control characters are escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// Returns a text without control characters except ends of lines. Names in messages may have any.
pub(super) fn escaped(text: String) -> String {
    if !text.contains(|c: char| c.is_control() && c != '\n') {
        return text;
    }
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Returns a path or a URL on one line, with its secrets hidden.
pub fn shown(location: &str) -> String {
    printable(&hidden(location)).into_owned()
}

/// Returns a path or a URL with its secrets hidden: a user and a password, a query and a fragment. Text that looks like
/// a user and a password stays if it is the name of a file of this machine.
pub(super) fn hidden(location: &str) -> String {
    match location.split_once("://") {
        None => path(location),
        // A URL in a URL, as in reference://s3://bucket, or a path.
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("reference") => format!("{scheme}://{}", hidden(rest)),
        Some((scheme, rest)) => match scheme.rsplit_once("::") {
            Some((links, scheme)) => format!("{links}::{}", url(scheme, rest)),
            None => url(scheme, rest),
        },
    }
}

/// Whether a colon comes before an at sign, as in a user and a password. Returns the part between the slash before the
/// colon and the last at sign.
fn credentials(text: &str) -> Option<std::ops::Range<usize>> {
    let end = text.rfind('@')?;
    let colon = text[..end].find(':')?;
    Some(text[..colon].rfind('/').map_or(0, |slash| slash + 1)..end)
}

fn path(path: &str) -> String {
    match credentials(path).filter(|_| std::fs::symlink_metadata(Path::new(path)).is_err()) {
        Some(secret) => format!("{}...{}", &path[..secret.start], &path[secret.end..]),
        None => path.to_owned(),
    }
}

fn url(scheme: &str, rest: &str) -> String {
    // The parser of URLs drops some control characters.
    let encoded = |c: char| if c.is_ascii_control() { format!("%{:02X}", c as u32) } else { c.into() };
    let location: String = format!("{scheme}://{rest}").chars().map(encoded).collect();
    let Ok(mut url) = Url::parse(&location) else {
        return match rest.rfind('@') {
            Some(end) => format!("{scheme}://...{}", &rest[end..]),
            None => location.split(['?', '#']).next().unwrap_or_default().to_owned(),
        };
    };
    if url.scheme() == "file" {
        // It has neither a user nor a query: all of it is a path.
        return location;
    }
    // In Azure's URLs the user is the container.
    let is_container = Service::of(url.scheme()).is_some_and(Service::user_is_container) && url.password().is_none();
    if url.password().is_some() {
        let _ = url.set_password(Some("..."));
    }
    if !url.username().is_empty() && !is_container {
        let _ = url.set_username("...");
    }
    if url.fragment().is_some() {
        url.set_fragment(Some("..."));
    }
    if url.query().is_some() {
        url.set_query(Some("..."));
    }
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_in_all_forms() {
        for (given, expected) in [
            ("s3://me:secret@bucket/a", "s3://...:...@bucket/a"),
            ("https://host/a?X-Amz-Signature=secret#secret", "https://host/a?...#..."),
            ("abfss://container@account/a", "abfss://container@account/a"),
            ("abfss://me:secret@account/a", "abfss://...:...@account/a"),
            ("file://me:secret@host/x", "file://...@host/x"),
            ("FILE://me:se/cret@host/x", "FILE://...@host/x"),
            ("s3://me:se/cret@bucket/a", "s3://...@bucket/a"),
            ("me:secret@host/x", "...@host/x"),
            ("me:se/cret@host/x", "...@host/x"),
            ("/no/such/me:secret@host/x", "/no/such/...@host/x"),
            ("reference://me:secret@host/x", "reference://...@host/x"),
            ("reference://s3://me:secret@host/x.json", "reference://s3://...:...@host/x.json"),
            ("reference::me:secret@host/x", "...@host/x"),
            ("simplecache::s3://me:secret@host/x", "simplecache::s3://...:...@host/x"),
            ("ftp://me:secret@host/x", "ftp://...:...@host/x"),
            ("https://host/a\tb\n", "https://host/a%09b%0A"),
        ] {
            assert_eq!(shown(given), expected, "{given}");
            assert_eq!(shown(expected), expected, "what is shown stays");
        }
        for plain in
            ["/data/a?b#c.zarr", "a@b.zarr", "/data/12:30.zarr", "file:///a?b", "s3://bucket/a@b", "reference:///a"]
        {
            assert_eq!(shown(plain), plain);
        }
        let folder = tempfile::tempdir().unwrap();
        let there = folder.path().join("12:30@4.zarr");
        assert!(!shown(there.to_str().unwrap()).contains("12:30"));
        std::fs::create_dir(&there).unwrap();
        assert_eq!(shown(there.to_str().unwrap()), there.to_str().unwrap());
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\tb\n\u{1}\u{7f}\u{85}ü"), "a\\tb\\n\\u{1}\\u{7f}\\u{85}ü");
        assert_eq!(shown("/no/such/a\tb"), "/no/such/a\\tb");
        let error = crate::error::Error::value("a\tb\nc").within("d\u{1}");
        assert_eq!(error.message(), "d\\u{1}: a\\tb\nc");
    }
}
