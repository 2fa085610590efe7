//! The tables of a lane: small arrays with the arguments and the results of a wave's kernels. A block of page-locked
//! memory and a block of device memory have the same layout. Arrays that are needed together lie one behind the other,
//! so that one copy sends them all. Each copy is a call to the driver, and takes locks that the training process needs
//! too.
//!
//! `unsafe` is allowed here: the page-locked block is written as arrays of plain values.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::budget::DeviceBudget;
use crate::budget::device::{JOB_TABLE, TABLE_PER_BLOCK, TABLE_PER_STREAM};
use crate::gpu::driver::{
    DecodeArrays, Device, DeviceBuffer, PinnedBuffer, Stream, copy_to_device_async, copy_to_host_async,
};
use dali_zarr_base::error::Result;
use dali_zarr_kernels::zstd::{Block, BlockResult, Frame};
use dali_zarr_kernels::{ChecksumJob, ChecksumResult, CopyJob, Job};

/// Bytes of the table of index outputs: at most this many are sent at a time.
pub(super) const UPLOADS: usize = 64 << 10;

/// How much one round of decoding may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Streams to decode, or pieces to copy.
    pub streams: usize,
    /// Blocks of zstd frames.
    pub blocks: usize,
}

/// The place of one array in the two blocks, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Array {
    offset: usize,
    len: usize,
}

impl Array {
    /// This array and those behind it, `last` included.
    pub fn until(self, last: Self) -> Self {
        Self { offset: self.offset, len: last.offset + last.len - self.offset }
    }
}

/// The arrays of one round of streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Arrays of 64 bits for each stream: its address, its bytes, the room for its output, the output's address.
    pub inputs: [Array; 4],
    /// The [`dali_zarr_kernels::StreamKind`] of each stream, 32 bits.
    pub kinds: Array,
    /// The checksums to be verified.
    pub checksums: Array,
    /// The bytes that each stream decoded to, 64 bits.
    pub out_sizes: Array,
    /// The decoder's status for each stream, 32 bits; 0: it was decoded.
    pub statuses: Array,
    /// The result of verifying each checksum.
    pub mismatches: Array,
}

impl Round {
    /// The arrays that are copied to the device before the decoders run.
    pub fn sent(&self) -> Array {
        self.inputs[0].until(self.checksums)
    }

    /// The arrays that are copied from the device afterwards.
    pub fn received(&self) -> Array {
        self.out_sizes.until(self.mismatches)
    }
}

/// Bytes for each stream in the arrays that are sent to the device.
const SENT_PER_STREAM: usize = 5 * 8 + size_of::<ChecksumJob>();
/// Bytes for each stream in the arrays that are received from the device.
const RECEIVED_PER_STREAM: usize = 2 * 8 + size_of::<ChecksumResult>();
/// Bytes for each piece that is copied. The rest of [`TABLE_PER_STREAM`] is for zstd frames.
const GATHERED_PER_PIECE: usize = size_of::<CopyJob>() + 8;
const _: () =
    assert!(SENT_PER_STREAM + RECEIVED_PER_STREAM + GATHERED_PER_PIECE + size_of::<Frame>() <= TABLE_PER_STREAM);
const _: () = assert!(size_of::<Block>() + 8 + size_of::<BlockResult>() <= TABLE_PER_BLOCK);

impl Capacity {
    /// Places arrays of `bytes` bytes one behind the other, each at a multiple of 8, between the offsets `from` and
    /// `to` of the blocks. Panics if they don't fit.
    fn packed<const N: usize>(from: usize, to: usize, bytes: [usize; N]) -> [Array; N] {
        let mut at = from;
        let arrays = bytes.map(|len| {
            let array = Array { offset: at, len };
            at += len.next_multiple_of(8);
            array
        });
        // The last array needs no padding behind it.
        assert!(arrays.iter().all(|array| array.offset + array.len <= to), "tables that are too small");
        arrays
    }

    /// Places arrays in the part of the blocks that has `each` bytes for every stream. The parts before it have
    /// `before` bytes for every stream.
    fn per_stream<const N: usize>(&self, before: usize, each: usize, bytes: [usize; N]) -> [Array; N] {
        Self::packed(before * self.streams, (before + each) * self.streams, bytes)
    }

    /// Returns the arrays of a round of `n` streams. `checksums` of the streams have a checksum.
    pub fn round(&self, n: usize, checksums: usize) -> Round {
        let (jobs, results) = (checksums * size_of::<ChecksumJob>(), checksums * size_of::<ChecksumResult>());
        let [in_ptrs, in_sizes, out_caps, out_ptrs, kinds, checksums] =
            self.per_stream(0, SENT_PER_STREAM, [8 * n, 8 * n, 8 * n, 8 * n, 4 * n, jobs]);
        let [out_sizes, statuses, mismatches] =
            self.per_stream(SENT_PER_STREAM, RECEIVED_PER_STREAM, [8 * n, 4 * n, results]);
        Round { inputs: [in_ptrs, in_sizes, out_caps, out_ptrs], kinds, checksums, out_sizes, statuses, mismatches }
    }

    /// Returns the arrays for `n` copies: the [`CopyJob`]s, and `n + 1` numbers of 32 bits, the prefix sum of their
    /// tiles.
    pub fn copies(&self, n: usize) -> [Array; 2] {
        self.per_stream(
            SENT_PER_STREAM + RECEIVED_PER_STREAM,
            GATHERED_PER_PIECE,
            [n * size_of::<CopyJob>(), (n + 1) * 4],
        )
    }

    /// Returns the arrays for zstd: frames, blocks, indexes of the compressed blocks, and the result for each block.
    pub fn zstd(&self, frames: usize, blocks: usize) -> [Array; 4] {
        let bytes =
            [frames * size_of::<Frame>(), blocks * size_of::<Block>(), blocks * 4, blocks * size_of::<BlockResult>()];
        Self::packed(
            (SENT_PER_STREAM + RECEIVED_PER_STREAM + GATHERED_PER_PIECE) * self.streams,
            self.end_of_rounds(),
            bytes,
        )
    }

    /// The offset at which the tables of decoders end and those of jobs begin.
    fn end_of_rounds(&self) -> usize {
        self.streams * TABLE_PER_STREAM + self.blocks * TABLE_PER_BLOCK
    }
}

/// The tables of one lane: the page-locked block, and the block on the device.
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

    /// How much one round of decoding may hold.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns the arrays for `n` jobs: the jobs, and the prefix sums of their tiles for three launches. The table of
    /// index outputs lies behind them.
    pub fn jobs(&self, n: usize) -> [Array; 2] {
        Capacity::packed(self.capacity.end_of_rounds(), self.uploads().offset, [n * size_of::<Job>(), (n + 4) * 4])
    }

    /// The table of index outputs.
    pub fn uploads(&self) -> Array {
        Array { offset: self.host.len() - UPLOADS, len: UPLOADS }
    }

    /// The first `n` values of an array in host memory, to be written, or read after [`Self::receive`]. No copy from or
    /// to the array may be in flight.
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

    /// Enqueues the copy of an array to the device.
    pub fn send(&self, stream: &Stream, array: Array) -> Result<()> {
        self.send_to(stream, array, 0, self.address(array), array.len)
    }

    /// Enqueues a copy of `bytes` bytes of an array, from its byte `from` on, to the device address `to`.
    pub fn send_to(&self, stream: &Stream, array: Array, from: usize, to: u64, bytes: usize) -> Result<()> {
        assert!(from + bytes <= array.len, "a copy beyond its table");
        // SAFETY: the source lies in the page-locked block, which lives as long as the lane; the destination is the
        // block on the device or an output that was lent with room for the bytes.
        unsafe { copy_to_device_async(stream, to, self.host.ptr().add(array.offset + from), bytes) }
    }

    /// Enqueues the copy of an array from the device.
    pub fn receive(&mut self, stream: &Stream, array: Array) -> Result<()> {
        // SAFETY: as for `send`, in the other direction.
        unsafe { copy_to_host_async(stream, self.host.ptr().add(array.offset), self.address(array), array.len) }
    }

    /// Returns the device addresses of a round's arrays, from stream number `first` on.
    pub fn decode_arrays(&self, round: &Round, first: usize) -> DecodeArrays {
        let at = |array: Array, size: usize| self.address(array) + (first * size) as u64;
        let [in_ptrs, in_sizes, out_caps, out_ptrs] = round.inputs;
        DecodeArrays {
            in_ptrs: at(in_ptrs, 8),
            in_sizes: at(in_sizes, 8),
            out_caps: at(out_caps, 8),
            out_ptrs: at(out_ptrs, 8),
            out_sizes: at(round.out_sizes, 8),
            statuses: at(round.statuses, 4),
            kinds: at(round.kinds, 4),
        }
    }
}

/// The most jobs in one launch: the table of jobs has room for them and for [`UPLOADS`].
pub(super) const MAX_JOBS: usize = (JOB_TABLE - UPLOADS - 4096) / (size_of::<Job>() + 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_round_fits_and_its_arrays_do_not_overlap() {
        for (streams, blocks) in [(1, 2), (3, 7), (32_768, 100_000)] {
            let capacity = Capacity { streams, blocks };
            let round = capacity.round(streams, streams);
            let mut arrays = round.inputs.to_vec();
            arrays.extend([round.kinds, round.checksums, round.out_sizes, round.statuses, round.mismatches]);
            arrays.extend(capacity.copies(streams));
            arrays.extend(capacity.zstd(streams, blocks));
            for pair in arrays.windows(2) {
                assert!(pair[0].offset + pair[0].len <= pair[1].offset, "{streams}: {pair:?}");
                assert!(pair[1].offset.is_multiple_of(8));
            }
            let last = arrays.last().unwrap();
            assert!(last.offset + last.len <= capacity.end_of_rounds());
            let sent = round.sent();
            assert_eq!((sent.offset, sent.len), (0, round.checksums.offset + 24 * streams));
        }
    }

    #[test]
    fn few_streams_are_sent_as_few_bytes() {
        let round = Capacity { streams: 1000, blocks: 1000 }.round(3, 1);
        assert_eq!((round.sent().len, round.received().len), (4 * 24 + 16 + 24, 24 + 16 + 8));
    }
}
