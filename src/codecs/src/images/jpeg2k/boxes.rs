//! JP2 files (ITU-T T.800, annex I): boxes around a codestream.
//!
//! Of the boxes this reads those that change values: colours and the order of channels. What isn't the codestream's own
//! samples in their order is refused, so that no profile or palette takes memory.

use crate::images::boxes::next;

/// The first bytes of a JP2 file.
const SIGNATURE: [u8; 12] = [0, 0, 0, 12, b'j', b'P', b' ', b' ', 13, 10, 0x87, 10];

/// Returns the codestream of a file, which may be nothing but a codestream.
///
/// # Errors
/// If there is none, or if its samples aren't the image's values.
pub(super) fn codestream(file: &[u8]) -> Result<&[u8], String> {
    if !file.starts_with(&SIGNATURE) {
        return Ok(file);
    }
    let mut rest = file;
    while let Some((kind, inside)) = next(&mut rest)? {
        match kind {
            b"jp2h" => header(inside)?,
            b"jp2c" => return Ok(inside),
            _ => {}
        }
    }
    Err("it has no codestream".to_owned())
}

/// Reads the boxes of a header.
fn header(mut boxes: &[u8]) -> Result<(), String> {
    while let Some((kind, inside)) = next(&mut boxes)? {
        match (kind, inside) {
            (b"pclr" | b"cmap", _) => return Err("it has a palette, which has no decoder".to_owned()),
            // Enumerated colours: sYCC and e-sYCC, which imagecodecs turns into RGB.
            (b"colr", [1, _, _, 0, 0, 0, 18 | 24, ..]) => {
                return Err("its colours are sYCC, which has no decoder".to_owned());
            }
            (b"cdef", [_, _, definitions @ ..]) => {
                let moved = |one: &[u8]| {
                    let [channel, kind, colour] = [0, 2, 4].map(|at| u16::from_be_bytes([one[at], one[at + 1]]));
                    kind == 0 && colour != 0 && colour != u16::MAX && colour - 1 != channel
                };
                if definitions.chunks_exact(6).any(moved) {
                    return Err("its channels are in another order than its colours, which has no decoder".to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(())
}
