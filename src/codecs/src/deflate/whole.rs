//! A whole gzip member or zlib stream, decoded by libdeflate: it needs all of the input and room for all of the output, and takes
//! a fifth less time than zlib-rs. What it refuses is decoded once more as a stream, for the exact error.
//!
//! `unsafe` is allowed here: libdeflate is called with addresses and lengths of slices.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_decompressor, libdeflate_free_decompressor,
    libdeflate_gzip_decompress_ex, libdeflate_result_LIBDEFLATE_SUCCESS, libdeflate_zlib_decompress_ex,
};

use crate::Compression;

/// The flags of a gzip header that aren't taken: a checksum of the header, which libdeflate doesn't verify, and reserved bits.
const REFUSED: u8 = 0xe2;

/// A decoder, which has tables of 11 KB.
struct Decoder(NonNull<libdeflate_decompressor>);

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: freed once, and not used after this.
        unsafe { libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}

/// Decodes one gzip member, or one zlib stream, at the beginning of `encoded`. Returns how many bytes it has, and how many it
/// decodes to. `None` if it is damaged, or needs more room than `out` has: then the content of `out` is undefined.
pub(super) fn decode(kind: Compression, encoded: &[u8], out: &mut [u8]) -> Option<(usize, usize)> {
    let is_gzip = kind == Compression::Gzip;
    if is_gzip && encoded.get(3).is_none_or(|flags| flags & REFUSED != 0) {
        return None;
    }
    // SAFETY: it has no conditions; null means that there is no memory.
    let decoder = NonNull::new(unsafe { libdeflate_alloc_decompressor() }).map(Decoder)?;
    let decode = if is_gzip { libdeflate_gzip_decompress_ex } else { libdeflate_zlib_decompress_ex };
    let (mut read, mut written) = (0, 0);
    // SAFETY: the decoder is alive and used by this call alone; both slices have the bytes that are told, and the two numbers
    // are written.
    let result = unsafe {
        decode(
            decoder.0.as_ptr(),
            encoded.as_ptr().cast(),
            encoded.len(),
            out.as_mut_ptr().cast(),
            out.len(),
            &raw mut read,
            &raw mut written,
        )
    };
    (result == libdeflate_result_LIBDEFLATE_SUCCESS).then_some((read, written))
}
