//! The CUDA driver and cuFile behind safe types, and the kernels.
//!
//! All functions return the crate's [`Error`] with the name of the CUDA call. Nothing panics on a machine without a
//! driver: [`Device::open`] is an error there. Addresses of device memory are `u64`. Destructors ignore errors: after
//! an illegal access on the device every call fails, and its memory is freed with the context.

#![allow(unsafe_code)]

mod copy;
mod cufile;
mod decode_arrays;
mod device;
mod kernels;
mod memory;
mod side_library;
mod stream;

pub use copy::{copy_async, copy_device_async, copy_to_device_async, copy_to_host_async, memset_async};
pub use cufile::CuFile;
pub use decode_arrays::DecodeArrays;
pub use device::Device;
pub use kernels::{AssembleArrays, Module, ZstdArrays};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use side_library::SideLibrary;
pub use stream::{Event, Stream};

use cudarc::driver::{result::DriverError, sys::CUresult};
use dali_zarr_base::error::{Code, Error, Result};

/// Turns a driver call's code into a [`Result`] whose message names the call.
fn check(call: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(driver_error(call, DriverError(code))) }
}

/// The error for a driver call that failed.
fn driver_error(call: &str, error: DriverError) -> Error {
    let text = |text: Result<&std::ffi::CStr, DriverError>| {
        text.map_or_else(|_| "unknown".to_owned(), |text| text.to_string_lossy().into_owned())
    };
    let advice = match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            "; lower device_memory_limit or host_memory_limit, or free memory that others hold"
        }
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS | CUresult::CUDA_ERROR_LAUNCH_FAILED => {
            "; the process's CUDA context is lost: start the process again"
        }
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "; the GPU needs compute capability 7.5 or higher; for a GPU that is newer than this library, update NVIDIA's driver"
        }
        _ => "",
    };
    let message = format!("{call} failed: {}: {}{advice}", text(error.error_name()), text(error.error_string()));
    Error::coded(error_code(error.0), message).caused_by(error)
}

/// The code of the error for a driver call that failed.
fn error_code(result: CUresult) -> Code {
    if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY { Code::OutOfMemory } else { Code::DeviceFailed }
}

#[cfg(test)]
pub(crate) mod test_gpu;
#[cfg(test)]
mod tests_device;
