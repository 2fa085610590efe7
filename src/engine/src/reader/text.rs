//! Reads arrays of text, which are labels.

use std::sync::Arc;

use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_samples::dataset::{MAX_COORDINATES, MAX_TEXT, TextArray, Texts};
use dali_zarr_stores::{Store, block_on, get_many};

/// Number of chunks that are read and held at the same time.
const TOGETHER: u64 = 8;

/// Reads all elements of an array. `site` is the array's, for messages.
///
/// # Errors
/// If they can't be read, or there are too many.
pub(crate) fn read(store: &Arc<dyn Store>, array: &TextArray, site: &Site) -> Result<Texts> {
    if array.len > MAX_COORDINATES {
        let e = Error::value(format!("expected at most {MAX_COORDINATES} elements, but found {}", array.len));
        return Err(e.at(site.clone()));
    }
    let mut texts = Texts::default();
    let chunks = array.chunks();
    // What is held at the same time stays below the limit.
    let most = MAX_TEXT as u64 / chunks.clamp(1, TOGETHER);
    let mut is_missing = false;
    for start in (0..chunks).step_by(TOGETHER as usize) {
        let some = start..chunks.min(start + TOGETHER);
        let keys: Vec<String> = some.clone().map(|chunk| array.key(chunk)).collect();
        let found = get_many(&**store, &keys, most);
        for ((chunk, key), bytes) in some.zip(keys).zip(found) {
            let bytes = bytes.map_err(|e| e.at(site.clone()))?;
            is_missing |= bytes.is_none();
            array.decode(chunk, bytes.as_deref(), &mut texts).map_err(|e| e.at(site.clone().chunk(key)))?;
        }
    }
    // A missing chunk means the fill value only while the array exists.
    if is_missing && !block_on(&**store, store.exists(&array.metadata_key))? {
        return Err(Error::runtime("the array was deleted").at(site.clone()));
    }
    Ok(texts)
}
