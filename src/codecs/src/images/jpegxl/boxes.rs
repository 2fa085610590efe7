//! The container of JPEG XL (ISO/IEC 18181-2): boxes around the codestream, whole (`jxlc`) or in parts (`jxlp`).
//!
//! Other boxes hold no pixels: levels, Exif, XMP, and what is left of a JPEG file. They are skipped.

use std::borrow::Cow;

use crate::images::boxes::next;

/// The first bytes of a file with boxes.
const SIGNATURE: [u8; 12] = [0, 0, 0, 12, b'J', b'X', b'L', b' ', 13, 10, 0x87, 10];

/// Returns the codestream of a file, which may be nothing but a codestream.
///
/// # Errors
/// If there is none, or if its parts aren't all there in their order.
pub(super) fn codestream(file: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let Some(mut rest) = file.strip_prefix(&SIGNATURE) else { return Ok(Cow::Borrowed(file)) };
    let mut parts: Vec<u8> = Vec::new();
    let mut number = 0;
    while let Some((kind, inside)) = next(&mut rest)? {
        match kind {
            b"jxlc" if number == 0 => return Ok(Cow::Borrowed(inside)),
            b"jxlp" => {
                let (index, part) = inside.split_first_chunk::<4>().ok_or("a box is truncated")?;
                let index = u32::from_be_bytes(*index);
                let last = index >> 31 == 1;
                if index & 0x7fff_ffff != number {
                    return Err("the parts of its codestream aren't in order".to_owned());
                }
                if last && number == 0 {
                    return Ok(Cow::Borrowed(part));
                }
                parts.extend_from_slice(part);
                if last {
                    return Ok(Cow::Owned(parts));
                }
                number += 1;
            }
            b"jxlc" => return Err("it has a codestream beside the parts of one".to_owned()),
            _ => {}
        }
    }
    Err(if number == 0 { "it has no codestream" } else { "the last part of its codestream is missing" }.to_owned())
}
