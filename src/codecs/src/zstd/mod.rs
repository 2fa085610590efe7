//! Zstandard: zarr-python's default for format 3, written by numcodecs, zarrs, tensorstore and others.
//!
//! Specification: RFC 8878. Decoded on the CPU by libzstd, which takes any number of frames, skips skippable ones and
//! verifies checksums; on the GPU by `dz_zstd_entropy`, `dz_zstd_sequences` and `dz_zstd_execute_*`. For the GPU,
//! [`plan`] reads the headers of frames.

mod streams;

pub use streams::{MAX_FRAME, plan};

use std::cell::RefCell;

use zstd_safe::{DCtx, get_error_name, get_frame_content_size};

use crate::{Compression, damaged, wrong_size};
use dali_zarr_base::error::Result;

thread_local! {
    /// Each thread's decoder. Its 150 KB would otherwise be allocated for each chunk.
    static CONTEXT: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Fills `out` from the frames in `encoded`.
pub(super) fn decode(encoded: &[u8], out: &mut [u8]) -> Result<()> {
    let expected = out.len();
    match CONTEXT.with_borrow_mut(|context| context.decompress(out, encoded)) {
        Ok(found) if found == expected => Ok(()),
        Ok(found) => Err(wrong_size(expected, found)),
        Err(code) => Err(match get_frame_content_size(encoded) {
            Ok(Some(size)) if size > expected as u64 => wrong_size(expected, size),
            _ => damaged(Compression::Zstd, encoded.len(), get_error_name(code)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(data.len()));
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::ChecksumFlag(true)).unwrap();
        context.compress2(&mut out, data).unwrap();
        out
    }

    #[test]
    fn frames_skippable_frames_and_checksums() {
        let data: Vec<u8> = (0..100_000u32).map(|i| (i / 7) as u8).collect();
        let (a, b) = data.split_at(30_000);
        let mut encoded = encode(a);
        encoded.extend_from_slice(&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        encoded.extend(encode(b));
        let mut out = vec![0; data.len()];
        decode(&encoded, &mut out).unwrap();
        assert_eq!(out, data);

        let last = encoded.len() - 1;
        encoded[last] ^= 1;
        let error = decode(&encoded, &mut out).unwrap_err();
        assert!(error.message().contains("checksum"), "{error}");
    }

    #[test]
    fn wrong_sizes_and_trailing_bytes() {
        let mut encoded = encode(&[5; 1000]);
        let error = decode(&encoded, &mut [0; 1001]).unwrap_err();
        assert!(error.message().contains("expected 1001 decoded bytes, but found 1000"), "{error}");
        let error = decode(&encoded, &mut [0; 999]).unwrap_err();
        assert!(error.message().contains("expected 999 decoded bytes, but found 1000"), "{error}");
        for cut in 0..encoded.len() {
            assert!(decode(&encoded[..cut], &mut [0; 1000]).is_err(), "cut at {cut}");
        }
        encoded.push(0);
        assert!(decode(&encoded, &mut [0; 1000]).is_err());
    }
}
