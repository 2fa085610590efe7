//! Batches of compressed streams, decoded on the GPU by whichever decoder holds for the codec.
//!
//! Deflate (the inside of gzip and zlib), LZ4 and Snappy are decoded by this project's kernels, which stay within their
//! buffers whatever the bytes are. So are zstd frames, by [`Module::launch_zstd`]; on request nvCOMP decodes them, which relies on what [`crate::gpu_codec`] verified.
//! A stream that fails here should be decoded again on the CPU, which has the last word and the precise error.

use super::{Module, Stream, nvcomp};
use crate::error::Result;
use crate::gpu_codec::StreamCodec;

/// Whether streams of this kind are decoded without a workspace, and without nvCOMP.
pub const fn needs_no_workspace(codec: StreamCodec) -> bool {
    !matches!(codec, StreamCodec::Zstd)
}

/// What status and size arrays hold where nothing was written (in each byte): no status of any decoder.
pub const POISON: u8 = 0xa5;

/// The poison as a status.
pub const UNWRITTEN_STATUS: i32 = i32::from_ne_bytes([POISON; 4]);

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
    /// Out: a status of 32 bits for each; 0 is success, [`UNWRITTEN_STATUS`] where none was written.
    pub statuses: u64,
    /// Where each decoded stream goes.
    pub out_ptrs: u64,
    /// What kind of stream each is, 32 bits, for decoders that take several.
    pub kinds: u64,
}

/// Bytes of workspace that [`decode_async`] needs for `max_streams` streams, none of which decodes to more than
/// `max_stream_bytes`, all together to no more than `max_total_bytes`. Touches no device.
///
/// # Errors
/// If nvCOMP is needed and isn't there, or doesn't support streams as large.
pub fn temp_bytes(
    codec: StreamCodec,
    max_streams: usize,
    max_stream_bytes: usize,
    max_total_bytes: usize,
) -> Result<usize> {
    match codec {
        StreamCodec::Zstd => nvcomp::temp_bytes(max_streams, max_stream_bytes, max_total_bytes),
        StreamCodec::Deflate | StreamCodec::Lz4 | StreamCodec::Snappy => Ok(0),
    }
}

/// The sentence for the status of one stream, or `None` if it says success.
pub fn status_message(status: i32) -> Option<String> {
    match status {
        0 => None,
        UNWRITTEN_STATUS => Some("the GPU's decoder did not decode it and gave no reason".to_owned()),
        other => Some(nvcomp_sys::Status::of_stream(other).to_string()),
    }
}

/// Enqueues the decoding of `n` streams, the longest of which decodes to `max_stream_bytes`. Statuses and sizes are
/// written for every stream: [`POISON`] where the decoder writes nothing.
///
/// # Errors
/// If nvCOMP is needed and isn't there, or the call is refused. Whether each stream was decoded is for the caller to
/// see, in `statuses` and `out_sizes`.
///
/// # Safety
/// The arrays have `n` entries of device memory whose contents are addresses and sizes of device memory, and
/// `temp_ptr`, a multiple of 8, has `temp_len` bytes, at least [`temp_bytes`] for these streams and the sum of their
/// decoded bytes; all stay valid until the stream has passed this point. The compressed streams are what
/// [`crate::gpu_codec::inspect`] let pass.
#[allow(clippy::too_many_arguments, reason = "the arguments of nvCOMP's own call")]
pub unsafe fn decode_async(
    module: &Module,
    stream: &Stream,
    codec: StreamCodec,
    arrays: &DecodeArrays,
    n: usize,
    max_stream_bytes: usize,
    temp_ptr: u64,
    temp_len: usize,
) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    // SAFETY: the caller vouches for all of it.
    unsafe {
        match codec {
            StreamCodec::Zstd => nvcomp::decode_async(stream, arrays, n, max_stream_bytes, temp_ptr, temp_len),
            StreamCodec::Deflate => module.launch_inflate(stream, arrays, n as u32),
            StreamCodec::Lz4 | StreamCodec::Snappy => module.launch_lz4(stream, arrays, n as u32),
        }
    }
}
