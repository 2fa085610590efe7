//! The engine of dali-zarr: from a spec to finished batches. It knows nothing of DALI or Python.
//!
//! The steps, from arguments to batches:
//!
//! | step | module |
//! |---|---|
//! | the arguments of a reader | [`spec`] |
//! | where the bytes are: local files, objects, zip archives, Icechunk, references | [`store`] |
//! | arrays, chunk grids, CF attributes, sharding | [`dataset`] |
//! | the order of the samples, and where a checkpoint stands in it | [`order`] |
//! | the samples' extents, and the outputs' shapes | [`geometry`] |
//! | which chunks a batch needs, and which elements of each | [`plan`], `chunk_index` |
//! | how memory is divided | [`budget`] |
//! | deciding what is read, decoded and kept, and when | `scheduler` |
//! | what the scheduler and its workers send each other | `messages` |
//! | reading encoded chunks, through the [`cache`] | `io` |
//! | decoding | [`codec`] on the CPU, in the threads of `cpu`; `gpu` |
//! | finishing outputs: masks, scales, casts, crops | [`assemble`] on the CPU; `gpu` |
//! | opening, running, checkpoints | [`reader`] |
//! | what a reader would do; indices of labels | [`explain`], [`labels`] |
//! | random worlds that test the scheduler, and one that measures it | [`worlds`] |
//!
//! No module imports from a module above it. DESIGN.md has the order, and a test checks it.

pub mod assemble;
pub mod batch;
pub mod budget;
pub mod cache;
mod chunk_index;
pub mod codec;
mod cpu;
pub mod dataset;
mod digest;
pub mod dtype;
pub mod error;
pub mod explain;
mod first_log;
pub mod geometry;
mod gpu;
mod io;
mod json;
pub mod labels;
pub mod memory;
mod messages;
mod nvtx;
pub mod order;
pub mod plan;
mod random;
pub mod reader;
mod scheduler;
pub mod spec;
pub mod stats;
pub mod store;
mod stored_type;
pub mod table;
pub mod worlds;

/// For the fuzz targets: nvCOMP trusts its input, so this check must hold for any bytes.
#[doc(hidden)]
pub use gpu::check_frame_for_nvcomp;
