//! The engine of dali-zarr: from a spec to finished batches.
//!
//! Data flows one way: [`spec`] → dataset → sample order → plan → fetch → decode → assemble → queue → [`reader`].
//! It knows nothing of DALI or Python.

pub mod cuda;
pub mod dtype;
pub mod error;
pub mod gpu_codec;
pub mod reader;
pub mod spec;
