//! Delivery to a GPU: its memory, and the lanes that copy, decode and assemble waves of chunks.

mod counters;
mod decoding;
pub(crate) mod driver;
pub(crate) mod gds;
mod images;
mod lane;
mod plain_copies;
mod streams;
mod tables;
#[cfg(test)]
mod tests_assemble;
#[cfg(test)]
mod tests_assemble_speed;
#[cfg(test)]
mod tests_between;
#[cfg(test)]
mod tests_transposed;
mod upload;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};

use crate::budget::{Budget, Decoding, DeviceBudget, Needs};
use crate::messages::{Event, Lanes, Shared, Storage, Upload, Wave, WaveLimits, spawn};
use crate::route::{Decisions, Route, uses_gpu};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::HostBlock;
use dali_zarr_codecs::streams::StreamCodec;
use dali_zarr_codecs::{BloscCodec, Chain, Compression, ImageFormat};
use dali_zarr_samples::dataset::Dataset;
use decoding::choose;
use driver::{CuFile, Device, DeviceBuffer, Module, PinnedBuffer};
pub(crate) use images::{FORMATS as IMAGE_FORMATS, available as images_available};

/// Memory and lanes for a reader that delivers to a GPU.
pub(crate) struct Gpu {
    // The first field is dropped first: lanes use the memory of the other fields.
    pub lanes: Box<dyn Lanes>,
    /// Page-locked host memory for encoded chunks.
    pub staging: HostBlock,
    /// Device memory for decoded chunks: address and bytes.
    pub slots: (u64, usize),
    /// Device memory that GPUDirect Storage reads to, if it is used: address and bytes.
    pub gds_buffer: Option<(u64, usize)>,
    /// Registrations with cuFile, then device memory. To be dropped in this order, after the lanes and all threads that
    /// read.
    pub owned: Vec<Box<dyn Send>>,
}

/// Returns the kind of streams that chunks with this compression consist of.
///
/// # Errors
/// If the GPU has no decoder for them.
const fn codec(compression: Compression) -> std::result::Result<StreamCodec, &'static str> {
    match compression {
        Compression::Zstd | Compression::Blosc(BloscCodec::Zstd, _) => Ok(StreamCodec::Zstd),
        Compression::Gzip | Compression::Zlib | Compression::Blosc(BloscCodec::Zlib, _) => Ok(StreamCodec::Deflate),
        Compression::Lz4 | Compression::Blosc(BloscCodec::Lz4, _) => Ok(StreamCodec::Lz4),
        Compression::Blosc(BloscCodec::Snappy, _) => Ok(StreamCodec::Snappy),
        Compression::Blosc(BloscCodec::BloscLz, _) => Err("the GPU has no decoder for Blosc's own compressor, blosclz"),
    }
}

/// Returns the workspace that a lane's decoders need, with these decisions; `None` if the GPU decodes no chunks.
pub(crate) fn decoding(dataset: &Dataset, decisions: &Decisions) -> Option<Decoding> {
    if !uses_gpu(decisions) {
        return None;
    }
    let mut needs = gpu_streams(dataset, decisions).into_iter().fold(Decoding::NONE, |most, (codec, largest)| {
        let one = choose(codec).needs(largest);
        Decoding {
            least_workspace: most.least_workspace.max(one.least_workspace),
            workspace_per_mib: most.workspace_per_mib.max(one.workspace_per_mib),
            ..Decoding::NONE
        }
    });
    needs.left_free = left_for_images(dataset, decisions);
    Some(needs)
}

/// Returns the bytes of a lane's workspace that are left free for decoders of images. 0 if the GPU decodes no images.
fn left_for_images(dataset: &Dataset, decisions: &Decisions) -> usize {
    let parts = || dataset.arrays.iter().zip(decisions).flat_map(|(array, routes)| array.parts.iter().zip(routes));
    let largest = |format: ImageFormat| {
        let images = parts().filter(|(part, decision)| {
            decision.route == Route::Gpu && part.format.chain.image_format() == Some(format)
        });
        images.map(|(part, _)| part.largest_bytes).max()
    };
    images::FORMATS.into_iter().filter_map(|format| Some(images::memory(format, largest(format)?))).sum()
}

/// Checks that there is a decoder of the GPU for these codecs. `missing`: the formats of images for which there is none, and
/// why ([`images_available`]).
///
/// # Errors
/// If not. The message says why.
pub(crate) fn available(chain: &Chain, missing: &[(ImageFormat, Error)]) -> Result<()> {
    if let Some(compression) = chain.compression() {
        return codec(compression).map(drop).map_err(Error::value);
    }
    let lacks = missing.iter().find(|&&(format, _)| chain.image_format() == Some(format));
    lacks.map_or(Ok(()), |(_, error)| Err(error.clone()))
}

/// The lanes of a reader. Dropping them waits for the waves under way.
struct RunningLanes {
    device: Arc<Device>,
    /// Reads files to the device, if GPUDirect Storage is used.
    cufile: Option<&'static CuFile>,
    limits: WaveLimits,
    /// Hands a wave to each lane.
    waves: Vec<Sender<Wave>>,
    /// The thread of each lane.
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

/// Reserves the memory and starts the lanes.
///
/// # Errors
/// If there isn't enough memory, or the device fails.
#[allow(unsafe_code, reason = "cuFile keeps the addresses of buffers, and a block has an address of its owner")]
pub(crate) fn open(
    device: &Arc<Device>,
    budget: &Budget,
    needs: &Needs,
    shared: &Shared,
    cufile: Option<&'static CuFile>,
) -> Result<Gpu> {
    let on_device =
        budget.device.as_ref().ok_or_else(|| Error::runtime("internal error: a budget without a device"))?;
    let staging = PinnedBuffer::alloc(device, budget.host.block)?;
    let slots = DeviceBuffer::alloc(device, on_device.slots)?;
    let module = Arc::new(Module::load(device)?);
    let numbers = lane::upload(device, shared.ops.numbers())?;
    let ops = lane::upload(device, &shared.ops.at(numbers.ptr()))?;
    let fallback = match uses_gpu(&shared.chunk_index.decisions) {
        true => Some(Arc::new(Mutex::new(PinnedBuffer::alloc(device, needs.decoded.max(1))?))),
        false => None,
    };
    let gds_buffer =
        (on_device.gds_buffer > 0).then(|| DeviceBuffer::alloc(device, on_device.gds_buffer)).transpose()?;
    // Registrations come first in the list, so that they end before the memory is freed.
    let mut owned: Vec<Box<dyn Send>> = Vec::new();
    if let Some(cufile) = cufile {
        for buffer in [Some(&slots), gds_buffer.as_ref()].into_iter().flatten() {
            // SAFETY: `owned` is dropped when all threads that read are gone, and the registration before the buffer.
            owned.push(Box::new(unsafe { cufile.register(device, buffer.ptr(), buffer.len()) }));
        }
    }
    let mut lanes = start_lanes(device, on_device, &module, ops.ptr(), fallback.as_ref(), shared)?;
    lanes.cufile = cufile;
    let (address, bytes) = (staging.ptr(), staging.len());
    // SAFETY: the buffer has these bytes, which it has set to zero, and nobody else has its address.
    let staging = unsafe { HostBlock::owned_by(Box::new(staging), address, bytes) };
    let slots_range = (slots.ptr(), slots.len());
    let gds_range = gds_buffer.as_ref().map(|buffer| (buffer.ptr(), buffer.len()));
    owned.push(Box::new(slots));
    owned.push(Box::new(ops));
    owned.push(Box::new(numbers));
    owned.push(Box::new(gds_buffer));
    Ok(Gpu { lanes: Box::new(lanes), staging, slots: slots_range, gds_buffer: gds_range, owned })
}

/// Returns the kinds of streams that the GPU decodes, each with the decoded bytes of the largest chunk that has them.
fn gpu_streams(dataset: &Dataset, decisions: &Decisions) -> Vec<(StreamCodec, usize)> {
    let mut streams: Vec<(StreamCodec, usize)> = Vec::new();
    for (array, decisions) in dataset.arrays.iter().zip(decisions) {
        for (part, decision) in array.parts.iter().zip(decisions) {
            let compression = part.format.gpu_chain().and_then(Chain::compression);
            let (Route::Gpu, Some(compression)) = (decision.route, compression) else { continue };
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
    budget: &DeviceBudget,
    module: &Arc<Module>,
    ops: u64,
    fallback: Option<&Arc<Mutex<PinnedBuffer>>>,
    shared: &Shared,
) -> Result<RunningLanes> {
    let mut lanes = RunningLanes {
        device: Arc::clone(device),
        cufile: None,
        limits: WaveLimits::from(budget),
        waves: Vec::new(),
        threads: Vec::new(),
    };
    for i in 0..budget.lanes {
        let mut lane = lane::Lane::new(i, device, budget, module, ops, fallback.cloned(), shared)?;
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
    fn decoders_are_there_or_said_to_be_missing() {
        for compression in [Compression::Zstd, Compression::Gzip, Compression::Blosc(BloscCodec::Snappy, 0)] {
            available(&Chain::from(compression), &[]).unwrap();
        }
        let error = available(&Chain::from(Compression::Blosc(BloscCodec::BloscLz, 0)), &[]).unwrap_err();
        assert!(error.message().contains("no decoder for Blosc's own compressor, blosclz"), "{error}");
    }
}
