//! The list of codecs in v3 metadata.

use serde_json::{Map, Value};

use dali_zarr_base::error::{Code, Error, Result};

/// The codecs of an array or of a shard's inner chunks, in the order in which they encode.
pub struct CodecList(Vec<(String, Map<String, Value>)>);

impl CodecList {
    /// Reads the list `codecs` of v3 metadata.
    pub fn parse(codecs: &Value) -> Result<Self> {
        let wrong = |found: &Value| {
            Error::value(format!(
                "codecs: expected a list of names or of objects with a name, but found {}",
                dali_zarr_base::json::shown(found)
            ))
        };
        let list = codecs.as_array().ok_or_else(|| wrong(codecs))?;
        let mut out = Vec::with_capacity(list.len());
        for codec in list {
            out.push(match codec {
                Value::String(name) => (name.clone(), Map::new()),
                Value::Object(object) => {
                    let name = object.get("name").and_then(Value::as_str).ok_or_else(|| wrong(codec))?;
                    let configuration = match object.get("configuration") {
                        None | Some(Value::Null) => Map::new(),
                        Some(Value::Object(configuration)) => configuration.clone(),
                        Some(_) => return Err(wrong(codec)),
                    };
                    (name.to_owned(), configuration)
                }
                _ => return Err(wrong(codec)),
            });
        }
        if out.is_empty() {
            return Err(Error::value("codecs: expected at least the codec \"bytes\", but found an empty list"));
        }
        Ok(Self(out))
    }

    /// Makes a list of codecs with these names and configurations.
    pub fn of(entries: Vec<(String, Map<String, Value>)>) -> Self {
        Self(entries)
    }

    /// Returns the configuration of the codec `name` if it is the only codec.
    pub fn only(&self, name: &str) -> Option<&Map<String, Value>> {
        match self.0.as_slice() {
            [(n, configuration)] if n == name => Some(configuration),
            _ => None,
        }
    }

    /// Returns the codecs' names and configurations.
    pub fn entries(&self) -> &[(String, Map<String, Value>)] {
        &self.0
    }
}

/// Makes the error of codecs that this reader doesn't have. `reason` says why.
pub(super) fn unknown(names: &str, reason: impl std::fmt::Display) -> Error {
    let message = format!(
        "expected codecs that this reader has, but found {names}: {reason}; rewrite the array with another codec, or \
         leave it out"
    );
    Error::coded(Code::Unsupported, message)
}
