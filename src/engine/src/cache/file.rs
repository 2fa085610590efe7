//! The file of a piece: a head with its name and sizes, then its bytes, both with checksums.
//!
//! A file never gives wrong bytes: name, length and both checksums must be right. The bytes are checked after they were
//! read, so a file may be replaced or cut meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

use super::Name;
use dali_zarr_stores::ObjectVersion;

/// The first bytes of a file. They change with the format.
const MAGIC: &[u8; 8] = b"dzpiece2";

/// Bytes of the fixed part of a head: magic (8 bytes); the lengths of the head, of the name and of the version (plus
/// one; 0: there is no version), and the checksum of the piece (4 bytes each); the bytes of the piece and of the whole
/// value (8 bytes each).
const NUMBERS: usize = 8 + 4 * 4 + 2 * 8;

/// Bytes of the longest head. A piece with a longer head is not kept.
const MAX_HEAD: usize = 4096;

/// Bytes that are read at a time. They are still in the core's cache when their checksum is computed.
const BLOCK: usize = 256 << 10;

/// The result of looking for the file of a piece.
pub(super) enum FileLookup {
    Missing,
    /// The file is no piece, or it is damaged.
    Damaged,
    Piece(PieceFile),
}

/// The open file of a piece. Its head was read.
pub(super) struct PieceFile {
    file: File,
    /// Where the piece begins in the file.
    at: u64,
    /// The checksum of the piece (CRC-32C).
    crc: u32,
    /// Bytes of the piece.
    pub len: usize,
    /// Bytes of the whole value.
    pub size: u64,
    pub version: Option<ObjectVersion>,
    /// When it was written, or when a reader marked it as used.
    pub used: SystemTime,
}

/// Returns the head of a file for these bytes; `None` if it would be too long.
pub(super) fn head(name: &Name, version: Option<&ObjectVersion>, size: u64, bytes: &[u8]) -> Option<Vec<u8>> {
    let version = version.map(ObjectVersion::to_bytes);
    let version_len = version.as_ref().map_or(0, |v| v.len() + 1);
    let len = NUMBERS + name.bytes.len() + version_len.saturating_sub(1) + 4;
    if len > MAX_HEAD {
        return None;
    }
    let mut head = Vec::with_capacity(len);
    head.extend(MAGIC);
    for number in [len as u32, name.bytes.len() as u32, version_len as u32, crc32c::crc32c(bytes)] {
        head.extend(number.to_le_bytes());
    }
    head.extend((bytes.len() as u64).to_le_bytes());
    head.extend(size.to_le_bytes());
    head.extend(&name.bytes);
    head.extend(version.unwrap_or_default());
    head.extend(crc32c::crc32c(&head).to_le_bytes());
    Some(head)
}

/// Creates the file `path`, which must not exist.
///
/// # Errors
/// If it can't be written. A partial file may be left.
pub(super) fn write(path: &Path, head: &[u8], bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // A process that adds up the lengths of files meanwhile must see the final one.
    file.set_len((head.len() + bytes.len()) as u64)?;
    file.write_all(head)?;
    file.write_all(bytes)
}

/// Opens the file of a piece.
pub(super) fn look(path: &Path, name: &Name) -> FileLookup {
    // Links are refused: they lead to files that aren't the cache's. O_NONBLOCK: opening a pipe must not wait.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return FileLookup::Missing,
        Err(_) => return FileLookup::Damaged,
    };
    match opened(file, name) {
        Ok(Some(opened)) => FileLookup::Piece(opened),
        _ => FileLookup::Damaged,
    }
}

fn opened(file: File, name: &Name) -> io::Result<Option<PieceFile>> {
    let meta = file.metadata()?;
    let mut start = [0; MAX_HEAD];
    let have = usize::try_from(meta.len()).unwrap_or(MAX_HEAD).min(MAX_HEAD);
    if !meta.is_file() || have < NUMBERS {
        return Ok(None);
    }
    file.read_exact_at(&mut start[..have], 0)?;
    let short = |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
    let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
    let (head, name_len, version_len) = (short(8) as usize, short(12) as usize, short(16) as usize);
    let (crc, len, size) = (short(20), long(24), long(32));
    let version_at = NUMBERS.saturating_add(name_len);
    let crc_at = version_at.saturating_add(version_len.saturating_sub(1));
    let right = start[..8] == *MAGIC && crc_at.checked_add(4) == Some(head) && head <= have;
    if !right || short(crc_at) != crc32c::crc32c(&start[..crc_at]) {
        return Ok(None);
    }
    if start[NUMBERS..version_at] != name.bytes || len.checked_add(head as u64) != Some(meta.len()) {
        return Ok(None);
    }
    let version = match version_len {
        0 => None,
        _ => match ObjectVersion::of_bytes(&start[version_at..crc_at]) {
            Some(version) => Some(version),
            None => return Ok(None),
        },
    };
    let used = meta.modified()?;
    Ok(usize::try_from(len).ok().map(|len| PieceFile { file, at: head as u64, crc, len, size, version, used }))
}

impl PieceFile {
    /// Marks the piece as used now, by the time of its file.
    pub fn touch(&self) {
        // If the file belongs to another user, its time can't be set. Nothing is lost then.
        let _ = self.file.set_modified(SystemTime::now());
    }

    /// Reads the piece to `to`, which must have its length. False if it can't be read or its checksum is wrong: then
    /// the content of `to` is undefined.
    pub fn fill(&self, to: &mut [u8]) -> bool {
        let (mut at, mut crc) = (self.at, 0);
        for block in to.chunks_mut(BLOCK) {
            if self.file.read_exact_at(block, at).is_err() {
                return false;
            }
            crc = crc32c::crc32c_append(crc, block);
            at += block.len() as u64;
        }
        crc == self.crc
    }
}
