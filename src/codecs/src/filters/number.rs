//! Numbers as `cast_value` converts them, from any of the twelve types to any other, with rules for rounding and for
//! the range. [`Number`] represents every number of these types exactly.

use super::element::{Element, with_element};
use super::scale_offset::wide;
use dali_zarr_base::dtype::DType;

/// A number of any of the twelve types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    NaN,
    Infinity {
        negative: bool,
    },
    /// `magnitude * 2^exponent`; zero has a sign.
    Finite {
        negative: bool,
        magnitude: u64,
        exponent: i32,
    },
}

/// How a number between two values of the type is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    NearestEven,
    NearestAway,
    TowardsZero,
    TowardsPositive,
    TowardsNegative,
}

/// The rule for values that are out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutOfRange {
    Error,
    Clamp,
    Wrap,
}

/// The rules of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub rounding: Rounding,
    pub out_of_range: OutOfRange,
}

impl Number {
    /// Returns the value of one element. Equal values of the same type have equal parts, except for the sign of zero.
    pub fn load(bytes: &[u8], dtype: DType) -> Self {
        if !dtype.is_float() {
            let value = with_element!(dtype, T => wide(T::load(bytes)));
            return Self::Finite { negative: value < 0, magnitude: value.unsigned_abs() as u64, exponent: 0 };
        }
        let value = with_element!(dtype, T => T::load(bytes).to_f64());
        let negative = value.is_sign_negative();
        if value.is_nan() {
            return Self::NaN;
        }
        if value.is_infinite() {
            return Self::Infinity { negative };
        }
        let bits = value.to_bits();
        let (power, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
        let magnitude = if power == 0 { fraction } else { fraction | 1 << 52 };
        Self::Finite { negative, magnitude, exponent: power.max(1) - 1075 }
    }

    /// Whether two numbers are equal. NaN equals NaN, and zeros of both signs are equal.
    pub fn equals(self, other: Self) -> bool {
        match (self, other) {
            (Self::Finite { magnitude: 0, .. }, Self::Finite { magnitude: 0, .. }) => true,
            _ => self == other,
        }
    }

    /// Converts to an integer of `dtype`. Returns its bits, or `None` if the rules don't cover the value.
    pub fn to_int(self, dtype: DType, rules: Rules) -> Option<u64> {
        let size = 8 * dtype.size() as u32;
        let unsigned = matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
        let (least, most) =
            if unsigned { (0, (1i128 << size) - 1) } else { (-(1i128 << (size - 1)), (1i128 << (size - 1)) - 1) };
        let end = |negative: bool| match rules.out_of_range {
            OutOfRange::Clamp => Some(if negative { least } else { most }),
            _ => None,
        };
        let whole = match self {
            Self::NaN => return None,
            Self::Infinity { negative } => end(negative)?,
            Self::Finite { negative, magnitude, exponent } => {
                let rounded = if exponent <= 0 {
                    round(u128::from(magnitude), exponent.unsigned_abs(), negative, rules.rounding)
                } else if exponent < 64 {
                    u128::from(magnitude) << exponent
                } else {
                    // The value is a multiple of 2^64 and out of range.
                    return match rules.out_of_range {
                        OutOfRange::Wrap => Some(0),
                        _ => end(negative).map(|v| v as u64),
                    };
                };
                let signed = if negative { -(rounded as i128) } else { rounded as i128 };
                match rules.out_of_range {
                    _ if (least..=most).contains(&signed) => signed,
                    OutOfRange::Wrap => signed,
                    _ => end(negative)?,
                }
            }
        };
        Some(whole as u64)
    }

    /// Converts to a float of `dtype`. Returns its bits, or `None` if the rules don't cover the value.
    pub fn to_float(self, dtype: DType, rules: Rules) -> Option<u64> {
        // Bits of the significand with the hidden one, the exponent of the smallest subnormal, and bits of the type.
        let (fraction, least, width) = match dtype {
            DType::F16 => (11, -24, 16),
            DType::F32 => (24, -149, 32),
            _ => (53, -1074, 64),
        };
        let infinity = ((1u64 << (width - fraction)) - 1) << (fraction - 1);
        let (negative, bits) = match self {
            Self::NaN => (false, infinity | 1 << (fraction - 2)),
            Self::Infinity { negative } => (negative, infinity),
            Self::Finite { negative, magnitude: 0, .. } => (negative, 0),
            Self::Finite { negative, magnitude, exponent } => {
                let length = 64 - magnitude.leading_zeros() as i32;
                let last = (exponent + length - fraction).max(least);
                let rounded = if last > exponent {
                    round(u128::from(magnitude), (last - exponent) as u32, negative, rules.rounding) as u64
                } else {
                    magnitude << (exponent - last)
                };
                // The addition is also right where rounding carries into the next exponent, or from subnormals to
                // normals.
                let bits = (((last - least) as u64) << (fraction - 1)).saturating_add(rounded);
                if bits < infinity {
                    (negative, bits)
                } else if rules.out_of_range == OutOfRange::Clamp {
                    (negative, infinity)
                } else {
                    return None;
                }
            }
        };
        Some(bits | u64::from(negative) << (width - 1))
    }

    /// Converts to float64, for messages.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::NaN => f64::NAN,
            Self::Infinity { negative } => {
                if negative {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                }
            }
            Self::Finite { negative, magnitude, exponent } => {
                let value = magnitude as f64 * 2f64.powi(exponent);
                if negative { -value } else { value }
            }
        }
    }
}

/// Computes `magnitude / 2^shift`, rounded to an integer. `negative` is the sign of the number.
fn round(magnitude: u128, shift: u32, negative: bool, rounding: Rounding) -> u128 {
    if shift == 0 {
        return magnitude;
    }
    // Magnitudes have 64 bits. For any larger shift the rest is more than zero and less than half, as it is for 100.
    let shift = shift.min(100);
    let (whole, rest, half) = (magnitude >> shift, magnitude & ((1 << shift) - 1), 1u128 << (shift - 1));
    let up = match rounding {
        Rounding::NearestEven => rest > half || (rest == half && whole & 1 == 1),
        Rounding::NearestAway => rest >= half,
        Rounding::TowardsZero => false,
        Rounding::TowardsPositive => rest > 0 && !negative,
        Rounding::TowardsNegative => rest > 0 && negative,
    };
    whole + u128::from(up)
}
