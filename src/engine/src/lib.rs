//! The engine of dali-zarr: from a spec to finished batches.
//!
//! Data flows one way: [`spec`] → [`dataset`] → [`order`] of samples → [`geometry`] and [`plan`] → fetch, decode and
//! [`assemble`] ([`flow`] on the CPU, [`gpu`] on a GPU) → queue → [`reader`]. Fetching looks into a [`cache`] first. Who wants to
//! `pick` by coordinates asks [`labels`] before. It knows nothing of DALI or Python.

pub mod assemble;
pub mod budget;
pub mod cache;
pub mod codec;
pub mod cuda;
pub mod dataset;
pub mod dtype;
pub mod error;
pub mod explain;
pub mod flow;
pub mod geometry;
mod gpu;
pub mod gpu_codec;
mod json;
pub mod labels;
pub mod memory;
mod nvtx;
pub mod order;
pub mod plan;
mod random;
pub mod reader;
pub mod spec;
pub mod state;
pub mod store;
