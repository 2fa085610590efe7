//! The engine of dali-zarr: from a spec to finished batches. It knows nothing of DALI or Python.
//!
//! The way of the data:
//!
//! | step | module |
//! |---|---|
//! | what is asked for | [`spec`] |
//! | where the bytes are: local files, objects, zip archives, Icechunk, references | [`store`] |
//! | arrays, chunk grids, CF attributes, sharding | [`dataset`] |
//! | the order of the samples, and where a checkpoint stands in it | [`order`] |
//! | the samples' extents, and the outputs' shapes | [`geometry`] |
//! | which chunks a batch needs, and which elements of each | [`plan`], `chunk_index` |
//! | how memory is divided | [`budget`] |
//! | what is read, decoded and kept when | `scheduler`, which speaks to all others in `messages` |
//! | reading encoded chunks, through the [`cache`] | `io` |
//! | decoding | [`codec`] on the CPU, in the threads of `cpu`; `gpu` |
//! | finishing outputs: masks, scales, casts, crops | [`assemble`] on the CPU; `gpu` |
//! | opening, running, checkpoints | [`reader`] |
//! | what a reader would do; indices of labels | [`explain`], [`labels`] |
//! | random worlds that test the scheduler | [`worlds`] |
//!
//! No module imports from one above it: DESIGN.md has the order, and a test holds it.

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
