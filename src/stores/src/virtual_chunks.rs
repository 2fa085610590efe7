//! Virtual chunks: ranges of files outside of the store that names them.
//!
//! A store can name any file of this machine and any server. So only files below URLs that the user gave are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blocking::drive;
use super::percent::percent_decoded;
use super::{ByteRange, Extent, Found, Phase, Runtime, Store, blocking};
use dali_zarr_base::error::{Code, Error, Result, shown};

/// The places where virtual chunks may lie.
#[derive(Default)]
pub(super) struct VirtualChunks {
    sources: Vec<Source>,
    /// The directory that relative paths in references are relative to; `None`: the current one.
    directory: Option<PathBuf>,
}

struct Source {
    /// A URL that ends with a slash. Only files below it are read.
    prefix: String,
    store: Arc<dyn Store>,
}

impl VirtualChunks {
    /// Makes the places from URLs that end with slashes, each with the store that reads below it.
    pub fn new(places: impl IntoIterator<Item = (String, Arc<dyn Store>)>, directory: Option<PathBuf>) -> Self {
        let sources = places.into_iter().map(|(prefix, store)| Source { prefix, store }).collect();
        Self { sources, directory }
    }

    /// Returns the directory that relative paths in references are relative to; `None`: the current one.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Returns the runtime that [`Self::read`] needs; `None` if it needs none. All stores of a reader share one.
    pub fn runtime(&self) -> Option<&Arc<Runtime>> {
        self.sources.iter().find_map(|source| source.store.runtime())
    }

    /// Reads bytes of the file at `url`; `None` if there is no such file. If `version` is given, the file must have it.
    /// It is one from [`Found`], or one that a reference gives ([`version_of`]).
    ///
    /// # Errors
    /// As [`Store::read`], and if the file may not be read.
    pub async fn read(
        &self,
        url: &str,
        range: ByteRange,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let (store, key) = self.find(url)?;
        complete(store, store.read(&key, range, version, phase, to)).await
    }

    /// Reads bytes of the value at `extent`. `version` is the value's from an earlier [`Found`]: it begins with the
    /// value's place, and the rest is the version that the file must have. If the place differs or `version` is `None`,
    /// the file must have the version in `extent`, if there is one.
    ///
    /// # Errors
    /// As [`Self::read`], and if there is no such file.
    pub async fn read_value(
        &self,
        extent: &Extent,
        range: ByteRange,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Found> {
        let size = extent.len;
        let Some((offset, len)) = range.resolve(size, to.len())?.filter(|(_, len)| *len > 0) else {
            return Ok(Found { size, version: None });
        };
        // A version that was found earlier is more precise than the reference's.
        let of_file =
            version.and_then(|v| v.strip_prefix(version_prefix(extent).as_str())?.strip_prefix('\n')).map(Arc::from);
        let of_file = of_file.or_else(|| extent.version.clone());
        let range = ByteRange::From(extent.offset + offset);
        let found = self.read(&extent.object, range, of_file.as_ref(), phase, &mut to[..len]).await?;
        let found = found.ok_or_else(|| gone(&extent.object))?;
        Ok(Found { size, version: version_at(&version_prefix(extent), found.version) })
    }

    /// Returns size and version of the value at `extent`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn head_value(&self, extent: &Extent) -> Result<Found> {
        let version = self.head(&extent.object).await?.and_then(|found| found.version);
        Ok(Found { size: extent.len, version: version_at(&version_prefix(extent), version) })
    }

    /// Returns the whole file at `url`, which may have at most `max` bytes; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`Store::get`], and if the file may not be read.
    pub async fn get(&self, url: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        let (store, key) = self.find(url)?;
        complete(store, store.get(&key, max, phase)).await
    }

    /// Returns size and version of the file at `url`; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn head(&self, url: &str) -> Result<Option<Found>> {
        let (store, key) = self.find(url)?;
        complete(store, store.head(&key)).await
    }

    /// Finds the store that reads the file at `url`, and the file's key in it.
    fn find(&self, url: &str) -> Result<(&dyn Store, String)> {
        // Icechunk has two names for Google Cloud Storage.
        let renamed = url.strip_prefix("gcs://").map(|rest| format!("gs://{rest}"));
        let url = renamed.as_deref().unwrap_or(url);
        let found = self.sources.iter().filter(|s| url.starts_with(&s.prefix)).max_by_key(|s| s.prefix.len());
        let Some(source) = found else {
            if let Some(name) = url.strip_prefix("vcc://").map(|rest| rest.split('/').next().unwrap_or_default()) {
                return Err(Error::runtime(format!(
                    "expected a virtual chunk in a container of the repository's configuration, but found {url}, and the \
                     configuration has no container with the name {name:?}"
                )));
            }
            // A signature may be in the query.
            let url = &shown(url);
            let folder = url.rsplit_once('/').map_or(&**url, |(folder, _)| folder);
            return Err(Error::runtime(format!(
                "expected a chunk in the store, but found a virtual one, at {url}; if the files there may be read, say so: \
                 storage_options={{\"virtual_chunks\": \"{folder}/\"}}"
            )));
        };
        if url.starts_with("http") && url[source.prefix.len()..].contains(['?', '#']) {
            return Err(Error::runtime(format!(
                "expected the URL of a file without a query, but found {:?}; write the references with plain URLs",
                shown(url)
            )));
        }
        let key = percent_decoded(&url[source.prefix.len()..]).into_string().ok();
        let key = key.filter(|k| !k.split('/').any(|part| matches!(part, "" | "." | "..")) && !k.contains('\0'));
        let key = key.ok_or_else(|| {
            Error::runtime(format!(
                "expected the URL of a file below {}, but found {url:?}; a path with an empty part, \".\" or \"..\" isn't read",
                source.prefix
            ))
        })?;
        Ok((&*source.store, key))
    }
}

/// The error for a file that isn't there.
pub(super) fn gone(url: &str) -> Error {
    Error::runtime(format!("expected the object {url}, but found nothing; virtual chunks of the store lie in it"))
        .with_code(Code::NotFound)
}

/// Returns the place of a value as text: object, offset and length. The value's version begins with it. Files with
/// virtual chunks may change, so for them the file's version follows.
pub(super) fn version_prefix(extent: &Extent) -> String {
    format!("{} {} {}", extent.object, extent.offset, extent.len)
}

/// Returns the version of a value: its place, and the version of its file. `None` if the file has none.
fn version_at(place: &str, of_file: Option<Arc<str>>) -> Option<Arc<str>> {
    Some(format!("{place}\n{}", of_file?).into())
}

/// Awaits a future of `store` in a task. A local store's future blocks, so other threads take over the tasks that wait.
async fn complete<T>(store: &dyn Store, future: impl Future<Output = T>) -> T {
    match store.runtime() {
        Some(_) => future.await,
        None => blocking(|| drive(future)),
    }
}

/// Returns the version that a reference demands of a file: its tag, or a date after which it must not have changed (in
/// seconds since 1970). Without a tag and with date 0, any version will do: `None`.
pub(super) fn version_of(tag: Option<&str>, date: u32) -> Option<Arc<str>> {
    match (tag, date) {
        (Some(tag), _) if tag.starts_with('"') || tag.starts_with("W/") => Some(tag.into()),
        (Some(tag), _) => Some(format!("\"{tag}\"").into()),
        (None, 0) => None,
        (None, seconds) => Some(super::not_after(seconds.into())),
    }
}
