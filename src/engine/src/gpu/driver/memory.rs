//! Device memory and page-locked host memory: allocated when a reader is built, used again and again, freed at its end.

use super::{Device, check};
use cudarc::driver::sys;
use dali_zarr_base::error::{Error, Result};
use std::sync::Arc;

/// Device memory. Its address is a multiple of 256.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Arc<Device>,
    address: u64,
    len: usize,
}

impl DeviceBuffer {
    /// Allocates `len` bytes. Not zeroed. Zero bytes allocate nothing and have address 0.
    ///
    /// # Errors
    /// If there isn't that much memory: the message says how much is free.
    pub fn alloc(device: &Arc<Device>, len: usize) -> Result<Self> {
        device.bind()?;
        let mut address = 0;
        if len > 0 {
            // SAFETY: writes one address, which Drop frees.
            check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, len) })
                .map_err(|e| out_of(len, "device memory", device, &e))?;
        }
        Ok(Self { device: device.clone(), address, len })
    }

    /// The device address of its first byte.
    pub fn ptr(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address != 0 && self.device.bind().is_ok() {
            // SAFETY: allocated by `alloc`, freed once. The call waits for work that may still use the memory.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked host memory, usable for copies from and to every device (portable). Fast for host writes and for
/// transfers. Its address is a multiple of the page size.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Arc<Device>,
    address: *mut u8,
    len: usize,
}

// SAFETY: plain memory; access through `ptr` is the user's responsibility.
unsafe impl Send for PinnedBuffer {}
// SAFETY: likewise: a shared reference gives out the address and nothing else.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Allocates `len` bytes, which hold zeros. Zero bytes allocate nothing and have a null address.
    ///
    /// # Errors
    /// If there isn't that much memory, or it may not be locked.
    pub fn alloc(device: &Arc<Device>, len: usize) -> Result<Self> {
        device.bind()?;
        let mut address = std::ptr::null_mut();
        if len > 0 {
            // SAFETY: writes one address, which Drop frees.
            check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut address, len, sys::CU_MEMHOSTALLOC_PORTABLE) })
                .map_err(|e| out_of(len, "page-locked host memory", device, &e))?;
            // SAFETY: `len` bytes were just allocated. They are zeroed for two reasons: the pages are touched now and
            // not while data streams in, and safe code may make a slice only of initialised memory.
            unsafe { std::ptr::write_bytes(address.cast::<u8>(), 0, len) };
        }
        Ok(Self { device: device.clone(), address: address.cast(), len })
    }

    /// The address of its first byte.
    pub fn ptr(&self) -> *mut u8 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes. No transfer to them may be in flight.
    pub fn as_slice(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: allocated with `len` initialised bytes; the exclusive borrow keeps other safe access out.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if !self.address.is_null() && self.device.bind().is_ok() {
            // SAFETY: allocated by `alloc`, freed once. The call waits for transfers that may still use the memory.
            let _ = unsafe { sys::cuMemFreeHost(self.address.cast()) };
        }
    }
}

fn out_of(len: usize, what: &str, device: &Arc<Device>, error: &Error) -> Error {
    let free = match device.memory_info() {
        Ok((free, total)) => format!(" ({free} of {total} bytes of device memory are free)"),
        Err(_) => String::new(),
    };
    error.within(format!("allocating {len} bytes of {what} on GPU {}{free}", device.ordinal()))
}
