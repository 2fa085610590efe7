//! The version of a local file, and the versions of local files in references from other stores.

use std::fs::Metadata;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use crate::not_after_date;

/// The version of a file: its size, and the times of its last change and of its birth (where the file system has it),
/// in nanoseconds. The inode's number isn't in it: file systems in user space give new ones to files that they have
/// forgotten. The text is written without an allocation, since it is compared for each inner chunk of a shard.
pub(super) struct Version {
    text: [u8; 96],
    len: usize,
}

impl Version {
    pub fn of(meta: &Metadata) -> Self {
        let born = meta.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        let mut text = [0; 96];
        let mut rest = &mut text[..];
        // Four numbers, none of more than 24 hexadecimal digits: they fit.
        let _ = write!(rest, "{:x} {:x}.{:x} {:x}", meta.size(), meta.mtime(), meta.mtime_nsec(), born.as_nanos());
        let len = 96 - rest.len();
        Self { text, len }
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..self.len]).unwrap_or_default()
    }
}

/// The version of a file, as a reference from another store gives it.
pub(super) enum ForeignVersion<'a> {
    /// The tag that the crate object_store makes for a file.
    Tag(&'a str),
    /// The file wasn't changed after this date, in seconds since 1970.
    NotAfter(i64),
}

/// Returns the version that a reference from another store gave; `None` if [`Version`] made `version`. Those versions
/// contain no quote.
pub(super) fn foreign_version(version: &str) -> Option<ForeignVersion<'_>> {
    if let Some(date) = not_after_date(version) {
        return Some(ForeignVersion::NotAfter(date));
    }
    version.contains('"').then(|| ForeignVersion::Tag(version.trim_matches('"')))
}

impl ForeignVersion<'_> {
    /// Whether the file with these metadata has this version.
    pub fn describes(&self, meta: &Metadata) -> bool {
        match *self {
            Self::NotAfter(date) => meta.mtime() <= date,
            Self::Tag(tag) => {
                let micros = i128::from(meta.mtime()) * 1_000_000 + i128::from(meta.mtime_nsec() / 1000);
                tag == format!("{:x}-{micros:x}-{:x}", meta.ino(), meta.size())
            }
        }
    }
}
