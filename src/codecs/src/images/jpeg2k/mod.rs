//! JPEG 2000 (ITU-T T.800) as `imagecodecs_jpeg2k` writes it with OpenJPEG: a codestream alone or in a JP2 file, with 1
//! to 4 channels of 1 to 16 bits, signed or not. The decoder is the crate hayro-jpeg2000, which has no unsafe code but
//! for vector instructions.
//!
//! Lossless images have the values of OpenJPEG. Lossy ones differ from it in rounding, as both compute with float32.
//!
//! Before the crate sees an image, `codestream.rs` compares its size with the chunk's, and counts the memory that its
//! tiles and blocks take. The crate reads the codestream only, in its strict mode: truncated parts are errors. Its
//! panics become errors too.

mod boxes;
mod codestream;

use std::panic::{AssertUnwindSafe, catch_unwind};

use hayro_jpeg2000::{DecodeSettings, DecoderContext};
use serde_json::Value;

use self::codestream::{Checked, Size};
use super::fit::{Expected, Found, Unfit};
use super::step::Decoder;
use crate::codec_entry::{CodecEntry, Fields};
use crate::on_gpu::{GpuImage, ImageFormat};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Result, panic_text};

/// JPEG 2000 images.
#[derive(Debug)]
pub(crate) struct Jpeg2k {
    dtype: DType,
    /// Whether the encoder lost values, as far as its fields say.
    lossy: Option<bool>,
}

impl Jpeg2k {
    /// Reads the configuration of `imagecodecs_jpeg2k`.
    ///
    /// # Errors
    /// If a field is unknown, or asks for channels before rows.
    pub(crate) fn parse(entry: &CodecEntry<'_>) -> Result<Self> {
        let encoding = &[
            "level",
            "codecformat",
            "colorspace",
            "tile",
            "bitspersample",
            "resolutions",
            "reversible",
            "mct",
            "verbose",
            "numthreads",
            "squeeze",
        ];
        Fields { decoding: &["planar"], encoding }.check(entry)?;
        if entry.field("planar").is_some_and(|value| *value != Value::Bool(false)) {
            return Err(entry.wrong("planar", "false or null, since channels behind pixels alone have a decoder"));
        }
        // imagecodecs takes levels up to 0 for the best quality, which is lossless unless the transform isn't.
        let exact = entry.field("level").is_none_or(|level| level.as_f64().is_some_and(|level| level <= 0.0));
        let lossy = match entry.field("reversible").and_then(Value::as_bool) {
            Some(false) => Some(true),
            _ if !exact => Some(true),
            Some(true) => Some(false),
            None => None,
        };
        Ok(Self { dtype: entry.side.dtype, lossy })
    }
}

impl Decoder for Jpeg2k {
    const TYPES: &'static [DType] = &[DType::U8, DType::U16, DType::I8, DType::I16];

    fn decode(&self, encoded: &[u8], expected: &Expected<'_>, out: &mut [u8]) -> Result<(), Unfit> {
        let (codestream, size, _) = self.checked(encoded, expected, out.len())?;
        let decoded = catch_unwind(AssertUnwindSafe(|| pixels(codestream, size, out)));
        let decoded = decoded.unwrap_or_else(|panic| Err(format!("its decoder panicked: {}", panic_text(&*panic))));
        decoded.map_err(Unfit::Damaged)
    }

    fn on_gpu(&self, _last: u64) -> Option<ImageFormat> {
        (self.dtype != DType::I8).then_some(ImageFormat::Jpeg2k)
    }

    fn for_gpu(&self, encoded: &[u8], expected: &Expected<'_>) -> Result<GpuImage, &'static str> {
        const OTHER: &str = "it is damaged, or of another array";
        let decoded = expected.shape.iter().fold(self.dtype.size() as u64, |all, &extent| all.saturating_mul(extent));
        let decoded = usize::try_from(decoded).map_err(|_| OTHER)?;
        let (codestream, size, Checked { len, is_usual }) =
            self.checked(encoded, expected, decoded).map_err(|_| OTHER)?;
        if !is_usual {
            return Err("it has parts that usual encoders don't write");
        }
        // The codestream is a part of the file.
        let start = codestream.as_ptr().addr() - encoded.as_ptr().addr();
        let extent = |extent: u64| u32::try_from(extent).map_err(|_| "it is too large");
        Ok(GpuImage {
            range: start..start + len,
            width: extent(size.width)?,
            height: extent(size.height)?,
            channels: extent(size.channels)?,
            bits: size.bits as u8,
            signed: size.signed,
        })
    }

    fn is_lossy(&self) -> Option<bool> {
        self.lossy
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        // For each sample 4 bytes of its own, 9 of a tile, and what describes blocks.
        (decoded / self.dtype.size()).saturating_mul(18).saturating_add(1 << 20)
    }
}

impl Jpeg2k {
    /// Returns the codestream of an image, its size, and what its headers say, if it fits a chunk of `decoded` bytes.
    ///
    /// # Errors
    /// If it doesn't, or is damaged.
    fn checked<'a>(
        &self,
        encoded: &'a [u8],
        expected: &Expected<'_>,
        decoded: usize,
    ) -> Result<(&'a [u8], Size, Checked), Unfit> {
        let codestream = boxes::codestream(encoded).map_err(Unfit::Damaged)?;
        let size = Size::read(codestream).map_err(Unfit::Damaged)?;
        let dtype = match (size.bits, size.signed) {
            (1..=8, false) => DType::U8,
            (1..=8, true) => DType::I8,
            (9..=16, false) => DType::U16,
            (9..=16, true) => DType::I16,
            (bits, _) => return Err(Unfit::Damaged(format!("its samples have {bits} bits, and not 1 to 16"))),
        };
        expected.check(&Found { height: size.height, width: size.width, channels: size.channels, dtype })?;
        let checked = size.check(codestream, self.working_bytes(decoded) as u64).map_err(Unfit::Damaged)?;
        Ok((codestream, size, checked))
    }
}

/// Decodes a codestream that was checked.
fn pixels(codestream: &[u8], size: Size, out: &mut [u8]) -> Result<(), String> {
    let settings = DecodeSettings { resolve_palette_indices: false, strict: true, target_resolution: None };
    let image = hayro_jpeg2000::Image::new(codestream, &settings).map_err(|e| e.to_string())?;
    let mut context = DecoderContext::default();
    let decoded = image.decode(&mut context).map_err(|e| e.to_string())?;
    let planes: Vec<&[f32]> = decoded.components().iter().map(|one| one.samples()).collect();
    let fits = planes.len() as u64 == size.channels
        && planes.iter().all(|plane| plane.len() as u64 == size.width * size.height);
    if !fits {
        return Err("it has other components than its header says".to_owned());
    }
    // The decoder moves signed samples too.
    let zero = if size.signed { (1u32 << (size.bits - 1)) as f32 } else { 0.0 };
    let most = ((1u32 << size.bits) - 1) as f32;
    let count = planes.len();
    for (channel, plane) in planes.into_iter().enumerate() {
        if size.bits <= 8 {
            let places = out[channel..].iter_mut().step_by(count);
            places.zip(plane).for_each(|(place, &sample)| *place = nearest(sample, most, zero) as u8);
        } else {
            let places = out.as_chunks_mut::<2>().0[channel..].iter_mut().step_by(count);
            places.zip(plane).for_each(|(place, &s)| *place = (nearest(s, most, zero) as u16).to_ne_bytes());
        }
    }
    Ok(())
}

/// Returns the nearest whole number of a sample up to `most`, and of two the even one, less `zero`.
fn nearest(sample: f32, most: f32, zero: f32) -> i32 {
    /// Numbers from here on have no fractions, so adding it rounds.
    const WHOLE: f32 = 12_582_912.0;
    (((sample.max(0.0).min(most) + WHOLE) - WHOLE) - zero) as i32
}

#[cfg(test)]
#[path = "../tests_jpeg2k.rs"]
mod tests;
