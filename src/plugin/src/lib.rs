//! `libdali_zarr.so`: the engine behind two doors. [`bridge`] is the one that DALI's operator uses, the C++ in `shim/`, which is a
//! library of its own for each version of DALI. [`c_abi`] is for hosts other than DALI. Neither decides anything: both translate a
//! spec, hand out batches, and turn errors and panics into values, since neither may unwind into foreign code.

#[allow(unsafe_code, reason = "what the bridge makes of C++ declarations is unsafe")]
mod bridge;
#[allow(unsafe_code, reason = "hosts give and take pointers")]
pub mod c_abi;
mod interrupts;
mod log;
mod opening;
mod operator;
mod registry;
mod unwind;
