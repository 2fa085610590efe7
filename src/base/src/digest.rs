//! A hash of long lists of numbers (tables, rows, blocks). Checkpoints hold the hash in place of the list.

use std::iter;

use twox_hash::XxHash3_128;

/// Bytes hashed at a time. A call for each value would take several times as long.
const PIECE: usize = 4096;

/// Returns a 128-bit hash as 32 hex digits: XXH3 of `shape` and the values, each with 8 bytes in little-endian order. So
/// it depends on the values, their order, their number, and `shape`. `shape` distinguishes lists that hold the same
/// numbers but mean something else. The hash must be the same in all versions.
pub fn digest(values: impl Iterator<Item = u64>, shape: u64) -> String {
    let mut hasher = XxHash3_128::new();
    let mut piece = Vec::with_capacity(PIECE);
    for value in iter::once(shape).chain(values) {
        if piece.len() == PIECE {
            hasher.write(&piece);
            piece.clear();
        }
        piece.extend(value.to_le_bytes());
    }
    hasher.write(&piece);
    format!("{:032x}", hasher.finish_128())
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn lists_are_told_apart() {
        let of = |values: &[u64], shape| digest(values.iter().copied(), shape);
        let mut all: Vec<String> = Vec::new();
        // Each bit, the order, the length and the shape change the digest.
        let base: Vec<u64> = (0..60).collect();
        for shape in [1, 2, 4] {
            all.push(of(&base, shape));
        }
        for i in 0..60 {
            for bit in [0, 31, 63] {
                let mut changed = base.clone();
                changed[i] ^= 1 << bit;
                all.push(of(&changed, 1));
            }
            let mut swapped = base.clone();
            swapped.swap(i, (i + 4) % 60);
            all.push(of(&swapped, 1));
            all.push(of(&base[..i], 1));
        }
        all.extend((2..9).map(|n| of(&vec![0; n], 1)));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    /// Hashes are part of checkpoints, so they must be the same in every later version. The values are those of the
    /// package xxhash of Python: `xxh3_128_hexdigest(struct.pack("<11Q", 2, *range(10)))`.
    #[test]
    fn golden() {
        assert_eq!(digest(0..10, 2), "cd0ec438d8138d105371aa9b2a2d2229");
        assert_eq!(digest(0..2000, 2), "eb5b8f5b4b120be3f69c04cd11f8aff7", "in pieces");
    }
}
