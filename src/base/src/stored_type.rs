//! Parses data types and fill values of metadata. A stored type becomes one [`DType`], or a pair of values of one
//! [`DType`] (complex types), or an error that says what to do instead.

use std::fmt;

use half::{bf16, f16};
use serde_json::Value;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::json::{named_float, shown};

/// A stored data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The type as which elements are read. For a complex type, the type of the real and of the imaginary part.
    pub dtype: DType,
    /// Whether the type is complex. Such arrays are read with one more dimension: real and imaginary part.
    pub is_complex: bool,
    /// The unit of datetime64 and timedelta64, which are read as int64. `None` for other types.
    pub unit: Option<TimeUnit>,
    /// Whether v2 metadata says that elements are big-endian. False for v3, where the codec "bytes" says it.
    pub big_endian: bool,
}

/// The unit in which datetime64 and timedelta64 count: `scale` times `unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeUnit {
    is_difference: bool,
    scale: u32,
    /// NumPy's name of the unit; empty for NumPy's "generic", which means no unit.
    unit: &'static str,
}

/// A fill value: bits of [`Stored::dtype`] in native order, zero-extended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// The value. For a complex type, the real part.
    pub bits: u64,
    /// For a complex type, the imaginary part. Otherwise the same as `bits`.
    pub imaginary: u64,
}

impl From<u64> for Fill {
    fn from(bits: u64) -> Self {
        Self { bits, imaginary: bits }
    }
}

impl Stored {
    /// Returns the stored type of `dtype`: not complex, without a unit, not big-endian.
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

/// Writes NumPy's name of the type.
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

    /// Parses the text that follows a type's name: nothing, or a unit such as `[10s]`.
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
pub fn parse_v2(value: &Value) -> Result<Stored> {
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
pub fn parse_v3(value: &Value) -> Result<Stored> {
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

/// Returns the type of the real and imaginary part of the complex type with this v3 name; `None` if it isn't one.
fn component(name: &str) -> Option<DType> {
    Some(match name {
        "complex64" => DType::F32,
        "complex128" => DType::F64,
        _ => float_or_integer(name.strip_prefix("complex_")?).filter(|dtype| dtype.is_float())?,
    })
}

/// Returns the type with this v3 name, if it is neither complex nor a time.
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

/// Parses a fill value. Returns `None` for v2's null ("undefined").
pub fn fill_value(value: &Value, stored: Stored) -> Result<Option<Fill>> {
    let fill = match value {
        Value::Null => return Ok(None),
        Value::Array(parts) if stored.is_complex => match parts.as_slice() {
            [real, imaginary] => scalar_bits(real, stored.dtype)
                .zip(scalar_bits(imaginary, stored.dtype))
                .map(|(bits, imaginary)| Fill { bits, imaginary }),
            _ => None,
        },
        // A single value is the real part, as in zarr-python.
        _ if stored.is_complex => scalar_bits(value, stored.dtype).map(|bits| Fill { bits, imaginary: 0 }),
        Value::String(text) if stored.unit.is_some() && text == "NaT" => Some((i64::MIN as u64).into()),
        _ => scalar_bits(value, stored.dtype).map(Fill::from),
    };
    fill.map(Some)
        .ok_or_else(|| Error::value(format!("fill_value: expected a value of {stored}, but found {}", shown(value))))
}

// Some writers give fill values as text ("0", "nan"); n5-zarr did until 2024. Text is read as zarr-python reads it. A
// truth value counts as a number, as in Python.

/// Parses a truth value. zarr-python reads any text as true, so text is accepted only if it says true or a number other
/// than zero.
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

/// Parses a float, and returns its bits as `dtype`.
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

/// Parses a whole number.
fn integer(value: &Value) -> Option<i128> {
    match value {
        Value::Bool(b) => Some(i128::from(*b)),
        Value::Number(n) => {
            let exact = n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
            // The JSON parser makes a float of a number below -2^63, and -2^63 may be the nearest float. So this float
            // is refused.
            exact.or_else(|| n.as_f64().filter(|&f| f > i64::MIN as f64).and_then(whole))
        }
        // "1.0" is accepted here, though zarr-python refuses it.
        Value::String(s) => s.trim().parse().ok().or_else(|| s.trim().parse().ok().and_then(whole)),
        _ => None,
    }
}

/// Parses a scalar of `dtype` that is written like a fill value, as in the configurations of codecs. Returns its bits
/// in native order, zero-extended.
pub fn scalar_bits(value: &Value, dtype: DType) -> Option<u64> {
    match dtype {
        DType::Bool => truth(value).map(u64::from),
        dtype if dtype.is_float() => float(value, dtype),
        dtype => integer(value).and_then(|i| int_bits(i, dtype)),
    }
}

/// Returns the float as an integer, if it is whole and below 1e30 in magnitude.
pub fn whole(f: f64) -> Option<i128> {
    (f.fract() == 0.0 && f.abs() < 1e30).then_some(f as i128)
}

/// Returns the bits of an integer as `dtype`, zero-extended. `None` if it is out of range or `dtype` isn't an integer
/// type.
pub fn int_bits(i: i128, dtype: DType) -> Option<u64> {
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

/// Returns the integer with these bits; `None` if `dtype` isn't an integer type.
pub fn int_value(bits: u64, dtype: DType) -> Option<i128> {
    Some(match dtype {
        DType::I8 => i128::from(bits as u8 as i8),
        DType::I16 => i128::from(bits as u16 as i16),
        DType::I32 => i128::from(bits as u32 as i32),
        DType::I64 => i128::from(bits as i64),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => i128::from(bits),
        _ => return None,
    })
}

/// Returns the bits of the float of type `dtype` that is nearest to `f`, zero-extended.
pub fn float_bits(f: f64, dtype: DType) -> u64 {
    match dtype {
        DType::F16 => u64::from(crate::dtype::half_from_f64(f).to_bits()),
        DType::BF16 => u64::from(crate::dtype::bfloat_from_f64(f).to_bits()),
        DType::F32 => u64::from((f as f32).to_bits()),
        _ => f.to_bits(),
    }
}

/// Returns the float with these bits.
pub fn float_value(bits: u64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

#[cfg(test)]
mod tests;
