//! Opens a reader: makes the planner, the operations of the kernels and the needs of memory from a spec and a dataset.

use std::sync::Arc;

use super::needs::{bound_chunks, needs};
use super::operations;
use super::routing::{self, Note};
use super::{OutputInfo, ReaderMeta, pusher};
use crate::budget::Needs;
use crate::chunk_index::{ChunkIndex, bytes_in_reach};
use crate::reader::checkpoint::Identity;
use crate::stats::OutputCounters;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::table::Table;
use dali_zarr_samples::assemble::Ops;
use dali_zarr_samples::dataset::{ArrayInfo, Dataset};
use dali_zarr_samples::geometry::{self, ArrayShape, Geometry, TableStarts};
use dali_zarr_samples::order::{Blocks, Order, Weights};
use dali_zarr_samples::plan::{ArrayGrids, PartGrid, Planner};
use dali_zarr_samples::spec::{MIN_DEFAULT_FILL, OrderSource, Spec};
use dali_zarr_stores::Store;

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
        geometries.iter().try_for_each(|geometry| bound_chunks(spec, &dataset, geometry))?;
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
        let (decisions, notes) = routing::of_arrays(spec, &dataset)?;
        let chunk_index = Arc::new(ChunkIndex::new(dataset, planner, decisions));
        let needs = needs(spec, &chunk_index, &chunk_index.decisions, &outputs, &mut order.clone())?;
        let needs = with_tables(needs, &chunk_index.planner, &order);
        Ok(Self { chunk_index, order, fill, ops, outputs, meta, identity, notes, needs })
    }
}

/// If all chunks that samples need have at most this many decoded bytes, all samples are shuffled together by default.
const WHOLE_BYTES: u128 = 512 << 20;
/// Otherwise a shuffle window has by default as many samples as have chunks of so many decoded bytes.
const WINDOW_BYTES: u128 = 256 << 20;

/// A chunk counts with so many bytes more, for what is kept of it beside its elements. So tiny chunks don't fill tables.
const CHUNK_COST: u128 = 4096;

/// Returns the number of samples of a shuffle window, if the user gave none. It depends on nothing but the data set and how
/// samples are cut from it: all shards must agree, whatever memory their machines have.
fn default_fill(dataset: &Dataset, planner: &Planner) -> u64 {
    let (samples, bytes) = (planner.samples(), bytes_in_reach(dataset, planner, CHUNK_COST));
    if bytes <= WHOLE_BYTES {
        return samples.max(MIN_DEFAULT_FILL);
    }
    let held = u128::from(samples) * WINDOW_BYTES / bytes;
    u64::try_from(held).unwrap_or(u64::MAX).max(MIN_DEFAULT_FILL)
}

/// Returns the order of the samples, and what a checkpoint must agree with. A shuffle window has `fill` samples.
pub(super) fn ordered(
    spec: &Spec,
    fill: u64,
    dataset: &Dataset,
    planner: &Planner,
    weights: Option<Arc<Table<f64>>>,
) -> Result<(Order, Identity)> {
    let spec = &spec.clone().with(|s| s.order.initial_fill = Some(fill));
    let geometry = planner.geometry();
    let left = memory_left(spec, planner);
    let order = &spec.order;
    let Some(weights) = weights else {
        for (what, is_default) in [("num_samples", order.num_samples.is_none()), ("replacement", order.replacement)] {
            if !is_default {
                return Err(Error::value(format!("{what}: expected weights too, since {what} says how they are used")));
            }
        }
        if order.order == OrderSource::Pushed {
            // Nothing is known of the caller's order. It is taken for the worst one, a permutation that ignores chunks.
            let blocks = Blocks::single(planner.samples());
            let identity = Identity::new(spec, dataset, planner, &blocks, None);
            let worst = spec.clone().with(|s| s.order.random_shuffle = true);
            return Ok((Order::by_chunks(&worst, blocks)?, identity));
        }
        // Grouping the rows of a table takes memory. Where samples come in order, it is of no use.
        let is_grouped = geometry.table.is_none() || order.random_shuffle || order.shuffle_after_epoch;
        let blocks = if is_grouped { planner.blocks(fill, left)? } else { Blocks::single(planner.samples()) };
        let identity = Identity::new(spec, dataset, planner, &blocks, None);
        return Ok((Order::by_chunks(spec, blocks)?, identity));
    };
    let weights = Weights::new(weights, planner.samples(), order.num_samples, order.replacement, left)?;
    let identity = Identity::new(spec, dataset, planner, &Blocks::single(planner.samples()), Some(&weights));
    Ok((Order::drawn(spec, planner.samples(), weights)?, identity))
}

/// Returns the bytes that the user's limit on host memory leaves for lists, after a table of starts and segments
/// between breaks; `None` if there is no limit.
pub(crate) fn memory_left(spec: &Spec, planner: &Planner) -> Option<u64> {
    spec.resources.host_memory_limit.map(|limit| limit.saturating_sub(listed_bytes(planner)))
}

/// Returns the bytes that a table of starts and segments between breaks take.
fn listed_bytes(planner: &Planner) -> u64 {
    planner.geometry().table.as_ref().map_or(0, TableStarts::bytes) + planner.break_bytes()
}

/// Returns `needs` with the bytes of tables, segments and the lists of `order`.
pub(super) fn with_tables(needs: Needs, planner: &Planner, order: &Order) -> Needs {
    let tables = listed_bytes(planner) + order.bytes();
    // While breaks are read, they are held as numbers of several types; this memory is given back.
    let grouping = planner.geometry().table.as_ref().map_or(0, |table| planner.grouping_bytes(table));
    Needs { tables: tables as usize, opening: (tables + grouping + planner.break_bytes()) as usize, ..needs }
}

/// Returns a sentence for the log with the arrays that are decoded because `mask_and_scale` is left out; `None` if
/// there are none.
pub(super) fn decoded_by_default(spec: &Spec, dataset: &Dataset) -> Option<String> {
    let decoded = dataset
        .arrays
        .iter()
        .enumerate()
        .filter(|(i, a)| a.decoded && spec.values.mask_and_scale.of(&a.output, *i).is_none());
    let mut names: Vec<_> = decoded.map(|(_, a)| format!("'{}'", a.name)).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| {
        format!(
            "{}: decoded as xarray does it, since they have scale_factor or add_offset and mask_and_scale is left out: {}",
            Site::stores(&spec.source.locations()),
            names.join(", ")
        )
    })
}

/// Returns a sentence for each array whose metadata name missing values, but which stays as stored because
/// `mask_and_scale` is left out.
pub(crate) fn unmasked(dataset: &Dataset) -> impl Iterator<Item = String> {
    let is_first = |(i, array): &(usize, &ArrayInfo)| dataset.arrays[..*i].iter().all(|other| other.name != array.name);
    dataset.arrays.iter().enumerate().filter(is_first).filter_map(|(_, array)| {
        let (part, named) = array.parts.iter().find_map(|part| Some((part, part.unmasked.as_ref()?)))?;
        Some(format!(
            "{}: stays as stored, though {named}: mask_and_scale=True makes them \
             NaN, as xarray does it; mask_and_scale=False keeps them without this warning",
            Site::store(dataset.stores[part.store].location()).array(&*array.name)
        ))
    })
}

/// Returns how many dates are declared missing in the region that samples may touch, and how many samples are left out
/// because they read some; over all stores.
pub(crate) fn missing(planner: &Planner) -> (usize, u64) {
    planner.geometries().fold((0, 0), |sum, geometry| (sum.0 + geometry.missing.0, sum.1 + geometry.missing.1))
}

/// Returns a text about samples that are left out; `None` if no date is declared missing.
pub(super) fn left_out(chunk_index: &ChunkIndex) -> Option<String> {
    let (dates, samples) = missing(&chunk_index.planner);
    let stores: Vec<_> = chunk_index.dataset.stores.iter().map(|store| store.location()).collect();
    (dates > 0).then(|| {
        format!(
            "{}: the data of {dates} dates are missing (attribute missing_dates, or align): {samples} samples read some of them and are \
             left out; missing_dates=\"keep\" reads those of the attribute",
            Site::stores(&stores)
        )
    })
}

/// Returns a text for each store with arrays that have grown since the host opened the reader first.
pub(super) fn grown(dataset: &Dataset) -> impl Iterator<Item = String> {
    let of = |(number, store): (usize, &Arc<dyn Store>)| {
        let parts = dataset.arrays.iter().flat_map(|array| array.parts.iter().map(move |part| (array, part)));
        let (array, part, now) = parts
            .filter(|(_, part)| part.store == number)
            .find_map(|(array, part)| Some((array, part, part.grown.as_ref()?)))?;
        Some(format!(
            "{}: the store has changed: the array has the shape {now:?} now, and {:?} when the loader opened it; the loader keeps its samples \
             until loader.refresh()",
            Site::store(store.location()).array(&*array.name),
            part.shape
        ))
    };
    dataset.stores.iter().enumerate().filter_map(of)
}

/// Returns what the geometry needs to know about the arrays.
///
/// # Errors
/// If an alignment doesn't fit them.
pub(crate) fn shapes(spec: &Spec, dataset: &Dataset) -> Result<Vec<ArrayShape>> {
    geometry::align(spec, dataset.arrays.iter().map(shape).collect())
}

fn shape(array: &ArrayInfo) -> ArrayShape {
    ArrayShape {
        name: array.name.clone(),
        output: array.output.clone(),
        dims: array.dims.names.clone(),
        unclear: array.dims.unclear.clone(),
        parts: array.parts.iter().map(|p| p.shape.clone()).collect(),
        aligned: None,
        values: array.cf.decoded,
        complex_fill_parts_differ: array.fill != array.imaginary_fill,
    }
}

fn grids(array: &ArrayInfo, all: &[ArrayInfo]) -> ArrayGrids {
    let part = |p: &dali_zarr_samples::dataset::ArrayPart| PartGrid {
        dims: p.grid.clone(),
        order: p.format.order.clone(),
        swap: p.format.swap,
    };
    let chunks_of = all.iter().position(|a| a.is_same(array)).unwrap_or(0);
    ArrayGrids { chunks_of, element: array.dtype.size(), parts: array.parts.iter().map(part).collect() }
}

/// Makes a counter of replaced NaNs for each array with `fillna`.
pub(super) fn nans_replaced(chunk_index: &ChunkIndex) -> OutputCounters {
    let norms = &chunk_index.planner.geometry().norms;
    let fills = |a: usize| norms.iter().any(|norm| norm.array == a && norm.fillna.is_some());
    let arrays = chunk_index.dataset.arrays.iter().enumerate();
    OutputCounters::new(arrays.map(|(a, array)| fills(a).then(|| array.output.clone())))
}
