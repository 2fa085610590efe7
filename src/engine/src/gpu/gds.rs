//! GPUDirect Storage (cuFile): checks whether a reader can use it, and reads files to the device for each fetch thread.
//!
//! `unsafe` is allowed here: device memory is read and written by address.

#![allow(unsafe_code)]

use std::fs::File;
use std::sync::Arc;

use crate::chunk_index::ChunkIndex;
use crate::gpu::driver::{CuFile, Device, Stream, copy_to_host_async};
use crate::messages::{FilePart, Storage};
use crate::route::Route;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::spec::{Io, Spec};

/// Whether there is anything for cuFile to read: chunks in local files that the CPU doesn't decode.
fn applies(chunk_index: &ChunkIndex) -> bool {
    of_files(chunk_index).next().is_some()
}

/// Returns the numbers (array, part) of the parts of arrays whose chunks are in files and are not decoded by the CPU.
fn of_files(chunk_index: &ChunkIndex) -> impl Iterator<Item = (u16, u16)> + '_ {
    let parts = |a: usize| (0..chunk_index.decisions[a].len()).map(move |p| (a as u16, p as u16));
    (0..chunk_index.decisions.len())
        .flat_map(parts)
        .filter(|&(a, p)| chunk_index.route_of(a, p) != Route::Cpu && chunk_index.store(a, p).has_files())
}

/// Returns cuFile if the spec asks for it.
///
/// # Errors
/// If the spec asks for cuFile, but it can't be loaded, doesn't take the files, or has nothing to read.
pub(crate) fn choose(spec: &Spec, chunk_index: &ChunkIndex) -> Result<Option<&'static CuFile>> {
    match spec.resources.io {
        Io::Posix => Ok(None),
        Io::Gds if spec.resources.cache_size > 0 => Err(Error::value(
            "io=\"gds\": expected no cache_size, since nothing comes by host memory where chunks are kept; leave one of them out",
        )),
        Io::Gds if !applies(chunk_index) => Err(Error::value(
            "io=\"gds\": expected chunks in local files that are uncompressed or decoded by the GPU, but found none; use \
             io=\"posix\"",
        )),
        Io::Gds => {
            let cufile = CuFile::open()?;
            takes_files(cufile, chunk_index)?;
            Ok(Some(cufile))
        }
    }
}

/// Checks that cuFile can read the files of each store: it does not support all file systems.
fn takes_files(cufile: &CuFile, chunk_index: &ChunkIndex) -> Result<()> {
    for (array, part) in of_files(chunk_index) {
        let store = chunk_index.store(array, part);
        if let Some(value) = store.in_file(chunk_index.metadata_key(array, part), None)? {
            // SAFETY: nothing is read.
            unsafe { cufile.read(&value.file, &[]) }.map_err(|e| {
                Error::value(format!(
                    "io=\"gds\": cuFile doesn't take the files of store {}: {e}. It has to know the file system, from the udev database \
                     (in a container, mount /run/udev); cufile.log in the working folder may tell more; io=\"posix\" does without",
                    store.location()
                ))
            })?;
        }
    }
    Ok(())
}

/// GPUDirect Storage for one fetch thread.
pub(super) struct CuFileStorage {
    cufile: &'static CuFile,
    device: Arc<Device>,
    stream: Stream,
}

impl CuFileStorage {
    pub fn new(cufile: &'static CuFile, device: &Arc<Device>) -> Result<Self> {
        Ok(Self { cufile, device: Arc::clone(device), stream: Stream::new(device)? })
    }
}

impl Storage for CuFileStorage {
    unsafe fn read(&self, file: &File, parts: &[FilePart]) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the context is bound; the caller vouches for the memory.
        unsafe { self.cufile.read(file, parts) }
    }

    unsafe fn copy_back(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the caller vouches for the source, and the copy is waited for.
        unsafe { copy_to_host_async(&self.stream, to.as_mut_ptr(), from, to.len())? };
        self.stream.synchronize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::driver::test_gpu::gpu;
    use crate::gpu::driver::{DeviceBuffer, PinnedBuffer};
    use std::io::Write;

    /// Must also pass in cuFile's compatibility mode.
    #[test]
    fn gpu_reads_any_range_of_a_file() {
        let Some(gpu) = gpu() else { return };
        let device = gpu.device;
        let bytes: Vec<u8> = (0..5_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let file = File::open(file.path()).unwrap();
        // SAFETY: nothing is read.
        let Ok(cufile) = CuFile::open().and_then(|cufile| unsafe { cufile.read(&file, &[]) }.map(|()| cufile)) else {
            println!("skipped: cuFile isn't there, or doesn't take files of this file system");
            return;
        };
        let memory = DeviceBuffer::alloc(&device, bytes.len() + 4096).unwrap();
        let mut host = PinnedBuffer::alloc(&device, bytes.len()).unwrap();
        // SAFETY: the memory lives longer than the registration.
        let registered = unsafe { cufile.register(&device, memory.ptr(), memory.len()) };
        let storage = CuFileStorage::new(cufile, &device).unwrap();
        for (offset, len, shift) in [(0, bytes.len(), 0), (1, 4095, 256), (4096, 8192, 768), (12_345, 3_000_000, 4096)]
        {
            let to = memory.ptr() + shift;
            let read = &mut host.as_slice()[..len];
            // SAFETY: the device buffer has room.
            unsafe {
                storage.read(&file, &[FilePart { offset, len, to }]).unwrap();
                storage.copy_back(to, read).unwrap();
            }
            assert!(read == &bytes[offset as usize..offset as usize + len], "{offset}, {len}, {shift}");
        }
        let beyond = FilePart { offset: bytes.len() as u64 - 10, len: 20, to: memory.ptr() };
        // SAFETY: as above; nothing is written.
        let error = unsafe { storage.read(&file, &[beyond]) }.unwrap_err();
        assert!(error.message().contains("ends before"), "{error}");
        drop(registered);
    }
}
