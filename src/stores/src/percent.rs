//! Names in URLs, with percent signs before the hexadecimal digits of bytes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Returns the name that a part of a URL means. A percent sign without two digits stays.
pub(super) fn percent_decoded(text: &str) -> OsString {
    let bytes = text.as_bytes();
    let hex = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i] == b'%'
            && let (Some(&high), Some(&low)) = (bytes.get(i + 1), bytes.get(i + 2))
            && let (Some(high), Some(low)) = (hex(high), hex(low))
        {
            out.push(high << 4 | low);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    OsString::from_vec(out)
}
