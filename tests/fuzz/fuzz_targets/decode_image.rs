//! See [`dali_zarr_fuzz::decode_image`].
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dali_zarr_fuzz::decode_image(input));
