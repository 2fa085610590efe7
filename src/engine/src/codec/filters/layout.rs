//! Filters that move bits and bytes without computing: numcodecs' PackBits and Shuffle, and v3's `transpose` where it
//! doesn't come first.

use crate::error::{Error, Result};

/// Bytes of `elements` bools that are packed.
pub(super) fn packed_bytes(elements: usize) -> usize {
    1 + elements.div_ceil(8)
}

/// numcodecs' PackBits: the number of unused bits in the last byte, then eight bools in a byte, the first highest.
///
/// # Errors
/// If the number of unused bits isn't that of `out.len()` bools.
pub(super) fn unpack_bits(input: &[u8], out: &mut [u8]) -> Result<()> {
    let [unused, packed @ ..] = input else {
        return Err(Error::runtime("expected packbits data, but found no bytes; the chunk is truncated"));
    };
    if packed.len() != out.len().div_ceil(8) || usize::from(*unused) != packed.len() * 8 - out.len() {
        return Err(Error::runtime(format!(
            "expected packbits data of {} bools, but found {} bytes with {unused} bits unused; the chunk is damaged",
            out.len(),
            packed.len()
        )));
    }
    for (eight, byte) in out.chunks_mut(8).zip(packed) {
        for (bit, target) in eight.iter_mut().enumerate() {
            *target = byte >> (7 - bit) & 1;
        }
    }
    Ok(())
}

/// The inverse of a byte shuffle: `input` holds the first bytes of all elements of `size` bytes, then the second ones.
///
/// # Errors
/// If `input` isn't a whole number of elements.
pub(super) fn unshuffle(input: &[u8], size: usize, out: &mut [u8]) -> Result<()> {
    debug_assert_eq!(input.len(), out.len());
    if size <= 1 {
        out.copy_from_slice(input);
        return Ok(());
    }
    if !input.len().is_multiple_of(size) {
        return Err(Error::runtime(format!(
            "expected shuffled elements of {size} bytes, but found {} bytes, which aren't a multiple; the chunk is \
             damaged",
            input.len()
        )));
    }
    let count = input.len() / size;
    for (element, target) in out.chunks_exact_mut(size).enumerate() {
        for (byte, value) in target.iter_mut().enumerate() {
            *value = input[byte * count + element];
        }
    }
    Ok(())
}

/// Elements of `size` bytes, in C order of the transposed axes, back to C order of `shape`: axis `k` of `input` is axis
/// `order[k]` of `shape`.
pub(super) fn untranspose(input: &[u8], shape: &[u64], order: &[usize], size: usize, out: &mut [u8]) {
    // Bytes from one element of `input` to the next along each axis of `shape`.
    let mut steps = vec![0usize; shape.len()];
    let mut step = size;
    for &axis in order.iter().rev() {
        steps[axis] = step;
        step *= shape[axis] as usize;
    }
    let mut at = vec![0u64; shape.len()];
    let mut from = 0usize;
    for target in out.chunks_exact_mut(size) {
        target.copy_from_slice(&input[from..from + size]);
        for axis in (0..shape.len()).rev() {
            at[axis] += 1;
            from += steps[axis];
            if at[axis] < shape[axis] {
                break;
            }
            from -= steps[axis] * shape[axis] as usize;
            at[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits() {
        let mut out = [9; 4];
        unpack_bits(&[4, 0b1001_0000], &mut out).unwrap();
        assert_eq!(out, [1, 0, 0, 1]);
        let mut out = [9; 8];
        unpack_bits(&[0, 0b0100_0001], &mut out).unwrap();
        assert_eq!(out, [0, 1, 0, 0, 0, 0, 0, 1]);
        for wrong in [&[][..], &[0], &[1, 0], &[0, 0, 0], &[255, 0]] {
            assert!(unpack_bits(wrong, &mut [0; 8]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn bytes() {
        let mut out = [0; 6];
        unshuffle(&[1, 3, 5, 2, 4, 6], 2, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5, 6]);
        unshuffle(&[1, 3, 5, 2, 4, 6], 0, &mut out).unwrap();
        assert_eq!(out, [1, 3, 5, 2, 4, 6]);
        assert!(unshuffle(&[0; 6], 4, &mut out).is_err());
    }

    #[test]
    fn axes() {
        // shape (2, 3, 2), stored as (3, 2, 2): axes 1, 2, 0.
        let input: Vec<u8> = (0..12).flat_map(|i: u16| i.to_ne_bytes()).collect();
        let mut out = vec![0; 24];
        untranspose(&input, &[2, 3, 2], &[1, 2, 0], 2, &mut out);
        let found: Vec<u16> = out.as_chunks::<2>().0.iter().map(|b| u16::from_ne_bytes(*b)).collect();
        // Element (i, j, k) lies at (j, k, i).
        let expected: Vec<u16> =
            (0..12).map(|n| (n / 6, n / 2 % 3, n % 2)).map(|(i, j, k)| j * 4 + k * 2 + i).collect();
        assert_eq!(found, expected);
    }
}
