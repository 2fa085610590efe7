//! Splits a compressed chunk into streams for the GPU's decoders ([`split`]).
//!
//! The kernels that decode them trust nothing: they stay within their buffers whatever the bytes are, and end with a status. So only
//! structure is read here: Blosc's header and table of blocks, the frames and headers of gzip, zlib and zstd. What is not one plain,
//! complete stream that decodes to exactly the expected length goes to the CPU's decoder, which either copes with it or has the
//! precise error. Nothing is decoded here.
//!
//! The checksum of a stream, where there is one, is returned with it and must be compared after decoding. LZ4, Snappy and Blosc have
//! none: there, changed bytes can give other values, on any decoder.
//!
//! nvCOMP, which decodes zstd on request only, trusts its input instead (measured with 5.3 on an H200): a frame cut short costs the
//! process its CUDA context, so [`inspect`] walks blocks and tables before it sees a frame. **Changed bits in the sequences of a block,
//! which the walk does not decode, can still make it access memory out of bounds.**

mod split;

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod tests_blosc;

pub use split::{ChunkStream, SplitChunk, StreamCodec, ZstdDecoder, max_decoded, split};

use super::stream::{Checksum, Stream};
use super::{Compression, deflate, lz4, zstd};

/// Where a stream is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The GPU may be given `compressed[start..start + len]`: for [`Compression::Zstd`] all of it, for
    /// [`Compression::Gzip`] and [`Compression::Zlib`] the raw deflate stream, for [`Compression::Lz4`] the block.
    Gpu {
        /// First byte.
        start: usize,
        /// Bytes.
        len: usize,
        /// To be compared after decoding.
        checksum: Option<Checksum>,
    },
    /// The CPU, and why, as the end of a sentence.
    Cpu(&'static str),
}

/// Whether the GPU may decode `compressed`, which has to give `decoded_len` bytes.
///
/// Takes time proportional to the number of blocks (zstd, deflate) or of sequences (LZ4), not of bytes.
pub fn inspect(codec: Compression, compressed: &[u8], decoded_len: usize) -> Verdict {
    // The decoders count in 32 bits.
    if decoded_len == 0 || decoded_len > i32::MAX as usize || compressed.len() > i32::MAX as usize {
        return Verdict::Cpu("it is empty, or larger than the GPU's decoder takes");
    }
    let result = match codec {
        Compression::Zstd => zstd::streams::inspect(compressed, decoded_len),
        Compression::Gzip => deflate::streams::inspect_gzip(compressed, decoded_len),
        Compression::Zlib => deflate::streams::inspect_zlib(compressed, decoded_len),
        Compression::Lz4 => lz4::streams::inspect(compressed, decoded_len),
        Compression::Blosc(..) => Err("a Blosc chunk isn't one stream"),
    };
    match result {
        Ok(Stream { start, len, checksum }) => Verdict::Gpu { start, len, checksum },
        Err(reason) => Verdict::Cpu(reason),
    }
}
