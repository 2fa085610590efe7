//! Virtual chunks: parts of files that aren't the repository's.
//!
//! A repository can name any file of this machine and any server, so only what lies below URLs that the user gave is read. What a
//! chunk tells of its file's version, an ETag or a date, must be true when it is read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::store::local::{percent_decoded, root};
use crate::store::remote::{blocking, not_after};
use crate::store::{Found, Part, Phase, Store};

/// What a file must be, as the manifest tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Check {
    pub tag: Option<Arc<str>>,
    /// Seconds since 1970; 0: any.
    pub not_after: u32,
}

impl Check {
    /// As a version of a remote value.
    fn version(&self) -> Option<Arc<str>> {
        match (&self.tag, self.not_after) {
            (Some(tag), _) if tag.starts_with('"') || tag.starts_with("W/") => Some(Arc::clone(tag)),
            (Some(tag), _) => Some(format!("\"{tag}\"").into()),
            (None, 0) => None,
            (None, seconds) => Some(not_after(seconds.into())),
        }
    }
}

/// What a file must be: what the manifest tells of it, and the version that was found before.
pub(super) type Wanted<'a> = (&'a Check, Option<&'a Arc<str>>);

/// A place where virtual chunks may be.
pub struct Source {
    /// A URL that ends with a slash.
    prefix: String,
    store: Arc<dyn Store>,
    /// If it is local.
    root: Option<PathBuf>,
}

impl Source {
    /// The place at `prefix`, a URL, whose bytes come from `store`.
    pub fn new(prefix: String, store: Arc<dyn Store>) -> Result<Self> {
        let root = if store.remote().is_none() { Some(root(&prefix)?) } else { None };
        Ok(Self { prefix, store, root })
    }

    /// Bytes from `from` on.
    ///
    /// # Errors
    /// If they can't be read, or are of another version than was found before or else `check` tells.
    pub(super) fn read(&self, key: &str, from: u64, what: Wanted<'_>, to: &mut [u8]) -> Result<Option<Found>> {
        match self.store.remote() {
            Some(remote) => remote.io().block_on(self.read_async(key, from, what, Phase::Running, to)),
            None => self.read_local(key, from, what, to),
        }
    }

    /// [`Self::read`] in a task.
    pub(super) async fn read_async(
        &self,
        key: &str,
        from: u64,
        (check, version): Wanted<'_>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        match self.store.remote() {
            Some(remote) => {
                // Who tells of a version found it in keeping with the check.
                let version = version.cloned().or_else(|| check.version());
                remote.read(key, Part::From(from), version.as_ref(), phase, to).await
            }
            None => blocking(|| self.read_local(key, from, (check, version), to)),
        }
    }

    /// What there is now, in a task.
    pub(super) async fn head_async(&self, key: &str) -> Result<Option<Found>> {
        match self.store.remote() {
            Some(remote) => remote.head(key).await,
            None => blocking(|| self.store.read(key, Part::From(0), None, &mut [])),
        }
    }

    fn read_local(&self, key: &str, from: u64, (check, version): Wanted<'_>, to: &mut [u8]) -> Result<Option<Found>> {
        let found = self.store.read(key, Part::From(from), version, to)?;
        let path = self.root.iter().map(|r| r.join(key)).next().unwrap_or_default();
        if let (Some(_), Ok(meta)) = (&found, fs::metadata(path)) {
            // As the crate object_store makes tags of files.
            let micros = i128::from(meta.mtime()) * 1_000_000 + i128::from(meta.mtime_nsec() / 1000);
            let tag = format!("{:x}-{micros:x}-{:x}", meta.ino(), meta.size());
            let other = check.tag.as_ref().is_some_and(|t| *t.trim_matches('"') != tag);
            if other || check.not_after != 0 && meta.mtime() > i64::from(check.not_after) {
                return Err(Error::runtime(
                    "expected the version of the file that the repository tells of, but it was changed since; write the virtual \
                     chunks' references again",
                ));
            }
        }
        Ok(found)
    }
}

/// The place of `url` among `sources`, and its key there.
///
/// # Errors
/// If it is in none of them.
pub(super) fn find<'a>(sources: &'a [Source], url: &str) -> Result<(&'a Source, String)> {
    let found = sources.iter().filter(|s| url.starts_with(&s.prefix)).max_by_key(|s| s.prefix.len());
    let Some(source) = found else {
        let folder = url.rsplit_once('/').map_or(url, |(folder, _)| folder);
        return Err(Error::runtime(format!(
            "expected a chunk in the repository, but found a virtual one, at {url}; if what lies there may be read, say so: \
             storage_options={{\"virtual_chunks\": \"{folder}/\"}}"
        )));
    };
    let key = percent_decoded(&url[source.prefix.len()..]).into_string().ok();
    let key = key.filter(|k| !k.split('/').any(|part| matches!(part, "" | "." | "..")) && !k.contains('\0'));
    let key = key.ok_or_else(|| {
        Error::runtime(format!(
            "expected the URL of a file below {}, but found {url:?}; the repository is damaged",
            source.prefix
        ))
    })?;
    Ok((source, key))
}
