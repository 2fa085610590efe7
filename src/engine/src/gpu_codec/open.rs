//! A compressed chunk, taken apart into the streams that the GPU decodes and the bytes that it only copies.

use dali_zarr_kernels::Layout;
use dali_zarr_kernels::zstd_plan::{FramePlan, plan};

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

/// Who decodes zstd frames on the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZstdDecoder {
    /// `dz_zstd_entropy` and `dz_zstd_execute_*`, which trust nothing.
    #[default]
    Kernels,
    /// nvCOMP, for comparison: damage that the walk doesn't see can cost the process its CUDA context.
    Nvcomp,
}

/// A part of a chunk.
#[derive(Clone, Debug)]
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
    /// Of a zstd frame that this project's kernels decode.
    pub plan: Option<FramePlan>,
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
    zstd: ZstdDecoder,
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
        Compression::Blosc(_) => return open_blosc(zstd, chunk, decoded_len, opened),
    };
    opened.parts.push(part(codec, compression, zstd, chunk, decoded_len)?);
    Ok(())
}

/// A part that is one stream, compressed by `compression`, and begins where the decoded chunk does.
fn part(
    codec: StreamCodec,
    compression: Compression,
    zstd: ZstdDecoder,
    stream: &[u8],
    decoded: usize,
) -> Result<Part, &'static str> {
    let codec = Some(codec);
    if compression == Compression::Zstd && zstd == ZstdDecoder::Kernels {
        let plan = plan(stream, decoded)?;
        let checksum = plan.checksum.map(Checksum::Xxh64Low);
        return Ok(Part { codec, start: 0, len: stream.len(), to: 0, decoded, checksum, plan: Some(plan) });
    }
    match inspect(compression, stream, decoded) {
        Verdict::Gpu { start, len, checksum } => Ok(Part { codec, start, len, to: 0, decoded, checksum, plan: None }),
        Verdict::Cpu(reason) => Err(reason),
    }
}

fn open_blosc(zstd: ZstdDecoder, chunk: &[u8], decoded_len: usize, opened: &mut Opened) -> Result<(), &'static str> {
    let blosc = blosc::open(chunk, decoded_len)?;
    opened.layout = blosc.layout;
    for stream in &blosc.streams {
        let (start, len) = (stream.src_offset as usize, stream.src_len as usize);
        let (to, decoded) = (stream.dst_offset as usize, stream.dst_len as usize);
        let whole = |codec| Part { codec, start, len, to, decoded, checksum: None, plan: None };
        let within = |codec, compression| -> Result<Part, &'static str> {
            let inside = part(codec, compression, zstd, &chunk[start..start + len], decoded)?;
            Ok(Part { start: start + inside.start, to, ..inside })
        };
        opened.parts.push(match blosc.codec.filter(|_| !stream.raw) {
            None => whole(None),
            // Their decoder trusts nothing: there is nothing to look at.
            Some(Inner::Lz4) => whole(Some(StreamCodec::Lz4)),
            Some(Inner::Snappy) => whole(Some(StreamCodec::Snappy)),
            Some(Inner::Zlib) => within(StreamCodec::Deflate, Compression::Zlib)?,
            Some(Inner::Zstd) => within(StreamCodec::Zstd, Compression::Zstd)?,
        });
    }
    Ok(())
}
