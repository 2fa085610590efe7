//! One compressed stream in a chunk, found by reading a codec's headers.

/// A checksum of the decoded bytes, stored in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The CRC-32 of gzip.
    Crc32(u32),
    /// The Adler-32 of zlib.
    Adler32(u32),
    /// zstd's checksum: the low 32 bits of XXH64 with seed 0.
    Xxh64Low(u32),
}

/// The result of reading headers: a value, or the reason why the CPU has to decode the chunk (the end of a sentence).
pub(super) type HeaderResult<T> = Result<T, &'static str>;

/// A stream for the GPU: its offset and length in the chunk, in bytes, and the checksum to verify after decoding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub start: usize,
    pub len: usize,
    pub checksum: Option<Checksum>,
}

/// Returns the `N` bytes at `at`, or `None` if `data` ends before.
pub(super) fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}
