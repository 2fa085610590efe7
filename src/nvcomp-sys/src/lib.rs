//! Bindings to nvCOMP's batched zstd decompression, loaded at run time. It is the reference for the kernels in tests. Versions 5.2 (which DALI 2.2 installs) and 5.3
//! declare it in the same way.
//!
//! Layers: bindgen generates [`sys`] from the library's headers. [`result`] wraps each call and turns its status into a
//! [`Status`] with a name. [`library`] finds and opens the library, once.
//!
//! Nothing here needs CUDA or a driver to build or to load. The library is opened with `RTLD_LOCAL`, because it exports
//! symbols of other projects (rmm, fmt), which must not mix with other copies of them in the process.

// `unsafe` is needed to load and call functions of a C library.
#![allow(unsafe_code)]

pub mod library;
pub mod result;
#[rustfmt::skip]
pub mod sys;

pub use library::{Library, LoadError, load, set_search_dirs};
pub use result::Status;
