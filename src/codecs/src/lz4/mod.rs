//! LZ4 as numcodecs writes it: the decoded size as a little-endian u32, then one LZ4 block. Its name is `lz4` in v2 and
//! `numcodecs.lz4` in v3.
//!
//! Specification: the LZ4 block format, and numcodecs' header. Decoded on the CPU by lz4_flex; on the GPU by `dz_lz4`.

pub(super) mod streams;

use super::{Compression, damaged, wrong_size};
use dali_zarr_base::error::Result;

/// Fills `out` from the block in `encoded`.
pub(super) fn decode(encoded: &[u8], out: &mut [u8]) -> Result<()> {
    let (size, block) = header(encoded)?;
    if size != out.len() {
        return Err(wrong_size(out.len(), size));
    }
    let written =
        lz4_flex::block::decompress_into(block, out).map_err(|e| damaged(Compression::Lz4, encoded.len(), e))?;
    if written == size { Ok(()) } else { Err(wrong_size(size, written)) }
}

/// Returns the decoded size, and the block after it.
pub(super) fn header(encoded: &[u8]) -> Result<(usize, &[u8])> {
    let Some((size, block)) = encoded.split_first_chunk::<4>() else {
        return Err(damaged(Compression::Lz4, encoded.len(), "the data ends within the size before the block"));
    };
    Ok((u32::from_le_bytes(*size) as usize, block))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "abcabcabcabcabcabcab" + "12345" in LZ4: 3 literals, a match of 17 at distance 3, 5 literals.
    const ENCODED: [u8; 16] = [25, 0, 0, 0, 0x3d, b'a', b'b', b'c', 3, 0, 0x50, b'1', b'2', b'3', b'4', b'5'];

    #[test]
    fn a_block_by_hand() {
        let mut out = [0; 25];
        decode(&ENCODED, &mut out).unwrap();
        assert_eq!(&out, b"abcabcabcabcabcabcab12345");
    }

    #[test]
    fn damage_never_panics() {
        let mut out = [0; 25];
        for cut in 0..ENCODED.len() {
            assert!(decode(&ENCODED[..cut], &mut out).is_err(), "cut at {cut}");
        }
        let error = decode(&ENCODED, &mut [0; 24]).unwrap_err();
        assert!(error.message().contains("expected 24 decoded bytes, but found 25"), "{error}");
        for at in 4..ENCODED.len() {
            for bit in 0..8 {
                let mut wrong = ENCODED;
                wrong[at] ^= 1 << bit;
                let _ = decode(&wrong, &mut out);
            }
        }
        let mut far = ENCODED;
        far[8] = 200;
        assert!(decode(&far, &mut out).is_err(), "a match before the start");
    }
}
