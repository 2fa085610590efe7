//! Elements with NumPy's rules: type strings, promotion of two types, and `astype`.
//!
//! Filters of numcodecs are NumPy expressions, so results must equal those of NumPy. Values outside the range of the
//! result's type become what NumPy gives on x86-64, the machine of the tests.

use half::{bf16, f16};

use dali_zarr_base::dtype::{DType, bfloat_from_f64, half_from_f64};

/// Returns the type in which NumPy computes with arrays of types `a` and `b`.
pub(super) fn promote(a: DType, b: DType) -> DType {
    use DType::{Bool, F16, F32, F64, I8, I16, I32, I64, U64};
    if a == b || b == Bool {
        return a;
    }
    if a == Bool {
        return b;
    }
    let signed = |d| matches!(d, I8 | I16 | I32 | I64);
    match (a.is_float(), b.is_float()) {
        // Neither float16 nor bfloat16 holds the other's values.
        (true, true) if a.size() == b.size() => return F32,
        (true, true) => return if a.size() > b.size() { a } else { b },
        (true, false) | (false, true) => {
            let (float, int) = if a.is_float() { (a, b) } else { (b, a) };
            // The float type that holds every value of the integer type; float64 for 64-bit integers too.
            let needed = match int.size() {
                1 => F16,
                2 => F32,
                _ => F64,
            };
            return if float.size() > needed.size() { float } else { needed };
        }
        (false, false) => {}
    }
    if signed(a) == signed(b) {
        return if a.size() > b.size() { a } else { b };
    }
    let (int, uint) = if signed(a) { (a, b) } else { (b, a) };
    if int.size() > uint.size() {
        return int;
    }
    match uint.size() {
        1 => I16,
        2 => I32,
        4 => I64,
        _ => {
            debug_assert_eq!(uint, U64);
            F64
        }
    }
}

/// An element in native byte order.
pub(super) trait Element: Copy {
    /// The element's type.
    const DTYPE: DType;
    /// An array of the element's bytes.
    type Bytes: AsRef<[u8]>;
    /// Reads an element from `bytes`, which must hold exactly one.
    fn load(bytes: &[u8]) -> Self;
    /// Returns the element's bytes.
    fn bytes(self) -> Self::Bytes;
    /// Converts to 64 bits: integers are sign- or zero-extended, floats truncated.
    fn to_i64(self) -> i64;
    /// Converts to the nearest float32.
    fn to_f32(self) -> f32;
    /// Converts to float64: exactly, except 64-bit integers, which round to the nearest value.
    fn to_f64(self) -> f64;
    /// Converts `v` as NumPy's `astype` does.
    fn cast<S: Element>(v: S) -> Self;
    /// Adds as NumPy does for arrays of this type.
    fn add(self, other: Self) -> Self;
}

/// Truncates `v` to a 32-bit integer. Values out of range and NaN give the smallest integer.
fn truncate_32(v: f64) -> i32 {
    if v > -2_147_483_649.0 && v < 2_147_483_648.0 { v as i32 } else { i32::MIN }
}

/// Truncates `v` to a 64-bit integer. Values out of range and NaN give the smallest integer.
fn truncate_64(v: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&v) { v as i64 } else { i64::MIN }
}

macro_rules! integers {
    ($($t:ty, $dtype:ident, $from_float:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            type Bytes = [u8; size_of::<$t>()];
            #[inline(always)]
            fn load(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$t>()];
                own.copy_from_slice(bytes);
                Self::from_ne_bytes(own)
            }
            #[inline(always)]
            fn bytes(self) -> Self::Bytes {
                self.to_ne_bytes()
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn cast<S: Element>(v: S) -> Self {
                if S::DTYPE.is_float() {
                    let convert: fn(f64, DType) -> $t = $from_float;
                    convert(v.to_f64(), S::DTYPE)
                } else {
                    v.to_i64() as $t
                }
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }
    )*};
}

integers! {
    i8, I8, |v, _| truncate_32(v) as i8;
    i16, I16, |v, _| truncate_32(v) as i16;
    i32, I32, |v, _| truncate_32(v);
    i64, I64, |v, _| truncate_64(v);
    u8, U8, |v, _| truncate_32(v) as u8;
    u16, U16, |v, _| truncate_32(v) as u16;
    u32, U32, |v, from| match from {
        DType::F16 => truncate_64(v) as u32,
        _ if v >= 2_147_483_648.0 => truncate_32(v - 2_147_483_648.0) as u32 ^ (1 << 31),
        _ => truncate_32(v) as u32,
    };
    u64, U64, |v, _| {
        if v >= 9_223_372_036_854_775_808.0 {
            truncate_64(v - 9_223_372_036_854_775_808.0) as u64 ^ (1 << 63)
        } else {
            truncate_64(v) as u64
        }
    };
}

/// A bool of one byte. Any byte but 0 is true.
#[derive(Clone, Copy)]
pub(super) struct Bool(bool);

impl Element for Bool {
    const DTYPE: DType = DType::Bool;
    type Bytes = [u8; 1];
    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        Self(bytes[0] != 0)
    }
    #[inline(always)]
    fn bytes(self) -> Self::Bytes {
        [u8::from(self.0)]
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        i64::from(self.0)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(u8::from(self.0))
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self.0))
    }
    #[inline(always)]
    fn cast<S: Element>(v: S) -> Self {
        Self(if S::DTYPE.is_float() { v.to_f64() != 0.0 } else { v.to_i64() != 0 })
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

macro_rules! floats {
    ($($t:ty, $dtype:ident, $to32:expr, $to64:expr, $from:expr, $add:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            type Bytes = [u8; size_of::<$t>()];
            #[inline(always)]
            fn load(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$t>()];
                own.copy_from_slice(bytes);
                Self::from_ne_bytes(own)
            }
            #[inline(always)]
            fn bytes(self) -> Self::Bytes {
                self.to_ne_bytes()
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                truncate_64(self.to_f64())
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                let convert: fn($t) -> f32 = $to32;
                convert(self)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                let convert: fn($t) -> f64 = $to64;
                convert(self)
            }
            #[inline(always)]
            fn cast<S: Element>(v: S) -> Self {
                $from(v)
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                let add: fn($t, $t) -> $t = $add;
                add(self, other)
            }
        }
    )*};
}

floats! {
    f16, F16, f32::from, f64::from, to_half, |a, b| f16::from_f32(f32::from(a) + f32::from(b));
    bf16, BF16, f32::from, f64::from, |v: S| bfloat_from_f64(v.to_f64()), |a, b| bf16::from_f32(f32::from(a) + f32::from(b));
    f32, F32, |v| v, f64::from, |v: S| v.to_f32(), |a, b| a + b;
    f64, F64, |v| v as f32, |v| v, |v: S| v.to_f64(), |a, b| a + b;
}

/// Converts to float16 as NumPy does: float64 in one step, all other types through float32.
#[inline(always)]
fn to_half<S: Element>(v: S) -> f16 {
    if S::DTYPE == DType::F64 { half_from_f64(v.to_f64()) } else { f16::from_f32(v.to_f32()) }
}

/// Calls `$body` with `$t` as the type of elements of `$dtype`.
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::filters::element::with_element!($dtype, $t => $body;
            Bool: $crate::filters::element::Bool,
            I8: i8, I16: i16, I32: i32, I64: i64, U8: u8, U16: u16, U32: u32, U64: u64,
            F16: half::f16, BF16: half::bf16, F32: f32, F64: f64)
    };
    ($dtype:expr, $t:ident => $body:expr; $($variant:ident: $element:ty),*) => {
        match $dtype {
            $(dali_zarr_base::dtype::DType::$variant => {
                type $t = $element;
                $body
            })*
        }
    };
}
pub(super) use with_element;

/// Sets each element of `out` to `f` of the element of `input` at the same index. Both must have the same number of
/// elements.
#[inline(always)]
pub(super) fn map<S: Element, D: Element>(input: &[u8], out: &mut [u8], mut f: impl FnMut(S) -> D) {
    let (from, to) = (S::DTYPE.size(), D::DTYPE.size());
    debug_assert_eq!(input.len() / from, out.len() / to);
    for (source, target) in input.chunks_exact(from).zip(out.chunks_exact_mut(to)) {
        target.copy_from_slice(f(S::load(source)).bytes().as_ref());
    }
}

/// Converts elements of type `from` to type `to` as NumPy's `astype` does. Both are in native byte order.
pub(super) fn cast(from: DType, input: &[u8], to: DType, out: &mut [u8]) {
    with_element!(from, S => with_element!(to, D => map::<S, D>(input, out, D::cast)));
}

/// Reverses the bytes of each element of `size` bytes.
pub(super) fn swap_bytes(bytes: &mut [u8], size: usize) {
    match size {
        2 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|b| b.reverse()),
        4 => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|b| b.reverse()),
        8 => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|b| b.reverse()),
        _ => debug_assert_eq!(size, 1, "elements have 1, 2, 4 or 8 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_symmetric_and_numpys() {
        use DType::*;
        for (a, b, expected) in [
            (I8, U8, I16),
            (U32, I16, I64),
            (U64, I8, F64),
            (I64, U32, I64),
            (F16, U8, F16),
            (F16, I16, F32),
            (F32, U32, F64),
            (F64, F16, F64),
            (F16, BF16, F32),
            (F32, BF16, F32),
            (Bool, F32, F32),
            (U8, U16, U16),
        ] {
            assert_eq!((promote(a, b), promote(b, a)), (expected, expected), "{a} {b}");
        }
    }

    #[test]
    fn floats_outside_of_the_range_of_integers() {
        // The values of NumPy 2.4 on x86-64.
        let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3e9, -3e9, 70000.0, -70000.0, 1.9, -1.9];
        assert_eq!(values.map(u8::cast), [0, 0, 0, 0, 0, 112, 144, 1, 255]);
        assert_eq!(values.map(i16::cast), [0, 0, 0, 0, 0, 4464, -4464, 1, -1]);
        let least = i32::MIN;
        assert_eq!(values.map(i32::cast), [least, least, least, least, least, 70000, -70000, 1, -1]);
        let half = 1 << 31;
        assert_eq!(values.map(u32::cast), [half, 0, half, 3_000_000_000, half, 70000, 4_294_897_296, 1, u32::MAX]);
        assert_eq!(
            values.map(u64::cast),
            [
                1 << 63,
                0,
                1 << 63,
                3_000_000_000,
                18_446_744_070_709_551_616,
                70000,
                18_446_744_073_709_481_616,
                1,
                u64::MAX
            ]
        );
        assert_eq!([f16::NAN, f16::INFINITY, f16::NEG_INFINITY].map(u32::cast), [0; 3]);
        assert_eq!(values.map(|v| Bool::cast(v).0), [true; 9]);
    }

    #[test]
    fn halves_are_rounded_once() {
        for (v, expected) in [
            (1.0 + 2f64.powi(-11) + 2f64.powi(-40), 0x3c01),
            (1.0 + 2f64.powi(-11), 0x3c00),
            (-1.0 - 2f64.powi(-11) - 2f64.powi(-40), 0xbc01),
            (65_519.999_999_99, 0x7bff),
            (65520.0, 0x7c00),
            (1e300, 0x7c00),
            (-1e300, 0xfc00),
            (2f64.powi(-25), 0),
            (2f64.powi(-25) * (1.0 + 2f64.powi(-40)), 1),
            (1e-300, 0),
            (-0.0, 0x8000),
        ] {
            assert_eq!(half_from_f64(v).to_bits(), expected, "{v}");
        }
        assert!(half_from_f64(f64::NAN).is_nan());
    }
}
