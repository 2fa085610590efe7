//! Memory that is reserved once and used by many threads: arenas for chunks, buffers for finished batches.
//!
//! `unsafe` is allowed here: different threads write disjoint ranges of one block at the same time, which Rust's
//! references can't express. The scheduler's bookkeeping ([`arena`]) keeps them disjoint.

#![allow(unsafe_code)]

pub mod arena;
mod machine;
mod pool;

pub(crate) use machine::Machine;
pub use pool::{HostBuffer, Pool};

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::error::{Error, Result};

/// Formats a number of bytes for people.
pub(crate) fn shown(n: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| n >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", n as f64 / *unit as f64),
        None => format!("{n} bytes"),
    }
}

/// A block of anonymous memory. Pages take no memory until they are used, and stay afterwards.
#[derive(Debug)]
pub struct HostBlock {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the block is plain memory; the arena that hands out its ranges decides who may use which.
unsafe impl Send for HostBlock {}
// SAFETY: as above; the block itself has no interior state.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// Maps `len` bytes (at least one page), zeroed.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn map(len: usize) -> Result<Self> {
        let len = len.max(4096);
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let e = std::io::Error::last_os_error();
            return Err(Error::memory(format!(
                "host memory: expected {len} bytes, but the system refuses them: {e}; lower host_memory_limit"
            )));
        }
        // Page faults cost more than the copies themselves; huge pages make them rare. Only advice: failure is fine.
        // SAFETY: the range was just mapped.
        unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap doesn't return null"), len })
    }

    /// The first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing (never).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nobody can hold a range any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A range of host memory by address: one holder writes it, or several read it. The scheduler passes it to the threads
/// that read, decode and assemble. It keeps nothing alive: the reader's blocks outlive its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes.
    pub len: usize,
}

impl Span {
    /// The bytes, to be read.
    ///
    /// # Safety
    /// The memory must be alive and nobody may write it while the slice lives.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len) }
    }

    /// The bytes, to be written.
    ///
    /// # Safety
    /// The memory must be alive and nobody else may touch it while the slice lives.
    pub unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.len) }
    }

    /// Returns a part of the span. Panics if the part reaches beyond its end.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "part of a span beyond its end");
        Self { address: self.address + offset as u64, len }
    }
}

/// The destination of a read: a range of host memory that only the owner of the lease uses. It derefs to the bytes.
#[derive(Debug)]
pub struct Lease(Span);

impl Lease {
    /// Leases a range.
    ///
    /// # Safety
    /// If the lease is dereferenced, the memory must be alive, and nobody else may use it, until the lease is dropped.
    pub const unsafe fn new(span: Span) -> Self {
        Self(span)
    }

    /// The range.
    pub const fn span(&self) -> Span {
        self.0
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the promise to `Lease::new`.
        unsafe { self.0.bytes() }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the promise to `Lease::new`; the lease is borrowed mutably.
        unsafe { self.0.bytes_mut() }
    }
}
