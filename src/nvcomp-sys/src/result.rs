//! Each call of [`crate::sys`] as a function that returns a [`Result`]. Thin: the device arrays stay raw addresses, and
//! whether they are right is the caller's promise.

use crate::sys::{CudaStream, Functions, Opts, RawStatus};
use std::ffi::c_void;
use std::fmt;

/// A status other than success, of a call or of one stream. Compare with the constants, print for its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub RawStatus);

impl Status {
    /// Name and meaning.
    fn describe(self) -> (&'static str, &'static str) {
        match self.0 {
            0 => ("nvcompSuccess", "no error"),
            10 => ("nvcompErrorInvalidValue", "an argument is invalid"),
            11 => ("nvcompErrorNotSupported", "the device or the data is not supported"),
            12 => ("nvcompErrorCannotDecompress", "the compressed data is corrupt"),
            13 => ("nvcompErrorBadChecksum", "the checksum does not match"),
            14 => ("nvcompErrorCannotVerifyChecksums", "the checksum could not be verified"),
            15 => ("nvcompErrorOutputBufferTooSmall", "the data decodes to more than was expected"),
            16 => ("nvcompErrorWrongHeaderLength", "a header has the wrong length"),
            17 => ("nvcompErrorAlignment", "a buffer is not aligned as required"),
            18 => ("nvcompErrorChunkSizeTooLarge", "a stream is too large"),
            19 => ("nvcompErrorCannotCompress", "the data cannot be compressed"),
            20 => ("nvcompErrorWrongInputLength", "the compressed data has the wrong length"),
            21 => ("nvcompErrorBatchSizeTooLarge", "too many streams in one call"),
            22 => ("nvcompErrorSubChunkCountTooLarge", "a stream has too many parts"),
            23 => ("nvcompErrorSubChunkCountTooSmall", "a stream has too few parts"),
            24 => ("nvcompErrorOutputBufferAlignmentTooSmall", "an output is not aligned as required"),
            1000 => ("nvcompErrorCudaError", "a CUDA call failed"),
            10000 => ("nvcompErrorInternal", "an internal error"),
            _ => ("nvcompStatus_t", "a status that this version does not know"),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, meaning) = self.describe();
        write!(f, "{name} ({}): {meaning}", self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Status {}

fn check(status: RawStatus) -> Result<(), Status> {
    match status {
        0 => Ok(()),
        other => Err(Status(other)),
    }
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

impl<O: Opts> Functions<O> {
    /// Bytes of workspace for a batch of `streams`, none of which decodes to more than `max_stream` bytes and all
    /// together to no more than `max_total`. A formula: touches no device.
    ///
    /// # Errors
    /// What the library says, e.g. for a stream larger than it supports.
    pub fn temp_size(&self, streams: usize, max_stream: usize, max_total: usize) -> Result<usize, Status> {
        let mut bytes = 0;
        // SAFETY: the function has this signature (the library is of the version that `sys` describes), and writes
        // one usize.
        check(unsafe { (self.get_temp_size)(streams, max_stream, O::CUDA, &mut bytes, max_total) })?;
        Ok(bytes)
    }

    /// Enqueues the decoding of a batch.
    ///
    /// # Errors
    /// What the library says of the call; each stream's own status and size come in the batch's arrays.
    ///
    /// # Safety
    /// The addresses in `batch` are of live device arrays with `batch.len` entries, whose own addresses and sizes are of
    /// live device memory, in the context that is current; `temp` has `temp_bytes` bytes, at least
    /// [`Self::temp_size`]; `stream` is of that context. All stay so until the stream has passed this point. The
    /// compressed streams are well-formed: the library may read or write out of bounds for those that are not.
    pub unsafe fn decompress(
        &self,
        batch: &Batch,
        temp: u64,
        temp_bytes: usize,
        stream: CudaStream,
    ) -> Result<(), Status> {
        // SAFETY: the signature is the library's; the caller vouches for the addresses.
        check(unsafe {
            (self.decompress)(
                batch.compressed as *const *const c_void,
                batch.compressed_bytes as *const usize,
                batch.capacity as *const usize,
                batch.decoded_bytes as *mut usize,
                batch.len,
                temp as *mut c_void,
                temp_bytes,
                batch.decoded as *const *mut c_void,
                O::CUDA,
                batch.statuses as *mut RawStatus,
                stream,
            )
        })
    }

    /// Enqueues the reading of the decoded sizes from the streams' headers into `batch.decoded_bytes`.
    ///
    /// # Errors
    /// What the library says of the call.
    ///
    /// # Safety
    /// As for [`Self::decompress`], for `compressed`, `compressed_bytes` and `decoded_bytes`.
    pub unsafe fn decompressed_sizes(&self, batch: &Batch, stream: CudaStream) -> Result<(), Status> {
        // SAFETY: the signature is the library's; the caller vouches for the addresses.
        check(unsafe {
            (self.get_decompress_size)(
                batch.compressed as *const *const c_void,
                batch.compressed_bytes as *const usize,
                batch.decoded_bytes as *mut usize,
                batch.len,
                stream,
            )
        })
    }
}
