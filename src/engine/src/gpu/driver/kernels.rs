//! The kernels of `dali-zarr-kernels`, loaded into a context and launched with typed arguments.

use super::{DecodeArrays, Device, Stream, check, driver_error};
use cudarc::driver::{result, sys};
use dali_zarr_base::error::Result;
use dali_zarr_kernels::zstd::{self, EXECUTE, Grid};
use dali_zarr_kernels::{FATBIN, INFLATE, InflateKernel, LZ4_THREADS, THREADS, inflate_kernel};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// Device addresses of the arrays that describe boxes to be moved.
#[derive(Clone, Copy, Debug)]
pub struct AssembleArrays {
    /// A [`dali_zarr_kernels::Job`] for each box.
    pub jobs: u64,
    /// One more u32 than there are jobs: the prefix sum of each job's tiles of [`dali_zarr_kernels::TILE`] elements,
    /// or of its tiles by [`dali_zarr_kernels::Job::transposed_tiles`].
    pub tile_start: u64,
    /// The [`dali_zarr_kernels::Op`]s that the jobs name.
    pub ops: u64,
    /// Counters of 64 bits, to which operations add the number of NaNs that they replace; `None` if no operation
    /// replaces NaNs.
    pub counters: Option<u64>,
}

/// Device addresses of the arrays of a wave of zstd frames.
#[derive(Clone, Copy, Debug)]
pub struct ZstdArrays {
    /// [`zstd::Wave::frames`].
    pub frames: u64,
    /// [`zstd::Wave::blocks`].
    pub blocks: u64,
    /// [`zstd::Wave::work`].
    pub work: u64,
    /// Memory for intermediate results: literals and sequences.
    pub workspace: u64,
    /// A [`zstd::BlockResult`] for each block.
    pub results: u64,
    /// Out: bytes that each frame decoded to, 64 bits.
    pub out_sizes: u64,
    /// Out: a status of 32 bits for each frame.
    pub statuses: u64,
}

/// The kernels, loaded for one device.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    handle: sys::CUmodule,
    assemble: sys::CUfunction,
    assemble_fill: sys::CUfunction,
    assemble_channels: sys::CUfunction,
    assemble_transposed: sys::CUfunction,
    assemble_between: sys::CUfunction,
    checksum: sys::CUfunction,
    gather: sys::CUfunction,
    /// In the order of [`INFLATE`].
    inflate: [sys::CUfunction; INFLATE.len()],
    lz4: sys::CUfunction,
    zstd_entropy: sys::CUfunction,
    zstd_sequences: sys::CUfunction,
    /// In the order of [`zstd::EXECUTE`].
    zstd_execute: [sys::CUfunction; EXECUTE.len()],
}

// SAFETY: module and function handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: likewise; nothing here is changed after construction.
unsafe impl Sync for Module {}

impl Module {
    /// Loads the embedded fat binary. On a GPU newer than those it was compiled for, the driver compiles its PTX here.
    ///
    /// # Errors
    /// If the driver has no code for this GPU, or is too old for the CUDA that compiled the kernels.
    pub fn load(device: &Arc<Device>) -> Result<Self> {
        device.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image is a complete fat binary, which carries its own length; it is copied by the call.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut handle, FATBIN.as_ptr().cast()) })?;
        let function = |name: &str| -> Result<sys::CUfunction> {
            let mut function = std::ptr::null_mut();
            let c_name = CString::new(name).expect("no kernel has a zero byte in its name");
            // SAFETY: the module is loaded, the name a C string.
            check("cuModuleGetFunction", unsafe { sys::cuModuleGetFunction(&mut function, handle, c_name.as_ptr()) })
                .map_err(|e| e.within(format!("kernel {name}")))?;
            Ok(function)
        };
        let allow_shared = |function, bytes: u32| {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to this module.
            check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(function, most, bytes as i32) })
        };
        let functions = (|| {
            let mut inflate = [std::ptr::null_mut(); INFLATE.len()];
            for (to, kernel) in inflate.iter_mut().zip(INFLATE) {
                *to = function(kernel.name)?;
                // inflate_kernel() never chooses a kernel that needs more than a block may have.
                allow_shared(*to, kernel.shared.min(device.shared_memory() as u32))?;
            }
            let mut zstd_execute = [std::ptr::null_mut(); EXECUTE.len()];
            for (to, (name, _)) in zstd_execute.iter_mut().zip(EXECUTE) {
                *to = function(name)?;
            }
            let zstd_entropy = function("dz_zstd_entropy")?;
            allow_shared(zstd_entropy, zstd::entropy_shared(device.shared_memory() as u32))?;
            Ok(Self {
                device: device.clone(),
                handle,
                assemble: function("dz_assemble")?,
                assemble_fill: function("dz_assemble_fill")?,
                assemble_channels: function("dz_assemble_channels")?,
                assemble_transposed: function("dz_assemble_transposed")?,
                assemble_between: function("dz_assemble_between")?,
                checksum: function("dz_checksum")?,
                gather: function("dz_gather")?,
                inflate,
                lz4: function("dz_lz4")?,
                zstd_entropy,
                zstd_sequences: function("dz_zstd_sequences")?,
                zstd_execute,
            })
        })();
        match functions {
            Ok(module) => Ok(module),
            Err(error) => {
                // SAFETY: loaded above, and used by nothing.
                let _ = unsafe { sys::cuModuleUnload(handle) };
                Err(error)
            }
        }
    }

    /// Enqueues the moving of `n_jobs` boxes, which have `n_tiles` tiles in all.
    ///
    /// # Errors
    /// If the driver refuses, or an earlier operation failed.
    ///
    /// # Safety
    /// The arrays are in device memory, or in memory that the device can read. They and the memory that the jobs name
    /// stay valid until the stream has passed this point. Elements are aligned to their size. No two jobs write the
    /// same element.
    pub unsafe fn launch_assemble(
        &self,
        stream: &Stream,
        arrays: &AssembleArrays,
        n_jobs: u32,
        n_tiles: u32,
    ) -> Result<()> {
        let AssembleArrays { mut jobs, mut tile_start, mut ops, counters } = *arrays;
        let mut n_jobs = n_jobs;
        let mut arguments = [argument(&mut jobs), argument(&mut tile_start), argument(&mut n_jobs), argument(&mut ops)];
        let Some(mut counters) = counters else {
            // SAFETY: the arguments are those of dz_assemble; the caller vouches for the addresses.
            return unsafe { self.launch("dz_assemble", self.assemble, stream, (n_tiles, THREADS), &mut arguments) };
        };
        let [jobs, tile_start, n_jobs, ops] = arguments;
        let mut arguments = [jobs, tile_start, n_jobs, ops, argument(&mut counters)];
        // SAFETY: the arguments are those of dz_assemble_fill; the caller vouches for the addresses.
        unsafe { self.launch("dz_assemble_fill", self.assemble_fill, stream, (n_tiles, THREADS), &mut arguments) }
    }

    /// As [`Self::launch_assemble`], for operations with a table of channels
    /// ([`NORM_TABLE`](dali_zarr_kernels::NORM_TABLE)), which the other kernels don't take.
    ///
    /// # Errors
    /// As [`Self::launch_assemble`].
    ///
    /// # Safety
    /// As for [`Self::launch_assemble`]. The tables are in device memory, and have all channels that the jobs name.
    pub unsafe fn launch_channels(
        &self,
        stream: &Stream,
        arrays: &AssembleArrays,
        n_jobs: u32,
        n_tiles: u32,
    ) -> Result<()> {
        // SAFETY: dz_assemble_channels has these arguments; the caller vouches for the addresses.
        unsafe {
            self.launch_counting("dz_assemble_channels", self.assemble_channels, stream, arrays, (n_jobs, n_tiles))
        }
    }

    /// As [`Self::launch_assemble`], for [transposed](dali_zarr_kernels::Job::is_transposed) jobs of any operation, whose
    /// tiles are those of [`dali_zarr_kernels::Job::transposed_tiles`].
    ///
    /// # Errors
    /// As [`Self::launch_assemble`].
    ///
    /// # Safety
    /// As for [`Self::launch_channels`].
    pub unsafe fn launch_transposed(
        &self,
        stream: &Stream,
        arrays: &AssembleArrays,
        n_jobs: u32,
        n_tiles: u32,
    ) -> Result<()> {
        let function = self.assemble_transposed;
        // SAFETY: dz_assemble_transposed has these arguments; the caller vouches for the addresses.
        unsafe { self.launch_counting("dz_assemble_transposed", function, stream, arrays, (n_jobs, n_tiles)) }
    }

    /// As [`Self::launch_assemble`], for jobs of [`Source::Between`](dali_zarr_kernels::Source::Between) and any operation.
    ///
    /// # Errors
    /// As [`Self::launch_assemble`].
    ///
    /// # Safety
    /// As for [`Self::launch_channels`].
    pub unsafe fn launch_between(
        &self,
        stream: &Stream,
        arrays: &AssembleArrays,
        n_jobs: u32,
        n_tiles: u32,
    ) -> Result<()> {
        let function = self.assemble_between;
        // SAFETY: dz_assemble_between has these arguments; the caller vouches for the addresses.
        unsafe { self.launch_counting("dz_assemble_between", function, stream, arrays, (n_jobs, n_tiles)) }
    }

    /// Launches a kernel that takes counters in any case, for these numbers of jobs and tiles.
    ///
    /// # Safety
    /// The function has the arguments of `dz_assemble_channels`; and as for [`Self::launch_assemble`].
    unsafe fn launch_counting(
        &self,
        name: &str,
        function: sys::CUfunction,
        stream: &Stream,
        arrays: &AssembleArrays,
        (n_jobs, n_tiles): (u32, u32),
    ) -> Result<()> {
        let AssembleArrays { mut jobs, mut tile_start, mut ops, counters } = *arrays;
        let (mut n_jobs, mut counters) = (n_jobs, counters.unwrap_or(0));
        let mut arguments = [
            argument(&mut jobs),
            argument(&mut tile_start),
            argument(&mut n_jobs),
            argument(&mut ops),
            argument(&mut counters),
        ];
        // SAFETY: the caller vouches for the function's arguments and the addresses.
        unsafe { self.launch(name, function, stream, (n_tiles, THREADS), &mut arguments) }
    }

    /// Enqueues the verification of the checksums of `n` buffers: `jobs` is an array of
    /// [`dali_zarr_kernels::ChecksumJob`]s, `results` an array of [`dali_zarr_kernels::ChecksumResult`]s.
    ///
    /// # Errors
    /// If the driver refuses, or an earlier operation failed.
    ///
    /// # Safety
    /// The arrays and the buffers are device memory that stays valid until the stream has passed this point; each
    /// buffer's address is a multiple of 16.
    pub unsafe fn launch_checksum(&self, stream: &Stream, jobs: u64, n: u32, results: u64) -> Result<()> {
        let (mut jobs, mut count, mut results) = (jobs, n, results);
        let mut arguments = [argument(&mut jobs), argument(&mut count), argument(&mut results)];
        // SAFETY: the arguments are those of dz_checksum; the caller vouches for the addresses.
        unsafe { self.launch("dz_checksum", self.checksum, stream, (n, THREADS), &mut arguments) }
    }

    /// Enqueues `n` raw copies: `copies` is an array of [`dali_zarr_kernels::CopyJob`]s. `tile_start` is an array of
    /// `n + 1` u32: the prefix sum of each copy's tiles of [`dali_zarr_kernels::GATHER_TILE`] bytes. The last one is
    /// `n_tiles`.
    ///
    /// # Errors
    /// If the driver refuses, or an earlier operation failed.
    ///
    /// # Safety
    /// The arrays and the pieces are device memory that stays valid until the stream has passed this point. No source
    /// overlaps a destination.
    pub unsafe fn launch_gather(
        &self,
        stream: &Stream,
        copies: u64,
        tile_start: u64,
        n: u32,
        n_tiles: u32,
    ) -> Result<()> {
        let (mut copies, mut tile_start, mut n) = (copies, tile_start, n);
        let mut arguments = [argument(&mut copies), argument(&mut tile_start), argument(&mut n)];
        // SAFETY: the arguments are those of dz_gather; the caller vouches for the addresses.
        unsafe { self.launch("dz_gather", self.gather, stream, (n_tiles, THREADS), &mut arguments) }
    }

    /// Enqueues the decoding of `n` raw deflate streams. The kernel writes for each stream a status (0: decoded; errors
    /// are numbered as in nvCOMP) and the number of decoded bytes. It neither reads outside the inputs nor writes
    /// outside the outputs, whatever the bytes are.
    ///
    /// # Errors
    /// If the driver refuses, or an earlier operation failed.
    ///
    /// # Safety
    /// The arrays are in device memory and have `n` entries. They name device memory in allocations that begin and end
    /// at multiples of 4. All of it stays valid until the stream has passed this point. Outputs don't overlap.
    pub unsafe fn launch_inflate(&self, stream: &Stream, arrays: &DecodeArrays, n: u32) -> Result<()> {
        let (multiprocessors, shared) = (self.device.multiprocessors() as u32, self.device.shared_memory() as u32);
        let which = inflate_kernel(n as usize, multiprocessors, shared);
        // SAFETY: the caller vouches for the arrays.
        unsafe { self.launch_inflate_by(which, stream, arrays, n) }
    }

    /// As [`Self::launch_inflate`], by the kernel of [`INFLATE`] with the index `which`.
    ///
    /// # Errors
    /// As [`Self::launch_inflate`].
    ///
    /// # Safety
    /// As for [`Self::launch_inflate`].
    pub unsafe fn launch_inflate_by(&self, which: usize, stream: &Stream, arrays: &DecodeArrays, n: u32) -> Result<()> {
        let DecodeArrays { mut in_ptrs, mut in_sizes, mut out_caps, mut out_sizes, mut statuses, mut out_ptrs, .. } =
            *arrays;
        let mut arguments = [
            argument(&mut in_ptrs),
            argument(&mut in_sizes),
            argument(&mut out_caps),
            argument(&mut out_sizes),
            argument(&mut statuses),
            argument(&mut out_ptrs),
        ];
        let InflateKernel { name, threads, shared } = INFLATE[which];
        let grid = Grid { blocks: n, threads, shared };
        // SAFETY: the arguments are those of dz_inflate_*; the caller vouches for the addresses.
        unsafe { self.launch(name, self.inflate[which], stream, grid, &mut arguments) }
    }

    /// As [`Self::launch_inflate`], for LZ4 and Snappy streams. [`DecodeArrays::kinds`] has the
    /// [`dali_zarr_kernels::StreamKind`] of each.
    ///
    /// # Errors
    /// If the driver refuses, or an earlier operation failed.
    ///
    /// # Safety
    /// As for [`Self::launch_inflate`].
    pub unsafe fn launch_lz4(&self, stream: &Stream, arrays: &DecodeArrays, n: u32) -> Result<()> {
        let DecodeArrays { mut in_ptrs, mut in_sizes, mut out_caps, mut out_sizes, mut statuses, .. } = *arrays;
        let (mut out_ptrs, mut kinds, mut n_streams) = (arrays.out_ptrs, arrays.kinds, n);
        let mut arguments = [
            argument(&mut in_ptrs),
            argument(&mut in_sizes),
            argument(&mut out_caps),
            argument(&mut out_sizes),
            argument(&mut statuses),
            argument(&mut out_ptrs),
            argument(&mut kinds),
            argument(&mut n_streams),
        ];
        // SAFETY: the arguments are those of dz_lz4; the caller vouches for the addresses.
        unsafe { self.launch("dz_lz4", self.lz4, stream, (n, LZ4_THREADS), &mut arguments) }
    }

    /// Enqueues the decoding of a wave of zstd frames. The kernels write for each frame a status ([`zstd::GOOD`]:
    /// decoded) and the number of decoded bytes. They neither read outside the frames nor write outside the outputs and
    /// the workspace, whatever the bytes are.
    ///
    /// # Errors
    /// If the driver refuses, or an earlier operation failed.
    ///
    /// # Safety
    /// The arrays hold a copy of `wave`'s arrays, which [`zstd::Wave::push`] made of plans of the same frames. All of
    /// it is device memory that stays valid until the stream has passed this point, in allocations that begin and end
    /// at multiples of 16. The workspace has [`zstd::Wave::workspace`] bytes and begins at a multiple of 16. Outputs
    /// don't overlap.
    pub unsafe fn launch_zstd(&self, stream: &Stream, wave: &zstd::Wave, arrays: &ZstdArrays) -> Result<()> {
        let ZstdArrays { mut frames, mut blocks, mut work, mut workspace, mut results, .. } = *arrays;
        let (mut sizes, mut statuses, mut n_work) = (arrays.out_sizes, arrays.statuses, wave.work.len() as u32);
        let mut arguments = [
            argument(&mut frames),
            argument(&mut blocks),
            argument(&mut work),
            argument(&mut n_work),
            argument(&mut workspace),
            argument(&mut results),
        ];
        let grid = zstd::entropy(n_work, self.device.shared_memory() as u32);
        // SAFETY: the arguments are those of dz_zstd_entropy; the caller vouches for the addresses.
        unsafe { self.launch("dz_zstd_entropy", self.zstd_entropy, stream, grid, &mut arguments)? };
        let grid = zstd::sequences(n_work);
        // SAFETY: the arguments are those of dz_zstd_sequences, which are the same.
        unsafe { self.launch("dz_zstd_sequences", self.zstd_sequences, stream, grid, &mut arguments)? };
        let mut arguments = [
            argument(&mut frames),
            argument(&mut blocks),
            argument(&mut workspace),
            argument(&mut results),
            argument(&mut sizes),
            argument(&mut statuses),
        ];
        let which = wave.execute_kernel(self.device.multiprocessors() as u32);
        let (name, threads) = EXECUTE[which];
        let grid = Grid { blocks: wave.frames.len() as u32, threads, shared: 0 };
        // SAFETY: the arguments are those of dz_zstd_execute_*; the caller vouches for the addresses.
        unsafe { self.launch(name, self.zstd_execute[which], stream, grid, &mut arguments) }
    }

    /// Launches a one-dimensional grid. Does nothing if the grid has no blocks.
    ///
    /// # Safety
    /// `arguments` are those that `function` takes.
    unsafe fn launch(
        &self,
        name: &str,
        function: sys::CUfunction,
        stream: &Stream,
        grid: impl Into<Grid>,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let Grid { blocks, threads, shared } = grid.into();
        if blocks == 0 {
            return Ok(());
        }
        // SAFETY: the function belongs to this module, whose context the caller has made current; the caller vouches
        // for the arguments.
        unsafe { result::launch_kernel(function, (blocks, 1, 1), (threads, 1, 1), shared, stream.handle, arguments) }
            .map_err(|e| driver_error(&format!("cuLaunchKernel of {name} with {blocks} blocks"), e))
    }
}

fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: unloaded once; the call waits for running kernels.
            let _ = unsafe { sys::cuModuleUnload(self.handle) };
        }
    }
}
