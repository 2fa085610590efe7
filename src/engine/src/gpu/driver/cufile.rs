//! GPUDirect Storage: NVIDIA's cuFile, which reads files to device memory. Opened at run time, once for the process.
//!
//! If the machine's driver, file system and disk allow it, the bytes go from the disk to the device. Otherwise cuFile
//! copies them through its own buffers (its compatibility mode), with the same results. The functions and structures
//! are those of cuFile's API reference, version 1.

use std::ffi::c_void;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};

use super::{Device, SideLibrary};
use crate::messages::FilePart;
use dali_zarr_base::error::{Error, Result};

/// The environment variable with the path of cuFile's library. If it isn't set, the system's loader looks for
/// [`SONAMES`].
const NAMED: &str = "DALI_ZARR_CUFILE";
const SONAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

const ADVICE: &str = "install it with: pip install nvidia-cufile; or name the library's file in DALI_ZARR_CUFILE; or use \
                      io=\"posix\"";

/// `CUfileError_t`: cuFile's own code, and the driver's.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    code: i32,
    driver: i32,
}

/// `CUfileDescr_t` for a file descriptor of Linux.
#[repr(C)]
struct Descriptor {
    kind: i32,
    fd: MaybeUninit<u64>,
    operations: *const c_void,
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const OPAQUE_FD: i32 = 1;

type Handle = *mut c_void;

/// The functions of cuFile, loaded.
pub struct CuFile {
    register: unsafe extern "C" fn(*mut Handle, *mut Descriptor) -> Status,
    deregister: unsafe extern "C" fn(Handle),
    register_memory: unsafe extern "C" fn(*const c_void, usize, i32) -> Status,
    deregister_memory: unsafe extern "C" fn(*const c_void) -> Status,
    read: unsafe extern "C" fn(Handle, *mut c_void, usize, i64, i64) -> isize,
}

impl CuFile {
    /// Loads the library and opens its driver, once for the whole process. It is never closed.
    ///
    /// # Errors
    /// If it isn't found (the message says where it was looked for, and what to install), or cuFile fails.
    pub fn open() -> Result<&'static Self> {
        static OPENED: OnceLock<Result<CuFile>> = OnceLock::new();
        OPENED.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self> {
        let candidates = || SONAMES.iter().map(Into::into).collect();
        // SAFETY: what has these names is cuFile.
        let library = unsafe { SideLibrary::open("cuFile", NAMED, candidates, ADVICE) }.map_err(|tried| {
            Error::value(format!("io=\"gds\": cuFile could not be loaded; {ADVICE}. Tried: {tried}"))
        })?;
        // SAFETY: the types are those of cuFile's documentation.
        unsafe {
            let open: unsafe extern "C" fn() -> Status = library.function("cuFileDriverOpen")?;
            let cufile = Self {
                register: library.function("cuFileHandleRegister")?,
                deregister: library.function("cuFileHandleDeregister")?,
                register_memory: library.function("cuFileBufRegister")?,
                deregister_memory: library.function("cuFileBufDeregister")?,
                read: library.function("cuFileRead")?,
            };
            check("cuFileDriverOpen", open())?;
            Ok(cufile)
        }
    }

    /// Registers device memory, so that reads to it bypass cuFile's own buffers. Reads to memory that can't be
    /// registered work too.
    ///
    /// # Safety
    /// The memory is allocated on `device`, and freed only after the result is dropped. When the result is dropped, no
    /// read to the memory is under way.
    pub unsafe fn register(&'static self, device: &Arc<Device>, address: u64, len: usize) -> Registered {
        let bound = device.bind().is_ok();
        // SAFETY: the caller vouches for the memory.
        let registered =
            bound && len > 0 && unsafe { (self.register_memory)(address as *const c_void, len, 0) }.code == 0;
        Registered { cufile: self, device: Arc::clone(device), address: registered.then_some(address) }
    }

    /// Reads parts of a file to the device of the current context. The reads have ended when it returns.
    ///
    /// # Errors
    /// If cuFile or the system refuses, or the file ends before a part does.
    ///
    /// # Safety
    /// The context of the device is current on this thread. Each address has room for its part.
    pub unsafe fn read(&self, file: &File, parts: &[FilePart]) -> Result<()> {
        let mut fd = MaybeUninit::<u64>::zeroed();
        // SAFETY: the field is a union of an int and a pointer, and has room for the int.
        unsafe { fd.as_mut_ptr().cast::<i32>().write(file.as_raw_fd()) };
        let mut descriptor = Descriptor { kind: OPAQUE_FD, fd, operations: std::ptr::null() };
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the call reads and writes both, and keeps neither; the file stays open until the handle is gone.
        check("cuFileHandleRegister", unsafe { (self.register)(&mut handle, &mut descriptor) })?;
        let result = parts.iter().try_for_each(|&FilePart { offset, len, to: address }| {
            let mut have = 0;
            while have < len {
                let (at, to) = ((offset + have as u64) as i64, (address + have as u64) as *mut c_void);
                // SAFETY: the caller vouches for the memory.
                let read = unsafe { (self.read)(handle, to, len - have, at, 0) };
                match usize::try_from(read) {
                    Ok(0) => {
                        return Err(Error::runtime(format!("the file ends before byte {}", offset + len as u64)));
                    }
                    Ok(read) => have += read,
                    Err(_) if read == -1 => {
                        let error = std::io::Error::last_os_error();
                        return Err(Error::runtime(format!(
                            "cuFile can't read {len} bytes at offset {offset}: {error}"
                        )));
                    }
                    Err(_) => {
                        return Err(Error::runtime(format!(
                            "cuFile can't read {len} bytes at offset {offset}: its error {}",
                            -read
                        )));
                    }
                }
            }
            Ok(())
        });
        // SAFETY: registered above.
        unsafe { (self.deregister)(handle) };
        result
    }
}

fn check(call: &str, status: Status) -> Result<()> {
    if status.code == 0 {
        return Ok(());
    }
    Err(Error::runtime(format!("{call} failed with cuFile's error {} (CUDA's {})", status.code, status.driver)))
}

/// Device memory that is registered with cuFile. Dropping it ends the registration.
pub struct Registered {
    cufile: &'static CuFile,
    device: Arc<Device>,
    /// `None` if cuFile refused the memory.
    address: Option<u64>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(address) = self.address
            && self.device.bind().is_ok()
        {
            // SAFETY: registered once, and nothing is being read to it any more, as `register` asks.
            let _ = unsafe { (self.cufile.deregister_memory)(address as *const c_void) };
        }
    }
}
