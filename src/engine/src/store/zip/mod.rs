//! Zip archives as stores: what zarr-python's `ZipStore` and every zip program write, local ones and remote ones.
//!
//! The [`directory`] is read once, when the store is opened, and stays in memory. From then on a value is a range of the archive,
//! read at once ([`local`], [`remote`]); a deflated one is inflated while it comes ([`inflate`]).
//!
//! Where an entry's data begin, only its local header says. To read that each time would cost a request, so it is
//! worked out from what lies between the entries: nearly always nothing in all of the archive, and then data can begin at one place only.
//! Otherwise there is a guess, which the checksum of a whole value confirms; for parts, or if it doesn't, the header is read.

mod directory;
mod end;
mod inflate;
mod local;
mod remote;
#[cfg(test)]
mod tests;

pub use local::LocalZip;
pub(super) use local::split as split_path;
pub use remote::RemoteZip;

use std::borrow::Cow;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::local::percent_decoded;
use crate::error::{Error, Result};
use directory::{Directory, Entry, HEADER_LEN, Method, u16_at, u32_at};

/// What is read of a local header: all but the name and the extra field.
const HEADER: usize = HEADER_LEN as usize;
/// What most writers put behind data whose sizes they didn't know before: a signature, a checksum, two sizes.
const DESCRIPTOR: u32 = 16;

/// What local and remote archives have in common.
struct Archive {
    location: String,
    /// What goes before keys: empty, or a path inside of the archive and a slash.
    prefix: String,
    directory: Directory,
    /// Bytes that are taken to lie behind an entry's data: where there is no descriptor, and where there is one.
    behind: [AtomicU32; 2],
}

/// Where an entry's data begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Known(u64),
    Guess(u64),
}

impl Archive {
    fn new(location: String, inner: &str, directory: Directory) -> Self {
        let inner = inner.trim_matches('/');
        let prefix = if inner.is_empty() { String::new() } else { format!("{inner}/") };
        Self { location, prefix, directory, behind: [AtomicU32::new(0), AtomicU32::new(DESCRIPTOR)] }
    }

    fn name<'a>(&self, key: &'a str) -> Cow<'a, str> {
        if self.prefix.is_empty() { Cow::Borrowed(key) } else { format!("{}{key}", self.prefix).into() }
    }

    /// The entry of `key`, and its number.
    ///
    /// # Errors
    /// If it is there, but can't be read.
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

    fn exists(&self, key: &str) -> bool {
        self.directory.find(&self.name(key)).is_some()
    }

    fn children(&self, prefix: &str) -> Vec<String> {
        let prefix = self.name(prefix);
        let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
        self.directory.children(&format!("{prefix}{slash}"))
    }

    fn place(&self, entry: &Entry) -> Place {
        let least = entry.header + HEADER_LEN + u64::from(entry.stored_name_len);
        if self.directory.tight {
            return Place::Known(least);
        }
        let behind = self.behind[usize::from(entry.has_descriptor())].load(Relaxed);
        // The longest extra field there is.
        Place::Guess(least + u64::from(entry.spare.saturating_sub(behind).min(u32::from(u16::MAX))))
    }

    /// Where the data begin, from the local header.
    ///
    /// # Errors
    /// If that isn't the entry's.
    fn data(&self, entry: &Entry, header: &[u8; HEADER]) -> Result<u64> {
        let wrong = |what: &str| {
            Error::runtime(format!(
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
        // Sizes are behind the data if a descriptor is, and in the extra field if they are large.
        let same = |at, of_entry: u64| {
            flags & 8 != 0 || [of_entry, u64::from(u32::MAX)].contains(&u64::from(u32_at(header, at)))
        };
        if !(same(18, entry.compressed) && same(22, entry.size) && (flags & 8 != 0 || u32_at(header, 14) == entry.crc))
        {
            return Err(wrong("its sizes or checksum differ from the directory's"));
        }
        let extra = u32::from(u16_at(header, 28));
        let behind = entry.spare.checked_sub(extra).ok_or_else(|| wrong("its data reach into the next entry"))?;
        // What writes one archive writes all entries alike.
        self.behind[usize::from(entry.has_descriptor())].store(behind, Relaxed);
        Ok(entry.header + HEADER_LEN + u64::from(entry.stored_name_len) + u64::from(extra))
    }

    fn within(&self, key: &str, e: &Error) -> Error {
        e.within(format!("store {}: key {key:?}", self.location))
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

/// Divides a URL behind the first part of its path that ends with `.zip`: the archive, and the path inside.
pub(super) fn split_url(location: &str) -> Option<(&str, String)> {
    if location.contains(['?', '#']) {
        // Refused, as for other URLs.
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
