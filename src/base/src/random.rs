//! Pseudo-random numbers: functions of a key, the same on every platform and in every later version. A checkpoint
//! relies on this for the order of samples and the positions of crops, so nothing here may change.

/// The step of the counter in SplitMix64: 2^64 divided by the golden ratio.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A 64-bit mixer with full avalanche (the finaliser of SplitMix64).
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes all parts to one number, which depends on every bit of every part and on their order.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(GOLDEN, |state, &part| mix(state.wrapping_add(GOLDEN) ^ mix(part.wrapping_add(GOLDEN))))
}

/// Maps 64 random bits to `0..n` (0 if `n` is 0). The bias is negligible.
pub fn below(bits: u64, n: u64) -> u64 {
    ((u128::from(bits) * u128::from(n)) >> 64) as u64
}
