//! One compressed stream in a chunk, as the walk over a codec's headers finds it.

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

/// The result of a walk: a value, or why the CPU has to decode the chunk, as the end of a sentence.
pub(super) type Walk<T> = Result<T, &'static str>;

/// A stream for the GPU: its first byte in the chunk, its bytes, and the checksum to be compared after decoding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub start: usize,
    pub len: usize,
    pub checksum: Option<Checksum>,
}

/// `N` bytes at `at`, if they are there.
pub(super) fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}
