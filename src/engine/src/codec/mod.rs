//! Codecs: decoding the bytes of an encoded chunk on the CPU, and splitting a chunk into streams that the GPU decodes.
//!
//! A chunk decodes to exactly the size that its metadata says, or to an error: never to fewer bytes, never to more. One
//! compressor is one folder, such as `zstd/`: `mod.rs` decodes on the CPU, `streams.rs` walks its headers for the GPU
//! ([`streams`] joins them). Every codec is a step of a [`Chain`], and is registered once, in [`registry`]. Those of which more than
//! the name is needed are in `filters/` and `pack.rs`; what only zarrs has is one more step ([`foreign`]).

#![deny(unsafe_code)]

mod bits;
mod blosc;
mod chain;
mod deflate;
mod filters;
mod foreign;
mod lz4;
mod metadata;
mod pack;
mod registry;
pub mod stream;
pub mod streams;
mod zstd;

pub use chain::Chain;
pub(crate) use filters::base64::decode as decode_base64;
pub(crate) use metadata::{CodecList, V2Codecs};

use std::fmt;

use crate::dtype::DType;
use crate::error::{Error, Result};

/// A compressor of whole chunks that is decoded here and may be decoded on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// RFC 8878: any number of frames.
    Zstd,
    /// RFC 1952: any number of members.
    Gzip,
    /// RFC 1950: one stream.
    Zlib,
    /// numcodecs' LZ4: the decoded size as a little-endian u32, then one LZ4 block.
    Lz4,
    /// A chunk of Blosc 1, with whatever compressor and shuffle its header names; and the size of blocks that metadata ask
    /// for, in bytes, 0 for c-blosc's own choice.
    Blosc(BloscCodec, u32),
}

/// The compressor that metadata names for Blosc: what writers were told, and what most chunks will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are the names in metadata")]
pub enum BloscCodec {
    BloscLz,
    /// Also lz4hc.
    Lz4,
    Snappy,
    Zlib,
    Zstd,
}

impl Compression {
    /// The name in metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Lz4 => "lz4",
            Self::Blosc(..) => "blosc",
        }
    }

    /// Fills `out` from `encoded`.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to another size than that of `out`, whose content is then undefined.
    pub fn decode(self, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        match self {
            Self::Zstd => zstd::decode(encoded, out),
            Self::Gzip => deflate::decode_gzip(encoded, out),
            Self::Zlib => deflate::decode_zlib(encoded, out),
            Self::Lz4 => lz4::decode(encoded, out),
            Self::Blosc(_, block) => blosc::decode(encoded, block as usize, out),
        }
    }

    /// The most bytes to which usual encoders encode `decoded` bytes, at any level. A longer chunk is unusual, not
    /// wrong.
    pub fn usual_encoded_bytes(self, decoded: usize) -> usize {
        match self {
            // ZSTD_compressBound, and a content size, checksum and empty frames beside it.
            Self::Zstd => zstd_safe::compress_bound(decoded).saturating_add(64),
            // zlib's bound for blocks with fixed codes, which fast levels of some encoders write whatever the data are; and
            // a gzip header with a file name.
            Self::Gzip | Self::Zlib => decoded.saturating_add(decoded / 8).saturating_add(decoded / 64) + 512,
            // LZ4_compressBound and the size before it.
            Self::Lz4 => decoded.saturating_add(decoded / 255).saturating_add(16 + 4),
            Self::Blosc(_, block) => blosc::usual_encoded_bytes(decoded, block as usize),
        }
    }

    /// The most bytes that can decode to `decoded` bytes; `usize::MAX` where the format sets no limit. gzip and bzip2 may have empty
    /// members, deflate empty blocks, zstd frames that are skipped, Blosc gaps between its blocks.
    pub fn max_encoded_bytes(self, decoded: usize) -> usize {
        match self {
            // Each sequence but the last decodes to at least as many bytes as it has, beside the bytes of its lengths.
            Self::Lz4 => self.usual_encoded_bytes(decoded),
            Self::Zstd | Self::Gzip | Self::Zlib | Self::Blosc(..) => usize::MAX,
        }
    }

    /// Decoded bytes of a typical stream in a chunk of `decoded` bytes: what decoders on the GPU work on side by side.
    pub fn typical_stream(self, decoded: usize) -> usize {
        match self {
            // c-blosc's choices are larger, except for splits of small elements at low levels.
            Self::Blosc(..) => decoded.min(32 << 10),
            Self::Zstd | Self::Gzip | Self::Zlib | Self::Lz4 => decoded,
        }
    }

    /// Bytes that decoding `decoded` bytes on the CPU takes beside the output, where that depends on the chunk.
    pub fn working_bytes(self, decoded: usize) -> usize {
        match self {
            Self::Blosc(_, block) => blosc::working_bytes(decoded, block as usize),
            Self::Zstd | Self::Gzip | Self::Zlib | Self::Lz4 => 0,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the chunks of an array are encoded.
#[derive(Debug)]
pub struct ChunkFormat {
    /// Decoded bytes are in C order of the stored axes, and stored axis `k` is the array's axis `order[k]`.
    pub order: Vec<usize>,
    /// Whether decoded elements are in the other byte order than this machine's.
    pub swap: bool,
    /// The codecs to be undone.
    pub chain: Chain,
    dtype: DType,
}

impl ChunkFormat {
    /// The format that v3's list `codecs` gives chunks of `dtype`; `fill` holds the bits of the fill value, `largest` is the
    /// largest chunk's shape.
    ///
    /// # Errors
    /// If there is no decoder for one of them, or they don't fit together.
    pub fn from_v3(codecs: &serde_json::Value, dtype: DType, fill: u64, largest: &[u64]) -> Result<Self> {
        CodecList::parse(codecs)?.format(dtype, fill, largest)
    }

    /// Fills `out` with the elements of a chunk of `shape` (encoded extents, in the array's axes), laid out as
    /// `order` and `swap` say.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to another size than that of `out`, whose content is then undefined.
    pub fn decode(&self, encoded: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        let expected = self.decoded_bytes(shape)?;
        if out.len() != expected {
            return Err(Error::runtime(format!(
                "expected room for the {expected} bytes of a chunk of shape {shape:?}, but found {}",
                out.len()
            )));
        }
        let stored: Vec<u64> = self.order.iter().map(|&axis| shape[axis]).collect();
        self.chain.decode(encoded, &stored, self.dtype, out)
    }

    /// The codecs, if the GPU may decode them.
    pub fn packed(&self) -> Option<&Chain> {
        Some(&self.chain).filter(|chain| chain.is_for_gpu())
    }

    /// Bytes of a decoded chunk of `shape`.
    ///
    /// # Errors
    /// If they can't be counted.
    pub fn decoded_bytes(&self, shape: &[u64]) -> Result<usize> {
        decoded_bytes(shape, self.dtype)
    }

    /// The most bytes to which usual encoders encode a chunk of `decoded` bytes. As many are reserved before a chunk is
    /// read. A longer chunk is unusual, not wrong.
    pub fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        self.chain.usual_encoded_bytes(decoded)
    }

    /// The most bytes that can be a chunk of `decoded` bytes; `usize::MAX` where its codecs set no limit.
    pub fn max_encoded_bytes(&self, decoded: usize) -> usize {
        self.chain.max_encoded_bytes(decoded)
    }

    /// The most bytes that decoding a chunk of `decoded` bytes holds at a time, beside the encoded chunk and the decoded
    /// one. What the decoders of single compressors hold inside isn't counted.
    pub fn scratch_bytes(&self, decoded: usize) -> usize {
        self.chain.scratch_bytes(decoded)
    }
}

/// Bytes of `shape` elements of `dtype`.
pub(crate) fn decoded_bytes(shape: &[u64], dtype: DType) -> Result<usize> {
    shape
        .iter()
        .try_fold(dtype.size() as u64, |bytes, &extent| bytes.checked_mul(extent))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| Error::value(format!("expected a chunk that fits into memory, but found the shape {shape:?}")))
}

/// The error of a chunk that decodes to another size.
fn wrong_size(expected: usize, found: impl fmt::Display) -> Error {
    Error::runtime(format!(
        "expected {expected} decoded bytes, but found {found}; the chunk is damaged or of another array"
    ))
}

/// The error of `encoded` bytes of a chunk that can't be decoded, which should be of the codec (or codecs) `of`.
fn damaged(of: impl fmt::Display, encoded: usize, reason: impl fmt::Display) -> Error {
    Error::runtime(match encoded {
        0 => format!("expected {of} data, but found no bytes at all; the chunk was not written completely"),
        _ => format!(
            "expected {of} data, but found {encoded} bytes that can't be decoded: {reason}; the chunk is damaged"
        ),
    })
}
