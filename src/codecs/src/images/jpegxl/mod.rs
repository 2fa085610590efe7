//! JPEG XL (ISO/IEC 18181) as `imagecodecs_jpegxl` writes it with libjxl: a codestream alone or in a container, lossless
//! or lossy. The decoder is the crate jxl, which is libjxl's own in Rust.
//!
//! Lossless images have the values of libjxl. Lossy ones differ from it in rounding, as both compute with float32.
//!
//! The crate takes memory as parts of a codestream say: up to 268 MB for a profile of colours, or for a palette of a
//! group, by some bytes. So this module reads all that takes memory before the crate sees an image:
//!
//! - `header.rs`: the file's header. The crate gets one that is written here, and never the file's own.
//! - `frame.rs`: the frames' headers and where their sections are.
//! - `sections.rs`: what is in the sections before their pixels, with the codes and trees in `entropy.rs` (`prefix.rs`,
//!   `ans.rs`) and `tree.rs`. To find all of it, low frequencies are decoded too (`modular.rs`).
//!
//! What isn't usual of libjxl is refused, so that this reader and the crate can't see different structures. The crate's
//! panics become errors.

mod ans;
mod boxes;
mod entropy;
mod frame;
mod header;
mod modular;
mod order;
mod prefix;
mod reader;
mod sections;
mod tree;

use std::panic::{AssertUnwindSafe, catch_unwind};

use jxl::api::{
    Endianness, Event, JxlColorType, JxlDataFormat, JxlDecoder, JxlDecoderOptions, JxlOutputBuffer, JxlPixelFormat,
};
use serde_json::Value;

use self::header::Header;
use self::reader::Reader;
use super::fit::{Expected, Found, Unfit};
use super::step::Decoder;
use crate::codec_entry::{CodecEntry, Fields};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Result, panic_text};

/// JPEG XL images.
#[derive(Debug)]
pub(crate) struct JpegXl {
    /// Bytes of a sample.
    sample: usize,
    /// Whether the encoder lost values, as far as its fields say.
    lossy: Option<bool>,
}

impl JpegXl {
    /// Reads the configuration of `imagecodecs_jpegxl`.
    ///
    /// # Errors
    /// If a field is unknown, or asks for another image than the first.
    pub(crate) fn parse(entry: &CodecEntry<'_>) -> Result<Self> {
        let encoding = &[
            "level",
            "effort",
            "distance",
            "lossless",
            "decodingspeed",
            "photometric",
            "bitspersample",
            "planar",
            "usecontainer",
            "squeeze",
            "numthreads",
        ];
        Fields { decoding: &["index", "keeporientation"], encoding }.check(entry)?;
        if entry.field("index").is_some_and(|value| value.as_i64() != Some(0)) {
            return Err(entry.wrong("index", "0, since images with several frames have no decoder"));
        }
        if entry.field("keeporientation").is_some_and(|value| !value.is_boolean()) {
            return Err(entry.wrong("keeporientation", "true or false"));
        }
        let lossy = entry.field("lossless").and_then(Value::as_bool).map(|lossless| !lossless);
        Ok(Self { sample: entry.side.dtype.size(), lossy })
    }
}

impl Decoder for JpegXl {
    const TYPES: &'static [DType] = &[DType::U8, DType::U16, DType::F16, DType::F32];

    fn decode(&self, encoded: &[u8], expected: &Expected<'_>, out: &mut [u8]) -> Result<(), Unfit> {
        let codestream = boxes::codestream(encoded).map_err(Unfit::Damaged)?;
        let mut reader = Reader::new(&codestream);
        let header = Header::read(&mut reader).map_err(Unfit::Damaged)?;
        expected.check(&header.found())?;
        let (frames, bytes) = frame::frames(reader, &header).map_err(Unfit::Damaged)?;
        frames.iter().try_for_each(|sections| sections::check(sections, &header)).map_err(Unfit::Damaged)?;
        // libjxl keeps low frequencies in 32 bits, whatever the header says. Distances of 0.01 need more than 16.
        let wide = !header.narrow || frames.iter().any(|sections| !sections.frame.modular);
        let codestream = &[&header.written(wide), bytes].concat();
        // What the crate compares with a limit: three colours always, and rows of 16 pixels at least.
        let sizes = frames.iter().map(|one| (one.frame.width, one.frame.height)).chain([(header.width, header.height)]);
        let most = sizes.map(|(width, height)| width.max(16) as usize * height as usize).max().unwrap_or(0);
        let most = most * (3 + header.extra as usize);
        let size = header.dtype.size();
        let aligned = (out.as_ptr() as usize).is_multiple_of(size);
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            if aligned {
                return pixels(codestream, &header, most, out);
            }
            let mut room = vec![0; out.len() + size];
            let start = room.as_ptr().align_offset(size);
            let room = &mut room[start..start + out.len()];
            pixels(codestream, &header, most, room)?;
            out.copy_from_slice(room);
            Ok(())
        }));
        let decoded = decoded.unwrap_or_else(|panic| Err(format!("its decoder panicked: {}", panic_text(&*panic))));
        decoded.map_err(Unfit::Damaged)
    }

    fn is_lossy(&self) -> Option<bool> {
        self.lossy
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        // For each sample a few bytes of its own, and of trees and patches; and for all the tables of codes.
        (decoded / self.sample).saturating_mul(24).saturating_add(4 << 20)
    }
}

impl Header {
    /// Returns what a chunk must be: pixels with their channels, or planes above each other.
    fn found(&self) -> Found {
        let (height, width) = (u64::from(self.height), u64::from(self.width));
        let planes = u64::from(self.colors + self.extra);
        let (height, channels) = if self.planar { (height * planes, 1) } else { (height, planes) };
        Found { height, width, channels, dtype: self.dtype }
    }
}

/// Decodes a codestream that was checked, with at most so many samples in a frame, to an output that is aligned.
fn pixels(codestream: &[u8], header: &Header, most: usize, out: &mut [u8]) -> Result<(), String> {
    let bit_depth = header.bits as u8;
    let endianness = Endianness::native();
    let format = match header.dtype {
        DType::U8 => JxlDataFormat::U8 { bit_depth },
        DType::U16 => JxlDataFormat::U16 { endianness, bit_depth },
        DType::F16 => JxlDataFormat::F16 { endianness },
        _ => JxlDataFormat::F32 { endianness },
    };
    let color_type = match (header.colors, header.extra > 0 && !header.planar) {
        (1, false) => JxlColorType::Grayscale,
        (1, true) => JxlColorType::GrayscaleAlpha,
        (_, false) => JxlColorType::Rgb,
        (_, true) => JxlColorType::Rgba,
    };
    let extra_channel_format = vec![header.planar.then_some(format); header.extra as usize];
    let mut options = JxlDecoderOptions::default();
    options.adjust_orientation = false;
    options.sample_limit = Some(most + 1);
    let mut decoder = JxlDecoder::new(options);
    let mut input = codestream;
    let (height, row) = (header.height as usize, out.len() / header.height as usize);
    let row = if header.planar { row / (1 + header.extra as usize) } else { row };
    let mut buffers: Vec<_> =
        out.chunks_exact_mut(row * height).map(|one| JxlOutputBuffer::new(one, height, row)).collect();
    let mut ready = false;
    loop {
        let buffers = ready.then_some(buffers.as_mut_slice());
        match decoder.process(&mut input, buffers, None).map_err(|e| e.to_string())? {
            Event::BasicInfo => {
                let info = decoder.basic_info().ok_or("it has no header")?;
                let same =
                    info.size == (header.width as usize, height) && info.extra_channels.len() == header.extra as usize;
                if !same {
                    return Err("its decoder found another header".to_owned());
                }
                let extra_channel_format = extra_channel_format.clone();
                let pixels = JxlPixelFormat { color_type, color_data_format: Some(format), extra_channel_format };
                decoder.set_pixel_format(pixels).map_err(|e| e.to_string())?;
                ready = true;
            }
            Event::FrameHeader => {}
            Event::FrameComplete { .. } => return Ok(()),
            Event::NeedMoreInput { .. } | Event::Complete => return Err(reader::TRUNCATED.to_owned()),
        }
    }
}

#[cfg(test)]
#[path = "../tests_jpegxl.rs"]
mod tests;
