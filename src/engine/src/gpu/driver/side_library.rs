//! Libraries of NVIDIA beside the driver, which are opened at run time: cuFile, nvImageCodec, nvJPEG2000.

use std::path::PathBuf;

use libloading::Library;

use dali_zarr_base::error::{Error, Result};

/// A library that is open, for as long as the process lives.
#[derive(Clone, Copy)]
pub struct SideLibrary {
    library: &'static Library,
    name: &'static str,
    advice: &'static str,
}

impl SideLibrary {
    /// Opens the library `name`: the file that the environment variable `named` names, or, if it isn't set, the first of
    /// `candidates` that can be opened.
    ///
    /// # Errors
    /// If none can be opened: what was tried, and why it failed.
    ///
    /// # Safety
    /// A candidate that can be opened is this library, whose initialisers need neither CUDA nor a driver.
    pub unsafe fn open(
        name: &'static str,
        named: &str,
        candidates: impl FnOnce() -> Vec<PathBuf>,
        advice: &'static str,
    ) -> std::result::Result<Self, String> {
        let files = std::env::var_os(named).map_or_else(candidates, |file| vec![file.into()]);
        let mut tried = Vec::new();
        for file in files {
            // SAFETY: the caller promises it of the candidates, and the user of the file that is named.
            match unsafe { Library::new(&file) } {
                Ok(library) => return Ok(Self { library: Box::leak(Box::new(library)), name, advice }),
                Err(e) => tried.push(format!("{}: {e}", file.display())),
            }
        }
        Err(tried.join("; "))
    }

    /// Looks up a function.
    ///
    /// # Errors
    /// If the library lacks it.
    ///
    /// # Safety
    /// `T` is the function's type.
    pub unsafe fn function<T: Copy>(self, symbol: &str) -> Result<T> {
        // SAFETY: the caller promises that `T` is the function's type.
        let found = unsafe { self.library.get::<T>(symbol.as_bytes()) };
        found
            .map(|found| *found)
            .map_err(|e| Error::value(format!("{} lacks {symbol}: {e}; {}", self.name, self.advice)))
    }
}
