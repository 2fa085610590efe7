//! The inverse cosine transform of 8 x 8 coefficients to samples, with the integers of libjpeg's "islow", so that
//! samples equal those of libjpeg-turbo. The algorithm is that of Loeffler, Ligtenberg and Moschytz (ICASSP 1989), with
//! factors of 13 bits.

/// Bits of the factors.
const BITS: u32 = 13;
/// Bits that the first pass keeps.
const KEPT: u32 = 2;

/// Rows of eight values.
type Rows = [[i32; 8]; 8];

/// Transforms the columns of `r`. `DROPPED` bits are rounded away.
#[inline(always)]
fn columns<const DROPPED: u32>(r: &Rows) -> Rows {
    let times = |a: i32, factor: i32| a.wrapping_mul(factor);
    let add = |a: i32, b: i32| a.wrapping_add(b);
    let sub = |a: i32, b: i32| a.wrapping_sub(b);
    let rounded = |v: i32| v.wrapping_add(1 << (DROPPED - 1)) >> DROPPED;
    let mut out = [[0; 8]; 8];
    // A loop over columns, which the compiler turns into vectors.
    for i in 0..8 {
        // Even rows.
        let z1 = times(add(r[2][i], r[6][i]), 4433);
        let t2 = add(z1, times(r[6][i], -15137));
        let t3 = add(z1, times(r[2][i], 6270));
        let t0 = add(r[0][i], r[4][i]) << BITS;
        let t1 = sub(r[0][i], r[4][i]) << BITS;
        let (e0, e3, e1, e2) = (add(t0, t3), sub(t0, t3), add(t1, t2), sub(t1, t2));
        // Odd rows.
        let (a, b, c, d) = (r[7][i], r[5][i], r[3][i], r[1][i]);
        let z5 = times(add(add(a, c), add(b, d)), 9633);
        let z3 = add(times(add(a, c), -16069), z5);
        let z4 = add(times(add(b, d), -3196), z5);
        let z1 = times(add(a, d), -7373);
        let z2 = times(add(b, c), -20995);
        let o0 = add(times(a, 2446), add(z1, z3));
        let o1 = add(times(b, 16819), add(z2, z4));
        let o2 = add(times(c, 25172), add(z2, z3));
        let o3 = add(times(d, 12299), add(z1, z4));
        out[0][i] = rounded(add(e0, o3));
        out[1][i] = rounded(add(e1, o2));
        out[2][i] = rounded(add(e2, o1));
        out[3][i] = rounded(add(e3, o0));
        out[4][i] = rounded(sub(e3, o0));
        out[5][i] = rounded(sub(e2, o1));
        out[6][i] = rounded(sub(e1, o2));
        out[7][i] = rounded(sub(e0, o3));
    }
    out
}

#[inline(always)]
fn transposed(r: &Rows) -> Rows {
    let mut out = [[0; 8]; 8];
    for (y, row) in r.iter().enumerate() {
        for (x, value) in row.iter().enumerate() {
            out[x][y] = *value;
        }
    }
    out
}

/// Transforms `coefficients`, in rows, each times its element of `quantization`, to eight rows of samples at the start
/// of `plane`, whose rows are `stride` apart.
#[inline(always)]
pub(super) fn block(coefficients: &[i16; 64], quantization: &[u16; 64], plane: &mut [u8], stride: usize) {
    let mut rows = [[0; 8]; 8];
    for (i, value) in rows.as_flattened_mut().iter_mut().enumerate() {
        *value = i32::from(coefficients[i]).wrapping_mul(i32::from(quantization[i]));
    }
    let first = columns::<{ BITS - KEPT }>(&rows);
    let second = transposed(&columns::<{ BITS + KEPT + 3 }>(&transposed(&first)));
    for (row, values) in plane.chunks_mut(stride).zip(&second) {
        for (sample, value) in row[..8].iter_mut().zip(values) {
            *sample = value.wrapping_add(128).clamp(0, 255) as u8;
        }
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
