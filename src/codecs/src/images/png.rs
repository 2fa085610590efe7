//! PNG (ISO/IEC 15948), as `imagecodecs_png` writes it with libpng: 1 to 4 channels of uint8 or uint16. The decoder is
//! the crate png, which has no unsafe code.
//!
//! As imagecodecs does: grayscale of 1, 2 or 4 bits is scaled to 8 bits, a palette gives RGB, and a transparent colour
//! (`tRNS`) one more channel. Of an animation the first image is taken. Wrong checksums and missing pixels are errors.

use std::io::Cursor;

use png::{ColorType, Limits, Transformations};

use super::fit::{Expected, Found, Unfit};
use super::step::Decoder;
use crate::codec_entry::{CodecEntry, Fields};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::Result;

/// Memory that the decoder may take for other parts than pixels, such as a palette. Texts and profiles are skipped.
const OTHER_PARTS: usize = 1 << 20;

/// PNG images.
#[derive(Debug)]
pub(crate) struct Png;

impl Png {
    /// Reads the configuration of `imagecodecs_png`, which concerns encoders alone.
    ///
    /// # Errors
    /// If it has unknown fields.
    pub(crate) fn parse(entry: &CodecEntry<'_>) -> Result<Self> {
        Fields { decoding: &[], encoding: &["level", "strategy", "filter", "squeeze"] }.check(entry)?;
        Ok(Self)
    }
}

impl Decoder for Png {
    const TYPES: &'static [DType] = &[DType::U8, DType::U16];

    fn decode(&self, encoded: &[u8], expected: &Expected<'_>, out: &mut [u8]) -> Result<(), Unfit> {
        // A row is held two times, and the largest row is the whole chunk.
        let limits = Limits { bytes: out.len().saturating_mul(2).saturating_add(OTHER_PARTS) };
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(encoded), limits);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        decoder.set_transformations(Transformations::EXPAND);
        let mut reader = decoder.read_info().map_err(Unfit::damaged)?;
        let (color, depth) = reader.output_color_type();
        let found = Found {
            height: reader.info().height.into(),
            width: reader.info().width.into(),
            channels: match color {
                ColorType::Grayscale => 1,
                ColorType::GrayscaleAlpha => 2,
                ColorType::Rgb | ColorType::Indexed => 3,
                ColorType::Rgba => 4,
            },
            dtype: if depth == png::BitDepth::Sixteen { DType::U16 } else { DType::U8 },
        };
        expected.check(&found)?;
        if reader.output_buffer_size() != Some(out.len()) {
            return Err(Unfit::Other(found.to_string()));
        }
        let image = reader.next_frame(out).map_err(Unfit::damaged)?;
        // The first image of an animation must be as large as the canvas.
        if (u64::from(image.width), u64::from(image.height)) != (found.width, found.height) {
            return Err(Unfit::damaged("its first image is smaller than its canvas"));
        }
        if found.dtype == DType::U16 && cfg!(target_endian = "little") {
            for element in out.chunks_exact_mut(2) {
                element.swap(0, 1);
            }
        }
        Ok(())
    }

    fn is_lossy(&self) -> Option<bool> {
        Some(false)
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        // Two rows, and the window of its zlib stream.
        decoded.saturating_mul(2).saturating_add(256 << 10)
    }
}
