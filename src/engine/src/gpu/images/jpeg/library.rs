//! nvImageCodec: found, loaded and asked for its functions, once for the process, and its instances.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use libloading::Library;

use super::super::places::{candidates, check, is_named};
use super::structures::{
    DecodeParams, ExecutionParams, Extension, Handle, ImageInfo, InstanceCreateInfo, Properties, Status,
};
use crate::gpu::driver::SideLibrary;
use dali_zarr_base::error::{Error, Result};

/// The environment variable with the path of nvImageCodec's library. If it isn't set, the library is looked for beside this
/// one and beside DALI's, as pip installs it, and then by the system's loader.
const NAMED: &str = "DALI_ZARR_NVIMGCODEC";
const SONAME: &str = "libnvimgcodec.so.0";
/// Where pip installs it, in a folder of packages.
const INSTALLED: &str = "nvidia/nvimgcodec/libnvimgcodec.so.0";
/// The versions whose headers have the same structures, from the first one on and before the second: major * 1000 + minor *
/// 100.
const VERSIONS: std::ops::Range<u32> = 800..1000;

pub(super) const ADVICE: &str = "install it with: pip install 'nvidia-nvimgcodec-cu13[nvjpeg]' (cu12 for CUDA 12); or \
                                 name the library's file in DALI_ZARR_NVIMGCODEC";

/// The functions of nvImageCodec.
pub(super) struct ImageLibrary {
    instance_create: unsafe extern "C" fn(*mut Handle, *const InstanceCreateInfo) -> Status,
    instance_destroy: unsafe extern "C" fn(Handle) -> Status,
    extension_create: unsafe extern "C" fn(Handle, *mut Handle, *mut Extension) -> Status,
    /// The entry of the extension for JPEG.
    jpeg: unsafe extern "C" fn(*mut Extension) -> Status,
    pub decoder_create:
        unsafe extern "C" fn(Handle, *mut Handle, *const ExecutionParams, options: *const c_char) -> Status,
    pub decoder_destroy: unsafe extern "C" fn(Handle) -> Status,
    pub decode:
        unsafe extern "C" fn(Handle, *const Handle, *const Handle, c_int, *const DecodeParams, *mut Handle) -> Status,
    pub wait: unsafe extern "C" fn(Handle) -> Status,
    pub statuses: unsafe extern "C" fn(Handle, *mut u32, *mut usize) -> Status,
    pub future_destroy: unsafe extern "C" fn(Handle) -> Status,
    pub image_create: unsafe extern "C" fn(Handle, *mut Handle, *const ImageInfo) -> Status,
    pub image_destroy: unsafe extern "C" fn(Handle) -> Status,
    pub stream_create: unsafe extern "C" fn(Handle, *mut Handle, *const u8, usize, view: *const c_void) -> Status,
    pub stream_destroy: unsafe extern "C" fn(Handle) -> Status,
}

impl ImageLibrary {
    /// Loads the library and its extension for JPEG, once for the whole process, if they are there. They are never closed.
    ///
    /// # Errors
    /// If it isn't found, is of a version that isn't known, or lacks the extension for JPEG.
    pub fn open() -> Result<&'static Self> {
        static OPENED: OnceLock<ImageLibrary> = OnceLock::new();
        if let Some(opened) = OPENED.get() {
            return Ok(opened);
        }
        let loaded = Self::load()?;
        Ok(OPENED.get_or_init(|| loaded))
    }

    fn load() -> Result<Self> {
        let candidates = || candidates(INSTALLED, SONAME);
        // SAFETY: what has these names is nvImageCodec.
        let library = unsafe { SideLibrary::open("nvImageCodec", NAMED, candidates, ADVICE) }.map_err(|tried| {
            Error::value(format!("the GPU's JPEG engine needs nvImageCodec; {ADVICE}. Tried: {tried}"))
        })?;
        // SAFETY: the types are those of nvimgcodec.h, of the versions that are checked before anything else is called.
        unsafe {
            let properties: unsafe extern "C" fn(*mut Properties) -> Status =
                library.function("nvimgcodecGetProperties")?;
            let mut found = Properties::new();
            check("nvimgcodecGetProperties", properties(&mut found))?;
            if !VERSIONS.contains(&found.version) {
                let (major, minor) = (found.version / 1000, found.version % 1000 / 100);
                return Err(Error::value(format!(
                    "expected nvImageCodec 0.8 or 0.9, but found {major}.{minor}; {ADVICE}"
                )));
            }
            Ok(Self {
                instance_create: library.function("nvimgcodecInstanceCreate")?,
                instance_destroy: library.function("nvimgcodecInstanceDestroy")?,
                extension_create: library.function("nvimgcodecExtensionCreate")?,
                jpeg: jpeg_extension(properties as *const c_void)?,
                decoder_create: library.function("nvimgcodecDecoderCreate")?,
                decoder_destroy: library.function("nvimgcodecDecoderDestroy")?,
                decode: library.function("nvimgcodecDecoderDecode")?,
                wait: library.function("nvimgcodecFutureWaitForAll")?,
                statuses: library.function("nvimgcodecFutureGetProcessingStatus")?,
                future_destroy: library.function("nvimgcodecFutureDestroy")?,
                image_create: library.function("nvimgcodecImageCreate")?,
                image_destroy: library.function("nvimgcodecImageDestroy")?,
                stream_create: library.function("nvimgcodecCodeStreamCreateFromHostMem")?,
                stream_destroy: library.function("nvimgcodecCodeStreamDestroy")?,
            })
        }
    }
}

/// An instance of the library, with the extension for JPEG. The extension asks the current GPU for its engine when it is made,
/// so each decoder has an instance of its own.
pub(super) struct Instance {
    pub library: &'static ImageLibrary,
    pub handle: Handle,
}

impl Instance {
    /// Makes an instance for the GPU whose context is current.
    ///
    /// # Errors
    /// If the library isn't there, or refuses.
    pub fn new() -> Result<Self> {
        let library = ImageLibrary::open()?;
        let mut handle = null_mut();
        // SAFETY: writes one handle, which Drop destroys.
        let status = unsafe { (library.instance_create)(&mut handle, &InstanceCreateInfo::new()) };
        check("nvimgcodecInstanceCreate", status)?;
        let instance = Self { library, handle };
        let (mut description, mut extension) = (Extension::new(), null_mut());
        // SAFETY: the description is the extension's own, which the library copies; the instance destroys the extension.
        unsafe {
            check("the entry of nvImageCodec's extension for JPEG", (library.jpeg)(&mut description))?;
            check("nvimgcodecExtensionCreate", (library.extension_create)(handle, &mut extension, &mut description))?;
        }
        Ok(instance)
    }

    /// Makes a code stream of bytes, in place of what `stream` has (null: a new one).
    ///
    /// # Errors
    /// If the library refuses them.
    ///
    /// # Safety
    /// The bytes stay until the code stream is decoded, made anew or destroyed.
    pub unsafe fn set_stream(&self, stream: &mut Handle, bytes: &[u8]) -> Result<()> {
        // SAFETY: the handle is null, or of a code stream of this instance.
        let status = unsafe { (self.library.stream_create)(self.handle, stream, bytes.as_ptr(), bytes.len(), null()) };
        check("nvimgcodecCodeStreamCreateFromHostMem", status)
    }

    /// Describes an image, in place of what `image` has (null: a new one).
    ///
    /// # Errors
    /// If the library refuses it.
    pub fn set_image(&self, image: &mut Handle, info: &ImageInfo) -> Result<()> {
        // SAFETY: the handle is null, or of an image of this instance. The library copies the description, and touches the
        // buffer only when something is decoded to it.
        check("nvimgcodecImageCreate", unsafe { (self.library.image_create)(self.handle, image, info) })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once, after everything that was made from it.
        unsafe { (self.library.instance_destroy)(self.handle) };
    }
}

/// Loads the extension for JPEG that lies beside the library, of which `function` is a part.
fn jpeg_extension(function: *const c_void) -> Result<unsafe extern "C" fn(*mut Extension) -> Status> {
    let missing = |why: String| Error::value(format!("nvImageCodec's extension for JPEG: {why}; {ADVICE}"));
    let file = file_of(function).ok_or_else(|| missing("its folder wasn't found".into()))?;
    // Beside the library, as in packages of Python, or beside its folder, as in the system's packages.
    let mut folders = file.ancestors().skip(1).take(2).map(|folder| folder.join("extensions"));
    let folder = folders.find(|folder| folder.is_dir());
    let folder = folder.ok_or_else(|| missing(format!("there are no extensions beside {}", file.display())))?;
    let files = std::fs::read_dir(&folder).map_err(|e| missing(format!("{}: {e}", folder.display())))?;
    let found = files.flatten().map(|file| file.path()).filter(|path| is_named(path, "libnvjpeg_ext.so")).max();
    let path = found.ok_or_else(|| missing(format!("{} has no libnvjpeg_ext.so", folder.display())))?;
    // SAFETY: its initialisers need neither CUDA nor a driver.
    let extension = unsafe { Library::new(&path) }.map_err(|e| missing(format!("{}: {e}", path.display())))?;
    let extension: &'static Library = Box::leak(Box::new(extension));
    // SAFETY: each extension has this function, of this type.
    let entry = unsafe { extension.get(b"nvimgcodecExtensionModuleEntry") };
    entry.map(|entry| *entry).map_err(|e| missing(format!("{}: {e}", path.display())))
}

/// Returns the file of the library that a function is a part of.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: plain numbers and pointers, for which zeros are values.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: writes what is known of the address, with a name that lives as long as the library.
    let name = unsafe {
        if libc::dladdr(function, &mut found) == 0 || found.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(found.dli_fname)
    };
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

/// Options of decoders: chroma is interpolated as libjpeg-turbo does it.
pub(super) const OPTIONS: &CStr = c":fancy_upsampling=1";
