//! Streams and events.

use super::{Device, check};
use cudarc::driver::sys;
use dali_zarr_base::error::Result;
use std::sync::Arc;

/// A CUDA event. Threads that wait for it sleep instead of spinning.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    handle: sys::CUevent,
}

// SAFETY: event handles may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: likewise; recording and waiting are synchronised by the driver.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event without timing. As long as it isn't recorded, waiting for it returns at once.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        device.bind()?;
        let flags =
            sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32 | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which Drop destroys.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(Self { device: device.clone(), handle })
    }

    /// Creates an event that also records the time, for [`Self::seconds_since`].
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn timed(device: &Arc<Device>) -> Result<Self> {
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: writes one handle, which Drop destroys.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(Self { device: device.clone(), handle })
    }

    /// Returns the seconds between two timed events, by the device's clock.
    ///
    /// # Errors
    /// If one of the two isn't timed, wasn't recorded, or isn't done.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64> {
        let mut milliseconds = 0f32;
        // SAFETY: both handles are alive; writes one number.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime(&mut milliseconds, earlier.handle, self.handle)
        })?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// The driver's handle, for others to wait on.
    pub fn raw(&self) -> u64 {
        self.handle as u64
    }

    /// Records the event: it is done when everything that is enqueued on the stream up to now is done.
    ///
    /// # Errors
    /// If the driver refuses, or an earlier operation failed.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both handles are alive and of the same context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream.handle) })
    }

    /// Whether the event is done: see [`Event::record`].
    ///
    /// # Errors
    /// If an operation before the event failed.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the handle is alive.
        match unsafe { sys::cuEventQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Sleeps until the event is done: see [`Event::record`].
    ///
    /// # Errors
    /// If an operation before the event failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the handle is destroyed once; the driver keeps a pending event alive.
            let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
        }
    }
}

/// A stream that doesn't synchronise with the default stream.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    pub(super) handle: sys::CUstream,
    done: Event,
}

// SAFETY: stream handles may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: likewise; enqueueing is synchronised by the driver. See `synchronize` for its event.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let done = Event::new(device)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which Drop destroys; `Event::new` made the context current.
        check("cuStreamCreate", unsafe {
            sys::cuStreamCreate(&mut handle, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32)
        })?;
        Ok(Self { device: device.clone(), handle, done })
    }

    /// The device that the stream is on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The driver's handle (`CUstream`, which is also `cudaStream_t`).
    pub fn raw(&self) -> u64 {
        self.handle as u64
    }

    /// Sleeps, without spinning, until everything that is enqueued is done. If several threads call this on one stream,
    /// each waits at least for everything that was enqueued before its call.
    ///
    /// # Errors
    /// If an operation on the stream failed.
    pub fn synchronize(&self) -> Result<()> {
        self.done.record(self)?;
        self.done.synchronize()
    }

    /// Makes everything that is enqueued from now on wait for `event`, a recorded `CUevent` of the same process.
    ///
    /// # Errors
    /// If the driver refuses, e.g. because `event` is no event.
    pub fn wait_event(&self, event: u64) -> Result<()> {
        // SAFETY: the stream is alive; whoever hands out an event keeps it alive for the call.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.handle, event as sys::CUevent, 0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: destroyed once; the driver finishes what is enqueued before it frees the stream.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        }
    }
}
