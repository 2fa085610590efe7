//! Blosc 1 chunks (the format of c-blosc's `README_CHUNK_FORMAT.rst`; what it leaves open is as c-blosc 1.21 does it).
//! Written by: zarr's `blosc` codec, numcodecs' Blosc.
//!
//! A chunk is split into its streams. Each stream is data of the inner compressor, and decodes to a known range of the
//! decoded chunk. The decoded bytes are shuffled as [`BloscStreams::layout`] says; the assembling kernel undoes that
//! while it reads. This module reads only the header, the table of blocks and the lengths of the streams.

use dali_zarr_kernels::{Layout, Shuffle};

use crate::stream::{HeaderResult, bytes};

/// Length of the header in bytes. The table of blocks, or the bytes of a plain copy, follow it.
const HEADER: usize = 16;
/// c-blosc's own limit on a block, in bytes: the size of three blocks must fit an `int`.
const MAX_BLOCK: usize = (i32::MAX as usize - 255 * 4) / 3;
/// Largest element size in bytes for which blocks are split into streams.
const MAX_SPLITS: usize = 16;
/// Shortest stream in bytes into which a block is split.
const MIN_SPLIT: usize = 128;

const SHUFFLED: u8 = 1;
const PLAIN_COPY: u8 = 2;
const BIT_SHUFFLED: u8 = 4;
const RESERVED: u8 = 8;
const UNSPLIT: u8 = 16;

/// Returns the most streams that a chunk for the GPU may have: one for each KiB, and 32 more for short split blocks.
///
/// A stream costs the decoder a warp and about 50 bytes of tables, however short it is, and a damaged chunk may claim
/// one stream for each byte. The block sizes that c-blosc chooses give streams of 16 KiB and more, unless the chunk is
/// smaller.
pub const fn max_streams(decoded_len: usize) -> usize {
    2 * MAX_SPLITS + decoded_len / 1024
}

/// The inner compressor of a chunk's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inner {
    /// An LZ4 block, without a size before it.
    Lz4,
    /// A Snappy block, which begins with its decoded length.
    Snappy,
    /// A zlib stream, RFC 1950.
    Zlib,
    /// A zstd frame, RFC 8878.
    Zstd,
}

/// One stream. Its input lies within the chunk, and its output within the decoded chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BloscStream {
    /// Offset in the chunk in bytes, at any alignment.
    pub src_offset: u32,
    /// Encoded length in bytes, at least 1.
    pub src_len: u32,
    /// Offset in the decoded chunk in bytes.
    pub dst_offset: u32,
    /// Length in bytes that the stream must decode to, at least 1.
    pub dst_len: u32,
    /// Whether the bytes are stored uncompressed and only need a copy. Then `src_len` equals `dst_len`.
    pub raw: bool,
}

/// The streams of a chunk for the GPU. The header is checked; the content of the streams is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BloscStreams {
    /// The compressor of the streams that aren't raw. `None` if the chunk is a plain copy.
    pub codec: Option<Inner>,
    /// At most [`max_streams`] streams, in the order of their outputs. The outputs cover the decoded chunk without gaps
    /// or overlaps.
    pub streams: Vec<BloscStream>,
    /// How the decoded bytes are shuffled.
    pub layout: Layout,
}

/// Splits `chunk`, which must decode to `decoded_len` bytes.
///
/// # Errors
/// The reason why the CPU has to decode the chunk, as the end of a sentence.
pub fn split(chunk: &[u8], decoded_len: usize) -> Result<BloscStreams, &'static str> {
    if decoded_len == 0 || decoded_len > i32::MAX as usize || chunk.len() > i32::MAX as usize {
        return Err("it is empty, or larger than a Blosc chunk can be");
    }
    let header = Header::parse(chunk, decoded_len)?;
    if header.flags & PLAIN_COPY != 0 {
        if chunk.len() != HEADER + decoded_len {
            return Err("its Blosc chunk is a plain copy of another length than the chunk's");
        }
        let all = BloscStream {
            src_offset: HEADER as u32,
            src_len: decoded_len as u32,
            dst_offset: 0,
            dst_len: decoded_len as u32,
            raw: true,
        };
        return Ok(BloscStreams { codec: None, streams: vec![all], layout: Layout::NONE });
    }
    let codec = header.codec()?;
    let streams = header.streams(chunk, decoded_len)?;
    Ok(BloscStreams { codec: Some(codec), streams, layout: header.layout(decoded_len) })
}

struct Header {
    codec_version: u8,
    flags: u8,
    typesize: usize,
    blocksize: usize,
}

impl Header {
    fn parse(chunk: &[u8], decoded_len: usize) -> HeaderResult<Self> {
        let [version, codec_version, flags, typesize]: [u8; 4] =
            bytes(chunk, 0).filter(|_| chunk.len() >= HEADER).ok_or("it is too short for a Blosc header")?;
        let field = |at| bytes(chunk, at).map(u32::from_le_bytes).unwrap_or(u32::MAX) as usize;
        let (nbytes, blocksize, cbytes) = (field(4), field(8), field(12));
        if flags & (SHUFFLED | BIT_SHUFFLED) == SHUFFLED | BIT_SHUFFLED {
            return Err("it has a Blosc 2 header");
        }
        if version != 2 || flags & RESERVED != 0 {
            return Err("its Blosc chunk is of another version of the format");
        }
        if nbytes != decoded_len {
            return Err("its Blosc header gives another size than the chunk's length");
        }
        if cbytes != chunk.len() {
            return Err("its Blosc header gives another size than the encoded chunk has");
        }
        if typesize == 0 || blocksize == 0 || blocksize > nbytes || blocksize > MAX_BLOCK {
            return Err("its Blosc header gives a block or an element a size that it can't have");
        }
        Ok(Self { codec_version, flags, typesize: typesize.into(), blocksize })
    }

    fn codec(&self) -> HeaderResult<Inner> {
        if self.codec_version != 1 {
            return Err("its Blosc chunk has another version of the compressor's format");
        }
        match self.flags >> 5 {
            0 => Err("it is compressed by BloscLZ, which has no decoder on the GPU"),
            1 => Ok(Inner::Lz4),
            2 => Ok(Inner::Snappy),
            3 => Ok(Inner::Zlib),
            4 => Ok(Inner::Zstd),
            _ => Err("its Blosc chunk has an unknown compressor"),
        }
    }

    /// Returns the shuffle of the decoded bytes. Shuffles without effect count as none: byte shuffles of elements of
    /// one byte, and any shuffle of a block that is shorter than an element.
    fn layout(&self, decoded_len: usize) -> Layout {
        let shuffle = match self.flags & (SHUFFLED | BIT_SHUFFLED) {
            SHUFFLED if self.typesize > 1 => Shuffle::Byte,
            BIT_SHUFFLED => Shuffle::Bit,
            _ => Shuffle::None,
        };
        if shuffle == Shuffle::None || self.typesize > self.blocksize {
            return Layout::NONE;
        }
        Layout {
            nbytes: decoded_len as u32,
            blocksize: self.blocksize as u32,
            shuffle: shuffle as u8,
            typesize: self.typesize as u8,
            reserved: 0,
        }
    }

    /// Returns the number of streams in a block of the full size.
    fn splits(&self) -> usize {
        let split =
            self.flags & UNSPLIT == 0 && self.typesize <= MAX_SPLITS && self.blocksize / self.typesize >= MIN_SPLIT;
        if split { self.typesize } else { 1 }
    }

    fn streams(&self, chunk: &[u8], decoded_len: usize) -> HeaderResult<Vec<BloscStream>> {
        const SHORT: &str = "a stream of its Blosc chunk lies outside of it";
        let (full, last) = (decoded_len / self.blocksize, decoded_len % self.blocksize);
        let splits = self.splits();
        if !self.blocksize.is_multiple_of(splits) {
            return Err("its Blosc blocks can't be split into streams of one length");
        }
        // No overflow: `full` is at most 2^31, and `splits` 16.
        let count = full * splits + usize::from(last > 0);
        if count > max_streams(decoded_len) {
            return Err("its Blosc chunk has more and shorter streams than the GPU can decode well");
        }
        let mut streams = Vec::with_capacity(count);
        let mut dst = 0;
        for block in 0..full + usize::from(last > 0) {
            let (splits, len) = if block < full { (splits, self.blocksize / splits) } else { (1, last) };
            // Several threads may write the blocks, so their offsets are in any order.
            let mut at = length(chunk, HEADER + 4 * block).ok_or(SHORT)?;
            for _ in 0..splits {
                let src_len = length(chunk, at).filter(|&n| n > 0).ok_or(SHORT)?;
                let src = at + 4;
                at = src.checked_add(src_len).filter(|&end| end <= chunk.len()).ok_or(SHORT)?;
                streams.push(BloscStream {
                    src_offset: src as u32,
                    src_len: src_len as u32,
                    dst_offset: dst as u32,
                    dst_len: len as u32,
                    raw: src_len == len,
                });
                dst += len;
            }
        }
        Ok(streams)
    }
}

/// Returns the length or offset stored at `at`. `None` if it is negative (the format has signed numbers) or cut off.
fn length(chunk: &[u8], at: usize) -> Option<usize> {
    usize::try_from(i32::from_le_bytes(bytes(chunk, at)?)).ok()
}
