//! The state of a reader as text: what DALI's checkpoints keep and the C ABI hands out.
//!
//! It is a JSON object of a few kilobytes, whatever the data set:
//!
//! - `format`, `version`: what it is. A reader refuses versions that it doesn't know.
//! - `epoch`, `position`, `shard_id`, `package`: for people; a reader doesn't look at them.
//! - `legs`: how the samples were divided and how many each shard delivered (see [`crate::order::Leg`]).
//! - `samples`, `spec`, `dataset`: what the order and the values of samples depend on. They must be the same when the state is
//!   restored. Arguments at their default aren't listed; long lists are represented by a hash.
//!
//! What neither changes the order nor the values (where the store lies, devices, threads, memory) isn't in it.

use serde_json::{Map, Value, json};

use crate::dataset::{ArrayInfo, Dataset, DimGrid};
use crate::error::{Error, Result};
use crate::order::{Leg, Order, Sharding};
use crate::spec::{DEFAULT_INITIAL_FILL, DimKey, OutOfBounds, Spec};

const FORMAT: &str = "dali_zarr.reader";
/// Changes when a state means something else to a reader.
const VERSION: u64 = 1;
/// No state is longer than this.
const MAX_BYTES: usize = 1 << 20;
/// Longer values are represented by a hash.
const MAX_VALUE: usize = 160;
/// Arrays beyond these are represented by a hash.
const MAX_ARRAYS: usize = 8;
/// Epochs and counts of samples are less, so that sums of them can't overflow.
const MAX_COUNT: u64 = 1 << 62;

/// What a state must agree in with the reader that takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    samples: u64,
    spec: Map<String, Value>,
    dataset: Vec<Value>,
}

impl Identity {
    /// The identity of a reader of `samples` samples.
    pub fn new(spec: &Spec, dataset: &Dataset, samples: u64) -> Self {
        let mut arrays: Vec<Value> =
            dataset.arrays.iter().enumerate().map(|(i, array)| describe(array, spec.arrays.get(i))).collect();
        if arrays.len() > MAX_ARRAYS {
            let others = json!(arrays.split_off(MAX_ARRAYS));
            arrays.push(json!({ "further arrays": hashed(&others) }));
        }
        Self { samples, spec: arguments(spec), dataset: arrays }
    }

    /// The state of a reader after `delivered` samples of its `order`.
    pub fn write(&self, order: &Order, shard_id: i64, delivered: u64) -> String {
        let (epoch, position) = order.locate(delivered);
        let legs: Vec<Value> = order.legs(delivered).iter().map(leg_to_json).collect();
        json!({
            "format": FORMAT, "version": VERSION, "package": env!("CARGO_PKG_VERSION"),
            "epoch": epoch, "position": position, "shard_id": shard_id,
            "legs": legs, "samples": self.samples, "spec": self.spec, "dataset": self.dataset,
        })
        .to_string()
    }

    /// The legs of a state.
    ///
    /// # Errors
    /// If it isn't a state, is of another version, or belongs to other samples; then it says what differs.
    pub fn read(&self, text: &str) -> Result<Vec<Leg>> {
        let state = parse(text)?;
        let mut differences = Vec::new();
        let mut differ = |what: String, then: &Value, now: &Value| {
            if then != now {
                differences.push(format!("{what}: {} in the checkpoint, {} here", shown(then), shown(now)));
            }
        };
        let Some(Value::Object(spec)) = state.get("spec") else { return Err(broken("spec")) };
        let names: std::collections::BTreeSet<&String> = spec.keys().chain(self.spec.keys()).collect();
        for name in names {
            let of = |spec: &Map<String, Value>| spec.get(name).cloned().unwrap_or(Value::Null);
            differ(name.clone(), &of(spec), &of(&self.spec));
        }
        let Some(Value::Array(arrays)) = state.get("dataset") else { return Err(broken("dataset")) };
        if arrays.len() != self.dataset.len() {
            differ("arrays".into(), &json!(arrays.len()), &json!(self.dataset.len()));
        }
        for (i, (then, now)) in arrays.iter().zip(&self.dataset).enumerate() {
            let (Value::Object(then), Value::Object(now)) = (then, now) else { return Err(broken("dataset")) };
            let name = now.get("name").and_then(Value::as_str).map_or(format!("array {i}"), |n| format!("array '{n}'"));
            for (field, now) in now {
                differ(format!("{name}: {field}"), then.get(field).unwrap_or(&Value::Null), now);
            }
        }
        differ("samples in an epoch".into(), state.get("samples").unwrap_or(&Value::Null), &json!(self.samples));
        if !differences.is_empty() {
            return Err(Error::value(format!(
                "the checkpoint was made by a reader of other samples: {}; restore it with the arguments and the data set that \
                 it was made with",
                differences.join("; ")
            )));
        }
        let Some(Value::Array(legs)) = state.get("legs") else { return Err(broken("legs")) };
        if legs.is_empty() {
            return Err(broken("legs"));
        }
        legs.iter().map(|leg| leg_from_json(leg, self.samples).ok_or_else(|| broken("legs"))).collect()
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
             version {VERSION}; restore it with the package that it was made with",
            shown(state.get("version").unwrap_or(&Value::Null)),
            state.get("package").and_then(Value::as_str).unwrap_or("of an unknown version"),
            env!("CARGO_PKG_VERSION"),
        )));
    }
    Ok(state)
}

fn broken(field: &str) -> Error {
    Error::value(format!("the checkpoint is damaged: its field {field:?} isn't what a zarr_reader writes"))
}

fn leg_to_json(leg: &Leg) -> Value {
    let Leg { sharding, epoch, rest, delivered } = leg;
    let Sharding { num_shards, batch_size, pad_last_batch, stick_to_shard } = sharding;
    json!({
        "num_shards": num_shards, "batch_size": batch_size, "pad_last_batch": pad_last_batch, "stick_to_shard": stick_to_shard,
        "epoch": epoch, "rest": rest, "delivered": delivered,
    })
}

fn leg_from_json(value: &Value, samples: u64) -> Option<Leg> {
    let number = |key: &str, from: u64, to: u64| value.get(key)?.as_u64().filter(|n| (from..=to).contains(n));
    let flag = |key: &str| value.get(key)?.as_bool();
    let sharding = Sharding {
        num_shards: number("num_shards", 1, samples)?,
        batch_size: number("batch_size", 1, 1 << 31)?,
        pad_last_batch: flag("pad_last_batch")?,
        stick_to_shard: flag("stick_to_shard")?,
    };
    Some(Leg {
        sharding,
        epoch: number("epoch", 0, MAX_COUNT)?,
        rest: number("rest", 0, samples)?,
        delivered: number("delivered", 0, MAX_COUNT)?,
    })
}

/// The arguments that decide which samples there are, what they hold and when they come, without those at their default.
fn arguments(spec: &Spec) -> Map<String, Value> {
    // Whoever adds an argument has to say here whether it does.
    let Spec {
        paths: _,
        arrays: _,
        stack_arrays,
        pick,
        dims,
        window,
        step,
        random_crop,
        stride,
        offsets,
        roi_start,
        roi_end,
        breaks,
        cross_stores,
        out_of_bounds_policy,
        fill_value,
        mask_and_scale,
        dtype,
        mean,
        stddev,
        random_shuffle,
        initial_fill,
        shuffle_after_epoch,
        seed,
        shard_id: _,
        num_shards: _,
        stick_to_shard: _,
        pad_last_batch: _,
        batch_size: _,
        prefetch_queue_depth: _,
        device: _,
        decode_device: _,
        device_memory_limit: _,
        host_memory_limit: _,
        io_threads: _,
        io_concurrency: _,
        storage_options: _,
        decode_threads: _,
        return_index,
    } = spec;
    let dim = |key: &DimKey| match key {
        DimKey::Name(name) => json!(name),
        DimKey::Index(index) => json!(index),
    };
    let policy = match out_of_bounds_policy {
        OutOfBounds::Error => "error",
        OutOfBounds::Drop => "drop",
        OutOfBounds::Pad => "pad",
    };
    let all = [
        ("stack_arrays", json!(stack_arrays), json!(false)),
        ("pick", pick.iter().map(|p| json!([dim(&p.dim), p.indices])).collect(), json!([])),
        ("dims", dims.iter().map(dim).collect(), json!([])),
        ("window", json!(window), json!([])),
        ("step", json!(step), json!([])),
        ("random_crop", random_crop.iter().map(dim).collect(), json!([])),
        ("stride", json!(stride), json!([])),
        ("offsets", json!(offsets), if offsets == &[0] { json!([0]) } else { json!([]) }),
        ("roi_start", json!(roi_start), json!([])),
        ("roi_end", json!(roi_end), json!([])),
        ("breaks", json!(breaks), json!([])),
        ("cross_stores", json!(cross_stores), json!(true)),
        ("out_of_bounds_policy", json!(policy), json!("drop")),
        ("fill_value", number(fill_value.unwrap_or(0.0)), json!(0.0)),
        ("mask_and_scale", json!(mask_and_scale), json!(false)),
        ("dtype", json!(dtype.map(|d| d.name())), Value::Null),
        ("mean", json!(mean), json!([])),
        ("stddev", json!(stddev), json!([])),
        ("random_shuffle", json!(random_shuffle), json!(false)),
        ("initial_fill", json!(initial_fill), json!(DEFAULT_INITIAL_FILL)),
        ("shuffle_after_epoch", json!(shuffle_after_epoch), json!(false)),
        ("seed", json!(seed), json!(-1)),
        ("return_index", json!(return_index), json!(false)),
    ];
    all.into_iter()
        .filter(|(_, value, default)| value != default)
        .map(|(name, value, _)| (name.to_owned(), shortened(value)))
        .collect()
}

/// A number, or the name of what JSON has no number for.
fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string()) }
}

/// An array, by the name that the user called it, if any.
fn describe(array: &ArrayInfo, name: Option<&String>) -> Value {
    let chunks = |grid: &DimGrid| match grid {
        DimGrid::Regular { chunk, .. } => json!(chunk),
        DimGrid::Irregular { starts } => hashed(&json!(starts)),
    };
    let shapes: Vec<Value> = array.parts.iter().map(|p| json!(p.shape)).collect();
    let grids: Vec<Value> = array.parts.iter().map(|p| p.grid.iter().map(chunks).collect()).collect();
    json!({
        "name": name, "dtype": array.dtype.name(), "dims": shortened(json!(array.dims)),
        "shape": shortened(json!(shapes)), "chunks": shortened(json!(grids)),
    })
}

fn shortened(value: Value) -> Value {
    if value.to_string().len() > MAX_VALUE { hashed(&value) } else { value }
}

/// A text that stands for a value: other values have, but for one in 2^64, another one (FNV-1a of its JSON text).
fn hashed(value: &Value) -> Value {
    let hash = value
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    json!(format!("{} entries with hash {hash:016x}", value.as_array().map_or(1, Vec::len)))
}

/// A value in an error: short, and the default by its name.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "the default".into(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Reader;

    fn identity(spec: Spec) -> Identity {
        Identity { samples: 100, spec: arguments(&spec), dataset: vec![json!({"name": "a", "shape": [[100, 2]]})] }
    }

    fn order() -> Order {
        Order::new(&Spec { num_shards: 2, pad_last_batch: true, batch_size: 8, ..Spec::default() }, 100).unwrap()
    }

    #[test]
    fn a_state_comes_back_as_it_went() {
        let it = identity(Spec { seed: 3, mean: vec![0.1, 1e300], ..Spec::default() });
        let text = it.write(&order(), 1, 64);
        assert_eq!(it.read(&text).unwrap(), order().legs(64));
        let state: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&state["epoch"], &state["position"]), (&json!(1), &json!(58)), "for people");
        assert_eq!(state["spec"], json!({"seed": 3, "mean": [0.1, 1e300]}), "without what is at its default");
    }

    #[test]
    fn what_differs_is_named() {
        let then = identity(Spec { step: vec![2], seed: 3, ..Spec::default() }).write(&order(), 0, 8);
        let mut now = identity(Spec { seed: 4, random_shuffle: true, ..Spec::default() });
        now.dataset = vec![json!({"name": "a", "shape": [[90, 2]]})];
        now.samples = 90;
        let message = now.read(&then).unwrap_err().message().to_owned();
        for part in [
            "step: [2] in the checkpoint, the default here",
            "seed: 3 in the checkpoint, 4 here",
            "random_shuffle: the default in the checkpoint, true here",
            "array 'a': shape: [[100,2]] in the checkpoint, [[90,2]] here",
            "samples in an epoch: 100 in the checkpoint, 90 here",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn fill_values_that_are_no_numbers_differ_too() {
        let of = |fill: f64| identity(Spec { fill_value: Some(fill), ..Spec::default() });
        for (then, now) in
            [(f64::NAN, 0.0), (f64::NAN, f64::INFINITY), (f64::INFINITY, f64::NEG_INFINITY), (1.0, f64::NAN)]
        {
            let state = of(then).write(&order(), 0, 8);
            of(then).read(&state).unwrap();
            let error = of(now).read(&state).unwrap_err();
            assert!(error.message().contains("fill_value"), "{error}");
        }
    }

    #[test]
    fn long_lists_stay_short_and_still_differ() {
        let long = |last: i64| Spec { offsets: (0..10_000).chain([last]).collect(), ..Spec::default() };
        let text = identity(long(1)).write(&order(), 0, 8);
        assert!(text.len() < 2000, "{}", text.len());
        assert!(identity(long(1)).read(&text).is_ok());
        let message = identity(long(2)).read(&text).unwrap_err().message().to_owned();
        assert!(message.contains("offsets: \"10001 entries with hash"), "{message}");
    }

    #[test]
    fn what_is_no_state_is_refused() {
        let it = identity(Spec::default());
        let good: Value = serde_json::from_str(&it.write(&order(), 0, 8)).unwrap();
        let with = |pointer: &str, value: Value| {
            let mut state = good.clone();
            *state.pointer_mut(pointer).unwrap() = value;
            it.read(&state.to_string()).unwrap_err().message().to_owned()
        };
        assert!(with("/version", json!(2)).contains("version 2"));
        assert!(with("/format", json!("other")).contains("expected the state"));
        for (pointer, value) in [
            ("/legs", json!([])),
            ("/legs/0/num_shards", json!(0)),
            ("/legs/0/num_shards", json!(1u64 << 40)),
            ("/legs/0/batch_size", json!(0)),
            ("/legs/0/delivered", json!(u64::MAX)),
            ("/legs/0/delivered", json!(-1)),
            ("/legs/0/epoch", json!(1.5)),
            ("/legs/0/pad_last_batch", json!(1)),
            ("/spec", json!([])),
            ("/dataset", json!({})),
        ] {
            let message = with(pointer, value);
            assert!(message.contains("damaged"), "{pointer}: {message}");
        }
        for text in ["", "{", "[]", "\u{1F980}", &"[".repeat(100_000), &" ".repeat(MAX_BYTES + 1)] {
            assert!(it.read(text).unwrap_err().message().contains("expected the state"), "{text}");
        }
    }

    /// A state that was written down once: it must be readable for ever.
    #[test]
    fn golden() {
        let text = r#"{"format":"dali_zarr.reader","version":1,"package":"0.1.0","epoch":0,"position":8,"shard_id":0,
            "legs":[{"num_shards":2,"batch_size":8,"pad_last_batch":true,"stick_to_shard":false,"epoch":0,"rest":0,
            "delivered":8}],"samples":100,"spec":{"seed":3},"dataset":[{"name":"a","shape":[[100,2]]}]}"#;
        let it = identity(Spec { seed: 3, ..Spec::default() });
        assert_eq!(it.read(text).unwrap(), order().legs(8));
        let (now, then): (Value, Value) =
            (serde_json::from_str(&it.write(&order(), 0, 8)).unwrap(), serde_json::from_str(text).unwrap());
        assert_eq!(now, then);
    }

    #[test]
    fn readers_of_a_store_that_moved_agree() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let readers = folders.each_ref().map(|folder| {
            let metadata = json!({
                "zarr_format": 2, "shape": [100, 3], "chunks": [7, 3], "dtype": "<i4", "fill_value": 0, "order": "C",
                "filters": null, "compressor": null,
            });
            std::fs::write(folder.path().join(".zarray"), metadata.to_string()).unwrap();
            Reader::open(Spec { paths: vec![folder.path().to_str().unwrap().to_owned()], ..Spec::default() }).unwrap()
        });
        assert_eq!(readers[0].state(), readers[1].state());
        assert!(readers[0].state().contains("[[7,3]]"), "{}", readers[0].state());
    }
}
