//! The arrays in device memory that describe streams to a decoder, and take its results.

/// Device addresses of the arrays of one batch of streams. Each array has an entry for each stream. Entries have 64
/// bits, except statuses and kinds, which have 32.
#[derive(Clone, Copy, Debug)]
pub struct DecodeArrays {
    /// The address of each compressed stream, at any alignment.
    pub in_ptrs: u64,
    /// The bytes of each compressed stream.
    pub in_sizes: u64,
    /// The room for each decoded stream, in bytes.
    pub out_caps: u64,
    /// Out: the bytes that each stream decoded to.
    pub out_sizes: u64,
    /// Out: the status of each stream. 0: it was decoded.
    pub statuses: u64,
    /// The address that each decoded stream goes to.
    pub out_ptrs: u64,
    /// The kind of each stream, for decoders that take several kinds.
    pub kinds: u64,
}
