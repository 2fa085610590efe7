//! Samples: which ones a reader gives, in which order, and which elements of which chunks they are made of.
//!
//! In: the arguments of a reader, and the metadata of its arrays. Out: for each batch the chunks that it needs, and the
//! jobs that move their elements to the outputs. No chunk is read here, and but for [`dataset`], which reads metadata,
//! nothing does any I/O.
//!
//! | step | module |
//! |---|---|
//! | the arguments of a reader | [`spec`] |
//! | arrays, chunk grids, sharding ([version 3] of Zarr, and 2), attributes ([CF], OME-Zarr) | [`dataset`] |
//! | the order of the samples, and where a checkpoint stands in it | [`order`] |
//! | the samples' extents, and the outputs' shapes | [`geometry`] |
//! | which chunks a batch needs, and which elements of each | [`plan`] |
//! | what a finished batch is | [`batch`] |
//! | finishing outputs on the CPU: masks, scales, casts, crops | [`assemble`] |
//!
//! All modules are the interface. The order of samples must not change: checkpoints rely on it.
//!
//! ```
//! use dali_zarr_samples::{order::Order, spec::Spec};
//!
//! // Two processes share the 10 samples of an epoch.
//! let mut seen = Vec::new();
//! for shard in 0..2 {
//!     let spec = format!(r#"{{"path": "a.zarr", "random_shuffle": true, "shard_id": {shard}, "num_shards": 2}}"#);
//!     let mut order = Order::new(&Spec::from_json(spec)?, 10)?;
//!     seen.extend((0..order.epoch_samples()).map(|k| order.sample(k).index));
//! }
//! seen.sort();
//! assert_eq!(seen, (0..10).collect::<Vec<_>>());
//! # Ok::<(), dali_zarr_base::error::Error>(())
//! ```
//!
//! [version 3]: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
//! [CF]: https://cfconventions.org/

pub mod assemble;
pub mod batch;
pub mod dataset;
pub mod geometry;
pub mod order;
pub mod plan;
pub mod spec;
