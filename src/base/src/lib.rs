//! What every crate of dali-zarr needs, and what needs none of them: errors, element types, JSON, memory, tables.
//!
//! - [`error`]: an error with a kind, a code and a place, and the text that users read.
//! - [`base64`]: decoded as by Python, which skips what it does not know.
//! - [`json`], [`dtype`], [`stored_type`]: JSON as Python writes it, the types of elements, and their names and fill
//!   values in the metadata of Zarr, [version 2] and [version 3]. In: a document. Out: a type, or an error that names it.
//! - [`memory`]: blocks, arenas and leases of host memory, and how the readers of a process share it.
//! - [`table`]: lists of numbers that users give: from a NumPy file, or kept by the host program.
//! - [`random`], [`digest`]: numbers that are the same on every platform and in every later version.
//! - [`service`]: the services of object stores, by the scheme of a URL.
//! - [`first_log`], [`nvtx`]: what is told to logs and to profilers.
//!
//! Nothing here knows a store, a chunk or a sample. All modules are the interface.
//!
//! ```
//! use dali_zarr_base::{dtype::DType, json, stored_type};
//!
//! let metadata = json::parse(br#"{"data_type": "float32", "fill_value": NaN}"#)?;
//! let stored = stored_type::parse_v3(&metadata["data_type"])?;
//! assert_eq!((stored.dtype, stored.dtype.size()), (DType::F32, 4));
//! let fill = stored_type::fill_value(&metadata["fill_value"], stored)?.expect("a value");
//! assert!(f32::from_bits(fill.bits as u32).is_nan());
//! let error = stored_type::parse_v3(&"string".into()).unwrap_err();
//! assert!(error.message().contains("but found \"string\""), "{error}");
//! # Ok::<(), dali_zarr_base::error::Error>(())
//! ```
//!
//! [version 2]: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html
//! [version 3]: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html

pub mod base64;
pub mod digest;
pub mod dtype;
pub mod error;
pub mod first_log;
pub mod json;
pub mod memory;
pub mod nvtx;
pub mod random;
pub mod service;
pub mod stored_type;
pub mod table;
