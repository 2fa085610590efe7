//! Batches of compressed streams, decoded by nvCOMP's kernels.
//!
//! What is known of the library's behaviour and decides how it is used here: a stream that isn't well-formed can make
//! it access memory out of bounds, which costs the process its context, so that only what [`crate::gpu_codec`] let
//! pass may come here; statuses and sizes are left unwritten in some cases, so that [`decode_async`] poisons both
//! beforehand; and a status of success doesn't mean that the values are right, so that both arrays *and* the
//! format's checksum are to be compared afterwards.

use super::{Stream, memset_async};
use crate::error::{Error, Result};
use nvcomp_sys::{Status, result::Batch};

/// A codec that nvCOMP decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuCodec {
    /// Zstandard frames.
    Zstd,
    /// Gzip members.
    Gzip,
    /// Raw deflate streams: the inside of zlib.
    Deflate,
    /// LZ4 blocks, without a frame or a size before them.
    Lz4,
}

impl GpuCodec {
    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Lz4 => "lz4",
        }
    }

    /// The multiple of bytes at which a compressed stream has to begin, on the device.
    pub const fn input_alignment(self) -> usize {
        match self {
            Self::Deflate => 4,
            Self::Zstd | Self::Gzip | Self::Lz4 => 1,
        }
    }
}

/// What a status array holds where the library wrote nothing (in each byte): no status of the library.
pub const POISON: u8 = 0xa5;

/// The poison as a status.
pub const UNWRITTEN_STATUS: i32 = i32::from_ne_bytes([POISON; 4]);

/// Device addresses of the arrays of one batch; each has an entry per stream, 64 bits wide but for the statuses.
#[derive(Clone, Copy, Debug)]
pub struct DecodeArrays {
    /// Where each compressed stream lies.
    pub in_ptrs: u64,
    /// Bytes of each.
    pub in_sizes: u64,
    /// Room for each decoded stream.
    pub out_caps: u64,
    /// Out: bytes that each decoded to.
    pub out_sizes: u64,
    /// Out: a status of 32 bits for each; 0 is success, [`UNWRITTEN_STATUS`] where the library wrote none.
    pub statuses: u64,
    /// Where each decoded stream goes.
    pub out_ptrs: u64,
}

/// The library, or the error that says what to install.
fn library() -> Result<&'static nvcomp_sys::Library> {
    nvcomp_sys::load().map_err(|e| Error::runtime(e.to_string()))
}

/// Whether nvCOMP can be loaded.
///
/// # Errors
/// What was tried, and what to install.
pub fn available() -> Result<()> {
    library().map(|_| ())
}

/// Bytes of workspace that [`decode_async`] needs for `max_streams` streams, none of which decodes to more than
/// `max_stream_bytes`, all together to no more than `max_total_bytes`. Touches no device.
///
/// # Errors
/// If the library isn't there, or doesn't support streams as large.
pub fn temp_bytes(
    codec: GpuCodec,
    max_streams: usize,
    max_stream_bytes: usize,
    max_total_bytes: usize,
) -> Result<usize> {
    let library = library()?;
    let (n, stream, total) = (max_streams, max_stream_bytes, max_total_bytes);
    match codec {
        GpuCodec::Zstd => library.zstd.temp_size(n, stream, total),
        GpuCodec::Gzip => library.gzip.temp_size(n, stream, total),
        GpuCodec::Deflate => library.deflate.temp_size(n, stream, total),
        GpuCodec::Lz4 => library.lz4.temp_size(n, stream, total),
    }
    .map_err(|status| {
        Error::runtime(format!(
            "nvCOMP's workspace for {n} {} streams of at most {stream} bytes: {status}",
            codec.name()
        ))
    })
}

/// The sentence for the status of one stream, or `None` if it says success.
pub fn status_message(status: i32) -> Option<String> {
    match status {
        0 => None,
        UNWRITTEN_STATUS => Some("nvCOMP did not decode it and gave no reason".to_owned()),
        other => Some(Status(other).to_string()),
    }
}

/// Enqueues the decoding of `n` streams, the longest of which decodes to `max_stream_bytes`. Before it, statuses
/// and sizes are filled with [`POISON`], since the library leaves them unwritten for some input.
///
/// # Errors
/// If the library isn't there or refuses the call. Whether each stream was decoded is for the caller to see, in
/// `statuses` and `out_sizes`.
///
/// # Safety
/// The arrays have `n` entries of device memory whose contents are addresses and sizes of device memory, and
/// `temp_ptr`, a multiple of 8, has `temp_len` bytes, at least [`temp_bytes`] for these streams and the sum of their
/// decoded bytes; all stay valid until the stream has passed this point.
/// The compressed streams have passed [`crate::gpu_codec::inspect`] and begin at multiples of
/// [`GpuCodec::input_alignment`].
pub unsafe fn decode_async(
    stream: &Stream,
    codec: GpuCodec,
    arrays: &DecodeArrays,
    n: usize,
    max_stream_bytes: usize,
    temp_ptr: u64,
    temp_len: usize,
) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    // The sum of the sizes lies on the device; what one stream alone would need is a bound that is known here.
    let needed = temp_bytes(codec, n, max_stream_bytes, max_stream_bytes)?;
    if temp_len < needed {
        return Err(Error::runtime(format!(
            "decoding {n} {} streams needs at least {needed} bytes of workspace, found {temp_len}; raise device_memory_limit",
            codec.name()
        )));
    }
    let library = library()?;
    let batch = Batch {
        len: n,
        compressed: arrays.in_ptrs,
        compressed_bytes: arrays.in_sizes,
        capacity: arrays.out_caps,
        decoded_bytes: arrays.out_sizes,
        decoded: arrays.out_ptrs,
        statuses: arrays.statuses,
    };
    let raw = stream.raw() as nvcomp_sys::sys::CudaStream;
    // SAFETY: both arrays have n entries, says the caller.
    unsafe {
        memset_async(stream, arrays.statuses, POISON, n * size_of::<i32>())?;
        memset_async(stream, arrays.out_sizes, POISON, n * size_of::<u64>())?;
    }
    // SAFETY: the caller vouches for arrays, streams and workspace, whose size was checked; `memset_async` made the
    // stream's context current.
    let result = unsafe {
        match codec {
            GpuCodec::Zstd => library.zstd.decompress(&batch, temp_ptr, temp_len, raw),
            GpuCodec::Gzip => library.gzip.decompress(&batch, temp_ptr, temp_len, raw),
            GpuCodec::Deflate => library.deflate.decompress(&batch, temp_ptr, temp_len, raw),
            GpuCodec::Lz4 => library.lz4.decompress(&batch, temp_ptr, temp_len, raw),
        }
    };
    result.map_err(|status| Error::runtime(format!("nvCOMP refused to decode {n} {} streams: {status}", codec.name())))
}
