//! Whatever the bytes are, the CPU's decoders end in a value or an error.
#![no_main]

use dali_zarr_engine::codec::{BloscCodec, Compression};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (kind, len, chunk) = input;
    let compression = [
        Compression::Zstd,
        Compression::Gzip,
        Compression::Zlib,
        Compression::Lz4,
        Compression::Blosc(BloscCodec::Lz4),
    ][usize::from(kind % 5)];
    let mut out = vec![0; usize::from(len)];
    let _ = compression.decode(chunk, &mut out);
});
