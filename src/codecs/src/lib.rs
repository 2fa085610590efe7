//! Codecs: decoding the bytes of an encoded chunk on the CPU, and splitting a chunk into streams that the GPU decodes.
//!
//! In: the codecs of an array's metadata, as [version 3] of Zarr or `.zarray` of version 2 list them, and encoded chunks.
//! Out: the bytes of decoded chunks, or their streams. A chunk decodes to exactly the size that its metadata says, or to
//! an error: never to fewer bytes, never to more.
//!
//! - Every codec is a step of a [`Chain`], and is registered once, in [`registry`].
//! - Each compressor that the GPU decodes too has a folder, such as `zstd/`: `mod.rs` decodes on the CPU, `streams.rs`
//!   reads its headers for the GPU. [`streams`] calls them. Their specifications are RFC 1950 to 1952 (`deflate/`), RFC
//!   8878 (`zstd/`), and those of LZ4 and Blosc 1, which the heads name.
//! - Other compressors are in `compressor.rs`, `lzma.rs` and `lzw.rs`, filters and checksums in `filters/`, images as
//!   chunks in `images/`.
//! - Codecs that only zarrs has are steps too ([`zarrs_codec`]). One codec of ours is known to zarrs, for shards that
//!   zarrs decodes (`zarrs_lz4.rs`).
//!
//! The interface is [`ChunkFormat`], [`streams`] and what else stands in this file. With the feature `testing` there are
//! encoders for tests.
//!
//! ```
//! use dali_zarr_base::dtype::DType;
//! use dali_zarr_codecs::ChunkFormat;
//!
//! let codecs = serde_json::json!([{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd"}]);
//! let format = ChunkFormat::from_v3(&codecs, DType::I16, 0, &[2, 2])?;
//! let mut encoded = [0; 64];
//! let len = zstd_safe::compress(&mut encoded[..], &[0, 1, 0, 2, 0, 3, 0, 4], 3).expect("there is room");
//! let mut decoded = [0; 8];
//! format.decode(&encoded[..len], &[2, 2], &mut decoded)?;
//! assert_eq!((decoded, format.swap), ([0, 1, 0, 2, 0, 3, 0, 4], true));
//! assert!(format.decode(&encoded[..len - 1], &[2, 2], &mut decoded).is_err());
//! # Ok::<(), dali_zarr_base::error::Error>(())
//! ```
//!
//! [version 3]: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html

#![deny(unsafe_code)]

pub mod bits;
mod blosc;
mod chain;
mod codec_entry;
mod codec_list;
mod compressor;
mod deflate;
mod filters;
mod images;
mod lz4;
mod lzma;
mod lzw;
mod metadata;
mod on_gpu;
mod registry;
mod single_stream;
pub mod stream;
pub mod streams;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod zarrs_codec;
mod zarrs_lz4;
pub mod zstd;

pub use chain::Chain;
pub use codec_list::CodecList;
pub use metadata::V2Codecs;
pub use on_gpu::{GpuImage, ImageFormat};

use std::fmt;

use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// A compressor that this module decodes on the CPU and that the GPU may decode too.
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
    /// A Blosc 1 chunk. Its header names its compressor and shuffle. Here are the compressor that the metadata name and
    /// the block size that they ask for, in bytes (0: c-blosc chooses).
    Blosc(BloscCodec, u32),
}

/// The inner compressor that the metadata name for Blosc. Most chunks have it, but each chunk's header decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they are the names in metadata")]
pub enum BloscCodec {
    BloscLz,
    /// LZ4, also written by lz4hc.
    Lz4,
    Snappy,
    Zlib,
    Zstd,
}

impl Compression {
    /// Returns the codec's name in metadata.
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
    /// If `encoded` is damaged, or decodes to another size than that of `out`. The content of `out` is then undefined.
    pub fn decode(self, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        match self {
            Self::Zstd => zstd::decode(encoded, out),
            Self::Gzip => deflate::decode_gzip(encoded, out),
            Self::Zlib => deflate::decode_zlib(encoded, out),
            Self::Lz4 => lz4::decode(encoded, out),
            Self::Blosc(_, block) => blosc::decode(encoded, block as usize, out),
        }
    }

    /// Returns the most bytes that usual encoders write for `decoded` bytes, at any level. A longer chunk is unusual,
    /// but valid.
    pub fn usual_encoded_bytes(self, decoded: usize) -> usize {
        match self {
            // ZSTD_compressBound, and room for a content size, a checksum and empty frames.
            Self::Zstd => zstd_safe::compress_bound(decoded).saturating_add(64),
            // zlib's bound for blocks with fixed codes, which some encoders write at fast levels for any data, and room
            // for a gzip header with a file name.
            Self::Gzip | Self::Zlib => decoded.saturating_add(decoded / 8).saturating_add(decoded / 64) + 512,
            // LZ4_compressBound, and the 4 bytes of the decoded size before the block.
            Self::Lz4 => decoded.saturating_add(decoded / 255).saturating_add(16 + 4),
            Self::Blosc(_, block) => blosc::usual_encoded_bytes(decoded, block as usize),
        }
    }

    /// Returns the most encoded bytes that can decode to `decoded` bytes, or `usize::MAX` if the format sets no limit:
    /// gzip may have empty members, deflate empty blocks, zstd skippable frames, Blosc gaps between its blocks.
    pub fn max_encoded_bytes(self, decoded: usize) -> usize {
        match self {
            // Each LZ4 sequence but the last decodes to at least as many bytes as it takes, not counting its additional
            // length bytes.
            Self::Lz4 => self.usual_encoded_bytes(decoded),
            Self::Zstd | Self::Gzip | Self::Zlib | Self::Blosc(..) => usize::MAX,
        }
    }

    /// Returns the decoded bytes of a typical stream in a chunk of `decoded` bytes. The GPU decodes streams in
    /// parallel.
    pub fn typical_stream(self, decoded: usize) -> usize {
        match self {
            // The streams that c-blosc makes are larger, except where it splits blocks of small elements at low levels.
            Self::Blosc(..) => decoded.min(32 << 10),
            Self::Zstd | Self::Gzip | Self::Zlib | Self::Lz4 => decoded,
        }
    }

    /// Returns the working memory in bytes for decoding to `decoded` bytes on the CPU, without input and output. 0 if
    /// it doesn't depend on the chunk.
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
    /// Stored axis `k` is the array's axis `order[k]`. Decoded bytes are in C order of the stored axes.
    pub order: Vec<usize>,
    /// Whether decoded elements are in the other byte order than this machine's.
    pub swap: bool,
    /// The codecs to decode.
    pub chain: Chain,
    dtype: DType,
}

impl ChunkFormat {
    /// Returns the format of chunks of `dtype` for the list `codecs` of v3 metadata. `fill` holds the bits of the fill
    /// value; `largest` is the shape of the largest chunk.
    ///
    /// # Errors
    /// If there is no decoder for one of the codecs, or they don't fit together.
    pub fn from_v3(codecs: &serde_json::Value, dtype: DType, fill: u64, largest: &[u64]) -> Result<Self> {
        CodecList::parse(codecs)?.format(dtype, fill, largest)
    }

    /// Fills `out` with the elements of a chunk, in the order of axes `order` and the byte order that `swap` gives.
    /// `shape` is the chunk's encoded extent along each of the array's axes.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to another size than that of `out`. The content of `out` is then undefined.
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

    /// Decodes a chunk whose decoded size isn't known, to at most `limit` bytes.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to more bytes.
    pub fn decode_at_most(&self, encoded: &[u8], limit: usize) -> Result<Vec<u8>> {
        self.chain.decode_at_most(encoded, limit)
    }

    /// Returns the codecs if the GPU may decode them. `None` also if there are no codecs.
    pub fn gpu_chain(&self) -> Option<&Chain> {
        Some(&self.chain).filter(|chain| chain.is_for_gpu())
    }

    /// Returns the image in a chunk, if a library of the GPU decodes it to a chunk of `shape`, the extent along each of the
    /// array's axes. It takes the time of reading headers, not of decoding.
    ///
    /// # Errors
    /// The reason why the CPU has to decode it, as the end of a sentence.
    pub fn image_for_gpu(&self, encoded: &[u8], shape: &[u64]) -> Result<GpuImage, &'static str> {
        let stored: Vec<u64> = self.order.iter().map(|&axis| shape[axis]).collect();
        self.chain.image_for_gpu(encoded, &stored)
    }

    /// Returns the bytes of a decoded chunk of `shape`.
    ///
    /// # Errors
    /// If the number is too large for memory.
    pub fn decoded_bytes(&self, shape: &[u64]) -> Result<usize> {
        decoded_bytes(shape, self.dtype)
    }

    /// Returns the most bytes that usual encoders write for a chunk of `decoded` bytes. This memory is reserved before
    /// a chunk is read. A longer chunk is unusual, but valid.
    pub fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        self.chain.usual_encoded_bytes(decoded)
    }

    /// Returns the most encoded bytes that a chunk of `decoded` bytes can have, or `usize::MAX` if its codecs set no
    /// limit.
    pub fn max_encoded_bytes(&self, decoded: usize) -> usize {
        self.chain.max_encoded_bytes(decoded)
    }

    /// Returns the peak of scratch memory in bytes for decoding a chunk of `decoded` bytes, without the encoded and the
    /// decoded chunk. Memory inside decoders counts only where it depends on the chunk.
    pub fn scratch_bytes(&self, decoded: usize) -> usize {
        self.chain.scratch_bytes(decoded)
    }
}

/// Returns the bytes of a chunk of `shape` with elements of `dtype`.
///
/// # Errors
/// If the number is too large for memory.
pub fn decoded_bytes(shape: &[u64], dtype: DType) -> Result<usize> {
    shape
        .iter()
        .try_fold(dtype.size() as u64, |bytes, &extent| bytes.checked_mul(extent))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| Error::value(format!("expected a chunk that fits into memory, but found the shape {shape:?}")))
}

/// Makes the error of a chunk that decodes to another size than expected.
fn wrong_size(expected: usize, found: impl fmt::Display) -> Error {
    Error::damaged(format!(
        "expected {expected} decoded bytes, but found {found}; the chunk is damaged or of another array"
    ))
}

/// Makes the error of a chunk that can't be decoded. `of` names the codec, `encoded` is the number of encoded bytes.
fn damaged(of: impl fmt::Display, encoded: usize, reason: impl fmt::Display) -> Error {
    Error::damaged(match encoded {
        0 => format!("expected {of} data, but found no bytes at all; the chunk was not written completely"),
        _ => format!(
            "expected {of} data, but found {encoded} bytes that can't be decoded: {reason}; the chunk is damaged"
        ),
    })
}
