//! How the caller of a reader pushes the samples that it wants, if the order of the reader is the caller's.

use std::sync::{Arc, OnceLock};

use crate::chunk_index::ChunkIndex;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::geometry::Axis;
use dali_zarr_samples::order::{Draws, Pushed, Pushes};
use dali_zarr_samples::spec::{OrderSource, Spec};

/// Takes the pushes of a reader's caller. It may be used from any thread, and after the reader has ended.
pub struct Pusher {
    pushes: Arc<Pushes>,
    chunk_index: Arc<ChunkIndex>,
    samples: u64,
    batch_size: usize,
    /// With a table of starts: its samples in the order of their starts. Made when it is first needed.
    sorted: OnceLock<Vec<u64>>,
}

/// Checks that no argument contradicts the caller's order.
///
/// # Errors
/// If one does.
pub(crate) fn check(spec: &Spec) -> Result<()> {
    let order = &spec.order;
    if order.order == OrderSource::Own {
        return Ok(());
    }
    let others = [
        ("random_shuffle", order.random_shuffle),
        ("shuffle_after_epoch", order.shuffle_after_epoch),
        ("initial_fill", order.initial_fill.is_some()),
        ("weights", order.weights.is_some()),
        ("num_shards", order.num_shards != 1),
        ("shard_id", order.shard_id != 0),
        ("stick_to_shard", order.stick_to_shard),
        ("pad_last_batch", order.pad_last_batch),
    ];
    match others.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((what, _)) => Err(Error::value(format!(
            "{what}: expected none in the caller's order, in which the caller says which samples come, and when; leave {what} out"
        ))),
    }
}

impl Pusher {
    /// Makes the pusher of a reader; `None` if the reader's order is its own.
    pub(crate) fn new(spec: &Spec, chunk_index: &Arc<ChunkIndex>) -> Option<Arc<Self>> {
        let is_pushed = spec.order.order == OrderSource::Pushed;
        is_pushed.then(|| {
            Arc::new(Self {
                pushes: Arc::new(Pushes::new(spec.batch_size)),
                chunk_index: Arc::clone(chunk_index),
                samples: chunk_index.planner.samples(),
                batch_size: spec.batch_size,
                sorted: OnceLock::new(),
            })
        })
    }

    /// Returns the queue of batches.
    pub(super) fn pushes(&self) -> &Arc<Pushes> {
        &self.pushes
    }

    /// Pushes the next batch: the samples with these numbers, of an epoch. `draws` says what random crops depend on. Doesn't
    /// wait. Returns false if as much waits as may wait (`order::MOST_BATCHES`, `order::MOST_SAMPLES`).
    ///
    /// # Errors
    /// Of kind `Index` if there is no sample with a number; of kind `Value` if there are none or more than the batch size; if
    /// the reader has ended.
    pub fn push(&self, numbers: &[i64], epoch: u64, draws: Draws) -> Result<bool> {
        if !(1..=self.batch_size).contains(&numbers.len()) {
            return Err(Error::value(format!(
                "expected from 1 to {} samples in a batch (batch_size), but {} were pushed",
                self.batch_size,
                numbers.len()
            )));
        }
        let number = |(at, &number): (usize, &i64)| {
            u64::try_from(number).ok().filter(|&known| self.chunk_index.planner.has(known)).ok_or_else(|| {
                Error::index(format!(
                    "expected numbers of samples from 0 to {}, but found {number} as number {at} of the batch",
                    self.samples - 1
                ))
            })
        };
        let numbers: Vec<u64> = numbers.iter().enumerate().map(number).collect::<Result<_>>()?;
        match self.pushes.push(&numbers, epoch, draws) {
            Pushed::Taken => Ok(true),
            Pushed::Full => Ok(false),
            Pushed::Closed => Err(Error::runtime("the reader was closed, and takes no more samples")),
        }
    }

    /// Returns the numbers of samples, given by their rows in the index output. `rows` has `columns` entries for each. Where
    /// elements outside are padded or repeated, samples may start outside of the region too.
    ///
    /// # Errors
    /// Of kind `Index` if there is no sample with a row; of kind `Value` if there is another number of columns, or starts are
    /// drawn at random.
    pub fn find(&self, rows: &[i64], columns: usize) -> Result<Vec<i64>> {
        let planner = &self.chunk_index.planner;
        let geometry = planner.geometry();
        if let Some(axis) = geometry.axes.iter().find(|axis| axis.random) {
            return Err(Error::value(format!(
                "random_crop: starts along \"{}\" are drawn at random, so they don't tell the sample; give numbers of samples",
                axis.name
            )));
        }
        let store = geometry.names_store.then_some("store");
        let names: Vec<&str> = store.into_iter().chain(geometry.index_names()).collect();
        if columns != names.len() || columns == 0 || !rows.len().is_multiple_of(columns) {
            return Err(Error::value(format!(
                "expected samples by {} numbers each ({}), as return_index gives them, but found {columns}",
                names.len(),
                names.join(", ")
            )));
        }
        let table = geometry.table.as_ref();
        let sorted = table.map_or(&[][..], |table| self.sorted.get_or_init(|| table.sorted()));
        let number = |row: &[i64]| {
            planner.find(row, sorted).map(|number| number as i64).ok_or_else(|| {
                let is_told = geometry.table.is_some();
                let at = &row[row.len() - geometry.axes.len()..];
                let is_outside = |(axis, &at): (&Axis, &i64)| !(axis.region().0..axis.region().1).contains(&at);
                let hint = match geometry.axes.iter().zip(at).find(|of| !is_told && is_outside(*of)) {
                    Some(_) if geometry.may_start_outside => "; outside of the region samples start at multiples of step from the other \
                         starts, at most as far away as it is long, and where no missing date is read"
                        .to_owned(),
                    Some((axis, _)) => format!(
                        ", which lies outside along \"{}\"; samples may start there with out_of_bounds_policy \"pad\" or \"edge\", and \
                         without pad_before and pad_after",
                        axis.name
                    ),
                    None => String::new(),
                };
                Error::index(format!("there is no sample that starts at {row:?} ({}){hint}", names.join(", ")))
            })
        };
        rows.chunks_exact(columns).map(number).collect()
    }
}
