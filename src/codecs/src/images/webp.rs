//! WebP (RFC 9649), as `imagecodecs_webp` writes it with libwebp: 3 or 4 channels of uint8, lossless or lossy. The
//! decoder is the crate image-webp, which has no unsafe code.
//!
//! It takes memory for parts of a lossy image by their own sizes, before it finds them truncated: up to 16 MiB, for a
//! moment.
//!
//! `hasalpha` adds an opaque fourth channel or drops it, as in imagecodecs. Animations are refused.

use std::io::Cursor;

use image_webp::WebPDecoder;
use serde_json::Value;

use super::fit::{Expected, Found, Unfit};
use super::step::Decoder;
use crate::codec_entry::{CodecEntry, Fields};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::Result;

/// WebP images.
#[derive(Debug)]
pub(crate) struct WebP {
    /// Whether there is a fourth channel. `None`: as in the image.
    alpha: Option<bool>,
    /// What the field `lossless` says.
    lossless: Option<bool>,
}

impl WebP {
    /// Reads the configuration of `imagecodecs_webp`.
    ///
    /// # Errors
    /// If a field is unknown, or names another image than the first.
    pub(crate) fn parse(entry: &CodecEntry<'_>) -> Result<Self> {
        let encoding = &["level", "lossless", "method", "numthreads", "squeeze", "delay"];
        Fields { decoding: &["index", "hasalpha"], encoding }.check(entry)?;
        if entry.field("index").is_some_and(|value| value.as_i64() != Some(0)) {
            return Err(entry.wrong("index", "0, since animations have no decoder"));
        }
        let alpha = entry.field("hasalpha").map(|value| match value {
            Value::Bool(alpha) => Ok(*alpha),
            _ => Err(entry.wrong("hasalpha", "true or false")),
        });
        let lossless = entry.field("lossless").and_then(Value::as_bool);
        Ok(Self { alpha: alpha.transpose()?, lossless })
    }
}

impl Decoder for WebP {
    const TYPES: &'static [DType] = &[DType::U8];

    fn decode(&self, encoded: &[u8], expected: &Expected<'_>, out: &mut [u8]) -> Result<(), Unfit> {
        let mut decoder = WebPDecoder::new(Cursor::new(encoded)).map_err(Unfit::damaged)?;
        if decoder.is_animated() {
            return Err(Unfit::damaged("it is an animation, which has no decoder"));
        }
        let (width, height) = decoder.dimensions();
        let own = decoder.has_alpha();
        let wanted = self.alpha.unwrap_or(own);
        expected.check(&Found {
            height: height.into(),
            width: width.into(),
            channels: if wanted { 4 } else { 3 },
            dtype: DType::U8,
        })?;
        if frames(encoded).any(|size| size != (width, height)) {
            return Err(Unfit::damaged("its lossy frame has another size than its canvas"));
        }
        decoder.set_memory_limit(self.working_bytes(out.len()));
        if own == wanted {
            return decoder.read_image(out).map_err(Unfit::damaged);
        }
        let mut pixels = vec![0; out.len() / if wanted { 4 } else { 3 } * if own { 4 } else { 3 }];
        decoder.read_image(&mut pixels).map_err(Unfit::damaged)?;
        if wanted {
            for (to, from) in out.as_chunks_mut::<4>().0.iter_mut().zip(pixels.as_chunks::<3>().0) {
                *to = [from[0], from[1], from[2], 255];
            }
        } else {
            for (to, from) in out.as_chunks_mut::<3>().0.iter_mut().zip(pixels.as_chunks::<4>().0) {
                to.copy_from_slice(&from[..3]);
            }
        }
        Ok(())
    }

    fn is_lossy(&self) -> Option<bool> {
        self.lossless.map(|lossless| !lossless)
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        // The pixels with four channels, twice for transparency, a copy of the encoded bytes, and tables.
        decoded.saturating_mul(5).saturating_add(1 << 20)
    }
}

/// Returns the width and height of each lossy frame. The decoder takes memory for them before it compares them.
fn frames(encoded: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    encoded.windows(18).filter(|frame| frame.starts_with(b"VP8 ") && frame[11..14] == [0x9d, 1, 0x2a]).map(|frame| {
        let size = |at: usize| u32::from(u16::from_le_bytes([frame[at], frame[at + 1]]) & 0x3fff);
        (size(14), size(16))
    })
}
