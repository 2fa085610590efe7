//! Decodes Zarr v3's `scale_offset`. Specification: zarr-extensions.

use half::f16;
use serde_json::{Map, Value};

use super::element::{Element, map, with_element};
use crate::chain::{Side, Step};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;
use dali_zarr_base::stored_type::scalar_bits;

/// `scale_offset`: `encoded / scale + offset`, in the type of the elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ScaleOffset {
    /// The type of encoded and decoded elements.
    pub dtype: DType,
    /// Scale and offset are stored as the bits of a `dtype`.
    scale: u64,
    offset: u64,
}

impl ScaleOffset {
    /// Reads the configuration of the codec for elements of `dtype`.
    ///
    /// # Errors
    /// If the configuration is invalid, or the scale is zero.
    pub(crate) fn parse(configuration: &Map<String, Value>, dtype: DType) -> Result<Self> {
        const NAME: &str = "scale_offset";
        numeric(NAME, dtype)?;
        known(NAME, configuration, &["offset", "scale"])?;
        let field =
            |key: &str, default: i64| scalar(NAME, configuration.get(key).unwrap_or(&Value::from(default)), dtype);
        let (scale, offset) = (field("scale", 1)?, field("offset", 0)?);
        let zero = with_element!(dtype, T => T::load(bits(scale, dtype).as_slice()).to_f64() == 0.0);
        if zero {
            return Err(Error::value("codec \"scale_offset\": expected a scale other than 0, but found 0"));
        }
        Ok(Self { dtype, scale, offset })
    }
}

impl Step for ScaleOffset {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        side.converted(self.dtype, self.dtype)
    }

    fn decode(&self, input: &[u8], _shape: &[u64], out: &mut [u8]) -> Result<()> {
        let (scale, offset) = (bits(self.scale, self.dtype), bits(self.offset, self.dtype));
        match self.dtype {
            DType::F16 => {
                let (scale, offset) = (f16::load(&scale).to_f32(), f16::load(&offset).to_f32());
                map::<f16, f16>(input, out, |v| f16::from_f32(f16::from_f32(v.to_f32() / scale).to_f32() + offset));
            }
            DType::F32 => {
                let (scale, offset) = (f32::load(&scale), f32::load(&offset));
                map::<f32, f32>(input, out, |v| v / scale + offset);
            }
            DType::F64 => {
                let (scale, offset) = (f64::load(&scale), f64::load(&offset));
                map::<f64, f64>(input, out, |v| v / scale + offset);
            }
            DType::Bool | DType::BF16 => return numeric("scale_offset", self.dtype),
            dtype => {
                let mut wrong = None;
                with_element!(dtype, T => {
                    let (scale, offset) = (wide(T::load(&scale)), wide(T::load(&offset)));
                    map::<T, T>(input, out, |v| {
                        let v = wide(v);
                        let result = v / scale + offset;
                        let narrow = T::cast(result as i64);
                        if v % scale != 0 || wide(narrow) != result {
                            wrong.get_or_insert(v);
                        }
                        narrow
                    });
                });
                if let Some(v) = wrong {
                    return Err(Error::damaged(format!(
                        "expected encoded values whose scale_offset is exact in {dtype}, but found {v}; the chunk is \
                         damaged or of another array"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Reads a scalar of type `dtype` from metadata, and returns its bits.
pub(super) fn scalar(codec: &str, value: &Value, dtype: DType) -> Result<u64> {
    // The specification's own example has "+Infinity".
    let plain = value.as_str().and_then(|text| text.strip_prefix('+')).map(Value::from);
    scalar_bits(plain.as_ref().unwrap_or(value), dtype).ok_or_else(|| {
        Error::value(format!("codec \"{codec}\": expected a value of {dtype}, but found {}", shown(value)))
    })
}

/// Refuses fields other than `fields`. The specifications of both codecs demand it.
pub(super) fn known(codec: &str, configuration: &Map<String, Value>, fields: &[&str]) -> Result<()> {
    match configuration.keys().find(|key| !fields.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => Err(Error::value(format!(
            "codec \"{codec}\": expected the fields {}, but found {key:?}",
            fields.join(", ")
        ))),
    }
}

pub(super) fn numeric(codec: &str, dtype: DType) -> Result<()> {
    match dtype {
        DType::Bool | DType::BF16 => {
            Err(Error::value(format!("codec \"{codec}\": expected integers or float16 to float64, but found {dtype}")))
        }
        _ => Ok(()),
    }
}

/// Returns the bytes of an element of type `dtype` with these bits, in native order.
pub(super) fn bits(bits: u64, dtype: DType) -> Vec<u8> {
    if cfg!(target_endian = "big") {
        bits.to_be_bytes()[8 - dtype.size()..].to_vec()
    } else {
        bits.to_le_bytes()[..dtype.size()].to_vec()
    }
}

/// Returns an integer's value.
pub(super) fn wide<T: Element>(v: T) -> i128 {
    if T::DTYPE == DType::U64 { i128::from(v.to_i64() as u64) } else { i128::from(v.to_i64()) }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn load<T: Element>(bytes: &[u8]) -> Vec<T> {
        bytes.chunks_exact(T::DTYPE.size()).map(T::load).collect()
    }

    pub(in super::super) fn store<T: Element>(values: &[T]) -> Vec<u8> {
        values.iter().flat_map(|v| v.bytes().as_ref().to_vec()).collect()
    }

    fn scale_offset<T: Element>(configuration: Value, values: &[T]) -> Result<Vec<T>> {
        let codec = ScaleOffset::parse(configuration.as_object().unwrap(), T::DTYPE)?;
        let mut out = vec![0; values.len() * T::DTYPE.size()];
        codec.decode(&store(values), &[], &mut out)?;
        Ok(load(&out))
    }

    #[test]
    fn scales_and_offsets() {
        let found = scale_offset(json!({"scale": 0.1, "offset": 5}), &[1.0f32, 3.0]).unwrap();
        assert_eq!(found, [1.0 / 0.1f32 + 5.0, 3.0 / 0.1f32 + 5.0]);
        assert_eq!(scale_offset(json!({}), &[7u8]).unwrap(), [7]);
        assert_eq!(scale_offset(json!({"offset": 1000}), &[0u16, 255]).unwrap(), [1000, 1255]);
        assert_eq!(scale_offset(json!({"scale": -3, "offset": 1}), &[6i64, -9]).unwrap(), [-1, 4]);
        assert_eq!(scale_offset(json!({"scale": 2}), &[u64::MAX - 1]).unwrap(), [u64::MAX / 2]);
        for (configuration, value) in
            [(json!({"scale": 3}), 7i8), (json!({"offset": 100}), 100), (json!({"scale": -1}), -128)]
        {
            let error = scale_offset(configuration, &[value]).unwrap_err();
            assert!(error.message().contains(&value.to_string()), "{error}");
        }
        assert!(scale_offset(json!({"offset": u64::MAX}), &[1u64]).is_err());
        for wrong in [json!({"scale": 0}), json!({"scale": 0.5}), json!({"offset": 300}), json!({"bias": 1})] {
            assert!(scale_offset(wrong.clone(), &[1i8]).is_err(), "{wrong}");
        }
        assert!(scale_offset(json!({"scale": 0.0}), &[1f32]).is_err());
    }
}
