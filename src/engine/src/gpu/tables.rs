//! The small arrays that accompany a wave: one block of page-locked memory and one of device memory with the same
//! layout, so that each array travels by one copy.
//!
//! One of the places where `unsafe` is allowed: the page-locked block is written as arrays of plain values.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::cuda::decode::DecodeArrays;
use crate::cuda::{Device, DeviceBuffer, PinnedBuffer, Stream, copy_to_device_async, copy_to_host_async};
use crate::error::Result;
use crate::flow::budget::{JOB_TABLE, TABLE_PER_CHUNK};
use dali_zarr_kernels::Job;

/// Bytes for index outputs in one go.
pub(super) const UPLOADS: usize = 64 << 10;

/// Bytes of both blocks for waves of `chunks` chunks.
pub(super) const fn bytes(chunks: usize) -> usize {
    chunks * TABLE_PER_CHUNK + JOB_TABLE
}

/// One array in the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Array {
    offset: usize,
    len: usize,
}

/// See the module.
pub(super) struct Tables {
    host: PinnedBuffer,
    device: DeviceBuffer,
    chunks: usize,
}

impl Tables {
    pub fn new(device: &Arc<Device>, chunks: usize) -> Result<Self> {
        let len = bytes(chunks);
        Ok(Self { host: PinnedBuffer::alloc(device, len)?, device: DeviceBuffer::alloc(device, len)?, chunks })
    }

    /// The array number `n` (0 to 3: inputs of nvCOMP; 4, 5: its results; 6, 7: checksums and their results; 8, 9:
    /// copies and their tiles) of `size` bytes per chunk.
    pub fn per_chunk(&self, n: usize) -> Array {
        const SIZES: [usize; 10] = [8, 8, 8, 8, 8, 8, 24, 8, 24, 8];
        const { assert!(8 * 6 + 24 + 8 + 24 + 8 + 16 <= TABLE_PER_CHUNK) };
        let before: usize = SIZES[..n].iter().sum();
        Array { offset: before * self.chunks, len: SIZES[n] * self.chunks }
    }

    /// The jobs, then the starts of their tiles, then index outputs.
    pub fn jobs(&self) -> Array {
        Array { offset: self.chunks * TABLE_PER_CHUNK, len: MAX_JOBS * size_of::<Job>() }
    }

    pub fn tile_starts(&self) -> Array {
        let jobs = self.jobs();
        Array { offset: jobs.offset + jobs.len, len: (MAX_JOBS + 1) * 4 }
    }

    pub fn uploads(&self) -> Array {
        Array { offset: bytes(self.chunks) - UPLOADS, len: UPLOADS }
    }

    /// The first `n` values of an array in host memory, to be written. Nothing may be in flight from it.
    pub fn values<T: Copy>(&mut self, array: Array, n: usize) -> &mut [T] {
        assert!(
            n * size_of::<T>() <= array.len && array.offset.is_multiple_of(align_of::<T>()),
            "a table that is too small"
        );
        // SAFETY: in the block and aligned (the block is, and each array's offset was just checked); any bits are a
        // value of the plain types that are used here; `self` is borrowed as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(self.host.ptr().add(array.offset).cast(), n) }
    }

    /// The device's address of an array.
    pub fn address(&self, array: Array) -> u64 {
        self.device.ptr() + array.offset as u64
    }

    /// Starts copying the first `bytes` of an array to the device.
    pub fn send(&self, stream: &Stream, array: Array, bytes: usize) -> Result<()> {
        self.send_to(stream, array, 0, self.address(array), bytes)
    }

    /// Starts copying `bytes` of an array, from `from` on, to some device memory.
    pub fn send_to(&self, stream: &Stream, array: Array, from: usize, to: u64, bytes: usize) -> Result<()> {
        assert!(from + bytes <= array.len, "a copy beyond its table");
        // SAFETY: the source lies in the page-locked block, which lives as long as the lane; the destination is this
        // block's twin or an output that was lent with room for it.
        unsafe { copy_to_device_async(stream, to, self.host.ptr().add(array.offset + from), bytes) }
    }

    /// Starts copying the first `bytes` of an array from the device.
    pub fn receive(&mut self, stream: &Stream, array: Array, bytes: usize) -> Result<()> {
        assert!(bytes <= array.len, "a copy beyond its table");
        // SAFETY: as for `send`, in the other direction.
        unsafe { copy_to_host_async(stream, self.host.ptr().add(array.offset), self.address(array), bytes) }
    }

    /// nvCOMP's arrays, from stream number `first` on.
    pub fn decode_arrays(&self, first: usize) -> DecodeArrays {
        let at = |n: usize, size: usize| self.address(self.per_chunk(n)) + (first * size) as u64;
        DecodeArrays {
            in_ptrs: at(0, 8),
            in_sizes: at(1, 8),
            out_caps: at(2, 8),
            out_ptrs: at(3, 8),
            out_sizes: at(4, 8),
            statuses: at(5, 4),
        }
    }
}

/// Jobs in one launch.
pub(super) const MAX_JOBS: usize = (JOB_TABLE - UPLOADS - 4096) / (size_of::<Job>() + 4);
