//! For tests of this crate and of the crates above it: a store that observes reads, a server without sockets that acts
//! out faults, and repositories of Icechunk.

mod hooked;

pub use crate::icechunk::testing as icechunk;
pub use crate::object::fake::{Act, Random, Server, publish, store_of, without_waiting};
pub use hooked::Hooked;
