//! Types and signatures of nvCOMP 5.3's batched decompression functions. All pointers named `device_*` are device
//! addresses; the library never reads them on the host.
//!
//! Options travel by value and are 64 bytes each, with reserved bytes that must be zero.

use std::ffi::{c_char, c_int, c_void};

/// `nvcompStatus_t`: 0, or one of the numbers that [`crate::Status`] names.
pub type RawStatus = c_int;

/// A CUDA stream as the driver hands it out.
pub type CudaStream = *mut c_void;

/// Which implementation decompresses: `nvcompDecompressBackend_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The library decides, and may use the decompression engine of newer devices, which needs memory allocated for it.
    Default = 0,
    /// The decompression engine.
    Hardware = 1,
    /// Kernels on the multiprocessors: any device memory, every device.
    Cuda = 2,
}

/// Options of zstd.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ZstdOpts {
    /// See [`Backend`].
    pub backend: Backend,
    /// Zero.
    pub reserved: [c_char; 60],
}

/// Options of gzip.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GzipOpts {
    /// See [`Backend`].
    pub backend: Backend,
    /// 0: one pass; 1: look-ahead, which needs workspace and helps few long streams.
    pub algorithm: c_int,
    /// For [`Backend::Hardware`] only.
    pub sort_before_hw_decompress: c_int,
    /// Zero.
    pub reserved: [c_char; 52],
}

/// Options of raw deflate; those of snappy have the same form.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeflateOpts {
    /// See [`Backend`].
    pub backend: Backend,
    /// For [`Backend::Hardware`] only.
    pub sort_before_hw_decompress: c_int,
    /// Zero.
    pub reserved: [c_char; 56],
}

/// Options of snappy.
pub type SnappyOpts = DeflateOpts;

/// Options of LZ4 blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lz4Opts {
    /// See [`Backend`].
    pub backend: Backend,
    /// For [`Backend::Hardware`] only.
    pub sort_before_hw_decompress: c_int,
    /// 0: bytes. Others matter to the library's own compressor only.
    pub data_type: c_int,
    /// 0: none.
    pub bitshuffle_mode: c_int,
    /// Zero.
    pub reserved: [c_char; 48],
}

/// The defaults but for the backend: [`Backend::Cuda`], the only one that reports corrupt LZ4 and needs no special memory.
pub trait Opts: Copy {
    /// See the trait.
    const CUDA: Self;
}

impl Opts for ZstdOpts {
    const CUDA: Self = Self { backend: Backend::Cuda, reserved: [0; 60] };
}
impl Opts for GzipOpts {
    const CUDA: Self = Self { backend: Backend::Cuda, algorithm: 0, sort_before_hw_decompress: 0, reserved: [0; 52] };
}
impl Opts for DeflateOpts {
    const CUDA: Self = Self { backend: Backend::Cuda, sort_before_hw_decompress: 0, reserved: [0; 56] };
}
impl Opts for Lz4Opts {
    const CUDA: Self = Self {
        backend: Backend::Cuda,
        sort_before_hw_decompress: 0,
        data_type: 0,
        bitshuffle_mode: 0,
        reserved: [0; 48],
    };
}

const _: () = assert!(size_of::<ZstdOpts>() == 64 && size_of::<GzipOpts>() == 64);
const _: () = assert!(size_of::<DeflateOpts>() == 64 && size_of::<Lz4Opts>() == 64);

/// `nvcompBatched<Codec>DecompressGetTempSizeAsync`: a formula on the host, despite its name.
/// (streams, largest decoded stream, options, out: bytes of workspace, all decoded bytes together)
pub type GetTempSize<O> = unsafe extern "C" fn(usize, usize, O, *mut usize, usize) -> RawStatus;

/// `nvcompBatched<Codec>GetDecompressSizeAsync`.
/// (compressed pointers, compressed sizes, out: decoded sizes, streams, CUDA stream), arrays on the device.
pub type GetDecompressSize =
    unsafe extern "C" fn(*const *const c_void, *const usize, *mut usize, usize, CudaStream) -> RawStatus;

/// `nvcompBatched<Codec>DecompressAsync`.
/// (compressed pointers, compressed sizes, room in each output, out: decoded sizes, streams, workspace, its bytes,
/// output pointers, options, out: statuses, CUDA stream), arrays on the device.
pub type Decompress<O> = unsafe extern "C" fn(
    *const *const c_void,
    *const usize,
    *const usize,
    *mut usize,
    usize,
    *mut c_void,
    usize,
    *const *mut c_void,
    O,
    *mut RawStatus,
    CudaStream,
) -> RawStatus;

/// The functions of one codec.
#[derive(Clone, Copy, Debug)]
pub struct Functions<O> {
    /// See [`GetTempSize`].
    pub get_temp_size: GetTempSize<O>,
    /// See [`GetDecompressSize`].
    pub get_decompress_size: GetDecompressSize,
    /// See [`Decompress`].
    pub decompress: Decompress<O>,
}

/// `nvcompGetProperties`: the library's version and that of its CUDA runtime.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Of the library.
    pub version: u32,
    /// Of the CUDA runtime that it was built with.
    pub cudart_version: u32,
}

/// Signature of `nvcompGetProperties`.
pub type GetProperties = unsafe extern "C" fn(*mut Properties) -> RawStatus;
