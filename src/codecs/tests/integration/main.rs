//! Tests of plans of zstd frames with the kernels' code on the host, and of images as chunks.

// The functions under test take addresses, and an allocator counts memory.
#![allow(unsafe_code)]

mod images;
mod zstd;
