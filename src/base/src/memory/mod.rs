//! Memory that is reserved once and used by many threads: arenas for chunks, buffers for finished batches.
//!
//! Different threads use disjoint ranges of one block at the same time. Each range to which chunks are read or decoded
//! has a [`Lease`], which only the lender of the block can make: a [`HostArena`] for chunks, a [`HostBuffer`] for the
//! outputs of a batch. So code that reads and decodes needs no `unsafe`. Code that assembles batches and code of the
//! GPU use addresses, of memory that the scheduler, a wave or a copy stream holds meanwhile.

pub mod arena;
mod block;
mod host_arena;
mod lease;
mod ledger;
mod machine;
mod per_process;
mod pool;

pub use block::{HostBlock, page_size};
pub use host_arena::HostArena;
pub use lease::{Lease, Part, SharedLease};
pub use ledger::{Account, Given, Ledger};
pub use machine::{Machine, local_processes};
pub use per_process::PerProcess;
pub use pool::{HostBuffer, Pool};

/// Formats a number of bytes for people.
pub fn shown(n: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| n >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", n as f64 / *unit as f64),
        None => format!("{n} bytes"),
    }
}
