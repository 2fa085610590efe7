//! One lane: a stream, a staging buffer, a workspace, and a thread that takes waves through them one after the other.
//!
//! A wave is copied, decoded and assembled by one sequence of asynchronous calls and two waits: one until the page-locked
//! memory may be reused, one until all is done. Whatever the decoders say is then checked, and what they gave up on is decoded
//! once more by the CPU, which tells corrupt data from a decoder's limit.
//!
//! One of the places where `unsafe` is allowed: device addresses come from the scheduler's arenas and the lane's own
//! buffers, which live until the lane is gone.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use dali_zarr_kernels::{ChecksumJob, ChecksumKind, ChecksumResult, Copy, GATHER_TILE, Job, TILE};

use super::codec;
use super::tables::{MAX_JOBS, Tables, UPLOADS};
use crate::cuda::{Device, DeviceBuffer, Event, Module, PinnedBuffer, Stream, copy_to_device_async, decode};
use crate::error::{Error, Result};
use crate::flow::budget::DeviceBudget;
use crate::flow::stats::Stats;
use crate::flow::tasks::{GroupId, Outcome, Shared};
use crate::flow::wave::{Content, Wave, WaveChunk, WaveDone};
use crate::gpu_codec::{Checksum, Verdict, inspect};
use crate::memory::arena::rounded;

/// Decoded chunks of this size and more are copied to their slots one by one; smaller ones travel together.
const DIRECT_COPY: usize = 256 << 10;

/// Copies plain values to new device memory, and waits.
pub(super) fn upload<T: std::marker::Copy>(device: &Arc<Device>, values: &[T]) -> Result<DeviceBuffer> {
    let bytes = std::mem::size_of_val(values);
    let buffer = DeviceBuffer::alloc(device, bytes.max(1))?;
    let stream = Stream::new(device)?;
    // SAFETY: source and destination have `bytes` bytes, and both outlive the wait.
    unsafe { copy_to_device_async(&stream, buffer.ptr(), values.as_ptr().cast(), bytes)? };
    stream.synchronize()?;
    Ok(buffer)
}

/// See the module.
pub(super) struct Lane {
    index: usize,
    device: Arc<Device>,
    stream: Stream,
    /// Timed: a wave's beginning, and the ends of its copies, its decoding and its assembling.
    begun: Event,
    copied: Event,
    decoded: Event,
    assembled: Event,
    staging: DeviceBuffer,
    workspace: DeviceBuffer,
    tables: Tables,
    module: Arc<Module>,
    ops: u64,
    fallback: Option<Arc<Mutex<PinnedBuffer>>>,
    shared: Shared,
}

/// A chunk that nvCOMP decodes.
struct Stage {
    /// Which chunk of the wave.
    chunk: usize,
    /// Where its stream begins in the staging buffer, and its bytes.
    offset: usize,
    len: usize,
    checksum: Option<Checksum>,
}

/// What is to be done with a wave's chunks.
#[derive(Default)]
struct Sorted {
    /// By codec, in the order of the wave.
    streams: Vec<Stage>,
    /// Small decoded chunks, with their offsets in the staging buffer.
    gathered: Vec<(usize, usize)>,
    /// Large decoded chunks.
    direct: Vec<usize>,
    /// Chunks that the GPU mustn't see.
    refused: Vec<usize>,
    /// Copies to the staging buffer: source, offset, bytes.
    copies: Vec<(u64, usize, usize)>,
}

impl Lane {
    pub fn new(
        index: usize,
        device: &Arc<Device>,
        b: &DeviceBudget,
        module: &Arc<Module>,
        ops: u64,
        fallback: Option<Arc<Mutex<PinnedBuffer>>>,
        shared: &Shared,
    ) -> Result<Self> {
        Ok(Self {
            index,
            device: Arc::clone(device),
            stream: Stream::new(device)?,
            begun: Event::timed(device)?,
            copied: Event::timed(device)?,
            decoded: Event::timed(device)?,
            assembled: Event::timed(device)?,
            staging: DeviceBuffer::alloc(device, b.wave_encoded)?,
            workspace: DeviceBuffer::alloc(device, b.workspace.max(8))?,
            tables: Tables::new(device, b.wave_chunks)?,
            module: Arc::clone(module),
            ops,
            fallback,
            shared: shared.clone(),
        })
    }

    /// Takes a wave from beginning to end.
    pub fn run(&mut self, wave: Wave) -> WaveDone {
        let mut groups = groups_of(&wave);
        let mut failures: Vec<Option<Error>> = wave.chunks.iter().map(|_| None).collect();
        let result = self.steps(&wave, &mut groups, &mut failures);
        if result.is_err() {
            // Nothing may be in flight from memory that is about to be reused.
            let _ = self.stream.synchronize();
        }
        if !groups.is_empty() {
            let _ = self.shared.events.send(crate::flow::Event::Copied(groups));
        }
        let outcomes = wave
            .chunks
            .iter()
            .zip(failures)
            .map(|(c, failure)| Outcome {
                handle: c.handle,
                result: match (failure, &result) {
                    (Some(e), _) => Err(e.within(self.shared.catalog.name(c.id))),
                    (None, Err(e)) => Err(e.clone()),
                    (None, Ok(())) => Ok(()),
                },
            })
            .collect();
        WaveDone { lane: self.index, outcomes, served: wave.work.served, pinned: wave.pinned, result }
    }

    fn steps(&mut self, wave: &Wave, groups: &mut Vec<(GroupId, u32)>, failures: &mut [Option<Error>]) -> Result<()> {
        self.device.bind()?;
        for &event in &wave.work.after {
            self.stream.wait_event(event)?;
        }
        let sorted = self.sort(wave);
        self.begun.record(&self.stream)?;
        self.copy(wave, &sorted)?;
        self.copied.record(&self.stream)?;
        self.decode(wave, &sorted)?;
        for &chunk in &sorted.refused {
            if let Err(e) = self.decode_on_cpu(&wave.chunks[chunk]) {
                failures[chunk] = Some(e);
            }
        }
        self.decoded.record(&self.stream)?;
        self.assemble(wave, failures)?;
        self.assembled.record(&self.stream)?;
        self.copied.synchronize()?;
        if !groups.is_empty() {
            let _ = self.shared.events.send(crate::flow::Event::Copied(std::mem::take(groups)));
        }
        self.stream.synchronize()?;
        self.check(wave, &sorted, failures)?;
        let stats = &self.shared.stats;
        Stats::add(&stats.chunks_decoded_gpu, (wave.chunks.len() - sorted.refused.len()) as u64);
        Stats::seconds(&stats.copy_ns, self.copied.seconds_since(&self.begun)?);
        Stats::seconds(&stats.decode_ns, self.decoded.seconds_since(&self.copied)?);
        Stats::seconds(&stats.assemble_ns, self.assembled.seconds_since(&self.decoded)?);
        Ok(())
    }

    /// Decides for each chunk how it gets to the device, and lays out the staging buffer.
    fn sort(&self, wave: &Wave) -> Sorted {
        let mut sorted = Sorted::default();
        let mut order: Vec<usize> = (0..wave.chunks.len()).collect();
        // Chunks that were read together lie beside each other: in the order of addresses their copies merge.
        order.sort_unstable_by_key(|&i| wave.chunks[i].bytes.address);
        let mut used = 0;
        for i in order {
            let chunk = &wave.chunks[i];
            let (start, len) = match chunk.content {
                Content::Decoded if chunk.bytes.len >= DIRECT_COPY => {
                    sorted.direct.push(i);
                    continue;
                }
                Content::Decoded => (0, chunk.bytes.len),
                Content::Encoded(compression) => {
                    // SAFETY: the scheduler keeps the bytes until it hears that they were copied.
                    let bytes = unsafe { chunk.bytes.bytes() };
                    match inspect(compression, bytes, chunk.decoded_bytes) {
                        Verdict::Cpu(_) => {
                            sorted.refused.push(i);
                            continue;
                        }
                        Verdict::Gpu { start, len, checksum } => {
                            sorted.streams.push(Stage { chunk: i, offset: 0, len, checksum });
                            (start, len)
                        }
                    }
                }
            };
            let from = chunk.bytes.address + start as u64;
            let offset = match sorted.copies.last_mut() {
                // It follows the last one with a gap that padding would have cost anyway.
                Some((source, offset, bytes))
                    if from >= *source + *bytes as u64
                        && from - *source <= rounded(*bytes) as u64
                        && *offset + (from - *source) as usize + len <= self.staging.len() =>
                {
                    let at = (from - *source) as usize;
                    *bytes = at + len;
                    *offset + at
                }
                _ => {
                    let at = rounded_up(used);
                    sorted.copies.push((from, at, len));
                    at
                }
            };
            used = offset + len;
            match chunk.content {
                Content::Decoded => sorted.gathered.push((i, offset)),
                Content::Encoded(_) => {
                    if let Some(stage) = sorted.streams.last_mut() {
                        stage.offset = offset;
                    }
                }
            }
        }
        sorted.streams.sort_by_key(|s| match wave.chunks[s.chunk].content {
            Content::Encoded(c) => (c as u8, s.chunk),
            Content::Decoded => (u8::MAX, s.chunk),
        });
        sorted
    }

    /// Starts all copies to the device.
    fn copy(&mut self, wave: &Wave, sorted: &Sorted) -> Result<()> {
        for &i in &sorted.direct {
            let chunk = &wave.chunks[i];
            // SAFETY: the bytes are kept until they were copied; the slot has room for the decoded chunk, whose length
            // the read was checked against.
            unsafe {
                copy_to_device_async(&self.stream, chunk.slot, chunk.bytes.address as *const u8, chunk.bytes.len)?
            };
        }
        for &(from, offset, len) in &sorted.copies {
            if offset + len > self.staging.len() {
                return Err(Error::runtime(format!(
                    "internal error: a wave needs {} staging bytes of {}",
                    offset + len,
                    self.staging.len()
                )));
            }
            // SAFETY: as above; the range lies in the staging buffer.
            unsafe { copy_to_device_async(&self.stream, self.staging.ptr() + offset as u64, from as *const u8, len)? };
        }
        if sorted.gathered.is_empty() {
            return Ok(());
        }
        let (n, base) = (sorted.gathered.len(), self.staging.ptr());
        let (copies, tiles) = (self.tables.per_chunk(8), self.tables.per_chunk(9));
        for (copy, &(i, offset)) in self.tables.values::<Copy>(copies, n).iter_mut().zip(&sorted.gathered) {
            let chunk = &wave.chunks[i];
            *copy = Copy { src: base + offset as u64, dst: chunk.slot, len: chunk.bytes.len as u64 };
        }
        // A wave of one chunk has room for two starts: each entry has eight bytes.
        let starts = self.tables.values::<u32>(tiles, n + 1);
        starts[0] = 0;
        for (k, &(i, _)) in sorted.gathered.iter().enumerate() {
            starts[k + 1] = starts[k] + (wave.chunks[i].bytes.len as u32).div_ceil(GATHER_TILE);
        }
        let total = starts[n];
        self.tables.send(&self.stream, copies, n * size_of::<Copy>())?;
        self.tables.send(&self.stream, tiles, (n + 1) * 4)?;
        let (copies, tiles) = (self.tables.address(copies), self.tables.address(tiles));
        // SAFETY: both arrays were just sent on this stream; sources lie in the staging buffer, destinations in slots.
        unsafe { self.module.launch_gather(&self.stream, copies, tiles, n as u32, total) }
    }

    /// Starts the decoders, and the verification of the checksums that streams carry.
    fn decode(&mut self, wave: &Wave, sorted: &Sorted) -> Result<()> {
        let n = sorted.streams.len();
        if n == 0 {
            return Ok(());
        }
        let base = self.staging.ptr();
        type Entry<'a> = (usize, &'a dyn Fn(&Stage) -> u64);
        let fill: [Entry<'_>; 4] = [
            (0, &|s| base + s.offset as u64),
            (1, &|s| s.len as u64),
            (2, &|s| wave.chunks[s.chunk].decoded_bytes as u64),
            (3, &|s| wave.chunks[s.chunk].slot),
        ];
        for (array, value) in fill {
            let array = self.tables.per_chunk(array);
            for (to, stage) in self.tables.values::<u64>(array, n).iter_mut().zip(&sorted.streams) {
                *to = value(stage);
            }
            self.tables.send(&self.stream, array, n * 8)?;
        }
        let mut first = 0;
        for group in sorted.streams.chunk_by(|a, b| wave.chunks[a.chunk].content == wave.chunks[b.chunk].content) {
            let Content::Encoded(compression) = wave.chunks[group[0].chunk].content else { continue };
            let largest = group.iter().map(|s| wave.chunks[s.chunk].decoded_bytes).max().unwrap_or(0);
            let arrays = self.tables.decode_arrays(first);
            // SAFETY: the arrays hold `n` entries from `first` on, sent on this stream; the streams were inspected and
            // are aligned as the codec wants; the workspace was sized for the largest wave.
            unsafe {
                decode::decode_async(
                    &self.module,
                    &self.stream,
                    codec(compression),
                    &arrays,
                    group.len(),
                    largest,
                    self.workspace.ptr(),
                    self.workspace.len(),
                )?;
            }
            first += group.len();
        }
        let (sizes, statuses) = (self.tables.per_chunk(4), self.tables.per_chunk(5));
        self.tables.receive(&self.stream, sizes, n * 8)?;
        self.tables.receive(&self.stream, statuses, n * 4)?;

        let sums: Vec<ChecksumJob> = sorted
            .streams
            .iter()
            .filter_map(|s| {
                let (kind, expected) = match s.checksum? {
                    Checksum::Crc32(e) => (ChecksumKind::Crc32, e),
                    Checksum::Adler32(e) => (ChecksumKind::Adler32, e),
                    Checksum::Xxh64Low(e) => (ChecksumKind::Xxh64Low, e),
                };
                let chunk = &wave.chunks[s.chunk];
                Some(ChecksumJob { data: chunk.slot, len: chunk.decoded_bytes as u64, kind: kind as u32, expected })
            })
            .collect();
        if sums.is_empty() {
            return Ok(());
        }
        let (jobs, results) = (self.tables.per_chunk(6), self.tables.per_chunk(7));
        self.tables.values::<ChecksumJob>(jobs, sums.len()).copy_from_slice(&sums);
        self.tables.send(&self.stream, jobs, size_of_val(&sums[..]))?;
        let (at, to) = (self.tables.address(jobs), self.tables.address(results));
        // SAFETY: the jobs were just sent; slots are aligned to 256 bytes and hold what was decoded before on this stream.
        unsafe { self.module.launch_checksum(&self.stream, at, sums.len() as u32, to)? };
        self.tables.receive(&self.stream, results, sums.len() * size_of::<ChecksumResult>())
    }

    /// Has a chunk decoded by the CPU and copies it to its slot; waits. Nobody may write the chunk's bytes meanwhile.
    fn decode_on_cpu(&self, chunk: &WaveChunk) -> Result<()> {
        Stats::add(&self.shared.stats.cpu_fallbacks, 1);
        let decoded = self.fallback.as_ref().ok_or_else(|| Error::runtime("internal error: no memory to decode in"))?;
        let mut decoded = decoded.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: not copied yet, so the scheduler keeps the bytes; or they are the caller's own.
        let bytes = unsafe { chunk.bytes.bytes() };
        let out = &mut decoded.as_slice()[..chunk.decoded_bytes];
        let catalog = &self.shared.catalog;
        let shape = catalog.planner.chunk_shape(chunk.id);
        let format = &catalog.part(chunk.id).format;
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| format.decode(bytes, &shape, out))).unwrap_or_else(
            |p| Err(Error::runtime(format!("the decoder gave up: {}", crate::error::panic_text(&*p)))),
        )?;
        Stats::add(&self.shared.stats.chunks_decoded_cpu, 1);
        // SAFETY: the slot has room for the decoded chunk; the wait below ends before the buffer is used again.
        unsafe { copy_to_device_async(&self.stream, chunk.slot, out.as_ptr(), chunk.decoded_bytes)? };
        self.stream.synchronize()
    }

    /// Writes index outputs and runs the jobs of all chunks that didn't fail, and the loose ones.
    fn assemble(&mut self, wave: &Wave, failures: &[Option<Error>]) -> Result<()> {
        let table = self.tables.uploads();
        let mut used = 0;
        for (to, bytes) in &wave.uploads {
            for (i, piece) in bytes.chunks(UPLOADS).enumerate() {
                if used + piece.len() > UPLOADS {
                    self.stream.synchronize()?;
                    used = 0;
                }
                self.tables.values::<u8>(table, used + piece.len())[used..].copy_from_slice(piece);
                self.tables.send_to(&self.stream, table, used, to + (i * UPLOADS) as u64, piece.len())?;
                used += piece.len();
            }
        }
        let good = wave.chunks.iter().zip(failures).filter(|(_, f)| f.is_none());
        let jobs: Vec<&Job> = good
            .flat_map(|(c, _)| &wave.work.jobs[c.jobs.clone()])
            .chain(&wave.work.jobs[wave.loose.clone()])
            .collect();
        for (i, part) in jobs.chunks(MAX_JOBS).enumerate() {
            if i > 0 {
                self.stream.synchronize()?;
            }
            self.launch(part)?;
        }
        Ok(())
    }

    /// Starts up to [`MAX_JOBS`] jobs.
    fn launch(&mut self, jobs: &[&Job]) -> Result<()> {
        let (table, starts) = (self.tables.jobs(), self.tables.tile_starts());
        let n = jobs.len();
        if n == 0 {
            return Ok(());
        }
        for (to, job) in self.tables.values::<Job>(table, n).iter_mut().zip(jobs) {
            *to = **job;
        }
        let tiles = self.tables.values::<u32>(starts, n + 1);
        tiles[0] = 0;
        for (k, job) in jobs.iter().enumerate() {
            let elements: u64 = job.extent[..job.ndim as usize].iter().map(|&e| u64::from(e)).product();
            let count = u32::try_from(elements.div_ceil(u64::from(TILE)))
                .map_err(|_| Error::runtime("internal error: a box with more than 2^45 elements"))?;
            tiles[k + 1] = tiles[k]
                .checked_add(count)
                .ok_or_else(|| Error::runtime("internal error: boxes with more than 2^45 elements in one launch"))?;
        }
        let total = tiles[n];
        self.tables.send(&self.stream, table, n * size_of::<Job>())?;
        self.tables.send(&self.stream, starts, (n + 1) * 4)?;
        let (table, starts) = (self.tables.address(table), self.tables.address(starts));
        // SAFETY: both arrays were just sent on this stream; sources are slots with decoded chunks, destinations outputs
        // that are lent to this reader, in which no two jobs write the same element.
        unsafe { self.module.launch_assemble(&self.stream, table, starts, n as u32, total, self.ops) }
    }

    /// Looks at every status, size and checksum; what isn't right is decoded by the CPU, and its jobs run again.
    fn check(&mut self, wave: &Wave, sorted: &Sorted, failures: &mut [Option<Error>]) -> Result<()> {
        let n = sorted.streams.len();
        let sizes = self.tables.per_chunk(4);
        let sizes: Vec<u64> = self.tables.values::<u64>(sizes, n).to_vec();
        let statuses = self.tables.per_chunk(5);
        let statuses: Vec<i32> = self.tables.values::<i32>(statuses, n).to_vec();
        let sums = sorted.streams.iter().filter(|s| s.checksum.is_some()).count();
        let results = self.tables.per_chunk(7);
        let mut results = self.tables.values::<ChecksumResult>(results, sums).to_vec().into_iter();
        let mut again = Vec::new();
        for ((stage, size), status) in sorted.streams.iter().zip(sizes).zip(statuses) {
            let expected = wave.chunks[stage.chunk].decoded_bytes as u64;
            let sum = stage.checksum.and_then(|_| results.next());
            let wrong = decode::status_message(status)
                .or_else(|| (size != expected).then(|| format!("expected {expected} bytes, found {size}")))
                .or_else(|| sum.filter(|s| s.mismatch != 0).map(|_| "the checksum differs".to_owned()));
            if wrong.is_some() {
                again.push(stage);
            }
        }
        for stage in again {
            let chunk = &wave.chunks[stage.chunk];
            // Its page-locked memory may hold other bytes by now, so the chunk is read from the store once more.
            match self.read_again(chunk) {
                Ok(()) => {
                    let jobs: Vec<&Job> = wave.work.jobs[chunk.jobs.clone()].iter().collect();
                    for part in jobs.chunks(MAX_JOBS) {
                        self.launch(part)?;
                        self.stream.synchronize()?;
                    }
                }
                Err(e) => failures[stage.chunk] = Some(e),
            }
        }
        Ok(())
    }

    /// Reads a chunk once more and has the CPU decode it.
    fn read_again(&self, chunk: &WaveChunk) -> Result<()> {
        let bytes = crate::flow::reread(&self.shared.catalog, chunk.id)?;
        let span = crate::memory::Span { address: bytes.as_ptr() as u64, len: bytes.len() };
        let again = WaveChunk { bytes: span, jobs: 0..0, ..*chunk };
        self.decode_on_cpu(&again)
    }
}

/// The reads whose memory a wave's chunks lie in, and how many chunks of each.
fn groups_of(wave: &Wave) -> Vec<(GroupId, u32)> {
    let mut groups: Vec<(GroupId, u32)> = Vec::new();
    for chunk in &wave.chunks {
        match groups.last_mut() {
            Some((group, n)) if *group == chunk.group => *n += 1,
            _ => groups.push((chunk.group, 1)),
        }
    }
    groups
}

/// The next multiple of what copies and decoders like.
const fn rounded_up(offset: usize) -> usize {
    if offset == 0 { 0 } else { rounded(offset) }
}
