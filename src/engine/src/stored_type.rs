//! Data types and fill values as metadata spells them. Every stored type becomes one of [`DType`]'s twelve, or an
//! error that says the way out.

use half::f16;
use serde_json::Value;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::json::{named_float, shown};

/// A stored data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// What it is read as.
    pub dtype: DType,
    /// Whether it is datetime64 or timedelta64, read as int64.
    pub time: bool,
    /// Whether v2 metadata says that it is big-endian; v3 says that in the codec "bytes".
    pub big_endian: bool,
}

/// Reads `dtype` of v2 metadata: a NumPy type string such as `<f4` or `<M8[ns]`.
pub(crate) fn parse_v2(value: &Value) -> Result<Stored> {
    let refused = || refuse(value);
    let text = value.as_str().ok_or_else(refused)?;
    let mut chars = text.chars();
    let big_endian = match chars.next() {
        Some('<') => false,
        Some('>') => true,
        Some('|' | '=') => cfg!(target_endian = "big"),
        _ => return Err(refused()),
    };
    let (kind, size) = chars.as_str().split_at_checked(1).ok_or_else(refused)?;
    let time = matches!(kind, "M" | "m");
    let dtype = match (kind, size) {
        ("b", "1") => DType::Bool,
        ("i", "1") => DType::I8,
        ("i", "2") => DType::I16,
        ("i", "4") => DType::I32,
        ("i", "8") => DType::I64,
        ("u", "1") => DType::U8,
        ("u", "2") => DType::U16,
        ("u", "4") => DType::U32,
        ("u", "8") => DType::U64,
        ("f", "2") => DType::F16,
        ("f", "4") => DType::F32,
        ("f", "8") => DType::F64,
        ("M" | "m", unit) if unit == "8" || unit.starts_with("8[") => DType::I64,
        _ => return Err(refused()),
    };
    Ok(Stored { dtype, time, big_endian })
}

/// Reads `data_type` of v3 metadata: a name, or an object with a name.
pub(crate) fn parse_v3(value: &Value) -> Result<Stored> {
    let name = value.as_str().or_else(|| value.get("name").and_then(Value::as_str)).ok_or_else(|| refuse(value))?;
    let time = ["numpy.datetime64", "numpy.timedelta64", "datetime64", "timedelta64"]
        .iter()
        .any(|t| name.strip_prefix(t).is_some_and(|unit| unit.is_empty() || unit.starts_with('[')));
    let dtype = if time { DType::I64 } else { DType::from_name(name).ok_or_else(|| refuse(value))? };
    Ok(Stored { dtype, time, big_endian: false })
}

fn refuse(value: &Value) -> Error {
    let text = shown(value);
    let name = value.as_str().or_else(|| value.get("name").and_then(Value::as_str)).unwrap_or("");
    let kind = name.trim_start_matches(['<', '>', '|', '=']);
    let way_out = if name.starts_with("complex") || kind.starts_with('c') {
        "view complex64 as float32 (complex128 as float64) with one more dimension when writing, or leave the array out"
    } else if name.starts_with("bfloat16") || name.starts_with("float8") || name.contains("float") {
        "write it as float16 or float32, or leave the array out"
    } else if value.is_array() || name == "struct" || name == "structured" {
        "write each field as an array of its own, or leave the array out"
    } else if name.starts_with("int") || name.starts_with("uint") {
        "write it as int8 or uint8, or leave the array out"
    } else {
        "write it as numbers, or leave the array out"
    };
    Error::dtype(format!(
        "expected a data type that DALI has (bool, int8 to int64, uint8 to uint64, float16 to float64; datetime64 and \
         timedelta64 are read as int64), but found {text}; {way_out}"
    ))
}

/// Reads a fill value: bits of `stored`, in native order, zero-extended. `None` for v2's null ("undefined").
pub(crate) fn fill_value(value: &Value, stored: Stored) -> Result<Option<u64>> {
    let dtype = stored.dtype;
    let wrong = || {
        let name = if stored.time { "datetime64 or timedelta64" } else { dtype.name() };
        Error::value(format!("fill_value: expected a value of {name}, but found {}", shown(value)))
    };
    if value.is_null() {
        return Ok(None);
    }
    if stored.time && value.as_str() == Some("NaT") {
        return Ok(Some(i64::MIN as u64));
    }
    let bits = match dtype {
        DType::Bool => truth(value).map(u64::from),
        DType::F16 | DType::F32 | DType::F64 => float(value, dtype),
        _ => integer(value).and_then(|i| int_bits(i, dtype)),
    };
    bits.map(Some).ok_or_else(wrong)
}

// Some writers give fill values as text: n5-zarr did until 2024 ("0", "nan"). They are read as zarr-python reads them, for which a
// truth value is a number too, as in Python.

/// A truth value. Text only where zarr-python, for which any is true, agrees with what it says.
fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(b) => Some(*b),
        Value::Number(n) => n.as_f64().map(|f| f != 0.0),
        Value::String(s) => {
            let says = s.eq_ignore_ascii_case("true") || s.trim().parse::<f64>().is_ok_and(|f| f != 0.0);
            says.then_some(true)
        }
        _ => None,
    }
}

/// The bits of a float of `dtype`.
fn float(value: &Value, dtype: DType) -> Option<u64> {
    let number = match value {
        Value::Bool(b) => f64::from(u8::from(*b)),
        Value::Number(n) => n.as_f64()?,
        Value::String(s) => match s.strip_prefix("0x") {
            Some(hex) => {
                let bits = u64::from_str_radix(hex, 16).ok().filter(|_| hex.bytes().all(|b| b.is_ascii_hexdigit()))?;
                match hex.len() {
                    digits if digits == 2 * dtype.size() => return Some(bits),
                    4 => float_value(bits, DType::F16),
                    8 => float_value(bits, DType::F32),
                    16 => float_value(bits, DType::F64),
                    _ => return None,
                }
            }
            None => named_float(s).or_else(|| s.trim().parse().ok())?,
        },
        _ => return None,
    };
    Some(float_bits(number, dtype))
}

/// A whole number.
fn integer(value: &Value) -> Option<i128> {
    match value {
        Value::Bool(b) => Some(i128::from(*b)),
        Value::Number(n) => {
            let exact = n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
            // A number below -2^63 became a float, and the nearest one is -2^63.
            exact.or_else(|| n.as_f64().filter(|&f| f > i64::MIN as f64).and_then(whole))
        }
        // zarr-python refuses "1.0".
        Value::String(s) => s.trim().parse().ok().or_else(|| s.trim().parse().ok().and_then(whole)),
        _ => None,
    }
}

/// Reads a scalar of `dtype` that is spelled like a fill value, as in the configurations of codecs.
pub(crate) fn scalar_bits(value: &Value, dtype: DType) -> Option<u64> {
    fill_value(value, Stored { dtype, time: false, big_endian: false }).ok().flatten()
}

/// The float's value if it is whole.
pub(crate) fn whole(f: f64) -> Option<i128> {
    (f.fract() == 0.0 && f.abs() < 1e30).then_some(f as i128)
}

/// The bits of an integer of `dtype`, zero-extended; `None` if it is out of range or `dtype` isn't an integer type.
pub(crate) fn int_bits(i: i128, dtype: DType) -> Option<u64> {
    Some(match dtype {
        DType::I8 => u64::from(i8::try_from(i).ok()? as u8),
        DType::I16 => u64::from(i16::try_from(i).ok()? as u16),
        DType::I32 => u64::from(i32::try_from(i).ok()? as u32),
        DType::I64 => i64::try_from(i).ok()? as u64,
        DType::U8 => u64::from(u8::try_from(i).ok()?),
        DType::U16 => u64::from(u16::try_from(i).ok()?),
        DType::U32 => u64::from(u32::try_from(i).ok()?),
        DType::U64 => u64::try_from(i).ok()?,
        _ => return None,
    })
}

/// The integer with these bits.
pub(crate) fn int_value(bits: u64, dtype: DType) -> Option<i128> {
    Some(match dtype {
        DType::I8 => i128::from(bits as u8 as i8),
        DType::I16 => i128::from(bits as u16 as i16),
        DType::I32 => i128::from(bits as u32 as i32),
        DType::I64 => i128::from(bits as i64),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => i128::from(bits),
        _ => return None,
    })
}

/// The bits of the float of `dtype` that is nearest to `f`, zero-extended.
pub(crate) fn float_bits(f: f64, dtype: DType) -> u64 {
    match dtype {
        DType::F16 => u64::from(crate::dtype::half_from_f64(f).to_bits()),
        DType::F32 => u64::from((f as f32).to_bits()),
        _ => f.to_bits(),
    }
}

/// The float with these bits.
pub(crate) fn float_value(bits: u64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::ErrorKind;

    fn v3(name: &str) -> Stored {
        parse_v3(&json!(name)).unwrap()
    }

    #[test]
    fn types() {
        assert_eq!(parse_v2(&json!(">f4")).unwrap(), Stored { dtype: DType::F32, time: false, big_endian: true });
        assert_eq!(parse_v2(&json!("<M8[ns]")).unwrap(), Stored { dtype: DType::I64, time: true, big_endian: false });
        assert!(parse_v3(&json!({"name": "numpy.datetime64", "configuration": {"unit": "s"}})).unwrap().time);
        for dtype in DType::ALL {
            assert_eq!(v3(dtype.name()).dtype, dtype);
        }
    }

    #[test]
    fn refused_types_name_the_way_out() {
        for (value, way_out) in [
            (json!("complex64"), "view complex64 as float32"),
            (json!("bfloat16"), "float32"),
            (json!("float8_e4m3"), "float32"),
            (json!("string"), "leave the array out"),
            (json!("r16"), "leave the array out"),
        ] {
            let error = parse_v3(&value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Type);
            assert!(error.message().contains(way_out), "{error}");
        }
        for value in
            [json!("<c8"), json!("|S5"), json!("<U3"), json!("|V8"), json!("|O"), json!([["a", "<f4"]]), json!("")]
        {
            assert_eq!(parse_v2(&value).unwrap_err().kind(), ErrorKind::Type, "{value}");
        }
    }

    #[test]
    fn fill_values_keep_their_bits() {
        let fill = |value: Value, name| fill_value(&value, v3(name)).unwrap().unwrap();
        assert_eq!(fill(json!("0x7fc00001"), "float32"), 0x7fc0_0001);
        assert_eq!(fill(json!("0xfff8000000000123"), "float64"), 0xfff8_0000_0000_0123);
        assert_eq!(fill(json!("NaN"), "float32"), 0x7fc0_0000);
        assert_eq!(fill(json!("NaN"), "float16"), 0x7e00);
        assert_eq!(fill(json!(-0.0), "float32"), 0x8000_0000);
        assert_eq!(fill(json!(0.1), "float32"), u64::from(0.1f32.to_bits()));
        assert_eq!(fill(json!(-1), "int16"), 0xffff);
        assert_eq!(fill(json!(u64::MAX), "uint64"), u64::MAX);
        assert_eq!(fill(json!(3.0), "int8"), 3);
        assert_eq!(fill(json!(true), "bool"), 1);
        assert_eq!(fill(json!(2), "bool"), 1);
        assert_eq!(fill(json!(i64::MIN), "int64"), 1 << 63);
        for (text, name) in
            [("-9223372036854775809", "int64"), ("9223372036854775808", "int64"), ("18446744073709551616", "uint64")]
        {
            assert!(fill_value(&serde_json::from_str(text).unwrap(), v3(name)).is_err(), "{text}");
        }
        assert_eq!(fill(json!("0x3c00"), "float32"), u64::from(1f32.to_bits()));
        let time = Stored { dtype: DType::I64, time: true, big_endian: false };
        assert_eq!(fill_value(&json!("NaT"), time).unwrap(), Some(1 << 63));
        assert_eq!(fill_value(&Value::Null, time).unwrap(), None);
        let cases = [
            (json!("0"), "int32", 0),
            (json!("-7"), "int16", 0xfff9),
            (json!("0.0"), "uint8", 0),
            (json!("18446744073709551615"), "uint64", u64::MAX),
            (json!(true), "int8", 1),
            (json!(true), "float32", u64::from(1f32.to_bits())),
            (json!(false), "float64", 0),
            (json!("1.5"), "float32", u64::from(1.5f32.to_bits())),
            (json!("nan"), "float32", 0x7fc0_0000),
            (json!("-inf"), "float16", 0xfc00),
            (json!("1e400"), "float64", f64::INFINITY.to_bits()),
            (json!("True"), "bool", 1),
            (json!("1"), "bool", 1),
        ];
        for (value, name, bits) in cases {
            assert_eq!(fill(value.clone(), name), bits, "{value} {name}");
        }
        for (value, name) in [
            (json!(256), "uint8"),
            (json!(-1), "uint64"),
            (json!(0.5), "int32"),
            (json!("0x7fc"), "float32"),
            (json!("0x+fc00001"), "float32"),
            (json!([1]), "int8"),
            (json!([1]), "float32"),
            (json!("256"), "uint8"),
            (json!("1.5"), "int16"),
            (json!("nan"), "int32"),
            (json!("inf"), "int32"),
            (json!("many"), "float64"),
            (json!(""), "float64"),
            // True for zarr-python.
            (json!("false"), "bool"),
            (json!("0"), "bool"),
            (json!(""), "bool"),
        ] {
            assert!(fill_value(&value, v3(name)).is_err(), "{value} {name}");
        }
    }
}
