//! Decodes numcodecs' AsType, Quantize, Delta and FixedScaleOffset, which are NumPy expressions over whole chunks.
//!
//! Each codec has a type of encoded elements and a type of decoded elements. Results equal those of NumPy 2 bit for
//! bit. They depend on the type in which each operation is computed; the functions below say which type that is.

use half::f16;

use super::element::{Element, cast, map, promote, swap_bytes, with_element};
use crate::chain::{Side, Step};
use crate::codec_entry::{CodecEntry, TypeWithOrder};
use dali_zarr_base::dtype::{DType, half_from_f64};
use dali_zarr_base::error::Result;

/// Elements that are computed at a time in float64.
const TILE: usize = 512;

/// The operation that decodes the elements of a chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operation {
    /// `encoded.astype(decoded)`: AsType and Quantize.
    Cast,
    /// `cumsum(encoded)`.
    Delta,
    /// `(encoded / scale + offset).astype(decoded)`.
    FixedScaleOffset {
        /// The divisor.
        scale: f64,
        /// The summand.
        offset: f64,
    },
}

/// An operation with its types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arithmetic {
    /// The operation that decodes.
    operation: Operation,
    /// The type of encoded elements.
    encoded: TypeWithOrder,
    /// The type of decoded elements.
    decoded: TypeWithOrder,
}

impl Arithmetic {
    /// Reads the configuration of numcodecs' AsType.
    pub(crate) fn astype(codec: &CodecEntry<'_>) -> Result<Self> {
        let (encoded, decoded) = (codec.typed("encode_dtype", None)?, codec.typed("decode_dtype", codec.own())?);
        Ok(Self { operation: Operation::Cast, encoded, decoded })
    }

    /// Reads the configuration of numcodecs' Quantize. `None` if both types are equal: rounding can't be undone, so
    /// decoding has nothing to do.
    pub(crate) fn quantize(codec: &CodecEntry<'_>) -> Result<Option<Self>> {
        let (encoded, decoded) = Self::types(codec)?;
        if !decoded.dtype.is_float() || !encoded.dtype.is_float() {
            return Err(codec.wrong("dtype", "a floating-point type, as for astype"));
        }
        Ok((encoded != decoded).then_some(Self { operation: Operation::Cast, encoded, decoded }))
    }

    /// Reads the configuration of numcodecs' Delta.
    pub(crate) fn delta(codec: &CodecEntry<'_>) -> Result<Self> {
        let (encoded, decoded) = Self::types(codec)?;
        Ok(Self { operation: Operation::Delta, encoded, decoded })
    }

    /// Reads the configuration of numcodecs' FixedScaleOffset.
    pub(crate) fn fixed_scale_offset(codec: &CodecEntry<'_>) -> Result<Self> {
        let operation = Operation::FixedScaleOffset { scale: codec.number("scale")?, offset: codec.number("offset")? };
        let (encoded, decoded) = Self::types(codec)?;
        Ok(Self { operation, encoded, decoded })
    }

    /// Returns the types of encoded elements (the field `astype`) and of decoded elements (`dtype`).
    fn types(codec: &CodecEntry<'_>) -> Result<(TypeWithOrder, TypeWithOrder)> {
        let decoded = codec.typed("dtype", codec.own())?;
        Ok((codec.typed("astype", Some(decoded))?, decoded))
    }
}

impl Step for Arithmetic {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        side.converted(self.decoded.dtype, self.encoded.dtype)
    }

    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        (decoded / self.decoded.dtype.size()).saturating_mul(self.encoded.dtype.size())
    }

    fn decode(&self, input: &[u8], _shape: &[u64], out: &mut [u8]) -> Result<()> {
        let (from, to) = (self.encoded.dtype, self.decoded.dtype);
        let native;
        let input = if self.encoded.swap {
            let mut copy = input.to_vec();
            swap_bytes(&mut copy, from.size());
            native = copy;
            &native
        } else {
            input
        };
        match self.operation {
            Operation::Cast if from == to => out.copy_from_slice(input),
            Operation::Cast => cast(from, input, to, out),
            Operation::Delta => delta(from, input, to, out),
            Operation::FixedScaleOffset { scale, offset } => scaled(from, input, to, out, scale, offset),
        }
        if self.decoded.swap {
            swap_bytes(out, to.size());
        }
        Ok(())
    }
}

/// Decodes Delta. Like NumPy, sums in the type to which both types promote, and converts each sum to `to`.
fn delta(from: DType, input: &[u8], to: DType, out: &mut [u8]) {
    let wide = promote(from, to);
    if wide == to {
        cast(from, input, to, out);
        return with_element!(to, T => sum::<T>(out));
    }
    let mut sums = vec![0; input.len() / from.size() * wide.size()];
    cast(from, input, wide, &mut sums);
    with_element!(wide, T => sum::<T>(&mut sums));
    cast(wide, &sums, to, out);
}

/// Replaces each element by the sum of all up to it.
fn sum<T: Element>(elements: &mut [u8]) {
    let mut sum: Option<T> = None;
    for bytes in elements.chunks_exact_mut(T::DTYPE.size()) {
        let element = T::load(bytes);
        let next = sum.map_or(element, |sum| sum.add(element));
        bytes.copy_from_slice(next.bytes().as_ref());
        sum = Some(next);
    }
}

/// Decodes FixedScaleOffset. Encoded float16 and float32 are computed in their own type (float16 through float32, each
/// result rounded to float16), all other types in float64.
fn scaled(from: DType, input: &[u8], to: DType, out: &mut [u8], scale: f64, offset: f64) {
    match from {
        DType::F16 => {
            let (scale, offset) = (half_from_f64(scale).to_f32(), half_from_f64(offset).to_f32());
            with_element!(to, D => map::<f16, D>(input, out, |v| {
                D::cast(f16::from_f32(f16::from_f32(v.to_f32() / scale).to_f32() + offset))
            }));
        }
        DType::F32 => {
            let (scale, offset) = (scale as f32, offset as f32);
            with_element!(to, D => map::<f32, D>(input, out, |v| D::cast(v / scale + offset)));
        }
        _ => {
            let mut numbers = [0; 8 * TILE];
            for (input, out) in input.chunks(TILE * from.size()).zip(out.chunks_mut(TILE * to.size())) {
                let numbers = &mut numbers[..8 * (input.len() / from.size())];
                cast(from, input, DType::F64, numbers);
                with_element!(to, D => map::<f64, D>(numbers, out, |v| D::cast(v / scale + offset)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<S: Element, D: Element>(operation: Operation, swap: bool, values: &[S]) -> Vec<D> {
        let mut input: Vec<u8> = values.iter().flat_map(|v| v.bytes().as_ref().to_vec()).collect();
        let (encoded, decoded) = (TypeWithOrder { dtype: S::DTYPE, swap }, TypeWithOrder { dtype: D::DTYPE, swap });
        if swap {
            swap_bytes(&mut input, S::DTYPE.size());
        }
        let mut out = vec![0; values.len() * D::DTYPE.size()];
        Arithmetic { operation, encoded, decoded }.decode(&input, &[], &mut out).unwrap();
        if swap {
            swap_bytes(&mut out, D::DTYPE.size());
        }
        out.chunks_exact(D::DTYPE.size()).map(D::load).collect()
    }

    #[test]
    fn sums_wrap_and_keep_their_order() {
        for swap in [false, true] {
            assert_eq!(run::<i8, i16>(Operation::Delta, swap, &[100, 100, -1]), [100, 200, 199]);
            assert_eq!(run::<u8, u8>(Operation::Delta, swap, &[200, 100, 255]), [200, 44, 43]);
            assert_eq!(run::<i64, i32>(Operation::Delta, swap, &[1 << 40, 5]), [0, 5]);
            assert_eq!(run::<f32, f32>(Operation::Delta, swap, &[1e8, 1.0, -1e8]), [1e8, 1e8, 0.0]);
            // int32 and float32 are summed in float64.
            assert_eq!(
                run::<i32, f32>(Operation::Delta, swap, &[1 << 24, 1, 1]),
                [16_777_216.0, 16_777_216.0, 16_777_218.0]
            );
            // int8 and uint8 are summed in int16.
            assert_eq!(run::<i8, u8>(Operation::Delta, swap, &[-1, 2]), [255, 1]);
        }
        assert_eq!(run::<f64, f64>(Operation::Delta, false, &[-0.0])[0].to_bits(), (-0.0f64).to_bits());
    }

    #[test]
    fn scaling_is_done_in_the_encoded_floats_or_float64() {
        let operation = Operation::FixedScaleOffset { scale: 10.0, offset: 1000.0 };
        for swap in [false, true] {
            assert_eq!(run::<u8, f64>(operation, swap, &[0, 1, 255]), [1000.0, 1000.1, 1025.5]);
            assert_eq!(run::<i16, f32>(operation, swap, &[-3]), [999.7f64 as f32]);
            assert_eq!(run::<f32, f64>(operation, swap, &[1.0]), [f64::from(1.0f32 / 10.0 + 1000.0)]);
            assert_eq!(run::<i32, i32>(operation, swap, &[19]), [1001]);
            let half = f16::from_f32(f16::from_f32(3.0 / 10.0).to_f32() + 1000.0);
            assert_eq!(run::<f16, f16>(operation, swap, &[f16::from_f32(3.0)]), [half]);
        }
    }

    #[test]
    fn casts() {
        assert_eq!(run::<f32, f64>(Operation::Cast, true, &[0.1]), [f64::from(0.1f32)]);
        assert_eq!(run::<i16, u8>(Operation::Cast, false, &[-1, 256]), [255, 0]);
    }
}
