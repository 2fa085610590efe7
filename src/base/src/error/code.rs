//! What went wrong, by what a program can do about it.
//!
//! [`ErrorKind`] and [`Code`] answer two questions. The kind says which Python exception is raised, and that depends on
//! the moment: a server that refuses access is a `ValueError` while a pipeline is built, and a `RuntimeError` at a batch.
//! The code says what happened, and is the same at any moment.

use super::ErrorKind;

/// What went wrong. The names are a promise to programs: they are never changed or removed, and new ones come at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// An argument or the metadata of a store is wrong. The call must change.
    Invalid,
    /// An argument or an array has a type that doesn't fit. The call must change.
    WrongType,
    /// An index is outside its dimension. The call must change.
    OutOfRange,
    /// The machine or the device lacks memory. Smaller batches or limits may help.
    OutOfMemory,
    /// A store, a bucket, an array or a file isn't there. A missing chunk is no error: it is a fill value.
    NotFound,
    /// The store or the system refuses access. Credentials or rights must change.
    PermissionDenied,
    /// The store didn't answer, or failed, in all tries. A later try may succeed.
    Unavailable,
    /// A value was replaced while it was read. A reader that is opened again reads the new value.
    Replaced,
    /// Stored bytes aren't what their format or their checksum says. They must be written again.
    Damaged,
    /// Data are stored with a codec that this reader doesn't have. They must be rewritten, or left out.
    Unsupported,
    /// The wait was ended by Ctrl-C, or by the end of the process.
    Interrupted,
    /// A bug of this library.
    Internal,
    /// Anything else: the message says what.
    Failed,
    /// A GPU or its driver failed, is missing, or is too old. If it failed while a reader ran, the process's CUDA context
    /// may be lost, and the process must start again.
    DeviceFailed,
}

/// All codes: the name for programs, and the kind of an error of this code unless the moment asks for another one.
const TABLE: [(Code, &str, ErrorKind); 14] = [
    (Code::Invalid, "invalid", ErrorKind::Value),
    (Code::WrongType, "wrong_type", ErrorKind::Type),
    (Code::OutOfRange, "out_of_range", ErrorKind::Index),
    (Code::OutOfMemory, "out_of_memory", ErrorKind::Memory),
    (Code::NotFound, "not_found", ErrorKind::Value),
    (Code::PermissionDenied, "permission_denied", ErrorKind::Runtime),
    (Code::Unavailable, "unavailable", ErrorKind::Runtime),
    (Code::Replaced, "replaced", ErrorKind::Runtime),
    (Code::Damaged, "damaged", ErrorKind::Runtime),
    (Code::Unsupported, "unsupported", ErrorKind::Value),
    (Code::Interrupted, "interrupted", ErrorKind::Runtime),
    (Code::Internal, "internal", ErrorKind::Runtime),
    (Code::Failed, "failed", ErrorKind::Runtime),
    (Code::DeviceFailed, "device_failed", ErrorKind::Runtime),
];

impl Code {
    /// Returns the name for programs.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Returns the kind of an error of this code, unless the moment asks for another one ([`super::Error::of_kind`]).
    pub fn kind(self) -> ErrorKind {
        TABLE[self as usize].2
    }

    /// Returns the code of an error of which only the kind is known.
    pub(super) fn of_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Value => Self::Invalid,
            ErrorKind::Type => Self::WrongType,
            ErrorKind::Index => Self::OutOfRange,
            ErrorKind::Runtime => Self::Failed,
            ErrorKind::Memory => Self::OutOfMemory,
        }
    }

    /// Returns the code of a failure of the system: of a file, or of a read.
    pub fn of_system(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as E;
        match error.kind() {
            E::NotFound | E::NotADirectory => Self::NotFound,
            E::PermissionDenied => Self::PermissionDenied,
            E::UnexpectedEof => Self::Damaged,
            E::OutOfMemory => Self::OutOfMemory,
            _ => Self::Unavailable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_code_at_its_place() {
        for (i, (code, name, kind)) in TABLE.into_iter().enumerate() {
            assert_eq!((code as usize, code.name(), code.kind()), (i, name, kind));
        }
    }

    #[test]
    fn names_are_never_changed() {
        let names = TABLE.map(|(_, name, _)| name);
        let promised = [
            "invalid",
            "wrong_type",
            "out_of_range",
            "out_of_memory",
            "not_found",
            "permission_denied",
            "unavailable",
            "replaced",
            "damaged",
            "unsupported",
            "interrupted",
            "internal",
            "failed",
            "device_failed",
        ];
        assert_eq!(names[..promised.len()], promised, "new names come at the end");
    }

    #[test]
    fn the_header_and_the_page_name_every_code() {
        let header = include_str!("../../../../include/dali_zarr.h");
        let page = include_str!("../../../../docs/reference/python.md");
        for (_, name, _) in TABLE {
            assert!(header.contains(&format!("\"{name}\"")), "{name}");
            assert!(page.contains(&format!("| `\"{name}\"` |")), "{name}");
        }
    }

    #[test]
    fn every_kind_has_a_code_that_leads_back_to_it() {
        let kinds = [ErrorKind::Value, ErrorKind::Type, ErrorKind::Index, ErrorKind::Runtime, ErrorKind::Memory];
        for kind in kinds {
            assert_eq!(Code::of_kind(kind).kind(), kind);
        }
    }

    #[test]
    fn failures_of_the_system() {
        let code = |number| Code::of_system(&std::io::Error::from_raw_os_error(number));
        assert_eq!(code(libc::ENOENT), Code::NotFound);
        assert_eq!((code(libc::EACCES), code(libc::EPERM)), (Code::PermissionDenied, Code::PermissionDenied));
        assert_eq!(
            (code(libc::EIO), code(libc::ESTALE), code(libc::ELOOP)),
            (Code::Unavailable, Code::Unavailable, Code::Unavailable)
        );
    }
}
