//! Device memory and page-locked host memory: allocated when a reader is built, used again and again, freed at its end.

use super::{Device, check};
use cudarc::driver::sys;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::{Machine, page_size};
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

/// Buffers from this size on are mapped and registered. To lock 1.7 GB took 0.1 to 0.2 s so, and 0.8 to 1.5 s with
/// `cuMemHostAlloc`, which faults in and zeroes the pages on one thread (H200, 16 cores).
const MAPPED: usize = 32 << 20;
/// Most threads that fault in the pages of a mapping.
const MAX_THREADS: usize = 8;

/// Page-locked host memory, usable for copies from and to every device (portable). Fast for host writes and for
/// transfers. Its address is a multiple of the page size.
#[derive(Debug)]
pub struct PinnedBuffer {
    device: Arc<Device>,
    address: *mut u8,
    len: usize,
    /// Whether the memory is a mapping that is registered, and not the driver's.
    is_mapped: bool,
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
        if len >= MAPPED
            && Machine::find().is_none_or(|machine| len as u64 <= machine.available)
            && let Some(address) = map(len)
        {
            return Ok(Self { device: device.clone(), address, len, is_mapped: true });
        }
        let mut address = std::ptr::null_mut();
        if len > 0 {
            // SAFETY: writes one address, which Drop frees.
            check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut address, len, sys::CU_MEMHOSTALLOC_PORTABLE) })
                .map_err(|e| out_of(len, "page-locked host memory", device, &e))?;
            // SAFETY: `len` bytes were just allocated. They are zeroed for two reasons: the pages are touched now and
            // not while data streams in, and safe code may make a slice only of initialised memory.
            unsafe { std::ptr::write_bytes(address.cast::<u8>(), 0, len) };
        }
        Ok(Self { device: device.clone(), address: address.cast(), len, is_mapped: false })
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
        if self.is_mapped {
            let unregister = || {
                // SAFETY: waits for transfers that may still use the memory.
                check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })?;
                // SAFETY: ends the registration that `map` made.
                check("cuMemHostUnregister", unsafe { sys::cuMemHostUnregister(self.address.cast()) })
            };
            let is_free = self.device.bind().and_then(|()| unregister()).is_ok();
            // Memory that the driver still knows, as while a graph is captured, is left: at its address another mapping would
            // be taken for it. In a forked child, which has no such mapping, the address may be another's already.
            if is_free {
                // SAFETY: mapped by `map` with this length, unmapped once.
                unsafe { libc::munmap(self.address.cast(), self.len) };
            }
        } else if !self.address.is_null() && self.device.bind().is_ok() {
            // SAFETY: allocated by `alloc`, freed once. The call waits for transfers that may still use the memory.
            let _ = unsafe { sys::cuMemFreeHost(self.address.cast()) };
        }
    }
}

/// Maps `len` bytes of zeros, in large pages where there are any, and registers them in the current context for all devices.
/// `None` if the system or the driver refuses that.
fn map(len: usize) -> Option<*mut u8> {
    let (access, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the system chooses.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, access, private, -1, 0) };
    if address == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is whole and new. A forked child doesn't inherit it, so that its pages stay those that the device
    // has. Older systems lack some advice, without which it works too.
    unsafe {
        libc::madvise(address, len, libc::MADV_HUGEPAGE);
        libc::madvise(address, len, libc::MADV_DONTFORK);
    }
    let address = address.cast::<u8>();
    fault_in(address as usize, len);
    // SAFETY: the range is mapped, and Drop ends the registration before the mapping.
    let status = unsafe { sys::cuMemHostRegister_v2(address.cast(), len, sys::CU_MEMHOSTREGISTER_PORTABLE) };
    if check("cuMemHostRegister", status).is_err() {
        // SAFETY: mapped above, and nobody has the address.
        unsafe { libc::munmap(address.cast(), len) };
        return None;
    }
    Some(address)
}

/// Touches each page of a new mapping, so that none is faulted in while data stream in.
fn fault_in(address: usize, len: usize) {
    let page = page_size();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let each = len.div_ceil(threads).next_multiple_of(page);
    let touch = |from: usize| {
        for at in (from..(from + each).min(len)).step_by(page) {
            // SAFETY: within the mapping, whose address nobody else has.
            unsafe { ((address + at) as *mut u8).write_volatile(0) };
        }
    };
    std::thread::scope(|scope| {
        for from in (0..len).step_by(each) {
            let one = std::thread::Builder::new().name("dali-zarr-pages".into());
            if one.spawn_scoped(scope, move || touch(from)).is_err() {
                touch(from);
            }
        }
    });
}

fn out_of(len: usize, what: &str, device: &Arc<Device>, error: &Error) -> Error {
    let free = match device.memory_info() {
        Ok((free, total)) => format!(" ({free} of {total} bytes of device memory are free)"),
        Err(_) => String::new(),
    };
    error.within(format!("allocating {len} bytes of {what} on GPU {}{free}", device.ordinal()))
}
