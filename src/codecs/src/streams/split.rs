//! Splits a compressed chunk into the streams that the GPU decodes and the bytes that are only copied.

use dali_zarr_kernels::zstd::FramePlan;
use dali_zarr_kernels::{Layout, Shuffle};

use super::{Verdict, inspect};
use crate::blosc::streams::{self as blosc, Inner};
use crate::stream::Checksum;
use crate::zstd::{MAX_FRAME, plan};
use crate::{Chain, Compression};

/// Limit on the encoded and the decoded bytes of a chunk: lengths and offsets have 31 bits.
const MAX_CHUNK: usize = i32::MAX as usize;

/// Returns the most decoded bytes of a chunk that [`split`] accepts.
pub fn max_decoded(chain: &Chain) -> usize {
    match chain.compression() {
        Some(Compression::Zstd) => MAX_FRAME,
        Some(Compression::Gzip | Compression::Zlib | Compression::Lz4 | Compression::Blosc(..)) | None => MAX_CHUNK,
    }
}

/// The kinds of streams that the GPU decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StreamCodec {
    /// A zstd frame, RFC 8878.
    Zstd,
    /// A raw deflate stream, RFC 1951: the inside of gzip and zlib.
    Deflate,
    /// An LZ4 block, without a frame or a size before it.
    Lz4,
    /// A Snappy block, without framing.
    Snappy,
}

/// One stream of a chunk, or a range of its bytes that is only copied.
#[derive(Clone, Debug)]
pub struct ChunkStream {
    /// The compression of the stream. `None` if its bytes are only copied.
    pub codec: Option<StreamCodec>,
    /// Offset in the encoded chunk, in bytes.
    pub start: usize,
    /// Encoded length in bytes.
    pub len: usize,
    /// Offset of the output in the decoded chunk, in bytes.
    pub to: usize,
    /// Length in bytes that the stream must decode to.
    pub decoded: usize,
    /// The stream's checksum of the decoded bytes, to compare after decoding. `None` if it has none.
    pub checksum: Option<Checksum>,
    /// The parts of a zstd frame. `None` for other streams.
    pub plan: Option<FramePlan>,
}

/// The streams of a chunk.
#[derive(Clone, Debug)]
pub struct SplitChunk {
    /// The streams. Their outputs cover the decoded chunk and don't overlap.
    pub streams: Vec<ChunkStream>,
    /// How the decoded bytes are shuffled.
    pub layout: Layout,
}

impl Default for SplitChunk {
    fn default() -> Self {
        Self { streams: Vec::new(), layout: Layout::NONE }
    }
}

/// Splits `chunk`, which must decode to `decoded_len` bytes, and stores the streams in `split_chunk`, reusing its
/// memory.
///
/// It also verifies the checksums of encoded bytes: they are few, and the calling thread waits for the GPU most of the
/// time.
///
/// # Errors
/// The reason why the CPU has to decode the chunk, as the end of a sentence.
pub fn split(
    chain: &Chain,
    chunk: &[u8],
    decoded_len: usize,
    split_chunk: &mut SplitChunk,
) -> Result<(), &'static str> {
    split_chunk.streams.clear();
    split_chunk.layout = Layout::NONE;
    if decoded_len > MAX_CHUNK || chunk.len() > MAX_CHUNK {
        return Err("it is larger than the GPU's decoder takes");
    }
    let payload = chain.strip_checksums(chunk).map_err(|_| "a checksum around it is wrong")?;
    match chain.compression() {
        Some(compression) => split_compressed(compression, &chunk[payload.clone()], decoded_len, split_chunk)?,
        None if payload.len() == decoded_len => {
            let (len, decoded) = (decoded_len, decoded_len);
            split_chunk.streams.push(ChunkStream {
                codec: None,
                start: 0,
                len,
                to: 0,
                decoded,
                checksum: None,
                plan: None,
            });
        }
        None => return Err("it has another length than the chunk's"),
    }
    split_chunk.streams.iter_mut().for_each(|part| part.start += payload.start);
    if chain.shuffle() > 1 {
        if split_chunk.layout != Layout::NONE || decoded_len == 0 || !decoded_len.is_multiple_of(chain.shuffle().into())
        {
            return Err("it isn't a whole number of shuffled elements");
        }
        let bytes = decoded_len as u32;
        let (shuffle, typesize) = (Shuffle::Byte as u8, chain.shuffle());
        split_chunk.layout = Layout { nbytes: bytes, blocksize: bytes, shuffle, typesize, reserved: 0 };
    }
    Ok(())
}

fn split_compressed(
    compression: Compression,
    chunk: &[u8],
    decoded_len: usize,
    split_chunk: &mut SplitChunk,
) -> Result<(), &'static str> {
    let codec = match compression {
        Compression::Zstd => StreamCodec::Zstd,
        Compression::Gzip | Compression::Zlib => StreamCodec::Deflate,
        Compression::Lz4 => StreamCodec::Lz4,
        Compression::Blosc(..) => return split_blosc(chunk, decoded_len, split_chunk),
    };
    split_chunk.streams.push(part(codec, compression, chunk, decoded_len)?);
    Ok(())
}

/// Makes the [`ChunkStream`] of a chunk that consists of a single stream, compressed by `compression`.
fn part(
    codec: StreamCodec,
    compression: Compression,
    stream: &[u8],
    decoded: usize,
) -> Result<ChunkStream, &'static str> {
    let codec = Some(codec);
    if compression == Compression::Zstd {
        let plan = plan(stream, decoded)?;
        let checksum = plan.checksum.map(Checksum::Xxh64Low);
        return Ok(ChunkStream { codec, start: 0, len: stream.len(), to: 0, decoded, checksum, plan: Some(plan) });
    }
    match inspect(compression, stream, decoded) {
        Verdict::Gpu { start, len, checksum } => {
            Ok(ChunkStream { codec, start, len, to: 0, decoded, checksum, plan: None })
        }
        Verdict::Cpu(reason) => Err(reason),
    }
}

fn split_blosc(chunk: &[u8], decoded_len: usize, split_chunk: &mut SplitChunk) -> Result<(), &'static str> {
    let blosc = blosc::split(chunk, decoded_len)?;
    split_chunk.layout = blosc.layout;
    for stream in &blosc.streams {
        let (start, len) = (stream.src_offset as usize, stream.src_len as usize);
        let (to, decoded) = (stream.dst_offset as usize, stream.dst_len as usize);
        let whole = |codec| ChunkStream { codec, start, len, to, decoded, checksum: None, plan: None };
        let within = |codec, compression| -> Result<ChunkStream, &'static str> {
            let inside = part(codec, compression, &chunk[start..start + len], decoded)?;
            Ok(ChunkStream { start: start + inside.start, to, ..inside })
        };
        split_chunk.streams.push(match blosc.codec.filter(|_| !stream.raw) {
            None => whole(None),
            // The decoders of LZ4 and Snappy are safe for damaged data, so these streams aren't inspected.
            Some(Inner::Lz4) => whole(Some(StreamCodec::Lz4)),
            Some(Inner::Snappy) => whole(Some(StreamCodec::Snappy)),
            Some(Inner::Zlib) => within(StreamCodec::Deflate, Compression::Zlib)?,
            Some(Inner::Zstd) => within(StreamCodec::Zstd, Compression::Zstd)?,
        });
    }
    Ok(())
}
