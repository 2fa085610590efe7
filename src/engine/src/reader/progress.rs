//! The progress of a reader in its order: starts the planner, writes checkpoints and restores them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Sender;

use super::ordering::ordered;
use crate::chunk_index::ChunkIndex;
use crate::reader::checkpoint::{self, Identity};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::order::Order;
use dali_zarr_samples::spec::Spec;

/// The order to plan batches in, and the number of the sample to begin with.
pub(super) type Start = (Order, u64);

/// The progress of a reader.
pub(super) struct Progress {
    identity: Identity,
    spec: Spec,
    chunk_index: Arc<ChunkIndex>,
    order: Order,
    /// Samples of `order` that were handed out.
    delivered: AtomicU64,
    /// Sends the start to the planner, which waits for it. `None` once it was sent.
    planner: Mutex<Option<Sender<Start>>>,
}

impl Progress {
    pub fn new(
        identity: Identity,
        spec: &Spec,
        chunk_index: Arc<ChunkIndex>,
        order: Order,
        planner: Sender<Start>,
    ) -> Self {
        let planner = Mutex::new(Some(planner));
        Self { identity, spec: spec.clone(), chunk_index, order, delivered: AtomicU64::new(0), planner }
    }

    /// Starts the planner, unless it has started.
    pub fn start(&self) {
        if let Some(planner) = self.planner.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The planner is gone only if the reader is being dropped.
            let _ = planner.send((self.order.clone(), self.delivered()));
        }
    }

    /// Ends a planner that has not started.
    pub fn cancel(&self) {
        self.planner.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Restores a state.
    pub fn restore(&mut self, state: &str) -> Result<()> {
        if self.planner.get_mut().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(Error::runtime("a checkpoint can only be restored before the reader's first batch"));
        }
        // A reader without a shuffle window of its own has that of the state. Defaults differ between versions.
        let order = &self.spec.order;
        let has_default = order.initial_fill.is_none() && order.weights.is_none();
        if has_default
            && (order.random_shuffle || order.shuffle_after_epoch)
            && let Some(fill) = checkpoint::fill_of(state)
        {
            let ChunkIndex { dataset, planner, .. } = &*self.chunk_index;
            (self.order, self.identity) = ordered(&self.spec, fill, dataset, planner, None)?;
        }
        let segments = self.identity.read(state)?;
        let (order, delivered) = self.order.resume(&segments)?;
        (self.order, self.delivered) = (order, AtomicU64::new(delivered));
        Ok(())
    }

    pub fn advance(&self) {
        self.delivered.fetch_add(self.spec.batch_size as u64, Ordering::Relaxed);
    }

    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    pub fn state(&self, delivered: u64) -> String {
        self.identity.write(&self.order, self.spec.order.shard_id, delivered)
    }
}
