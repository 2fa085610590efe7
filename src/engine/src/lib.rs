//! The engine of dali-zarr: from a spec to finished batches. It knows nothing of DALI or Python.
//!
//! In: a [`Spec`](dali_zarr_samples::spec::Spec), the arguments of a reader. Out: a [`Reader`](reader::Reader) and its
//! batches, in host memory or in the memory of a GPU. The crates below decide what is read and how it is decoded; this
//! one decides when, and with which memory and threads. The steps, from arguments to batches:
//!
//! | step | crate, module |
//! |---|---|
//! | where the bytes are: local files, objects, zip archives, Icechunk, references | [`dali_zarr_stores`] |
//! | the arguments; arrays; the order of samples; which elements of which chunks they have | [`dali_zarr_samples`] |
//! | whether the CPU or the GPU decodes a chunk | `route` |
//! | where each chunk lies | `chunk_index` |
//! | how memory is divided | [`budget`] |
//! | deciding what is read, decoded and kept, and when | `scheduler` |
//! | what the scheduler and its workers send each other | `messages` |
//! | reading encoded chunks, through the [`cache`] | `io` |
//! | decoding | [`dali_zarr_codecs`] on the CPU, in the threads of `cpu`; `gpu` |
//! | finishing outputs: masks, scales, casts, crops | [`dali_zarr_samples::assemble`] on the CPU; `gpu` |
//! | opening, running, checkpoints | [`reader`] |
//! | what a reader would do; indices of labels | [`explain`], [`labels`] |
//! | random worlds that test the scheduler, and one that measures it | [`worlds`] |
//!
//! The interface is [`reader`], [`explain`], [`labels`] and [`stats`]. DESIGN.md has the order of the crates and modules.
//!
//! ```
//! use dali_zarr_engine::reader::Reader;
//! use dali_zarr_samples::spec::Spec;
//!
//! let folder = tempfile::tempdir()?;
//! let metadata = r#"{"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 7,
//!     "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
//!     "chunk_key_encoding": {"name": "v2"}, "codecs": [{"name": "bytes"}]}"#;
//! std::fs::write(folder.path().join("zarr.json"), metadata)?;
//! std::fs::write(folder.path().join("0"), [1, 2])?;
//! let spec = format!(r#"{{"path": "{}", "batch_size": 4}}"#, folder.path().display());
//! let reader = Reader::open(Spec::from_json(spec)?)?;
//! assert_eq!(reader.next_batch()?.host[0].as_slice(), [1, 2, 7, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod budget;
pub mod cache;
mod chunk_index;
mod cpu;
pub mod explain;
mod gpu;
mod io;
pub mod labels;
mod messages;
pub mod reader;
mod route;
mod scheduler;
pub mod stats;
pub mod worlds;
