//! Host memory for chunks: an arena whose ranges are lent as [`Lease`]s.
//!
//! `unsafe` is allowed here: a lease is made of each range that was reserved.

#![allow(unsafe_code)]

use std::sync::{Arc, Weak};

use super::arena::{Arena, rounded};
use super::{Account, HostBlock, Lease};

/// A block of host memory, and the list of its free ranges. It keeps the block alive, and so does each lease.
///
/// An arena with an account grows: at first only a part of the block may be used. The rest is drawn from the account
/// when it is needed.
#[derive(Debug)]
pub struct HostArena {
    block: Arc<HostBlock>,
    free: Arena,
    account: Option<Arc<Account>>,
}

/// Bytes that a growing arena draws at a time, if so many are left.
const STEP: usize = 16 << 20;

impl HostArena {
    /// Makes an arena of a block, all of it free.
    pub fn new(block: HostBlock) -> Self {
        Self { free: Arena::new(block.len()), block: Arc::new(block), account: None }
    }

    /// Makes an arena of a block. Its first `reserved` bytes are free, and the others are drawn from the account.
    pub fn growing(block: HostBlock, reserved: usize, account: Arc<Account>) -> Self {
        let mut arena = Self { account: Some(account), ..Self::new(block) };
        arena.free.withhold(arena.free.capacity().saturating_sub(rounded(reserved)));
        arena
    }

    /// Reserves a range of at least `bytes` bytes, and leases its first `bytes` bytes. `None` if no free range is long
    /// enough now.
    pub fn take(&mut self, bytes: usize) -> Option<Lease> {
        let range = match self.free.take(bytes) {
            Some(range) => range,
            None if self.grow(rounded(bytes), false) => self.free.take(bytes)?,
            None => return None,
        };
        // SAFETY: the range was free. It is free again only after this lease was given back.
        Some(unsafe { Lease::new(&self.block, range, bytes) })
    }

    /// Draws memory for a range of `bytes` bytes. Overdraws the account if `must`. Returns whether it drew any.
    fn grow(&mut self, bytes: usize, must: bool) -> bool {
        let Some(account) = &self.account else { return false };
        let withheld = self.free.withheld();
        if withheld == 0 {
            return false;
        }
        let (least, step) = (bytes.min(withheld), bytes.max(STEP).min(withheld));
        let drawn = match () {
            () if account.left() >= step as u64 && account.draw(step as u64) => step,
            () if account.draw(least as u64) => least,
            () if must => {
                account.overdraw(least as u64);
                least
            }
            () => return false,
        };
        self.free.grant(drawn);
        true
    }

    /// Draws memory for a range of `bytes` bytes, even if the account has none left: the reader can't go on without it.
    /// Returns whether there was any to draw.
    pub fn must_grow(&mut self, bytes: usize) -> bool {
        self.grow(rounded(bytes), true)
    }

    /// Gives free memory back to the account, of `most` bytes at most.
    pub fn shrink(&mut self, most: u64) {
        let Some(account) = &self.account else { return };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        for (offset, len) in self.free.withhold(most) {
            // SAFETY: the range was free, and is withheld now.
            unsafe { self.block.discard(offset, len) };
            account.give_back(len as u64);
        }
    }

    /// Returns the account from which it draws.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// Bytes that may be used now, or that can be drawn now.
    pub fn usable(&self) -> usize {
        let withheld = self.free.withheld();
        let left = self.account.as_ref().map_or(0, |account| usize::try_from(account.left()).unwrap_or(usize::MAX));
        self.free.capacity() - withheld + withheld.min(left)
    }

    /// Bytes that are withheld: they are not drawn.
    pub fn withheld(&self) -> usize {
        self.free.withheld()
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
    pub fn block(&self) -> Weak<HostBlock> {
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

    use super::super::Ledger;
    use super::super::arena::ALIGN;
    use super::*;

    #[test]
    fn a_growing_arena_draws_what_it_uses() {
        let ledger = Arc::new(Ledger::default());
        ledger.set_share(5 * STEP as u64);
        let account = ledger.open(4096, || ());
        let mut arena = HostArena::growing(HostBlock::map(4 * STEP).unwrap(), 4096, Arc::clone(&account));
        let first = arena.take(4096).unwrap();
        assert_eq!((account.drawn(), arena.withheld()), (0, 4 * STEP - 4096));
        let mut more = arena.take(10_000).unwrap();
        more.fill(7);
        assert_eq!((account.drawn(), arena.available()), (STEP as u64, STEP - 10_240));
        let other = ledger.open(0, || ());
        assert!(other.draw(ledger.left() - 8192));
        let large = arena.take(STEP - 10_240).unwrap();
        assert!(arena.take(8193).is_none(), "8192 are left");
        let last = arena.take(8192).unwrap();
        assert!(arena.take(1).is_none() && arena.must_grow(100) && arena.take(100).is_some());
        assert_eq!(ledger.left(), 0);
        [more, large, last].into_iter().for_each(|lease| arena.give_back(lease));
        arena.shrink(u64::MAX);
        assert_eq!((account.drawn(), arena.available()), (256, 0), "the last lease was dropped, and the first is held");
        arena.give_back(first);
        assert_eq!(arena.take(4096).unwrap().len(), 4096);
        let again = arena.take(STEP / 2);
        assert!(again.unwrap().iter().all(|&byte| byte == 0), "its pages were given back");
    }

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
