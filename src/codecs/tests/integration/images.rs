//! Images that libjpeg-turbo, libpng, libwebp, OpenJPEG and libjxl wrote, decoded through the public interface: values, and damage.
//!
//! `tests/images` has the images with what imagecodecs decodes, and the program that made them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use dali_zarr_base::dtype::DType;
use dali_zarr_codecs::{ChunkFormat, CodecList};
use serde_json::{Value, json};

/// The system's allocator, which counts the bytes that each thread holds, and their peak.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let held = HELD.get() + change;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all calls go to the system's allocator, with the same arguments. Counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the rules of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// An image of the folder.
struct Sample {
    name: String,
    encoded: Vec<u8>,
    shape: Vec<u64>,
    format: ChunkFormat,
    crc: u32,
}

fn samples() -> Vec<Sample> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/images");
    let text = std::fs::read(folder.join("expected.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_slice(&text).unwrap();
    let sample = |(name, told): (String, Value)| {
        let codec = match name.rsplit('.').next().unwrap() {
            "jpg" => "imagecodecs_jpeg",
            "png" => "imagecodecs_png",
            "j2k" | "jp2" => "imagecodecs_jpeg2k",
            "jxl" => "imagecodecs_jpegxl",
            _ => "imagecodecs_webp",
        };
        let shape: Vec<u64> = told["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let dtype = DType::from_name(told["dtype"].as_str().unwrap()).unwrap();
        let format = CodecList::parse(&json!([codec])).unwrap().format(dtype, 0, &shape).unwrap();
        let encoded = std::fs::read(folder.join(&name)).unwrap();
        Sample { name, encoded, shape, format, crc: told["crc"].as_u64().unwrap() as u32 }
    };
    expected.into_iter().map(sample).collect()
}

impl Sample {
    fn room(&self) -> Vec<u8> {
        vec![0xaa; self.format.decoded_bytes(&self.shape).unwrap()]
    }

    /// Decodes other bytes than the image's own. Returns whether they are an image, and the peak of memory.
    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> (bool, usize) {
        let before = HELD.get();
        PEAK.set(before);
        let good = self.format.decode(encoded, &self.shape, out).is_ok();
        (good, (PEAK.get() - before) as usize)
    }
}

#[test]
fn values_are_those_of_imagecodecs() {
    for sample in samples() {
        let mut out = sample.room();
        sample
            .format
            .decode(&sample.encoded, &sample.shape, &mut out)
            .unwrap_or_else(|e| panic!("{}: {e}", sample.name));
        // The other lossy images happen to have no difference. `tests/test_images.py` says how large it may be.
        let near = sample.name.ends_with(".jxl") && sample.name.starts_with("lossy");
        if sample.name != "lossy-deep.j2k" && !near {
            assert_eq!(crc32fast::hash(&out), sample.crc, "{}", sample.name);
        }
    }
}

#[test]
fn truncated_images_are_errors() {
    for sample in samples() {
        let mut out = sample.room();
        // The last bytes of some formats hold no pixels.
        let end = sample.encoded.len() - 12;
        for cut in (0..end).chain([end]) {
            let (good, peak) = sample.decode(&sample.encoded[..cut], &mut out);
            let lossless = sample.name.ends_with(".webp");
            assert!(!good || (lossless && cut + 40 > end), "{} cut at {cut} of {end}", sample.name);
            assert!(peak <= sample.most(cut), "{}: {peak} bytes", sample.name);
        }
    }
}

impl Sample {
    /// The most memory for decoding this many bytes: what is reserved, and some copies of the encoded bytes. Parts of
    /// WebP have sizes of 24 bits.
    fn most(&self, encoded: usize) -> usize {
        let decoded = self.format.decoded_bytes(&self.shape).unwrap();
        let parts = if self.name.ends_with(".webp") { 17 << 20 } else { 0 };
        self.format.scratch_bytes(decoded) + 4 * encoded + (64 << 10) + parts
    }
}

/// Damaged images end in a value or an error, and never take more memory than is reserved for the chunk.
/// `DALI_ZARR_IMAGE_MUTATIONS` gives another number for each image.
#[test]
fn damage_never_panics_or_takes_more_memory() {
    let given = std::env::var("DALI_ZARR_IMAGE_MUTATIONS").ok().and_then(|text| text.parse().ok());
    let mutations: u64 = given.unwrap_or(300);
    let only = std::env::var("DALI_ZARR_IMAGE_ONLY").unwrap_or_default();
    for sample in samples().iter().filter(|sample| sample.name.contains(&only)) {
        let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(sample.crc);
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
        };
        let (mut good, mut highest, mut out) = (0u64, 0, sample.room());
        for number in 0..mutations {
            let mut wrong = sample.encoded.clone();
            for _ in 0..1 + random(4) {
                let at = random(wrong.len());
                match random(6) {
                    0 => wrong[at] ^= 1 << random(8),
                    1 => wrong[at] = random(256) as u8,
                    2 => wrong[at] = [0, 0xff, 0x7f, 0x80, 1][random(5)],
                    3 => wrong.truncate(at + 1),
                    4 => drop(wrong.drain(at..(at + 1 + random(8)).min(wrong.len()))),
                    _ => {
                        let from = random(wrong.len());
                        let piece: Vec<u8> = wrong[from..(from + 1 + random(16)).min(wrong.len())].to_vec();
                        wrong.splice(at..at, piece);
                    }
                }
                if wrong.is_empty() {
                    wrong.push(0);
                }
            }
            // PNG's checksums would hide most of the decoder.
            if sample.name.ends_with(".png") && number % 4 > 0 {
                sealed(&mut wrong);
            }
            let (decoded, peak) = sample.decode(&wrong, &mut out);
            good += u64::from(decoded);
            highest = highest.max(peak);
            assert!(peak <= sample.most(wrong.len()), "{}: {peak} bytes, mutation {number}", sample.name);
        }
        println!("{}: {mutations} mutations, {good} decoded, at most {highest} bytes", sample.name);
    }
}

/// Writes the checksums of a PNG image anew.
fn sealed(png: &mut [u8]) {
    let mut at = 8;
    while let Some(length) = png.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        let end = at + 8 + u32::from_be_bytes(*length) as usize;
        let Some(body) = png.get(at + 4..end) else { return };
        let sum = crc32fast::hash(body).to_be_bytes();
        let Some(place) = png.get_mut(end..end + 4) else { return };
        place.copy_from_slice(&sum);
        at = end + 4;
    }
}
