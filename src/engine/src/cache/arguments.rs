//! The arguments of the cache: checks them, and finds the limit of the folder.

use std::path::Path;

use super::{disk, folder};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::spec::Spec;
use dali_zarr_stores as store;

/// The smallest cache size that is accepted, in bytes. A smaller one is a mistake in the unit.
const MIN_SIZE: u64 = 1 << 20;

/// Checks the arguments of the cache.
///
/// # Errors
/// [`Error::value`] if one of them is wrong.
pub(crate) fn check(spec: &Spec) -> Result<()> {
    if spec.resources.cache_size > 0 && spec.resources.cache_size < MIN_SIZE {
        return Err(Error::value(format!(
            "cache_size: expected 0, or at least {MIN_SIZE} bytes, but found {}",
            spec.resources.cache_size
        )));
    }
    if let Some(limit) = spec.resources.cache_dir_size {
        if spec.resources.cache_dir.is_none() {
            return Err(Error::value("cache_dir_size: expected none without cache_dir; give cache_dir too"));
        }
        if limit < MIN_SIZE {
            return Err(Error::value(format!("cache_dir_size: expected at least {MIN_SIZE} bytes, but found {limit}")));
        }
    }
    if let Some(folder) = spec.resources.cache_dir.as_ref().filter(|f| f.to_string_lossy().contains("://")) {
        return Err(Error::value(format!(
            "cache_dir: expected the path of a folder on a local disk, but found the URL {}",
            folder.display()
        )));
    }
    if spec.resources.cache_dir.as_ref().is_some_and(|f| f.starts_with("~")) {
        return Err(Error::value(
            "cache_dir: expected a path, but found one that begins with ~, which only a shell replaces; write it out",
        ));
    }
    let remote = || {
        spec.source.locations().iter().any(|p| store::is_remote(p))
            || store::has_remote_places(&spec.source.storage_options)
    };
    if spec.resources.cache_dir.is_some() && !remote() {
        return Err(Error::value(
            "cache_dir: expected none, since every path is local; leave it out, or use cache_size if reading is slow",
        ));
    }
    Ok(())
}

/// Returns the limit in bytes that a reader would set on the folder of `spec`. Creates nothing. `None` if there is no
/// folder, or the limit can't be known.
pub(crate) fn disk_limit(spec: &Spec) -> Option<u64> {
    let root: &Path = spec.resources.cache_dir.as_ref()?;
    spec.resources.cache_dir_size.or_else(|| {
        let free = root.ancestors().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
        let free = free.filter_map(|p| folder::free(p).ok()).next()?;
        Some(disk::default_limit(free, folder::held(root)))
    })
}
