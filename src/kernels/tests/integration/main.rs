//! The kernels' host twin against other implementations. One binary, because each links everything again.

// The host twin takes addresses.
#![allow(unsafe_code)]

mod checksum;
mod element;
mod fatbin;
mod inflate;
mod lz;
mod shuffle;
mod walk;
mod zstd;
