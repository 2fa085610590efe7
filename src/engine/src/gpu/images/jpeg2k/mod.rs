//! JPEG 2000 images, decoded by the GPU's multiprocessors through nvJPEG2000, a dependency of DALI's nvImageCodec.
//!
//! It decodes one image with few of a GPU's threads: 12 ms on an H200, for tiles of 256 x 256 as for 1024 x 1024. So a decoder
//! works on several images side by side, each on a stream of its own. nvImageCodec does so with a thread of the CPU for each,
//! which waits in a loop (twelve cores where this takes a third of one); this calls nvJPEG2000 itself.
//!
//! The GPU runs streams side by side as far as it has queues for them: eight, if `CUDA_DEVICE_MAX_CONNECTIONS` says nothing
//! else. With 32 of them and as many images an H200 decodes two to three times as many tiles.

mod library;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use super::places::check;
use super::{EncodedImage, Probe};
use crate::gpu::driver::{Device, Event, Stream};
use dali_zarr_base::error::Result;
use dali_zarr_codecs::GpuImage;
pub(super) use library::ADVICE;
use library::{ComponentInfo, Handle, INTERLEAVED, Image, ImageInfo, Jpeg2kLibrary, Status};

/// Images that a decoder works on side by side, at most.
const PLACES: usize = 8;
/// Bytes that a decoder may take for all its places but the first one.
const MEMORY: usize = 256 << 20;
/// Bytes of the library for each decoded byte of an image that it works on (measured: 6 to 7), and for each image.
const PER_BYTE: usize = 8;
const PER_IMAGE: usize = 2 << 20;
/// What this reports of an image that the library takes for another one, and of one that the driver failed for. (The library's
/// own statuses begin at 1.)
const OTHER: u32 = 100;
const DRIVER: u32 = 101;

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
    /// Decoded bytes of the largest image that was here. The library keeps the memory for it.
    largest: usize,
    library: &'static Jpeg2kLibrary,
}

// SAFETY: the library's handles aren't bound to threads, and the decoder is used by one at a time.
unsafe impl Send for Jpeg2kDecoder {}

impl Place {
    /// Makes a place of a decoder.
    ///
    /// # Errors
    /// If memory is short.
    fn new(device: &Arc<Device>, library: &'static Jpeg2kLibrary, handle: Handle) -> Result<Self> {
        let (stream, decoded) = (Stream::new(device)?, Event::new(device)?);
        let mut place = Self { state: null_mut(), parsed: null_mut(), stream, decoded, largest: 0, library };
        // SAFETY: each call writes one handle, which Drop destroys.
        unsafe {
            check("nvjpeg2kDecodeStateCreate", (library.state_create)(handle, &mut place.state))?;
            check("nvjpeg2kStreamCreate", (library.stream_create)(&mut place.parsed))?;
        }
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
        // SAFETY: each handle is of this library, and destroyed once, after what was enqueued has ended; null ones were never
        // made.
        unsafe {
            if !self.parsed.is_null() {
                (self.library.stream_destroy)(self.parsed);
            }
            if !self.state.is_null() {
                (self.library.state_destroy)(self.state);
            }
        }
    }
}

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
        of_image(largest).saturating_add((PLACES - 1).saturating_mul(of_image(largest)).min(MEMORY))
    }

    /// See [`super::ImageDecoder::decode`]. The statuses are those of `nvjpeg2kStatus_t`.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn decode(&mut self, stream: &Stream, images: &[EncodedImage<'_>]) -> Vec<(usize, u32)> {
        let all = || (0..images.len()).map(|i| (i, DRIVER)).collect();
        let largest = images.iter().map(|one| decoded_bytes(one.image)).max().unwrap_or(0);
        let places = self.make(images.len().min(PLACES), largest);
        if places == 0 || self.begun.record(stream).is_err() {
            return all();
        }
        let mut refused = Vec::new();
        for (i, image) in images.iter().enumerate() {
            // SAFETY: the caller promises it.
            let status = unsafe { self.decode_at(i % places, image) };
            if status != 0 {
                refused.push((i, status));
            }
        }
        let mut waited = refused.iter().all(|&(_, status)| status != DRIVER);
        for place in &self.places[..places] {
            waited &= stream.wait_event(place.decoded.raw()).is_ok();
        }
        if waited {
            return refused;
        }
        // The driver failed, so `stream` may not wait for all of them.
        let ended = |place: &Place| place.stream.synchronize().is_ok();
        if self.places[..places].iter().all(ended) { refused } else { all() }
    }

    /// Makes places for images of up to so many decoded bytes: as many as are wanted, or as few as fit into the memory. Returns
    /// how many there are; 0 if none could be made.
    fn make(&mut self, wanted: usize, largest: usize) -> usize {
        let held: Vec<usize> = self.places.iter().map(|place| place.largest).collect();
        let (kept, used) = divide(&held, wanted, largest);
        self.places.truncate(kept);
        while self.places.len() < used {
            match Place::new(&self.device, self.library, self.handle) {
                Ok(place) => self.places.push(place),
                Err(_) => break,
            }
        }
        let used = used.min(self.places.len());
        self.places[..used].iter_mut().for_each(|place| place.largest = place.largest.max(largest));
        used
    }

    /// Decodes an image at a place, after the image that it has. Returns a status.
    ///
    /// # Safety
    /// As for [`super::ImageDecoder::decode`].
    unsafe fn decode_at(&self, place: usize, one: &EncodedImage<'_>) -> u32 {
        let place = &self.places[place];
        let waited = place.decoded.synchronize().and_then(|()| place.stream.wait_event(self.begun.raw()));
        if waited.is_err() {
            return DRIVER;
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
            Err(_) => DRIVER,
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

/// Divides a decoder's memory. `held` are the decoded bytes of the largest image that each place had, and `wanted` is how many
/// images of up to `largest` decoded bytes are to be decoded side by side. Returns how many of the places are kept, and how many
/// are used then: at least one, and so few that all but the first one take at most [`MEMORY`].
fn divide(held: &[usize], wanted: usize, largest: usize) -> (usize, usize) {
    let wanted = wanted.clamp(1, PLACES);
    let others = |used: usize, kept: usize| -> usize {
        let place = |i: usize| of_image(held.get(i).map_or(0, |&held| held).max(if i < used { largest } else { 0 }));
        (1..used.max(kept)).map(place).fold(0, usize::saturating_add)
    };
    let fits = |&(kept, used): &(usize, usize)| others(used, kept) <= MEMORY;
    // Rather without places that wait for others than with fewer images at once.
    let unused = (wanted..=held.len()).rev().map(|kept| (kept, wanted));
    let fewer = (1..=wanted).rev().map(|used| (used.min(held.len()), used));
    unused.chain(fewer).find(fits).unwrap_or((held.len().min(1), 1))
}

impl Drop for Jpeg2kDecoder {
    fn drop(&mut self) {
        self.places.clear();
        // SAFETY: each handle is of this library, and destroyed once, after its places; null ones were never made.
        unsafe {
            if !self.params.is_null() {
                (self.library.params_destroy)(self.params);
            }
            if !self.handle.is_null() {
                (self.library.destroy)(self.handle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_divided() {
        const KB: usize = 1 << 10;
        const MB: usize = 1 << 20;
        for (held, wanted, largest, kept, used) in [
            (&[][..], 20, 64 * KB, 0, 8),
            (&[], 3, 64 * KB, 0, 3),
            (&[], 0, 64 * KB, 0, 1),
            (&[64 * KB; 8], 3, 64 * KB, 8, 3),
            (&[64 * KB; 2], 8, 2 * MB, 2, 8),
            // Of 34 MB each.
            (&[], 8, 4 * MB, 0, 8),
            (&[64 * KB; 8], 8, 8 * MB, 4, 4),
            (&[], 8, 40 * MB, 0, 1),
            (&[], 8, 32 * MB, 0, 1),
            (&[2 * MB; 8], 1, 2000 * MB, 8, 1),
            // The first one may be large, and the others are as many as before.
            (&[2000 * MB], 8, 64 * KB, 1, 8),
            (&[2000 * MB, 64 * KB, 64 * KB], 8, 2 * MB, 3, 8),
            // Places that aren't needed go first.
            (&[4 * MB, 4 * MB, 4 * MB, 4 * MB, 4 * MB, 4 * MB, 4 * MB, 4 * MB], 2, 8 * MB, 7, 2),
            (&[usize::MAX; 8], 8, usize::MAX, 1, 1),
        ] {
            assert_eq!(divide(held, wanted, largest), (kept, used), "{held:?} {wanted} {largest}");
        }
    }

    /// What a lane leaves free is what a decoder takes at most.
    #[test]
    fn memory_is_what_places_take() {
        for largest in [0, 1 << 10, 100 << 10, 1 << 20, 3 << 20, 20 << 20, 300 << 20] {
            let (_, used) = divide(&[], PLACES, largest);
            assert!(used * of_image(largest) <= Jpeg2kDecoder::memory(largest), "{largest}");
        }
    }
}
