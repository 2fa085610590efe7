//! Splits a compressed chunk into streams for the GPU's decoders ([`mod@split`]).
//!
//! This project's kernels are safe for damaged data: they stay within their buffers whatever the bytes are, and end
//! with a status. So only structure is read here: Blosc's header and table of blocks, the frames and headers of gzip,
//! zlib and zstd. Nothing is decoded. A chunk that isn't one plain, complete stream of exactly the expected decoded
//! length goes to the CPU, which decodes it or gives the precise error.
//!
//! If a stream has a checksum, it is returned with the stream and must be compared after decoding. LZ4, Snappy and
//! Blosc have no checksums: there, changed bytes can give wrong values, with any decoder.

mod split;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_blosc;

pub use split::{ChunkStream, SplitChunk, StreamCodec, max_decoded, split};

use super::stream::{Checksum, Stream};
use super::{Compression, deflate, lz4, zstd};

/// The device that decodes a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The GPU may decode `compressed[start..start + len]`. For [`Compression::Zstd`] that is all of it, for
    /// [`Compression::Gzip`] and [`Compression::Zlib`] the raw deflate stream, for [`Compression::Lz4`] the block.
    Gpu {
        /// Offset of the stream's first byte.
        start: usize,
        /// Length of the stream in bytes.
        len: usize,
        /// The stream's checksum of the decoded bytes, to compare after decoding. `None` if it has none.
        checksum: Option<Checksum>,
    },
    /// The CPU has to decode the chunk. The text is the reason, as the end of a sentence.
    Cpu(&'static str),
}

/// Checks whether the GPU may decode `compressed`, which must decode to `decoded_len` bytes.
///
/// The time is proportional to the number of blocks (zstd, deflate), not of bytes. For LZ4 it is constant.
pub fn inspect(codec: Compression, compressed: &[u8], decoded_len: usize) -> Verdict {
    // The decoders count in 32 bits.
    if decoded_len == 0 || decoded_len > i32::MAX as usize || compressed.len() > i32::MAX as usize {
        return Verdict::Cpu("it is empty, or larger than the GPU's decoder takes");
    }
    let result = match codec {
        Compression::Zstd => zstd::plan(compressed, decoded_len).map(|plan| Stream {
            start: 0,
            len: compressed.len(),
            checksum: plan.checksum.map(Checksum::Xxh64Low),
        }),
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
