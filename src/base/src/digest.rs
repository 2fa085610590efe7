//! A hash of long lists of numbers (tables, rows, blocks). Checkpoints hold the hash in place of the list.

use crate::random::{GOLDEN, key};

/// Returns a 128-bit hash as 32 hex digits. It depends on the values, their order, their number, and `shape`. `shape`
/// distinguishes lists that hold the same numbers but mean something else. The hash must be the same in all versions.
///
/// The values go in turn to four independent hash states, which the processor computes in parallel.
pub fn digest(mut values: impl Iterator<Item = u64>, shape: u64) -> String {
    const PRIMES: [u64; 4] =
        [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];
    let mut lanes = [1, 2, 3, 4].map(|lane| GOLDEN.wrapping_mul(lane));
    let mut count = 0u64;
    'all: loop {
        for (lane, prime) in lanes.iter_mut().zip(PRIMES) {
            let Some(value) = values.next() else { break 'all };
            let product = (*lane ^ value).wrapping_mul(prime);
            *lane = product ^ (product >> 32);
            count += 1;
        }
    }
    let [a, b, c, d] = lanes;
    let half = |which: u64| key(&[a, b, c, d, count, shape, which]);
    format!("{:016x}{:016x}", half(0), half(1))
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

    /// Hashes are part of checkpoints, so they must be the same in every later version.
    #[test]
    fn golden() {
        assert_eq!(digest(0..10, 2), "917ab4e78c1b54f845987780fbe088be");
    }
}
