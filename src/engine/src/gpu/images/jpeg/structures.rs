//! The structures of nvImageCodec's C API, as its headers of the versions 0.8 and 0.9 declare them, by their names there
//! without the prefix `nvimgcodec`. All begin with their kind and their size, by which the library knows them.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// A handle that the library gives out.
pub(super) type Handle = *mut c_void;
/// `nvimgcodecStatus_t`. 0 is success.
pub(super) type Status = i32;
/// `nvimgcodecProcessingStatus_t` of an image that was decoded.
pub(super) const DECODED: u32 = 1;

/// The first fields of each structure.
#[repr(C)]
pub(super) struct Head {
    kind: i32,
    size: usize,
    next: *const c_void,
}

impl Head {
    /// The head of a `T`, which has this number in `nvimgcodecStructureType_t`.
    const fn of<T>(kind: i32) -> Self {
        Self { kind, size: size_of::<T>(), next: null() }
    }
}

#[repr(C)]
pub(super) struct Properties {
    head: Head,
    pub version: u32,
    cudart_version: u32,
}

impl Properties {
    pub const fn new() -> Self {
        Self { head: Head::of::<Self>(1), version: 0, cudart_version: 0 }
    }
}

#[repr(C)]
pub(super) struct InstanceCreateInfo {
    head: Head,
    load_builtin_modules: c_int,
    load_extension_modules: c_int,
    extension_modules_path: *const c_char,
    create_debug_messenger: c_int,
    debug_messenger_desc: *const c_void,
    message_severity: u32,
    message_category: u32,
}

impl InstanceCreateInfo {
    /// With the parsers of formats that are built in, without extensions, and silent.
    pub const fn new() -> Self {
        Self {
            head: Head::of::<Self>(2),
            load_builtin_modules: 1,
            load_extension_modules: 0,
            extension_modules_path: null(),
            create_debug_messenger: 0,
            debug_messenger_desc: null(),
            message_severity: 0,
            message_category: 0,
        }
    }
}

/// `ExtensionDesc`: an extension's entry function fills it.
#[repr(C)]
pub(super) struct Extension {
    head: Head,
    instance: *mut c_void,
    id: *const c_char,
    version: u32,
    ext_api_version: u32,
    create: *const c_void,
    destroy: *const c_void,
}

impl Extension {
    pub const fn new() -> Self {
        Self {
            head: Head::of::<Self>(27),
            instance: null_mut(),
            id: null(),
            version: 0,
            ext_api_version: 0,
            create: null(),
            destroy: null(),
        }
    }
}

#[repr(C)]
struct BackendParams {
    head: Head,
    load_hint: f32,
    load_hint_policy: c_int,
}

// SAFETY: the heads' pointers are null.
unsafe impl Sync for Backend {}
// SAFETY: likewise.
unsafe impl Sync for DecodeParams {}

#[repr(C)]
pub(super) struct Backend {
    head: Head,
    kind: c_int,
    params: BackendParams,
}

impl Backend {
    /// `NVIMGCODEC_BACKEND_KIND_HW_GPU_ONLY`, for all images.
    pub const ENGINE: Self = Self {
        head: Head::of::<Self>(17),
        kind: 4,
        params: BackendParams { head: Head::of::<BackendParams>(29), load_hint: 1.0, load_hint_policy: 1 },
    };
}

#[repr(C)]
pub(super) struct ExecutionParams {
    head: Head,
    device_allocator: *const c_void,
    pinned_allocator: *const c_void,
    max_num_cpu_threads: c_int,
    executor: *const c_void,
    device_id: c_int,
    pre_init: c_int,
    skip_pre_sync: c_int,
    num_backends: c_int,
    backends: *const Backend,
}

impl ExecutionParams {
    pub const fn new(threads: c_int, ordinal: c_int, backends: &'static [Backend]) -> Self {
        Self {
            head: Head::of::<Self>(30),
            // Its decoder for the engine asks allocators for nothing: what it takes, it takes from the driver.
            device_allocator: null(),
            pinned_allocator: null(),
            max_num_cpu_threads: threads,
            executor: null(),
            device_id: ordinal,
            pre_init: 1,
            skip_pre_sync: 0,
            num_backends: backends.len() as c_int,
            backends: backends.as_ptr(),
        }
    }
}

#[repr(C)]
pub(super) struct DecodeParams {
    head: Head,
    apply_exif_orientation: c_int,
}

impl DecodeParams {
    /// Pixels as they are stored.
    pub const fn new() -> Self {
        Self { head: Head::of::<Self>(5), apply_exif_orientation: 0 }
    }
}

#[repr(C)]
struct Orientation {
    head: Head,
    rotated: c_int,
    flip_x: c_int,
    flip_y: c_int,
}

#[repr(C)]
struct ImagePlaneInfo {
    head: Head,
    width: u32,
    height: u32,
    row_stride: usize,
    num_channels: u32,
    sample_type: c_int,
    precision: u8,
}

impl ImagePlaneInfo {
    const NONE: Self = Self {
        head: Head::of::<Self>(12),
        width: 0,
        height: 0,
        row_stride: 0,
        num_channels: 0,
        sample_type: 0,
        precision: 0,
    };
}

#[repr(C)]
pub(super) struct ImageInfo {
    head: Head,
    codec_name: [u8; 256],
    color_spec: c_int,
    chroma_subsampling: c_int,
    sample_format: c_int,
    orientation: Orientation,
    num_planes: u32,
    plane_info: [ImagePlaneInfo; 32],
    buffer: *mut c_void,
    buffer_kind: c_int,
    cuda_stream: *mut c_void,
}

impl ImageInfo {
    /// One plane of bytes in device memory, rows without padding: gray, or red, green and blue beside each other. `stream` is
    /// a `cudaStream_t`.
    pub const fn new(width: u32, height: u32, channels: u32, to: u64, stream: u64) -> Self {
        let mut plane_info = [ImagePlaneInfo::NONE; 32];
        plane_info[0] = ImagePlaneInfo {
            width,
            height,
            row_stride: width as usize * channels as usize,
            num_channels: channels,
            sample_type: 0x0802,
            ..ImagePlaneInfo::NONE
        };
        let (color_spec, sample_format) = if channels == 1 { (2, 3) } else { (1, 8) };
        Self {
            head: Head::of::<Self>(11),
            codec_name: [0; 256],
            color_spec,
            chroma_subsampling: 0,
            sample_format,
            orientation: Orientation { head: Head::of::<Orientation>(7), rotated: 0, flip_x: 0, flip_y: 0 },
            num_planes: 1,
            plane_info,
            buffer: to as *mut c_void,
            buffer_kind: 1,
            cuda_stream: stream as *mut c_void,
        }
    }
}
