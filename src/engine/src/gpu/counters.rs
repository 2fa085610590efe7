//! The counters of a lane's wave: numbers that kernels add to, and where the host finds them.
//!
//! `unsafe` is allowed here: both places have room for all counters, and live as long as the lane.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::error::Result;
use crate::gpu::driver::{Device, DeviceBuffer, PinnedBuffer, Stream, copy_to_host_async, memset_async};

/// Numbers of 64 bits.
pub(super) struct Counters {
    device: DeviceBuffer,
    host: PinnedBuffer,
}

impl Counters {
    pub fn new(device: &Arc<Device>, count: usize) -> Result<Self> {
        Ok(Self { device: DeviceBuffer::alloc(device, count * 8)?, host: PinnedBuffer::alloc(device, count * 8)? })
    }

    /// Where the first of them is on the device.
    pub fn address(&self) -> u64 {
        self.device.ptr()
    }

    /// Starts setting all to zero.
    pub fn clear(&self, stream: &Stream) -> Result<()> {
        // SAFETY: all of the buffer.
        unsafe { memset_async(stream, self.device.ptr(), 0, self.device.len()) }
    }

    /// Starts copying them to the host.
    pub fn receive(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: both buffers have as many bytes.
        unsafe { copy_to_host_async(stream, self.host.ptr(), self.device.ptr(), self.device.len()) }
    }

    /// What was received. The copy must be done.
    pub fn found(&mut self) -> Vec<u64> {
        let bytes = self.host.as_slice().chunks_exact(8);
        bytes.map(|number| number.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))).collect()
    }
}
