//! The inverse cosine transform of 8 x 8 coefficients to samples, with the integers of libjpeg's "islow", so that
//! samples equal those of libjpeg-turbo. The algorithm is that of Loeffler, Ligtenberg and Moschytz (ICASSP 1989), with
//! factors of 13 bits.

/// Bits of the factors.
const BITS: u32 = 13;
/// Bits that the first pass keeps.
const KEPT: u32 = 2;

/// One value for each of eight columns.
type Eight = [i32; 8];

#[inline(always)]
fn each(a: Eight, b: Eight, f: impl Fn(i32, i32) -> i32) -> Eight {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn add(a: Eight, b: Eight) -> Eight {
    each(a, b, i32::wrapping_add)
}

#[inline(always)]
fn sub(a: Eight, b: Eight) -> Eight {
    each(a, b, i32::wrapping_sub)
}

#[inline(always)]
fn times(a: Eight, factor: i32) -> Eight {
    a.map(|v| v.wrapping_mul(factor))
}

/// Transforms eight columns at once. `DROPPED` bits are rounded away.
#[inline(always)]
fn columns<const DROPPED: u32>(r: [Eight; 8]) -> [Eight; 8] {
    // Even rows.
    let z1 = times(add(r[2], r[6]), 4433);
    let t2 = add(z1, times(r[6], -15137));
    let t3 = add(z1, times(r[2], 6270));
    let t0 = add(r[0], r[4]).map(|v| v << BITS);
    let t1 = sub(r[0], r[4]).map(|v| v << BITS);
    let (e0, e3, e1, e2) = (add(t0, t3), sub(t0, t3), add(t1, t2), sub(t1, t2));
    // Odd rows.
    let z5 = times(add(add(r[7], r[3]), add(r[5], r[1])), 9633);
    let z3 = add(times(add(r[7], r[3]), -16069), z5);
    let z4 = add(times(add(r[5], r[1]), -3196), z5);
    let z1 = times(add(r[7], r[1]), -7373);
    let z2 = times(add(r[5], r[3]), -20995);
    let o0 = add(times(r[7], 2446), add(z1, z3));
    let o1 = add(times(r[5], 16819), add(z2, z4));
    let o2 = add(times(r[3], 25172), add(z2, z3));
    let o3 = add(times(r[1], 12299), add(z1, z4));
    let rounded = |v: Eight| v.map(|v| v.wrapping_add(1 << (DROPPED - 1)) >> DROPPED);
    [
        rounded(add(e0, o3)),
        rounded(add(e1, o2)),
        rounded(add(e2, o1)),
        rounded(add(e3, o0)),
        rounded(sub(e3, o0)),
        rounded(sub(e2, o1)),
        rounded(sub(e1, o2)),
        rounded(sub(e0, o3)),
    ]
}

#[inline(always)]
fn transposed(r: [Eight; 8]) -> [Eight; 8] {
    std::array::from_fn(|i| std::array::from_fn(|j| r[j][i]))
}

/// Transforms `coefficients`, in rows, each times its element of `quantization`, to eight rows of samples at the start
/// of `plane`, whose rows are `stride` apart.
pub(super) fn block(coefficients: &[i16; 64], quantization: &[u16; 64], plane: &mut [u8], stride: usize) {
    let rows: [Eight; 8] = std::array::from_fn(|y| {
        std::array::from_fn(|x| i32::from(coefficients[8 * y + x]).wrapping_mul(i32::from(quantization[8 * y + x])))
    });
    let first = columns::<{ BITS - KEPT }>(rows);
    let second = transposed(columns::<{ BITS + KEPT + 3 }>(transposed(first)));
    for (row, values) in plane.chunks_mut(stride).zip(second) {
        let samples = values.map(|v| v.wrapping_add(128).clamp(0, 255) as u8);
        row[..8].copy_from_slice(&samples);
    }
}

/// As [`block`], where all coefficients but the first are zero.
pub(super) fn flat(first: i16, quantization: u16, plane: &mut [u8], stride: usize) {
    let value = i32::from(first).wrapping_mul(i32::from(quantization));
    let sample = ((value.wrapping_add(4) >> 3).wrapping_add(128)).clamp(0, 255) as u8;
    for row in plane.chunks_mut(stride).take(8) {
        row[..8].fill(sample);
    }
}
