//! Conversions between element types: NumPy's `astype` where the value fits, DALI's saturation where it doesn't.
//!
//! `unsafe` is allowed here: elements are read and written through the addresses of jobs.
//!
//! Float to integer rounds half to even and saturates, NaN becomes 0; integers saturate; everything to float rounds once.

#![allow(unsafe_code)]

use half::{bf16, f16};

use dali_zarr_base::dtype::{DType, bfloat_from_f64, bfloat_from_int, half_from_f64};

/// An element as it lies in memory.
pub(super) trait Element: Copy {
    /// Size in bytes.
    const SIZE: usize = size_of::<Self>();
    /// Reads an element from memory, in native byte order.
    fn load(bytes: *const u8) -> Self;
    /// Writes the element to memory, in native byte order.
    fn store(self, bytes: *mut u8);
    /// Makes an element from the low bits of `bits`.
    fn from_bits64(bits: u64) -> Self;
    /// Converts to float64: exactly, except 64-bit integers, which are rounded.
    fn to_f64(self) -> f64;
    /// Converts from float64, with one rounding. Integers saturate.
    fn from_f64(v: f64) -> Self;
    /// Converts from an integer. Integers saturate. Floats are rounded once.
    fn from_int(v: i128) -> Self;
    /// The value as an integer, for integers and bool; `None` for floats.
    fn to_int(self) -> Option<i128>;
    /// Converts to int64 as NumPy's `astype` does on x86-64. Integers are taken modulo 2^64, and fractions are cut off.
    /// Floats that int64 can't hold become its smallest value.
    #[inline(always)]
    fn to_i64(self) -> i64 {
        let limit = 2f64.powi(63);
        match self.to_int() {
            Some(i) => i as i64,
            None if (-limit..limit).contains(&self.to_f64()) => self.to_f64() as i64,
            None => i64::MIN,
        }
    }
}

/// Calls `$body` with `$t` as the type of elements of `$dtype`.
macro_rules! with_type {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::assemble::cast::with_type!($dtype, $t => $body;
            Bool: $crate::assemble::cast::Bool,
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
pub(super) use with_type;

/// Returns the element of type `dtype` with these bits, as float64.
pub(super) fn value(bits: u64, dtype: DType) -> f64 {
    with_type!(dtype, T => T::from_bits64(bits).to_f64())
}

macro_rules! memory {
    ($t:ty, $bits:ty) => {
        #[inline(always)]
        fn load(bytes: *const u8) -> Self {
            // SAFETY: callers of `run` pass boxes that lie in their buffers; no alignment is assumed.
            let bits = unsafe { bytes.cast::<$bits>().read_unaligned() };
            Self::from_bits64(u64::from(bits))
        }
    };
}

macro_rules! integer {
    ($t:ty, $u:ty) => {
        impl Element for $t {
            memory!($t, $u);
            #[inline(always)]
            fn store(self, bytes: *mut u8) {
                // SAFETY: as for `load`.
                unsafe { bytes.cast::<$t>().write_unaligned(self) }
            }
            #[inline(always)]
            fn from_bits64(bits: u64) -> Self {
                bits as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                v.round_ties_even() as $t
            }
            #[inline(always)]
            fn from_int(v: i128) -> Self {
                v.clamp(<$t>::MIN as i128, <$t>::MAX as i128) as $t
            }
            #[inline(always)]
            fn to_int(self) -> Option<i128> {
                Some(self as i128)
            }
        }
    };
}
integer!(i8, u8);
integer!(i16, u16);
integer!(i32, u32);
integer!(i64, u64);
integer!(u8, u8);
integer!(u16, u16);
integer!(u32, u32);
integer!(u64, u64);

macro_rules! float {
    ($t:ty, $u:ty, $to:expr, $from:expr, $int:expr) => {
        impl Element for $t {
            memory!($t, $u);
            #[inline(always)]
            fn store(self, bytes: *mut u8) {
                // SAFETY: as for `load`.
                unsafe { bytes.cast::<$u>().write_unaligned(self.to_bits()) }
            }
            #[inline(always)]
            fn from_bits64(bits: u64) -> Self {
                <$t>::from_bits(bits as $u)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                $to(self)
            }
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                $from(v)
            }
            #[inline(always)]
            fn from_int(v: i128) -> Self {
                $int(v)
            }
            #[inline(always)]
            fn to_int(self) -> Option<i128> {
                None
            }
        }
    };
}
float!(f16, u16, f64::from, half_from_f64, |v: i128| half_from_f64(v as f64));
float!(bf16, u16, f64::from, bfloat_from_f64, bfloat_from_int);
float!(f32, u32, f64::from, |v: f64| v as f32, |v: i128| v as f32);
float!(f64, u64, |v: f64| v, |v: f64| v, |v: i128| v as f64);

/// One byte, zero or one.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bool(u8);

impl Element for Bool {
    memory!(Bool, u8);
    #[inline(always)]
    fn store(self, bytes: *mut u8) {
        // SAFETY: as for `load`.
        unsafe { bytes.write(self.0) }
    }
    #[inline(always)]
    fn from_bits64(bits: u64) -> Self {
        Self(u8::from(bits & 0xff != 0))
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self.0)
    }
    #[inline(always)]
    fn from_f64(v: f64) -> Self {
        Self(u8::from(v != 0.0))
    }
    #[inline(always)]
    fn from_int(v: i128) -> Self {
        Self(u8::from(v != 0))
    }
    #[inline(always)]
    fn to_int(self) -> Option<i128> {
        Some(i128::from(self.0))
    }
}

/// Converts an element directly. Integers don't become float64 first, except on the way to float16.
#[inline(always)]
pub(super) fn convert<S: Element, D: Element>(v: S) -> D {
    match v.to_int() {
        Some(i) => D::from_int(i),
        None => D::from_f64(v.to_f64()),
    }
}
