//! Compares the kernels' code on the host with other implementations. One test binary, because each would link
//! everything again.

// The functions under test take addresses.
#![allow(unsafe_code)]

mod checksum;
mod element;
mod fatbin;
mod inflate;
mod lz;
mod shuffle;
mod walk;
