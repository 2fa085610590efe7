//! See [`dali_zarr_fuzz::decode_streams`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dali_zarr_fuzz::decode_streams(input));
