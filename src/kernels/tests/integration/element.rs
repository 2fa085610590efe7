//! Compares the conversion of elements with tables of values from NumPy, and with Rust's own conversions.

use dali_zarr_kernels::{Op, host};
use half::{bf16, f16};
use proptest::prelude::*;

// Discriminants of the engine's `DType`.
const BOOL: i32 = 0;
const I8: i32 = 1;
const I16: i32 = 2;
const I32: i32 = 3;
const I64: i32 = 4;
const U8: i32 = 5;
const U16: i32 = 6;
const U32: i32 = 7;
const U64: i32 = 8;
const F16: i32 = 9;
const F32: i32 = 10;
const F64: i32 = 11;
const BF16: i32 = 12;

fn cast(bits: u64, src: i32, dst: i32) -> u64 {
    host::convert(bits, &Op::cast(src, dst))
}

#[test]
fn floats_become_integers_by_rounding_to_even_and_saturating() {
    let table: [(f64, i32, i64); 22] = [
        (0.5, I8, 0),
        (1.5, I8, 2),
        (2.5, I8, 2),
        (-0.5, I8, 0),
        (-1.5, I8, -2),
        (127.4, I8, 127),
        (127.5, I8, 127),
        (-128.6, I8, -128),
        (1e300, I16, 32767),
        (-1e300, I16, -32768),
        (f64::INFINITY, I32, i32::MAX as i64),
        (f64::NEG_INFINITY, I32, i32::MIN as i64),
        (f64::NAN, I32, 0),
        (2147483646.5, I32, 2147483646),
        (9.3e18, I64, i64::MAX),
        (-9.3e18, I64, i64::MIN),
        (9007199254740993.0, I64, 9007199254740992),
        (-3.0, U8, 0),
        (255.5, U8, 255),
        (254.5, U8, 254),
        (4294967294.5, U32, 4294967294),
        (f64::NAN, U16, 0),
    ];
    for (value, dst, expected) in table {
        let width = if dst == I8 || dst == U8 {
            8
        } else if dst == I16 || dst == U16 {
            16
        } else if dst == I32 || dst == U32 {
            32
        } else {
            64
        };
        let expected = expected as u64 & (u64::MAX >> (64 - width));
        assert_eq!(cast(value.to_bits(), F64, dst), expected, "{value} to type {dst}");
    }
    assert_eq!(cast(1.9e19f64.to_bits(), F64, U64), u64::MAX);
    assert_eq!(cast(f64::NAN.to_bits(), F64, U64), 0);
    assert_eq!(cast(18446744073709549568f64.to_bits(), F64, U64), 18446744073709549568);
}

#[test]
fn integers_saturate_and_keep_their_extremes() {
    assert_eq!(cast(i64::MIN as u64, I64, U64), 0);
    assert_eq!(cast(u64::MAX, U64, I64), i64::MAX as u64);
    assert_eq!(cast(i64::MIN as u64, I64, I8), 0x80);
    assert_eq!(cast(300, U16, I8), 0x7f);
    assert_eq!(cast(300, U16, U8), 0xff);
    assert_eq!(cast((-5i32) as u32 as u64, I32, I16), (-5i16) as u16 as u64);
    assert_eq!(cast(0x80, I8, I64), (-128i64) as u64);
    assert_eq!(cast(i64::MAX as u64, I64, I64), i64::MAX as u64);
    assert_eq!(cast(u32::MAX as u64, U32, I32), i32::MAX as u64);
}

#[test]
fn booleans_are_zero_or_one() {
    assert_eq!(cast(7, BOOL, BOOL), 1);
    assert_eq!(cast(7, BOOL, F32), 1f32.to_bits() as u64);
    assert_eq!(cast(0x80, I8, BOOL), 1);
    assert_eq!(cast((-0.0f64).to_bits(), F64, BOOL), 0);
    assert_eq!(cast(f64::NAN.to_bits(), F64, BOOL), 1);
    assert_eq!(cast(1, F16, BOOL), 1, "the smallest subnormal is not zero");
}

#[test]
fn integers_become_floats_with_one_rounding() {
    // By way of float64 this would round twice, to 16777216 * 2^38.
    let v = (16777217i64 << 38) + 1;
    assert_eq!(cast(v as u64, I64, F32), (v as f32).to_bits() as u64);
    assert_ne!((v as f64 as f32).to_bits(), (v as f32).to_bits());
    assert_eq!(cast(u64::MAX, U64, F32), (u64::MAX as f32).to_bits() as u64);
    assert_eq!(cast(i64::MIN as u64, I64, F32), (i64::MIN as f32).to_bits() as u64);
    let halves =
        [(2049i64, 2048f32), (2051, 2052.0), (65519, 65504.0), (65520, f32::INFINITY), (-70000, f32::NEG_INFINITY)];
    for (from, to) in halves {
        assert_eq!(cast(from as u64, I64, F16), f16::from_f32(to).to_bits() as u64, "{from}");
    }
    assert_eq!(cast(i64::MIN as u64, I64, F16), 0xfc00);
    assert_eq!(cast(u64::MAX, U64, F16), 0x7c00);
}

#[test]
fn every_float16_survives_and_agrees_with_the_half_crate() {
    for bits in 0..=u16::MAX {
        let h = f16::from_bits(bits);
        let wide = f64::from_bits(cast(bits as u64, F16, F64));
        if h.is_nan() {
            assert!(wide.is_nan());
            assert_eq!(cast(bits as u64, F16, F16), (bits | 0x200) as u64, "sign and payload of a NaN stay");
        } else {
            assert_eq!(wide.to_bits(), h.to_f64().to_bits(), "{bits:04x}");
            assert_eq!(cast(wide.to_bits(), F64, F16), bits as u64);
        }
    }
}

#[test]
fn the_borders_of_float16_round_to_even() {
    let two = |e: i32| 2f64.powi(e);
    let table = [
        (two(-25), 0x0000),
        (two(-25) * (1.0 + f64::EPSILON), 0x0001),
        (1.5 * two(-24), 0x0002),
        (1023.5 * two(-24), 0x0400),
        (two(-14) - two(-26), 0x0400),
        (65519.999, 0x7bff),
        (65520.0, 0x7c00),
        (-65520.0, 0xfc00),
        (1.0 + two(-11), 0x3c00),
        (1.0 + 3.0 * two(-11), 0x3c02),
        (5e-324, 0x0000),
        (-0.0, 0x8000),
        (f64::INFINITY, 0x7c00),
    ];
    for (value, expected) in table {
        assert_eq!(cast(value.to_bits(), F64, F16), expected, "{value:e}");
    }
}

#[test]
fn missing_values_become_nan_before_scale_and_offset() {
    let decode = |bits: u64| {
        let op = Op {
            num_missing: 2,
            missing: [0x8000, 5],
            has_scale: 1,
            scale: 0.1,
            has_offset: 1,
            offset: 273.15,
            ..Op::cast(I16, F64)
        };
        f64::from_bits(host::convert(bits, &op))
    };
    assert!(decode(0x8000).is_nan() && decode(5).is_nan());
    assert_eq!(decode(7), 7.0 * 0.1 + 273.15, "no contraction to one rounding");
    assert_eq!(decode(0xffff), -0.1 + 273.15);
    let zero = Op { num_missing: 1, missing: [0, 0], ..Op::cast(F32, F32) };
    assert!(f32::from_bits(host::convert(0x8000_0000, &zero) as u32).is_nan(), "-0.0 equals the missing 0.0");
    let only_first = Op { num_missing: 1, missing: [1, 2], ..Op::cast(U8, F32) };
    assert_eq!(host::convert(2, &only_first), 2f32.to_bits() as u64);
    assert_eq!(host::convert(1, &only_first), 0x7fc0_0000);
}

#[test]
fn integer_scales_multiply_as_numpy_does_in_int64() {
    let times = |factor: i64, src: i32, dst: i32| Op {
        has_scale: 1,
        scale: f64::from_bits(factor as u64),
        decoded: I64,
        ..Op::cast(src, dst)
    };
    let int = |bits: u64, factor: i64, src: i32| host::convert(bits, &times(factor, src, I64)) as i64;
    assert_eq!(int((1 << 53) + 1, 3, I64), 3 * ((1 << 53) + 1));
    assert_eq!(int(u64::MAX, 3, U64), -3, "unsigned values wrap around");
    assert_eq!(int(1 << 62, 3, I64), 3i64 << 62, "and so does the product");
    assert_eq!(int(-7i16 as u16 as u64, -2, I16), 14);
    let floats = [(1.9f32, 2), (-1.9, -2), (0.0, 0), (2f32.powi(62), i64::MIN)];
    for (value, expected) in floats {
        assert_eq!(int(value.to_bits() as u64, 2, F32), expected, "{value}");
    }
    // Values that int64 can't hold become its smallest value.
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2f64.powi(63), -2f64.powi(63), -1e300] {
        assert_eq!(int(value.to_bits(), 1, F64), i64::MIN, "{value}");
    }
    assert_eq!(host::convert(40, &times(10, U8, U8)), 255, "saturated");
    let bits = (1u64 << 60) + (1 << 36) + 1;
    assert_eq!(host::convert(bits, &times(1, I64, F32)), (bits as f32).to_bits() as u64, "one rounding, not two");
    let norm = Op { has_norm: 1, mean: 3.0, stddev: 7.0, ..times(2, I32, F64) };
    assert_eq!(f64::from_bits(host::convert(10, &norm)), 17.0 / 7.0);
}

#[test]
fn normalisation_comes_after_decoding_and_in_float64() {
    let op = Op { has_scale: 1, scale: 2.0, has_norm: 1, mean: 3.0, stddev: 7.0, ..Op::cast(I32, F32) };
    assert_eq!(host::convert(10, &op), ((17f64 / 7.0) as f32).to_bits() as u64);
    let zero = Op { stddev: 0.0, ..op };
    assert_eq!(f32::from_bits(host::convert(10, &zero) as u32), f32::INFINITY);
}

#[test]
fn nans_are_replaced_before_normalisation_and_cast() {
    let fill = |value: f64, op: Op| Op { has_fillna: 1, fillna: value, ..op };
    for (nan, src) in [(0x7e01, F16), (0xffc0_0001, F32), (0x7ff0_dead_beef_0001, F64), (0xff81, BF16)] {
        assert_eq!(host::convert_filling(nan, &fill(2.5, Op::cast(src, F64))), (2.5f64.to_bits(), true));
        assert_eq!(
            host::convert_filling(nan, &fill(-7.0, Op::cast(src, I16))),
            ((-7i16) as u16 as u64, true),
            "before the cast"
        );
        let norm = Op { has_norm: 1, mean: 3.0, stddev: 7.0, ..fill(10.0, Op::cast(src, F32)) };
        assert_eq!(host::convert_filling(nan, &norm), (1f32.to_bits() as u64, true));
        let (kept, replaced) = host::convert_filling(nan, &Op { has_fillna: 0, ..norm });
        assert!(f32::from_bits(kept as u32).is_nan() && !replaced);
    }
    let packed = Op { num_missing: 1, missing: [5, 0], has_scale: 1, scale: 0.5, ..Op::cast(I16, F32) };
    assert_eq!(
        host::convert_filling(5, &fill(9.0, packed)),
        (9f32.to_bits() as u64, true),
        "neither scaled nor added to"
    );
    assert_eq!(host::convert_filling(6, &fill(9.0, packed)), (3f32.to_bits() as u64, false));
    let made = Op { has_scale: 1, scale: 0.0, ..Op::cast(F32, F32) };
    let infinity = f32::INFINITY.to_bits() as u64;
    assert_eq!(host::convert_filling(infinity, &fill(4.0, made)), (4f32.to_bits() as u64, true), "made by decoding");
    assert_eq!(host::convert_filling(infinity, &fill(4.0, Op::cast(F32, F32))), (infinity, false));
}

#[test]
fn every_bfloat16_goes_to_float64_and_back() {
    for bits in 0..=u16::MAX {
        let wide = f64::from_bits(cast(bits as u64, BF16, F64));
        if bf16::from_bits(bits).is_nan() {
            assert!(wide.is_nan(), "{bits:#x}");
            assert_eq!(cast(bits as u64, BF16, BF16), (bits | 0x40) as u64, "sign and payload of a NaN stay");
            continue;
        }
        assert_eq!(wide, bf16::from_bits(bits).to_f64(), "{bits:#x}");
        assert_eq!(cast(wide.to_bits(), F64, BF16), bits as u64);
        // Values between two neighbours: the midpoint rounds to the even one, all others to the nearer one.
        let next = f64::from_bits(cast(bits as u64 + 1, BF16, F64));
        if bits & 0x7fff < 0x7f7f {
            let middle = (wide + next) / 2.0;
            let even = if bits & 1 == 0 { bits } else { bits + 1 };
            assert_eq!(cast(middle.to_bits(), F64, BF16), even as u64, "{bits:#x}");
            assert_eq!(cast(middle.to_bits() - 1, F64, BF16), bits as u64, "{bits:#x}");
            assert_eq!(cast(middle.to_bits() + 1, F64, BF16), bits as u64 + 1, "{bits:#x}");
        }
    }
    // The midpoint between the greatest finite value and the next power of two.
    let limit = (2.0 - 2f64.powi(-8)) * 2f64.powi(127);
    assert_eq!(cast(limit.to_bits(), F64, BF16), 0x7f80);
    assert_eq!(cast(limit.to_bits() - 1, F64, BF16), 0x7f7f);
    assert_eq!(cast((-1e300f64).to_bits(), F64, BF16), 0xff80);
}

/// Returns whether `bits` are the float16 nearest to `v`, ties to even. `f16::from_f64` can't be the reference: on
/// processors with an instruction for float32 to float16, it converts by way of float32 and so rounds twice.
fn is_nearest_float16(v: f64, bits: u16) -> bool {
    let magnitude = |bits: u16| if bits == 0x7c00 { 65536.0 } else { f16::from_bits(bits).to_f64() };
    let (found, v) = (bits & 0x7fff, if v.is_sign_negative() == (bits >> 15 == 1) { v.abs() } else { return false });
    // Midpoints between neighbours are exact in float64.
    let middle = |low: u16| (magnitude(low) + magnitude(low + 1)) / 2.0;
    let even = found & 1 == 0;
    let above = found == 0 || v > middle(found - 1) || (even && v == middle(found - 1));
    let below = found == 0x7c00 || v < middle(found) || (even && v == middle(found));
    found <= 0x7c00 && above && below
}

proptest! {
    #[test]
    fn float64_rounds_once_to_the_nearest(bits: u64) {
        let v = f64::from_bits(bits);
        prop_assume!(!v.is_nan());
        prop_assert_eq!(cast(bits, F64, F32), (v as f32).to_bits() as u64);
        // Random bits are mostly far outside float16's range: scale some of them into it.
        let near = v.clamp(-1e300, 1e300).signum() * 2f64.powi((bits % 48) as i32 - 30) * (1.0 + (bits >> 12) as f64 / 2f64.powi(52));
        prop_assert!(is_nearest_float16(near, cast(near.to_bits(), F64, F16) as u16), "{near:e}");
    }

    #[test]
    fn what_is_no_nan_stays_as_it_is_without_fillna(bits: u64, src in F16..=BF16, dst in BOOL..=BF16, norm: bool) {
        let op = Op { has_norm: i32::from(norm), mean: 1.5, stddev: 3.0, ..Op::cast(src, dst) };
        let (found, replaced) = host::convert_filling(bits, &Op { has_fillna: 1, fillna: 1.0, ..op });
        let is_nan = f64::from_bits(cast(bits, src, F64)).is_nan();
        prop_assert_eq!(replaced, is_nan);
        prop_assert_eq!(host::convert_filling(bits, &op), (host::convert(bits, &op), false));
        let one = Op { src_dtype: F64, ..op };
        prop_assert_eq!(found, if is_nan { host::convert(1f64.to_bits(), &one) } else { host::convert(bits, &op) });
    }

    #[test]
    fn integers_round_and_saturate_as_rust_does(v: i64, shift in 0u32..63) {
        let v = v >> shift;
        prop_assert_eq!(cast(v as u64, I64, F32), (v as f32).to_bits() as u64);
        prop_assert_eq!(cast(v as u64, U64, F32), (v as u64 as f32).to_bits() as u64);
        prop_assert_eq!(cast(v as u64, I64, F64), (v as f64).to_bits());
        prop_assert_eq!(cast(v as u64, I64, I16), v.clamp(-32768, 32767) as i16 as u16 as u64);
        prop_assert_eq!(cast(v as u64, I64, U32), v.clamp(0, u32::MAX as i64) as u64);
    }

    #[test]
    fn floats_round_and_saturate_as_rust_does(bits: u32) {
        let v = f32::from_bits(bits);
        prop_assert_eq!(cast(bits as u64, F32, I32), v.round_ties_even() as i32 as u32 as u64);
        prop_assert_eq!(cast(bits as u64, F32, U64), v.round_ties_even() as u64);
        if !v.is_nan() {
            prop_assert_eq!(cast(bits as u64, F32, F32), bits as u64);
            prop_assert_eq!(cast(bits as u64, F32, F64), (v as f64).to_bits());
        }
    }
}
