//! Opens a reader: makes the planner, the operations of the kernels and the needs of memory from a spec and a dataset.

use std::sync::Arc;

use super::checkpoint::Identity;
use super::needs::{bound_chunks, needs};
use super::ordering::{default_fill, ordered, with_tables};
use super::routing::{self, Note};
use super::shapes::{grids, shapes};
use super::{OutputInfo, ReaderMeta, operations, pusher};
use crate::budget::Needs;
use crate::chunk_index::ChunkIndex;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::table::Table;
use dali_zarr_samples::assemble::Ops;
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::geometry::{self, Geometry};
use dali_zarr_samples::order::Order;
use dali_zarr_samples::plan::Planner;
use dali_zarr_samples::spec::Spec;

/// A reader before memory is reserved and threads are started, made from the spec, the metadata and [`Inputs`]. Readers
/// start from it, and [`crate::explain`] describes it.
pub(crate) struct UnstartedReader {
    pub chunk_index: Arc<ChunkIndex>,
    pub order: Order,
    /// Samples of a shuffle window: what the user gave, or the default for this data set.
    pub fill: u64,
    pub ops: Ops,
    pub outputs: Vec<OutputInfo>,
    pub meta: ReaderMeta,
    /// What a checkpoint of this reader must agree with.
    pub identity: Identity,
    /// Why the CPU decodes arrays, where the user may have expected the GPU.
    pub notes: Vec<Note>,
    pub needs: Needs,
}

/// Values that are read before a reader is open, besides metadata.
#[derive(Clone, Default)]
pub(crate) struct Inputs {
    /// Inputs that say which samples there are.
    pub samples: geometry::Inputs,
    /// Weights by which samples are drawn.
    pub weights: Option<Arc<Table<f64>>>,
}

impl UnstartedReader {
    /// Checks the spec against an open dataset, without tables and rows. All breaks must be known. Reads no chunk and
    /// touches no device.
    ///
    /// # Errors
    /// If the arguments or the metadata are wrong. The error says what is wrong.
    pub fn of(spec: &Spec, dataset: Dataset) -> Result<Self> {
        Self::with(spec, dataset, Inputs::default())
    }

    /// As [`Self::of`], with the values that were read.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn with(spec: &Spec, dataset: Dataset, inputs: Inputs) -> Result<Self> {
        if dataset.arrays.len() > usize::from(u16::MAX) || dataset.stores.len() > usize::from(u16::MAX) {
            return Err(Error::value("expected at most 65535 arrays and stores, but found more; leave some out"));
        }
        let shapes = shapes(spec, &dataset)?;
        let geometries = Geometry::of(spec, &shapes, inputs.samples)?;
        let is_by_store = geometries.len() > 1;
        for (store, geometry) in geometries.iter().enumerate() {
            bound_chunks(spec, &dataset, geometry, is_by_store.then_some(store))?;
        }
        let grids = dataset.arrays.iter().map(|a| grids(a, &dataset.arrays)).collect();
        let ops = operations::of(&dataset, &geometries[0]);
        let outputs = geometries[0].outputs.clone();
        let planner = Planner::new(geometries, grids);
        pusher::check(spec)?;
        let fill = spec.order.initial_fill.unwrap_or_else(|| default_fill(&dataset, &planner));
        let (order, identity) = ordered(spec, fill, &dataset, &planner, inputs.weights)?;
        let (samples, shards) = (order.samples(), spec.order.num_shards as u64);
        let padded = if spec.order.pad_last_batch { samples.next_multiple_of(shards) } else { samples };
        let meta = ReaderMeta {
            epoch_size: samples as i64,
            epoch_size_padded: padded as i64,
            number_of_shards: spec.order.num_shards,
            shard_id: spec.order.shard_id,
            pad_last_batch: spec.order.pad_last_batch,
            stick_to_shard: spec.order.keeps_shard(),
        };
        let (decisions, notes) = routing::of_arrays(spec, &dataset, &[])?;
        let chunk_index = Arc::new(ChunkIndex::new(dataset, planner, decisions));
        let needs = needs(spec, &chunk_index, &chunk_index.decisions, &outputs, &mut order.clone())?;
        let needs = with_tables(needs, &chunk_index.planner, &order);
        Ok(Self { chunk_index, order, fill, ops, outputs, meta, identity, notes, needs })
    }
}
