//! Each call of [`crate::sys`] as a method of [`Library`] that returns a [`Result`]. Thin: the device arrays stay raw
//! addresses, and whether they are right is the caller's promise.

use crate::library::Library;
use crate::sys::{
    cudaStream_t, nvcompBatchedZstdDecompressOpts_t as ZstdOpts, nvcompDecompressBackend_t as Backend, nvcompStatus_t,
};
use std::ffi::c_void;
use std::fmt;

/// The defaults but for the backend: kernels on the multiprocessors, which need no special memory and run on every device.
const ZSTD: ZstdOpts = ZstdOpts { backend: Backend::NVCOMP_DECOMPRESS_BACKEND_CUDA, reserved: [0; 60] };

/// A status other than success, of a call. Compare with the constants of [`nvcompStatus_t`], print for
/// its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub nvcompStatus_t);

impl Status {
    /// Name and meaning.
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

/// Device addresses of the arrays of one batch; each has an entry per stream.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Streams.
    pub len: usize,
    /// Where each compressed stream lies (addresses, 64 bits).
    pub compressed: u64,
    /// Bytes of each (64 bits).
    pub compressed_bytes: u64,
    /// Room for each decoded stream (64 bits).
    pub capacity: u64,
    /// Out: bytes that each decoded to (64 bits). May be left unwritten: write a poison value beforehand.
    pub decoded_bytes: u64,
    /// Where each decoded stream goes (addresses, 64 bits).
    pub decoded: u64,
    /// Out: the status of each stream (32 bits). May be left unwritten likewise.
    pub statuses: u64,
}

impl Library {
    /// Bytes of workspace for `streams` zstd frames, none of which decodes to more than `max_stream` bytes and all
    /// together to no more than `max_total`. A formula: touches no device.
    ///
    /// # Errors
    /// The library's status, e.g. for a frame larger than it supports.
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
    /// The status of the call; each frame's own status and size come in the batch's arrays.
    ///
    /// # Safety
    /// The addresses in `batch` are of live device arrays with `batch.len` entries, whose own addresses and sizes are of
    /// live device memory, in the context that is current; `temp` has `temp_bytes` bytes, at least
    /// [`Self::zstd_temp_size`]; `stream` is of that context. All stay so until the stream has passed this point. The
    /// frames are well-formed: the library may read or write out of bounds for those that are not.
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
