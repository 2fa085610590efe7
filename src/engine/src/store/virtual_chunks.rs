//! Virtual chunks: ranges of files outside of the store that names them.
//!
//! A store can name any file of this machine and any server, so only files below URLs that the user gave are read.

use std::sync::Arc;

use super::blocking::drive;
use super::local::percent_decoded;
use super::{ByteRange, Found, Phase, Runtime, Store, blocking};
use crate::error::{Error, Result};

/// The places in which virtual chunks may lie.
#[derive(Default)]
pub(super) struct VirtualChunks(Vec<Source>);

struct Source {
    /// A URL that ends with a slash.
    prefix: String,
    store: Arc<dyn Store>,
}

impl VirtualChunks {
    /// The places at these URLs, which end with slashes, each with the store that reads it.
    pub fn new(places: impl IntoIterator<Item = (String, Arc<dyn Store>)>) -> Self {
        Self(places.into_iter().map(|(prefix, store)| Source { prefix, store }).collect())
    }

    /// The runtime that [`Self::read`] needs; `None` if it needs none. All stores of a reader share one.
    pub fn runtime(&self) -> Option<&Arc<Runtime>> {
        self.0.iter().find_map(|source| source.store.runtime())
    }

    /// Fills `to` from offset `from` of the file at `url`; `None` if there is no such file. With `version` the file must be
    /// the one that [`Found`], or a reference to it, described.
    ///
    /// # Errors
    /// As [`Store::read`], and if the file may not be read.
    pub async fn read(
        &self,
        url: &str,
        from: u64,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let (store, key) = self.find(url)?;
        complete(store, store.read(&key, ByteRange::From(from), version, phase, to)).await
    }

    /// Size and version of the file at `url`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn head(&self, url: &str) -> Result<Option<Found>> {
        let (store, key) = self.find(url)?;
        complete(store, store.head(&key)).await
    }

    /// The store of the file at `url`, and the file's key in it.
    fn find(&self, url: &str) -> Result<(&dyn Store, String)> {
        let found = self.0.iter().filter(|s| url.starts_with(&s.prefix)).max_by_key(|s| s.prefix.len());
        let Some(source) = found else {
            let folder = url.rsplit_once('/').map_or(url, |(folder, _)| folder);
            return Err(Error::runtime(format!(
                "expected a chunk in the store, but found a virtual one, at {url}; if the files there may be read, say so: \
                 storage_options={{\"virtual_chunks\": \"{folder}/\"}}"
            )));
        };
        let key = percent_decoded(&url[source.prefix.len()..]).into_string().ok();
        let key = key.filter(|k| !k.split('/').any(|part| matches!(part, "" | "." | "..")) && !k.contains('\0'));
        let key = key.ok_or_else(|| {
            Error::runtime(format!(
                "expected the URL of a file below {}, but found {url:?}; the reference is damaged",
                source.prefix
            ))
        })?;
        Ok((&*source.store, key))
    }
}

/// Awaits a future of `store` in a task. One of a local store blocks, so other threads take over the tasks that wait.
async fn complete<T>(store: &dyn Store, future: impl Future<Output = T>) -> T {
    match store.runtime() {
        Some(_) => future.await,
        None => blocking(|| drive(future)),
    }
}

/// The version of a file that a reference describes by a tag, or by a date that it isn't changed after (in seconds since
/// 1970; 0: any).
pub(super) fn version_of(tag: Option<&str>, date: u32) -> Option<Arc<str>> {
    match (tag, date) {
        (Some(tag), _) if tag.starts_with('"') || tag.starts_with("W/") => Some(tag.into()),
        (Some(tag), _) => Some(format!("\"{tag}\"").into()),
        (None, 0) => None,
        (None, seconds) => Some(super::not_after(seconds.into())),
    }
}
