//! Makes the order of the samples of a reader, and says what memory its lists take.

use std::sync::Arc;

use super::checkpoint::Identity;
use crate::budget::Needs;
use crate::chunk_index::bytes_in_reach;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::table::Table;
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::geometry::TableStarts;
use dali_zarr_samples::order::{Blocks, Order, Weights};
use dali_zarr_samples::plan::Planner;
use dali_zarr_samples::spec::{MIN_DEFAULT_FILL, OrderSource, Spec};

/// If all chunks that samples need have at most this many decoded bytes, all samples are shuffled together by default.
const WHOLE_BYTES: u128 = 512 << 20;
/// Otherwise a shuffle window has by default as many samples as have chunks of so many decoded bytes.
const WINDOW_BYTES: u128 = 256 << 20;

/// A chunk counts with so many bytes more, for what is kept of it beside its elements. So tiny chunks don't fill tables.
const CHUNK_COST: u128 = 4096;

/// Returns the number of samples of a shuffle window, if the user gave none. It depends on nothing but the data set and how
/// samples are cut from it: all shards must agree, whatever memory their machines have.
pub(super) fn default_fill(dataset: &Dataset, planner: &Planner) -> u64 {
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
