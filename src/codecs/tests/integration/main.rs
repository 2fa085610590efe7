//! Tests of plans of zstd frames with the kernels' code on the host.

// The functions under test take addresses.
#![allow(unsafe_code)]

mod zstd;
