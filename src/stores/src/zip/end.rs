//! The end of a zip archive: the records that tell where its directory is. Archives may have more than 4 GiB or 65535
//! entries (ZIP64), a comment at their end, or other data before them.
//!
//! Format: PKWARE's APPNOTE 6.3, sections 4.3.14 to 4.3.16. Ambiguous archives are read as Python's zipfile reads them.

use std::ops::Range;

use super::numbers::{u16_at, u32_at, u64_at};
use dali_zarr_base::error::{Code, Error, Result};

/// Bytes at the end of the archive that are read first. They hold a directory of a few thousand entries.
pub(super) const TAIL: usize = 256 << 10;
/// Most bytes of a directory. It stays in memory, see `directory.rs`.
const MAX_DIRECTORY: u64 = 512 << 20;

const END: &[u8] = b"PK\x05\x06";
const END_LEN: usize = 22;
const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_LEN: usize = 20;
const END64: &[u8] = b"PK\x06\x06";
const END64_LEN: usize = 56;

/// Where the directory lies, and how many entries it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    /// The directory's place in the file.
    pub directory: Range<u64>,
    /// Bytes of other data before the archive. Offsets in the archive are relative to their end.
    pub before: u64,
    /// The number of entries, and a mask of its bits that are known: without ZIP64 only the low 16.
    pub entries: (u64, u64),
}

impl End {
    /// Finds the directory, given the last bytes of a file of `size` bytes.
    ///
    /// # Errors
    /// If `tail` isn't the end of an archive that can be read.
    pub fn find(tail: &[u8], size: u64) -> Result<Self> {
        let begin = size - tail.len() as u64;
        let at = position(tail).ok_or_else(|| {
            Error::value("expected a zip archive, but found no end of one; the file is truncated or something else")
                .with_code(Code::Damaged)
        })?;
        let end = &tail[at..];
        let mut disks = [u32::from(u16_at(end, 4)), u32::from(u16_at(end, 6))];
        let (mut entries, mut len, mut offset) =
            ((u64::from(u16_at(end, 10)), 0xffff), u64::from(u32_at(end, 12)), u64::from(u32_at(end, 16)));
        // The directory ends where the first of these records begins.
        let mut until = at;
        if let Some(locator) = at.checked_sub(LOCATOR_LEN).filter(|&l| tail[l..].starts_with(LOCATOR)) {
            let Some(at64) = locator.checked_sub(END64_LEN).filter(|&a| tail[a..].starts_with(END64)) else {
                return Err(Error::value(
                    "expected a ZIP64 end record before its locator, but found none; the archive is damaged, or has an \
                     extension that isn't read: write it again",
                ));
            };
            let end = &tail[at64..];
            disks = [u32_at(end, 16), u32_at(end, 20)];
            (entries, len, offset) = ((u64_at(end, 32), u64::MAX), u64_at(end, 40), u64_at(end, 48));
            until = at64;
        }
        if disks != [0, 0] {
            return Err(Error::value(
                "expected a zip archive in one file, but found a part of one in several; join them",
            ));
        }
        if len > MAX_DIRECTORY {
            return Err(Error::value(format!(
                "expected a directory of at most {MAX_DIRECTORY} bytes, but found {len}; put fewer files into one archive \
                 (shards, for example)"
            )));
        }
        let until = begin + until as u64;
        let found = until.checked_sub(len).and_then(|from| Some((from, from.checked_sub(offset)?)));
        let (from, before) = found.ok_or_else(|| {
            Error::value(format!(
                "expected the directory's {len} bytes at offset {offset} before the archive's end at {until}; the \
                 archive is truncated or damaged"
            ))
        })?;
        Ok(Self { directory: from..until, before, entries })
    }
}

/// Returns where the end record begins: the last one with a comment that ends with the file, or else the last one of
/// all, as in Python.
fn position(tail: &[u8]) -> Option<usize> {
    let last = tail.len().checked_sub(END_LEN)?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let begins = |at: &usize| tail[*at..].starts_with(END);
    let ends = |at: &usize| at + END_LEN + usize::from(u16_at(tail, at + 20)) == tail.len();
    (first..=last).rev().filter(begins).find(ends).or_else(|| (first..=last).rev().find(begins))
}
