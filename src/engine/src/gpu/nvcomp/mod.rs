//! Decodes batches of zstd frames by nvCOMP.
//!
//! Findings about the library that decide how it is used:
//! - A malformed stream can make it read out of bounds, which costs the process its CUDA context. So it gets only
//!   streams that [`crate::codec::streams`] accepted.
//! - Its gzip and deflate decoders write beyond their output when the data is damaged, and no cheap check shows such
//!   damage. So deflate has its own decoder (`dz_inflate_*`).
//! - It leaves statuses and sizes unwritten in some cases. So both are set to a poison value before.
//! - A successful status doesn't mean that the values are right. So sizes and the format's checksum are compared.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::gpu::driver::{DecodeArrays, POISON, Stream, memset_async};
use nvcomp_sys::result::Batch;

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

/// Bytes of workspace for `n` streams, none of which decodes to more than `stream` bytes, all together to no more than
/// `total`. Touches no device.
///
/// # Errors
/// If the library isn't there, or doesn't support streams as large.
pub(in crate::gpu) fn temp_bytes(n: usize, stream: usize, total: usize) -> Result<usize> {
    let library = library()?;
    library.zstd_temp_size(n, stream, total).map_err(|status| {
        Error::runtime(format!("nvCOMP's workspace for {n} zstd streams of at most {stream} bytes: {status}"))
    })
}

/// Enqueues the decoding of `n` streams, the longest of which decodes to `longest` bytes.
///
/// # Errors
/// If the library isn't there or refuses the call, or the workspace is too small for one stream.
///
/// # Safety
/// As for [`crate::gpu::decoding::decode_async`].
pub(in crate::gpu) unsafe fn decode_async(
    stream: &Stream,
    arrays: &DecodeArrays,
    n: usize,
    longest: usize,
    temp_ptr: u64,
    temp_len: usize,
) -> Result<()> {
    // The sum of the sizes lies on the device; what one stream alone would need is a bound that is known here.
    let needed = temp_bytes(n, longest, longest)?;
    if temp_len < needed {
        return Err(Error::runtime(format!(
            "decoding {n} zstd streams needs at least {needed} bytes of workspace, found {temp_len}; raise \
             device_memory_limit"
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
    let raw = stream.raw() as nvcomp_sys::sys::cudaStream_t;
    // SAFETY: both arrays have n entries, says the caller.
    unsafe {
        memset_async(stream, arrays.statuses, POISON, n * size_of::<i32>())?;
        memset_async(stream, arrays.out_sizes, POISON, n * size_of::<u64>())?;
    }
    // SAFETY: the caller vouches for arrays, streams and workspace; `memset_async` made the stream's context current.
    let result = unsafe { library.zstd_decompress(&batch, temp_ptr, temp_len, raw) };
    result.map_err(|status| Error::runtime(format!("nvCOMP refused to decode {n} zstd streams: {status}")))
}

/// The sentence for a status that a decoder gave one stream. This project's kernels have nvCOMP's numbers.
pub(in crate::gpu) fn status_text(status: i32) -> String {
    nvcomp_sys::Status::of_stream(status).to_string()
}
