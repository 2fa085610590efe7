//! From the codecs in metadata to the steps of a [`Chain`].
//!
//! In v2 every filter sees bytes, and brings its own types with their byte order, as NumPy's views do. In v3 codecs
//! before `bytes` see elements in native byte order, so that a byte order in their types has no meaning there.

use serde_json::{Map, Value};

use super::arithmetic::{Arithmetic, Operation};
use super::cast_value::CastValue;
use super::checksum::Checksum;
use super::element::Typed;
use super::lzma::Lzma;
use super::pack::Packer;
use super::scale_offset::ScaleOffset;
use super::{Chain, Step};
use crate::codec::chain::{compression, transposition};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::json::shown;

/// Where a codec's metadata stand, and what they leave out.
#[derive(Clone, Copy)]
enum Format {
    V2,
    /// The array's type, and that of the elements at this place of the chain.
    V3(DType, DType),
}

/// Refuses, by name, codecs that don't encode arrays of numbers.
pub(in crate::codec) fn refuse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    for name in names {
        let what = match name.strip_prefix("numcodecs.").unwrap_or(name) {
            "json2" | "json" | "msgpack2" | "msgpack" | "pickle" => "any Python object",
            "vlen-utf8" | "vlen-bytes" | "vlen-array" => "elements of different lengths",
            "categorize" => "text",
            _ => continue,
        };
        return Err(Error::value(format!(
            "expected codecs for arrays of numbers, but found {name}, which is for {what}; write the array again with \
             numbers and without this codec, or leave it out"
        )));
    }
    Ok(())
}

/// The chain of v2's `filters` and `compressor`, in the order in which they encode; `order` and `dtype` are the array's.
/// `None` if one of them isn't known here.
pub(in crate::codec) fn v2(
    codecs: &[(String, Map<String, Value>)],
    order: &[usize],
    dtype: DType,
    largest: &[u64],
) -> Result<Option<Chain>> {
    let mut steps = Vec::new();
    for (name, configuration) in codecs {
        let Some(step) = array_step(name, configuration, Format::V2)?.or(byte_step(name, configuration, Format::V2)?)
        else {
            return Ok(None);
        };
        steps.extend(step);
    }
    chain(codecs, order.to_vec(), steps, dtype, largest).map(Some)
}

/// The chain of v3's `codecs`, the order of the stored axes, and whether elements come out in the other byte order than
/// this machine's. `None` if one of them isn't known here.
pub(in crate::codec) fn v3(
    codecs: &[(String, Map<String, Value>)],
    dtype: DType,
    largest: &[u64],
) -> Result<Option<(Chain, Vec<usize>, bool)>> {
    let Some(serializer) = codecs.iter().position(|(name, _)| name == "bytes") else { return Ok(None) };
    let (before, after) = (&codecs[..serializer], &codecs[serializer + 1..]);
    let mut order: Vec<usize> = (0..largest.len()).collect();
    let mut steps = Vec::new();
    let (mut current, mut ndim) = (dtype, largest.len());
    for (name, configuration) in before {
        if name == "transpose" {
            let step = transposition(configuration.get("order"), ndim)?;
            if steps.is_empty() {
                // The assembler undoes it. The axes of this step are the stored axes of the one before.
                order = step.iter().map(|&axis| order[axis]).collect();
            } else {
                steps.push(Step::Transpose(step, current.size()));
            }
            continue;
        }
        let Some(step) = array_step(name, configuration, Format::V3(dtype, current))? else { return Ok(None) };
        match &step {
            Some(Step::Arithmetic(arithmetic)) => current = arithmetic.encoded.dtype,
            Some(Step::CastValue(codec)) => current = codec.encoded,
            Some(Step::PackBits) => (current, ndim) = (DType::U8, 1),
            _ => {}
        }
        steps.extend(step);
    }
    let foreign = crate::codec::chain::foreign_endian(&codecs[serializer].1)? && current.size() > 1;
    let swap = foreign && steps.is_empty();
    if foreign && !swap {
        steps.push(Step::Swap(current.size()));
    }
    for (name, configuration) in after {
        let Some(step) = byte_step(name, configuration, Format::V3(dtype, current))? else { return Ok(None) };
        steps.extend(step);
    }
    let chain = chain(codecs, order.clone(), steps, dtype, largest)?;
    Ok(Some((chain, order, swap)))
}

fn chain(
    codecs: &[(String, Map<String, Value>)],
    order: Vec<usize>,
    steps: Vec<Step>,
    dtype: DType,
    largest: &[u64],
) -> Result<Chain> {
    let names = codecs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let stored: Vec<u64> = order.iter().map(|&axis| largest[axis]).collect();
    Chain::new(names, order, steps, dtype, &stored)
}

/// A filter of elements: `None` if it isn't one, `Some(None)` if there is nothing to undo.
fn array_step(name: &str, configuration: &Map<String, Value>, format: Format) -> Result<Option<Option<Step>>> {
    let plain = name.strip_prefix("numcodecs.").unwrap_or(name);
    let wrong = |field: &str, expected: &str| {
        Error::value(format!(
            "codec \"{name}\": {field}: expected {expected}, but found {}",
            shown(configuration.get(field).unwrap_or(&Value::Null))
        ))
    };
    let given = |field: &str| configuration.get(field).filter(|value| !value.is_null());
    let typed = |field: &str, default: Option<Typed>| -> Result<Typed> {
        let missing = || wrong(field, "one of NumPy's types that DALI has, such as \"<f4\"");
        let Some(found) = given(field) else { return default.ok_or_else(missing) };
        let found = found.as_str().and_then(Typed::parse).ok_or_else(missing)?;
        Ok(if matches!(format, Format::V3(..)) { Typed::native(found.dtype) } else { found })
    };
    let own = match format {
        Format::V2 => None,
        Format::V3(array, _) => Some(Typed::native(array)),
    };
    let number = |field: &str| given(field).and_then(Value::as_f64).ok_or_else(|| wrong(field, "a number"));
    let arithmetic =
        |operation, encoded, decoded| Ok(Some(Some(Step::Arithmetic(Arithmetic { operation, encoded, decoded }))));
    match plain {
        "astype" => arithmetic(Operation::Cast, typed("encode_dtype", None)?, typed("decode_dtype", own)?),
        "quantize" => {
            let decoded = typed("dtype", own)?;
            let encoded = typed("astype", Some(decoded))?;
            if !decoded.dtype.is_float() || !encoded.dtype.is_float() {
                return Err(wrong("dtype", "a floating-point type, as for astype"));
            }
            // What writers rounded stays rounded.
            if encoded == decoded {
                return Ok(Some(None));
            }
            arithmetic(Operation::Cast, encoded, decoded)
        }
        "delta" => {
            let decoded = typed("dtype", own)?;
            arithmetic(Operation::Delta, typed("astype", Some(decoded))?, decoded)
        }
        "fixedscaleoffset" => {
            let decoded = typed("dtype", own)?;
            let operation = Operation::FixedScaleOffset { scale: number("scale")?, offset: number("offset")? };
            arithmetic(operation, typed("astype", Some(decoded))?, decoded)
        }
        // As above.
        "bitround" => Ok(Some(None)),
        // v3 has another codec with this name, which isn't a filter.
        "packbits" if name != plain || matches!(format, Format::V2) => Ok(Some(Some(Step::PackBits))),
        "scale_offset" | "cast_value" => {
            let Format::V3(_, current) = format else { return Ok(None) };
            Ok(Some(Some(if plain == "scale_offset" {
                Step::ScaleOffset(ScaleOffset::parse(configuration, current)?)
            } else {
                Step::CastValue(CastValue::parse(configuration, current)?)
            })))
        }
        _ => Ok(None),
    }
}

/// A codec of bytes, as [`array_step`].
fn byte_step(name: &str, configuration: &Map<String, Value>, format: Format) -> Result<Option<Option<Step>>> {
    let plain = name.strip_prefix("numcodecs.").unwrap_or(name);
    let given = |field: &str| configuration.get(field).filter(|value| !value.is_null());
    let wrong = |field: &str, expected: &str| {
        Error::value(format!(
            "codec \"{name}\": {field}: expected {expected}, but found {}",
            shown(configuration.get(field).unwrap_or(&Value::Null))
        ))
    };
    let checksum = |checksum, default: &str| {
        let at_start = match given("location").map_or(Some(default), Value::as_str) {
            Some("start") => true,
            Some("end") => false,
            _ => return Err(wrong("location", "\"start\" or \"end\"")),
        };
        Ok(Step::Checksum(checksum, at_start))
    };
    if let Some(compression) = compression(name, configuration) {
        return Ok(Some(Some(Step::Pack(Packer::Common(compression)))));
    }
    Ok(Some(Some(match plain {
        "bz2" => Step::Pack(Packer::Bz2),
        "base64" => Step::Pack(Packer::Base64),
        "lzma" => Step::Pack(Packer::Lzma(Lzma::parse(configuration)?)),
        "crc32" => checksum(Checksum::Crc32, "start")?,
        "adler32" => checksum(Checksum::Adler32, "start")?,
        "crc32c" => checksum(Checksum::Crc32c, "end")?,
        "fletcher32" => Step::Checksum(Checksum::Fletcher32, false),
        "jenkins_lookup3" => {
            if given("prefix").is_some() {
                return Err(wrong("prefix", "none, which is all that metadata can hold"));
            }
            let initial = given("initval").map_or(Some(0), Value::as_u64).and_then(|n| u32::try_from(n).ok());
            Step::Checksum(Checksum::Jenkins(initial.ok_or_else(|| wrong("initval", "a number of 32 bits"))?), false)
        }
        "shuffle" => {
            let default = match format {
                Format::V2 => 4,
                Format::V3(array, _) => array.size() as u64,
            };
            let size = given("elementsize").map_or(Some(default), Value::as_u64).and_then(|n| usize::try_from(n).ok());
            Step::Shuffle(size.ok_or_else(|| wrong("elementsize", "a whole number"))?)
        }
        _ => return Ok(None),
    })))
}
