//! Buffers for finished batches on the CPU. They are handed to the user without a copy, and come back when they are
//! dropped, from any thread and at any time. So their pages stay mapped: fresh memory takes ten times as long as a
//! copy.

use std::sync::{Arc, Mutex, PoisonError};

use super::{HostBlock, Span};
use crate::error::Result;

/// A pool of buffers of one size.
#[derive(Debug)]
pub struct Pool {
    bytes: usize,
    /// How many idle buffers are kept. Others are given back to the system.
    keep: usize,
    idle: Mutex<Vec<HostBlock>>,
}

/// Host memory of one output of one batch. When it is dropped, it goes back to its reader's pool (from any thread, also
/// after the reader is gone).
#[derive(Debug)]
pub struct HostBuffer {
    /// `None` only while being dropped.
    block: Option<HostBlock>,
    len: usize,
    pool: Arc<Pool>,
}

impl Pool {
    /// Creates a pool of buffers of `bytes` bytes each. It keeps up to `keep` idle buffers.
    pub fn new(bytes: usize, keep: usize) -> Arc<Self> {
        Arc::new(Self { bytes, keep, idle: Mutex::default() })
    }

    /// Takes an idle buffer, or allocates a new one. Its content is unspecified.
    ///
    /// # Errors
    /// If the system refuses memory.
    pub fn take(self: &Arc<Self>) -> Result<HostBuffer> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let block = match idle {
            Some(block) => block,
            None => HostBlock::map(self.bytes)?,
        };
        Ok(HostBuffer { block: Some(block), len: self.bytes, pool: Arc::clone(self) })
    }
}

impl HostBuffer {
    fn block(&self) -> &HostBlock {
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

    /// The memory, for the threads that fill it.
    pub fn span(&self) -> Span {
        Span { address: self.block().address(), len: self.len }
    }

    /// Shortens the buffer to its first `len` bytes. Does nothing if it isn't longer.
    pub(crate) fn shorten(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Copies `bytes` to the start of the buffer. Only before anybody else has its address.
    pub(crate) fn fill_from(&mut self, bytes: &[u8]) {
        // SAFETY: the block lives as long as `self`; nobody else writes this buffer.
        let to = unsafe { self.span().bytes_mut() };
        to[..bytes.len()].copy_from_slice(bytes);
    }

    /// The content. Only for finished batches: while a batch is being filled, other threads write it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the block lives as long as `self`; the engine hands a buffer out only after its last write.
        unsafe { self.span().bytes() }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < self.pool.keep {
                idle.push(block);
            }
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
}
