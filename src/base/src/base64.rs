//! Base64 (RFC 4648, the standard alphabet), read as by Python's `base64.standard_b64decode`: characters outside the
//! alphabet, such as line ends, are skipped, and everything after the padding is ignored.

use ::base64::alphabet::STANDARD;
use ::base64::decoded_len_estimate;
use ::base64::engine::{Engine, GeneralPurpose, GeneralPurposeConfig};

/// Python ignores the bits behind the last byte.
const ENGINE: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));
/// Characters decoded at a time, if some must be skipped.
const PIECE: usize = 1024;

/// Decodes `text`.
///
/// # Errors
/// If the text ends within a group of four characters.
pub fn decode(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut out = vec![0; decoded_len_estimate(text.len())];
    let len = decode_to(text, &mut out)?;
    out.truncate(len);
    Ok(out)
}

/// Decodes `text` to the start of `out`, and returns the number of decoded bytes. If they don't fit `out`, it gets the
/// first ones, and the others are only counted.
///
/// # Errors
/// If the text ends within a group of four characters.
pub fn decode_to(text: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    ENGINE.decode_slice(text, out).or_else(|_| skipping(text, out))
}

/// As [`decode_to`], for text with characters to skip, and for more bytes than fit.
fn skipping(text: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    let mut written = 0;
    let mut put = |piece: &[u8]| -> Result<(), &'static str> {
        let mut bytes = [0; PIECE / 4 * 3];
        let len =
            ENGINE.decode_slice(piece, &mut bytes).map_err(|_| "the text ends within a group of four characters")?;
        let room = out.get_mut(written..).unwrap_or_default();
        let fits = len.min(room.len());
        room[..fits].copy_from_slice(&bytes[..fits]);
        written += len;
        Ok(())
    };
    let (mut piece, mut len, mut pads) = ([0; PIECE], 0, 0);
    for &byte in text {
        match byte {
            // Padding ends the text if it completes a group. Elsewhere it is skipped.
            b'=' if len % 4 >= 2 => {
                pads += 1;
                if len % 4 + pads == 4 {
                    piece[len..len + pads].fill(b'=');
                    len += pads;
                    break;
                }
            }
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => {
                (piece[len], pads) = (byte, 0);
                len += 1;
                if len == PIECE {
                    put(&piece)?;
                    len = 0;
                }
            }
            _ => {}
        }
    }
    put(&piece[..len])?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Result<Vec<u8>, &'static str> {
        let mut out = [0; 64];
        let found = decode_to(text.as_bytes(), &mut out).map(|n| out[..n].to_vec());
        assert_eq!(decode(text.as_bytes()), found, "{text:?}");
        found
    }

    #[test]
    fn as_python_reads_it() {
        for (text, expected) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9v\nYm Fy\r\n", b"foobar"),
            ("Zg==Zm8=", b"f"),
            ("Zg==anything!", b"f"),
            ("=Zm9v", b"foo"),
            ("Zm=9v", b"foo"),
            ("+/+/", &[0xfb, 0xff, 0xbf]),
            ("Zh==", b"f"),
            ("Zm=\n=", b"f"),
        ] {
            assert_eq!(decoded(text).unwrap(), expected, "{text:?}");
        }
        for text in ["Z", "Zm", "Zm9", "Zg=", "Zm9vY", "====Z"] {
            assert!(decoded(text).is_err(), "{text:?}");
        }
    }

    /// Lines of 76 characters, as MIME and Python's `base64.encodebytes` have them.
    #[test]
    fn lines() {
        for len in [PIECE / 4 * 3 - 1, PIECE / 4 * 3, PIECE, 5 * PIECE + 7] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37 % 251) as u8).collect();
            let text = ENGINE.encode(&bytes);
            let lines: Vec<u8> = text.as_bytes().chunks(76).flat_map(|line| [line, b"\r\n"].concat()).collect();
            assert_eq!((decode(text.as_bytes()), decode(&lines)), (Ok(bytes.clone()), Ok(bytes)));
            assert!(decode(&lines[1..]).is_err());
        }
    }

    #[test]
    fn what_is_longer_is_counted() {
        let mut out = [7; 4];
        assert_eq!(decode_to(b"Zm9vYmFy", &mut out[..3]), Ok(6));
        assert_eq!(&out, b"foo\x07");
    }
}
