//! See [`dali_zarr_fuzz::open_chunk`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dali_zarr_fuzz::open_chunk(input));
