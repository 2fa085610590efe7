//! Delivery to a GPU: its memory, and the lanes that copy, decode and assemble waves of chunks.

mod decoding;
pub(crate) mod driver;
pub(crate) mod gds;
mod lane;
mod nvcomp;
mod streams;
mod tables;
#[cfg(test)]
mod tests_assemble;
mod upload;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};

use crate::budget::{self, DeviceBudget, HostBudget, Limits, Needs};
use crate::chunk_index::{ChunkIndex, Route};
use crate::codec::streams::{StreamCodec, ZstdDecoder, max_decoded};
use crate::codec::{BloscCodec, Compression, Packed};
use crate::error::{Error, Result};
use crate::messages::{Event, Lanes, Shared, Storage, Upload, Wave, WaveLimits, spawn};
use crate::spec::Spec;
use decoding::temp_bytes;
use driver::{CuFile, Device, DeviceBuffer, Module, PinnedBuffer};

/// Memory and lanes for a reader that delivers to a GPU.
pub(crate) struct Gpu {
    /// Page-locked host memory for encoded chunks: address and bytes.
    pub staging: (u64, usize),
    /// Device memory for decoded chunks: address and bytes.
    pub slots: (u64, usize),
    /// Device memory that GPUDirect Storage reads to, if it is used: address and bytes.
    pub gds_buffer: Option<(u64, usize)>,
    pub lanes: Box<dyn Lanes>,
    pub owned: Vec<Box<dyn Send>>,
}

/// The streams that chunks with this compression consist of.
///
/// # Errors
/// If no decoder of the GPU takes them.
const fn codec(compression: Compression) -> std::result::Result<StreamCodec, &'static str> {
    match compression {
        Compression::Zstd | Compression::Blosc(BloscCodec::Zstd, _) => Ok(StreamCodec::Zstd),
        Compression::Gzip | Compression::Zlib | Compression::Blosc(BloscCodec::Zlib, _) => Ok(StreamCodec::Deflate),
        Compression::Lz4 | Compression::Blosc(BloscCodec::Lz4, _) => Ok(StreamCodec::Lz4),
        Compression::Blosc(BloscCodec::Snappy, _) => Ok(StreamCodec::Snappy),
        Compression::Blosc(BloscCodec::BloscLz, _) => Err("the GPU has no decoder for Blosc's own compressor, blosclz"),
    }
}

/// The environment variable that names the decoder of zstd frames on the GPU: `kernels` (the default) or `nvcomp`, for
/// comparison.
const ZSTD: &str = "DALI_ZARR_ZSTD";

fn zstd_decoder() -> Result<ZstdDecoder> {
    match std::env::var(ZSTD).ok().as_deref() {
        None | Some("" | "kernels") => Ok(ZstdDecoder::Kernels),
        Some("nvcomp") => Ok(ZstdDecoder::Nvcomp),
        Some(other) => Err(Error::value(format!(
            "{ZSTD}: expected \"kernels\" or \"nvcomp\" in the environment, found \"{other}\""
        ))),
    }
}

/// Bytes of workspace for streams of one kind, of which the largest decodes to `largest` bytes, all to `total`.
fn workspace_for(codec: StreamCodec, zstd: ZstdDecoder, n: usize, largest: usize, total: usize) -> Result<usize> {
    if codec == StreamCodec::Zstd && zstd == ZstdDecoder::Kernels {
        // Typical data need 0.5 to 1 times `total`. Frames that need more are decoded in rounds, if a single one fits.
        return Ok((total + total / 4).max(largest.saturating_mul(3)) + (64 << 10));
    }
    temp_bytes(codec, n, largest, total)
}

/// Whether the GPU can decode chunks of up to `decoded` bytes that are packed like this.
///
/// # Errors
/// What to install, or why it can't.
pub(crate) fn available(packed: &Packed, decoded: usize) -> Result<()> {
    let zstd = zstd_decoder()?;
    let most = max_decoded(packed, zstd);
    if decoded > most {
        return Err(Error::value(format!(
            "expected chunks of at most {most} decoded bytes, which is what the GPU's decoder takes, but found {decoded}"
        )));
    }
    let Some(compression) = packed.compression() else { return Ok(()) };
    let codec = codec(compression).map_err(Error::value)?;
    if codec == StreamCodec::Zstd && zstd == ZstdDecoder::Nvcomp { nvcomp::available() } else { Ok(()) }
}

struct RunningLanes {
    device: Arc<Device>,
    cufile: Option<&'static CuFile>,
    limits: WaveLimits,
    waves: Vec<Sender<Wave>>,
    threads: Vec<JoinHandle<()>>,
}

impl Lanes for RunningLanes {
    fn count(&self) -> usize {
        self.waves.len()
    }
    fn limits(&self) -> WaveLimits {
        self.limits
    }
    fn upload(&self) -> Result<Box<dyn Upload>> {
        Ok(Box::new(upload::StreamUpload::new(&self.device)?))
    }
    fn storage(&self) -> Result<Option<Box<dyn Storage>>> {
        let Some(cufile) = self.cufile else { return Ok(None) };
        Ok(Some(Box::new(gds::CuFileStorage::new(cufile, &self.device)?)))
    }
    fn launch(&self, lane: usize, wave: Wave) {
        // The lane's thread ends only when its sender is dropped. A panic in it is reported as an event.
        let _ = self.waves[lane].send(wave);
    }
}

impl Drop for RunningLanes {
    fn drop(&mut self) {
        self.waves.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether the GPU decodes anything, even if it is only a shuffle or a checksum around stored bytes.
fn on_gpu(chunk_index: &ChunkIndex) -> bool {
    chunk_index.routes.iter().flatten().any(|route| *route == Route::Gpu)
}

/// What the GPU decodes, and which decoders it needs.
struct Decoders {
    /// Whether it decodes anything.
    any: bool,
    /// The kinds of streams, each with the decoded bytes of the largest one.
    streams: Vec<(StreamCodec, usize)>,
    zstd: ZstdDecoder,
}

impl Decoders {
    fn new(chunk_index: &ChunkIndex) -> Result<Self> {
        Ok(Self { any: on_gpu(chunk_index), streams: gpu_streams(chunk_index), zstd: zstd_decoder()? })
    }

    /// Bytes of workspace for a wave.
    fn workspace(&self, streams_of_wave: usize, decoded: usize) -> Result<usize> {
        self.streams.iter().try_fold(0, |most: usize, &(codec, largest)| {
            let one = workspace_for(codec, self.zstd, streams_of_wave, largest, decoded)?;
            Ok(most.max(one))
        })
    }

    /// Host memory with which the CPU decodes a chunk that the GPU can't, for one lane at a time.
    fn fallback(&self, needs: &Needs) -> usize {
        if self.any { needs.decoded + needs.fallback } else { 0 }
    }
}

/// The smallest limits with which a reader that delivers to a GPU runs.
///
/// # Errors
/// If a decoder is missing.
pub(crate) fn smallest(spec: &Spec, needs: &Needs, chunk_index: &ChunkIndex) -> Result<Limits> {
    let decoders = Decoders::new(chunk_index)?;
    let workspace = |streams: usize, decoded: usize| decoders.workspace(streams, decoded);
    let device = budget::smallest_gpu(needs, spec.prefetch_queue_depth, decoders.any, &workspace)? as u64;
    let host = budget::smallest_host_for_gpu(needs, decoders.fallback(needs));
    Ok(Limits { host: host as u64, device })
}

/// The limits if the user sets none. `free` is the free device memory, if it is known.
pub(crate) fn default_limits(needs: &Needs, chunk_index: &ChunkIndex, free: Option<u64>) -> Limits {
    let device = free.map_or(budget::DEFAULT_DEVICE, |free| budget::DEFAULT_DEVICE.min(free / 2));
    let fallback = if on_gpu(chunk_index) { needs.decoded + needs.fallback } else { 0 };
    let large = needs.encoded + needs.bounced + fallback + needs.per_thread;
    Limits { host: budget::DEFAULT_HOST.max(3 * large as u64), device }
}

/// Divides device and host memory for a reader that delivers to a GPU. Touches no device.
///
/// # Errors
/// With limits that are too small, or if a decoder is missing.
pub(crate) fn divide(
    spec: &Spec,
    needs: &Needs,
    chunk_index: &ChunkIndex,
    limits: Limits,
    threads: usize,
) -> Result<(DeviceBudget, HostBudget)> {
    let decoders = Decoders::new(chunk_index)?;
    let workspace = |streams: usize, decoded: usize| decoders.workspace(streams, decoded);
    let fallback = decoders.fallback(needs);
    let tables = budget::host_tables(limits.host, needs, fallback)?;
    let b = budget::gpu(limits.device, needs, spec.prefetch_queue_depth, decoders.any, &workspace, tables)?;
    let h = budget::host_for_gpu(limits.host, needs, fallback + b.lanes * b.tables, threads)?;
    Ok((b, h))
}

/// Reserves the memory and starts the lanes.
///
/// # Errors
/// If memory can't be had, or the device fails.
pub(crate) fn open(
    device: &Arc<Device>,
    b: &DeviceBudget,
    h: &HostBudget,
    needs: &Needs,
    shared: &Shared,
    cufile: Option<&'static CuFile>,
) -> Result<Gpu> {
    let staging = PinnedBuffer::alloc(device, h.block)?;
    let slots = DeviceBuffer::alloc(device, b.slots)?;
    let module = Arc::new(Module::load(device)?);
    let missing = lane::upload(device, shared.ops.missing())?;
    let ops = lane::upload(device, &shared.ops.at(missing.ptr()))?;
    let fallback = match on_gpu(&shared.chunk_index) {
        true => Some(Arc::new(Mutex::new(PinnedBuffer::alloc(device, needs.decoded.max(1))?))),
        false => None,
    };
    let gds_buffer = (b.landing > 0).then(|| DeviceBuffer::alloc(device, b.landing)).transpose()?;
    // The registration comes first, so that it ends before the memory is freed.
    let mut owned: Vec<Box<dyn Send>> = Vec::new();
    if let Some(cufile) = cufile {
        for buffer in [Some(&slots), gds_buffer.as_ref()].into_iter().flatten() {
            // SAFETY: the buffer is freed after the registration, and that when all threads that read are gone.
            owned.push(Box::new(unsafe { cufile.register(device, buffer.ptr(), buffer.len()) }));
        }
    }
    let mut lanes = start_lanes(device, b, &module, ops.ptr(), fallback.as_ref(), shared)?;
    lanes.cufile = cufile;
    let gpu = Gpu {
        staging: (staging.ptr() as u64, staging.len()),
        slots: (slots.ptr(), slots.len()),
        gds_buffer: gds_buffer.as_ref().map(|l| (l.ptr(), l.len())),
        lanes: Box::new(lanes),
        owned: Vec::new(),
    };
    owned.push(Box::new(staging));
    owned.push(Box::new(slots));
    owned.push(Box::new(ops));
    owned.push(Box::new(missing));
    owned.push(Box::new(gds_buffer));
    Ok(Gpu { owned, ..gpu })
}

/// The kinds of streams that the GPU decodes, each with the decoded bytes of the largest one.
fn gpu_streams(chunk_index: &ChunkIndex) -> Vec<(StreamCodec, usize)> {
    let mut streams: Vec<(StreamCodec, usize)> = Vec::new();
    for (array, routes) in chunk_index.dataset.arrays.iter().zip(&chunk_index.routes) {
        for (part, route) in array.parts.iter().zip(routes) {
            let compression = part.format.packed().and_then(Packed::compression);
            let (Route::Gpu, Some(compression)) = (route, compression) else { continue };
            let Ok(codec) = codec(compression) else { continue };
            let bytes = part.largest_bytes;
            match streams.iter_mut().find(|s| s.0 == codec) {
                Some(stream) => stream.1 = stream.1.max(bytes),
                None => streams.push((codec, bytes)),
            }
        }
    }
    streams
}

fn start_lanes(
    device: &Arc<Device>,
    b: &DeviceBudget,
    module: &Arc<Module>,
    ops: u64,
    fallback: Option<&Arc<Mutex<PinnedBuffer>>>,
    shared: &Shared,
) -> Result<RunningLanes> {
    let mut lanes = RunningLanes {
        device: Arc::clone(device),
        cufile: None,
        limits: WaveLimits::from(b),
        waves: Vec::new(),
        threads: Vec::new(),
    };
    for i in 0..b.lanes {
        let mut lane = lane::Lane::new(i, device, b, module, ops, fallback.cloned(), shared)?;
        let (sender, waves) = bounded::<Wave>(1);
        let shared = shared.clone();
        lanes.waves.push(sender);
        lanes.threads.push(spawn(&format!("lane-{i}"), shared.events.clone(), move || {
            for wave in waves {
                if shared.stopped() {
                    continue;
                }
                let done = lane.run(wave);
                if shared.events.send(Event::Wave(done)).is_err() {
                    return;
                }
            }
        })?);
    }
    Ok(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_beyond_a_decoders_limit_are_refused() {
        let zstd = Packed::from(Compression::Zstd);
        available(&zstd, 128 << 20).unwrap();
        let error = available(&zstd, (128 << 20) + 1).unwrap_err();
        assert!(
            error.message().contains("at most 134217728 decoded bytes") && error.message().contains("134217729"),
            "{error}"
        );
        let gzip = Packed::from(Compression::Gzip);
        available(&gzip, (1 << 31) - 1).unwrap();
        assert!(available(&gzip, 1 << 31).is_err());
        assert!(available(&Packed::from(Compression::Blosc(BloscCodec::BloscLz, 0)), 1).is_err());
    }
}
