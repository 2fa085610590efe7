//! A zip archive on a server. Opening it is one request for its end, and one more if its directory is long; a value is one
//! request, also for the first time, unless the archive has something between its entries that is no header's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::directory::{Directory, Entry, Method};
use super::end::{End, TAIL};
use super::inflate::{Inflater, check_crc};
use super::{Archive, HEADER, Place};
use crate::error::{Error, Result};
use crate::store::remote::Io;
use crate::store::remote::RemoteStore;
use crate::store::{AsyncStore, Found, Part, Phase, too_long, window};

/// The key of a store's own URL, which is the archive's.
const ITSELF: &str = "";

/// A store in a zip archive on a server.
pub struct RemoteZip {
    pub(super) archive: Archive,
    base: Arc<RemoteStore>,
    /// The archive's, when its directory was read: nothing of another one is read.
    version: Option<Arc<str>>,
    /// Where the data of entries begin of which parts were read, by the entries' numbers, where their headers had to be asked.
    data: Mutex<HashMap<u32, u64>>,
}

/// One value, or a part of one.
struct Wanted<'a> {
    entry: &'a Entry,
    number: u32,
    offset: u64,
    phase: Phase,
}

impl RemoteZip {
    /// Opens the archive that `base` is the URL of, and of that the part below `inner`.
    ///
    /// # Errors
    /// [`Error::value`] if it isn't an archive that can be read, or isn't there.
    pub async fn open(base: Arc<RemoteStore>, inner: &str) -> Result<Self> {
        let location = match inner.trim_matches('/') {
            "" => base.location().to_owned(),
            inner => format!("{}/{inner}", base.location()),
        };
        let (directory, version) = Self::directory(&*base).await.map_err(|e| {
            // What a request that failed says names the store already.
            let named = e.message().starts_with("store ");
            Error::value(if named { e.message().to_owned() } else { format!("store {location}: {e}") })
        })?;
        Ok(Self { archive: Archive::new(location, inner, directory), base, version, data: Mutex::default() })
    }

    async fn directory(base: &dyn AsyncStore) -> Result<(Directory, Option<Arc<str>>)> {
        let gone = || Error::value("expected a zip archive, but found nothing; check the URL");
        let mut tail = vec![0; TAIL];
        let read = async |part, version: Option<&Arc<str>>, to: &mut [u8]| {
            base.read(ITSELF, part, version, Phase::Building, to).await?.ok_or_else(gone)
        };
        let found = read(Part::Last, None, &mut tail).await?;
        if found.size < TAIL as u64 {
            tail.truncate(found.size as usize);
            if !tail.is_empty() {
                read(Part::From(0), found.version.as_ref(), &mut tail).await?;
            }
        }
        let end = End::find(&tail, found.size)?;
        let mut bytes = vec![0; (end.directory.end - end.directory.start) as usize];
        // What of it isn't in the tail; in that it ends.
        let tail_at = found.size - tail.len() as u64;
        let before = tail_at.saturating_sub(end.directory.start).min(bytes.len() as u64) as usize;
        let (front, back) = bytes.split_at_mut(before);
        if !front.is_empty() {
            read(Part::From(end.directory.start), found.version.as_ref(), front).await?;
        }
        let from = end.directory.start.saturating_sub(tail_at) as usize;
        back.copy_from_slice(&tail[from..from + back.len()]);
        Ok((Directory::parse(&bytes, &end)?, found.version))
    }

    /// Bytes of the archive.
    async fn fill(&self, offset: u64, to: &mut [u8], phase: Phase) -> Result<()> {
        let found = self.base.read(ITSELF, Part::From(offset), self.version.as_ref(), phase, to).await?;
        found.map(|_| ()).ok_or_else(gone)
    }

    async fn header(&self, entry: &Entry, phase: Phase) -> Result<u64> {
        let mut header = [0; HEADER];
        self.fill(entry.header, &mut header, phase).await?;
        self.archive.data(entry, &header)
    }

    async fn fetch(&self, wanted: &Wanted<'_>, to: &mut [u8]) -> Result<()> {
        let Wanted { entry, number, phase, .. } = *wanted;
        if to.is_empty() {
            return Ok(());
        }
        let whole = entry.method() != Method::Stored || to.len() as u64 == entry.size;
        let known = || self.data.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied();
        let guess = match (self.archive.place(entry), known()) {
            (Place::Known(data), _) | (Place::Guess(_), Some(data)) => return self.fetch_at(wanted, data, to).await,
            (Place::Guess(data), None) => data,
        };
        let tried = if whole { Some(self.fetch_at(wanted, guess, to).await) } else { None };
        if let Some(Ok(())) = tried {
            return Ok(());
        }
        let data = self.header(entry, phase).await?;
        match tried {
            // The guess was right, the data aren't.
            Some(failed) if data == guess => failed,
            Some(_) => self.fetch_at(wanted, data, to).await,
            None => {
                self.data.lock().unwrap_or_else(PoisonError::into_inner).insert(number, data);
                self.fetch_at(wanted, data, to).await
            }
        }
    }

    /// Reads, the entry's data being at `data`.
    async fn fetch_at(&self, wanted: &Wanted<'_>, data: u64, to: &mut [u8]) -> Result<()> {
        let Wanted { entry, offset, phase, .. } = *wanted;
        if entry.method() == Method::Stored {
            self.fill(data + offset, to, phase).await?;
            return if to.len() as u64 == entry.size { check_crc(entry.crc, crc32fast::hash(to)) } else { Ok(()) };
        }
        let range = data..data + entry.compressed;
        let mut inflater = Inflater::new(entry, offset, to);
        let found = self.base.stream(ITSELF, range, self.version.as_ref(), phase, &mut inflater).await?;
        found.ok_or_else(gone)?;
        inflater.finish()
    }
}

fn gone() -> Error {
    Error::runtime(
        "expected the archive whose directory was read, but it is gone; it was deleted or moved while it was read",
    )
}

#[async_trait]
impl AsyncStore for RemoteZip {
    fn location(&self) -> &str {
        &self.archive.location
    }

    fn io(&self) -> &Arc<Io> {
        self.base.io()
    }

    async fn read(
        &self,
        key: &str,
        part: Part,
        _: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let Some((number, entry)) = self.archive.find(key)? else { return Ok(None) };
        let within = |e: Error| self.archive.within(key, &e);
        if let Some((offset, len)) = window(part, entry.size, to.len()).map_err(within)? {
            let wanted = Wanted { entry, number, offset, phase };
            self.fetch(&wanted, &mut to[..len]).await.map_err(within)?;
        }
        // The one version that there is.
        Ok(Some(Found { size: entry.size, version: self.version.clone() }))
    }

    async fn get(&self, key: &str, most: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        let Some((number, entry)) = self.archive.find(key)? else { return Ok(None) };
        if entry.size > most {
            return Err(too_long(self.location(), key, most, entry.size));
        }
        let mut bytes = vec![0; entry.size as usize];
        let wanted = Wanted { entry, number, offset: 0, phase };
        self.fetch(&wanted, &mut bytes).await.map_err(|e| self.archive.within(key, &e))?;
        Ok(Some(bytes))
    }

    async fn head(&self, key: &str) -> Result<Option<Found>> {
        let found = |(_, entry): (_, &Entry)| Found { size: entry.size, version: self.version.clone() };
        Ok(self.archive.find(key)?.map(found))
    }

    async fn confirm(&self, key: &str) -> Result<bool> {
        Ok(self.archive.exists(key))
    }

    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        Ok(Some(self.archive.children(prefix)))
    }
}
