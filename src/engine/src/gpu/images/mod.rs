//! Images that are chunks, decoded by NVIDIA's libraries: [JPEG](jpeg) by the GPU's engine, [JPEG 2000](jpeg2k) by its
//! multiprocessors. Each library is opened when an array first needs it.
//!
//! In: images that [`image_for_gpu`](dali_zarr_codecs::ChunkFormat::image_for_gpu) has found, in page-locked memory. Out:
//! their pixels, in device memory. An image that a library refuses is for the CPU, which decodes it or says what is wrong.

#![allow(unsafe_code)]

mod jpeg;
mod jpeg2k;
mod places;
mod pool;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use crate::gpu::driver::{Device, DeviceBuffer, Stream};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::PerProcess;
use dali_zarr_codecs::{GpuImage, ImageFormat};

use jpeg::JpegDecoder;
use jpeg2k::Jpeg2kDecoder;
pub(super) use pool::{Lent, lend};

/// The formats, in the order in which decoders of several are lent.
pub(crate) const FORMATS: [ImageFormat; 2] = [ImageFormat::Jpeg, ImageFormat::Jpeg2k];

/// An image to be decoded.
pub(super) struct EncodedImage<'a> {
    /// The bytes of its chunk, in host memory.
    pub bytes: &'a [u8],
    pub image: &'a GpuImage,
    /// The device address that its pixels go to.
    pub to: u64,
}

/// A small image of 8 bits, for the question whether there is a decoder.
struct Probe {
    bytes: &'static [u8],
    width: u32,
    height: u32,
    channels: u32,
}

/// A decoder of images of one format, for one thread at a time.
pub(super) enum ImageDecoder {
    Jpeg(JpegDecoder),
    Jpeg2k(Jpeg2kDecoder),
}

impl ImageDecoder {
    /// Makes a decoder.
    ///
    /// # Errors
    /// If its library isn't there, or finds nothing on the GPU that decodes.
    fn new(device: &Arc<Device>, format: ImageFormat) -> Result<Self> {
        Ok(match format {
            ImageFormat::Jpeg => Self::Jpeg(JpegDecoder::new(device)?),
            ImageFormat::Jpeg2k => Self::Jpeg2k(Jpeg2kDecoder::new(device)?),
        })
    }

    /// Decodes images of this format, as far as the GPU does it before `stream` goes on. Returns the indexes of those that
    /// weren't decoded, from the first to the last, each with the library's status.
    ///
    /// # Safety
    /// There is room for the pixels at each address, which nobody else uses between what `stream` has before and what it gets
    /// after. Until it has passed this point, the bytes stay.
    pub unsafe fn decode(&mut self, stream: &Stream, images: &[EncodedImage<'_>]) -> Vec<(usize, u32)> {
        // SAFETY: the caller promises it.
        unsafe {
            match self {
                Self::Jpeg(decoder) => decoder.decode(stream, images),
                Self::Jpeg2k(decoder) => decoder.decode(stream, images),
            }
        }
    }
}

/// Returns the device memory that is left free for a lane's decoder of images of at most `largest` decoded bytes.
pub(super) fn memory(format: ImageFormat, largest: usize) -> usize {
    match format {
        ImageFormat::Jpeg => JpegDecoder::memory(largest),
        ImageFormat::Jpeg2k => Jpeg2kDecoder::memory(largest),
    }
}

/// Whether the GPU can decode images of this format. If it can, it is asked only once; else each reader of images asks, since
/// a library that is missing may be installed, and memory that is short may become free.
///
/// # Errors
/// If not. The message says what is missing.
pub(crate) fn available(device: &Arc<Device>, format: ImageFormat) -> Result<()> {
    static FOUND: PerProcess<Mutex<Vec<(i32, ImageFormat)>>> = PerProcess::new();
    let found = || FOUND.get().lock().unwrap_or_else(PoisonError::into_inner);
    let asked = (device.ordinal(), format);
    if !found().contains(&asked) {
        probe(device, format)?;
        found().push(asked);
    }
    Ok(())
}

fn probe(device: &Arc<Device>, format: ImageFormat) -> Result<()> {
    let Probe { bytes, width, height, channels } = match format {
        ImageFormat::Jpeg => jpeg::PROBE,
        ImageFormat::Jpeg2k => jpeg2k::PROBE,
    };
    let pixels = DeviceBuffer::alloc(device, (width * height * channels) as usize)?;
    let stream = Stream::new(device)?;
    let mut decoder = lend(device, format)?;
    let image = GpuImage { range: 0..bytes.len(), width, height, channels, bits: 8, signed: false };
    // SAFETY: there is room for the pixels, and everything has ended before the buffer is freed.
    let refused = unsafe { decoder.decode(&stream, &[EncodedImage { bytes, image: &image, to: pixels.ptr() }]) };
    stream.synchronize()?;
    let Some(&(_, status)) = refused.first() else { return Ok(()) };
    Err(match format {
        ImageFormat::Jpeg => JpegDecoder::missing(device, status),
        ImageFormat::Jpeg2k => Error::value(format!(
            "nvJPEG2000 decoded nothing on GPU {} (nvjpeg2kStatus_t {status}); {}",
            device.ordinal(),
            jpeg2k::ADVICE
        )),
    })
}
