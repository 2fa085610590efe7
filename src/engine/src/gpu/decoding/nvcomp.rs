//! The reference for zstd: NVIDIA's nvCOMP decodes the same frames in tests, and in the same run as the kernels for the
//! rates. Readers don't use it, because a damaged frame can make it access memory out of bounds, which costs the process
//! its CUDA context (version 5.3). So it gets only frames that an encoder wrote.

use std::path::PathBuf;
use std::process::Command;

use nvcomp_sys::result::Batch;

use crate::gpu::driver::{DecodeArrays, Stream, memset_async};
use dali_zarr_base::error::{Error, Result};

/// Each byte of a status and a size before nvCOMP writes them: it leaves some unwritten.
const POISON: u8 = 0xa5;

/// Whether nvCOMP can be loaded, also from the packages of the active Python. If not, prints why it isn't compared.
pub(super) fn is_there() -> bool {
    let python = std::env::var_os("VIRTUAL_ENV").map_or("python3".into(), |v| PathBuf::from(v).join("bin/python"));
    let code = "import nvidia.libnvcomp as m; print(m.__path__[0] + '/lib64')";
    if let Ok(output) = Command::new(python).args(["-c", code]).output() {
        let dir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        nvcomp_sys::set_search_dirs(vec![dir.into()]);
    }
    nvcomp_sys::load().inspect_err(|error| println!("not compared: {error}")).is_ok()
}

/// Returns the bytes of workspace for `n` frames, if each decodes to at most `frame` bytes and all together to at most
/// `total`. Uses no device.
///
/// # Errors
/// If the library can't be loaded, or doesn't support such large frames.
pub(super) fn workspace(n: usize, frame: usize, total: usize) -> Result<usize> {
    let library = nvcomp_sys::load().map_err(|e| Error::runtime(e.to_string()))?;
    library.zstd_temp_size(n, frame, total).map_err(|status| Error::runtime(format!("nvCOMP's workspace: {status}")))
}

/// Enqueues the decoding of `n` frames. The workspace has an address and bytes.
///
/// # Errors
/// If the library can't be loaded or refuses the call.
///
/// # Safety
/// The arrays are in device memory and have `n` entries, which name device memory. The workspace begins at a multiple
/// of 8 and has its length. All of it stays valid until the stream has passed this point. The frames are undamaged.
pub(super) unsafe fn enqueue(
    stream: &Stream,
    arrays: &DecodeArrays,
    n: usize,
    (temp_ptr, temp_len): (u64, usize),
) -> Result<()> {
    let library = nvcomp_sys::load().map_err(|e| Error::runtime(e.to_string()))?;
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
    // SAFETY: the caller vouches for arrays, frames and workspace; the stream's context is current.
    let result = unsafe { library.zstd_decompress(&batch, temp_ptr, temp_len, raw) };
    result.map_err(|status| Error::runtime(format!("nvCOMP refused to decode {n} frames: {status}")))
}
