//! Whatever the bytes are, the GPU's decoders (their twins on the CPU, from the same source) stay within their buffers.
#![no_main]

use dali_zarr_kernels::zstd::Wave;
use dali_zarr_kernels::{StreamKind, host, zstd_plan};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (kind, len, stream) = input;
    // Whole words are read: a frame must lie in an allocation that ends at one.
    let mut padded = stream.to_vec();
    padded.resize(stream.len().next_multiple_of(8), 0);
    let mut out = vec![0; usize::from(len).next_multiple_of(8)];
    let (input, room) = (&padded[..stream.len()], usize::from(len));
    match kind % 4 {
        0 => drop(host::inflate(input, &mut out[..room])),
        1 => drop(host::stream(StreamKind::Lz4, input, &mut out[..room], 4096)),
        2 => drop(host::stream(StreamKind::Snappy, input, &mut out[..room], 4096)),
        _ => {
            if let Ok(plan) = zstd_plan::plan(input, room) {
                let mut wave = Wave::default();
                wave.push(&plan, input.as_ptr() as u64, out.as_mut_ptr() as u64);
                // SAFETY: the plan is of these bytes, and the output has room for its capacity.
                let frames = unsafe { host::zstd(&wave) };
                assert_eq!(frames.len(), 1);
            }
        }
    }
});
