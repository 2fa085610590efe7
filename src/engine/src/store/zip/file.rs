//! The file of a local archive as a store of one value, with the key "". The file stays open, so that each read is one
//! `pread`, and a new file at its path changes nothing.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::store::{ByteRange, Found, Latency, Phase, Store, too_long};

/// An open archive.
pub(super) struct ArchiveFile {
    location: String,
    file: File,
    size: u64,
    stamp: Stamp,
    version: Arc<str>,
}

/// Changes when a file is written to: its size, and the seconds and nanoseconds of the last change.
type Stamp = (u64, i64, i64);

fn stamp(file: &File) -> std::io::Result<Stamp> {
    let meta = file.metadata()?;
    Ok((meta.size(), meta.mtime(), meta.mtime_nsec()))
}

/// The first part of `path` that is a file (the archive), and the path inside of it.
pub(in crate::store) fn split_path(path: &Path) -> Option<(PathBuf, String)> {
    let file = path.ancestors().find(|a| a.is_file())?;
    let inner = path.strip_prefix(file).ok()?.to_str()?.to_owned();
    Some((file.to_owned(), inner))
}

impl ArchiveFile {
    /// # Errors
    /// [`Error::value`] if the file can't be opened.
    pub fn open(location: &str, path: &Path) -> Result<Self> {
        let failed = |e: std::io::Error| Error::value(format!("store {location}: it can't be read: {e}"));
        let file = File::open(path).map_err(failed)?;
        let stamp = stamp(&file).map_err(failed)?;
        let (size, seconds, nanoseconds) = stamp;
        let version = format!("{size} {seconds} {nanoseconds}").into();
        Ok(Self { location: location.to_owned(), file, size, stamp, version })
    }

    fn found(&self) -> Found {
        Found { size: self.size, version: Some(Arc::clone(&self.version)) }
    }

    fn fill(&self, range: ByteRange, to: &mut [u8]) -> Result<()> {
        if let Some((offset, len)) = range.resolve(self.size, to.len())? {
            self.file.read_exact_at(&mut to[..len], offset).map_err(|e| {
                Error::runtime(format!("{len} bytes at offset {offset} of the archive can't be read: {e}"))
            })?;
        }
        // After the read, so that no change before or during it is missed.
        if stamp(&self.file).is_ok_and(|now| now != self.stamp) {
            return Err(Error::runtime(
                "the archive was changed since its directory was read; don't write to it while it is read",
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for ArchiveFile {
    fn location(&self) -> &str {
        &self.location
    }

    fn latency(&self) -> Latency {
        Latency::Local
    }

    async fn read(
        &self,
        _: &str,
        range: ByteRange,
        _: Option<&Arc<str>>,
        _: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        self.fill(range, to).map_err(|e| e.within(format!("store {}", self.location)))?;
        Ok(Some(self.found()))
    }

    async fn get(&self, key: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        if self.size > max {
            return Err(too_long(&self.location, key, max, self.size));
        }
        let mut bytes = vec![0; self.size as usize];
        self.read(key, ByteRange::Whole, None, phase, &mut bytes).await?;
        Ok(Some(bytes))
    }

    async fn head(&self, _: &str) -> Result<Option<Found>> {
        Ok(Some(self.found()))
    }

    async fn children(&self, _: &str) -> Result<Option<Vec<String>>> {
        Ok(None)
    }
}
