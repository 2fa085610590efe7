//! The decoders of a lane. Streams are decoded in rounds that fit the lane's tables and workspace. The results of all
//! rounds are collected until the wave is done.
//!
//! `unsafe` is allowed here: device addresses come from the staging buffer, the slots and the tables.

#![allow(unsafe_code)]

mod decoder;
mod kernels;
#[cfg(test)]
mod nvcomp;
#[cfg(test)]
mod tests_codec;
#[cfg(test)]
mod tests_inflate;

use std::ops::Range;
use std::sync::Arc;

use dali_zarr_kernels::{ChecksumJob, ChecksumKind, ChecksumResult, StreamKind};

use crate::gpu::driver::{Device, DeviceBuffer, Module, Stream};
use crate::gpu::streams::EncodedStream;
use crate::gpu::tables::Tables;
use crate::messages::Wave;
use dali_zarr_base::error::Result;
use dali_zarr_codecs::stream::Checksum;
use dali_zarr_codecs::streams::{ChunkStream, StreamCodec};
use decoder::{LaneCapacity, Launch, StreamDecoder};
use kernels::{Inflate, Lz4, ZstdKernels};

/// Returns the decoder of streams of this kind.
pub(in crate::gpu) const fn choose(codec: StreamCodec) -> &'static dyn StreamDecoder {
    match codec {
        StreamCodec::Zstd => &ZstdKernels,
        StreamCodec::Deflate => &Inflate,
        StreamCodec::Lz4 | StreamCodec::Snappy => &Lz4,
    }
}

/// Returns the kind of a stream, for the one decoder that takes several kinds.
const fn kind(codec: StreamCodec) -> StreamKind {
    match codec {
        StreamCodec::Snappy => StreamKind::Snappy,
        StreamCodec::Lz4 | StreamCodec::Zstd | StreamCodec::Deflate => StreamKind::Lz4,
    }
}

/// Returns the main codec of the decoder that takes streams of `codec`: the decoder of LZ4 takes Snappy too.
const fn decoder(codec: StreamCodec) -> StreamCodec {
    match codec {
        StreamCodec::Lz4 | StreamCodec::Snappy => StreamCodec::Lz4,
        StreamCodec::Zstd => StreamCodec::Zstd,
        StreamCodec::Deflate => StreamCodec::Deflate,
    }
}

/// The decoders of a lane.
pub(super) struct Decoder {
    module: Arc<Module>,
    workspace: DeviceBuffer,
    /// The indexes of the streams that are in the tables.
    round: Range<usize>,
    /// Chunks with a stream that couldn't be decoded, in all collected rounds. An index may occur twice.
    failed: Vec<usize>,
}

impl Decoder {
    pub fn new(device: &Arc<Device>, module: &Arc<Module>, workspace: usize) -> Result<Self> {
        Ok(Self {
            module: Arc::clone(module),
            workspace: DeviceBuffer::alloc(device, workspace.max(8))?,
            round: 0..0,
            failed: Vec::new(),
        })
    }

    /// What the lane has room for in one round.
    fn room(&self, tables: &Tables) -> LaneCapacity {
        LaneCapacity { workspace: self.workspace.len(), blocks: tables.capacity().blocks }
    }

    /// Whether this lane can decode the stream, or copy it if it isn't compressed.
    pub fn takes(&self, tables: &Tables, stream: &ChunkStream) -> bool {
        stream.codec.is_none_or(|codec| choose(codec).takes(stream, self.room(tables)))
    }

    /// Enqueues the decoding of all streams and the verification of their checksums. Waits only if they don't fit in
    /// one round: then before each further round.
    pub fn start(
        &mut self,
        stream: &Stream,
        tables: &mut Tables,
        wave: &Wave,
        streams: &[EncodedStream],
        staging: u64,
    ) -> Result<()> {
        self.failed.clear();
        self.round = 0..0;
        while self.round.end < streams.len() {
            if self.round.end > 0 {
                stream.synchronize()?;
                self.collect(tables, streams);
            }
            let first = self.round.end;
            self.round = first..first + self.fits(&streams[first..], tables);
            self.enqueue(stream, tables, wave, &streams[self.round.clone()], staging)?;
        }
        Ok(())
    }

    /// Returns how many of these streams, from the first on, fit in one round. Tables and workspace limit the number.
    fn fits(&self, streams: &[EncodedStream], tables: &Tables) -> usize {
        let mut n = 0;
        for alike in streams[..streams.len().min(tables.capacity().streams)].chunk_by(|a, b| a.codec == b.codec) {
            let take = choose(alike[0].codec).fits(alike, self.room(tables));
            n += take;
            if take < alike.len() {
                break;
            }
        }
        // One stream always fits: those that don't were refused by `takes`.
        n.max(1)
    }

    fn enqueue(
        &self,
        stream: &Stream,
        tables: &mut Tables,
        wave: &Wave,
        streams: &[EncodedStream],
        staging: u64,
    ) -> Result<()> {
        let output = |s: &EncodedStream| wave.chunks[s.chunk].to + s.to as u64;
        let job = |s: &EncodedStream| {
            let (kind, expected) = match s.checksum? {
                Checksum::Crc32(e) => (ChecksumKind::Crc32, e),
                Checksum::Adler32(e) => (ChecksumKind::Adler32, e),
                Checksum::Xxh64Low(e) => (ChecksumKind::Xxh64Low, e),
            };
            Some(ChecksumJob { data: output(s), len: s.decoded as u64, kind: kind as u32, expected })
        };
        let sums: Vec<ChecksumJob> = streams.iter().filter_map(job).collect();
        let n = streams.len();
        let round = tables.capacity().round(n, sums.len());
        let values: [&dyn Fn(&EncodedStream) -> u64; 4] =
            [&|s| staging + s.offset as u64, &|s| s.len as u64, &|s| s.decoded as u64, &output];
        for (array, value) in round.inputs.into_iter().zip(values) {
            for (to, s) in tables.values::<u64>(array, n).iter_mut().zip(streams) {
                *to = value(s);
            }
        }
        for (to, s) in tables.values::<u32>(round.kinds, n).iter_mut().zip(streams) {
            *to = kind(s.codec) as u32;
        }
        tables.values::<ChecksumJob>(round.checksums, sums.len()).copy_from_slice(&sums);
        tables.send(stream, round.sent())?;
        let mut first = 0;
        for alike in streams.chunk_by(|a, b| decoder(a.codec) == decoder(b.codec)) {
            let workspace = (self.workspace.ptr(), self.workspace.len());
            let arrays = tables.decode_arrays(&round, first);
            let tables = &mut *tables;
            let mut launch = Launch { module: &self.module, stream, tables, arrays, wave, staging, workspace };
            // SAFETY: the streams' entries, from `first` on, were sent on this stream; `plan_wave` split the streams; the
            // scheduler keeps their memory until the wave has ended; `fits` found room.
            unsafe { choose(alike[0].codec).enqueue(&mut launch, alike)? };
            first += alike.len();
        }
        let (at, to) = (tables.address(round.checksums), tables.address(round.mismatches));
        // SAFETY: the jobs were sent on this stream, and the outputs are decoded on it before; their addresses are
        // multiples of 16, because `plan_wave` refuses others.
        unsafe { self.module.launch_checksum(stream, at, sums.len() as u32, to)? };
        tables.receive(stream, round.received())
    }

    /// Checks the statuses, sizes and checksums of the round in the tables, which must have ended. Adds the chunks of
    /// failed streams to `failed`.
    fn collect(&mut self, tables: &mut Tables, streams: &[EncodedStream]) {
        let streams = &streams[self.round.clone()];
        let sums = streams.iter().filter(|s| s.checksum.is_some()).count();
        let round = tables.capacity().round(streams.len(), sums);
        let sizes: Vec<u64> = tables.values::<u64>(round.out_sizes, streams.len()).to_vec();
        let statuses: Vec<i32> = tables.values::<i32>(round.statuses, streams.len()).to_vec();
        let mut results = tables.values::<ChecksumResult>(round.mismatches, sums).iter();
        for ((s, size), status) in streams.iter().zip(sizes).zip(statuses) {
            let mismatch = s.checksum.and_then(|_| results.next()).is_some_and(|r| r.mismatch != 0);
            if (status != 0 || size != s.decoded as u64 || mismatch) && self.failed.last() != Some(&s.chunk) {
                self.failed.push(s.chunk);
            }
        }
    }

    /// Returns the indexes of the chunks with a stream that could not be decoded. All rounds must have ended.
    pub fn failed(&mut self, tables: &mut Tables, streams: &[EncodedStream]) -> Vec<usize> {
        self.collect(tables, streams);
        self.round = 0..0;
        self.failed.sort_unstable();
        self.failed.dedup();
        std::mem::take(&mut self.failed)
    }
}
