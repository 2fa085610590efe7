//! Virtual chunks: ranges of files outside of the store that names them.
//!
//! A store can name any file of this machine and any server. So only files below URLs that the user gave are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blocking::drive;
use super::percent::percent_decoded;
use super::{ByteRange, Extent, Found, ObjectVersion, Phase, Placed, Runtime, Store, blocking};
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
        version: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let (store, key) = self.find(url)?;
        complete(store, store.read(&key, range, version, phase, to)).await
    }

    /// Reads bytes of the value at `extent`. `version` is the value's from an earlier [`Found`]: its place, and the
    /// version that the file must have. If the place differs or `version` is `None`, the file must have the version in
    /// `extent`, if there is one.
    ///
    /// # Errors
    /// As [`Self::read`], and if there is no such file.
    pub async fn read_value(
        &self,
        extent: &Extent,
        range: ByteRange,
        version: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Found> {
        let size = extent.len;
        let Some((offset, len)) = range.resolve(size, to.len())?.filter(|(_, len)| *len > 0) else {
            return Ok(Found { size, version: None });
        };
        // A version that was found earlier is more precise than the reference's.
        let of_file = version.and_then(|version| of_object(version, &extent.object, place(extent)));
        let of_file = of_file.or(extent.version.as_ref());
        let range = ByteRange::From(extent.offset + offset);
        let found = self.read(&extent.object, range, of_file, phase, &mut to[..len]).await?;
        let found = found.ok_or_else(|| gone(&extent.object))?;
        Ok(Found { size, version: version_at(&extent.object, place(extent), found.version) })
    }

    /// Returns size and version of the value at `extent`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn head_value(&self, extent: &Extent) -> Result<Found> {
        let version = self.head(&extent.object).await?.and_then(|found| found.version);
        Ok(Found { size: extent.len, version: version_at(&extent.object, place(extent), version) })
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

/// Returns the range of an object that a value lies in, as its version has it.
pub(super) fn place(extent: &Extent) -> Option<(u64, u64)> {
    Some((extent.offset, extent.len))
}

/// Returns the version of a value: its place, and the version of its file. `None` if the file has none. Files with virtual
/// chunks may change.
pub(super) fn version_at(
    object: &Arc<str>,
    range: Option<(u64, u64)>,
    of_file: Option<ObjectVersion>,
) -> Option<ObjectVersion> {
    let of_object = Some(of_file?);
    Some(ObjectVersion::At(Arc::new(Placed { object: Arc::clone(object), range, of_object })))
}

/// Returns the version of the file in the version of a value. `None` if that has another place, or no file that may change.
pub(super) fn of_object<'a>(
    version: &'a ObjectVersion,
    object: &str,
    range: Option<(u64, u64)>,
) -> Option<&'a ObjectVersion> {
    match version {
        ObjectVersion::At(placed) if placed.is_at(object, range) => placed.of_object.as_ref(),
        _ => None,
    }
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
pub(super) fn version_of(tag: Option<&str>, date: u32) -> Option<ObjectVersion> {
    match (tag, date) {
        (Some(tag), _) if tag.starts_with('"') || tag.starts_with("W/") => Some(ObjectVersion::Tag(tag.into())),
        (Some(tag), _) => Some(ObjectVersion::Tag(format!("\"{tag}\"").into())),
        (None, 0) => None,
        (None, seconds) => Some(ObjectVersion::NotAfter(seconds.into())),
    }
}
