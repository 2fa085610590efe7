//! Finds the Parquet file, and the row in it, that have the reference of a key. The layout of the directory is
//! fsspec's: its `.zmetadata` has all metadata documents and the number of rows of each file.

use std::collections::HashMap;

use serde_json::Value;

use dali_zarr_base::error::{Error, Result};

/// Most dimensions of an array: NumPy's limit.
const MAX_DIMS: usize = 64;

/// A directory's layout.
#[derive(Debug)]
pub(super) struct Layout {
    /// Number of rows of each file.
    rows: u64,
    /// The number of chunks along each dimension of each array, by the array's name.
    arrays: HashMap<String, Vec<u64>>,
}

/// Where a reference is: a row of a file of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordRow<'a> {
    /// The array's name.
    pub array: &'a str,
    /// The number of the array's file.
    pub file: u64,
    pub row: u64,
}

impl RecordRow<'_> {
    /// Returns the key of the file.
    pub fn key(&self) -> String {
        format!("{}/refs.{}.parq", self.array, self.file)
    }
}

/// Returns the number of rows of each file; `None` if the `.zmetadata` doesn't belong to references.
pub(super) fn record_size(document: &Value) -> Option<&Value> {
    document.get("record_size")
}

impl Layout {
    /// Reads the layout of a directory from its `.zmetadata`, which is `document`.
    ///
    /// # Errors
    /// If `document` doesn't belong to references.
    pub fn new(document: &Value) -> Result<Self> {
        let rows = record_size(document).and_then(Value::as_u64).filter(|&rows| rows > 0).ok_or_else(|| {
            Error::value(
                ".zmetadata: expected an integer \"record_size\", the rows of each Parquet file, but found none",
            )
        })?;
        let documents = document.get("metadata").and_then(Value::as_object);
        let documents =
            documents.ok_or_else(|| Error::value(".zmetadata: expected an object \"metadata\", but found none"))?;
        let arrays = documents.iter().filter_map(|(key, document)| {
            let name = key.strip_suffix("/.zarray")?;
            // Names become paths, which must stay in the directory.
            if name.split('/').any(|part| matches!(part, "" | "." | "..")) || name.contains('\0') {
                return None;
            }
            // Wrong metadata of an array are reported when the array is read.
            Some((name.to_owned(), grid(document)?))
        });
        Ok(Self { rows, arrays: arrays.collect() })
    }

    /// Returns where the reference of a chunk's key is; `None` if no array has such a chunk.
    pub fn find<'a>(&self, key: &'a str) -> Option<RecordRow<'a>> {
        let (array, chunk) = key.rsplit_once('/')?;
        let grid = self.arrays.get(array)?;
        let mut number = 0u64;
        let mut coordinates = chunk.split('.');
        // An array without dimensions has chunk 0.
        for &len in if grid.is_empty() { &[1][..] } else { grid } {
            let coordinate = coordinates.next()?;
            if coordinate.is_empty() || !coordinate.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            let coordinate = coordinate.parse::<u64>().ok().filter(|&c| c < len)?;
            number = number.checked_mul(len)?.checked_add(coordinate)?;
        }
        coordinates.next().is_none().then_some(RecordRow { array, file: number / self.rows, row: number % self.rows })
    }
}

/// Returns the number of chunks along each dimension; `None` if the metadata are wrong.
fn grid(array: &Value) -> Option<Vec<u64>> {
    let numbers = |name: &str| -> Option<Vec<u64>> { array.get(name)?.as_array()?.iter().map(Value::as_u64).collect() };
    let (shape, chunks) = (numbers("shape")?, numbers("chunks")?);
    let valid = shape.len() == chunks.len() && shape.len() <= MAX_DIMS && !chunks.contains(&0);
    valid.then(|| shape.iter().zip(&chunks).map(|(shape, chunk)| shape.div_ceil(*chunk)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_and_their_places() {
        let array = |shape: &[u64], chunks: &[u64]| json!({"shape": shape, "chunks": chunks});
        let layout = Layout::new(&json!({"record_size": 7, "metadata": {
            ".zgroup": {}, "a/.zarray": array(&[24, 8, 16], &[5, 3, 7]), "g/b/.zarray": array(&[], &[]),
            "huge/.zarray": array(&[u64::MAX, u64::MAX], &[1, 1]), "odd/.zarray": array(&[1], &[0]), "a/.zattrs": {}, "../x/.zarray": array(&[1], &[1]), "/abs/.zarray": array(&[1], &[1]),
        }}))
        .unwrap();
        let place = |key| layout.find(key).map(|p| (p.array.to_owned(), p.file, p.row));
        assert_eq!(place("a/0.0.0"), Some(("a".into(), 0, 0)));
        assert_eq!(place("a/2.1.2"), Some(("a".into(), 3, 2)), "of 5 x 3 x 3 chunks number 23");
        assert_eq!(place("a/4.2.2"), Some(("a".into(), 6, 2)));
        assert_eq!(place("g/b/0"), Some(("g/b".into(), 0, 0)));
        for key in [
            "a/5.0.0",
            "a/0.0",
            "a/0.0.0.0",
            "a/0.0.x",
            "a/+0.0.0",
            "a/..",
            "a/",
            "a",
            "",
            "b/0",
            "g/b/1",
            "g/b/",
            "odd/0",
            "huge/18446744073709551614.18446744073709551614",
            "a/99999999999999999999999.0.0",
            "a/.zarray",
            "../x/0",
            "/abs/0",
        ] {
            assert_eq!(place(key), None, "{key}");
        }
    }

    #[test]
    fn other_documents_are_errors() {
        for document in [
            json!({}),
            json!({"record_size": 0, "metadata": {}}),
            json!({"record_size": -1, "metadata": {}}),
            json!({"record_size": "7", "metadata": {}}),
            json!({"record_size": 7}),
            json!({"record_size": 7, "metadata": []}),
        ] {
            assert!(Layout::new(&document).unwrap_err().message().contains(".zmetadata: expected"), "{document}");
        }
    }
}
