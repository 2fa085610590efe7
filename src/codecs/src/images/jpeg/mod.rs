//! JPEG (ITU-T T.81) of 8 bits, sequential and progressive with Huffman codes: `imagecodecs_jpeg`, as imagecodecs and
//! tifffile's references for kerchunk write it, and `jpeg` of zarr-extensions.
//!
//! The decoder is of this project, and safe but for the choice of AVX2 (`wide.rs`). Of the decoders in Rust none gives
//! the values of libjpeg-turbo, which imagecodecs calls: zune-jpeg differs by up to 8 levels, jpeg-decoder by up to 4.
//! This one computes with the same integers (`idct.rs`, `sample.rs`), so values are equal to those of libjpeg-turbo's
//! default, "islow" with fancy upsampling.
//!
//! As imagecodecs does: three components are YCbCr unless a segment of Adobe or the components' letters say RGB, and
//! give RGB; four give CMYK, as they are stored. Other than imagecodecs does: truncated and incomplete streams are
//! errors, and not filled up. Samples of 12 bits, lossless JPEG (`"lossless": true`) and arithmetic codes are refused.

mod engine;
mod frame;
mod huffman;
mod idct;
mod sample;
mod scan;
mod wide;

use std::borrow::Cow;

use serde_json::Value;

use self::frame::{Frame, Segment, Segments, Tables};
use self::sample::{Convert, Scaling};
use self::scan::Parts;
use super::fit::{Expected, Unfit};
use super::step::Decoder;
use crate::codec_entry::{CodecEntry, Fields};
use crate::on_gpu::{GpuImage, ImageFormat};
use dali_zarr_base::base64;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::Result;

/// JPEG images.
#[derive(Debug, Default)]
pub(crate) struct Jpeg {
    /// The tables of TIFF's tag JPEGTables, for streams without them.
    tables: Tables,
    /// Bytes before each chunk. Behind it, the end of the stream is missing then.
    header: Vec<u8>,
    /// The colours in the stream, whatever it says itself.
    stored: Option<Space>,
    /// The colours of the chunk.
    wanted: Option<Space>,
}

/// The meaning of components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Unknown,
    Gray,
    Rgb,
    YCbCr,
    Cmyk,
    Ycck,
    Rgba,
}

impl Jpeg {
    /// Reads the configuration of `imagecodecs_jpeg`.
    ///
    /// # Errors
    /// If a field is unknown, or asks for what this decoder doesn't do.
    pub(crate) fn parse(entry: &CodecEntry<'_>) -> Result<Self> {
        let fields = Fields {
            decoding: &["tables", "header", "colorspace_data", "colorspace_jpeg", "lossless"],
            encoding: &["level", "bitspersample", "subsampling", "optimize", "smoothing", "predictor", "squeeze"],
        };
        fields.check(entry)?;
        if entry.field("lossless").is_some_and(|value| *value != Value::Bool(false)) {
            return Err(entry.wrong("lossless", "false or null, since lossless JPEG has no decoder"));
        }
        let bytes = |field: &str| {
            let text =
                entry.field(field).map(|value| value.as_str().and_then(|text| base64::decode(text.as_bytes()).ok()));
            text.map(|bytes| bytes.ok_or_else(|| entry.wrong(field, "base64 text"))).transpose()
        };
        let mut tables = Tables::default();
        if let Some(bytes) = bytes("tables")? {
            let read = Segments::new(&bytes).and_then(|mut segments| segments.next(&mut tables));
            if !matches!(read, Ok(Segment::End)) {
                return Err(entry.wrong("tables", "a JPEG stream of nothing but tables"));
            }
            // The image itself says these.
            tables = Tables { restart: 0, jfif: false, adobe: None, ..tables };
        }
        let space = |field: &str| {
            let found = entry.field(field).map(|value| Space::parse(value).ok_or(value));
            let expected = "UNKNOWN, GRAYSCALE, RGB, RGBA, YCBCR, CMYK or YCCK";
            found.transpose().map_err(|_| entry.wrong(field, expected))
        };
        let (stored, wanted) = (space("colorspace_jpeg")?, space("colorspace_data")?);
        // imagecodecs takes an unknown space for none.
        let known = |space: Option<Space>| space.filter(|space| *space != Space::Unknown);
        let (stored, wanted) = (known(stored), known(wanted).or(known(stored)));
        Ok(Self { tables, header: bytes("header")?.unwrap_or_default(), stored, wanted })
    }

    /// Reads the configuration of zarr-extensions' `jpeg`. It concerns encoders alone, but a wrong one is refused.
    ///
    /// # Errors
    /// If a field is wrong or unknown.
    pub(crate) fn extension(entry: &CodecEntry<'_>) -> Result<Self> {
        Fields { decoding: &["quality", "encoded_color_space", "subsampling"], encoding: &[] }.check(entry)?;
        if entry.field("quality").is_some_and(|value| value.as_u64().is_none_or(|quality| quality > 100)) {
            return Err(entry.wrong("quality", "a whole number up to 100"));
        }
        let space = entry.field("encoded_color_space");
        if space.is_some_and(|value| !matches!(value.as_str(), Some("ycbcr" | "rgb"))) {
            return Err(entry.wrong("encoded_color_space", "\"ycbcr\" or \"rgb\""));
        }
        let factor = |value: &Value| value.as_u64().is_some_and(|factor| (1..=4).contains(&factor));
        let pair = |value: &Value| value.as_array().is_some_and(|pair| pair.len() == 2 && pair.iter().all(factor));
        let subsampling = entry.field("subsampling").is_none_or(|value| match value {
            Value::String(name) => matches!(name.as_str(), "4:4:4" | "4:2:2" | "4:4:0" | "4:2:0"),
            Value::Array(pairs) => matches!(pairs.len(), 1 | 3) && pairs.iter().all(pair),
            _ => false,
        });
        if !subsampling {
            return Err(entry.wrong("subsampling", "a pair of factors from 1 to 4 for each component"));
        }
        Ok(Self::default())
    }

    /// Returns how components become channels.
    fn convert(&self, frame: &Frame, tables: &Tables) -> Result<Convert, String> {
        let count = frame.components.len();
        let stored = self.stored.unwrap_or_else(|| Space::stored(frame, tables));
        if stored.components().is_some_and(|components| components != count) {
            return Err(format!("it has {count} components, and not those of {stored:?}"));
        }
        let wanted = self.wanted.unwrap_or(match stored {
            Space::YCbCr => Space::Rgb,
            Space::Ycck => Space::Cmyk,
            other => other,
        });
        match (stored, wanted) {
            (stored, wanted) if stored == wanted => Ok(Convert::Same),
            (Space::YCbCr, Space::Gray) => Ok(Convert::First),
            (Space::Rgb, Space::Gray) => Ok(Convert::Gray),
            (Space::YCbCr, Space::Rgb) => Ok(Convert::Rgb),
            (Space::YCbCr, Space::Rgba) => Ok(Convert::Rgba),
            (Space::Rgb, Space::Rgba) => Ok(Convert::Opaque),
            (Space::Gray, Space::Rgb) => Ok(Convert::Repeated(3)),
            (Space::Gray, Space::Rgba) => Ok(Convert::Repeated(4)),
            (Space::Ycck, Space::Cmyk) => Ok(Convert::Cmyk),
            _ => Err(format!("its colours are {stored:?}, from which {wanted:?} can't be made")),
        }
    }
}

impl Space {
    /// Reads a name, or a number of libjpeg.
    fn parse(value: &Value) -> Option<Self> {
        let name = value.as_str().map(str::to_ascii_uppercase);
        Some(match (name.as_deref(), value.as_u64()) {
            (Some("UNKNOWN"), _) | (_, Some(0)) => Self::Unknown,
            (Some("GRAY" | "GRAYSCALE" | "MINISWHITE" | "MINISBLACK"), _) | (_, Some(1)) => Self::Gray,
            (Some("RGB" | "EXT_RGB"), _) | (_, Some(2 | 6)) => Self::Rgb,
            (Some("YCBCR"), _) | (_, Some(3)) => Self::YCbCr,
            (Some("CMYK" | "SEPARATED"), _) | (_, Some(4)) => Self::Cmyk,
            (Some("YCCK"), _) | (_, Some(5)) => Self::Ycck,
            (Some("RGBA" | "EXT_RGBA"), _) | (_, Some(12)) => Self::Rgba,
            _ => return None,
        })
    }

    /// Returns what the stream says, or what libjpeg takes it for.
    fn stored(frame: &Frame, tables: &Tables) -> Self {
        let ids: Vec<u8> = frame.components.iter().map(|component| component.id).collect();
        match (ids.as_slice(), tables.adobe) {
            ([_], _) => Self::Gray,
            ([_, _, _], _) if tables.jfif => Self::YCbCr,
            ([_, _, _], Some(0)) => Self::Rgb,
            (b"RGB", None) => Self::Rgb,
            ([_, _, _], _) => Self::YCbCr,
            ([_, _, _, _], Some(0) | None) => Self::Cmyk,
            ([_, _, _, _], Some(_)) => Self::Ycck,
            _ => Self::Unknown,
        }
    }

    /// Returns the number of components. `None`: any.
    fn components(self) -> Option<usize> {
        match self {
            Self::Unknown => None,
            Self::Gray => Some(1),
            Self::Rgb | Self::YCbCr => Some(3),
            Self::Cmyk | Self::Ycck | Self::Rgba => Some(4),
        }
    }
}

impl Decoder for Jpeg {
    const TYPES: &'static [DType] = &[DType::U8];

    fn decode(&self, encoded: &[u8], expected: &Expected<'_>, out: &mut [u8]) -> Result<(), Unfit> {
        let whole = match self.header.as_slice() {
            [] => Cow::Borrowed(encoded),
            header => Cow::Owned([header, encoded, &[0xff, 0xd9]].concat()),
        };
        let mut tables = self.tables.clone();
        let mut segments = Segments::new(&whole).map_err(Unfit::Damaged)?;
        let (mut frame, mut parts) = (None, None);
        loop {
            match segments.next(&mut tables).map_err(Unfit::Damaged)? {
                Segment::Frame(found) => frame = Some(found),
                Segment::Scan(scan, bytes) => {
                    let frame = frame.as_ref().ok_or_else(|| Unfit::damaged("a scan has no frame"))?;
                    if parts.is_none() {
                        let convert = self.convert(frame, &tables).map_err(Unfit::Damaged)?;
                        expected.check(&frame.found(convert.channels(frame.components.len()) as u64))?;
                        if Parts::bytes(frame) > self.working_bytes(out.len()) {
                            return Err(Unfit::damaged("its blocks reach far beyond its pixels"));
                        }
                        parts = Some((Parts::new(frame), convert));
                    }
                    if let Some((parts, _)) = &mut parts {
                        parts.scan(&scan, &tables, bytes).map_err(Unfit::Damaged)?;
                    }
                }
                Segment::End => break,
            }
        }
        let (Some(frame), Some((parts, convert))) = (frame, parts) else {
            return Err(Unfit::damaged("it has no image"));
        };
        let planes = parts.planes().map_err(Unfit::Damaged)?;
        let most = frame.most();
        let scalings = planes.iter().zip(&frame.components);
        let scalings: Option<Vec<Scaling>> = scalings.map(|(plane, one)| Scaling::new(one, most, plane)).collect();
        let scalings = scalings.ok_or_else(|| Unfit::damaged("its pixels have no whole number of samples"))?;
        wide::pixels(&planes, &scalings, convert, frame.width, out);
        Ok(())
    }

    fn on_gpu(&self, last: u64) -> Option<ImageFormat> {
        self.is_plain(last).then_some(ImageFormat::Jpeg)
    }

    fn for_gpu(&self, encoded: &[u8], expected: &Expected<'_>) -> Result<GpuImage, &'static str> {
        self.for_engine(encoded, expected)
    }

    fn is_lossy(&self) -> Option<bool> {
        Some(true)
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        // For each sample a byte, two more if the image is progressive, and the bytes of a scan. A gray chunk may be
        // made of three components. Small images are filled up to whole blocks.
        let samples = if self.wanted == Some(Space::Gray) { decoded.saturating_mul(3) } else { decoded };
        samples.saturating_mul(4).saturating_add(decoded).saturating_add(1 << 20)
    }
}

#[cfg(test)]
#[path = "../tests_jpeg.rs"]
mod tests;
