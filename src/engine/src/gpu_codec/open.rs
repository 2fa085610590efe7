//! A compressed chunk, taken apart into the streams that the GPU decodes and the bytes that it only copies.

use dali_zarr_kernels::Layout;

use super::blosc::{self, Inner};
use super::{Checksum, Verdict, inspect};
use crate::codec::Compression;

/// A kind of stream that is decoded on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamCodec {
    /// A zstd frame, RFC 8878.
    Zstd,
    /// A raw deflate stream, RFC 1951: the inside of gzip and zlib.
    Deflate,
    /// An LZ4 block, without a frame or a size before it.
    Lz4,
    /// A raw Snappy block.
    Snappy,
}

impl StreamCodec {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Deflate => "deflate",
            Self::Lz4 => "lz4",
            Self::Snappy => "snappy",
        }
    }
}

/// A part of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How it is encoded; `None`: it is to be copied.
    pub codec: Option<StreamCodec>,
    /// Its first byte in the chunk, and its bytes.
    pub start: usize,
    /// See `start`.
    pub len: usize,
    /// Where its decoded bytes begin in the decoded chunk, and how many they must be.
    pub to: usize,
    /// See `to`.
    pub decoded: usize,
    /// To be compared after decoding.
    pub checksum: Option<Checksum>,
}

/// What [`open`] finds.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Their outputs cover the decoded chunk and don't overlap.
    pub parts: Vec<Part>,
    /// The order of the decoded bytes.
    pub layout: Layout,
}

impl Default for Opened {
    fn default() -> Self {
        Self { parts: Vec::new(), layout: Layout::NONE }
    }
}

/// Takes `chunk` apart, which has to decode to `decoded_len` bytes, into `opened`, whose memory is used again.
///
/// # Errors
/// Why the CPU has to decode it, as the end of a sentence.
pub fn open(
    compression: Compression,
    chunk: &[u8],
    decoded_len: usize,
    opened: &mut Opened,
) -> Result<(), &'static str> {
    opened.parts.clear();
    opened.layout = Layout::NONE;
    let codec = match compression {
        Compression::Zstd => StreamCodec::Zstd,
        Compression::Gzip | Compression::Zlib => StreamCodec::Deflate,
        Compression::Lz4 => StreamCodec::Lz4,
        Compression::Blosc(_) => return open_blosc(chunk, decoded_len, opened),
    };
    match inspect(compression, chunk, decoded_len) {
        Verdict::Gpu { start, len, checksum } => {
            opened.parts.push(Part { codec: Some(codec), start, len, to: 0, decoded: decoded_len, checksum });
            Ok(())
        }
        Verdict::Cpu(reason) => Err(reason),
    }
}

fn open_blosc(chunk: &[u8], decoded_len: usize, opened: &mut Opened) -> Result<(), &'static str> {
    let blosc = blosc::open(chunk, decoded_len)?;
    opened.layout = blosc.layout;
    for part in &blosc.streams {
        let codec = blosc.codec.filter(|_| !part.raw).map(|inner| match inner {
            Inner::Lz4 => StreamCodec::Lz4,
            Inner::Snappy => StreamCodec::Snappy,
            Inner::Zlib => StreamCodec::Deflate,
            Inner::Zstd => StreamCodec::Zstd,
        });
        match blosc.inspect(chunk, part) {
            Verdict::Gpu { start, len, checksum } => opened.parts.push(Part {
                codec,
                start: part.src_offset as usize + start,
                len,
                to: part.dst_offset as usize,
                decoded: part.dst_len as usize,
                checksum,
            }),
            Verdict::Cpu(reason) => return Err(reason),
        }
    }
    Ok(())
}
