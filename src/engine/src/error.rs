//! Errors as values: a kind that a program can match, and a sentence that a person can act on.

use std::fmt;

/// What a handler can do about an error. The names are those of the Python exceptions that DALI raises for them.
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

/// An error of the reader. Cheap to clone, since one bad chunk fails every batch that uses it.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: std::sync::Arc<str>,
    refused: bool,
}

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` that says `message`: what was expected, what was found, where, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into().into(), refused: false }
    }
    /// [`ErrorKind::Value`].
    pub fn value(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Value, message)
    }
    /// [`ErrorKind::Type`].
    pub fn dtype(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Type, message)
    }
    /// [`ErrorKind::Index`].
    pub fn index(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Index, message)
    }
    /// [`ErrorKind::Runtime`].
    pub fn runtime(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Runtime, message)
    }
    /// [`ErrorKind::Memory`].
    pub fn memory(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Memory, message)
    }
    /// That a store refuses access, which some stores also say of what isn't there.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { refused: true, ..Self::runtime(message) }
    }
    /// Whether it is such a refusal.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }
    /// What a handler can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    /// The sentence, without the kind.
    pub fn message(&self) -> &str {
        &self.message
    }
    /// The same error with `place` put before it, e.g. the chunk in which it happened.
    #[must_use]
    pub fn within(&self, place: impl fmt::Display) -> Self {
        Self { refused: self.refused, ..Self::new(self.kind, format!("{place}: {}", self.message)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// What a caught panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}
