//! `libdali_zarr.so`: the engine behind two doors. [`operator_abi`] is the one that the C++ shims of the DALI operator use, which are
//! libraries of their own: one for each version of DALI. [`c_abi`] is for hosts other than DALI. Neither decides anything: both
//! translate a spec, hand out batches, and turn errors and panics into values, since neither may unwind into foreign code.

pub mod c_abi;
mod interrupts;
mod log;
mod opening;
mod operator;
pub mod operator_abi;
mod registry;
mod unwind;
