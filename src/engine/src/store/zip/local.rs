//! A zip archive in a local file, which stays open: a value costs one `pread`.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::{Directory, Entry, Method};
use super::end::{End, TAIL};
use super::inflate::{Inflater, check_crc};
use super::{Archive, HEADER, Place};
use crate::error::{Error, Result};
use crate::store::{Found, Part, Sink, Store, too_long, window};

/// Deflated data are read in pieces of so many bytes.
const PIECE: u64 = 64 << 10;

/// A store in a local zip archive.
pub struct LocalZip {
    archive: Archive,
    file: File,
    stamp: Stamp,
    /// The one version that there is: what changed afterwards isn't read.
    version: Arc<str>,
}

/// What changes when a file is written to. Another file in its place is another matter: the open one stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(file: &File) -> std::io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { size: meta.size(), modified: (meta.mtime(), meta.mtime_nsec()) })
    }

    fn version(self) -> Arc<str> {
        let (seconds, nanoseconds) = self.modified;
        format!("{} {seconds} {nanoseconds}", self.size).into()
    }
}

/// Divides a path behind its first part that is a file: the archive, and the path inside.
pub(in crate::store) fn split(path: &Path) -> Option<(PathBuf, String)> {
    let file = path.ancestors().find(|a| a.is_file())?;
    let inner = path.strip_prefix(file).ok()?.to_str()?.to_owned();
    Some((file.to_owned(), inner))
}

/// What to say of a file that isn't an archive, neither by name nor by its first bytes.
fn other_kind(file: &File, path: &Path, location: &str) -> Option<String> {
    let mut head = [0; 8];
    let len = file.read_at(&mut head, 0).ok()?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let found = match &head[..len] {
        _ if ["zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"].contains(&name) => {
            format!("{name}, which is a part of a store; give the directory that holds it")
        }
        _ if location.to_ascii_lowercase().ends_with(".zip") => return None,
        [] => "an empty file; check the path".to_owned(),
        [b'P', b'K', ..] => return None,
        [0x89, b'H', b'D', b'F', ..] | [b'C', b'D', b'F', ..] => {
            "an HDF5 or NetCDF file; write its variables to a Zarr store".to_owned()
        }
        [b'{' | b'[', ..] => "a JSON file; give the directory or the archive of a Zarr store".to_owned(),
        _ => "a file of another kind; give the directory or the archive of a Zarr store".to_owned(),
    };
    Some(format!("expected a directory or a zip archive, but found {found}"))
}

impl LocalZip {
    /// Opens the archive in the file `path`, and of that the part below `inner`.
    ///
    /// # Errors
    /// [`Error::value`] if it isn't an archive that can be read.
    pub fn open(location: &str, path: &Path, inner: &str) -> Result<Self> {
        let failed = |e: std::io::Error| Error::value(format!("store {location}: it can't be read: {e}"));
        let file = File::open(path).map_err(failed)?;
        let stamp = Stamp::of(&file).map_err(failed)?;
        let mut tail = vec![0; stamp.size.min(TAIL as u64) as usize];
        let tail_at = stamp.size - tail.len() as u64;
        file.read_exact_at(&mut tail, tail_at).map_err(failed)?;
        let within = |e: Error| e.within(format!("store {location}"));
        let end = End::find(&tail, stamp.size)
            .map_err(|e| other_kind(&file, path, location).map_or(e, Error::value))
            .map_err(within)?;
        // As long as the file allows.
        let mut bytes = vec![0; (end.directory.end - end.directory.start) as usize];
        file.read_exact_at(&mut bytes, end.directory.start).map_err(failed)?;
        let directory = Directory::parse(&bytes, &end).map_err(within)?;
        let archive = Archive::new(location.to_owned(), inner, directory);
        Ok(Self { archive, file, stamp, version: stamp.version() })
    }

    fn fetch(&self, entry: &Entry, offset: u64, to: &mut [u8]) -> Result<()> {
        if entry.size > 0 {
            let data = match self.archive.place(entry) {
                Place::Known(at) => at,
                Place::Guess(_) => {
                    let mut header = [0; HEADER];
                    self.fill(entry.header, &mut header)?;
                    self.archive.data(entry, &header)?
                }
            };
            match entry.method() {
                Method::Stored => self.fill(data + offset, to)?,
                _ => self.inflate(entry, data, offset, to)?,
            }
        }
        // Afterwards: what changed before or in between is noticed.
        if Stamp::of(&self.file).is_ok_and(|now| now != self.stamp) {
            return Err(Error::runtime(
                "the archive was changed since its directory was read; don't write to it while it is read",
            ));
        }
        if entry.method() == Method::Stored && to.len() as u64 == entry.size {
            check_crc(entry.crc, crc32fast::hash(to))?;
        }
        Ok(())
    }

    fn inflate(&self, entry: &Entry, data: u64, offset: u64, to: &mut [u8]) -> Result<()> {
        let mut inflater = Inflater::new(entry, offset, to);
        let mut piece = vec![0; entry.compressed.min(PIECE) as usize];
        let mut at = 0;
        while at < entry.compressed {
            let len = (entry.compressed - at).min(PIECE);
            let piece = &mut piece[..len as usize];
            self.fill(data + at, piece)?;
            inflater.put(piece)?;
            at += len;
        }
        inflater.finish()
    }

    fn fill(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(to, offset).map_err(|e| {
            Error::runtime(format!("{} bytes at offset {offset} of the archive can't be read: {e}", to.len()))
        })
    }
}

impl Store for LocalZip {
    fn location(&self) -> &str {
        &self.archive.location
    }

    fn read(&self, key: &str, part: Part, _: Option<&Arc<str>>, to: &mut [u8]) -> Result<Option<Found>> {
        let Some((_, entry)) = self.archive.find(key)? else { return Ok(None) };
        let mut read = || match window(part, entry.size, to.len())? {
            Some((offset, len)) => self.fetch(entry, offset, &mut to[..len]),
            None => Ok(()),
        };
        read().map_err(|e| self.archive.within(key, &e))?;
        Ok(Some(Found { size: entry.size, version: Some(Arc::clone(&self.version)) }))
    }

    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let Some((_, entry)) = self.archive.find(key)? else { return Ok(None) };
        if entry.size > most {
            return Err(too_long(self.location(), key, most, entry.size));
        }
        let mut bytes = vec![0; entry.size as usize];
        self.fetch(entry, 0, &mut bytes).map_err(|e| self.archive.within(key, &e))?;
        Ok(Some(bytes))
    }

    fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.archive.exists(key))
    }

    fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        Ok(Some(self.archive.children(prefix)))
    }
}
