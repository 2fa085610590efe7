//! Bindings to nvCOMP 5.3's batched zstd decompression, loaded at run time.
//!
//! Layers: [`sys`] is what bindgen makes of the library's headers; [`result`] wraps each call and turns its status into a
//! [`Status`] with a name; [`library`] finds and opens the library, once.
//!
//! Nothing here needs CUDA or a driver to build or to load. The library is opened with `RTLD_LOCAL`, since it exports
//! symbols of other projects (rmm, fmt) that must not meet other copies of them in the process.

// Functions of a C library are loaded and called.
#![allow(unsafe_code)]

pub mod library;
pub mod result;
#[rustfmt::skip]
pub mod sys;

pub use library::{Library, LoadError, load, set_search_dirs};
pub use result::Status;
