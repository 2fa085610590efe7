//! Blosc 1 chunks (the format of c-blosc's `README_CHUNK_FORMAT.rst`; what it leaves open is as c-blosc 1.21 does it).
//! Written by: zarr's `blosc` codec, numcodecs' Blosc.
//!
//! A chunk is split into its streams. Each is data of the inner compressor that decodes to a known place. The decoded
//! bytes lie in the order of [`BloscStreams::layout`], which the assembling kernel undoes while it reads. Only the
//! header and the table of streams are read here.

use dali_zarr_kernels::{Layout, Shuffle};

use crate::codec::stream::{Walk, bytes};

/// Bytes of the header, after which the table of blocks or the bytes of a plain copy follow.
const HEADER: usize = 16;
/// c-blosc's own limit, which leaves room for three blocks in an `int`.
const MAX_BLOCK: usize = (i32::MAX as usize - 255 * 4) / 3;
/// Blocks whose elements have more bytes are never split.
const MAX_SPLITS: usize = 16;
/// Blocks are split only into streams of at least as many bytes.
const MIN_SPLIT: usize = 128;

const SHUFFLED: u8 = 1;
const PLAIN_COPY: u8 = 2;
const BIT_SHUFFLED: u8 = 4;
const RESERVED: u8 = 8;
const UNSPLIT: u8 = 16;

/// The most streams of a chunk that the GPU is given: one for each KiB, beside those of one short, split block.
///
/// A stream costs the decoder a warp and some 50 bytes of tables, however short it is, and a chunk may claim one for
/// each of its bytes. c-blosc's own choice of block sizes gives streams of 16 KiB and more, unless the chunk is smaller.
pub const fn max_streams(decoded_len: usize) -> usize {
    2 * MAX_SPLITS + decoded_len / 1024
}

/// The inner compressor of a chunk's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inner {
    /// A raw LZ4 block, without a size before it.
    Lz4,
    /// A raw Snappy block, which begins with its decoded length.
    Snappy,
    /// A zlib stream, RFC 1950.
    Zlib,
    /// A zstd frame, RFC 8878.
    Zstd,
}

/// One stream. All of it lies in the chunk, and its output in that of the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BloscStream {
    /// First byte in the chunk, at any alignment.
    pub src_offset: u32,
    /// Bytes in the chunk, at least 1.
    pub src_len: u32,
    /// First byte in the decoded chunk.
    pub dst_offset: u32,
    /// Bytes that it has to decode to, at least 1.
    pub dst_len: u32,
    /// Stored as it is, to be copied: `src_len` equals `dst_len`.
    pub raw: bool,
}

/// A chunk that the GPU may decode, if its streams are sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BloscStreams {
    /// The compressor of the streams that aren't raw; `None`: all are.
    pub codec: Option<Inner>,
    /// In the order of their outputs, which cover the decoded chunk without gaps and don't overlap. At most
    /// [`max_streams`].
    pub streams: Vec<BloscStream>,
    /// The order of the decoded bytes.
    pub layout: Layout,
}

/// Splits `chunk`, which must decode to `decoded_len` bytes.
///
/// # Errors
/// Why the CPU has to decode it, as the end of a sentence.
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
    fn parse(chunk: &[u8], decoded_len: usize) -> Walk<Self> {
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

    fn codec(&self) -> Walk<Inner> {
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

    /// Shuffles without effect count as none: of elements of one byte, and where a block is shorter than an element.
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

    /// How many streams a block of the full size has.
    fn splits(&self) -> usize {
        let split =
            self.flags & UNSPLIT == 0 && self.typesize <= MAX_SPLITS && self.blocksize / self.typesize >= MIN_SPLIT;
        if split { self.typesize } else { 1 }
    }

    fn streams(&self, chunk: &[u8], decoded_len: usize) -> Walk<Vec<BloscStream>> {
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
            // Blocks are written by several threads: their starts follow no order.
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

/// The length or offset at `at`, which is signed in the format.
fn length(chunk: &[u8], at: usize) -> Option<usize> {
    usize::try_from(i32::from_le_bytes(bytes(chunk, at)?)).ok()
}
