//! The element types: those of DALI, and bfloat16, which is delivered as uint16. A dataset with another type is refused
//! when it is opened, with an error that names the type.

use std::fmt;

/// An element type. The discriminants are numbers of this engine, not those of DALI or NumPy. They are part of the C
/// ABI, and kernels switch on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DType {
    /// One byte, zero or one.
    Bool = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Signed, 16 bits.
    I16 = 2,
    /// Signed, 32 bits.
    I32 = 3,
    /// Signed, 64 bits; also what datetime64 and timedelta64 are stored as.
    I64 = 4,
    /// Unsigned, 8 bits.
    U8 = 5,
    /// Unsigned, 16 bits.
    U16 = 6,
    /// Unsigned, 32 bits.
    U32 = 7,
    /// Unsigned, 64 bits.
    U64 = 8,
    /// IEEE 754 binary16.
    F16 = 9,
    /// IEEE 754 binary32.
    F32 = 10,
    /// IEEE 754 binary64.
    F64 = 11,
    /// The upper half of a binary32. DALI lacks this type: it gets an output of uint16 with the same bits.
    BF16 = 12,
}

impl DType {
    /// All element types, in the order of their discriminants.
    pub const ALL: [DType; 13] = [
        Self::Bool,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::BF16,
    ];

    /// Returns the types that DALI has.
    pub fn of_dali() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|&dtype| dtype != Self::BF16)
    }

    /// Returns the bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Returns NumPy's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::F16 => "float16",
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::BF16 => "bfloat16",
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::BF16)
    }

    /// Returns the value of this type that is nearest to `v`; `None` if this isn't a floating-point type.
    pub fn nearest(self, v: f64) -> Option<f64> {
        match self {
            Self::F16 => Some(half_from_f64(v).to_f64()),
            Self::BF16 => Some(bfloat_from_f64(v).to_f64()),
            Self::F32 => Some(f64::from(v as f32)),
            Self::F64 => Some(v),
            _ => None,
        }
    }

    /// Returns the type as which elements are delivered to DALI: uint16 for bfloat16, otherwise the type itself.
    pub const fn delivered(self) -> Self {
        match self {
            Self::BF16 => Self::U16,
            dtype => dtype,
        }
    }

    /// Returns the type of DALI with this NumPy name. `None` for any other name, also for bfloat16.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::of_dali().find(|d| d.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the float16 nearest to `v`, ties to even. It rounds once. `f16::from_f64` converts to float32 first, and so
/// rounds twice on processors that have an instruction for the second step.
pub fn half_from_f64(v: f64) -> half::f16 {
    half::f16::from_f32(rounded_to_odd(v))
}

/// Returns the bfloat16 nearest to `v`, ties to even. It rounds once. `bf16::from_f64` ignores the low bits of `v`.
pub fn bfloat_from_f64(v: f64) -> half::bf16 {
    half::bf16::from_f32(rounded_to_odd(v))
}

/// Returns the bfloat16 nearest to an integer, ties to even. It rounds once.
pub fn bfloat_from_int(v: i128) -> half::bf16 {
    // Bits below the highest 53 only say on which side of a tie the number is, so that one bit tells of them.
    let above = (128 - v.unsigned_abs().leading_zeros()).saturating_sub(53);
    let rest = v.unsigned_abs() & ((1 << above) - 1);
    let magnitude = ((v.unsigned_abs() >> above) << above) | u128::from(rest != 0) << above;
    bfloat_from_f64(if v < 0 { -(magnitude as f64) } else { magnitude as f64 })
}

/// Rounds `v` to a float32 that gives the same result as `v` when it is rounded to a narrower type. It "rounds to odd":
/// if `v` isn't a float32, the last bit of the result is set, which shows on which side of a tie `v` was.
fn rounded_to_odd(v: f64) -> f32 {
    let near = v as f32;
    let back = f64::from(near);
    if v.is_nan() || back == v {
        return near;
    }
    let toward_zero = if back.abs() > v.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(toward_zero | 1)
}

#[cfg(test)]
mod tests {
    use super::{bfloat_from_f64, bfloat_from_int, half_from_f64};

    #[test]
    fn integers_are_rounded_to_bfloat16_once() {
        // The middle between two bfloat16, and whole numbers beside it that float64 can't tell from it.
        let tie = (1i128 << 62) + (1 << 54);
        let bits = [tie - 1, tie, tie + 1, -tie - 1, 0, 1, -3, u64::MAX.into()].map(|v| bfloat_from_int(v).to_bits());
        assert_eq!(bits, [0x5e80, 0x5e80, 0x5e81, 0xde81, 0, 0x3f80, 0xc040, 0x5f80]);
        for v in -70_000..70_000i32 {
            assert_eq!(bfloat_from_int(v.into()), bfloat_from_f64(v.into()), "{v}");
        }
    }

    #[test]
    fn float16_is_rounded_once() {
        // The middle between 1 and the next float16, and values a little above and below. Float32 can't represent the
        // difference.
        let tie = 1.0 + 2f64.powi(-11);
        let hair = 2f64.powi(-40);
        assert_eq!([tie - hair, tie, tie + hair].map(|v| half_from_f64(v).to_bits()), [0x3c00, 0x3c00, 0x3c01]);
        assert_eq!([1e300, -1e300, 1e-300, -0.0].map(|v| half_from_f64(v).to_bits()), [0x7c00, 0xfc00, 0, 0x8000]);
        assert!(half_from_f64(f64::NAN).is_nan());
    }

    #[test]
    fn bfloat16_is_rounded_once() {
        let tie = 1.0 + 2f64.powi(-8);
        let hair = 2f64.powi(-40);
        assert_eq!([tie - hair, tie, tie + hair].map(|v| bfloat_from_f64(v).to_bits()), [0x3f80, 0x3f80, 0x3f81]);
        // The greatest finite value, the middle between it and the next power of two, the smallest value and its half.
        let (greatest, smallest) = ((2.0 - 2f64.powi(-7)) * 2f64.powi(127), 2f64.powi(-133));
        let values =
            [greatest, (2.0 - 2f64.powi(-8)) * 2f64.powi(127), smallest, smallest / 2.0, smallest / 2.0 * 1.01, -0.0];
        assert_eq!(values.map(|v| bfloat_from_f64(v).to_bits()), [0x7f7f, 0x7f80, 1, 0, 1, 0x8000]);
        assert!(bfloat_from_f64(f64::NAN).is_nan());
    }
}
