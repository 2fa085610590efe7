//! A local archive's file as a store of one value, with the key "". The file stays open, so each read is one `pread`,
//! and a new file at its path changes nothing.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::{ByteRange, Found, Latency, METADATA_DOCUMENTS, ObjectVersion, Phase, Store, too_long};
use dali_zarr_base::error::{Error, Result, Site, printable};

/// An open archive.
pub(super) struct ArchiveFile {
    location: String,
    file: File,
    size: u64,
    stamp: Stamp,
    version: ObjectVersion,
}

/// Changes when a file is written to: its size, and the seconds and nanoseconds of the last change.
type Stamp = (u64, i64, i64);

fn stamp(file: &File) -> std::io::Result<Stamp> {
    let meta = file.metadata()?;
    Ok((meta.size(), meta.mtime(), meta.mtime_nsec()))
}

/// Splits `path` into the file in it (the archive) and the path inside the archive. `None` if no part of it is a file.
pub(crate) fn split_path(path: &Path) -> Option<(PathBuf, String)> {
    let file = path.ancestors().find(|a| a.is_file())?;
    let inner = path.strip_prefix(file).ok()?.to_str()?.to_owned();
    Some((file.to_owned(), inner))
}

/// Makes the error's text for a file that isn't an archive, neither by name nor by its first bytes. `None` if it may be
/// one.
fn other_kind(file: &File, path: &Path, location: &str) -> Option<String> {
    let mut head = [0; 8];
    let len = file.read_at(&mut head, 0).ok()?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let found = match &head[..len] {
        _ if METADATA_DOCUMENTS.contains(&name) => {
            format!("{name}, which is a part of a store; give the directory that holds it")
        }
        _ if location.to_ascii_lowercase().ends_with(".zip") => return None,
        [] => "an empty file; check the path".to_owned(),
        [b'P', b'K', ..] => return None,
        [0x89, b'H', b'D', b'F', ..] | [b'C', b'D', b'F', ..] => {
            "an HDF5 or NetCDF file; write its variables to a Zarr store".to_owned()
        }
        _ => "a file of another kind; give the directory or the archive of a Zarr store".to_owned(),
    };
    Some(format!("expected a directory or a zip archive, but found {found}"))
}

impl ArchiveFile {
    /// Returns an error's text that says what the file is, if neither its name nor its first bytes are those of an
    /// archive.
    pub fn other_kind(&self, path: &Path) -> Option<String> {
        other_kind(&self.file, path, &self.location)
    }

    /// # Errors
    /// [`Error::value`] if the file can't be opened.
    pub fn open(location: &str, path: &Path) -> Result<Self> {
        let failed =
            |e: std::io::Error| Error::value(format!("it can't be read: {e}")).caused_by(e).at(Site::store(location));
        let file = File::open(path).map_err(failed)?;
        let stamp = stamp(&file).map_err(failed)?;
        let (size, seconds, nanoseconds) = stamp;
        let version = ObjectVersion::File { size, seconds, nanoseconds, born: 0 };
        Ok(Self { location: printable(location).into_owned(), file, size, stamp, version })
    }

    fn found(&self) -> Found {
        Found { size: self.size, version: Some(self.version.clone()) }
    }

    fn fill(&self, range: ByteRange, to: &mut [u8]) -> Result<()> {
        if let Some((offset, len)) = range.resolve(self.size, to.len())? {
            self.file.read_exact_at(&mut to[..len], offset).map_err(|e| {
                let message = format!("{len} bytes at offset {offset} of the archive can't be read: {e}");
                Error::runtime(message).caused_by(e).placed(Site::default().range(offset, len))
            })?;
        }
        // Checked after the read, so that no change before or during it is missed.
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
        _: Option<&ObjectVersion>,
        _: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        self.fill(range, to).map_err(|e| e.at(Site::store(&*self.location)))?;
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
