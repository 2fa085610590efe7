//! Wraps each call of [`crate::sys`] in a method of [`Library`] that returns a [`Result`]. Device arrays remain raw
//! addresses; the caller promises that they are right.

use crate::library::Library;
use crate::sys::{
    cudaStream_t, nvcompBatchedZstdDecompressOpts_t as ZstdOpts, nvcompDecompressBackend_t as Backend, nvcompStatus_t,
};
use std::ffi::c_void;
use std::fmt;

/// Default options except the backend: kernels on the multiprocessors need no special memory and run on every device.
const ZSTD: ZstdOpts = ZstdOpts { backend: Backend::NVCOMP_DECOMPRESS_BACKEND_CUDA, reserved: [0; 60] };

/// The status of a failed call. Compare it with the constants of [`nvcompStatus_t`], or print it for its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub nvcompStatus_t);

impl Status {
    /// Returns name and meaning.
    fn describe(self) -> (&'static str, &'static str) {
        match self.0 {
            nvcompStatus_t::nvcompSuccess => ("nvcompSuccess", "no error"),
            nvcompStatus_t::nvcompErrorInvalidValue => ("nvcompErrorInvalidValue", "an argument is invalid"),
            nvcompStatus_t::nvcompErrorNotSupported => {
                ("nvcompErrorNotSupported", "the device or the data is not supported")
            }
            nvcompStatus_t::nvcompErrorCannotDecompress => {
                ("nvcompErrorCannotDecompress", "the compressed data is corrupt")
            }
            nvcompStatus_t::nvcompErrorBadChecksum => ("nvcompErrorBadChecksum", "the checksum does not match"),
            nvcompStatus_t::nvcompErrorOutputBufferTooSmall => {
                ("nvcompErrorOutputBufferTooSmall", "the data decodes to more than was expected")
            }
            nvcompStatus_t::nvcompErrorWrongHeaderLength => {
                ("nvcompErrorWrongHeaderLength", "a header has the wrong length")
            }
            nvcompStatus_t::nvcompErrorAlignment => ("nvcompErrorAlignment", "a buffer is not aligned as required"),
            nvcompStatus_t::nvcompErrorChunkSizeTooLarge => ("nvcompErrorChunkSizeTooLarge", "a stream is too large"),
            nvcompStatus_t::nvcompErrorWrongInputLength => {
                ("nvcompErrorWrongInputLength", "the compressed data has the wrong length")
            }
            nvcompStatus_t::nvcompErrorBatchSizeTooLarge => {
                ("nvcompErrorBatchSizeTooLarge", "too many streams in one call")
            }
            nvcompStatus_t::nvcompErrorCudaError => ("nvcompErrorCudaError", "a CUDA call failed"),
            nvcompStatus_t::nvcompErrorInternal => ("nvcompErrorInternal", "an internal error"),
            _ => ("nvcompStatus_t", "see nvCOMP's documentation"),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, meaning) = self.describe();
        write!(f, "{name} ({}): {meaning}", self.0.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Status {}

fn check(status: nvcompStatus_t) -> Result<(), Status> {
    if status == nvcompStatus_t::nvcompSuccess { Ok(()) } else { Err(Status(status)) }
}

/// Device addresses of the arrays of one batch. Each array has one entry per stream.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Number of streams.
    pub len: usize,
    /// Array of the compressed streams' addresses (64 bits each).
    pub compressed: u64,
    /// Array of the compressed streams' bytes (64 bits each).
    pub compressed_bytes: u64,
    /// Array of the room for each decoded stream in bytes (64 bits each).
    pub capacity: u64,
    /// Output: array of the bytes that each stream decoded to (64 bits each). The library may leave entries unwritten:
    /// fill the array with an impossible value before.
    pub decoded_bytes: u64,
    /// Array of the decoded streams' addresses (64 bits each).
    pub decoded: u64,
    /// Output: array of the streams' statuses (32 bits each). The library may leave entries unwritten: fill the array
    /// before.
    pub statuses: u64,
}

impl Library {
    /// Returns the bytes of workspace for `streams` zstd frames. Each decodes to at most `max_stream` bytes, all
    /// together to at most `max_total`. This is only a formula; no device is used.
    ///
    /// # Errors
    /// The library's status, e.g. if it doesn't support frames as large as `max_stream`.
    pub fn zstd_temp_size(&self, streams: usize, max_stream: usize, max_total: usize) -> Result<usize, Status> {
        let mut bytes = 0;
        // SAFETY: writes one usize.
        check(unsafe {
            self.functions.nvcompBatchedZstdDecompressGetTempSizeAsync(streams, max_stream, ZSTD, &mut bytes, max_total)
        })?;
        Ok(bytes)
    }

    /// Enqueues the decoding of a batch of zstd frames.
    ///
    /// # Errors
    /// The status of the call. The status and size of each frame are written to the batch's arrays.
    ///
    /// # Safety
    /// - The addresses in `batch` are of device arrays with `batch.len` entries. The addresses and sizes in these
    ///   arrays are of device memory. `temp` has `temp_bytes` bytes, at least [`Self::zstd_temp_size`].
    /// - All this memory, and `stream`, belong to the current context, and stay valid until the stream has passed this
    ///   point.
    /// - The frames are well-formed: the library may read or write out of bounds for damaged frames.
    pub unsafe fn zstd_decompress(
        &self,
        batch: &Batch,
        temp: u64,
        temp_bytes: usize,
        stream: cudaStream_t,
    ) -> Result<(), Status> {
        // SAFETY: the caller vouches for the addresses.
        check(unsafe {
            self.functions.nvcompBatchedZstdDecompressAsync(
                batch.compressed as *const *const c_void,
                batch.compressed_bytes as *const usize,
                batch.capacity as *const usize,
                batch.decoded_bytes as *mut usize,
                batch.len,
                temp as *mut c_void,
                temp_bytes,
                batch.decoded as *const *mut c_void,
                ZSTD,
                batch.statuses as *mut nvcompStatus_t,
                stream,
            )
        })
    }
}
