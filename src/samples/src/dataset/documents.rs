//! Metadata documents: bounded reads of JSON objects.

use serde_json::Value;

use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::json::{parse, shown};
use dali_zarr_stores::{Phase, Store, block_on, get_many};

/// Limit on the bytes of a document. The consolidated metadata of a million arrays stay below it.
const MAX_BYTES: u64 = 256 << 20;

/// Reads the document at `key`. `None` if there is none.
///
/// # Errors
/// [`Error::value`] if it is too large or isn't a JSON object.
pub(super) fn read(store: &dyn Store, key: &str) -> Result<Option<Value>> {
    document(store, key, block_on(store, store.get(key, MAX_BYTES, Phase::Building))?)
}

/// Reads the documents at `keys` and returns them in the same order. See [`read`]. Several are read at the same time
/// where that is faster.
pub(super) fn read_many(store: &dyn Store, keys: &[String]) -> Vec<Result<Option<Value>>> {
    let found = get_many(store, keys, MAX_BYTES);
    keys.iter().zip(found).map(|(key, bytes)| document(store, key, bytes?)).collect()
}

fn document(store: &dyn Store, key: &str, bytes: Option<Vec<u8>>) -> Result<Option<Value>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let value = parse(&bytes).map_err(|e| at(store, key, &e))?;
    if !value.is_object() {
        return Err(at(store, key, &Error::value(format!("expected a JSON object, but found {}", shown(&value)))));
    }
    Ok(Some(value))
}

/// Adds the store and the key of the document to an error.
pub(super) fn at(store: &dyn Store, key: &str, e: &Error) -> Error {
    e.within(format!("store {}, {key}", store.location())).placed(Site::store(store.location()).key(key))
}
