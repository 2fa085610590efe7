//! Decodes Zarr v3's `cast_value`.
//!
//! Specification: zarr-extensions. The codec converts numbers, not bits. The rules are tried in this order: a map of
//! single values, the same value if the type has it, rounding, and a rule for values out of range. A value that no rule
//! covers is an error. With "clamp", infinities become the smallest or largest integer: the specification's text leaves
//! this open, and the implementation behind zarr-python does so.

use serde_json::{Map, Value};

use super::element::cast;
use super::number::{Number, OutOfRange, Rounding, Rules};
use super::scale_offset::{bits, known, numeric, scalar};
use crate::chain::{Side, Step};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;

/// `cast_value`, in the direction of decoding.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CastValue {
    /// The type of encoded elements.
    pub encoded: DType,
    /// The type of decoded elements.
    pub decoded: DType,
    rules: Rules,
    /// Pairs of an encoded value and its decoded value, as the bits of their types.
    map: Vec<(u64, u64)>,
}

impl CastValue {
    /// Reads the configuration of the codec. `decoded` is the type of decoded elements.
    ///
    /// # Errors
    /// If the configuration is invalid, or has a type that DALI doesn't have.
    pub(crate) fn parse(configuration: &Map<String, Value>, decoded: DType) -> Result<Self> {
        const NAME: &str = "cast_value";
        let wrong = |field: &str, expected: &str| {
            Error::value(format!(
                "codec \"{NAME}\": {field}: expected {expected}, but found {}",
                shown(configuration.get(field).unwrap_or(&Value::Null))
            ))
        };
        numeric(NAME, decoded)?;
        known(NAME, configuration, &["data_type", "rounding", "out_of_range", "scalar_map"])?;
        let data_type = configuration.get("data_type");
        let name = data_type.and_then(|d| d.as_str().or_else(|| d.get("name").and_then(Value::as_str)));
        let encoded = name.and_then(DType::from_name).filter(|&d| d != DType::Bool);
        let encoded =
            encoded.ok_or_else(|| wrong("data_type", "int8 to int64, uint8 to uint64 or float16 to float64"))?;
        let rounding = match configuration.get("rounding").map(|r| r.as_str().unwrap_or("")) {
            None | Some("nearest-even") => Rounding::NearestEven,
            Some("nearest-away") => Rounding::NearestAway,
            Some("towards-zero") => Rounding::TowardsZero,
            Some("towards-positive") => Rounding::TowardsPositive,
            Some("towards-negative") => Rounding::TowardsNegative,
            Some(_) => return Err(wrong("rounding", "one of the five modes of the specification")),
        };
        let out_of_range = match configuration.get("out_of_range") {
            None | Some(Value::Null) => OutOfRange::Error,
            Some(Value::String(rule)) if rule == "clamp" => OutOfRange::Clamp,
            Some(Value::String(rule)) if rule == "wrap" => OutOfRange::Wrap,
            Some(_) => return Err(wrong("out_of_range", "\"clamp\" or \"wrap\"")),
        };
        let mut map = Vec::new();
        match configuration.get("scalar_map") {
            None | Some(Value::Null) => {}
            Some(Value::Object(maps)) => match maps.get("decode") {
                None | Some(Value::Null) => {}
                Some(Value::Array(pairs)) => {
                    for pair in pairs {
                        let Some([from, to]) = pair.as_array().map(Vec::as_slice) else {
                            return Err(wrong("scalar_map", "lists of pairs"));
                        };
                        map.push((scalar(NAME, from, encoded)?, scalar(NAME, to, decoded)?));
                    }
                }
                Some(_) => return Err(wrong("scalar_map", "lists of pairs")),
            },
            Some(_) => return Err(wrong("scalar_map", "an object")),
        }
        Ok(Self { encoded, decoded, rules: Rules { rounding, out_of_range }, map })
    }
}

impl Step for CastValue {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        side.converted(self.decoded, self.encoded)
    }

    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        (decoded / self.decoded.size()).saturating_mul(self.encoded.size())
    }

    fn decode(&self, input: &[u8], _shape: &[u64], out: &mut [u8]) -> Result<()> {
        if self.map.is_empty() && includes(self.decoded, self.encoded) {
            cast(self.encoded, input, self.decoded, out);
            return Ok(());
        }
        let mapped: Vec<(Number, u64)> =
            self.map.iter().map(|&(from, to)| (Number::load(&bits(from, self.encoded), self.encoded), to)).collect();
        let (from, to) = (self.encoded.size(), self.decoded.size());
        for (source, target) in input.chunks_exact(from).zip(out.chunks_exact_mut(to)) {
            let value = Number::load(source, self.encoded);
            let converted = match mapped.iter().find(|(key, _)| key.equals(value)) {
                Some(&(_, to)) => Some(to),
                None if self.decoded.is_float() => value.to_float(self.decoded, self.rules),
                None => value.to_int(self.decoded, self.rules),
            };
            let Some(converted) = converted else {
                return Err(Error::damaged(format!(
                    "expected {} values that cast_value converts to {}, but found {}; the chunk is damaged, or its \
                     metadata lack a rule for it",
                    self.encoded,
                    self.decoded,
                    value.to_f64()
                )));
            };
            target.copy_from_slice(&bits(converted, self.decoded));
        }
        Ok(())
    }
}

/// Whether `outer` can represent every value of `inner`.
fn includes(outer: DType, inner: DType) -> bool {
    let digits = |dtype: DType| match dtype {
        DType::F16 => 11,
        DType::F32 => 24,
        DType::F64 => 53,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 8 * dtype.size() - 1,
        _ => 8 * dtype.size(),
    };
    let signed = |dtype: DType| matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    match (outer.is_float(), inner.is_float()) {
        (false, true) => false,
        // The range needs no check: an integer type that fits the 11 bits of float16 is far below its largest value,
        // 65504.
        (true, _) => digits(outer) >= digits(inner),
        (false, false) => digits(outer) >= digits(inner) && (signed(outer) || !signed(inner)),
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use serde_json::json;

    use super::super::scale_offset::tests::{load, store};
    use super::*;
    use crate::filters::element::Element;

    fn cast_value<S: Element, D: Element>(mut configuration: Value, values: &[S]) -> Result<Vec<D>> {
        configuration["data_type"] = json!(S::DTYPE.name());
        let codec = CastValue::parse(configuration.as_object().unwrap(), D::DTYPE)?;
        let mut out = vec![0; values.len() * D::DTYPE.size()];
        codec.decode(&store(values), &[], &mut out)?;
        Ok(load(&out))
    }

    #[test]
    fn casts_that_are_exact() {
        assert_eq!(cast_value::<u16, f32>(json!({}), &[0, 65535]).unwrap(), [0.0, 65535.0]);
        assert_eq!(cast_value::<i8, i64>(json!({}), &[-128]).unwrap(), [-128]);
        let halves = [f16::MIN_POSITIVE_SUBNORMAL, f16::MAX, f16::NEG_INFINITY];
        assert_eq!(cast_value::<f16, f64>(json!({}), &halves).unwrap(), [2f64.powi(-24), 65504.0, f64::NEG_INFINITY]);
    }

    #[test]
    fn rounding() {
        for (mode, expected) in [
            ("nearest-even", [2, -2, 4, 1, 0]),
            ("nearest-away", [3, -3, 4, 1, 0]),
            ("towards-zero", [2, -2, 3, 0, 0]),
            ("towards-positive", [3, -2, 4, 1, 1]),
            ("towards-negative", [2, -3, 3, 0, 0]),
        ] {
            let found = cast_value::<f64, i16>(json!({"rounding": mode}), &[2.5, -2.5, 3.5, 0.75, 1e-300]).unwrap();
            assert_eq!(found, expected, "{mode}");
            let near = [1.0 + 2f64.powi(-24), -1.0 - 2f64.powi(-24), 1.0 + 2f64.powi(-24) + 2f64.powi(-50)];
            let found = cast_value::<f64, f32>(json!({"rounding": mode}), &near).unwrap();
            let up = 1.0f32.next_up();
            let expected = match mode {
                "nearest-even" => [1.0, -1.0, up],
                "nearest-away" => [up, -up, up],
                "towards-zero" => [1.0, -1.0, 1.0],
                "towards-positive" => [up, -1.0, up],
                _ => [1.0, -up, 1.0],
            };
            assert_eq!(found, expected, "{mode}");
        }
        // "nearest-even" gives the values of Rust's own conversions.
        let mut state = 5u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let v = f64::from_bits(state ^ state >> 29);
            let clamp = json!({"out_of_range": "clamp"});
            let found = cast_value::<f64, f32>(clamp.clone(), &[v]).unwrap()[0];
            assert!(found.to_bits() == (v as f32).to_bits() || v.is_nan() && found.is_nan(), "{v}: {found}");
            let found = cast_value::<u64, f32>(clamp.clone(), &[state]).unwrap()[0];
            assert_eq!(found, state as f32);
            let small = v.abs().sqrt().sqrt().sqrt().sqrt().sqrt().sqrt();
            let found = cast_value::<f64, f16>(clamp, &[small]).unwrap()[0];
            assert!(found == dali_zarr_base::dtype::half_from_f64(small) || small.is_nan(), "{small}: {found}");
        }
    }

    #[test]
    fn ranges() {
        let values = [300i32, -1, 7];
        assert!(cast_value::<i32, u8>(json!({}), &values).is_err());
        assert_eq!(cast_value::<i32, u8>(json!({"out_of_range": "clamp"}), &values).unwrap(), [255, 0, 7]);
        assert_eq!(cast_value::<i32, u8>(json!({"out_of_range": "wrap"}), &values).unwrap(), [44, 255, 7]);
        let floats = [128.0f32, -129.0, 1e30];
        assert!(cast_value::<f32, i8>(json!({}), &floats).is_err());
        assert_eq!(cast_value::<f32, i8>(json!({"out_of_range": "clamp"}), &floats).unwrap(), [127, -128, 127]);
        assert_eq!(cast_value::<f32, i8>(json!({"out_of_range": "wrap"}), &floats).unwrap(), [-128, 127, 0]);
        assert!(cast_value::<u32, f16>(json!({}), &[65520]).is_err());
        assert_eq!(cast_value::<u32, f16>(json!({}), &[65519]).unwrap(), [f16::MAX]);
        assert_eq!(cast_value::<u32, f16>(json!({"out_of_range": "clamp"}), &[65520]).unwrap(), [f16::INFINITY]);
        let ends = [f32::INFINITY, f32::NEG_INFINITY];
        assert_eq!(cast_value::<f32, i8>(json!({"out_of_range": "clamp"}), &ends).unwrap(), [127, -128]);
        assert!(cast_value::<f32, i8>(json!({"out_of_range": "wrap"}), &ends).is_err());
        assert!(cast_value::<f32, i8>(json!({"out_of_range": "clamp"}), &[f32::NAN]).is_err());
        assert_eq!(cast_value::<f64, f32>(json!({}), &[-0.0]).unwrap()[0].to_bits(), 1 << 31);
    }

    #[test]
    fn maps_come_first() {
        let map = json!({"scalar_map": {"decode": [[0, "NaN"], [1, "+Infinity"], [0, 7.0]], "encode": [["NaN", 0]]}});
        let found = cast_value::<u16, f32>(map, &[0, 1, 2]).unwrap();
        assert!(found[0].is_nan());
        assert_eq!(found[1..], [f32::INFINITY, 2.0]);
        let map = json!({"scalar_map": {"decode": [["NaN", -1], [-0.0, 5]]}});
        assert_eq!(cast_value::<f32, i8>(map, &[f32::NAN, 0.0, 3.0]).unwrap(), [-1, 5, 3]);
    }

    #[test]
    fn wrong_configurations() {
        for wrong in [
            json!({"rounding": "up"}),
            json!({"out_of_range": "error"}),
            json!({"scalar_map": []}),
            json!({"scalar_map": {"decode": [[1]]}}),
            json!({"scalar_map": {"decode": [[1, 2.5]]}}),
            json!({"extra": 1}),
        ] {
            let error = cast_value::<i8, i16>(wrong.clone(), &[1]).unwrap_err();
            assert!(error.message().contains("cast_value"), "{wrong}: {error}");
        }
        assert!(CastValue::parse(json!({"data_type": "bool"}).as_object().unwrap(), DType::I8).is_err());
        assert!(CastValue::parse(json!({"data_type": "int4"}).as_object().unwrap(), DType::I8).is_err());
    }
}
