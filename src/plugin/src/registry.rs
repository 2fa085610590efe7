//! Lists the readers that are alive in this process, so that a host can ask for their counters. A forked child has none of
//! its parent's.
//!
//! Python can't reach an operator inside a built DALI pipeline by its name, and names don't tell two pipelines apart.
//! But DALI's `reader_meta` calls the operator on the caller's thread. So a reader that describes its epoch stores its
//! number in that thread, and the caller of DALI takes it from there.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dali_zarr_base::error::{Error, Result};
use dali_zarr_engine::reader::{OutputInfo, Pusher, Reader};
use dali_zarr_engine::stats::Stats;
use dali_zarr_samples::geometry::Rows;
use dali_zarr_samples::spec::{Device, Spec};
use serde_json::{Value, json};

use crate::process::PerProcess;

/// A reader that is alive.
struct Entry {
    /// Description of the reader: a JSON object, to which the counters are added.
    about: Value,
    stats: Arc<Stats>,
    /// Takes pushes, if the reader's order is the caller's.
    pusher: Option<Arc<Pusher>>,
}

static READERS: PerProcess<Mutex<BTreeMap<u64, Entry>>> = PerProcess::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Number of the reader that last described its epoch on this thread; 0: none.
    static DESCRIBED: Cell<u64> = const { Cell::new(0) };
}

fn readers() -> MutexGuard<'static, BTreeMap<u64, Entry>> {
    READERS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a reader in the registry until it is dropped.
pub struct Registered(u64);

impl Registered {
    /// Adds `reader`, which was opened with `spec`.
    pub fn new(spec: &Spec, reader: &Reader) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let about = json!({
            "reader": number,
            "path": spec.source.locations(),
            "arrays": spec.source.arrays.iter().map(|a| &a.output).collect::<Vec<_>>(),
            "device": if spec.device == Device::Cpu { "cpu" } else { "gpu" },
            "ragged": reader.outputs().iter().any(|output| output.ragged.is_some()).then(|| {
                let dims = |output: &OutputInfo| output.ragged.as_ref().map(|ragged| ragged.dims.clone());
                let outputs: Vec<_> = reader.outputs().iter().map(dims).collect();
                json!({ "outputs": outputs, "rows": reader.rows().is_some(), "columns": reader.rows().and_then(Rows::columns) })
            }),
            "batches_ahead": reader.batches_ahead(),
            "dtypes": reader.outputs().iter().map(|output| output.dtype.name()).collect::<Vec<_>>(),
        });
        let entry = Entry { about, stats: Arc::clone(reader.stats()), pusher: reader.pusher().cloned() };
        readers().insert(number, entry);
        Self(number)
    }

    /// Stores the reader's number in this thread.
    pub fn described(&self) {
        // Ignores a failure: a thread that is ending won't ask for the number.
        let _ = DESCRIBED.try_with(|last| last.set(self.0));
    }

    /// Returns the description of the reader and its counters.
    pub fn stats(&self) -> Value {
        readers().get(&self.0).map_or(Value::Null, Entry::to_json)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        readers().remove(&self.0);
    }
}

impl Entry {
    fn to_json(&self) -> Value {
        let mut all = self.about.clone();
        if let (Some(all), Value::Object(counters)) = (all.as_object_mut(), self.stats.to_json()) {
            all.extend(counters);
        }
        all
    }
}

/// Takes the number that [`Registered::described`] stored in this thread; 0 if there is none.
pub fn take_described() -> u64 {
    DESCRIBED.try_with(Cell::take).unwrap_or(0)
}

/// Returns what takes the pushes of a reader.
///
/// # Errors
/// If no reader of this process has this number, or the reader's order is its own.
pub fn pusher(number: u64) -> Result<Arc<Pusher>> {
    match readers().get(&number) {
        None => Err(no_reader(number)),
        Some(Entry { pusher, .. }) => pusher.clone().ok_or_else(own_order),
    }
}

/// Returns the error for a push to a reader whose order is its own.
pub fn own_order() -> Error {
    Error::value(
        "expected a reader in the caller's order (\"order\": \"pushed\"), but the order of this one is its own",
    )
}

/// Returns the bad chunks that a reader has found, as JSON.
///
/// # Errors
/// If no reader of this process has this number.
pub fn bad_chunks(number: u64) -> Result<Value> {
    readers().get(&number).map(|entry| entry.stats.bad_chunks()).ok_or_else(|| no_reader(number))
}

fn no_reader(number: u64) -> Error {
    Error::value(format!("there is no reader {number} in this process; it may have been closed"))
}

/// Returns all readers and their counters, the oldest first.
pub fn all() -> Value {
    readers().values().map(Entry::to_json).collect()
}
