//! `libdali_zarr.so`: the engine with two interfaces. DALI's operator uses [`bridge`]; its C++ is in `shim/`, and is
//! built as a separate library for each version of DALI. Other hosts use [`c_abi`]. Neither decides anything: both
//! translate a spec, hand out batches, and turn errors and panics into values, because panics must not unwind into
//! foreign code.

#[allow(unsafe_code, reason = "what the bridge makes of C++ declarations is unsafe")]
mod bridge;
#[allow(unsafe_code, reason = "hosts give and take pointers")]
pub mod c_abi;
mod failures;
mod interrupts;
mod log;
mod opening;
mod operator;
mod process;
mod registry;
mod runs;
mod unwind;
