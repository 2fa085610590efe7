//! numcodecs' Base64 (RFC 4648, the standard alphabet), read as by Python's `base64.standard_b64decode`: characters
//! outside the alphabet, such as line ends, are skipped, and everything after the padding is ignored.

/// Returns the value of a character, or `None` if it isn't in the alphabet.
fn digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// Decodes `encoded` to the start of `out`, and returns the number of decoded bytes. If they don't fit `out`, it gets
/// the first ones, and the others are only counted.
///
/// # Errors
/// If the text ends within a group of four characters.
pub fn decode(encoded: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    let (mut written, mut bits, mut digits, mut pads) = (0, 0u32, 0, 0);
    let mut put = |bits: u32, bytes: usize| {
        for byte in &bits.to_be_bytes()[1..=bytes] {
            if let Some(to) = out.get_mut(written) {
                *to = *byte;
            }
            written += 1;
        }
    };
    for &byte in encoded {
        if byte == b'=' {
            if digits >= 2 {
                pads += 1;
                if digits + pads >= 4 {
                    put(bits << (6 * (4 - digits)), digits - 1);
                    digits = 0;
                    break;
                }
            }
            continue;
        }
        let Some(value) = digit(byte) else { continue };
        pads = 0;
        bits = bits << 6 | u32::from(value);
        digits += 1;
        if digits == 4 {
            put(bits & 0xff_ffff, 3);
            (bits, digits) = (0, 0);
        }
    }
    match digits {
        0 => Ok(written),
        _ => Err("the text ends within a group of four characters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Result<Vec<u8>, &'static str> {
        let mut out = [0; 64];
        decode(text.as_bytes(), &mut out).map(|n| out[..n].to_vec())
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
        ] {
            assert_eq!(decoded(text).unwrap(), expected, "{text:?}");
        }
        for text in ["Z", "Zm", "Zm9", "Zg=", "Zm9vY", "====Z"] {
            assert!(decoded(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_is_longer_is_counted() {
        let mut out = [7; 4];
        assert_eq!(decode(b"Zm9vYmFy", &mut out[..3]), Ok(6));
        assert_eq!(&out, b"foo\x07");
    }
}
