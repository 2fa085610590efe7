//! Decodes batches of zstd frames by nvCOMP, on request only. All that is for nvCOMP alone is in this folder, except the
//! bindings (`nvcomp-sys`).
//!
//! How it is used follows from these findings (version 5.3, on an H200):
//! - A malformed stream, such as a truncated frame, can make it read out of bounds, which costs the process its CUDA
//!   context. So it gets only frames that [`frames`] accepted.
//! - Its gzip and deflate decoders write beyond their output when the data is damaged, and no cheap check shows such
//!   damage. So deflate has its own decoder (`dz_inflate_*`).
//! - It leaves statuses and sizes unwritten in some cases. So both are set to a poison value before.
//! - A successful status doesn't mean that the values are right. So sizes and the format's checksum are compared.

mod entropy;
mod frames;
#[cfg(test)]
mod tests;

pub use frames::check_frame_for_nvcomp;

use nvcomp_sys::result::Batch;

use super::decoder::{LaneCapacity, Launch, StreamDecoder};
use crate::budget::Decoding;
use crate::gpu::driver::{DecodeArrays, POISON, Stream, memset_async};
use crate::gpu::streams::EncodedStream;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_codecs::streams::ChunkStream;

/// Returns the library, or an error that says what to install.
fn library() -> Result<&'static nvcomp_sys::Library> {
    nvcomp_sys::load().map_err(|e| Error::runtime(e.to_string()))
}

/// nvCOMP's decoder of zstd frames.
pub(super) struct Nvcomp;

impl StreamDecoder for Nvcomp {
    fn available(&self) -> Result<()> {
        library().map(|_| ())
    }

    fn needs(&self, largest: usize) -> Result<Decoding> {
        /// The library is asked for the workspace of this many streams, to find out what each MiB of many streams
        /// takes.
        const MANY: usize = 256;
        let total = largest.saturating_mul(MANY);
        let many = temp_bytes(MANY, largest, total)? as u128;
        Ok(Decoding {
            least_workspace: temp_bytes(1, largest, largest)?,
            workspace_per_mib: usize::try_from((many << 20) / (total as u128).max(1)).unwrap_or(usize::MAX),
        })
    }

    fn takes(&self, stream: &ChunkStream, encoded: &[u8], room: LaneCapacity) -> bool {
        stream.plan.as_ref().is_some_and(|plan| check_frame_for_nvcomp(encoded, plan).is_ok())
            && temp_bytes(1, stream.decoded, stream.decoded).is_ok_and(|need| need <= room.workspace)
    }

    fn fits(&self, streams: &[EncodedStream], room: LaneCapacity) -> Result<usize> {
        let largest = streams.iter().map(|s| s.decoded).max().unwrap_or(0);
        let mut take = streams.len();
        while take > 1 {
            let total = streams[..take].iter().map(|s| s.decoded).sum();
            if temp_bytes(take, largest, total)? <= room.workspace {
                break;
            }
            take = take.div_ceil(2);
        }
        Ok(take)
    }

    unsafe fn enqueue(&self, launch: &mut Launch<'_>, streams: &[EncodedStream]) -> Result<()> {
        let largest = streams.iter().map(|s| s.decoded).max().unwrap_or(0);
        // SAFETY: the caller vouches for the entries; the workspace is the lane's.
        unsafe { decode_async(launch.stream, &launch.arrays, streams.len(), largest, launch.workspace) }
    }
}

/// Returns the bytes of workspace for `n` streams, if each decodes to at most `stream` bytes and all together to at
/// most `total`. Uses no device.
///
/// # Errors
/// If the library can't be loaded, or doesn't support such large streams.
pub(super) fn temp_bytes(n: usize, stream: usize, total: usize) -> Result<usize> {
    let library = library()?;
    library.zstd_temp_size(n, stream, total).map_err(|status| {
        Error::runtime(format!("nvCOMP's workspace for {n} zstd streams of at most {stream} bytes: {status}"))
    })
}

/// Enqueues the decoding of `n` streams. The longest one decodes to `longest` bytes. The workspace has the address
/// `temp_ptr` and `temp_len` bytes.
///
/// # Errors
/// If the library can't be loaded or refuses the call, or the workspace is too small for one stream.
///
/// # Safety
/// The arrays are in device memory and have `n` entries, which name device memory. The workspace begins at a multiple
/// of 8 and has its length. All of it stays valid until the stream has passed this point. The compressed streams were
/// accepted by [`check_frame_for_nvcomp`].
pub(super) unsafe fn decode_async(
    stream: &Stream,
    arrays: &DecodeArrays,
    n: usize,
    longest: usize,
    (temp_ptr, temp_len): (u64, usize),
) -> Result<()> {
    // The sum of the decoded sizes is only known on the device. With the longest stream alone as the sum, this is a
    // lower bound of the workspace.
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
    // SAFETY: the caller promises that both arrays have `n` entries.
    unsafe {
        memset_async(stream, arrays.statuses, POISON, n * size_of::<i32>())?;
        memset_async(stream, arrays.out_sizes, POISON, n * size_of::<u64>())?;
    }
    // SAFETY: the caller vouches for arrays, streams and workspace; the lane has made the stream's context current.
    let result = unsafe { library.zstd_decompress(&batch, temp_ptr, temp_len, raw) };
    result.map_err(|status| Error::runtime(format!("nvCOMP refused to decode {n} zstd streams: {status}")))
}
