//! What is kept of a dataset so that it can be opened again with the same elements, though its stores have grown since.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ArrayInfo, Dataset};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_stores::Store;

/// The shapes of the arrays when the dataset was opened, and its stores that never change.
pub struct Kept {
    /// For each array, the numbers of its stores with the array's shape there, as in the metadata.
    shapes: Vec<Vec<(usize, Vec<u64>)>>,
    /// The stores that read a snapshot: opened again, they would read another one.
    pub(super) snapshots: Vec<Option<Arc<dyn Store>>>,
}

impl Kept {
    /// Returns what is kept of a dataset.
    pub fn of(dataset: &Dataset) -> Self {
        let shapes = |array: &ArrayInfo| {
            array.parts.iter().map(|part| (part.store, part.shape[..part.key_dims()].to_vec())).collect()
        };
        let snapshot = |store: &Arc<dyn Store>| store.snapshot().map(|_| Arc::clone(store));
        Self {
            shapes: dataset.arrays.iter().map(shapes).collect(),
            snapshots: dataset.stores.iter().map(snapshot).collect(),
        }
    }

    /// Returns the shape that an array had in a store.
    pub(super) fn shape(&self, array: usize, store: usize) -> Option<&[u64]> {
        self.shapes.get(array)?.iter().find(|(of, _)| *of == store).map(|(_, shape)| shape.as_slice())
    }
}

/// Replaces the shape in an array's metadata by the one that it had, and returns the shape that it has now; `None` if
/// they are equal. Chunks that the array has got since lie outside then. Metadata without a shape stay as they are.
///
/// # Errors
/// If the array has become shorter: elements that samples have are gone.
pub(super) fn as_it_was(metadata: &mut Value, then: &[u64]) -> Result<Option<Vec<u64>>> {
    let shape = metadata.get("shape").and_then(Value::as_array);
    let now: Option<Vec<u64>> = shape.and_then(|shape| shape.iter().map(Value::as_u64).collect());
    let Some(now) = now.filter(|now| now != then) else { return Ok(None) };
    if now.len() != then.len() || now.iter().zip(then).any(|(now, then)| now < then) {
        return Err(Error::value(format!(
            "expected at least the shape {then:?} that the array had when the loader opened the store, but found {now:?}: the store has \
             lost elements since; call loader.refresh(), which begins with the samples that there are now"
        )));
    }
    metadata["shape"] = json!(then);
    Ok(Some(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_may_only_grow() {
        let metadata = |shape: Value| json!({"shape": shape, "zarr_format": 3});
        for (now, expected) in [
            (json!([4, 6]), Ok((json!([4, 6]), None))),
            (json!([9, 6]), Ok((json!([4, 6]), Some(vec![9, 6])))),
            (json!([9, 7]), Ok((json!([4, 6]), Some(vec![9, 7])))),
            (json!("4"), Ok((json!("4"), None))),
            (json!([3, 6]), Err(())),
            (json!([9, 5]), Err(())),
            (json!([4]), Err(())),
            (json!([4, 6, 1]), Err(())),
        ] {
            let mut found = metadata(now.clone());
            let grown = as_it_was(&mut found, &[4, 6]);
            assert_eq!(grown.map(|grown| (found["shape"].clone(), grown)).map_err(|_| ()), expected, "{now}");
        }
    }
}
