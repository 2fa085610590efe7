//! A block of host memory: mapped here, or allocated by somebody else (page-locked memory).
//!
//! `unsafe` is allowed here: the system maps memory, and an owner vouches for an address.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use crate::error::{Error, Result};

/// A block of host memory. It gives out addresses. Its bytes are borrowed from a [`Lease`](super::Lease).
#[derive(Debug)]
pub struct HostBlock {
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

/// What the memory of a block is.
enum Backing {
    /// Anonymous memory that the block has mapped.
    Mapped,
    /// Memory of this owner, who frees it when dropped.
    #[expect(dead_code, reason = "owned for its Drop")]
    Owned(Box<dyn Send + Sync>),
    /// There is none. The addresses are invented, and nothing is read or written there.
    Invented,
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mapped => "Mapped",
            Self::Owned(_) => "Owned",
            Self::Invented => "Invented",
        })
    }
}

// SAFETY: the block is plain memory. It gives out addresses only, and whoever uses them promises that uses don't
// conflict.
unsafe impl Send for HostBlock {}
// SAFETY: as above; the block itself has no interior state.
unsafe impl Sync for HostBlock {}

/// Bytes of a page of memory: 4 KiB on x86-64, up to 64 KiB on Arm.
pub fn page_size() -> usize {
    // SAFETY: asks for a constant of the system.
    let told = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(told).expect("every system has pages")
}

/// Returns the bytes that are mapped for a block of `len` bytes. The system maps no empty range.
fn mapped(len: usize) -> usize {
    len.max(1)
}

impl HostBlock {
    /// Maps `len` bytes, zeroed. Pages take no memory until they are used, and stay afterwards.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn map(len: usize) -> Result<Self> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped(len),
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
        unsafe { libc::madvise(base, mapped(len), libc::MADV_HUGEPAGE) };
        Ok(Self { base: NonNull::new(base.cast()).expect("mmap doesn't return null"), len, backing: Backing::Mapped })
    }

    /// Makes a block of the `len` bytes at `base` (which may be null if `len` is 0). The block drops `owner` at its
    /// end.
    ///
    /// # Safety
    /// The bytes must be initialised, and valid until `owner` is dropped. Only users of the block may use them.
    pub unsafe fn owned_by(owner: Box<dyn Send + Sync>, base: *mut u8, len: usize) -> Self {
        Self { base: NonNull::new(base).unwrap_or(NonNull::dangling()), len, backing: Backing::Owned(owner) }
    }

    /// Makes a block without memory, for simulations, which use addresses and never bytes. `address` must not be 0.
    pub fn invented(address: u64, len: usize) -> Self {
        let base = std::ptr::without_provenance_mut(address as usize);
        Self { base: NonNull::new(base).expect("not 0"), len, backing: Backing::Invented }
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the memory of a range back to the system, until it is used again. Its content is lost. Does nothing for
    /// memory of another owner.
    ///
    /// # Safety
    /// Nobody may have a lease of the range.
    pub(super) unsafe fn discard(&self, offset: usize, len: usize) {
        let page = page_size();
        let (from, to) = (offset.next_multiple_of(page), (offset + len).min(self.len) / page * page);
        if matches!(self.backing, Backing::Mapped) && from < to {
            // SAFETY: whole pages of the mapping, which nobody uses. They are zero when they are used again. Only advice:
            // failure is fine.
            unsafe { libc::madvise(self.base.as_ptr().add(from).cast(), to - from, libc::MADV_DONTNEED) };
        }
    }

    /// Returns the address of `len` bytes from byte `offset` on. They are initialised, and valid as long as the block
    /// lives. Panics if the block is shorter, or has no memory.
    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "a range beyond the end of its block");
        assert!(!matches!(self.backing, Backing::Invented), "a simulation uses memory that doesn't exist");
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if matches!(self.backing, Backing::Mapped) {
            // SAFETY: mapped by `map` with this length. Whoever uses a range of the block keeps it alive.
            unsafe { libc::munmap(self.base.as_ptr().cast(), mapped(self.len)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn frees_what_it_owns() {
        let mut bytes = vec![7u8; 100];
        let base = bytes.as_mut_ptr();
        let owner = Arc::new(bytes);
        // SAFETY: the vector is the owner, and nobody uses it.
        let block = unsafe { HostBlock::owned_by(Box::new(Arc::clone(&owner)), base, 100) };
        assert_eq!((block.at(40, 60) as u64, Arc::strong_count(&owner)), (base as u64 + 40, 2));
        drop(block);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    #[should_panic(expected = "beyond the end")]
    fn ranges_stay_within() {
        HostBlock::map(4096).unwrap().at(4000, 97);
    }

    #[test]
    #[should_panic(expected = "doesn't exist")]
    fn invented_memory_has_no_bytes() {
        let block = HostBlock::invented(1 << 40, 4096);
        assert_eq!(block.address(), 1 << 40);
        block.at(0, 1);
    }
}
