//! Checkpoints: the state of a reader as text, for DALI's checkpoints and the C ABI.
//!
//! It is a JSON object of a few kilobytes, whatever the data set:
//!
//! - `format`, `version`: identify a state. A reader refuses versions that it doesn't know.
//! - `epoch`, `position`, `shard_id`, `package`: for people. A reader only checks that the epoch and the position
//!   follow from the segments.
//! - `legs`: the segments of the schedule: how the samples were divided, and how many each shard delivered (see
//!   [`dali_zarr_samples::order::Segment`]).
//! - `check`: a hash of the segments. Other segments may lead to the same place, but not to the same samples. States of earlier
//!   builds, and those that a loader makes for a reader, don't have it.
//! - `samples`, `cut`, `folder`, `arrays`, and with several stores `stores`: what the order and the values of samples
//!   depend on ([`samples`]). They must be the same when the state is restored. Long lists are represented by a hash.
//!
//! Things that change neither the order nor the values are not in it: where the store lies, devices, threads, memory.

mod samples;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_differences;
#[cfg(test)]
mod tests_same;

use serde_json::{Map, Value, json};

use dali_zarr_base::digest::digest;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::order::{Blocks, Order, SampleSharding, Segment, Weights};
use dali_zarr_samples::plan::Planner;
use dali_zarr_samples::spec::{DEFAULT_SEED, Spec};
use samples::Samples;

const FORMAT: &str = "dali_zarr.reader";
/// The version of the format. It changes when the meaning of a state does.
const VERSION: u64 = 2;
/// Limit on the bytes of a state.
const MAX_BYTES: usize = 1 << 20;
/// Values whose JSON text has more bytes are replaced by a hash.
const MAX_VALUE: usize = 160;
/// Limit on epochs and counts of samples, so that sums can't overflow.
const MAX_COUNT: u64 = 1 << 62;

/// What a state and the reader that restores it must agree on.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity(Samples);

impl Identity {
    /// Makes the identity of a reader of the samples of `blocks`. If they have `weights`, they are drawn by these.
    pub fn new(spec: &Spec, dataset: &Dataset, planner: &Planner, blocks: &Blocks, weights: Option<&Weights>) -> Self {
        Self(Samples::new(spec, dataset, planner, blocks, weights))
    }

    /// Returns the state of a reader after `delivered` samples of its `order`, as JSON text.
    pub fn write(&self, order: &Order, shard_id: i64, delivered: u64) -> String {
        let (epoch, position) = order.locate(delivered);
        let segments: Vec<Value> = order.segments(delivered).iter().map(segment_to_json).collect();
        let mut state = json!({
            "format": FORMAT, "version": VERSION, "package": env!("CARGO_PKG_VERSION"),
            "epoch": epoch, "position": position, "shard_id": shard_id,
            "legs": segments, "check": check_of(&order.segments(delivered)),
            "samples": self.0.count, "cut": self.0.cut, "folder": self.0.folder, "arrays": self.0.arrays,
        });
        if let Some(stores) = &self.0.stores {
            state["stores"] = stores.clone();
        }
        state.to_string()
    }

    /// Checks a state and returns its segments.
    ///
    /// # Errors
    /// If it isn't a state, is of another version, contradicts itself, or belongs to other samples. In the last case
    /// the error says what differs.
    pub fn read(&self, text: &str) -> Result<Vec<Segment>> {
        let state = parse(text)?;
        let Samples { count, cut, folder, arrays, stores } = &self.0;
        let mut differences = Vec::new();
        let mut differ = |what: String, then: &Value, now: &Value| {
            if then != now {
                let seed = what == "seed";
                differences.push(format!("{what}: {} in the checkpoint, {} here", shown(then, seed), shown(now, seed)));
            }
        };
        let Some(Value::Object(cut_then)) = state.get("cut") else { return Err(broken("cut")) };
        differ_in(cut_then, cut, |name, then, now| differ(name.to_owned(), then, now));
        let folder_then = match state.get("folder") {
            Some(Value::Null) => None,
            Some(Value::String(folder)) => Some(folder),
            _ => return Err(broken("folder")),
        };
        if let (Some(then), Some(now)) = (folder_then, folder) {
            differ("the arrays' group".into(), &json!(then), &json!(now));
        }
        let stores_then = state.get("stores");
        if let (Some(then), Some(now)) = (stores_then, stores) {
            differ("stores".into(), then, now);
        }
        let same_name = |then: &Value, now: &Value| match (folder_then, folder) {
            (Some(_), Some(_)) => then == now,
            // An array that is a store may lie anywhere, but must have the same name. With several stores it has
            // several names, which aren't compared.
            (None, None) => stores_then.is_some() || stores.is_some() || then == now,
            // Only one side knows the folders above the array.
            _ => last_part(then) == last_part(now),
        };
        let Some(Value::Array(arrays_then)) = state.get("arrays") else { return Err(broken("arrays")) };
        if arrays_then.len() != arrays.len() {
            differ("arrays".into(), &json!(arrays_then.len()), &json!(arrays.len()));
        }
        for (i, (then, now)) in arrays_then.iter().zip(arrays).enumerate() {
            let Value::Object(then) = then else { return Err(broken("arrays")) };
            let name = now.get("name").and_then(Value::as_str).map_or(format!("array {i}"), |n| format!("array '{n}'"));
            differ_in(then, now, |field, then, now| {
                if field != "name" || !same_name(then, now) {
                    differ(format!("{name}: {field}"), then, now);
                }
            });
        }
        differ("samples in an epoch".into(), state.get("samples").unwrap_or(&Value::Null), &json!(count));
        if !differences.is_empty() {
            return Err(Error::value(format!(
                "the checkpoint was made by a reader of other samples: {}; restore it with the arguments and the data set that \
                 it was made with",
                differences.join("; ")
            )));
        }
        let Some(Value::Array(segments)) = state.get("legs") else { return Err(broken("legs")) };
        let read = |segment| segment_from_json(segment, *count).ok_or_else(|| broken("legs"));
        let segments: Vec<Segment> = segments.iter().map(read).collect::<Result<_>>()?;
        check_place(&state, &segments, *count)?;
        if state.get("check").is_some_and(|check| *check != check_of(&segments)) {
            return Err(broken("legs"));
        }
        Ok(segments)
    }
}

/// Returns the samples of the shuffle window of a state; a number that no epoch has, if all samples are shuffled together.
/// `None` if the text isn't a state, which [`Identity::read`] says.
pub fn fill_of(text: &str) -> Option<u64> {
    let state = parse(text).ok()?;
    match state.get("cut")?.get("initial_fill") {
        None | Some(Value::Null) => Some(MAX_COUNT),
        Some(fill) => fill.as_u64().filter(|fill| (1..=MAX_COUNT).contains(fill)),
    }
}

fn parse(text: &str) -> Result<Map<String, Value>> {
    let what = "expected the state of a zarr_reader";
    if text.len() > MAX_BYTES {
        return Err(Error::value(format!(
            "{what}, but found {} bytes, and none is longer than {MAX_BYTES}",
            text.len()
        )));
    }
    let state = serde_json::from_str(text).ok().and_then(|value| match value {
        Value::Object(state) if state.get("format").and_then(Value::as_str) == Some(FORMAT) => Some(state),
        _ => None,
    });
    let Some(state) = state else {
        let start: String = text.chars().take(40).collect();
        return Err(Error::value(format!("{what}, but found {start:?}")));
    };
    if state.get("version").and_then(Value::as_u64) != Some(VERSION) {
        return Err(Error::value(format!(
            "the checkpoint has version {} of the format and was made by dali_zarr {}, but this is dali_zarr {}, which reads \
             version {VERSION}; restore it with the build of the package that it was made with",
            shown(state.get("version").unwrap_or(&Value::Null), false),
            state.get("package").and_then(Value::as_str).unwrap_or("of an unknown version"),
            env!("CARGO_PKG_VERSION"),
        )));
    }
    Ok(state)
}

fn broken(field: &str) -> Error {
    Error::value(format!("the checkpoint is damaged: its field {field:?} isn't what a zarr_reader writes"))
}

/// Checks that the epoch and the position of a state follow from its segments.
fn check_place(state: &Map<String, Value>, segments: &[Segment], samples: u64) -> Result<()> {
    let Some(Segment { sharding, .. }) = segments.last() else { return Err(broken("legs")) };
    let num_shards = sharding.num_shards as i64;
    let shard_id = state.get("shard_id").and_then(Value::as_i64).filter(|shard| (0..num_shards).contains(shard));
    let shard_id = shard_id.ok_or_else(|| broken("shard_id"))?;
    let spec = Spec::default().with(|s| {
        s.order.shard_id = shard_id;
        s.order.num_shards = num_shards;
        s.batch_size = sharding.batch_size as usize;
        s.order.pad_last_batch = sharding.pad_last_batch;
        s.order.stick_to_shard = sharding.stick_to_shard;
    });
    // The epoch and the position don't depend on the shuffle.
    let (order, delivered) = Order::new(&spec, samples)?.resume(segments)?;
    let (epoch, position) = order.locate(delivered);
    for (field, expected) in [("epoch", epoch), ("position", position)] {
        if state.get(field).and_then(Value::as_u64) != Some(expected) {
            return Err(broken(field));
        }
    }
    Ok(())
}

fn segment_to_json(segment: &Segment) -> Value {
    let Segment { sharding, epoch, rest, delivered } = segment;
    let SampleSharding { num_shards, batch_size, pad_last_batch, stick_to_shard } = sharding;
    json!({
        "num_shards": num_shards, "batch_size": batch_size, "pad_last_batch": pad_last_batch, "stick_to_shard": stick_to_shard,
        "epoch": epoch, "rest": rest, "delivered": delivered,
    })
}

/// Returns a hash of all fields of the segments.
fn check_of(segments: &[Segment]) -> String {
    let numbers = segments.iter().flat_map(|Segment { sharding, epoch, rest, delivered }| {
        let SampleSharding { num_shards, batch_size, pad_last_batch, stick_to_shard } = sharding;
        let flags = u64::from(*pad_last_batch) | u64::from(*stick_to_shard) << 1;
        [*num_shards, *batch_size, flags, *epoch, *rest, *delivered]
    });
    digest(numbers, 1)
}

fn segment_from_json(value: &Value, samples: u64) -> Option<Segment> {
    let number = |key: &str, from: u64, to: u64| value.get(key)?.as_u64().filter(|n| (from..=to).contains(n));
    let flag = |key: &str| value.get(key)?.as_bool();
    let sharding = SampleSharding {
        num_shards: number("num_shards", 1, samples)?,
        batch_size: number("batch_size", 1, 1 << 31)?,
        pad_last_batch: flag("pad_last_batch")?,
        stick_to_shard: flag("stick_to_shard")?,
    };
    Some(Segment {
        sharding,
        epoch: number("epoch", 0, MAX_COUNT)?,
        rest: number("rest", 0, samples)?,
        delivered: number("delivered", 0, MAX_COUNT)?,
    })
}

fn shortened(value: Value) -> Value {
    if value.to_string().len() > MAX_VALUE { hashed(&value) } else { value }
}

/// Returns a text that takes the place of a value: its number of entries and a hash (FNV-1a of its JSON text).
fn hashed(value: &Value) -> Value {
    let hash = value
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    json!(format!("{} entries with hash {hash:016x}", value.as_array().map_or(1, Vec::len)))
}

/// Calls `differ` for each name in one or both of the maps, with its values in both; `Null` where a map lacks it.
fn differ_in(then: &Map<String, Value>, now: &Map<String, Value>, mut differ: impl FnMut(&str, &Value, &Value)) {
    let names: std::collections::BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    for name in names {
        let of = |map: &'_ Map<String, Value>| map.get(name).cloned().unwrap_or(Value::Null);
        differ(name, &of(then), &of(now));
    }
}

/// Returns an array's name without the folders before it, and without the ending `.zarr`.
fn last_part(name: &Value) -> Option<&str> {
    let last = name.as_str()?.rsplit('/').next()?;
    Some(last.strip_suffix(".zarr").unwrap_or(last))
}

/// Formats a value for an error: shortened, and the default seed as "the default".
fn shown(value: &Value, is_seed: bool) -> String {
    if is_seed && value.as_u64() == Some(DEFAULT_SEED) {
        return "the default".into();
    }
    match value {
        Value::Null => "none".into(),
        value => {
            let text = value.to_string();
            if text.len() > 2 * MAX_VALUE {
                format!("{}...", text.chars().take(MAX_VALUE).collect::<String>())
            } else {
                text
            }
        }
    }
}
