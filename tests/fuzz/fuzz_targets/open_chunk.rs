//! Whatever the bytes are, what is given to the GPU lies within the chunk, and its outputs cover the decoded chunk once.
#![no_main]

use dali_zarr_engine::codec::{BloscCodec, Compression};
use dali_zarr_engine::gpu_codec::{Opened, ZstdDecoder, open};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (kind, len, chunk) = input;
    let len = usize::from(len) * 4;
    let compression = [
        Compression::Zstd,
        Compression::Gzip,
        Compression::Zlib,
        Compression::Lz4,
        Compression::Blosc(BloscCodec::Lz4),
    ][usize::from(kind % 5)];
    for zstd in [ZstdDecoder::Kernels, ZstdDecoder::Nvcomp] {
        let mut opened = Opened::default();
        if open(compression, zstd, chunk, len, &mut opened).is_err() {
            continue;
        }
        let mut parts = opened.parts;
        parts.sort_by_key(|p| p.to);
        let mut end = 0;
        for part in &parts {
            assert!(part.start + part.len <= chunk.len());
            assert_eq!(part.to, end);
            end += part.decoded;
        }
        assert_eq!(end, len);
    }
});
