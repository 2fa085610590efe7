//! CF decoding (`_FillValue`, `missing_value`, `scale_factor`, `add_offset`, `_Unsigned`), with the same results and
//! result types as xarray's `open_zarr` without decoding of times. Attributes that xarray refuses are refused here.
//!
//! The rules follow xarray's behaviour, also where it surprises: in v2 the array's own fill value means missing, and an
//! integer `scale_factor` without `add_offset` converts values to int64 (fractions are cut off) before the
//! multiplication.

mod numbers;

use std::fmt;

use serde_json::{Map, Value};

use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;
use dali_zarr_base::stored_type::{Fill as StoredFill, Stored, float_bits, float_value, int_bits, int_value};
use numbers::{Factor, Number, encoded_fill, factor, missing_bits, numbers, own_number};

/// How stored values are decoded: missing values become NaN, then `x * scale + offset` is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Cf {
    /// Stored values that mean missing: bits of `src_dtype` in native order, zero-extended. xarray compares values as
    /// floats: -0.0 equals 0.0, and integers beyond 2^53 equal their neighbours.
    pub missing: Vec<u64>,
    /// The factor, rounded to `decoded`. The product is rounded to `decoded` too, before `offset` is added.
    pub scale: Option<f64>,
    /// An integer factor. If it is set, `missing`, `scale` and `offset` aren't: values are converted to int64 as by
    /// NumPy's `astype`, and multiplied by this factor modulo 2^64.
    pub int_scale: Option<i64>,
    /// The summand, rounded to `decoded`. The sum is rounded too.
    pub offset: Option<f64>,
    /// The type of the stored elements after `_Unsigned`. It has the same size as the array's type.
    pub src_dtype: DType,
    /// The type of the result, in which `scale` and `offset` are applied. It isn't always float64: float32 data with
    /// the fill value NaN stay float32.
    pub decoded: DType,
}

impl Cf {
    /// Makes a decoding that changes nothing.
    pub fn identity(dtype: DType) -> Self {
        Self { missing: Vec::new(), scale: None, int_scale: None, offset: None, src_dtype: dtype, decoded: dtype }
    }

    /// Whether decoding changes nothing.
    pub fn is_identity(&self) -> bool {
        let factors = self.scale.is_some() || self.int_scale.is_some() || self.offset.is_some();
        self.missing.is_empty() && !factors && self.src_dtype == self.decoded
    }

    /// Returns the values that mean missing, as a text for people.
    fn missing_text(&self) -> String {
        const SHOWN: usize = 8;
        let value = |&bits: &u64| match int_value(bits, self.src_dtype) {
            Some(i) => i.to_string(),
            None => format!("{:?}", float_value(bits, self.src_dtype)),
        };
        let mut missing: Vec<_> = self.missing.iter().take(SHOWN).map(value).collect();
        if let more @ 1.. = self.missing.len().saturating_sub(SHOWN) {
            missing.push(format!("and {more} more"));
        }
        missing.join(", ")
    }
}

impl fmt::Display for Cf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: Option<f64>| n.map_or("none".to_owned(), |n| n.to_string());
        let (missing, offset) = (self.missing_text(), number(self.offset));
        let scale = self.int_scale.map_or_else(|| number(self.scale), |scale| format!("{scale} (integer)"));
        write!(
            f,
            "{} to {}, scale_factor {scale}, add_offset {offset}, missing [{missing}]",
            self.src_dtype, self.decoded
        )
    }
}

/// The type in which xarray applies `scale_factor` and `add_offset`.
enum Packed {
    Float(DType),
    /// int64, by multiplication with this integer.
    Int64(i128),
    /// None, because `scale_factor` isn't a plain number.
    NoNumber,
}

/// Whether stored values are packed, which means that there is a `scale_factor` or an `add_offset`.
pub(super) fn is_packed(attrs: &Map<String, Value>) -> bool {
    attrs.contains_key("scale_factor") || attrs.contains_key("add_offset")
}

/// Returns a text for people about the values that mean missing, and where they are named: the attributes `_FillValue`
/// and `missing_value`, or v2's own fill value. A fill value of 0 doesn't count, because most writers other than xarray
/// write 0. `None` if no stored value would be masked. The arguments are those of [`decode`].
pub(super) fn named_missing(
    version: u8,
    stored: Stored,
    own_fill: Option<StoredFill>,
    attrs: &Map<String, Value>,
) -> Option<String> {
    let named: Vec<_> = ["_FillValue", "missing_value"].into_iter().filter_map(|n| Some((n, attrs.get(n)?))).collect();
    let own = own_fill.map(|fill| own_number(fill.bits, stored.dtype).as_f64()).filter(|fill| *fill != 0.0);
    if (named.is_empty() && own.is_none()) || stored.unit.is_some() || stored.is_complex {
        return None;
    }
    let text = match decode(version, stored, own_fill, attrs) {
        Ok(cf) => Some(cf.missing_text()).filter(|text| !text.is_empty())?,
        // If decoding fails, the attributes are shown as stored. Without attributes there is nothing to show.
        Err(_) if named.is_empty() => return None,
        Err(_) => named.iter().map(|(name, value)| format!("{name} = {}", shown(value))).collect::<Vec<_>>().join(", "),
    };
    let what = if named.is_empty() { "fill_value, in Zarr v2, means" } else { "attributes name" };
    Some(format!("its {what} missing values ({text})"))
}

/// Finds how an array's values are decoded, from its attributes. `own_fill` is the fill value in v2 metadata, `None` if
/// it is null.
///
/// # Errors
/// [`Error::value`] for attributes that xarray refuses, and for results that aren't numbers of one type.
pub(super) fn decode(
    version: u8,
    stored: Stored,
    own_fill: Option<StoredFill>,
    attrs: &Map<String, Value>,
) -> Result<Cf> {
    let dtype = stored.dtype;
    if stored.is_complex {
        let names = ["_FillValue", "missing_value", "scale_factor", "add_offset"];
        return match names.into_iter().find(|&name| attrs.contains_key(name)) {
            None if version == 3 || own_fill.is_none() => Ok(Cf::identity(dtype)),
            found => Err(refused(&format!(
                "{} for {stored}",
                found.unwrap_or("a fill value, which means missing in Zarr v2,")
            ))),
        };
    }
    let fill = match (version, own_fill) {
        (2, Some(fill)) => Fill::Own(fill.bits),
        _ => match attrs.get("_FillValue") {
            None => Fill::None,
            Some(value) if version == 3 => Fill::Attribute(vec![encoded_fill(value, stored)?]),
            Some(Value::Null) => Fill::None,
            Some(value) => Fill::Attribute(numbers("_FillValue", value)?),
        },
    };
    if stored.unit.is_some() {
        return Ok(Cf::identity(dtype));
    }

    // The values that mean missing. `None` is a string, which no stored value equals.
    let mut values: Vec<Option<Number>> = Vec::new();
    let mut named = false;
    let mut add = |list: &[Option<Number>]| {
        let list: Vec<_> = list.iter().filter(|v| !v.is_some_and(|n| n.as_f64().is_nan())).copied().collect();
        // NaN values are dropped. For integers an attribute without other values is ignored; for floats it still
        // counts.
        named |= !(list.is_empty() && is_integer(dtype));
        for value in list {
            let known = |v: &Option<Number>| match (v, value) {
                (Some(a), Some(b)) => a.equals(b),
                _ => false,
            };
            if !values.iter().any(known) {
                values.push(value);
            }
        }
    };
    match attrs.get("missing_value") {
        None | Some(Value::Null) => {}
        Some(value) => add(&numbers("missing_value", value)?),
    }
    match &fill {
        Fill::None => {}
        Fill::Own(bits) => add(&[Some(own_number(*bits, dtype))]),
        Fill::Attribute(list) => add(list),
    }

    let src_dtype = unsigned(dtype, attrs, &fill, &mut values)?;
    let scale = factor(attrs, "scale_factor")?;
    let offset = factor(attrs, "add_offset")?;
    let packed = is_packed(attrs);

    let mut decoded = src_dtype;
    if !values.is_empty() {
        decoded = if packed {
            match choose(src_dtype, scale, offset) {
                Packed::Float(float) => float,
                Packed::Int64(_) => {
                    return Err(refused("an integer scale_factor, and missing values that int64 lacks"));
                }
                Packed::NoNumber => return Err(refused("a scale_factor that is no plain number")),
            }
        } else {
            match src_dtype {
                DType::Bool => return Err(refused("missing values in an array of bool, which would become objects")),
                DType::BF16 => DType::F32,
                float if float.is_float() => float,
                int if int.size() <= 2 => DType::F32,
                _ => DType::F64,
            }
        };
    }
    let mut int_scale = None;
    if packed {
        if !named {
            decoded = match choose(decoded, scale, offset) {
                Packed::Float(float) => float,
                Packed::Int64(factor) => {
                    let factor = i64::try_from(factor).ok();
                    int_scale = Some(factor.ok_or_else(|| refused("an integer scale_factor that int64 can't hold"))?);
                    DType::I64
                }
                Packed::NoNumber => return Err(refused("a scale_factor that is no plain number")),
            };
        } else if !decoded.is_float() {
            return Err(refused("a scale_factor or add_offset for an array of bool with missing values"));
        }
    }
    if attrs.get("dtype").and_then(Value::as_str) == Some("bool") {
        if packed {
            return Err(refused("the attribute dtype \"bool\" together with scale_factor or add_offset"));
        }
        decoded = DType::Bool;
    }

    let missing = missing_bits(&values, src_dtype);
    let rounded = |factor: Option<Factor>| {
        let value = factor.map(Factor::value);
        if decoded.is_float() { value.map(|f| float_value(float_bits(f, decoded), decoded)) } else { value }
    };
    let scale = if int_scale.is_some() { None } else { rounded(scale) };
    Ok(Cf { missing, scale, int_scale, offset: rounded(offset), src_dtype, decoded })
}

enum Fill {
    None,
    /// v2's `fill_value`, a NumPy scalar of the array's type: its bits.
    Own(u64),
    /// The attribute `_FillValue`: Python numbers.
    Attribute(Vec<Option<Number>>),
}

fn refused(found: &str) -> Error {
    Error::value(format!(
        "mask_and_scale: expected attributes that decode to numbers, but found {found}; correct the array's attributes, \
         or read it with mask_and_scale=False"
    ))
}

fn is_integer(dtype: DType) -> bool {
    !dtype.is_float() && dtype != DType::Bool
}

/// Applies `_Unsigned`: returns the type as which stored bits are read, and converts the fill value in `values` to it.
fn unsigned(dtype: DType, attrs: &Map<String, Value>, fill: &Fill, values: &mut Vec<Option<Number>>) -> Result<DType> {
    let to = match (dtype, attrs.get("_Unsigned").and_then(Value::as_str)) {
        (DType::I8, Some("true")) => DType::U8,
        (DType::I16, Some("true")) => DType::U16,
        (DType::I32, Some("true")) => DType::U32,
        (DType::I64, Some("true")) => DType::U64,
        (DType::U8, Some("false")) => DType::I8,
        (DType::U16, Some("false")) => DType::I16,
        (DType::U32, Some("false")) => DType::I32,
        (DType::U64, Some("false")) => DType::I64,
        _ => return Ok(dtype),
    };
    let (old, bits) = match fill {
        Fill::None => return Ok(to),
        Fill::Own(bits) => (own_number(*bits, dtype), *bits),
        Fill::Attribute(list) => {
            // Attributes that are NaN or null were ignored.
            if list.iter().all(|v| v.is_some_and(|n| n.as_f64().is_nan())) {
                return Ok(to);
            }
            let [Some(old)] = list[..] else {
                return Err(refused("a _FillValue that isn't one number, with _Unsigned"));
            };
            // The attribute's number is read as the signed one of both types: the stored type or the resulting type.
            let signed = if is_signed(dtype) { dtype } else { to };
            let truncated = old.as_int().unwrap_or(old.as_f64().trunc() as i128);
            let bits = int_bits(truncated, signed)
                .ok_or_else(|| refused(&format!("a _FillValue that {signed} can't hold, with _Unsigned")))?;
            (old, bits)
        }
    };
    values.retain(|v| !v.is_some_and(|v| v.equals(old)));
    let new = own_number(bits, to);
    if !values.iter().any(|v| v.is_some_and(|v| v.equals(new))) {
        values.push(Some(new));
    }
    Ok(to)
}

fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64)
}

/// Returns the type in which xarray applies `scale` and `offset` to values of `dtype`. At least one of both attributes
/// exists, but it may be null.
fn choose(dtype: DType, scale: Option<Factor>, offset: Option<Factor>) -> Packed {
    match (scale, offset) {
        (_, Some(_)) | (Some(Factor::Float(_)), None) => Packed::Float(DType::F64),
        (Some(Factor::Int(i)), None) => Packed::Int64(i),
        (Some(Factor::Odd(_)), None) => Packed::NoNumber,
        (None, None) => Packed::Float(match dtype {
            DType::F16 | DType::BF16 | DType::F32 | DType::I8 | DType::U8 | DType::I16 | DType::U16 => DType::F32,
            _ => DType::F64,
        }),
    }
}

#[cfg(test)]
mod tests;
