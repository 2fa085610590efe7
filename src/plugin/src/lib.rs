//! `libdali_zarr.so`: the engine behind two doors. [`bridge`] is the one that the C++ shim of the DALI operator uses,
//! [`c_abi`] is for hosts other than DALI. Neither decides anything: both translate a spec, hand out batches, and turn
//! errors and panics into values, since neither may unwind into foreign code.

#[cfg(feature = "dali")]
#[allow(unsafe_code, reason = "what the bridge makes of C++ declarations is unsafe")]
mod bridge;
#[allow(unsafe_code, reason = "hosts give and take pointers")]
pub mod c_abi;
mod interrupts;
mod log;
mod opening;
mod registry;
mod unwind;
