//! Finds and opens the library, once for the process, and resolves its functions.

use crate::sys::{Functions, nvcompProperties_t, nvcompStatus_t};
use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::{env, fmt};

/// The library's file name: looked for in the search directories, then by the system's loader.
pub const SONAME: &str = "libnvcomp.so.5";

/// Advice on what to install, for error messages.
pub const ADVICE: &str = "install it with: pip install nvidia-libnvcomp-cu13==5.3.0.16 (nvidia-libnvcomp-cu12 for CUDA 12); or name the library's file in DALI_ZARR_NVCOMP";

/// The opened library.
pub struct Library {
    pub(crate) functions: Functions,
    /// The library's version number: see [`version_parts`].
    pub version: u32,
    /// The file that was opened.
    pub path: PathBuf,
}

/// Why the library could not be opened: every place that was tried, and what to install.
#[derive(Clone, Debug)]
pub struct LoadError {
    tried: Vec<String>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvCOMP 5.2 to 5.9 could not be loaded; {ADVICE}. Tried: ")?;
        f.write_str(&self.tried.join("; "))
    }
}

impl std::error::Error for LoadError {}

static SEARCH_DIRS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static LIBRARY: OnceLock<Library> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

/// Sets the directories where [`load`] looks for the library before it asks the system's loader. Has no effect once the
/// library is loaded.
pub fn set_search_dirs(dirs: Vec<PathBuf>) {
    *SEARCH_DIRS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = dirs;
}

/// Returns the library. The first call that succeeds opens it; it is never closed.
///
/// If the environment variable `DALI_ZARR_NVCOMP` is set, only the file that it names is tried. Otherwise the
/// directories of [`set_search_dirs`] are searched, then the system's loader is asked.
///
/// # Errors
/// If the library isn't found, is not version 5.2 to 5.9, or lacks a function.
pub fn load() -> Result<&'static Library, LoadError> {
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let _one_at_a_time = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = search()?;
    Ok(LIBRARY.get_or_init(|| library))
}

fn search() -> Result<Library, LoadError> {
    let mut tried = Vec::new();
    for (path, why) in candidates() {
        match open(&path) {
            Ok(library) => return Ok(library),
            Err(message) => tried.push(format!("{} ({why}): {message}", path.display())),
        }
    }
    Err(LoadError { tried })
}

fn candidates() -> Vec<(PathBuf, &'static str)> {
    if let Some(named) = env::var_os("DALI_ZARR_NVCOMP") {
        return vec![(named.into(), "named by DALI_ZARR_NVCOMP")];
    }
    let dirs = SEARCH_DIRS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut found: Vec<_> = dirs.iter().map(|dir| (dir.join(SONAME), "given by the host")).collect();
    found.push((SONAME.into(), "the system's loader"));
    found
}

fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: opening runs the library's initialisers, which need neither CUDA nor a driver.
    let opened = unsafe { unix::Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| e.to_string())?;
    // SAFETY: the functions have these signatures in every version 5 of the library. Before the version is known, only
    // `nvcompGetProperties` is called, which never changed.
    let functions = unsafe { Functions::from_library(opened) }.map_err(|e| e.to_string())?;
    let mut properties = nvcompProperties_t { version: 0, cudart_version: 0 };
    // SAFETY: writes one `nvcompProperties_t`.
    let status = unsafe { functions.nvcompGetProperties(&mut properties) };
    let version = properties.version;
    let (major, minor, patch) = version_parts(version);
    if status != nvcompStatus_t::nvcompSuccess || major != 5 || minor < 2 {
        return Err(format!("expected nvCOMP 5.2 to 5.9, found {major}.{minor}.{patch} (status {})", status.0));
    }
    Ok(Library { functions, version, path: path.to_owned() })
}

/// Splits the library's version number into major, minor and patch.
pub fn version_parts(version: u32) -> (u32, u32, u32) {
    (version / 1000, version / 100 % 10, version % 100)
}
