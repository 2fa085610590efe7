//! Where NVIDIA's libraries lie, and what their functions answer.

use std::path::{Path, PathBuf};

use dali_zarr_base::error::{Error, Result};

/// Turns a status of a library's function into a [`Result`].
pub(super) fn check(call: &str, status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::runtime(format!("{call} failed with status {status}"))) }
}

/// Returns the files that may be a library: as pip installs it, at `place`, then what the system's loader finds by its name.
pub(super) fn candidates(place: &str, soname: &str) -> Vec<PathBuf> {
    installed(place).into_iter().chain([soname.into()]).collect()
}

/// Returns the files that lie at `place` in a folder of packages: the one of this library, or of DALI's.
fn installed(place: &str) -> Vec<PathBuf> {
    let ours = mapped().into_iter().filter(|path| is_named(path, "libdali"));
    let mut found: Vec<PathBuf> = Vec::new();
    for path in ours {
        let beside = path.ancestors().skip(1).take(4).map(|folder| folder.join(place));
        found.extend(beside.filter(|candidate| candidate.is_file()));
    }
    found.dedup();
    found
}

/// The files that this process has mapped: its libraries.
fn mapped() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut paths: Vec<PathBuf> = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].into())).collect();
    paths.sort();
    paths.dedup();
    paths
}

pub(super) fn is_named(path: &Path, prefix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(prefix))
}
