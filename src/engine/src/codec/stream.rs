//! One compressed stream, as the walks of the codecs find it in a chunk.

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

/// What a codec's own walk returns: the part for the GPU, or the reason for the CPU.
pub(super) type Walk<T> = Result<T, &'static str>;

/// See [`Verdict::Gpu`].
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
