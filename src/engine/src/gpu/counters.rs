//! The counters of a lane's wave: kernels add to them on the device, and the host reads a copy.
//!
//! `unsafe` is allowed here: both buffers have room for all counters, and live as long as the lane.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::gpu::driver::{Device, DeviceBuffer, PinnedBuffer, Stream, copy_to_host_async, memset_async};
use dali_zarr_base::error::Result;

/// Counters of 64 bits, on the device and in page-locked memory.
pub(super) struct Counters {
    device: DeviceBuffer,
    host: PinnedBuffer,
}

impl Counters {
    pub fn new(device: &Arc<Device>, count: usize) -> Result<Self> {
        Ok(Self { device: DeviceBuffer::alloc(device, count * 8)?, host: PinnedBuffer::alloc(device, count * 8)? })
    }

    /// Device address of the first counter.
    pub fn address(&self) -> u64 {
        self.device.ptr()
    }

    /// Enqueues setting all counters to zero.
    pub fn clear(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the range is the whole buffer, which lives as long as the lane.
        unsafe { memset_async(stream, self.device.ptr(), 0, self.device.len()) }
    }

    /// Enqueues the copy of the counters to the host.
    pub fn receive(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: both buffers have the same length, and live as long as the lane.
        unsafe { copy_to_host_async(stream, self.host.ptr(), self.device.ptr(), self.device.len()) }
    }

    /// Returns the counters that [`Self::receive`] copied. The copy must have ended.
    pub fn found(&mut self) -> Vec<u64> {
        let bytes = self.host.as_slice().chunks_exact(8);
        bytes.map(|number| number.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))).collect()
    }
}
