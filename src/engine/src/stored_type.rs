//! Data types and fill values as metadata spells them. Every stored type becomes a [`DType`], or two of one, or an error that
//! says the way out.

use std::fmt;

use half::{bf16, f16};
use serde_json::Value;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::json::{named_float, shown};

/// A stored data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// What it is read as; of a complex type, that of the real and the imaginary part.
    pub dtype: DType,
    /// Whether it is complex: read with one more dimension, real and imaginary part.
    pub is_complex: bool,
    /// Of datetime64 and timedelta64, which are read as int64.
    pub unit: Option<TimeUnit>,
    /// Whether v2 metadata says that it is big-endian; v3 says that in the codec "bytes".
    pub big_endian: bool,
}

/// What datetime64 and timedelta64 count: `scale` times `unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeUnit {
    is_difference: bool,
    scale: u32,
    /// NumPy's name; empty for its "generic", which is none.
    unit: &'static str,
}

/// A fill value: bits of [`Stored::dtype`] in native order, zero-extended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    /// Of a complex type, the real part.
    pub bits: u64,
    /// The imaginary part of a complex type, else the same.
    pub imaginary: u64,
}

impl From<u64> for Fill {
    fn from(bits: u64) -> Self {
        Self { bits, imaginary: bits }
    }
}

impl Stored {
    /// A type that isn't complex, without a unit, of v3.
    pub fn plain(dtype: DType) -> Self {
        Self { dtype, is_complex: false, unit: None, big_endian: false }
    }

    fn complex(dtype: DType) -> Self {
        Self { is_complex: true, ..Self::plain(dtype) }
    }

    fn time(unit: TimeUnit) -> Self {
        Self { unit: Some(unit), ..Self::plain(DType::I64) }
    }
}

/// As NumPy names it.
impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.unit, self.is_complex, self.dtype) {
            (Some(TimeUnit { is_difference, scale, unit }), ..) => {
                f.write_str(if is_difference { "timedelta64" } else { "datetime64" })?;
                match (unit, scale) {
                    ("", _) => Ok(()),
                    (unit, 1) => write!(f, "[{unit}]"),
                    (unit, scale) => write!(f, "[{scale}{unit}]"),
                }
            }
            (None, true, DType::F32) => f.write_str("complex64"),
            (None, true, DType::F64) => f.write_str("complex128"),
            (None, true, dtype) => write!(f, "complex_{dtype}"),
            (None, false, dtype) => dtype.fmt(f),
        }
    }
}

impl TimeUnit {
    const NAMES: [&str; 13] = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"];

    fn new(is_difference: bool, scale: u64, unit: &str) -> Option<Self> {
        let unit = match unit {
            "" | "generic" => "",
            "\u{3bc}s" | "\u{b5}s" => "us",
            name => Self::NAMES.into_iter().find(|&known| known == name)?,
        };
        let scale = u32::try_from(scale).ok().filter(|&scale| scale > 0 && scale <= i32::MAX as u32)?;
        Some(Self { is_difference, scale, unit })
    }

    /// Reads what follows a type's name: nothing, or `[10s]`.
    fn parse(is_difference: bool, text: &str) -> Option<Self> {
        if text.is_empty() {
            return Self::new(is_difference, 1, "");
        }
        let text = text.strip_prefix('[')?.strip_suffix(']')?;
        let (scale, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
        Self::new(is_difference, if scale.is_empty() { 1 } else { scale.parse().ok()? }, unit)
    }
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
    let plain = Stored::plain;
    let stored = match (kind, size) {
        ("b", "1") => plain(DType::Bool),
        ("i", "1") => plain(DType::I8),
        ("i", "2") => plain(DType::I16),
        ("i", "4") => plain(DType::I32),
        ("i", "8") => plain(DType::I64),
        ("u", "1") => plain(DType::U8),
        ("u", "2") => plain(DType::U16),
        ("u", "4") => plain(DType::U32),
        ("u", "8") => plain(DType::U64),
        ("f", "2") => plain(DType::F16),
        ("f", "4") => plain(DType::F32),
        ("f", "8") => plain(DType::F64),
        ("c", "8") => Stored::complex(DType::F32),
        ("c", "16") => Stored::complex(DType::F64),
        ("M" | "m", _) => {
            let unit = size.strip_prefix('8').and_then(|unit| TimeUnit::parse(kind == "m", unit));
            Stored::time(unit.ok_or_else(refused)?)
        }
        _ => return Err(refused()),
    };
    Ok(Stored { big_endian, ..stored })
}

/// Reads `data_type` of v3 metadata: a name, or an object with a name.
pub(crate) fn parse_v3(value: &Value) -> Result<Stored> {
    let refused = || refuse(value);
    let name = value.as_str().or_else(|| value.get("name").and_then(Value::as_str)).ok_or_else(refused)?;
    if let Some(dtype) = component(name) {
        return Ok(Stored::complex(dtype));
    }
    let kinds = [("datetime64", false), ("timedelta64", true)];
    let kind =
        |(kind, is_difference)| Some((name.strip_prefix("numpy.").unwrap_or(name).strip_prefix(kind)?, is_difference));
    let Some((rest, is_difference)) = kinds.into_iter().find_map(kind) else {
        return float_or_integer(name).map(Stored::plain).ok_or_else(refused);
    };
    let configured = |key: &str| value.get("configuration").and_then(|c| c.get(key)).filter(|found| !found.is_null());
    let unit = match (configured("unit"), configured("scale_factor")) {
        (None, _) => TimeUnit::parse(is_difference, rest),
        (Some(unit), None) => unit.as_str().and_then(|unit| TimeUnit::new(is_difference, 1, unit)),
        (Some(unit), Some(scale)) => {
            unit.as_str().zip(scale.as_u64()).and_then(|(unit, scale)| TimeUnit::new(is_difference, scale, unit))
        }
    };
    unit.map(Stored::time).ok_or_else(refused)
}

/// The type of the parts of the complex type with this name of v3.
fn component(name: &str) -> Option<DType> {
    Some(match name {
        "complex64" => DType::F32,
        "complex128" => DType::F64,
        _ => float_or_integer(name.strip_prefix("complex_")?).filter(|dtype| dtype.is_float())?,
    })
}

/// The type with this name of v3.
fn float_or_integer(name: &str) -> Option<DType> {
    if name == DType::BF16.name() { Some(DType::BF16) } else { DType::from_name(name) }
}

fn refuse(value: &Value) -> Error {
    let text = shown(value);
    let name = value.as_str().or_else(|| value.get("name").and_then(Value::as_str)).unwrap_or("");
    // In v2 the kind is a letter, with a size in bytes: "<f16".
    let kind = name.trim_start_matches(['<', '>', '|', '=']);
    let is_kind =
        |letter| kind.strip_prefix(letter).is_some_and(|size: &str| size.starts_with(|c: char| c.is_ascii_digit()));
    let way_out = if name.starts_with("complex") || is_kind('c') {
        "write it as complex64 or complex128, or leave the array out"
    } else if name.contains("float") || is_kind('f') {
        "write it as float16 or float32, or leave the array out"
    } else if name.contains("datetime64") || name.contains("timedelta64") || kind.starts_with(['M', 'm']) {
        "give it a unit of NumPy's, such as datetime64[ns], or write it as int64"
    } else if value.is_array() || name == "struct" || name == "structured" {
        "write each field as an array of its own, or leave the array out"
    } else if name.starts_with("int") || name.starts_with("uint") {
        "write it as int8 or uint8, or leave the array out"
    } else {
        "write it as numbers, or leave the array out"
    };
    Error::dtype(format!(
        "expected a data type that DALI has (bool, int8 to int64, uint8 to uint64, float16 to float64), bfloat16, complex, \
         datetime64 or timedelta64, but found {text}; {way_out}"
    ))
}

/// Reads a fill value. `None` for v2's null ("undefined").
pub(crate) fn fill_value(value: &Value, stored: Stored) -> Result<Option<Fill>> {
    let fill = match value {
        Value::Null => return Ok(None),
        Value::Array(parts) if stored.is_complex => match parts.as_slice() {
            [real, imaginary] => scalar_bits(real, stored.dtype)
                .zip(scalar_bits(imaginary, stored.dtype))
                .map(|(bits, imaginary)| Fill { bits, imaginary }),
            _ => None,
        },
        // As zarr-python reads it: a real number.
        _ if stored.is_complex => scalar_bits(value, stored.dtype).map(|bits| Fill { bits, imaginary: 0 }),
        Value::String(text) if stored.unit.is_some() && text == "NaT" => Some((i64::MIN as u64).into()),
        _ => scalar_bits(value, stored.dtype).map(Fill::from),
    };
    fill.map(Some)
        .ok_or_else(|| Error::value(format!("fill_value: expected a value of {stored}, but found {}", shown(value))))
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

/// Reads a scalar of `dtype` that is spelled like a fill value, as in the configurations of codecs: its bits, in native order,
/// zero-extended.
pub(crate) fn scalar_bits(value: &Value, dtype: DType) -> Option<u64> {
    match dtype {
        DType::Bool => truth(value).map(u64::from),
        dtype if dtype.is_float() => float(value, dtype),
        dtype => integer(value).and_then(|i| int_bits(i, dtype)),
    }
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
        DType::BF16 => u64::from(crate::dtype::bfloat_from_f64(f).to_bits()),
        DType::F32 => u64::from((f as f32).to_bits()),
        _ => f.to_bits(),
    }
}

/// The float with these bits.
pub(crate) fn float_value(bits: u64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
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
        assert_eq!(parse_v2(&json!(">f4")).unwrap(), Stored { big_endian: true, ..Stored::plain(DType::F32) });
        let time = parse_v2(&json!("<M8[ns]")).unwrap();
        assert_eq!((time.dtype, time.to_string().as_str()), (DType::I64, "datetime64[ns]"));
        let complex = parse_v2(&json!(">c16")).unwrap();
        assert_eq!(complex, Stored { big_endian: true, ..Stored::complex(DType::F64) });
        for (text, name) in
            [(json!("<m8[25us]"), "timedelta64[25us]"), (json!("<M8"), "datetime64"), (json!("<c8"), "complex64")]
        {
            assert_eq!(parse_v2(&text).unwrap().to_string(), name);
        }
        let of_numpy = |unit: Value, scale| json!({"name": "numpy.timedelta64", "configuration": {"unit": unit, "scale_factor": scale}});
        for (value, name) in [
            (of_numpy(json!("s"), 10), "timedelta64[10s]"),
            (of_numpy(json!("generic"), 1), "timedelta64"),
            (json!({"name": "numpy.datetime64", "configuration": {"unit": "D"}}), "datetime64[D]"),
            (json!("datetime64[ms]"), "datetime64[ms]"),
            (json!("complex_float32"), "complex64"),
            (json!("complex_bfloat16"), "complex_bfloat16"),
            (json!("bfloat16"), "bfloat16"),
        ] {
            assert_eq!(parse_v3(&value).unwrap().to_string(), name);
        }
        for wrong in [
            of_numpy(json!("fortnight"), 1),
            of_numpy(json!("s"), 0),
            of_numpy(json!("s"), 1i64 << 40),
            of_numpy(json!(["s"]), 1),
            json!("datetime64[ns"),
            json!("datetime64s"),
            json!("numpy.datetime64[99999999999999999999s]"),
            json!("complex_int8"),
            json!("complex"),
        ] {
            assert_eq!(parse_v3(&wrong).unwrap_err().kind(), ErrorKind::Type, "{wrong}");
        }
        for dtype in DType::ALL {
            assert_eq!(v3(dtype.name()).dtype, dtype);
        }
    }

    #[test]
    fn refused_types_name_the_way_out() {
        for (value, way_out) in [
            (json!("complex_float8_e4m3"), "write it as complex64"),
            (json!({"name": "numpy.datetime64", "configuration": {"unit": "year"}}), "datetime64[ns]"),
            (json!("float8_e4m3"), "float32"),
            (json!("string"), "write it as numbers"),
            (json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}}), "write it as numbers"),
            (json!("r16"), "leave the array out"),
        ] {
            let error = parse_v3(&value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Type);
            assert!(error.message().contains(way_out), "{error}");
        }
        for value in [
            json!("<c32"),
            json!("<M4[s]"),
            json!("<M8[]s"),
            json!("|S5"),
            json!("<U3"),
            json!("|V8"),
            json!("|O"),
            json!([["a", "<f4"]]),
            json!(""),
        ] {
            assert_eq!(parse_v2(&value).unwrap_err().kind(), ErrorKind::Type, "{value}");
        }
    }

    #[test]
    fn fill_values_keep_their_bits() {
        let fill = |value: Value, name| fill_value(&value, v3(name)).unwrap().unwrap().bits;
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
        let time = v3("datetime64[s]");
        assert_eq!(fill_value(&json!("NaT"), time).unwrap(), Some((1 << 63).into()));
        assert_eq!(fill_value(&Value::Null, time).unwrap(), None);
        assert_eq!(fill(json!(1.5), "bfloat16"), 0x3fc0);
        assert_eq!(fill(json!("NaN"), "bfloat16"), 0x7fc0);
        assert_eq!(fill(json!("0x7f81"), "bfloat16"), 0x7f81);
        let complex =
            |value: Value| fill_value(&value, v3("complex64")).map(|fill| fill.map(|f| (f.bits, f.imaginary)));
        assert_eq!(complex(json!(["NaN", 1.5])).unwrap(), Some((0x7fc0_0000, 0x3fc0_0000)));
        assert_eq!(complex(json!(["0x7fc00001", "-Infinity"])).unwrap(), Some((0x7fc0_0001, 0xff80_0000)));
        assert_eq!(complex(json!(0)).unwrap(), Some((0, 0)));
        assert_eq!(complex(json!(2)).unwrap(), Some((0x4000_0000, 0)));
        for wrong in [json!([1]), json!([1, 2, 3]), json!([1, null]), json!({"real": 1}), json!([[0, 0], 1])] {
            assert!(complex(wrong.clone()).unwrap_err().message().contains("a value of complex64"), "{wrong}");
        }
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
