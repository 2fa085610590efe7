//! The version of a local file, and the versions of local files in references from other stores.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

use crate::ObjectVersion;

/// Returns the version of the file with these metadata.
pub(super) fn version(meta: &Metadata) -> ObjectVersion {
    let born = meta.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    ObjectVersion::File {
        size: meta.size(),
        seconds: meta.mtime(),
        nanoseconds: meta.mtime_nsec(),
        born: born.as_nanos() as u64,
    }
}

/// Whether the file with these metadata has the version that a reference from another store gave; `None` if `wanted` isn't
/// from such a reference.
pub(super) fn is_as_referenced(wanted: &ObjectVersion, meta: &Metadata) -> Option<bool> {
    match wanted {
        ObjectVersion::NotAfter(date) => Some(meta.mtime() <= *date),
        // The tag that the crate object_store makes for a file.
        ObjectVersion::Tag(tag) => {
            let micros = i128::from(meta.mtime()) * 1_000_000 + i128::from(meta.mtime_nsec() / 1000);
            Some(tag.trim_matches('"') == format!("{:x}-{micros:x}-{:x}", meta.ino(), meta.size()))
        }
        ObjectVersion::File { .. } | ObjectVersion::Dated { .. } | ObjectVersion::At(_) => None,
    }
}
