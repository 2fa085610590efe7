//! JPEG 2000 images, decoded by the GPU's multiprocessors through nvJPEG2000, a dependency of DALI's nvImageCodec.
//!
//! It decodes one image with few of a GPU's threads: 12 ms on an H200, for tiles of 256 x 256 as for 1024 x 1024. So a decoder
//! works on several images side by side, each on a stream of its own. nvImageCodec does so with a thread of the CPU for each,
//! which waits in a loop (twelve cores where this takes a third of one); this calls nvJPEG2000 itself.
//!
//! The GPU runs streams side by side as far as it has queues for them: eight, if `CUDA_DEVICE_MAX_CONNECTIONS` says nothing
//! else. With 32 an H200 decodes twice to three times as many tiles.

mod library;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use super::{EncodedImage, Probe};
use crate::gpu::driver::{Device, Event, Stream};
use dali_zarr_base::error::Result;
use dali_zarr_codecs::GpuImage;
pub(super) use library::ADVICE;
use library::{ComponentInfo, Handle, INTERLEAVED, Image, ImageInfo, Jpeg2kLibrary, Status, check};

/// Images that a decoder works on side by side.
const PLACES: usize = 8;
/// Bytes that a decoder may take for its places, if they have at least one image.
const MEMORY: usize = 128 << 20;
/// Bytes of the library for each decoded byte of an image that it works on (measured: 6 to 7), and for each image.
const PER_BYTE: usize = 8;
const PER_IMAGE: usize = 2 << 20;
/// What this reports of an image that the library takes for another one. (The library's own statuses begin at 1.)
const OTHER: u32 = 100;

/// For the question whether there is a decoder.
pub(super) const PROBE: Probe = Probe { bytes: include_bytes!("probe.j2k"), width: 64, height: 48, channels: 1 };

/// A decoder of JPEG 2000 images, for one thread at a time.
pub(in crate::gpu) struct Jpeg2kDecoder {
    library: &'static Jpeg2kLibrary,
    handle: Handle,
    params: Handle,
    /// Where images are decoded. They are made when they are needed.
    places: Vec<Place>,
    /// What `stream` had before a call of [`Jpeg2kDecoder::decode`].
    begun: Event,
    device: Arc<Device>,
}

/// Where one image after the other is decoded.
struct Place {
    /// `nvjpeg2kDecodeState_t`.
    state: Handle,
    /// `nvjpeg2kStream_t`: the image's headers.
    parsed: Handle,
    stream: Stream,
    /// The last image is decoded.
    decoded: Event,
}

// SAFETY: the library's handles aren't bound to threads, and the decoder is used by one at a time.
unsafe impl Send for Jpeg2kDecoder {}

impl Jpeg2kDecoder {
    /// Makes a decoder.
    ///
    /// # Errors
    /// If nvJPEG2000 isn't there, or refuses the GPU.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        device.bind()?;
        let library = Jpeg2kLibrary::open()?;
        let begun = Event::new(device)?;
        let mut decoder = Self {
            library,
            handle: null_mut(),
            params: null_mut(),
            places: Vec::new(),
            begun,
            device: Arc::clone(device),
        };
        // SAFETY: each call writes one handle, which Drop destroys, or sets a field of the parameters.
        unsafe {
            check("nvjpeg2kCreateSimple", (library.create)(&mut decoder.handle))?;
            check("nvjpeg2kDecodeParamsCreate", (library.params_create)(&mut decoder.params))?;
            // Values as they are stored, whatever a file says of colours.
            check("nvjpeg2kDecodeParamsSetRGBOutput", (library.set_rgb)(decoder.params, 0))?;
            check("nvjpeg2kDecodeParamsSetOutputFormat", (library.set_format)(decoder.params, INTERLEAVED))?;
        }
        Ok(decoder)
    }

    /// Returns the device memory that is left free for a lane's decoder, which takes it from the driver.
    pub fn memory(largest: usize) -> usize {
        places(largest).saturating_mul(of_image(largest))
    }

    /// See [`super::ImageDecoder::decode`]. The statuses are those of `nvjpeg2kStatus_t`.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn decode(&mut self, stream: &Stream, images: &[EncodedImage<'_>]) -> Vec<(usize, u32)> {
        let all = |status: u32| (0..images.len()).map(|i| (i, status)).collect();
        let largest = images.iter().map(|one| decoded_bytes(one.image)).max().unwrap_or(0);
        let places = places(largest).min(images.len());
        if self.begun.record(stream).is_err() || self.make(places).is_err() {
            return all(0);
        }
        let mut refused = Vec::new();
        for (i, image) in images.iter().enumerate() {
            // SAFETY: the caller promises it.
            let status = unsafe { self.decode_at(i % places, image) };
            if status != 0 {
                refused.push((i, status));
            }
        }
        for place in &self.places[..places] {
            // An error here is the context's: whatever `stream` gets next fails too.
            let _ = stream.wait_event(place.decoded.raw());
        }
        refused
    }

    /// Makes places up to this number.
    ///
    /// # Errors
    /// If memory is short.
    fn make(&mut self, places: usize) -> Result<()> {
        while self.places.len() < places {
            let (stream, decoded) = (Stream::new(&self.device)?, Event::new(&self.device)?);
            let (mut state, mut parsed) = (null_mut(), null_mut());
            // SAFETY: each call writes one handle, which Drop destroys, or the lines here.
            unsafe {
                check("nvjpeg2kDecodeStateCreate", (self.library.state_create)(self.handle, &mut state))?;
                let status = (self.library.stream_create)(&mut parsed);
                if status != 0 {
                    (self.library.state_destroy)(state);
                }
                check("nvjpeg2kStreamCreate", status)?;
            }
            self.places.push(Place { state, parsed, stream, decoded });
        }
        Ok(())
    }

    /// Decodes an image at a place, after the image that it has. Returns a status.
    ///
    /// # Safety
    /// As for [`super::ImageDecoder::decode`].
    unsafe fn decode_at(&self, place: usize, one: &EncodedImage<'_>) -> u32 {
        let place = &self.places[place];
        let waited = place.decoded.synchronize().and_then(|()| place.stream.wait_event(self.begun.raw()));
        if waited.is_err() {
            return OTHER;
        }
        let bytes = &one.bytes[one.image.range.clone()];
        // SAFETY: the handles are alive, and the caller promises that the bytes stay.
        let parsed = unsafe { (self.library.parse)(self.handle, bytes.as_ptr(), bytes.len(), 0, 0, place.parsed) };
        if parsed != 0 {
            return parsed as u32;
        }
        if !self.is_parsed_as(place, one.image) {
            return OTHER;
        }
        // SAFETY: the caller promises that there is room for the image, which has the size that was compared.
        let status = unsafe { self.enqueue(place, one) };
        match place.decoded.record(&place.stream) {
            Ok(()) => status as u32,
            Err(_) => OTHER,
        }
    }

    /// Whether the library has found the image that was found before.
    fn is_parsed_as(&self, place: &Place, image: &GpuImage) -> bool {
        let mut found = ImageInfo::default();
        // SAFETY: writes what it found.
        let status = unsafe { (self.library.image_info)(place.parsed, &mut found) };
        let size = (image.width, image.height);
        let is_same = |component: u32| {
            let mut one = ComponentInfo::default();
            // SAFETY: likewise.
            let status = unsafe { (self.library.component_info)(place.parsed, &mut one, component) };
            let sample = (one.precision, one.signed != 0);
            status == 0 && (one.width, one.height) == size && sample == (image.bits, image.signed)
        };
        let is_image = status == 0 && (found.width, found.height, found.components) == (size.0, size.1, image.channels);
        is_image && (0..image.channels).all(is_same)
    }

    /// Enqueues the decoding of what a place has parsed.
    ///
    /// # Safety
    /// There is room for the pixels.
    unsafe fn enqueue(&self, place: &Place, one: &EncodedImage<'_>) -> Status {
        let image = one.image;
        let wide = image.bits > 8;
        let mut pixels = [one.to as *mut c_void, null_mut(), null_mut(), null_mut()];
        let pitch = image.width as usize * image.channels as usize * (1 + usize::from(wide));
        let mut pitches = [pitch; 4];
        let mut output = Image {
            pixels: pixels.as_mut_ptr(),
            pitches: pitches.as_mut_ptr(),
            kind: if wide { 1 + i32::from(image.signed) } else { 0 },
            components: image.channels,
        };
        // SAFETY: the handles are alive, the arrays live as long as the call, and the caller promises room.
        unsafe {
            let stream = place.stream.raw() as *mut c_void;
            (self.library.decode)(self.handle, place.state, place.parsed, self.params, &mut output, stream)
        }
    }
}

/// Returns the decoded bytes of an image.
fn decoded_bytes(image: &GpuImage) -> usize {
    let samples = image.width as usize * image.height as usize * image.channels as usize;
    samples * if image.bits > 8 { 2 } else { 1 }
}

/// Returns the bytes that the library takes for an image of so many decoded bytes.
const fn of_image(decoded: usize) -> usize {
    decoded.saturating_mul(PER_BYTE).saturating_add(PER_IMAGE)
}

/// Returns how many images of at most so many decoded bytes are decoded side by side.
fn places(largest: usize) -> usize {
    (MEMORY / of_image(largest)).clamp(1, PLACES)
}

impl Drop for Jpeg2kDecoder {
    fn drop(&mut self) {
        // SAFETY: each handle is of this library, and destroyed once, after what was enqueued has ended; null ones were never
        // made.
        unsafe {
            for place in &self.places {
                let _ = place.stream.synchronize();
                (self.library.stream_destroy)(place.parsed);
                (self.library.state_destroy)(place.state);
            }
            if !self.params.is_null() {
                (self.library.params_destroy)(self.params);
            }
            if !self.handle.is_null() {
                (self.library.destroy)(self.handle);
            }
        }
    }
}
