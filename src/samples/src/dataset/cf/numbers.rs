//! Reads the numbers in attributes: fill values, missing values, factors. Their types in Python are kept, because
//! xarray's rules depend on them.

use serde_json::{Map, Value};

use super::refused;
use dali_zarr_base::base64;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::{bare_float, shown};
use dali_zarr_base::stored_type::{Stored, float_bits, float_value, int_bits, int_value, whole};

/// Limit on values that mean missing. A longer list is a mistake or an attack.
const MAX_MISSING: usize = 4096;

/// A number of an attribute. Two numbers with the same value are equal, whatever their types.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn as_f64(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }

    pub(super) fn as_int(self) -> Option<i128> {
        match self {
            Self::Int(i) => Some(i),
            Self::Float(f) => whole(f),
        }
    }

    pub(super) fn equals(self, other: Self) -> bool {
        match (self.as_int(), other.as_int()) {
            (Some(a), Some(b)) => a == b,
            (None, None) => self.as_f64() == other.as_f64(),
            _ => false,
        }
    }
}

/// A scale or offset with its type in Python, which decides the type of the result.
#[derive(Clone, Copy)]
pub(super) enum Factor {
    Int(i128),
    Float(f64),
    /// A bool or a list of one number, which xarray doesn't treat as a number type.
    Odd(f64),
}

impl Factor {
    pub(super) fn value(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) | Self::Odd(f) => f,
        }
    }
}

pub(super) fn own_number(bits: u64, dtype: DType) -> Number {
    match int_value(bits, dtype) {
        Some(i) => Number::Int(i),
        None if dtype == DType::Bool => Number::Int(i128::from(bits)),
        None => Number::Float(float_value(bits, dtype)),
    }
}

fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Bool(b) => Some(Number::Int(i128::from(*b))),
        Value::Number(n) => {
            let int = n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
            int.map(Number::Int).or_else(|| n.as_f64().map(Number::Float))
        }
        Value::String(s) => bare_float(s).map(Number::Float),
        _ => None,
    }
}

/// Returns all numbers of a value, which may be a list of lists. `None` stands for a string, which equals no number.
pub(super) fn numbers(name: &str, value: &Value) -> Result<Vec<Option<Number>>> {
    let mut out = Vec::new();
    let mut rest = vec![value];
    while let Some(value) = rest.pop() {
        match value {
            Value::Array(list) => rest.extend(list.iter().rev()),
            Value::Object(_) => return Err(refused(&format!("{name} = {}", shown(value)))),
            Value::Null => {}
            _ => out.push(number(value)),
        }
    }
    if out.len() > MAX_MISSING {
        return Err(refused(&format!("{} numbers in {name}, of which {MAX_MISSING} are read at most", out.len())));
    }
    // One float turns the whole list into floats, and one string turns it into strings.
    if out.iter().any(Option::is_none) {
        out = vec![None; out.len()];
    } else if out.iter().any(|n| matches!(n, Some(Number::Float(_)))) {
        out = out.iter().map(|n| n.map(|n| Number::Float(n.as_f64()))).collect();
    }
    Ok(out)
}

/// Reads v3's attribute `_FillValue`: floats as base64 of a little-endian float64, integers as numbers.
pub(super) fn encoded_fill(value: &Value, stored: Stored) -> Result<Option<Number>> {
    let wrong = |expected: &str| {
        Error::value(format!(
            "_FillValue: expected {expected}, as xarray writes it for {} in Zarr v3, but found {}; correct the attribute, \
             or read the array with mask_and_scale=False",
            stored,
            shown(value)
        ))
    };
    if stored.unit.is_some() {
        return Err(wrong("no such attribute"));
    }
    if stored.dtype.is_float() {
        let bytes = value.as_str().and_then(|text| base64::decode(text.as_bytes()).ok());
        let bytes =
            bytes.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok()).ok_or_else(|| wrong("a float64 in base64"))?;
        return Ok(Some(Number::Float(f64::from_le_bytes(bytes))));
    }
    if stored.dtype == DType::Bool {
        return match value {
            Value::Bool(_) | Value::Number(_) => Ok(number(value).map(|n| Number::Int(i128::from(n.as_f64() != 0.0)))),
            _ => Err(wrong("a bool")),
        };
    }
    match number(value) {
        Some(Number::Int(i)) => Ok(Some(Number::Int(i))),
        Some(Number::Float(f)) if f.is_finite() && f.abs() < 1e30 => Ok(Some(Number::Int(f.trunc() as i128))),
        _ => Err(wrong("a number")),
    }
}

pub(super) fn factor(attrs: &Map<String, Value>, name: &str) -> Result<Option<Factor>> {
    let Some(value) = attrs.get(name) else { return Ok(None) };
    let wrong = || refused(&format!("{name} = {}", shown(value)));
    let mut inner = value;
    while let Value::Array(list) = inner {
        let [one] = list.as_slice() else { return Err(wrong()) };
        inner = one;
    }
    Ok(match (inner, number(inner)) {
        (Value::Null, _) if value.is_null() => None,
        (_, Some(n)) if value.is_array() || value.is_boolean() => Some(Factor::Odd(n.as_f64())),
        (_, Some(Number::Int(i))) => Some(Factor::Int(i)),
        (_, Some(Number::Float(f))) => Some(Factor::Float(f)),
        _ => return Err(wrong()),
    })
}

/// Returns the bits of all stored values of `dtype` that equal one of `values`.
pub(super) fn missing_bits(values: &[Option<Number>], dtype: DType) -> Vec<u64> {
    let mut missing = Vec::new();
    for value in values.iter().flatten() {
        if dtype.is_float() {
            let f = value.as_f64();
            let bits = float_bits(f, dtype);
            if float_value(bits, dtype) == f {
                missing.push(bits);
            }
        } else if dtype == DType::Bool {
            missing.extend(value.as_int().filter(|&i| i == 0 || i == 1).map(|i| i as u64));
        } else if dtype.size() == 8 && [2f64.powi(63), 2f64.powi(64)].contains(&value.as_f64()) {
            // Values are compared as floats. The largest integer of the type rounds up to this value, so it equals it.
            let largest = if dtype == DType::I64 { i64::MAX as u64 } else { u64::MAX };
            let rounded = if dtype == DType::I64 { 2f64.powi(63) } else { 2f64.powi(64) };
            match value.as_int().and_then(|i| int_bits(i, dtype)) {
                Some(bits) => missing.push(bits),
                None if value.as_f64() == rounded => missing.push(largest),
                None => {}
            }
        } else {
            missing.extend(value.as_int().and_then(|i| int_bits(i, dtype)));
        }
    }
    missing
}
