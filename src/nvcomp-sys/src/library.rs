//! Finds and opens the library, once for the process, and resolves its functions.

use crate::sys::{
    Decompress, DeflateOpts, Functions, GetDecompressSize, GetProperties, GetTempSize, GzipOpts, Lz4Opts, Properties,
    SnappyOpts, ZstdOpts,
};
use std::ffi::{CStr, CString, c_void};
use std::mem::transmute;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::{env, fmt};

/// The file that is looked for in the search directories, and the name that the system's loader is asked for last.
pub const SONAME: &str = "libnvcomp.so.5";

/// What to install, as error messages say it.
pub const ADVICE: &str =
    "install it with: pip install nvidia-libnvcomp-cu13==5.3.0.16; or name the library's file in DALI_ZARR_NVCOMP";

/// The opened library.
#[derive(Debug)]
pub struct Library {
    /// Zstandard frames, RFC 8878.
    pub zstd: Functions<ZstdOpts>,
    /// Gzip members, RFC 1952.
    pub gzip: Functions<GzipOpts>,
    /// Raw deflate streams, RFC 1951.
    pub deflate: Functions<DeflateOpts>,
    /// LZ4 blocks, without a frame.
    pub lz4: Functions<Lz4Opts>,
    /// Snappy, raw format.
    pub snappy: Functions<SnappyOpts>,
    /// Its version, and that of its CUDA runtime.
    pub properties: Properties,
    /// What was opened.
    pub path: PathBuf,
}

/// Why the library could not be opened: every place that was tried, and what to install.
#[derive(Clone, Debug)]
pub struct LoadError {
    tried: Vec<String>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvCOMP 5.3 is needed for decoding on the GPU, and could not be loaded; {ADVICE}. Tried: ")?;
        f.write_str(&self.tried.join("; "))
    }
}

impl std::error::Error for LoadError {}

static SEARCH_DIRS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
static LIBRARY: OnceLock<Library> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

/// Where [`load`] looks for the library before it asks the system's loader. Has no effect once the library is loaded.
pub fn set_search_dirs(dirs: Vec<PathBuf>) {
    *SEARCH_DIRS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = dirs;
}

/// The library: opened at the first call that succeeds, and never closed. Searched for in this order: the file named
/// by the environment variable `DALI_ZARR_NVCOMP` (then nowhere else), the directories of [`set_search_dirs`], the
/// system's loader.
///
/// # Errors
/// If it is nowhere, is not of version 5.3 to 5.9 or lacks a function.
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
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path has a zero byte".to_owned())?;
    // SAFETY: the name is a C string. Opening runs the library's initialisers, which need neither CUDA nor a driver.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(last_error());
    }
    // On failure below the handle stays open: unloading a library that has run initialisers is not worth its risks.
    let symbol = |name: &str| -> Result<*mut c_void, String> {
        let c_name = CString::new(name).map_err(|_| "a symbol's name has a zero byte".to_owned())?;
        // SAFETY: the handle is open, the name a C string.
        let address = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
        if address.is_null() { Err(format!("it has no function {name}")) } else { Ok(address) }
    };
    // SAFETY: the symbol has this signature in every version 5 of the library; a data pointer and a function pointer
    // have the same size on every platform that has dlsym.
    let get_properties = unsafe { transmute::<*mut c_void, GetProperties>(symbol("nvcompGetProperties")?) };
    let mut properties = Properties::default();
    // SAFETY: writes one `Properties`.
    let status = unsafe { get_properties(&mut properties) };
    let (major, minor, _) = version_parts(properties.version);
    if status != 0 || major != 5 || minor < 3 {
        return Err(format!("expected nvCOMP 5.3, found {} (status {status})", version(properties.version)));
    }
    macro_rules! functions {
        ($codec:literal, $opts:ty) => {
            Functions {
                // SAFETY: the symbols have the signatures of `sys` in version 5 of the library, which this is.
                get_temp_size: unsafe {
                    transmute::<*mut c_void, GetTempSize<$opts>>(symbol(concat!(
                        "nvcompBatched",
                        $codec,
                        "DecompressGetTempSizeAsync"
                    ))?)
                },
                // SAFETY: likewise.
                get_decompress_size: unsafe {
                    transmute::<*mut c_void, GetDecompressSize>(symbol(concat!(
                        "nvcompBatched",
                        $codec,
                        "GetDecompressSizeAsync"
                    ))?)
                },
                // SAFETY: likewise.
                decompress: unsafe {
                    transmute::<*mut c_void, Decompress<$opts>>(symbol(concat!(
                        "nvcompBatched",
                        $codec,
                        "DecompressAsync"
                    ))?)
                },
            }
        };
    }
    Ok(Library {
        zstd: functions!("Zstd", ZstdOpts),
        gzip: functions!("Gzip", GzipOpts),
        deflate: functions!("Deflate", DeflateOpts),
        lz4: functions!("LZ4", Lz4Opts),
        snappy: functions!("Snappy", SnappyOpts),
        properties,
        path: path.to_owned(),
    })
}

/// Major, minor, patch of the library's version number.
pub fn version_parts(version: u32) -> (u32, u32, u32) {
    (version / 1000, version / 100 % 10, version % 100)
}

fn version(number: u32) -> String {
    let (major, minor, patch) = version_parts(number);
    format!("{major}.{minor}.{patch}")
}

fn last_error() -> String {
    // SAFETY: dlerror returns null or a C string that is valid until this thread's next call of a dl function.
    unsafe {
        let message = libc::dlerror();
        if message.is_null() {
            "unknown error".to_owned()
        } else {
            CStr::from_ptr(message).to_string_lossy().into_owned()
        }
    }
}
