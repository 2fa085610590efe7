//! The tables of a lane: small arrays that go with a wave. A block of page-locked memory and one of device memory have
//! the same layout, so that each array is sent by one copy.
//!
//! `unsafe` is allowed here: the page-locked block is written as arrays of plain values.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::budget::DeviceBudget;
use crate::budget::device::{JOB_TABLE, TABLE_PER_BLOCK, TABLE_PER_STREAM};
use crate::error::Result;
use crate::gpu::driver::{
    DecodeArrays, Device, DeviceBuffer, PinnedBuffer, Stream, copy_to_device_async, copy_to_host_async,
};
use dali_zarr_kernels::Job;
use dali_zarr_kernels::zstd::{Block, BlockResult, Frame};

/// Bytes for index outputs, sent at a time.
pub(super) const UPLOADS: usize = 64 << 10;

/// What one round may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Streams, or pieces.
    pub streams: usize,
    /// Blocks of zstd frames.
    pub blocks: usize,
}

/// One array in the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Array {
    offset: usize,
    len: usize,
}

/// The tables of one lane: the page-locked block, and its twin on the device.
pub(super) struct Tables {
    host: PinnedBuffer,
    device: DeviceBuffer,
    capacity: Capacity,
}

impl Tables {
    pub fn new(device: &Arc<Device>, budget: &DeviceBudget) -> Result<Self> {
        let capacity = Capacity { streams: budget.wave_streams, blocks: budget.wave_blocks };
        let len = budget.tables;
        Ok(Self { host: PinnedBuffer::alloc(device, len)?, device: DeviceBuffer::alloc(device, len)?, capacity })
    }

    /// What one round may hold.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The array number `n` of those with entries for each stream.
    fn per_stream(&self, n: usize) -> Array {
        const SIZES: [usize; 12] = [8, 8, 8, 8, 8, 8, 8, 24, 8, 24, 8, size_of::<Frame>()];
        const { assert!(7 * 8 + 24 + 8 + 24 + 8 + size_of::<Frame>() <= TABLE_PER_STREAM) };
        let (before, streams) = (SIZES[..n].iter().sum::<usize>(), self.capacity.streams);
        Array { offset: before * streams, len: SIZES[n] * streams }
    }

    /// The array number `n` of those with entries for each block of zstd frames.
    fn per_block(&self, n: usize) -> Array {
        const SIZES: [usize; 3] = [size_of::<Block>(), 8, size_of::<BlockResult>()];
        const { assert!(size_of::<Block>() + 8 + size_of::<BlockResult>() <= TABLE_PER_BLOCK) };
        let (before, blocks) = (SIZES[..n].iter().sum::<usize>(), self.capacity.blocks);
        Array { offset: self.capacity.streams * TABLE_PER_STREAM + before * blocks, len: SIZES[n] * blocks }
    }

    /// Of zstd: frames, blocks, indexes of the blocks that are entropy-coded, and what is found for each block.
    pub fn zstd(&self) -> [Array; 4] {
        [self.per_stream(11), self.per_block(0), self.per_block(1), self.per_block(2)]
    }

    /// The inputs of decoders, 64 bits for each stream: its address, its bytes, the room for its output, the output's
    /// address.
    pub fn inputs(&self) -> [Array; 4] {
        [0, 1, 2, 3].map(|n| self.per_stream(n))
    }

    /// What kind of stream each is, 32 bits.
    pub fn kinds(&self) -> Array {
        self.per_stream(4)
    }

    /// The results of decoders: the bytes that each stream decoded to (64 bits), and its status (32 bits).
    pub fn results(&self) -> [Array; 2] {
        [5, 6].map(|n| self.per_stream(n))
    }

    /// The checksums to be verified, and the results.
    pub fn checksums(&self) -> [Array; 2] {
        [7, 8].map(|n| self.per_stream(n))
    }

    pub fn copies(&self) -> Array {
        self.per_stream(9)
    }

    /// One entry of 32 bits more than there are copies; each has room for two.
    pub fn copy_tiles(&self) -> Array {
        self.per_stream(10)
    }

    /// The jobs, then the starts of their tiles in two launches, then index outputs.
    pub fn jobs(&self) -> Array {
        let before = self.capacity.streams * TABLE_PER_STREAM + self.capacity.blocks * TABLE_PER_BLOCK;
        Array { offset: before, len: MAX_JOBS * size_of::<Job>() }
    }

    pub fn tile_starts(&self) -> Array {
        let jobs = self.jobs();
        Array { offset: jobs.offset + jobs.len, len: (MAX_JOBS + 2) * 4 }
    }

    pub fn uploads(&self) -> Array {
        Array { offset: self.host.len() - UPLOADS, len: UPLOADS }
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

    /// The arrays of decoders, from stream number `first` on.
    pub fn decode_arrays(&self, first: usize) -> DecodeArrays {
        let at = |array: Array, size: usize| self.address(array) + (first * size) as u64;
        let ([in_ptrs, in_sizes, out_caps, out_ptrs], [out_sizes, statuses]) = (self.inputs(), self.results());
        DecodeArrays {
            in_ptrs: at(in_ptrs, 8),
            in_sizes: at(in_sizes, 8),
            out_caps: at(out_caps, 8),
            out_ptrs: at(out_ptrs, 8),
            out_sizes: at(out_sizes, 8),
            statuses: at(statuses, 4),
            kinds: at(self.kinds(), 4),
        }
    }
}

/// Jobs in one launch.
pub(super) const MAX_JOBS: usize = (JOB_TABLE - UPLOADS - 4096) / (size_of::<Job>() + 4);
