//! The list of all codecs of this project: each codec's name, its place in a chain, and how its configuration becomes a
//! [`Step`].
//!
//! In v2 each filter gets bytes, and its configuration gives the element type and byte order, like a NumPy view. In v3
//! codecs before `bytes` get elements in native byte order, so a byte order in their configuration has no meaning.

use serde_json::{Map, Value};

use super::chain::Step;
use super::codec_entry::{CodecEntry, Fields, Format};
use super::compressor::Compressor;
use super::filters::{Arithmetic, CastValue, Checksum, Checksummed, PackBits, Predictor, ScaleOffset, Shuffle};
use super::images::{Image, Jpeg, Jpeg2k, JpegXl, Png, WebP};
use super::lzma::Lzma;
use super::{BloscCodec, Compression};
use Entry::{Bytes, Elements, Image as Picture, Refused};
use dali_zarr_base::error::Result;

/// An entry of the registry: where a codec may stand in a v3 chain, and how it is made.
#[derive(Clone, Copy)]
pub(super) enum Entry {
    /// Before the codec that turns elements into bytes.
    Elements(Make),
    /// After that codec.
    Bytes(Make),
    /// In place of that codec, or directly after it: images, which are made of elements with their shape.
    Image(Make),
    /// Nowhere: the codec is not for arrays of numbers. The text says what it is for.
    Refused(&'static str),
}

/// Makes the step of a codec. `None` if decoding has nothing to do.
pub(super) type Make = fn(&CodecEntry<'_>) -> Result<Option<Box<dyn Step>>>;

/// All codecs, by their name in metadata without the prefix "numcodecs.".
const CODECS: &[(&str, Entry)] = &[
    ("astype", Elements(|c| made(Arithmetic::astype(c)?))),
    ("quantize", Elements(|c| Ok(Arithmetic::quantize(c)?.map(boxed)))),
    ("delta", Elements(|c| made(Arithmetic::delta(c)?))),
    ("fixedscaleoffset", Elements(|c| made(Arithmetic::fixed_scale_offset(c)?))),
    // Rounding can't be undone.
    ("bitround", Elements(|_| Ok(None))),
    ("packbits", Elements(|_| made(PackBits))),
    ("scale_offset", Elements(|c| made(ScaleOffset::parse(c.configuration, c.side.dtype)?))),
    ("cast_value", Elements(|c| made(CastValue::parse(c.configuration, c.side.dtype)?))),
    ("zstd", Bytes(|_| made(Compressor::Common(Compression::Zstd)))),
    ("gzip", Bytes(|_| made(Compressor::Common(Compression::Gzip)))),
    ("zlib", Bytes(|_| made(Compressor::Common(Compression::Zlib)))),
    ("lz4", Bytes(|_| made(Compressor::Common(Compression::Lz4)))),
    ("blosc", Bytes(|c| made(Compressor::Common(blosc(c.configuration))))),
    ("bz2", Bytes(|_| made(Compressor::Bz2))),
    ("lzma", Bytes(|c| made(Compressor::Lzma(Lzma::parse(c.configuration)?)))),
    ("base64", Bytes(|_| made(Compressor::Base64))),
    ("shuffle", Bytes(|c| made(Shuffle::parse(c)?))),
    ("crc32", Bytes(|c| made(Checksummed::parse(c, Checksum::Crc32, "start")?))),
    ("crc32c", Bytes(|c| made(Checksummed::parse(c, Checksum::Crc32c, "end")?))),
    ("adler32", Bytes(|c| made(Checksummed::parse(c, Checksum::Adler32, "start")?))),
    ("fletcher32", Bytes(|_| made(Checksummed { checksum: Checksum::Fletcher32, at_start: false }))),
    ("jenkins_lookup3", Bytes(|c| made(Checksummed::jenkins(c)?))),
    ("lzw", Bytes(|c| made(lzw(c)?))),
    ("imagecodecs_lzw", Bytes(|c| made(lzw(c)?))),
    ("imagecodecs_deflate", Bytes(|c| made(deflate(c)?))),
    ("imagecodecs_zlib", Bytes(|c| made(leveled(c, Compression::Zlib)?))),
    ("imagecodecs_zstd", Bytes(|c| made(leveled(c, Compression::Zstd)?))),
    ("imagecodecs_delta", Elements(|c| made(Predictor::delta(c)?))),
    ("imagecodecs_floatpred", Elements(|c| made(Predictor::floating(c)?))),
    ("HorizontalDeltaCodec", Elements(|c| made(Predictor::horizontal(c)?))),
    ("imagecodecs_jpeg", Picture(|c| made(Image::new(c, Jpeg::parse(c)?)?))),
    ("jpeg", Picture(|c| made(Image::new(c, Jpeg::extension(c)?)?))),
    ("imagecodecs_jpeg2k", Picture(|c| made(Image::new(c, Jpeg2k::parse(c)?)?))),
    ("imagecodecs_jpegxl", Picture(|c| made(Image::new(c, JpegXl::parse(c)?)?))),
    ("imagecodecs_webp", Picture(|c| made(Image::new(c, WebP::parse(c)?)?))),
    ("imagecodecs_png", Picture(|c| made(Image::new(c, Png::parse(c)?)?))),
    ("json", Refused("any Python object")),
    ("json2", Refused("any Python object")),
    ("msgpack", Refused("any Python object")),
    ("msgpack2", Refused("any Python object")),
    ("pickle", Refused("any Python object")),
    ("vlen-utf8", Refused("elements of different lengths")),
    ("vlen-bytes", Refused("elements of different lengths")),
    ("vlen-array", Refused("elements of different lengths")),
    ("categorize", Refused("text")),
];

/// Returns the entry of the codec `name`, or `None` if this project doesn't have it.
pub(super) fn find(name: &str, format: Format) -> Option<Entry> {
    // Older versions of zarrs wrote codec names as URLs.
    let last = name.rsplit('/').next()?;
    let plain = last.strip_prefix("numcodecs.").unwrap_or(last);
    let other = match format {
        Format::V2 => {
            matches!(plain, "scale_offset" | "cast_value" | "lzw" | "jpeg" | "HorizontalDeltaCodec")
        }
        // In v3 "packbits" without a prefix is a serializer, not numcodecs' filter.
        Format::V3 => last == "packbits",
    };
    CODECS.iter().find(|(own, _)| *own == plain && !other).map(|&(_, place)| place)
}

fn boxed(step: impl Step + 'static) -> Box<dyn Step> {
    Box::new(step)
}

fn made(step: impl Step + 'static) -> Result<Option<Box<dyn Step>>> {
    Ok(Some(boxed(step)))
}

/// Reads the configuration of LZW, which has no fields.
fn lzw(entry: &CodecEntry<'_>) -> Result<Compressor> {
    Fields { decoding: &[], encoding: &[] }.check(entry)?;
    Ok(Compressor::Lzw)
}

/// Reads the configuration of a compressor of imagecodecs that has nothing but a level.
fn leveled(entry: &CodecEntry<'_>, compression: Compression) -> Result<Compressor> {
    Fields { decoding: &[], encoding: &["level"] }.check(entry)?;
    Ok(Compressor::Common(compression))
}

/// Reads the configuration of `imagecodecs_deflate`: zlib's format, or deflate alone if it is `raw`.
fn deflate(entry: &CodecEntry<'_>) -> Result<Compressor> {
    Fields { decoding: &["raw"], encoding: &["level"] }.check(entry)?;
    match entry.field("raw").map_or(Some(false), Value::as_bool) {
        Some(true) => Ok(Compressor::Deflate),
        Some(false) => Ok(Compressor::Common(Compression::Zlib)),
        None => Err(entry.wrong("raw", "true or false")),
    }
}

/// Reads the Blosc compressor and block size that the metadata name. Decoding uses each chunk's header instead.
fn blosc(configuration: &Map<String, Value>) -> Compression {
    let block = configuration.get("blocksize").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let codec = match configuration.get("cname").and_then(Value::as_str) {
        Some("blosclz") => BloscCodec::BloscLz,
        Some("snappy") => BloscCodec::Snappy,
        Some("zlib") => BloscCodec::Zlib,
        Some("zstd") => BloscCodec::Zstd,
        _ => BloscCodec::Lz4,
    };
    Compression::Blosc(codec, block.unwrap_or(0))
}
