//! Decodes batches of compressed streams on the GPU, each codec by its decoder.
//!
//! Deflate (inside gzip and zlib), LZ4 and Snappy are decoded by this project's kernels, which stay within their
//! buffers whatever the bytes are. So are zstd frames, by [`Module::launch_zstd`]. On request nvCOMP decodes zstd,
//! which relies on the checks of [`crate::codec::streams`]. A stream that fails should be decoded again on the CPU,
//! which has the precise error.

use crate::codec::streams::StreamCodec;
use crate::error::Result;
use crate::gpu::driver::{DecodeArrays, Module, Stream, UNWRITTEN_STATUS};
use crate::gpu::nvcomp;

/// Whether streams of this kind are decoded without a workspace, and without nvCOMP.
pub const fn needs_no_workspace(codec: StreamCodec) -> bool {
    !matches!(codec, StreamCodec::Zstd)
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
        other => Some(nvcomp::status_text(other)),
    }
}

/// Enqueues the decoding of `n` streams, the longest of which decodes to `max_stream_bytes`. Statuses and sizes are
/// written for every stream: [`POISON`](crate::gpu::driver::POISON) where the decoder writes nothing.
///
/// # Errors
/// If nvCOMP is needed and isn't there, or the call is refused. Whether each stream was decoded is for the caller to
/// see, in `statuses` and `out_sizes`.
///
/// # Safety
/// The arrays have `n` entries of device memory whose contents are addresses and sizes of device memory, and
/// `temp_ptr`, a multiple of 8, has `temp_len` bytes, at least [`temp_bytes`] for these streams and the sum of their
/// decoded bytes; all stay valid until the stream has passed this point. The compressed streams are what
/// [`crate::codec::streams::inspect`] let pass.
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
