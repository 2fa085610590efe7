//! The names of an array's dimensions: `dimension_names` (v3), else the attribute `_ARRAY_DIMENSIONS`.
//!
//! Names never keep an array from being read: zarr-python reads arrays whatever their names are. A dimension without a
//! name, or with an empty or repeated name, is called `dim_0`, `dim_1`, … by its position.

use serde_json::{Map, Value};

use dali_zarr_base::json::shown;

/// The names of an array's dimensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DimNames {
    /// One name for each dimension, all different.
    pub names: Vec<String>,
    /// The stored names that aren't used, because they don't identify a dimension. `None` if there are none.
    pub unclear: Option<Unclear>,
}

/// Stored names that don't identify a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclear {
    /// The names that don't identify a dimension. Using one in an argument is an error.
    pub names: Vec<String>,
    /// All names as stored in the metadata, for messages.
    pub stored: String,
}

fn given(name: &Value) -> Option<&str> {
    name.as_str().filter(|name| !name.is_empty())
}

impl DimNames {
    /// Reads the names of an array's `ndim` dimensions from its document's `dimension_names` and its attributes.
    pub(super) fn read(names: Option<&Value>, attributes: &Map<String, Value>, ndim: usize) -> Self {
        let (field, stored) = match names {
            Some(names) if !names.is_null() => ("dimension_names", names),
            _ => ("_ARRAY_DIMENSIONS", attributes.get("_ARRAY_DIMENSIONS").unwrap_or(&Value::Null)),
        };
        let list = stored.as_array().map_or(&[][..], Vec::as_slice);
        let is_fit = list.len() == ndim && list.iter().all(|name| name.is_string() || name.is_null());
        let mut unclear: Vec<&str> = if is_fit { Vec::new() } else { list.iter().filter_map(given).collect() };
        let names = loop {
            let own = |d: usize| if is_fit { given(&list[d]).filter(|name| !unclear.contains(name)) } else { None };
            let called = |d: usize| own(d).map_or_else(|| format!("dim_{d}"), str::to_owned);
            let names: Vec<String> = (0..ndim).map(called).collect();
            // A stored name may occur twice, or equal the default name of an unnamed dimension. Then no dimension gets
            // it as its stored name.
            let is_taken = |name: &&str| names.iter().filter(|other| other == name).count() > 1;
            let taken: Vec<&str> = (0..ndim).filter_map(own).filter(is_taken).collect();
            if taken.is_empty() {
                break names;
            }
            unclear.extend(taken);
        };
        unclear.sort_unstable();
        unclear.dedup();
        let unclear = (!unclear.is_empty()).then(|| Unclear {
            names: unclear.into_iter().map(str::to_owned).collect(),
            stored: format!("{field} {}", shown(stored)),
        });
        Self { names, unclear }
    }

    /// Whether the metadata have any dimension names, also unclear ones. The arguments are those of [`Self::read`].
    pub(super) fn are_stored(names: Option<&Value>, attributes: &Map<String, Value>) -> bool {
        let field = |names: &Value| names.as_array().is_some_and(|list| list.iter().any(|name| given(name).is_some()));
        names.is_some_and(field) || attributes.get("_ARRAY_DIMENSIONS").is_some_and(field)
    }

    /// Adds a dimension that isn't in the metadata. If another dimension already has `name`, a number is appended.
    pub(super) fn push(&mut self, name: &str) {
        let free = |name: &String| !self.names.contains(name);
        let numbered = (2..).map(|n| format!("{name}_{n}"));
        self.names.extend(std::iter::once(name.to_owned()).chain(numbered).find(free));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(names: &Value, ndim: usize) -> (Vec<String>, Vec<String>) {
        let found = DimNames::read(Some(names), &Map::new(), ndim);
        let attributes = Map::from_iter([("_ARRAY_DIMENSIONS".to_owned(), names.clone())]);
        let as_attribute = DimNames::read(None, &attributes, ndim);
        assert_eq!(as_attribute.names, found.names, "{names}");
        (found.names, found.unclear.map_or_else(Vec::new, |unclear| unclear.names))
    }

    #[test]
    fn dimensions_are_called_by_names_that_are_their_own() {
        for (stored, ndim, names, unclear) in [
            (json!(["t", "x"]), 2, &["t", "x"][..], &[][..]),
            (json!(["t", null]), 2, &["t", "dim_1"], &[]),
            (json!(["", "x"]), 2, &["dim_0", "x"], &[]),
            (json!(["x", "x"]), 2, &["dim_0", "dim_1"], &["x"]),
            (json!(["x", "t", "x"]), 3, &["dim_0", "t", "dim_2"], &["x"]),
            (json!(["dim_1", null]), 2, &["dim_0", "dim_1"], &["dim_1"]),
            (json!(["dim_1", "dim_2", null]), 3, &["dim_0", "dim_1", "dim_2"], &["dim_1", "dim_2"]),
            (json!(["dim_1", "x", "x"]), 3, &["dim_0", "dim_1", "dim_2"], &["dim_1", "x"]),
            (json!(["dim_1", "dim_1"]), 2, &["dim_0", "dim_1"], &["dim_1"]),
            (json!(["dim_0", null]), 2, &["dim_0", "dim_1"], &[]),
            (json!(["x"]), 2, &["dim_0", "dim_1"], &["x"]),
            (json!(["x", "y", "z"]), 2, &["dim_0", "dim_1"], &["x", "y", "z"]),
            (json!(["x", 1]), 2, &["dim_0", "dim_1"], &["x"]),
            (json!([[], {}]), 2, &["dim_0", "dim_1"], &[]),
            (json!("xy"), 2, &["dim_0", "dim_1"], &[]),
            (json!({"x": 1}), 1, &["dim_0"], &[]),
            (json!([]), 2, &["dim_0", "dim_1"], &[]),
            (json!([]), 0, &[], &[]),
            (json!(["x"]), 0, &[], &["x"]),
            (Value::Null, 1, &["dim_0"], &[]),
        ] {
            let (found, odd) = read(&stored, ndim);
            assert_eq!(
                (found.as_slice(), odd.as_slice()),
                (own(names).as_slice(), own(unclear).as_slice()),
                "{stored}"
            );
        }
    }

    fn own(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }
}
