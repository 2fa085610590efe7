//! A codec's entry in the metadata ([`CodecEntry`]), and the values in it.

use serde_json::{Map, Value};

use super::chain::Side;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;

/// The Zarr format of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    V2,
    V3,
}

/// A codec's entry in the metadata, and its place in the chain.
pub(super) struct CodecEntry<'a> {
    pub name: &'a str,
    pub configuration: &'a Map<String, Value>,
    pub format: Format,
    /// The array's element type.
    pub array: DType,
    /// The codec's decoded side.
    pub side: &'a Side,
}

impl CodecEntry<'_> {
    /// Makes the error of a field with a wrong value.
    pub fn wrong(&self, field: &str, expected: &str) -> Error {
        Error::value(format!(
            "codec \"{}\": {field}: expected {expected}, but found {}",
            self.name,
            shown(self.configuration.get(field).unwrap_or(&Value::Null))
        ))
    }

    /// Returns a field's value. `None` if the field is missing or null.
    pub fn field(&self, field: &str) -> Option<&Value> {
        self.configuration.get(field).filter(|value| !value.is_null())
    }

    /// Returns the element type that a field names, or `default` if the field is missing.
    ///
    /// # Errors
    /// If the field is no known type, or is missing and there is no default.
    pub fn typed(&self, field: &str, default: Option<TypeWithOrder>) -> Result<TypeWithOrder> {
        let missing = || self.wrong(field, "one of NumPy's types that DALI has, such as \"<f4\"");
        let Some(found) = self.field(field) else { return default.ok_or_else(missing) };
        let found = found.as_str().and_then(TypeWithOrder::parse).ok_or_else(missing)?;
        Ok(if self.format == Format::V3 { TypeWithOrder::native(found.dtype) } else { found })
    }

    /// Returns the array's type, which is the default of a filter's type in v3. `None` in v2, which has no default.
    pub fn own(&self) -> Option<TypeWithOrder> {
        (self.format == Format::V3).then(|| TypeWithOrder::native(self.array))
    }

    pub fn number(&self, field: &str) -> Result<f64> {
        self.field(field).and_then(Value::as_f64).ok_or_else(|| self.wrong(field, "a number"))
    }
}

/// The fields of a codec's configuration.
pub(super) struct Fields {
    /// Those that the decoder reads.
    pub decoding: &'static [&'static str],
    /// Those that concern encoders alone. Any value is accepted.
    pub encoding: &'static [&'static str],
}

impl Fields {
    /// Looks for fields that are neither read nor known.
    ///
    /// # Errors
    /// If there is one that has a value.
    pub(super) fn check(&self, entry: &CodecEntry<'_>) -> Result<()> {
        let known = |key: &str| {
            let id = entry.format == Format::V2 && key == "id";
            id || self.decoding.contains(&key) || self.encoding.contains(&key)
        };
        match entry.configuration.iter().find(|(key, value)| !known(key) && !value.is_null()) {
            None => Ok(()),
            Some((key, value)) => Err(refused(entry, key, value, &self.decoding.join(", "))),
        }
    }
}

fn refused(entry: &CodecEntry<'_>, key: &str, value: &Value, known: &str) -> Error {
    let known = if known.is_empty() { "none" } else { known };
    Error::value(format!(
        "codec \"{}\": expected no fields that this reader doesn't know (of those that concern decoding it knows {known}), \
         but found {key}: {}; rewrite the array with another codec, or leave it out",
        entry.name,
        shown(value)
    ))
}

/// A type with a byte order, as a filter's configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TypeWithOrder {
    /// The type.
    pub dtype: DType,
    /// Whether elements are in the other byte order than this machine's.
    pub swap: bool,
}

impl TypeWithOrder {
    /// A type in native byte order.
    pub(super) fn native(dtype: DType) -> Self {
        Self { dtype, swap: false }
    }

    /// Reads a type string as `numpy.dtype(text)` does. `None` if it is no type that DALI has.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (big, name) = match text.as_bytes().first()? {
            b'<' => (Some(false), &text[1..]),
            b'>' => (Some(true), &text[1..]),
            b'=' | b'|' => (None, &text[1..]),
            _ => (None, text),
        };
        let dtype = match name {
            "b1" | "?" => DType::Bool,
            "i1" | "b" | "byte" => DType::I8,
            "i2" | "h" | "short" => DType::I16,
            "i4" | "i" | "intc" => DType::I32,
            "i8" | "l" | "q" | "int" | "long" | "longlong" => DType::I64,
            "u1" | "B" | "ubyte" => DType::U8,
            "u2" | "H" | "ushort" => DType::U16,
            "u4" | "I" | "uintc" => DType::U32,
            "u8" | "L" | "Q" | "uint" | "ulong" | "ulonglong" => DType::U64,
            "f2" | "e" | "half" => DType::F16,
            "f4" | "f" | "single" => DType::F32,
            "f8" | "d" | "float" | "double" => DType::F64,
            _ => DType::from_name(name)?,
        };
        let swap = dtype.size() > 1 && big.is_some_and(|big| big != cfg!(target_endian = "big"));
        Some(Self { dtype, swap })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_strings() {
        let big = cfg!(target_endian = "big");
        for (text, dtype, swap) in [
            ("<f4", DType::F32, big),
            (">f4", DType::F32, !big),
            ("|u1", DType::U8, false),
            (">u1", DType::U8, false),
            ("float64", DType::F64, false),
            ("=i8", DType::I64, false),
            ("e", DType::F16, false),
            ("|b1", DType::Bool, false),
        ] {
            assert_eq!(TypeWithOrder::parse(text), Some(TypeWithOrder { dtype, swap }), "{text}");
        }
        for text in ["", "<", "f3", "complex64", "<M8[ns]", "O", "\u{e9}4"] {
            assert_eq!(TypeWithOrder::parse(text), None, "{text}");
        }
    }
}
