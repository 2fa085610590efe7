//! Buffers for finished batches on the CPU. They are handed to the user without a copy, and come back when they are
//! dropped, from any thread and at any time. So their pages stay mapped: fresh memory takes ten times as long as a
//! copy.
//!
//! `unsafe` is allowed here: a lease is made of each part of a buffer that is lent.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::arena::Range;
use super::{Account, HostBlock, Lease};
use crate::error::Result;

/// A pool of buffers of one size.
#[derive(Debug)]
pub struct Pool {
    bytes: usize,
    /// How many idle buffers are kept. Others are given back to the system.
    keep: usize,
    idle: Mutex<Vec<Arc<HostBlock>>>,
    /// Where the memory of idle buffers beyond the first is drawn from, if it is shared with other readers.
    account: Option<Arc<Account>>,
    /// The address of the next new buffer, if buffers have no memory.
    invented: Option<AtomicU64>,
}

/// Host memory of one output of one batch. When it is dropped, it goes back to its reader's pool (from any thread, also
/// after the reader is gone).
#[derive(Debug)]
pub struct HostBuffer {
    /// `None` only while being dropped.
    block: Option<Arc<HostBlock>>,
    len: usize,
    /// The parts that are lent, by offset: their first byte, and the byte after their last one.
    lent: Vec<(usize, usize)>,
    pool: Arc<Pool>,
}

impl Pool {
    /// Creates a pool of buffers of `bytes` bytes each. It keeps up to `keep` idle buffers.
    pub fn new(bytes: usize, keep: usize) -> Arc<Self> {
        Self::drawing(bytes, keep, None)
    }

    /// Like [`Self::new`]. The memory of idle buffers beyond the first is drawn from the account.
    pub fn drawing(bytes: usize, keep: usize, account: Option<Arc<Account>>) -> Arc<Self> {
        Arc::new(Self { bytes, keep, idle: Mutex::default(), account, invented: None })
    }

    /// Like [`Self::new`], for simulations: the buffers have addresses from `address` on, and no memory.
    pub fn invented(bytes: usize, keep: usize, address: u64) -> Arc<Self> {
        let invented = Some(AtomicU64::new(address));
        Arc::new(Self { bytes, keep, idle: Mutex::default(), account: None, invented })
    }

    /// Takes an idle buffer, or allocates a new one. Its content is unspecified.
    ///
    /// # Errors
    /// If the system refuses memory.
    pub fn take(self: &Arc<Self>) -> Result<HostBuffer> {
        let idle = self.pop(0);
        let block = match (idle, &self.invented) {
            (Some(block), _) => block,
            (None, None) => Arc::new(HostBlock::map(self.bytes)?),
            (None, Some(next)) => {
                let bytes = self.bytes.max(1);
                Arc::new(HostBlock::invented(next.fetch_add(bytes as u64, Ordering::Relaxed), bytes))
            }
        };
        Ok(HostBuffer { block: Some(block), len: self.bytes, lent: Vec::new(), pool: Arc::clone(self) })
    }
}

impl Pool {
    /// Takes an idle buffer, if there are more than `beyond`.
    fn pop(&self, beyond: usize) -> Option<Arc<HostBlock>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let block = if idle.len() > beyond { idle.pop() } else { None }?;
        if let Some(account) = self.account.as_ref().filter(|_| !idle.is_empty()) {
            account.give_back(self.bytes as u64);
        }
        Some(block)
    }

    /// Frees idle buffers beyond the first.
    pub fn shrink(&self) {
        while self.account.is_some() && self.pop(1).is_some() {}
    }

    /// Keeps an idle buffer, if there is room for it.
    fn push(&self, block: Arc<HostBlock>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let room = idle.len() < self.keep;
        let drawn = || self.account.as_ref().is_none_or(|account| idle.is_empty() || account.draw(self.bytes as u64));
        if room && drawn() {
            idle.push(block);
        }
    }
}

impl HostBuffer {
    fn block(&self) -> &Arc<HostBlock> {
        self.block.as_ref().expect("present until dropped")
    }

    /// The first byte; aligned to a page.
    pub fn as_ptr(&self) -> *const u8 {
        self.block().address() as *const u8
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shortens the buffer to its first `len` bytes. Does nothing if it isn't longer.
    pub fn shorten(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer as long as it was when it was taken from its pool.
    pub fn lengthen(&mut self) {
        self.len = self.pool.bytes;
    }

    /// Lends `len` bytes from byte `offset` on. `None` if a part of them is lent already, if the buffer is shorter, or
    /// if `len` is 0.
    pub fn lend(&mut self, offset: usize, len: usize) -> Option<Lease> {
        let end = offset.checked_add(len).filter(|&end| len > 0 && end <= self.len)?;
        let at = self.lent.partition_point(|lent| lent.0 < end);
        if at.checked_sub(1).is_some_and(|before| self.lent[before].1 > offset) {
            return None;
        }
        self.lent.insert(at, (offset, end));
        // SAFETY: no byte of the range is lent until this lease is given back. The buffer's other users are jobs, of
        // which each writes elements of its own, and `as_slice` and `fill_from`, which see that nothing is lent.
        Some(unsafe { Lease::new(self.block(), Range { offset, len }, len) })
    }

    /// Takes a lease back. Panics if another buffer lent it.
    pub fn give_back(&mut self, lease: Lease) {
        let Range { offset, .. } = lease.into_range(self.block());
        let at = self.lent.binary_search_by_key(&offset, |lent| lent.0).expect("each lease of the buffer is listed");
        self.lent.remove(at);
    }

    /// Whether no part is lent.
    pub fn is_whole(&self) -> bool {
        self.lent.is_empty()
    }

    /// Copies `bytes` to the start of the buffer. Only before anybody else has its address.
    pub fn fill_from(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut lease = self.lend(0, bytes.len()).expect("no part is lent, and the bytes fit");
        lease.copy_from_slice(bytes);
        self.give_back(lease);
    }

    /// The content. Only for finished batches: while a batch is being filled, other threads write it.
    pub fn as_slice(&self) -> &[u8] {
        assert!(self.is_whole(), "a batch isn't finished: a part of it is lent");
        // SAFETY: the block lives as long as `self`; the engine hands a buffer out only after its last write.
        unsafe { std::slice::from_raw_parts(self.block().at(0, self.len), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // If a lease of it is left, a thread may still write to it. Then the lease frees it.
        if let Some(mut block) = self.block.take()
            && Arc::get_mut(&mut block).is_some()
        {
            self.pool.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let pool = Pool::new(10_000, 1);
        let a = pool.take().unwrap();
        let b = pool.take().unwrap();
        let at = a.as_ptr();
        drop(a);
        drop(b);
        assert_eq!(pool.idle.lock().unwrap().len(), 1, "only one is kept");
        let c = pool.take().unwrap();
        assert_eq!(c.as_ptr(), at);
        drop(pool);
        assert_eq!(c.as_slice().len(), 10_000, "alive without its reader");
    }

    #[test]
    fn idle_buffers_beyond_the_first_are_drawn() {
        let ledger = Arc::new(super::super::Ledger::default());
        ledger.set_share(25_000);
        let account = ledger.open(10_000, || ());
        let pool = Pool::drawing(10_000, 3, Some(Arc::clone(&account)));
        let take = |n: usize| -> Vec<HostBuffer> { (0..n).map(|_| pool.take().unwrap()).collect() };
        drop(take(3));
        assert_eq!(
            (pool.idle.lock().unwrap().len(), account.drawn()),
            (2, 10_000),
            "there is nothing left for a third"
        );
        let both = take(2);
        assert_eq!(account.drawn(), 0);
        drop(both);
        pool.shrink();
        assert_eq!((pool.idle.lock().unwrap().len(), account.drawn()), (1, 0));
    }

    #[test]
    fn parts_that_are_lent_never_overlap() {
        let mut buffer = Pool::new(1000, 1).take().unwrap();
        buffer.fill_from(&[7; 10]);
        let mut lease = buffer.lend(100, 50).unwrap();
        lease.fill(1);
        for (offset, len) in [(100, 50), (99, 2), (149, 1), (0, 1000), (120, 10), (0, 1001), (usize::MAX, 2), (500, 0)]
        {
            assert!(buffer.lend(offset, len).is_none(), "{offset}, {len}");
        }
        let (before, after) = (buffer.lend(0, 100).unwrap(), buffer.lend(150, 850).unwrap());
        assert!(buffer.lend(140, 10).is_none() && !buffer.is_whole());
        [after, lease, before].into_iter().for_each(|lease| buffer.give_back(lease));
        assert!(buffer.is_whole() && buffer.lend(99, 2).is_some());
    }

    #[test]
    fn a_finished_batch_has_what_was_written_to_leases() {
        let mut buffer = Pool::new(8, 1).take().unwrap();
        let mut lease = buffer.lend(2, 4).unwrap();
        lease.copy_from_slice(&[1, 2, 3, 4]);
        buffer.give_back(lease);
        assert_eq!(buffer.as_slice(), [0, 0, 1, 2, 3, 4, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "isn't finished")]
    fn a_batch_is_not_read_while_a_part_is_lent() {
        let mut buffer = Pool::new(8, 1).take().unwrap();
        let _lease = buffer.lend(2, 4);
        buffer.as_slice();
    }

    #[test]
    fn memory_that_is_lent_is_not_used_again() {
        let pool = Pool::new(4096, 1);
        let mut buffer = pool.take().unwrap();
        let mut lease = buffer.lend(0, 4096).unwrap();
        drop(buffer);
        assert!(pool.idle.lock().unwrap().is_empty());
        lease.fill(1);
        let other = pool.take().unwrap();
        assert_ne!(other.as_ptr() as u64, lease.address());
    }

    #[test]
    fn invented_buffers_have_different_addresses() {
        let pool = Pool::invented(1 << 40, 1, 1 << 60);
        let buffers = [pool.take().unwrap(), pool.take().unwrap()];
        assert_eq!(buffers.map(|buffer| buffer.as_ptr() as u64), [1 << 60, (1 << 60) + (1 << 40)]);
    }
}
