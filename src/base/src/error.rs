//! Errors as values: a code, a kind and a place that a program can match, a source, and a sentence that a person can
//! act on. No code of this project reads the sentence.

mod code;
mod shown;

pub use code::Code;
use shown::{escaped, hidden};
pub use shown::{printable, shown};

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The kind of an error: which Python exception DALI raises. [`Code`] says more precisely what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ErrorKind {
    /// An argument or the store's metadata is wrong: `ValueError` when the pipeline is built.
    Value = 1,
    /// An argument has the wrong type, or a data type can't be represented: `TypeError`.
    Type = 2,
    /// An index is outside its dimension: `IndexError`.
    Index = 3,
    /// Storage failed, data is corrupt, or a device failed: `RuntimeError` at the batch that needed it.
    Runtime = 4,
    /// The machine or the device lacks memory: `MemoryError`, when the pipeline is built.
    Memory = 5,
}

/// Where an error happened: the array and chunk, and the value of a store. Each part may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The store's location, without secrets.
    pub store: Option<String>,
    /// The array's path in the store.
    pub array: Option<String>,
    /// The key of a chunk or shard.
    pub chunk: Option<String>,
    /// The coordinates of an inner chunk in the array's grid of inner chunks.
    pub inner_chunk: Option<Vec<u64>>,
    /// The key of the value in the store.
    pub key: Option<String>,
    /// The range of bytes of the value that was to be read.
    pub range: Option<Range<u64>>,
    /// How often a request was sent.
    pub tries: Option<u32>,
}

impl Site {
    /// A place in the store at this location. Secrets in the location are hidden.
    pub fn store(location: impl AsRef<str>) -> Self {
        Self { store: Some(hidden(location.as_ref())), ..Self::default() }
    }
    /// A place in one of the stores at these locations. Secrets in the locations are hidden.
    pub fn stores(locations: &[impl AsRef<str>]) -> Self {
        let all = locations.iter().map(|location| shown(location.as_ref())).collect::<Vec<_>>().join(", ");
        Self { store: Some(all), ..Self::default() }
    }
    /// Adds the name of the array.
    #[must_use]
    pub fn array(self, name: impl Into<String>) -> Self {
        Self { array: Some(name.into()), ..self }
    }
    /// Adds the key of the chunk or shard.
    #[must_use]
    pub fn chunk(self, key: impl Into<String>) -> Self {
        Self { chunk: Some(key.into()), ..self }
    }
    /// Adds the key of a value of the store.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }
    /// Adds a range of the value: `len` bytes from `offset`.
    #[must_use]
    pub fn range(self, offset: u64, len: usize) -> Self {
        Self { range: Some(offset..offset.saturating_add(len as u64)), ..self }
    }

    /// Fills the unknown parts of this place from `inner`. The key and the range of `inner` are dropped if `inner`
    /// names another store: the key must belong to the store that is named.
    fn around(self, inner: Self) -> Self {
        let same_store = self.store.is_none() || inner.store.is_none() || self.store == inner.store;
        Self {
            store: self.store.or(inner.store),
            array: self.array.or(inner.array),
            chunk: self.chunk.or(inner.chunk),
            inner_chunk: self.inner_chunk.or(inner.inner_chunk),
            key: self.key.or(inner.key.filter(|_| same_store)),
            range: self.range.or(inner.range.filter(|_| same_store)),
            tries: self.tries.or(inner.tries),
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let coords = |coords: &Vec<u64>| coords.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let parts = [
            self.store.as_ref().map(|store| format!("store {store}")),
            self.array.as_ref().map(|array| format!("array '{array}'")),
            self.chunk.as_ref().map(|key| format!("chunk {key}")),
            self.inner_chunk.as_ref().map(|inner| format!("inner chunk ({})", coords(inner))),
        ];
        let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let parts = printable(&parts).into_owned();
        let key = self.key.as_ref().map(|key| format!("key {key:?}"));
        f.write_str(&[Some(parts).filter(|p| !p.is_empty()), key].into_iter().flatten().collect::<Vec<_>>().join(": "))
    }
}

/// The details of an error about a name that doesn't exist or wasn't given, with the names that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownName {
    /// The name that was given; `None` if a name is missing.
    pub name: Option<String>,
    /// The existing names (of arrays, dimensions or options), in their order. Long lists may be cut.
    pub known: Vec<String>,
}

/// An error of the reader. Clones are cheap, because one bad chunk fails every batch that uses it.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    code: Code,
    message: String,
    site: Site,
    unknown: Option<UnknownName>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    refused: bool,
}

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error of `kind`. The message says what was expected, what was found, where, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let (code, message, site) = (Code::of_kind(kind), escaped(message.into()), Site::default());
        Self(Arc::new(Inner { kind, code, message, site, unknown: None, source: None, refused: false }))
    }
    /// Makes an error of `code`, and of the kind that belongs to this code.
    pub fn coded(code: Code, message: impl Into<String>) -> Self {
        Self::new(code.kind(), message).with_code(code)
    }
    /// Makes an error of [`Code::Damaged`].
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::coded(Code::Damaged, message)
    }
    /// Makes the error of [`Code::Internal`] that a caught panic becomes. `place` says where, e.g. "in a read". It may be
    /// empty.
    pub fn panicked(place: &str, panic: &(dyn Any + Send)) -> Self {
        let space = if place.is_empty() { "" } else { " " };
        Self::coded(Code::Internal, format!("internal error{space}{place}: {}", panic_text(panic)))
    }
    /// Makes an error of [`ErrorKind::Value`].
    pub fn value(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Value, message)
    }
    /// Makes an error of [`ErrorKind::Type`].
    pub fn dtype(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Type, message)
    }
    /// Makes an error of [`ErrorKind::Index`].
    pub fn index(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Index, message)
    }
    /// Makes an error of [`ErrorKind::Runtime`].
    pub fn runtime(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Runtime, message)
    }
    /// Makes an error of [`ErrorKind::Memory`].
    pub fn memory(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Memory, message)
    }
    /// Marks the error as a refusal of access by a store. Some stores also refuse access to keys that don't exist.
    pub fn refusing(self) -> Self {
        self.with(|inner| (inner.code, inner.refused) = (Code::PermissionDenied, true))
    }
    /// Whether the error is a refusal of access by a store.
    pub fn is_refused(&self) -> bool {
        self.0.refused
    }
    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// Returns what went wrong. It stays the same if the kind is changed.
    pub fn code(&self) -> Code {
        self.0.code
    }
    /// Returns the message, without the kind. It names the place, and includes what the source says.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// Returns where the error happened. If one store refers to files of another store (virtual chunks), the place
    /// names the outer store, which has the references.
    pub fn site(&self) -> &Site {
        &self.0.site
    }
    /// Returns the name that doesn't exist, if the error is about one.
    pub fn unknown_name(&self) -> Option<&UnknownName> {
        self.0.unknown.as_ref()
    }
    /// Puts `text` before the message.
    #[must_use]
    pub fn within(&self, text: impl fmt::Display) -> Self {
        self.clone().with(|inner| inner.message = format!("{}: {}", escaped(text.to_string()), inner.message))
    }
    /// Puts `site` before the message, e.g. the chunk in which the error happened, and records it in [`Self::site`].
    #[must_use]
    pub fn at(&self, site: Site) -> Self {
        self.within(&site).placed(site)
    }
    /// Records `site` in [`Self::site`]. The message must name the site already.
    #[must_use]
    pub fn placed(self, site: Site) -> Self {
        self.with(|inner| inner.site = site.around(std::mem::take(&mut inner.site)))
    }
    /// Records `source` as the cause. The message must already include what the source says.
    #[must_use]
    pub fn caused_by(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.with(|inner| inner.source = Some(Arc::new(source)))
    }
    /// Records that the error is about a name that doesn't exist (`None`: a name is missing), and the names that exist.
    #[must_use]
    pub fn unknown(self, name: Option<&str>, known: Vec<String>) -> Self {
        self.with(|inner| inner.unknown = Some(UnknownName { name: name.map(str::to_owned), known }))
    }
    /// Changes the kind, so that handlers treat the error differently. It no longer counts as a refusal of access. The
    /// code stays, unless it says no more than the kind.
    #[must_use]
    pub fn of_kind(self, kind: ErrorKind) -> Self {
        let code = if self.0.code == Code::of_kind(self.0.kind) { Code::of_kind(kind) } else { self.0.code };
        self.with(|inner| (inner.kind, inner.code, inner.refused) = (kind, code, false))
    }
    /// Says more precisely what went wrong. The kind stays.
    #[must_use]
    pub fn with_code(self, code: Code) -> Self {
        self.with(|inner| inner.code = code)
    }
    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Returns the message of a caught panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_in_the_message_and_beside_it() {
        let inner = Error::runtime("404").at(Site::store("s3://b").key("file"));
        assert_eq!(inner.message(), "store s3://b: key \"file\": 404");
        let chunk = Site { inner_chunk: Some(vec![1, 2]), ..Site::store("a.icechunk").array("t").chunk("t/c/0") };
        let outer = inner.at(chunk.clone());
        assert_eq!(
            outer.message(),
            "store a.icechunk, array 't', chunk t/c/0, inner chunk (1, 2): store s3://b: key \"file\": 404"
        );
        assert_eq!(*outer.site(), chunk, "a key of another store isn't one of this");
        let same = Error::runtime("EIO").at(Site::store("a").key("k")).at(Site::store("a").array("t"));
        assert_eq!(*same.site(), Site::store("a").array("t").key("k"));
    }

    #[test]
    fn sources_and_refusals_stay_under_places() {
        let source = std::io::Error::from_raw_os_error(libc::EIO);
        let error = Error::runtime("no").refusing().caused_by(source).at(Site::store("a"));
        assert!(error.is_refused());
        let source = std::error::Error::source(&error).unwrap().downcast_ref::<std::io::Error>().unwrap();
        assert_eq!(source.raw_os_error(), Some(libc::EIO));
        let value = error.of_kind(ErrorKind::Value);
        assert_eq!(value.code(), Code::PermissionDenied, "what happened stays");
        assert_eq!((value.kind(), value.is_refused(), value.message()), (ErrorKind::Value, false, "store a: no"));
    }
}
