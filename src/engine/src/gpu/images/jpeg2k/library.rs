//! nvJPEG2000: found, loaded and asked for its functions, once for the process. Types and functions are those of nvjpeg2k.h,
//! which are the same in the versions 0.9 to 0.11.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use super::super::places::{candidates, check};
use crate::gpu::driver::SideLibrary;
use dali_zarr_base::error::{Error, Result};

/// The environment variable with the path of nvJPEG2000's library. If it isn't set, the library is looked for beside this one
/// and beside DALI's, as pip installs it, and then by the system's loader.
const NAMED: &str = "DALI_ZARR_NVJPEG2K";
const SONAME: &str = "libnvjpeg2k.so.0";
/// Where pip installs it, in a folder of packages.
const INSTALLED: &str = "nvidia/nvjpeg2k/lib/libnvjpeg2k.so.0";
/// Minor versions of 0 with these types.
const VERSIONS: std::ops::RangeInclusive<c_int> = 9..=11;

pub(in super::super) const ADVICE: &str = "install it with: pip install nvidia-nvjpeg2k-cu13 (cu12 for CUDA 12); or name the library's file in DALI_ZARR_NVJPEG2K";

/// A handle that the library gives out.
pub(super) type Handle = *mut c_void;
/// `nvjpeg2kStatus_t`. 0 is success.
pub(super) type Status = c_int;

/// `nvjpeg2kImageInfo_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct ImageInfo {
    pub width: u32,
    pub height: u32,
    tile_width: u32,
    tile_height: u32,
    tiles_x: u32,
    tiles_y: u32,
    pub components: u32,
}

/// `nvjpeg2kImageComponentInfo_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct ComponentInfo {
    pub width: u32,
    pub height: u32,
    pub precision: u8,
    pub signed: u8,
}

/// `nvjpeg2kImage_t`.
#[repr(C)]
pub(super) struct Image {
    pub pixels: *mut *mut c_void,
    pub pitches: *mut usize,
    /// 0: uint8, 1: uint16, 2: int16.
    pub kind: c_int,
    pub components: u32,
}

/// `NVJPEG2K_FORMAT_INTERLEAVED`: the values of a pixel lie beside each other.
pub(super) const INTERLEAVED: c_int = 1;

/// The functions of nvJPEG2000.
pub(super) struct Jpeg2kLibrary {
    pub create: unsafe extern "C" fn(*mut Handle) -> Status,
    pub destroy: unsafe extern "C" fn(Handle) -> Status,
    pub state_create: unsafe extern "C" fn(Handle, *mut Handle) -> Status,
    pub state_destroy: unsafe extern "C" fn(Handle) -> Status,
    pub stream_create: unsafe extern "C" fn(*mut Handle) -> Status,
    pub stream_destroy: unsafe extern "C" fn(Handle) -> Status,
    pub parse: unsafe extern "C" fn(Handle, *const u8, usize, metadata: c_int, stream: c_int, Handle) -> Status,
    pub image_info: unsafe extern "C" fn(Handle, *mut ImageInfo) -> Status,
    pub component_info: unsafe extern "C" fn(Handle, *mut ComponentInfo, u32) -> Status,
    pub params_create: unsafe extern "C" fn(*mut Handle) -> Status,
    pub params_destroy: unsafe extern "C" fn(Handle) -> Status,
    pub set_rgb: unsafe extern "C" fn(Handle, i32) -> Status,
    pub set_format: unsafe extern "C" fn(Handle, c_int) -> Status,
    /// The handle, the state, the parsed stream, the parameters, the image, and a `cudaStream_t`.
    pub decode: unsafe extern "C" fn(Handle, Handle, Handle, Handle, *mut Image, *mut c_void) -> Status,
}

impl Jpeg2kLibrary {
    /// Loads the library, once for the whole process, if it is there. It is never closed.
    ///
    /// # Errors
    /// If it isn't found, or is of a version that isn't known.
    pub fn open() -> Result<&'static Self> {
        static OPENED: OnceLock<Jpeg2kLibrary> = OnceLock::new();
        if let Some(opened) = OPENED.get() {
            return Ok(opened);
        }
        let loaded = Self::load()?;
        Ok(OPENED.get_or_init(|| loaded))
    }

    fn load() -> Result<Self> {
        let candidates = || candidates(INSTALLED, SONAME);
        // SAFETY: what has these names is nvJPEG2000.
        let library = unsafe { SideLibrary::open("nvJPEG2000", NAMED, candidates, ADVICE) }.map_err(|tried| {
            Error::value(format!("JPEG 2000 on the GPU needs nvJPEG2000; {ADVICE}. Tried: {tried}"))
        })?;
        // SAFETY: the types are those of nvjpeg2k.h, of the versions that are checked before anything else is called.
        unsafe {
            let property: unsafe extern "C" fn(c_int, *mut c_int) -> Status =
                library.function("nvjpeg2kGetProperty")?;
            let (mut major, mut minor) = (0, 0);
            check("nvjpeg2kGetProperty", property(0, &mut major))?;
            check("nvjpeg2kGetProperty", property(1, &mut minor))?;
            if major != 0 || !VERSIONS.contains(&minor) {
                return Err(Error::value(format!(
                    "expected nvJPEG2000 0.{} to 0.{}, but found {major}.{minor}; {ADVICE}",
                    VERSIONS.start(),
                    VERSIONS.end()
                )));
            }
            Ok(Self {
                create: library.function("nvjpeg2kCreateSimple")?,
                destroy: library.function("nvjpeg2kDestroy")?,
                state_create: library.function("nvjpeg2kDecodeStateCreate")?,
                state_destroy: library.function("nvjpeg2kDecodeStateDestroy")?,
                stream_create: library.function("nvjpeg2kStreamCreate")?,
                stream_destroy: library.function("nvjpeg2kStreamDestroy")?,
                parse: library.function("nvjpeg2kStreamParse")?,
                image_info: library.function("nvjpeg2kStreamGetImageInfo")?,
                component_info: library.function("nvjpeg2kStreamGetImageComponentInfo")?,
                params_create: library.function("nvjpeg2kDecodeParamsCreate")?,
                params_destroy: library.function("nvjpeg2kDecodeParamsDestroy")?,
                set_rgb: library.function("nvjpeg2kDecodeParamsSetRGBOutput")?,
                set_format: library.function("nvjpeg2kDecodeParamsSetOutputFormat")?,
                decode: library.function("nvjpeg2kDecodeImage")?,
            })
        }
    }
}
