//! JPEG images, decoded by the GPU's JPEG engine through nvImageCodec, which DALI depends on.
//!
//! The engine is a part of its own beside the multiprocessors: those of A100, H100, H200 and later data centre GPUs, not of
//! others. nvImageCodec's other decoders aren't used: what it does with the multiprocessors differs from libjpeg-turbo by up
//! to three levels, and takes the CPU for the codes.

mod library;
mod structures;

use std::ptr::null_mut;
use std::sync::Arc;

use super::{EncodedImage, Probe};
use crate::gpu::driver::{Device, Stream};
use dali_zarr_base::error::{Error, Result};
use library::{ADVICE, Instance, OPTIONS};
use structures::{Backend, DECODED, DecodeParams, ExecutionParams, Handle, ImageInfo};

/// For the question whether there is an engine.
pub(super) const PROBE: Probe = Probe { bytes: include_bytes!("probe.jpg"), width: 64, height: 48, channels: 3 };

/// Threads of a decoder, which copy encoded bytes and read headers. Four weren't faster.
const THREADS: i32 = 1;

static BACKENDS: [Backend; 1] = [Backend::ENGINE];
static AS_STORED: DecodeParams = DecodeParams::new();

/// A decoder of JPEG images, for one thread at a time.
pub(in crate::gpu) struct JpegDecoder {
    decoder: Handle,
    /// Handles that are used again for each call.
    streams: Vec<Handle>,
    images: Vec<Handle>,
    instance: Instance,
    /// Keeps the context that all of it is in.
    _device: Arc<Device>,
}

// SAFETY: the library's handles aren't bound to threads, and the decoder is used by one at a time.
unsafe impl Send for JpegDecoder {}

impl JpegDecoder {
    /// Makes a decoder.
    ///
    /// # Errors
    /// If nvImageCodec isn't there, or finds no engine.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        device.bind()?;
        let instance = Instance::new()?;
        let params = ExecutionParams::new(THREADS, device.ordinal(), &BACKENDS);
        let mut decoder = null_mut();
        // SAFETY: the parameters live as long as the call, which copies them.
        let status =
            unsafe { (instance.library.decoder_create)(instance.handle, &mut decoder, &params, OPTIONS.as_ptr()) };
        if status != 0 {
            return Err(Error::value(format!(
                "GPU {} has no JPEG engine, as A100, H100 and later data centre GPUs have (nvimgcodecDecoderCreate: status \
                 {status})",
                device.ordinal()
            )));
        }
        Ok(Self { decoder, streams: Vec::new(), images: Vec::new(), instance, _device: Arc::clone(device) })
    }

    /// Returns the device memory that is left free for a lane's decoder, which takes it from the driver. (On an H200 a decoder
    /// took 40 to 130 MB with waves of frames of 480 x 640.)
    pub const fn memory(largest: usize) -> usize {
        largest.saturating_mul(4).saturating_add(128 << 20)
    }

    /// Returns the error of a probe that wasn't decoded.
    pub fn missing(device: &Device, status: u32) -> Error {
        Error::value(format!(
            "nvImageCodec decoded nothing on GPU {}'s JPEG engine (status {status:#x}): nvJPEG may be missing; {ADVICE}",
            device.ordinal(),
        ))
    }

    /// See [`super::ImageDecoder::decode`]. The statuses are those of `nvimgcodecProcessingStatus_t` (0: the library gave
    /// none).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn decode(&mut self, stream: &Stream, images: &[EncodedImage<'_>]) -> Vec<(usize, u32)> {
        let mut refused = Vec::new();
        // Older versions take images of one format in a call.
        for channels in [1, 3] {
            let alike = images.iter().enumerate().filter(|(_, one)| one.image.channels == channels);
            // SAFETY: the caller promises it for all images.
            unsafe { self.decode_alike(stream, alike, &mut refused) };
        }
        refused.sort_unstable();
        refused
    }

    /// Decodes images with as many channels, and adds those that weren't decoded to `refused`.
    ///
    /// # Safety
    /// As for [`Self::decode`].
    unsafe fn decode_alike<'a>(
        &mut self,
        stream: &Stream,
        images: impl Iterator<Item = (usize, &'a EncodedImage<'a>)>,
        refused: &mut Vec<(usize, u32)>,
    ) {
        let mut known: Vec<usize> = Vec::new();
        for (i, &EncodedImage { bytes, image, to }) in images {
            let at = known.len();
            if self.streams.len() == at {
                self.streams.push(null_mut());
                self.images.push(null_mut());
            }
            let info = ImageInfo::new(image.width, image.height, image.channels, to, stream.raw());
            // SAFETY: the caller promises that the bytes stay.
            let set = unsafe { self.instance.set_stream(&mut self.streams[at], &bytes[image.range.clone()]) };
            match set.and_then(|()| self.instance.set_image(&mut self.images[at], &info)) {
                Ok(()) => known.push(i),
                Err(_) => refused.push((i, 0)),
            }
        }
        // SAFETY: the first handles are those of the known images.
        let statuses = unsafe { self.decode_known(known.len()) };
        refused.extend(known.into_iter().zip(statuses).filter(|&(_, status)| status != DECODED));
    }

    /// Decodes the first images, and returns their statuses: zeros if the library failed.
    ///
    /// # Safety
    /// So many handles were set for this call.
    unsafe fn decode_known(&self, count: usize) -> Vec<u32> {
        let mut statuses = vec![0; count];
        if count == 0 {
            return statuses;
        }
        let (library, mut future) = (self.instance.library, null_mut());
        // SAFETY: the caller has set the handles; the parameters live for ever.
        let begun = unsafe {
            (library.decode)(
                self.decoder,
                self.streams.as_ptr(),
                self.images.as_ptr(),
                count as i32,
                &AS_STORED,
                &mut future,
            )
        };
        if begun == 0 && !future.is_null() {
            let mut found = count;
            // SAFETY: the future is of this call, is waited for before it is asked, and there is room for the statuses.
            unsafe {
                (library.wait)(future);
                if (library.statuses)(future, statuses.as_mut_ptr(), &mut found) != 0 || found != count {
                    statuses.fill(0);
                }
                (library.future_destroy)(future);
            }
        }
        statuses
    }
}

impl Drop for JpegDecoder {
    fn drop(&mut self) {
        let library = self.instance.library;
        // SAFETY: each handle is of this library, and destroyed once; null ones were never made.
        unsafe {
            for &image in self.images.iter().filter(|handle| !handle.is_null()) {
                (library.image_destroy)(image);
            }
            for &stream in self.streams.iter().filter(|handle| !handle.is_null()) {
                (library.stream_destroy)(stream);
            }
            (library.decoder_destroy)(self.decoder);
        }
    }
}
