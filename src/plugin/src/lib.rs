//! `libdali_zarr.so`: the engine behind two doors. [`bridge`] is the one that the C++ shim of the DALI operator uses,
//! [`c_abi`] is for hosts other than DALI. Neither decides anything: both translate a spec, hand out batches, and turn
//! errors and panics into values, since neither may unwind into foreign code.

#[cfg(feature = "dali")]
mod bridge;
pub mod c_abi;
mod interrupts;
mod log;
mod opening;
mod registry;
mod unwind;
