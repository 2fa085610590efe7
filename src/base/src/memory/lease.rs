//! The right to use a range of host memory. A [`Lease`] is the right to write: nobody else uses the range. A
//! [`SharedLease`] hands out [`Part`]s, which several threads may read at the same time.
//!
//! They are neither `Copy` nor `Clone`. A range is used again only after its lease was given back to its lender
//! ([`HostArena`](super::HostArena) or [`HostBuffer`](super::HostBuffer)). A shared lease can be given back only after
//! all its parts. So memory is never used again while a thread has it. A lease or part that is dropped does not come
//! back: its range stays reserved. Each lease and part keeps its block alive, so no memory is freed that somebody uses.
//!
//! Parts are counted where they are handed out and taken back, which is in one thread. The threads that read them touch
//! no counter, and nothing is allocated for them.
//!
//! `unsafe` is allowed here: the bytes of a range are borrowed from its lease.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::HostBlock;
use super::arena::Range;

/// A range of host memory that only the holder of the lease uses. It derefs to its bytes.
#[derive(Debug)]
#[must_use = "a range that isn't given back stays reserved"]
pub struct Lease {
    block: Arc<HostBlock>,
    /// What is reserved for it.
    range: Range,
    /// Bytes from the beginning of the range.
    len: usize,
}

impl Lease {
    /// Leases the first `len` bytes of a range of a block. Panics if the range or the block is shorter.
    ///
    /// # Safety
    /// Nobody else may use the range until the lease is given back, and no other lease may have a byte of it.
    pub(super) unsafe fn new(block: &Arc<HostBlock>, range: Range, len: usize) -> Self {
        let end = range.offset.checked_add(range.len);
        assert!(len <= range.len && end.is_some_and(|end| end <= block.len()), "a lease beyond the end of its block");
        Self { block: Arc::clone(block), range, len }
    }

    /// Ends the lease. Returns its range. Panics if it isn't a lease of this block.
    pub(super) fn into_range(self, block: &Arc<HostBlock>) -> Range {
        assert!(Arc::ptr_eq(&self.block, block), "a lease of another block");
        self.range
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.block.address() + self.range.offset as u64
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that are reserved for it.
    pub const fn reserved(&self) -> usize {
        self.range.len
    }

    /// Gives up the right to write, so that several threads can read.
    pub const fn share(self) -> SharedLease {
        SharedLease { lease: self, parts: 0 }
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let first = self.block.at(self.range.offset, self.len);
        // SAFETY: the bytes live as long as the block, which `self` keeps alive. Only the lease's holder uses them.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        let first = self.block.at(self.range.offset, self.len);
        // SAFETY: as above, and the lease is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(first, self.len) }
    }
}

/// A lease of which parts are handed out. Nobody can write to its range.
#[derive(Debug)]
#[must_use = "a range that isn't given back stays reserved"]
pub struct SharedLease {
    lease: Lease,
    /// Number of parts that were handed out and have not come back.
    parts: usize,
}

impl SharedLease {
    /// Bytes.
    pub const fn len(&self) -> usize {
        self.lease.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.lease.len == 0
    }

    /// Hands out `len` bytes from byte `offset` on. Parts may overlap. Panics if the lease is shorter.
    pub fn part(&mut self, offset: usize, len: usize) -> Part {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.lease.len), "a part beyond the end of its lease");
        self.parts += 1;
        Part { block: Arc::clone(&self.lease.block), lease: self.lease.range.offset, offset, len }
    }

    /// Takes a part back. Panics if it is a part of another lease.
    pub fn give_back(&mut self, part: Part) {
        let is_own = Arc::ptr_eq(&self.lease.block, &part.block) && self.lease.range.offset == part.lease;
        assert!(is_own, "a part of another lease");
        self.parts -= 1;
    }

    /// Whether all parts have come back.
    pub const fn is_whole(&self) -> bool {
        self.parts == 0
    }

    /// Ends the sharing. Panics if a part has not come back.
    pub fn into_lease(self) -> Lease {
        assert!(self.is_whole(), "parts of a lease were not given back");
        self.lease
    }
}

/// A part of a [`SharedLease`], which its holder may read. It derefs to its bytes.
#[derive(Debug)]
#[must_use = "a range that isn't given back stays reserved"]
pub struct Part {
    block: Arc<HostBlock>,
    /// The offset of the lease in its block. As long as the part has not come back, no other lease begins there.
    lease: usize,
    /// The offset of the part in the lease.
    offset: usize,
    len: usize,
}

impl Part {
    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.block.address() + (self.lease + self.offset) as u64
    }

    /// The offset in the lease.
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let first = self.block.at(self.lease + self.offset, self.len);
        // SAFETY: the bytes live as long as the block, which `self` keeps alive. Nobody writes to a shared lease, and
        // it is shared at least until `self` comes back.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles only if a type lacks a trait: otherwise the type of `_` is ambiguous.
    macro_rules! lacks {
        ($type:ty: $($trait:path),+) => {$(
            const _: fn() = || {
                trait Lacks<T> {
                    fn it() {}
                }
                impl<T: ?Sized> Lacks<()> for T {}
                impl<T: ?Sized + $trait> Lacks<u8> for T {}
                <$type as Lacks<_>>::it();
            };
        )+};
    }

    // There is one holder of each lease, and what is shared can't be written.
    lacks!(Lease: Clone);
    lacks!(SharedLease: Clone, Deref, AsMut<[u8]>);
    lacks!(Part: Clone, DerefMut, AsMut<[u8]>);

    /// Leases `len` bytes from `offset` on.
    fn lease(block: &Arc<HostBlock>, offset: usize, len: usize) -> Lease {
        // SAFETY: the tests lease ranges that don't overlap.
        unsafe { Lease::new(block, Range { offset, len }, len) }
    }

    fn block() -> Arc<HostBlock> {
        Arc::new(HostBlock::map(4096).unwrap())
    }

    #[test]
    fn parts_have_the_bytes_of_the_lease() {
        let block = block();
        let mut lease = lease(&block, 256, 512);
        lease[100..103].copy_from_slice(&[1, 2, 3]);
        let address = lease.address();
        let mut shared = lease.share();
        let (one, other) = (shared.part(100, 3), shared.part(102, 410));
        assert_eq!((&one[..], other[0]), (&[1, 2, 3][..], 3));
        assert_eq!((one.address(), one.offset(), one.len()), (address + 100, 100, 3));
        assert_eq!(address, block.address() + 256);
        let sum = |part: &Part| part.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        std::thread::scope(|threads| {
            let sums = [&one, &other].map(|part| threads.spawn(move || sum(part)));
            assert_eq!(sums.map(|thread| thread.join().unwrap()), [6, 3]);
        });
        shared.give_back(other);
        assert!(!shared.is_whole());
        shared.give_back(one);
        assert_eq!(shared.into_lease().len(), 512);
    }

    #[test]
    #[should_panic(expected = "beyond the end of its lease")]
    fn parts_stay_within() {
        let _ = lease(&block(), 0, 512).share().part(500, 13);
    }

    #[test]
    #[should_panic(expected = "beyond the end of its block")]
    fn leases_stay_within() {
        let _ = lease(&block(), 4000, 97);
    }

    #[test]
    #[should_panic(expected = "not given back")]
    fn a_shared_lease_ends_after_its_parts() {
        let mut shared = lease(&block(), 0, 512).share();
        drop(shared.part(0, 1));
        let _ = shared.into_lease();
    }

    #[test]
    #[should_panic(expected = "another lease")]
    fn a_part_comes_back_to_its_own_lease() {
        let block = block();
        let (mut one, mut other) = (lease(&block, 0, 256).share(), lease(&block, 256, 256).share());
        let _kept = one.part(0, 1);
        one.give_back(other.part(0, 1));
    }

    #[test]
    #[should_panic(expected = "another block")]
    fn a_lease_ends_in_its_own_block() {
        let _ = lease(&block(), 0, 256).into_range(&block());
    }
}
