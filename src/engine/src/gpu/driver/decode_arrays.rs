//! The arrays in device memory through which decoders are told of their streams, and answer.

/// What status and size arrays hold where nothing was written (in each byte): no status of any decoder.
pub const POISON: u8 = 0xa5;

/// Device addresses of the arrays of one batch; each has an entry per stream, 64 bits wide but for the statuses.
#[derive(Clone, Copy, Debug)]
pub struct DecodeArrays {
    /// Where each compressed stream lies, at any alignment.
    pub in_ptrs: u64,
    /// Bytes of each.
    pub in_sizes: u64,
    /// Room for each decoded stream.
    pub out_caps: u64,
    /// Out: bytes that each decoded to.
    pub out_sizes: u64,
    /// Out: a status of 32 bits for each; 0 is success, [`POISON`] in each byte where none was written.
    pub statuses: u64,
    /// Where each decoded stream goes.
    pub out_ptrs: u64,
    /// What kind of stream each is, 32 bits, for decoders that take several.
    pub kinds: u64,
}
