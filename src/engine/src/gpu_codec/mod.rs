//! Which compressed chunks a GPU decoder may be given.
//!
//! nvCOMP, which decodes zstd and LZ4, trusts its input: a stream cut short can cost the process its CUDA context, and
//! corrupt bytes can decode to wrong values with a status of success. So each stream's structure is walked here, on
//! the host, before the GPU sees it. What is not one plain, complete, well-formed stream that decodes to exactly the expected length goes to the
//! CPU's decoder, which either copes with it or has the precise error. Nothing is decoded here but tables.
//!
//! What can't be seen without decoding: bits of entropy-coded data that were changed. The format's checksum, where
//! there is one, is returned with the verdict and must be compared after decoding. What such damage does on the GPU
//! (measured with nvCOMP 5.3 on an H200):
//! - LZ4: every offset and length is verified here, so that only the values can be wrong. The format has no checksum.
//! - Deflate: nvCOMP isn't used, since it writes beyond its outputs; `dz_inflate` stays within them and says so.
//! - Zstd: changed bits in the sequences of a compressed block, which the walk does not decode, **can still make nvCOMP
//!   access memory out of bounds and cost the process its CUDA context**. Frames that are cut, or damaged in a
//!   header, a length or a table, never get there. Who can't trust a store's bytes decodes zstd on the CPU.

#![forbid(unsafe_code)]

mod bits;
pub mod blosc;
mod deflate;
mod entropy;
mod lz4;
mod open;
mod zstd;

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod tests_blosc;

pub use open::{Opened, Part, StreamCodec, ZstdDecoder, open};

use crate::codec::Compression;

/// A checksum of the decoded bytes that the stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Of gzip.
    Crc32(u32),
    /// Of zlib.
    Adler32(u32),
    /// The low half of XXH64 with seed 0, of zstd.
    Xxh64Low(u32),
}

/// Who decodes.
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
    // nvCOMP's own limit is 2^31 - 1 or more for each of these codecs.
    if decoded_len == 0 || decoded_len > i32::MAX as usize || compressed.len() > i32::MAX as usize {
        return Verdict::Cpu("it is empty, or larger than the GPU's decoder takes");
    }
    let result = match codec {
        Compression::Zstd => zstd::inspect(compressed, decoded_len),
        Compression::Gzip => deflate::inspect_gzip(compressed, decoded_len),
        Compression::Zlib => deflate::inspect_zlib(compressed, decoded_len),
        Compression::Lz4 => lz4::inspect(compressed, decoded_len),
        Compression::Blosc(_) => Err("a Blosc chunk isn't one stream"),
    };
    match result {
        Ok(Stream { start, len, checksum }) => Verdict::Gpu { start, len, checksum },
        Err(reason) => Verdict::Cpu(reason),
    }
}

/// What a codec's own walk returns: the part for the GPU, or the reason for the CPU.
type Walk<T> = Result<T, &'static str>;

/// See [`Verdict::Gpu`].
#[derive(Clone, Copy, Debug)]
struct Stream {
    start: usize,
    len: usize,
    checksum: Option<Checksum>,
}

/// `N` bytes at `at`, if they are there.
fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}
