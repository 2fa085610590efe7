//! Where a reader's batches come from: its own order, or what a caller pushes.

use super::{Order, Sample};

/// Gives the samples of batches, in order.
pub trait Batches {
    /// Returns the samples of the next batch. `None` if there is none now: if `waits` is true, there will be none.
    fn next(&mut self, waits: bool) -> Option<Vec<Sample>>;
}

/// The batches of a reader's own order.
pub struct OwnBatches<E> {
    order: Order,
    /// Number of the next sample.
    next: u64,
    /// Returns the number of the sample after the last one of a batch that begins with this sample.
    end_of: E,
}

impl<E: Fn(u64) -> u64> OwnBatches<E> {
    /// Makes batches from sample number `next` of an order on. A batch that begins with sample `k` ends before sample
    /// `end_of(k)`.
    pub fn new(order: Order, next: u64, end_of: E) -> Self {
        Self { order, next, end_of }
    }
}

impl<E: Fn(u64) -> u64> Batches for OwnBatches<E> {
    fn next(&mut self, _waits: bool) -> Option<Vec<Sample>> {
        let end = (self.end_of)(self.next);
        let samples = (self.next..end).map(|k| self.order.sample(k)).collect();
        self.next = end;
        Some(samples)
    }
}
