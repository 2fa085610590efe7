//! Zip archives as stores, over a store that holds the archive: archives of zarr-python's `ZipStore` and of any zip
//! program.
//!
//! The [`directory`] is read once, when the archive is opened, and stays in memory. A value is then a range of the
//! archive, and costs one read. A deflated value is inflated while it arrives ([`inflate`]).
//!
//! Only the local header of an entry tells where its data begin. Reading it would double the requests, so the place is
//! computed from the gaps between entries. Nearly all archives have no gaps, so the data of each entry can be at one
//! place only. Otherwise the place is guessed; the checksum of a whole value confirms the guess. For parts of values,
//! and after a wrong guess, the header is read.

mod directory;
mod end;
mod file;
mod inflate;
mod numbers;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_archives;

pub(super) use file::split_path;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::blocking::drive;
use super::percent::percent_decoded;
use super::{ByteRange, Found, Latency, ObjectVersion, Phase, Runtime, Store, block_on, too_long};
use dali_zarr_base::error::{Code, Error, ErrorKind, Result, Site};
use directory::{Directory, Entry, HEADER_LEN, Method};
use end::{End, TAIL};
use file::ArchiveFile;
use inflate::{Inflater, check_crc};
use numbers::{u16_at, u32_at};

/// The key of the archive itself, in the store that holds it.
const ARCHIVE_KEY: &str = "";
/// Bytes of a local header without its name and extra field.
const HEADER: usize = HEADER_LEN as usize;
/// Bytes of a data descriptor, as most writers write it: a signature, a checksum, two sizes. It follows data of a size
/// that the writer didn't know beforehand.
const DESCRIPTOR: u32 = 16;

/// A store in a zip archive.
pub struct Zip {
    location: String,
    /// Prefix of all keys: empty, or a path in the archive with a slash at its end.
    prefix: String,
    base: Arc<dyn Store>,
    directory: Directory,
    /// The archive's version when its directory was read. No other version is read.
    version: Option<ObjectVersion>,
    /// Bytes that are assumed to lie between an entry's data and the next entry: for entries without a descriptor, and
    /// for entries with one.
    behind: [AtomicU32; 2],
    /// Where the data of entries begin, by the entries' numbers. Has the entries of which parts were read after their
    /// header was read.
    data: Mutex<HashMap<u32, u64>>,
}

/// Where an entry's data begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataStart {
    Known(u64),
    Guess(u64),
}

/// The part of an entry that is read: from `offset` on, as many bytes as the buffer holds.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    entry: &'a Entry,
    number: u32,
    offset: u64,
    phase: Phase,
}

impl Zip {
    /// Opens the archive in the local file at `path`. Keys are those below `inner`, a path in the archive. Blocks.
    ///
    /// # Errors
    /// [`Error::value`] if it isn't an archive that can be read.
    pub fn open_file(location: &str, path: &Path, inner: &str) -> Result<Self> {
        let base = Arc::new(ArchiveFile::open(location, path)?);
        let opened = drive(Self::open(base.location().to_owned(), Arc::clone(&base) as _, inner));
        opened.map_err(|e| base.other_kind(path).map_or(e, |kind| Error::value(kind).at(Site::store(location))))
    }

    /// Opens the archive at the URL of `base`. Keys are those below `inner`, a path in the archive. Blocks.
    ///
    /// # Errors
    /// [`Error::value`] if it isn't there, or isn't an archive that can be read.
    pub fn open_in(base: &Arc<dyn Store>, inner: &str) -> Result<Self> {
        let location = match inner.trim_matches('/') {
            "" => base.location().to_owned(),
            inner => format!("{}/{inner}", base.location()),
        };
        block_on(&**base, Self::open(location, Arc::clone(base), inner))
    }

    async fn open(location: String, base: Arc<dyn Store>, inner: &str) -> Result<Self> {
        let within = |e: Error| e.of_kind(ErrorKind::Value).at(Site::store(&*location));
        let read = async |range, version: Option<&ObjectVersion>, to: &mut [u8]| {
            // Errors of `base` name the store already.
            let found = base.read(ARCHIVE_KEY, range, version, Phase::Building, to).await;
            let gone =
                || within(Error::coded(Code::NotFound, "expected a zip archive, but found nothing; check the URL"));
            found.map_err(|e| e.of_kind(ErrorKind::Value))?.ok_or_else(gone)
        };
        let mut tail = vec![0; TAIL];
        let Found { size, version } = read(ByteRange::Last, None, &mut tail).await?;
        if size < TAIL as u64 {
            tail.truncate(size as usize);
            if !tail.is_empty() {
                read(ByteRange::From(0), version.as_ref(), &mut tail).await?;
            }
        }
        let end = End::find(&tail, size).map_err(within)?;
        let mut bytes = vec![0; (end.directory.end - end.directory.start) as usize];
        // The directory ends in the tail. The part before the tail is read.
        let tail_at = size - tail.len() as u64;
        let before = tail_at.saturating_sub(end.directory.start).min(bytes.len() as u64) as usize;
        let (front, back) = bytes.split_at_mut(before);
        if !front.is_empty() {
            read(ByteRange::From(end.directory.start), version.as_ref(), front).await?;
        }
        let from = end.directory.start.saturating_sub(tail_at) as usize;
        back.copy_from_slice(&tail[from..from + back.len()]);
        let directory = Directory::parse(&bytes, &end).map_err(within)?;
        let inner = inner.trim_matches('/');
        let prefix = if inner.is_empty() { String::new() } else { format!("{inner}/") };
        let behind = [AtomicU32::new(0), AtomicU32::new(DESCRIPTOR)];
        Ok(Self { location, prefix, base, directory, version, behind, data: Mutex::default() })
    }

    fn name<'a>(&self, key: &'a str) -> Cow<'a, str> {
        if self.prefix.is_empty() { Cow::Borrowed(key) } else { format!("{}{key}", self.prefix).into() }
    }

    /// Finds the number and the entry of `key`; `None` if there is no entry.
    ///
    /// # Errors
    /// If there is an entry that can't be read: it is encrypted, or compressed by another method.
    fn find(&self, key: &str) -> Result<Option<(u32, &Entry)>> {
        let Some((number, entry)) = self.directory.find(&self.name(key)) else { return Ok(None) };
        let refused = if entry.is_encrypted() {
            "an encrypted one".to_owned()
        } else if let Method::Other(method) = entry.method() {
            format!("method {method}{}", method_name(method))
        } else {
            return Ok(Some((number, entry)));
        };
        Err(self.within(
            key,
            &Error::runtime(format!(
                "expected a stored or deflated entry of the archive, but found {refused}; write the archive again, best \
                 stored (ZIP_STORED), since chunks are compressed already"
            )),
        ))
    }

    fn data_start(&self, entry: &Entry) -> DataStart {
        let least = entry.header + HEADER_LEN + u64::from(entry.stored_name_len);
        if self.directory.tight {
            return DataStart::Known(least);
        }
        let behind = self.behind[usize::from(entry.has_descriptor())].load(Relaxed);
        // An extra field is no longer than this.
        DataStart::Guess(least + u64::from(entry.gap.saturating_sub(behind).min(u32::from(u16::MAX))))
    }

    /// Returns where the entry's data begin, according to its local header.
    ///
    /// # Errors
    /// If the header isn't that of the entry.
    fn data_after(&self, entry: &Entry, header: &[u8; HEADER]) -> Result<u64> {
        let wrong = |what: &str| {
            Error::damaged(format!(
                "expected the entry's header at offset {} of the archive, but {what}; the archive is damaged or was replaced",
                entry.header
            ))
        };
        if !header.starts_with(b"PK\x03\x04") {
            return Err(wrong("found something else"));
        }
        let (flags, method) = (u16_at(header, 6), u16_at(header, 8));
        let method_of_entry = if entry.method() == Method::Stored { 0 } else { 8 };
        if method != method_of_entry || flags & 1 != 0 || u16_at(header, 26) != entry.stored_name_len {
            return Err(wrong("found that of another one"));
        }
        // The header has no sizes if a descriptor has them, and none that don't fit into 32 bits.
        let same = |at, of_entry: u64| {
            flags & 8 != 0 || [of_entry, u64::from(u32::MAX)].contains(&u64::from(u32_at(header, at)))
        };
        if !(same(18, entry.compressed) && same(22, entry.size) && (flags & 8 != 0 || u32_at(header, 14) == entry.crc))
        {
            return Err(wrong("its sizes or checksum differ from the directory's"));
        }
        let extra = u32::from(u16_at(header, 28));
        let behind = entry.gap.checked_sub(extra).ok_or_else(|| wrong("its data reach into the next entry"))?;
        // One program wrote all entries in the same way, so the next guess relies on this number.
        self.behind[usize::from(entry.has_descriptor())].store(behind, Relaxed);
        Ok(entry.header + HEADER_LEN + u64::from(entry.stored_name_len) + u64::from(extra))
    }

    /// Fills `to` with bytes of the archive, from `offset` on.
    async fn fill(&self, offset: u64, to: &mut [u8], phase: Phase) -> Result<()> {
        let found = self.base.read(ARCHIVE_KEY, ByteRange::From(offset), self.version.as_ref(), phase, to).await?;
        found.map(|_| ()).ok_or_else(gone)
    }

    /// Reads the header of an entry, and returns where its data begin.
    async fn read_header(&self, entry: &Entry, phase: Phase) -> Result<u64> {
        let mut header = [0; HEADER];
        self.fill(entry.header, &mut header, phase).await?;
        self.data_after(entry, &header)
    }

    fn known_data(&self, number: u32) -> Option<u64> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied()
    }

    async fn fetch(&self, wanted: Wanted<'_>, to: &mut [u8]) -> Result<()> {
        let Wanted { entry, number, phase, .. } = wanted;
        if to.is_empty() {
            return Ok(());
        }
        let whole = entry.method() != Method::Stored || to.len() as u64 == entry.size;
        let guess = match (self.data_start(entry), self.known_data(number)) {
            (DataStart::Known(data), _) | (DataStart::Guess(_), Some(data)) => {
                return self.fetch_at(wanted, data, to).await;
            }
            (DataStart::Guess(data), None) => data,
        };
        let tried = if whole { Some(self.fetch_at(wanted, guess, to).await) } else { None };
        if let Some(Ok(())) = tried {
            return Ok(());
        }
        let data = self.read_header(entry, phase).await?;
        match tried {
            // The guess was right, but the data are wrong.
            Some(failed) if data == guess => failed,
            Some(_) => self.fetch_at(wanted, data, to).await,
            None => {
                self.data.lock().unwrap_or_else(PoisonError::into_inner).insert(number, data);
                self.fetch_at(wanted, data, to).await
            }
        }
    }

    /// Reads the wanted part of an entry with data that begin at `data`.
    async fn fetch_at(&self, wanted: Wanted<'_>, data: u64, to: &mut [u8]) -> Result<()> {
        let Wanted { entry, offset, phase, .. } = wanted;
        if entry.method() == Method::Stored {
            self.fill(data + offset, to, phase).await?;
            return if to.len() as u64 == entry.size { check_crc(entry.crc, crc32fast::hash(to)) } else { Ok(()) };
        }
        let range = data..data + entry.compressed;
        let mut inflater = Inflater::new(entry, offset, to);
        let found = self.base.stream(ARCHIVE_KEY, range, self.version.as_ref(), phase, &mut inflater).await?;
        found.ok_or_else(gone)?;
        inflater.finish()
    }

    fn within(&self, key: &str, e: &Error) -> Error {
        e.at(Site::store(&*self.location).key(key))
    }
}

fn gone() -> Error {
    Error::coded(
        Code::Replaced,
        "expected the archive whose directory was read, but it is gone; it was deleted or moved while it was read",
    )
}

#[async_trait]
impl Store for Zip {
    fn location(&self) -> &str {
        &self.location
    }

    fn latency(&self) -> Latency {
        self.base.latency()
    }

    fn runtime(&self) -> Option<&Arc<Runtime>> {
        self.base.runtime()
    }

    async fn read(
        &self,
        key: &str,
        range: ByteRange,
        _: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let Some((number, entry)) = self.find(key)? else { return Ok(None) };
        let within = |e: Error| self.within(key, &e);
        if let Some((offset, len)) = range.resolve(entry.size, to.len()).map_err(within)? {
            let wanted = Wanted { entry, number, offset, phase };
            self.fetch(wanted, &mut to[..len]).await.map_err(within)?;
        }
        Ok(Some(Found { size: entry.size, version: self.version.clone() }))
    }

    async fn get(&self, key: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        let Some((number, entry)) = self.find(key)? else { return Ok(None) };
        if entry.size > max {
            return Err(too_long(&self.location, key, max, entry.size));
        }
        let mut bytes = vec![0; entry.size as usize];
        let wanted = Wanted { entry, number, offset: 0, phase };
        self.fetch(wanted, &mut bytes).await.map_err(|e| self.within(key, &e))?;
        Ok(Some(bytes))
    }

    async fn head(&self, key: &str) -> Result<Option<Found>> {
        Ok(self.find(key)?.map(|(_, entry)| Found { size: entry.size, version: self.version.clone() }))
    }

    fn head_needs_io(&self, _key: &str) -> bool {
        false
    }

    async fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.directory.find(&self.name(key)).is_some())
    }

    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        let prefix = self.name(prefix);
        let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        Ok(Some(self.directory.children(&format!("{prefix}{slash}"))))
    }
}

fn method_name(method: u16) -> &'static str {
    match method {
        9 => " (Deflate64)",
        12 => " (bzip2)",
        14 => " (LZMA)",
        93 => " (Zstandard)",
        95 => " (XZ)",
        _ => "",
    }
}

/// Splits a URL after the first part of its path that ends with `.zip`, into the URL of the archive and the path
/// inside. `None` if no part does.
pub(super) fn split_url(location: &str) -> Option<(&str, String)> {
    if location.contains(['?', '#']) {
        // Such URLs are refused later.
        return None;
    }
    let path = location.find("://")? + 3;
    let mut at = path + location[path..].find('/')?;
    while at < location.len() {
        let end = location[at + 1..].find('/').map_or(location.len(), |len| at + 1 + len);
        if location[at..end].to_ascii_lowercase().ends_with(".zip") {
            let inner = percent_decoded(&location[end..]).to_string_lossy().into_owned();
            return Some((&location[..end], inner));
        }
        at = end;
    }
    None
}
