//! JPEG images, decoded by the GPU's JPEG engine through nvImageCodec, which DALI depends on.
//!
//! The engine is a part of its own beside the multiprocessors: those of A100, H100, H200 and later data centre GPUs, not of
//! others. nvImageCodec's other decoders aren't used: what it does with the multiprocessors differs from libjpeg-turbo by up
//! to three levels, and takes the CPU for the codes.
//!
//! In: images that [`image_for_gpu`](dali_zarr_codecs::ChunkFormat::image_for_gpu) has found, in page-locked memory. Out:
//! their pixels, in device memory. An image that the engine refuses is for the CPU, which decodes it or says what is wrong.

#![allow(unsafe_code)]

mod decoder;
mod library;
mod pool;
mod structures;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use crate::gpu::driver::{Device, DeviceBuffer, Stream};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::PerProcess;
use dali_zarr_codecs::GpuImage;

pub(super) use decoder::EncodedImage;
use decoder::ImageDecoder;
pub(super) use pool::{Lent, lend};

/// An image of 64 x 48 pixels, for the question whether there is an engine.
const PROBE: &[u8] = include_bytes!("probe.jpg");
const PROBED: (u32, u32) = (64, 48);

/// Returns the device memory that is left free for a lane's decoder of images, which takes it from the driver. (On an H200 a
/// decoder took 40 to 130 MB with waves of frames of 480 x 640.)
pub(super) const fn memory(largest: usize) -> usize {
    largest.saturating_mul(4).saturating_add(128 << 20)
}

/// Whether the GPU has a JPEG engine that can be used. If it has one, it is asked only once; else each reader of images asks,
/// since a library that is missing may be installed, and memory that is short may become free.
///
/// # Errors
/// If not, or nvImageCodec isn't there. The message says which.
pub(crate) fn available(device: &Arc<Device>) -> Result<()> {
    static FOUND: PerProcess<Mutex<Vec<i32>>> = PerProcess::new();
    let found = || FOUND.get().lock().unwrap_or_else(PoisonError::into_inner);
    if !found().contains(&device.ordinal()) {
        probe(device)?;
        found().push(device.ordinal());
    }
    Ok(())
}

fn probe(device: &Arc<Device>) -> Result<()> {
    let (width, height) = PROBED;
    let pixels = DeviceBuffer::alloc(device, (width * height * 3) as usize)?;
    let stream = Stream::new(device)?;
    let mut decoder = lend(device)?;
    let image = GpuImage { range: 0..PROBE.len(), width, height, channels: 3 };
    // SAFETY: there is room for the pixels, and everything has ended before the buffer is freed.
    let refused = unsafe { decoder.decode(&stream, &[EncodedImage { bytes: PROBE, image: &image, to: pixels.ptr() }]) };
    stream.synchronize()?;
    match refused.as_slice() {
        [] => Ok(()),
        [(_, status), ..] => Err(Error::value(format!(
            "nvImageCodec decoded nothing on GPU {}'s JPEG engine (status {status:#x}): nvJPEG may be missing; {}",
            device.ordinal(),
            library::ADVICE
        ))),
    }
}
