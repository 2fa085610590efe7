//! Reads arguments from JSON. The types derive serde's `Deserialize`; the common rules and the texts of errors are
//! here:
//!
//! - A group takes the arguments that it has fields for out of the object. An argument that is left over is unknown.
//!   (serde's `flatten` can't be used with `deny_unknown_fields`.)
//! - `null` means the default. A single value means a list of one.
//! - A floating-point number may be text, because JSON has no `nan` and no infinities. It keeps all its bits.
//! - Errors have the form "NAME: expected A, but found B". Their kind is `Type` if JSON's type is wrong, otherwise
//!   `Value`.

use std::fmt::Display;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, Deserialize, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use dali_zarr_base::error::{Error, Result};

/// The key of an object with more arguments. They replace arguments of the same name beside it.
const OTHERS: &str = "_arguments";

/// Parses the JSON object of arguments.
///
/// # Errors
/// If the text isn't JSON, or isn't an object.
pub(super) fn object(text: &[u8]) -> Result<Map<String, Value>> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(mut arguments)) => {
            // Values that the argument types of DALI's operator can't express are in this additional object.
            if let Some(Value::Object(others)) = arguments.remove(OTHERS) {
                arguments.extend(others);
            }
            Ok(arguments)
        }
        Ok(other) => Err(Error::dtype(format!("the spec: expected a JSON object, but found {}", kind(&other)))),
        Err(e) => Err(Error::value(format!("the spec isn't valid JSON: {e}"))),
    }
}

/// Takes the arguments of one group out of `arguments`.
///
/// # Errors
/// If an argument has an invalid value.
pub(super) fn group<T: DeserializeOwned>(arguments: &mut Map<String, Value>) -> Result<T> {
    T::deserialize(ArgumentGroup(arguments))
}

/// Reads a count of at least 1 of an optional argument, for `deserialize_with`.
pub(super) fn positive_or_none<'de, D: de::Deserializer<'de>, N: TryFrom<i64>>(
    value: D,
) -> Result<Option<N>, D::Error> {
    positive(value).map(Some)
}

/// Reads a count of at least 1, for `deserialize_with`.
pub(super) fn positive<'de, D: de::Deserializer<'de>, N: TryFrom<i64>>(value: D) -> Result<N, D::Error> {
    let found = i64::deserialize(value)?;
    let count = (found > 0).then(|| N::try_from(found).ok()).flatten();
    count.ok_or_else(|| wrong_value("a whole number of at least 1", found))
}

/// Reads a number of bytes, which may be 0, for `deserialize_with`.
pub(super) fn bytes<'de, D: de::Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    let found = i64::deserialize(value)?;
    u64::try_from(found).map_err(|_| wrong_value("a number of bytes, or 0", found))
}

/// Makes the error of a value of the right type that isn't allowed.
pub(super) fn wrong_value<E: de::Error>(expected: &str, found: impl Display) -> E {
    E::custom(format_args!("expected {expected}, but found {found}"))
}

/// Names the JSON type of a value, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(n) if n.is_i64() => "a whole number",
        Value::Number(_) => "a number that isn't whole or is too large",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Deserializes a struct from the arguments that it has fields for, and removes these.
struct ArgumentGroup<'a>(&'a mut Map<String, Value>);

impl<'de> de::Deserializer<'de> for ArgumentGroup<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_map(Taken { arguments: self.0, fields: fields.iter(), next: None })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value> {
        Err(de::Error::custom("internal error: a group of arguments isn't a struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Gives a struct its arguments one after the other.
struct Taken<'a> {
    arguments: &'a mut Map<String, Value>,
    fields: std::slice::Iter<'static, &'static str>,
    next: Option<(&'static str, Value)>,
}

impl<'de> de::MapAccess<'de> for Taken<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>> {
        let arguments = &mut *self.arguments;
        let given = |name: &&'static str| arguments.remove(*name).filter(|value| !value.is_null()).map(|v| (*name, v));
        self.next = self.fields.find_map(given);
        self.next.as_ref().map(|(name, _)| seed.deserialize((*name).into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value> {
        let Some((name, value)) = self.next.take() else {
            return Err(de::Error::custom("internal error: a value was asked for before its name"));
        };
        seed.deserialize(Argument(value)).map_err(|wrong| wrong.within(name))
    }
}

/// The value of an argument, or a part of it.
struct Argument(Value);

impl Argument {
    fn wrong(&self, expected: &str) -> Error {
        Error::dtype(format!("expected {expected}, but found {}", kind(&self.0)))
    }
}

impl<'de> IntoDeserializer<'de, Error> for Argument {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> de::Deserializer<'de> for Argument {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Number(n) => match n.as_i64() {
                Some(value) => visitor.visit_i64(value),
                None => visitor.visit_f64(n.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_string(text),
            Value::Array(list) => visitor.visit_seq(SeqDeserializer::new(list.into_iter().map(Argument))),
            Value::Object(map) => {
                visitor.visit_map(MapDeserializer::new(map.into_iter().map(|(key, value)| (key, Argument(value)))))
            }
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_bool(self.0.as_bool().ok_or_else(|| self.wrong("true or false"))?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_i64(self.0.as_i64().ok_or_else(|| self.wrong("a whole number"))?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let number = self.0.as_f64().or_else(|| self.0.as_str()?.trim().parse().ok());
        visitor.visit_f64(number.ok_or_else(|| self.wrong("a number, \"nan\", \"inf\" or \"-inf\""))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.0 {
            Value::String(text) => visitor.visit_string(text),
            _ => Err(self.wrong("a string")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let list = match self.0 {
            Value::Array(list) => list,
            single => vec![single],
        };
        visitor.visit_seq(SeqDeserializer::new(list.into_iter().map(Argument)))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let text = self.0.as_str().ok_or_else(|| self.wrong("a string"))?;
        if variants.contains(&text) {
            return visitor.visit_enum(text.into_deserializer());
        }
        let (last, others) = variants.split_last().unwrap_or((&"", &[]));
        let others: Vec<_> = others.iter().map(|name| format!("{name:?}")).collect();
        Err(wrong_value(&format!("{} or {last:?}", others.join(", ")), format_args!("{text:?}")))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct map
        struct identifier ignored_any
    }
}
