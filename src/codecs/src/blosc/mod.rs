//! Blosc 1 chunks on the CPU, by c-blosc: all of its compressors and shuffles.
//!
//! Specification: c-blosc's README_CHUNK_FORMAT. `unsafe` is allowed here for the calls of c-blosc, which gets buffers
//! with their lengths.

#![allow(unsafe_code)]

pub(super) mod streams;

use super::{damaged as damaged_data, wrong_size};
use dali_zarr_base::error::{Error, Result};

/// Largest block in bytes that is decoded, unless the metadata ask for larger blocks. c-blosc takes up to three times
/// the block size as working memory, which must be known before a chunk is read. Blocks that c-blosc chooses itself
/// have at most 2 MiB.
const MAX_BLOCK: usize = 16 << 20;

/// Length of the header in bytes.
const HEADER: usize = 16;

/// Smallest block in bytes that c-blosc chooses itself.
const MIN_BLOCK: usize = 16 << 10;

/// Returns the most bytes that known writers encode `decoded` bytes to. `asked` is the block size in the metadata, 0 if
/// they give none.
pub(super) fn usual_encoded_bytes(decoded: usize, asked: usize) -> usize {
    // Data that doesn't shrink is stored uncompressed. Most writers store it as a whole after the header, others (GDAL)
    // stream by stream. Then each block has an offset, and each of its streams (at most 16, of at least 128 bytes) a
    // length.
    let block = if asked == 0 { MIN_BLOCK } else { asked.max(128) };
    let streams = (block.min(decoded) / 128).clamp(1, 16);
    let each = 4 + 4 * streams;
    decoded.saturating_add(HEADER).saturating_add((decoded / block + 1).saturating_mul(each))
}

/// Returns the most working memory in bytes for decoding a chunk of `decoded` bytes, without its output. `asked` is the
/// block size in the metadata, 0 if they give none.
pub(super) fn working_bytes(decoded: usize, asked: usize) -> usize {
    decoded.min(asked.max(MAX_BLOCK)).saturating_mul(3).saturating_add(64 << 10)
}

/// Returns the decoded size that the header gives: a little-endian number in bytes 4 to 7.
///
/// # Errors
/// If the data are shorter than the header, or than the encoded size in its bytes 12 to 15.
pub(super) fn decoded_size(encoded: &[u8]) -> Result<usize> {
    let field = |at: usize| encoded.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let (Some(decoded), Some(size)) = (field(4), field(12)) else {
        return Err(Error::damaged(format!(
            "expected a Blosc header of 16 bytes, but found {} bytes in all; the chunk is truncated",
            encoded.len()
        )));
    };
    if size > encoded.len() {
        return Err(Error::damaged(format!(
            "expected {size} bytes, as the Blosc header says, but found {}; the chunk is truncated",
            encoded.len()
        )));
    }
    Ok(decoded)
}

/// Fills `out` from the chunk in `encoded`. `asked` is the block size in the metadata, 0 if they give none.
pub(super) fn decode(encoded: &[u8], asked: usize, out: &mut [u8]) -> Result<()> {
    let Some(header) = encoded.first_chunk::<HEADER>() else {
        return Err(damaged(encoded.len(), "the data ends within the header"));
    };
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
    let (decoded, block, stored) = (word(4), word(8), word(12));
    if decoded != out.len() {
        return Err(wrong_size(out.len(), decoded));
    }
    if stored > encoded.len() {
        let reason = format!("the header says that they are {stored}");
        return Err(damaged(encoded.len(), reason));
    }
    let most = asked.max(MAX_BLOCK);
    if block > most && block <= decoded {
        return Err(Error::damaged(format!(
            "expected blosc blocks of at most {most} bytes, which is what the metadata's blocksize allows for, but found \
             {block}; rewrite the array with smaller ones, or with that blocksize in its metadata"
        )));
    }
    let mut found = 0usize;
    // SAFETY: the pointer and the length are those of the slice; the size is written to a live variable.
    let valid = unsafe { blosc_src::blosc_cbuffer_validate(encoded.as_ptr().cast(), stored, &raw mut found) };
    if valid != 0 || found != out.len() {
        return Err(damaged(encoded.len(), "the header isn't one of Blosc 1"));
    }
    if out.is_empty() {
        return Ok(());
    }
    // SAFETY: the source has at least the encoded bytes that its validated header gives; the output's length is passed
    // on.
    let written =
        unsafe { blosc_src::blosc_decompress_ctx(encoded.as_ptr().cast(), out.as_mut_ptr().cast(), out.len(), 1) };
    match usize::try_from(written) {
        Ok(written) if written == out.len() => Ok(()),
        Ok(written) => Err(wrong_size(out.len(), written)),
        Err(_) => Err(damaged(encoded.len(), format!("c-blosc gives up with status {written}"))),
    }
}

fn damaged(encoded: usize, reason: impl std::fmt::Display) -> Error {
    damaged_data("blosc", encoded, reason)
}
