//! Whole gzip members and zlib streams, decoded by libdeflate: it needs all of the input and room for all of the output, and takes
//! a fifth less time than zlib-rs. What it refuses is decoded once more as a stream, for the exact error.
//!
//! `unsafe` is allowed here: libdeflate is called with addresses and lengths of slices.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_decompressor, libdeflate_free_decompressor,
    libdeflate_gzip_decompress_ex, libdeflate_result_LIBDEFLATE_SUCCESS, libdeflate_zlib_decompress_ex,
};

/// A decoder, which has tables of 11 KB.
struct Decoder(NonNull<libdeflate_decompressor>);

impl Decoder {
    fn new() -> Option<Self> {
        // SAFETY: it has no conditions; null means that there is no memory.
        NonNull::new(unsafe { libdeflate_alloc_decompressor() }).map(Self)
    }

    /// Decodes one gzip member, or one zlib stream, at the beginning of `encoded`. Returns how many bytes it has, and how many it
    /// decodes to. `None` if it is damaged or needs more room than `out` has.
    fn one(&mut self, is_gzip: bool, encoded: &[u8], out: &mut [u8]) -> Option<(usize, usize)> {
        let decode = if is_gzip { libdeflate_gzip_decompress_ex } else { libdeflate_zlib_decompress_ex };
        let (mut read, mut written) = (0, 0);
        // SAFETY: the decoder is alive and used by this call alone; both slices have the bytes that are told, and the two numbers
        // are written.
        let result = unsafe {
            decode(
                self.0.as_ptr(),
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
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: freed once, and not used after this.
        unsafe { libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}

/// Fills `out` from gzip members with zero bytes after each. Returns whether they are all there is, and fill it. If not, the content
/// of `out` is undefined.
pub(super) fn decode_gzip(encoded: &[u8], out: &mut [u8]) -> bool {
    // A checksum of the header, which libdeflate doesn't verify, and reserved bits.
    const REFUSED: u8 = 0xe2;
    let Some(mut decoder) = Decoder::new() else { return false };
    let (mut rest, mut written) = (encoded, 0);
    loop {
        if rest.get(3).is_none_or(|flags| flags & REFUSED != 0) {
            return false;
        }
        let Some((read, more)) = decoder.one(true, rest, &mut out[written..]) else { return false };
        written += more;
        rest = &rest[read..];
        rest = &rest[rest.iter().take_while(|&&byte| byte == 0).count()..];
        if rest.is_empty() {
            return written == out.len();
        }
    }
}

/// Fills `out` from the zlib stream at the beginning of `encoded`. Returns whether it fills it. If not, the content of `out` is undefined.
pub(super) fn decode_zlib(encoded: &[u8], out: &mut [u8]) -> bool {
    let len = out.len();
    Decoder::new().and_then(|mut decoder| decoder.one(false, encoded, out)).is_some_and(|(_, written)| written == len)
}
