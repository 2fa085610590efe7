//! A lane: a CUDA stream, a staging buffer, a workspace, and a thread that runs waves one after the other.
//!
//! A wave is copied, decoded and assembled by one sequence of asynchronous calls. The thread waits twice: until the
//! page-locked memory may be used again, and until everything has ended. Then it checks the results of the decoders.
//! If a decoder refused a chunk, the CPU decodes it: so damaged data are told apart from the limits of a decoder.
//! The thread calls the driver as rarely as it can, because each call delays the thread that launches a model's
//! kernels.
//!
//! `unsafe` is allowed here: device addresses come from the scheduler's arenas and the lane's own buffers, which live
//! until the lane is gone.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use dali_zarr_kernels::{CopyJob, GATHER_TILE, Job, Layout, Source, TILE};

use super::counters::Counters;
use super::decoding::Decoder;
use super::images::{EncodedImage, FORMATS, Lent, lend};
use super::left_for_images;
use super::plain_copies::start_plain_copies;
use super::streams::{SlotCopy, StagingCopy, WavePlan, plan_wave};
use super::tables::{MAX_JOBS, Tables, UPLOADS};
use crate::budget::DeviceBudget;
use crate::gpu::driver::{
    AssembleArrays, Device, DeviceBuffer, Event, Module, PinnedBuffer, Stream, copy_async, copy_to_device_async,
};
use crate::messages::{Content, Shared, Wave, WaveChunk, WaveDone};
use crate::route::Route;
use crate::stats::Stats;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::nvtx;
use dali_zarr_codecs::{GpuImage, ImageFormat};

/// Copies plain values to new device memory, and waits until they are there.
pub(super) fn upload<T: Copy>(device: &Arc<Device>, values: &[T]) -> Result<DeviceBuffer> {
    let bytes = std::mem::size_of_val(values);
    let buffer = DeviceBuffer::alloc(device, bytes.max(1))?;
    let stream = Stream::new(device)?;
    // SAFETY: source and destination have `bytes` bytes, and both outlive the wait.
    unsafe { copy_to_device_async(&stream, buffer.ptr(), values.as_ptr().cast(), bytes)? };
    stream.synchronize()?;
    Ok(buffer)
}

/// Kinds of jobs, which have a kernel each: see [`Lane::launch`].
const KINDS: usize = 4;

/// A lane of a GPU.
pub(super) struct Lane {
    index: usize,
    device: Arc<Device>,
    stream: Stream,
    /// Timed events: the beginning of a wave, and the ends of its copies, its decoding and its assembly. `copied` is
    /// not recorded if the wave has no chunks, and `decoded` is not recorded if no chunk needs decoding.
    begun: Event,
    copied: Event,
    decoded: Event,
    assembled: Event,
    staging: DeviceBuffer,
    decoder: Decoder,
    /// Decode the images of a wave, until it has ended.
    images: Vec<Lent>,
    tables: Tables,
    module: Arc<Module>,
    /// Device address of the operations.
    ops: u64,
    /// Count the NaNs that a wave replaced; `None` if no operation replaces NaNs.
    counters: Option<Counters>,
    /// Holds a chunk that the CPU decodes, until it is copied to its slot. All lanes share it. `None` if the GPU
    /// decodes nothing.
    fallback: Option<Arc<Mutex<PinnedBuffer>>>,
    /// How many chunks of the wave the CPU decoded because the GPU could not.
    fell_back: u64,
    shared: Shared,
}

impl Lane {
    pub fn new(
        index: usize,
        device: &Arc<Device>,
        budget: &DeviceBudget,
        module: &Arc<Module>,
        ops: u64,
        fallback: Option<Arc<Mutex<PinnedBuffer>>>,
        shared: &Shared,
    ) -> Result<Self> {
        let (dataset, decisions) = (&shared.chunk_index.dataset, &shared.chunk_index.decisions);
        let workspace = budget.workspace.saturating_sub(left_for_images(dataset, decisions));
        Ok(Self {
            index,
            device: Arc::clone(device),
            stream: Stream::new(device)?,
            begun: Event::timed(device)?,
            copied: Event::timed(device)?,
            decoded: Event::timed(device)?,
            assembled: Event::timed(device)?,
            staging: DeviceBuffer::alloc(device, budget.wave_encoded)?,
            decoder: Decoder::new(device, module, workspace)?,
            images: Vec::new(),
            tables: Tables::new(device, budget)?,
            module: Arc::clone(module),
            ops,
            counters: shared
                .ops
                .fill()
                .then(|| Counters::new(device, shared.stats.nans_replaced.arrays()))
                .transpose()?,
            fallback,
            fell_back: 0,
            shared: shared.clone(),
        })
    }

    /// Adds the wave's chunks to the reader's counters. Chunks that decode threads have decoded are counted already.
    fn count(&self, wave: &Wave, outcomes: &[Result<Layout>], good: bool) {
        let (mut decoded, mut uncompressed, mut failed) = (0u64, 0, 0);
        for (chunk, outcome) in wave.chunks.iter().zip(outcomes) {
            match self.shared.chunk_index.route(chunk.id) {
                Route::Cpu => {}
                Route::Gpu if chunk.content == Content::Decoded => {}
                _ if !good || outcome.is_err() => failed += 1,
                Route::Raw => uncompressed += 1,
                Route::Gpu => decoded += 1,
            }
        }
        let fell_back = if good { self.fell_back } else { 0 };
        let stats = &self.shared.stats;
        Stats::add(&stats.chunks_failed, failed);
        Stats::add(&stats.chunks_uncompressed, uncompressed);
        Stats::add(&stats.chunks_decoded_gpu, decoded.saturating_sub(fell_back));
        Stats::add(&stats.chunks_decoded_cpu, fell_back);
        Stats::add(&stats.cpu_fallbacks, fell_back);
    }

    /// Runs a wave.
    pub fn run(&mut self, mut wave: Wave) -> WaveDone {
        let mut outcomes: Vec<Result<Layout>> = wave.chunks.iter().map(|_| Ok(Layout::NONE)).collect();
        let _range = nvtx::range(c"dali_zarr wave");
        self.fell_back = 0;
        let result = self.steps(&mut wave, &mut outcomes);
        self.count(&wave, &outcomes, result.is_ok());
        if result.is_err() {
            // The memory is about to be used again, so no copy from it may be in flight.
            let _ = self.stream.synchronize();
        }
        self.images.clear();
        self.give_back(&mut wave);
        for (chunk, outcome) in wave.chunks.iter().zip(&mut outcomes) {
            match (&outcome, &result) {
                (Err(e), _) => *outcome = Err(e.at(self.shared.chunk_index.site(chunk.id))),
                (Ok(_), Err(e)) => *outcome = Err(e.clone()),
                (Ok(_), Ok(())) => {}
            }
        }
        wave.ended(self.index, outcomes, result)
    }

    /// Gives the bytes of the wave's chunks back, if that has not happened yet. No copy from them may be in flight.
    fn give_back(&self, wave: &mut Wave) {
        if !wave.payloads.is_empty() {
            let payloads = std::mem::take(&mut wave.payloads);
            let _ = self.shared.events.send(crate::messages::Event::Copied(payloads));
        }
    }

    /// Enqueues everything that a wave needs, and waits until it has ended. `outcomes` gets the result of each chunk.
    ///
    /// # Errors
    /// If the lane itself failed: the device, or a bug.
    fn steps(&mut self, wave: &mut Wave, outcomes: &mut [Result<Layout>]) -> Result<()> {
        self.device.bind()?;
        for &event in &wave.assembly.after {
            self.stream.wait_event(event)?;
        }
        let plan = plan_wave(wave, &self.shared.chunk_index, self.staging.len(), |stream| {
            self.decoder.takes(&self.tables, stream)
        });
        let decodes = !plan.streams.is_empty() || !plan.images.is_empty() || !plan.refused.is_empty();
        let copies = !wave.chunks.is_empty();
        self.begun.record(&self.stream)?;
        let range = nvtx::range(c"dali_zarr copy");
        if copies {
            self.copy(wave, &plan)?;
            self.copied.record(&self.stream)?;
        }
        drop(range);
        let staging = self.staging.ptr();
        let range = nvtx::range(c"dali_zarr decode");
        self.decoder.start(&self.stream, &mut self.tables, wave, &plan.streams, staging)?;
        self.decode_refused(wave, &plan.refused, outcomes);
        // Decoders of images are lent as late as may be, since others wait for them.
        for format in FORMATS {
            let refused = self.decode_images(wave, &plan.images, format);
            self.decode_refused(wave, &refused, outcomes);
        }
        drop(range);
        if decodes {
            self.decoded.record(&self.stream)?;
        }
        for (i, &layout) in plan.layouts.iter().enumerate() {
            if outcomes[i].is_ok() {
                outcomes[i] = Ok(layout);
                arrange(wave, i, layout);
            }
        }
        self.assemble(wave, outcomes)?;
        self.assembled.record(&self.stream)?;
        if copies {
            // Decoders of images read host memory for as long as they decode.
            if plan.images.is_empty() { &self.copied } else { &self.decoded }.synchronize()?;
            self.images.clear();
            self.give_back(wave);
        }
        let range = nvtx::range(c"dali_zarr wait for the GPU");
        self.assembled.synchronize()?;
        drop(range);
        self.decode_again(wave, &plan, outcomes)?;
        let stats = &self.shared.stats;
        for (array, n) in self.counters.iter_mut().flat_map(Counters::found).enumerate() {
            stats.nans_replaced.add(array, n);
        }
        let mut since = &self.begun;
        for (recorded, until, time) in [
            (copies, &self.copied, &stats.copy_ns),
            (decodes, &self.decoded, &stats.decode_ns),
            (true, &self.assembled, &stats.assemble_ns),
        ] {
            if recorded {
                Stats::seconds(time, until.seconds_since(since)?);
                since = until;
            }
        }
        Ok(())
    }

    /// Starts all copies to the device.
    fn copy(&mut self, wave: &Wave, plan: &WavePlan) -> Result<()> {
        for &i in &plan.direct {
            let chunk = &wave.chunks[i];
            // SAFETY: the wave has the bytes until they are copied; where it goes there is room for the decoded chunk, and it was
            // checked that the bytes are no more.
            unsafe { copy_async(&self.stream, chunk.to, chunk.source, chunk.bytes)? };
        }
        for &StagingCopy { source: from, offset, len } in &plan.copies {
            if offset + len > self.staging.len() {
                return Err(Error::runtime(format!(
                    "internal error: a wave needs {} staging bytes of {}",
                    offset + len,
                    self.staging.len()
                )));
            }
            // SAFETY: as above; the range lies in the staging buffer.
            unsafe { copy_async(&self.stream, self.staging.ptr() + offset as u64, from, len)? };
        }
        for (i, pieces) in plan.pieces.chunks(self.tables.capacity().streams).enumerate() {
            if i > 0 {
                self.stream.synchronize()?;
            }
            self.gather(wave, pieces)?;
        }
        Ok(())
    }

    /// Enqueues copies of pieces from the staging buffer to their slots.
    fn gather(&mut self, wave: &Wave, pieces: &[SlotCopy]) -> Result<()> {
        let (n, base) = (pieces.len(), self.staging.ptr());
        let [copies, tiles] = self.tables.capacity().copies(n);
        for (copy, piece) in self.tables.values::<CopyJob>(copies, n).iter_mut().zip(pieces) {
            let to = wave.chunks[piece.chunk].to;
            *copy = CopyJob { src: base + piece.offset as u64, dst: to + piece.to as u64, len: piece.len as u64 };
        }
        let starts = self.tables.values::<u32>(tiles, n + 1);
        starts[0] = 0;
        for (k, piece) in pieces.iter().enumerate() {
            starts[k + 1] = starts[k] + (piece.len as u32).div_ceil(GATHER_TILE);
        }
        let total = starts[n];
        self.tables.send(&self.stream, copies.until(tiles))?;
        let (copies, tiles) = (self.tables.address(copies), self.tables.address(tiles));
        // SAFETY: both arrays were just sent on this stream; sources lie in the staging buffer, destinations where the chunks go.
        unsafe { self.module.launch_gather(&self.stream, copies, tiles, n as u32, total) }
    }

    /// Decodes chunks on the CPU that the GPU's decoders don't take.
    fn decode_refused(&mut self, wave: &Wave, refused: &[usize], outcomes: &mut [Result<Layout>]) {
        for &chunk in refused {
            match self.decode_on_cpu(&wave.chunks[chunk], &wave.payloads[chunk].bytes) {
                Ok(()) => self.fell_back += 1,
                Err(e) => outcomes[chunk] = Err(e),
            }
        }
    }

    /// Starts decoding the images of a format. Returns the indexes of the chunks of those that aren't decoded.
    fn decode_images(
        &mut self,
        wave: &Wave,
        images: &[(usize, ImageFormat, GpuImage)],
        format: ImageFormat,
    ) -> Vec<usize> {
        let (chunks, encoded): (Vec<usize>, Vec<EncodedImage<'_>>) = images
            .iter()
            .filter(|(_, of, _)| *of == format)
            .map(|&(i, _, ref image)| {
                (i, EncodedImage { bytes: &wave.payloads[i].bytes, image, to: wave.chunks[i].to })
            })
            .unzip();
        if chunks.is_empty() {
            return chunks;
        }
        let Ok(mut decoder) = lend(&self.device, format) else { return chunks };
        // SAFETY: where each chunk goes there is room for its pixels, which `image_for_gpu` has counted; the wave has the
        // bytes until the stream has passed this point.
        let refused = unsafe { decoder.decode(&self.stream, &encoded) };
        self.images.push(decoder);
        refused.into_iter().map(|(k, _)| chunks[k]).collect()
    }

    /// Decodes a chunk of these encoded bytes on the CPU, copies it to its slot, and waits for the copy.
    fn decode_on_cpu(&self, chunk: &WaveChunk, bytes: &[u8]) -> Result<()> {
        let decoded = self.fallback.as_ref().ok_or_else(|| Error::runtime("internal error: no memory to decode in"))?;
        let mut decoded = decoded.lock().unwrap_or_else(PoisonError::into_inner);
        let out = &mut decoded.as_slice()[..chunk.decoded_bytes];
        self.shared.chunk_index.decode(chunk.id, bytes, out)?;
        // SAFETY: where it goes there is room for the decoded chunk; the wait below ends before the buffer is used again.
        unsafe { copy_to_device_async(&self.stream, chunk.to, out.as_ptr(), chunk.decoded_bytes)? };
        self.stream.synchronize()
    }

    /// Enqueues the writing of index outputs, the jobs of all chunks that did not fail, and the ready jobs.
    fn assemble(&mut self, wave: &Wave, outcomes: &[Result<Layout>]) -> Result<()> {
        let _range = nvtx::range(c"dali_zarr assemble");
        if let Some(counters) = &self.counters {
            counters.clear(&self.stream)?;
        }
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
        let good = wave.chunks.iter().zip(outcomes).filter(|(_, o)| o.is_ok());
        let jobs = good
            .flat_map(|(c, _)| &wave.assembly.jobs[c.jobs.clone()])
            .chain(&wave.assembly.jobs[wave.ready_jobs.clone()]);
        // SAFETY: sources are slots with decoded chunks, destinations outputs that are lent to this reader. Both stay
        // until the wave has ended.
        let jobs = unsafe { start_plain_copies(&self.stream, jobs, &self.shared.ops)? };
        for (i, part) in jobs.chunks(MAX_JOBS).enumerate() {
            if i > 0 {
                self.stream.synchronize()?;
            }
            self.launch(part)?;
        }
        if let Some(counters) = &mut self.counters {
            counters.receive(&self.stream)?;
        }
        Ok(())
    }

    /// Enqueues at most [`MAX_JOBS`] jobs, in a launch for each kernel: boxes without channels, those whose operation has a
    /// table of channels, those that are transposed, and those between two elements.
    fn launch(&mut self, jobs: &[&Job]) -> Result<()> {
        let n = jobs.len();
        let [table, starts] = self.tables.jobs(n);
        let ops = &self.shared.ops;
        let mut kinds: [Vec<&Job>; KINDS] = Default::default();
        for &job in jobs {
            let kind = if job.source == Source::Between as u32 {
                3
            } else if job.is_transposed() {
                2
            } else {
                usize::from(ops.is_by_channel(job))
            };
            kinds[kind].push(job);
        }
        for (to, job) in self.tables.values::<Job>(table, n).iter_mut().zip(kinds.iter().flatten()) {
            *to = **job;
        }
        // The tiles of each launch, one after the other.
        let mut tiles = self.tables.values::<u32>(starts, n + KINDS);
        let mut totals = [0; KINDS];
        for (kind, (jobs, total)) in kinds.iter().zip(&mut totals).enumerate() {
            let (own, rest) = std::mem::take(&mut tiles).split_at_mut(jobs.len() + 1);
            let of_transposed =
                |job: &Job| job.transposed_tiles(DType::ALL[ops[job.op as usize].dst_dtype as usize].size());
            *total = if kind == 2 { prefix_sum(own, jobs, of_transposed) } else { prefix_sum(own, jobs, tiles_of) }?;
            tiles = rest;
        }
        self.tables.send(&self.stream, table.until(starts))?;
        let mut arrays = AssembleArrays {
            jobs: self.tables.address(table),
            tile_start: self.tables.address(starts),
            ops: self.ops,
            counters: self.counters.as_ref().map(Counters::address),
        };
        for (kind, (jobs, total)) in kinds.iter().zip(totals).enumerate() {
            let (module, stream, count) = (&self.module, &self.stream, jobs.len() as u32);
            // SAFETY: jobs and tiles were just sent on this stream; sources are slots with decoded chunks, or decoded
            // elements beside the outputs; destinations are outputs that are lent to this reader, in which no two jobs
            // write the same element. The operations' tables of channels are in device memory as long as the lane lives.
            unsafe {
                match kind {
                    0 => module.launch_assemble(stream, &arrays, count, total)?,
                    1 => module.launch_channels(stream, &arrays, count, total)?,
                    2 => module.launch_transposed(stream, &arrays, count, total)?,
                    _ => module.launch_between(stream, &arrays, count, total)?,
                }
            }
            arrays.jobs += (jobs.len() * size_of::<Job>()) as u64;
            arrays.tile_start += (jobs.len() as u64 + 1) * 4;
        }
        Ok(())
    }

    /// Decodes on the CPU the chunks that the GPU's decoders refused. Then runs all jobs of the wave again and waits:
    /// the first run counted NaNs in the refused chunks too, and the second one counts from zero.
    fn decode_again(&mut self, wave: &mut Wave, plan: &WavePlan, outcomes: &mut [Result<Layout>]) -> Result<()> {
        let refused = self.decoder.failed(&mut self.tables, &plan.streams);
        for &i in &refused {
            // The chunk's page-locked memory may hold other chunks by now. So the chunk is read from the store again.
            outcomes[i] = self.read_again(&wave.chunks[i]).map(|()| Layout::NONE);
            if outcomes[i].is_err() {
                continue;
            }
            self.fell_back += 1;
            arrange(wave, i, Layout::NONE);
        }
        if !refused.is_empty() {
            self.assemble(wave, outcomes)?;
            self.stream.synchronize()?;
        }
        Ok(())
    }

    /// Reads a chunk from its store again and decodes it on the CPU.
    fn read_again(&self, chunk: &WaveChunk) -> Result<()> {
        let bytes = crate::io::reread(&self.shared.chunk_index, chunk.id, chunk.bytes, chunk.version.as_ref())?;
        self.decode_on_cpu(chunk, &bytes)
    }
}

/// Returns the number of tiles of a job that isn't transposed.
fn tiles_of(job: &Job) -> Option<u64> {
    let elements: u64 = job.extent[..job.ndim as usize].iter().map(|&e| u64::from(e)).product();
    Some(elements.div_ceil(u64::from(TILE)))
}

/// Writes to `tiles` the number of tiles before each job, then the number of all tiles. Returns the latter. `of` returns the
/// number of tiles of a job.
fn prefix_sum(tiles: &mut [u32], jobs: &[&Job], of: impl Fn(&Job) -> Option<u64>) -> Result<u32> {
    tiles[0] = 0;
    for (k, job) in jobs.iter().enumerate() {
        let count = of(job).and_then(|count| u32::try_from(count).ok());
        let count = count.ok_or_else(|| Error::runtime("internal error: a box with more than 2^43 elements"))?;
        tiles[k + 1] = tiles[k]
            .checked_add(count)
            .ok_or_else(|| Error::runtime("internal error: boxes with more than 2^43 elements in one launch"))?;
    }
    Ok(tiles[jobs.len()])
}

/// Tells the jobs of a chunk in which order its decoded bytes lie.
fn arrange(wave: &mut Wave, chunk: usize, layout: Layout) {
    let WaveChunk { to, ref jobs, .. } = wave.chunks[chunk];
    for job in &mut wave.assembly.jobs[jobs.clone()] {
        job.arrange(to, layout);
    }
}
