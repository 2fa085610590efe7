//! Lists the arrays of a store: how each is stored and where it would be decoded, or why readers don't take it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};

use super::arrays::part_facts;
use crate::reader::opening::UnstartedReader;
use dali_zarr_base::error::{Error, ErrorKind, Result, Site};
use dali_zarr_samples::dataset::{ArrayInfo, Dataset, Listed, Listing, list};
use dali_zarr_samples::spec::Spec;

/// Limit on the text of a list.
const MAX_BYTES: usize = 64 << 20;

/// Returns the arrays of the only store of `spec` as JSON; see `dali_zarr_arrays` in `include/dali_zarr.h`. Only
/// `path`, `storage_options`, `arrays` (default: all), `device` and `decode_device` of `spec` are used.
///
/// # Errors
/// If the store can't be opened or listed, or an array that `spec` names isn't there.
pub fn arrays(spec: &Spec) -> Result<Value> {
    let Listing { store, arrays: found, mut is_cut } = list(spec)?;
    let (mut arrays, mut bytes) = (Vec::with_capacity(found.len()), 0);
    for listed in found {
        let entry = entry(spec, listed);
        bytes += entry.to_string().len();
        if bytes > MAX_BYTES {
            is_cut = true;
            break;
        }
        arrays.push(entry);
    }
    Ok(json!({ "store": store.map(|store| store.location().to_owned()), "arrays": arrays, "is_cut": is_cut }))
}

/// Describes one array. `is_sound` says that nothing is wrong with its metadata, whether or not readers take the array.
fn entry(spec: &Spec, listed: Listed) -> Value {
    let Listed { name, is_root, packing, array } = listed;
    let mut entry = json!({ "name": name, "is_root": is_root, "is_sound": true, "packing": packing, "refused": null });
    let unstarted = array.map_err(|e| (e.kind() == ErrorKind::Type, e)).and_then(|dataset| {
        describe(&mut entry, &dataset.arrays[0]);
        open(spec, dataset).map_err(|e| (true, e))
    });
    match unstarted {
        Ok((spec, unstarted)) => {
            let facts = part_facts(&spec, &unstarted, (0, 0), &unstarted.chunk_index.dataset.arrays[0].parts[0]);
            entry["decoded_on"] = facts.decoded_on().into();
            entry["why"] = facts.why.into();
        }
        Err((is_sound, error)) => {
            entry["is_sound"] = is_sound.into();
            entry["refused"] = error.message().into();
        }
    }
    entry
}

/// Adds what the metadata say.
fn describe(entry: &mut Value, array: &ArrayInfo) {
    let part = &array.parts[0];
    let chunks = part.largest_chunk();
    let shards = part.sharding.as_ref().map(|s| chunks.iter().zip(&s.chunks_per_shard).map(|(chunk, n)| chunk * n));
    entry["dims"] = json!(array.dims.names);
    entry["shape"] = json!(part.shape);
    entry["shards"] = shards.map_or(Value::Null, |shards| json!(shards.collect::<Vec<_>>()));
    entry["chunks"] = json!(chunks);
    entry["path"] = part.path().into();
    entry["first_key"] = part.key(&vec![0; part.shape.len()]).into();
    entry["objects"] = json!(part.objects());
    entry["codecs"] = part.format.chain.names().into();
    entry["lossy_images"] = json!(part.format.chain.lossy_images());
    entry["chunk_bytes"] = part.largest_bytes.into();
    entry["dtype"] = array.dtype.delivered().name().into();
    entry["stored"] = array.stored.as_str().into();
    entry["units"] = json!(array.units);
}

/// Prepares a reader of this array alone, which takes no memory yet.
///
/// # Errors
/// If readers don't take the array.
fn open(spec: &Spec, dataset: Dataset) -> Result<(Spec, UnstartedReader)> {
    let array = &dataset.arrays[0];
    let shape = &array.parts[0].shape;
    if shape.contains(&0) {
        let error = Error::value(format!("expected at least one element, but found none: its shape is {shape:?}"));
        return Err(error.at(Site::store(dataset.stores[0].location()).array(&array.name)));
    }
    let mut own = Spec { source: spec.source.clone(), device: spec.device, ..Spec::default() };
    own.resources.decode_device = spec.resources.decode_device;
    own.source.arrays.clear();
    let unstarted = catch_unwind(AssertUnwindSafe(|| UnstartedReader::of(&own, dataset)));
    unstarted.unwrap_or_else(|panic| Err(Error::panicked("", &*panic))).map(|unstarted| (own, unstarted))
}
