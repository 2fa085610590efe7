//! The decoders of a lane. Streams are decoded in rounds that fit the lane's tables and workspace. The results of each
//! round are kept until the wave is done.
//!
//! `unsafe` is allowed here: device addresses come from the staging buffer, the slots and the tables.

#![allow(unsafe_code)]

mod batch;
#[cfg(test)]
mod tests_codec;
#[cfg(test)]
mod tests_inflate;

use std::ops::Range;
use std::sync::Arc;

use dali_zarr_kernels::{ChecksumJob, ChecksumKind, ChecksumResult, StreamKind, zstd};

use crate::codec::stream::Checksum;
use crate::codec::streams::{ChunkStream, StreamCodec, ZstdDecoder};
use crate::error::Result;
use crate::gpu::driver::{Device, DeviceBuffer, Module, Stream, ZstdArrays};
use crate::gpu::streams::Stream as Encoded;
use crate::gpu::tables::{Capacity, Tables};
use crate::messages::Wave;
pub(super) use batch::{decode_async, needs_no_workspace, status_message, temp_bytes};

/// The kind of a stream, for a decoder that takes several kinds.
const fn kind(codec: StreamCodec) -> StreamKind {
    match codec {
        StreamCodec::Snappy => StreamKind::Snappy,
        _ => StreamKind::Lz4,
    }
}

/// Streams for which this is equal go to the same decoder.
const fn decoder(codec: StreamCodec) -> StreamCodec {
    match codec {
        StreamCodec::Snappy => StreamCodec::Lz4,
        other => other,
    }
}

/// The decoders of a lane.
pub(super) struct Decoder {
    /// The decoder of zstd frames.
    pub zstd: ZstdDecoder,
    module: Arc<Module>,
    workspace: DeviceBuffer,
    /// Which streams are in the tables.
    round: Range<usize>,
    /// Chunks of which a stream couldn't be decoded, in the rounds before.
    failed: Vec<usize>,
}

impl Decoder {
    pub fn new(device: &Arc<Device>, module: &Arc<Module>, workspace: usize, zstd: ZstdDecoder) -> Result<Self> {
        Ok(Self {
            zstd,
            module: Arc::clone(module),
            workspace: DeviceBuffer::alloc(device, workspace.max(8))?,
            round: 0..0,
            failed: Vec::new(),
        })
    }

    /// Whether this lane can decode a stream.
    pub fn takes(&self, tables: &Tables, part: &ChunkStream) -> bool {
        match (&part.plan, part.codec) {
            (Some(plan), _) => {
                plan.workspace as usize <= self.workspace.len() && plan.blocks.len() <= tables.capacity().blocks
            }
            (None, Some(codec)) if !needs_no_workspace(codec) => {
                temp_bytes(codec, 1, part.decoded, part.decoded).is_ok_and(|need| need <= self.workspace.len())
            }
            _ => true,
        }
    }

    /// Starts the decoding of all streams, and the verification of the checksums that they carry. Waits only where they
    /// are too many for one round.
    pub fn start(
        &mut self,
        stream: &Stream,
        tables: &mut Tables,
        wave: &Wave,
        streams: &[Encoded],
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
            self.round = first..first + self.fits(&streams[first..], tables.capacity())?;
            self.enqueue(stream, tables, wave, &streams[self.round.clone()], staging)?;
        }
        Ok(())
    }

    /// How many of these streams fit in one round: each codec's workspace and tables limit them.
    fn fits(&self, streams: &[Encoded], most: Capacity) -> Result<usize> {
        let mut n = 0;
        for group in streams[..streams.len().min(most.streams)].chunk_by(|a, b| a.codec == b.codec) {
            let mut take = group.len();
            if group[0].plan.is_some() {
                let (mut space, mut blocks) = (0, 0);
                take = group
                    .iter()
                    .take_while(|s| {
                        let Some(plan) = &s.plan else { return false };
                        space += plan.workspace as usize;
                        blocks += plan.blocks.len();
                        space <= self.workspace.len() && blocks <= most.blocks
                    })
                    .count();
            } else if !needs_no_workspace(group[0].codec) {
                let largest = group.iter().map(|s| s.decoded).max().unwrap_or(0);
                while take > 1 {
                    let total = group[..take].iter().map(|s| s.decoded).sum();
                    if temp_bytes(group[0].codec, take, largest, total)? <= self.workspace.len() {
                        break;
                    }
                    take = take.div_ceil(2);
                }
            }
            n += take;
            if take < group.len() {
                break;
            }
        }
        // One always fits: `takes` refused all others.
        Ok(n.max(1))
    }

    fn enqueue(
        &self,
        stream: &Stream,
        tables: &mut Tables,
        wave: &Wave,
        streams: &[Encoded],
        staging: u64,
    ) -> Result<()> {
        let n = streams.len();
        let output = |s: &Encoded| wave.chunks[s.chunk].slot + s.to as u64;
        let values: [&dyn Fn(&Encoded) -> u64; 4] =
            [&|s| staging + s.offset as u64, &|s| s.len as u64, &|s| s.decoded as u64, &output];
        for (array, value) in tables.inputs().into_iter().zip(values) {
            for (to, s) in tables.values::<u64>(array, n).iter_mut().zip(streams) {
                *to = value(s);
            }
            tables.send(stream, array, n * 8)?;
        }
        let kinds = tables.kinds();
        for (to, s) in tables.values::<u32>(kinds, n).iter_mut().zip(streams) {
            *to = kind(s.codec) as u32;
        }
        tables.send(stream, kinds, n * 4)?;
        let mut first = 0;
        for group in streams.chunk_by(|a, b| decoder(a.codec) == decoder(b.codec)) {
            if group[0].plan.is_some() {
                self.enqueue_zstd(stream, tables, wave, group, first, staging)?;
            } else {
                let largest = group.iter().map(|s| s.decoded).max().unwrap_or(0);
                let arrays = tables.decode_arrays(first);
                // SAFETY: the arrays hold `n` entries from `first` on, sent on this stream; the streams were inspected; the
                // workspace holds as many of them.
                unsafe {
                    let (space, len) = (self.workspace.ptr(), self.workspace.len());
                    decode_async(&self.module, stream, group[0].codec, &arrays, group.len(), largest, space, len)?;
                }
            }
            first += group.len();
        }
        let [sizes, statuses] = tables.results();
        tables.receive(stream, sizes, n * 8)?;
        tables.receive(stream, statuses, n * 4)?;

        let job = |s: &Encoded| {
            let (kind, expected) = match s.checksum? {
                Checksum::Crc32(e) => (ChecksumKind::Crc32, e),
                Checksum::Adler32(e) => (ChecksumKind::Adler32, e),
                Checksum::Xxh64Low(e) => (ChecksumKind::Xxh64Low, e),
            };
            Some(ChecksumJob { data: output(s), len: s.decoded as u64, kind: kind as u32, expected })
        };
        let sums: Vec<ChecksumJob> = streams.iter().filter_map(job).collect();
        if sums.is_empty() {
            return Ok(());
        }
        let [jobs, results] = tables.checksums();
        tables.values::<ChecksumJob>(jobs, sums.len()).copy_from_slice(&sums);
        tables.send(stream, jobs, size_of_val(&sums[..]))?;
        let (at, to) = (tables.address(jobs), tables.address(results));
        // SAFETY: the jobs were just sent; outputs hold what was decoded before on this stream, at addresses that are
        // multiples of 16 (`sort` refuses others).
        unsafe { self.module.launch_checksum(stream, at, sums.len() as u32, to)? };
        tables.receive(stream, results, sums.len() * size_of::<ChecksumResult>())
    }

    /// Starts this project's own kernels for zstd frames, the first of which is stream number `first` of the round.
    fn enqueue_zstd(
        &self,
        stream: &Stream,
        tables: &mut Tables,
        wave: &Wave,
        group: &[Encoded],
        first: usize,
        staging: u64,
    ) -> Result<()> {
        let mut together = zstd::Wave::default();
        for s in group {
            if let Some(plan) = &s.plan {
                together.push(plan, staging + s.offset as u64, wave.chunks[s.chunk].slot + s.to as u64);
            }
        }
        let [frames, blocks, work, results] = tables.zstd();
        let (n_frames, n_blocks, n_work) = (together.frames.len(), together.blocks.len(), together.work.len());
        tables.values::<zstd::Frame>(frames, n_frames).copy_from_slice(&together.frames);
        tables.values::<zstd::Block>(blocks, n_blocks).copy_from_slice(&together.blocks);
        tables.values::<u32>(work, n_work).copy_from_slice(&together.work);
        tables.send(stream, frames, n_frames * size_of::<zstd::Frame>())?;
        tables.send(stream, blocks, n_blocks * size_of::<zstd::Block>())?;
        tables.send(stream, work, n_work * 4)?;
        let outputs = tables.decode_arrays(first);
        let arrays = ZstdArrays {
            frames: tables.address(frames),
            blocks: tables.address(blocks),
            work: tables.address(work),
            workspace: self.workspace.ptr(),
            results: tables.address(results),
            out_sizes: outputs.out_sizes,
            statuses: outputs.statuses,
        };
        // SAFETY: the arrays were just sent, and hold plans of frames that the scheduler keeps until they are copied; the
        // workspace has room (`fits`); buffers and slots are aligned to 256 bytes and have such lengths.
        unsafe { self.module.launch_zstd(stream, &together, &arrays) }
    }

    /// Checks the statuses, sizes and checksums of the round in the tables, which has ended.
    fn collect(&mut self, tables: &mut Tables, streams: &[Encoded]) {
        let streams = &streams[self.round.clone()];
        let [sizes, statuses] = tables.results();
        let sizes: Vec<u64> = tables.values::<u64>(sizes, streams.len()).to_vec();
        let statuses: Vec<i32> = tables.values::<i32>(statuses, streams.len()).to_vec();
        let sums = streams.iter().filter(|s| s.checksum.is_some()).count();
        let [_, results] = tables.checksums();
        let mut results = tables.values::<ChecksumResult>(results, sums).iter();
        for ((s, size), status) in streams.iter().zip(sizes).zip(statuses) {
            let mismatch = s.checksum.and_then(|_| results.next()).is_some_and(|r| r.mismatch != 0);
            if (status_message(status).is_some() || size != s.decoded as u64 || mismatch)
                && self.failed.last() != Some(&s.chunk)
            {
                self.failed.push(s.chunk);
            }
        }
    }

    /// The chunks with a stream that could not be decoded, after all rounds.
    pub fn failed(&mut self, tables: &mut Tables, streams: &[Encoded]) -> Vec<usize> {
        self.collect(tables, streams);
        self.round = 0..0;
        self.failed.sort_unstable();
        self.failed.dedup();
        std::mem::take(&mut self.failed)
    }
}
