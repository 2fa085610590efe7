//! A device and its primary context, which this process shares with DALI and PyTorch.

use super::{check, driver_error};
use cudarc::driver::{result, sys};
use dali_zarr_base::error::{Code, Error, Result};
use dali_zarr_kernels::CUDA;
use std::sync::{Arc, OnceLock};

/// A CUDA device. Its primary context is retained as long as this lives.
#[derive(Debug)]
pub struct Device {
    ordinal: i32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    multiprocessors: i32,
    shared_memory: i32,
}

// SAFETY: a context handle may be used from any thread; the driver synchronises its own state.
unsafe impl Send for Device {}
// SAFETY: likewise; nothing here is changed after construction.
unsafe impl Sync for Device {}

/// Loads and initialises the driver, once. The result is kept: a missing driver doesn't appear later in a process.
fn driver() -> Result<()> {
    static DRIVER: OnceLock<Result<()>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            // SAFETY: only tries to open the driver's library.
            if !unsafe { sys::is_culib_present() } {
                return Err(Error::coded(Code::DeviceFailed, format!(
                    "no CUDA driver was found (libcuda.so); use device=\"cpu\", or install NVIDIA's driver {} or newer",
                    CUDA.driver
                )));
            }
            result::init().map_err(|e| driver_error("cuInit", e))?;
            let mut version = 0;
            // SAFETY: writes one int.
            check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
            if version < CUDA.major * 1000 {
                return Err(Error::coded(Code::DeviceFailed, format!(
                    "expected a driver for CUDA {}.0 or newer, found one for CUDA {}.{}; install NVIDIA's driver {} or \
                     newer, or use device=\"cpu\"",
                    CUDA.major,
                    version / 1000,
                    version % 1000 / 10,
                    CUDA.driver
                )));
            }
            Ok(())
        })
        .clone()
}

impl Device {
    /// Opens the device with this ordinal (among those that `CUDA_VISIBLE_DEVICES` leaves) and retains its primary
    /// context. The context isn't made current: see [`Device::bind`].
    ///
    /// # Errors
    /// If there is no driver, it is too old, there is no such device, or its context can't be created.
    pub fn open(ordinal: i32) -> Result<Arc<Self>> {
        driver()?;
        let count = result::device::get_count().map_err(|e| driver_error("cuDeviceGetCount", e))?;
        if !(0..count).contains(&ordinal) {
            return Err(Error::coded(
                Code::DeviceFailed,
                format!("there is no GPU with number {ordinal}: {count} are visible, from 0 on"),
            ));
        }
        let handle = result::device::get(ordinal).map_err(|e| driver_error("cuDeviceGet", e))?;
        let attribute = |which| {
            // SAFETY: the handle belongs to a device.
            unsafe { result::device::get_attribute(handle, which) }.map_err(|e| driver_error("cuDeviceGetAttribute", e))
        };
        use sys::CUdevice_attribute as Attribute;
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_memory = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle; the retained reference is released by Drop.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, handle) })?;
        Ok(Arc::new(Self { ordinal, handle, context, multiprocessors, shared_memory }))
    }

    /// The number that the device was opened with.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// The number of multiprocessors.
    pub fn multiprocessors(&self) -> i32 {
        self.multiprocessors
    }

    /// The most bytes of shared memory that a block of threads may have.
    pub fn shared_memory(&self) -> i32 {
        self.shared_memory
    }

    /// Makes the context current on the calling thread. This is cheap if it already is. Functions that allocate, create
    /// or free call this themselves. Before functions that enqueue work or ask for its end, the caller must call it;
    /// once is enough for many calls. Without a current context they fail.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn bind(&self) -> Result<()> {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current == self.context {
            return Ok(());
        }
        // SAFETY: the context is retained by self.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Returns the free and the total bytes of the device's memory. Memory of all processes counts as used.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two usize.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: releases the reference that `open` retained. An error (a lost context, a process at its end) leaves
        // nothing to do.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}
