//! Host memory for chunks: an arena whose ranges are lent as [`Lease`]s.
//!
//! `unsafe` is allowed here: a lease is made of each range that was reserved.

#![allow(unsafe_code)]

use std::sync::{Arc, Weak};

use super::arena::Arena;
use super::{HostBlock, Lease};

/// A block of host memory, and the list of its free ranges. It keeps the block alive, and so does each lease.
#[derive(Debug)]
pub struct HostArena {
    block: Arc<HostBlock>,
    free: Arena,
}

impl HostArena {
    /// Makes an arena of a block, all of it free.
    pub fn new(block: HostBlock) -> Self {
        Self { free: Arena::new(block.len()), block: Arc::new(block) }
    }

    /// Reserves a range of at least `bytes` bytes, and leases its first `bytes` bytes. `None` if no free range is long
    /// enough now.
    pub fn take(&mut self, bytes: usize) -> Option<Lease> {
        let range = self.free.take(bytes)?;
        // SAFETY: the range was free. It is free again only after this lease was given back.
        Some(unsafe { Lease::new(&self.block, range, bytes) })
    }

    /// Takes a lease back, and frees its range. Panics if another block lent it.
    pub fn give_back(&mut self, lease: Lease) {
        self.free.release(lease.into_range(&self.block));
    }

    /// Keeps the first `bytes` bytes of a lease, and frees the rest of its range. Panics if another block lent it, or
    /// if it is shorter.
    pub fn shorten(&mut self, lease: Lease, bytes: usize) -> Lease {
        assert!(bytes <= lease.len(), "a lease can't grow");
        let range = self.free.shrink(lease.into_range(&self.block), bytes);
        // SAFETY: it is the beginning of the range, and the lease of all of it is gone.
        unsafe { Lease::new(&self.block, range, bytes) }
    }

    /// Returns the block, without keeping it alive.
    pub(crate) fn block(&self) -> Weak<HostBlock> {
        Arc::downgrade(&self.block)
    }

    /// Bytes of the block.
    pub fn capacity(&self) -> usize {
        self.free.capacity()
    }

    /// Bytes that are free. They may lie in several ranges.
    pub fn available(&self) -> usize {
        self.free.available()
    }

    /// See [`Arena::join_all`].
    pub fn join_all(&mut self) {
        self.free.join_all();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::arena::ALIGN;
    use super::*;

    fn arena(bytes: usize) -> HostArena {
        HostArena::new(HostBlock::map(bytes).unwrap())
    }

    #[test]
    fn what_is_given_back_is_free() {
        let mut arena = arena(8192);
        let mut lease = arena.take(1000).unwrap();
        assert_eq!((lease.len(), lease.reserved(), arena.available()), (1000, 1024, 7168));
        lease[999] = 1;
        let lease = arena.shorten(lease, 10);
        assert_eq!((lease.len(), lease.reserved(), arena.available()), (10, ALIGN, 8192 - ALIGN));
        arena.give_back(lease);
        assert_eq!(arena.available(), 8192);
        assert!(arena.take(8193).is_none());
        drop(arena.take(8192).unwrap());
        assert_eq!(arena.available(), 0, "a lease that is dropped does not come back");
    }

    #[test]
    #[should_panic(expected = "another block")]
    fn takes_back_only_its_own() {
        let (mut one, mut other) = (arena(4096), arena(4096));
        one.give_back(other.take(1).unwrap());
    }

    #[test]
    fn a_lease_keeps_its_block() {
        let mut arena = arena(4096);
        let mut lease = arena.take(4096).unwrap();
        drop(arena);
        lease.fill(3);
        let mut shared = lease.share();
        let part = shared.part(4000, 96);
        drop(shared);
        assert_eq!(part[..], [3; 96]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Each lease is filled with a number of its own, which must be there when the lease is given back.
        #[test]
        fn leases_never_overlap(ops in prop::collection::vec((0usize..3000, any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let mut arena = arena(40_960);
            let mut held: Vec<(Lease, u8)> = Vec::new();
            for (i, (bytes, take, which)) in ops.into_iter().enumerate() {
                let number = i as u8;
                if take || held.is_empty() {
                    if let Some(mut lease) = arena.take(bytes) {
                        lease.fill(number);
                        held.push((lease, number));
                    }
                    continue;
                }
                let at = which.index(held.len());
                let (lease, number) = held.swap_remove(at);
                prop_assert!(lease.iter().all(|&byte| byte == number));
                if bytes % 2 == 0 && bytes <= lease.len() {
                    held.push((arena.shorten(lease, bytes), number));
                } else {
                    arena.give_back(lease);
                }
                let reserved: usize = held.iter().map(|(lease, _)| lease.reserved()).sum();
                prop_assert_eq!(arena.available() + reserved, arena.capacity());
            }
            held.into_iter().for_each(|(lease, _)| arena.give_back(lease));
            prop_assert_eq!(arena.available(), arena.capacity());
        }
    }
}
