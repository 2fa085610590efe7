//! The cxx bridge: what the C++ shim of the DALI operator may ask of the engine.
//!
//! No function here returns a `Result`, because C++ has to know the error's kind to throw the exception that fits:
//! each gives a [`ffi::Status`]. No function panics: cxx would abort the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cxx::CxxString;
use dali_zarr_engine::error::{Error, ErrorKind, Result};
use dali_zarr_engine::reader::{Batch, DeviceBuffers, HostBuffer, Names, Reader};
use dali_zarr_engine::spec::Spec;

use crate::opening::{Opened, Opening};
use crate::registry::Registered;
use crate::unwind::{Fenced, guard};
use crate::{c_abi, interrupts};

#[cxx::bridge(namespace = "dali_zarr::engine")]
mod ffi {
    /// What went wrong, in the terms of the exceptions that DALI maps to Python.
    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Ok = 0,
        Value = 1,
        Type = 2,
        Index = 3,
        Runtime = 4,
        Memory = 5,
    }

    /// The outcome of a call.
    #[derive(Clone, Debug)]
    struct Status {
        kind: Kind,
        message: String,
    }

    /// Element types; the numbers are the engine's.
    #[derive(Clone, Copy, Debug)]
    enum DType {
        Bool = 0,
        I8 = 1,
        I16 = 2,
        I32 = 3,
        I64 = 4,
        U8 = 5,
        U16 = 6,
        U32 = 7,
        U64 = 8,
        F16 = 9,
        F32 = 10,
        F64 = 11,
    }

    /// One output of every batch. The samples of a ragged one differ in the first dimension, of which `shape` has the longest.
    struct Output {
        shape: Vec<i64>,
        dtype: DType,
        layout: String,
        ragged: bool,
        /// Bytes of a batch, at most.
        bytes: usize,
    }

    /// What DALI's iterators ask.
    struct Meta {
        epoch_size: i64,
        epoch_size_padded: i64,
        number_of_shards: i64,
        shard_id: i64,
        pad_last_batch: bool,
        stick_to_shard: bool,
    }

    extern "Rust" {
        type ZarrReader;
        type ReadyBatch;
        type HostMemory;

        /// How many outputs the arguments in a JSON object give; asked when the graph is drawn, before anything is opened.
        fn num_outputs(arguments: &CxxString) -> i32;

        /// A reader that isn't open yet.
        fn new_reader() -> Box<ZarrReader>;
        /// Opens the store and starts the threads. `arguments` are a JSON object. Batches are prepared at once,
        /// or, if it shall `wait`, from the first `next_batch` or a `restore` on. If the host has asked for it, this returns before
        /// the store is open; all functions below but `delivered` wait until it is. `num_outputs` are what the
        /// schema declares, and `place` says where in the host's program the operator was made.
        fn open(self: &mut ZarrReader, arguments: &CxxString, wait: bool, num_outputs: usize, place: &str) -> Status;
        /// Whether the reader is open, and the error if it can't be.
        fn opened(self: &ZarrReader) -> Status;
        fn outputs(self: &ZarrReader) -> Vec<Output>;
        fn meta(self: &ZarrReader) -> Meta;
        fn buffers_wanted(self: &ZarrReader) -> usize;
        fn lend(self: &ZarrReader, id: u64, outputs: &[u64], ready: u64) -> Status;
        fn next_batch(self: &ZarrReader) -> Box<ReadyBatch>;
        /// How many samples were handed out: all that a checkpoint has to remember until it is written.
        fn delivered(self: &ZarrReader) -> u64;
        /// Writes the state after so many samples to `state`.
        fn state_at(self: &ZarrReader, delivered: u64, state: &mut String) -> Status;
        /// Goes on where `state` was written; before the first batch only.
        fn restore(self: &mut ZarrReader, state: &[u8]) -> Status;

        fn status(self: &ReadyBatch) -> Status;
        /// The lent set that was filled.
        fn set(self: &ReadyBatch) -> u64;
        /// With ragged outputs: for each sample its elements along their first dimension. Empty otherwise.
        fn lengths(self: &ReadyBatch) -> &[i64];
        /// The number of host buffers; 0 where batches are delivered to a GPU.
        fn num_host(self: &ReadyBatch) -> usize;
        /// What the samples are called, one after the other, and where each name ends.
        fn source_text(self: &ReadyBatch) -> &str;
        fn source_ends(self: &ReadyBatch) -> &[u32];
        /// The memory of one output; a second call for the same output gives a null pointer.
        fn take_host(self: &mut ReadyBatch, output: usize) -> Box<HostMemory>;

        fn data(self: &HostMemory) -> usize;
        fn size(self: &HostMemory) -> usize;

        /// Records `event` on `stream`, both handles of the CUDA driver.
        fn record_event(event: usize, stream: usize) -> Status;
    }
}

/// A reader that may not be open.
#[derive(Default)]
pub struct ZarrReader {
    /// On its way, where the host waits for it.
    opening: Option<Arc<Opening>>,
    open: OnceLock<Result<Opened>>,
    interrupted: Mutex<Interrupted>,
}

/// Batches that nobody took, since the waits for them were interrupted.
#[derive(Default)]
struct Interrupted {
    /// How many there are. They are left out, so that readers of one pipeline stay in step.
    batches: u32,
    /// What was lent, by its number, to be lent again when a batch is left out.
    lent: BTreeMap<u64, DeviceBuffers>,
}

/// The outcome of waiting for a batch.
pub struct ReadyBatch {
    status: ffi::Status,
    set: u64,
    lengths: Vec<i64>,
    host: Vec<Option<HostMemory>>,
    names: Names,
}

/// The memory of one output of one batch. Keeps nothing of the reader alive but its pool.
pub struct HostMemory(Option<Fenced<HostBuffer>>);

fn to_status(result: Result<()>) -> ffi::Status {
    if let Err(error) = &result {
        // DALI's exceptions tell less: whoever caught one on this thread asks here what it was.
        c_abi::remember(error);
    }
    match result {
        Ok(()) => ffi::Status { kind: ffi::Kind::Ok, message: String::new() },
        Err(error) => ffi::Status {
            kind: match error.kind() {
                ErrorKind::Value => ffi::Kind::Value,
                ErrorKind::Type => ffi::Kind::Type,
                ErrorKind::Index => ffi::Kind::Index,
                ErrorKind::Runtime => ffi::Kind::Runtime,
                ErrorKind::Memory => ffi::Kind::Memory,
            },
            message: c_abi::shown(error.message()),
        },
    }
}

fn not_open() -> Error {
    Error::runtime("the reader isn't open")
}

fn new_reader() -> Box<ZarrReader> {
    Box::default()
}

fn open(spec: &Spec, wait: bool, num_outputs: usize) -> Result<Opened> {
    let open = if wait { Reader::prepare } else { Reader::open };
    let reader = Fenced::new(open(spec.clone())?);
    let found = reader.outputs().len();
    if found != num_outputs {
        return Err(Error::runtime(format!(
            "internal error: the schema declares {num_outputs} outputs, but the engine gives {found}"
        )));
    }
    Ok((Registered::new(spec, &reader), reader))
}

impl ZarrReader {
    fn both(&self) -> Result<&Opened> {
        let open = match &self.opening {
            Some(opening) => self.open.get_or_init(|| opening.take()),
            None => self.open.get().ok_or_else(not_open)?,
        };
        open.as_ref().map_err(Clone::clone)
    }

    fn reader(&self) -> Result<&Reader> {
        self.both().map(|(_, reader)| &**reader)
    }

    fn interrupted(&self) -> MutexGuard<'_, Interrupted> {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&mut self, arguments: &CxxString, wait: bool, num_outputs: usize, place: &str) -> ffi::Status {
        to_status(guard(|| {
            let spec = Spec::from_json(arguments.as_bytes())?;
            match Opening::start(move || open(&spec, wait, num_outputs), place.to_owned())? {
                Ok(opening) => self.opening = Some(opening),
                Err(work) => self.open = OnceLock::from(Ok(work()?)),
            }
            Ok(())
        }))
    }

    fn opened(&self) -> ffi::Status {
        to_status(guard(|| self.reader().map(|_| ())))
    }

    fn outputs(&self) -> Vec<ffi::Output> {
        let ask = || {
            let reader = self.reader()?;
            Ok(reader
                .outputs()
                .iter()
                .map(|o| ffi::Output {
                    shape: o.shape.clone(),
                    dtype: ffi::DType { repr: o.dtype.delivered() as u8 },
                    layout: o.layout.clone(),
                    ragged: o.ragged.is_some(),
                    bytes: o.batch_bytes(reader.batch_size()),
                })
                .collect())
        };
        guard(ask).unwrap_or_default()
    }

    fn meta(&self) -> ffi::Meta {
        // DALI takes -1 for "not a reader".
        guard(|| {
            let (registered, reader) = self.both()?;
            registered.described();
            let m = reader.meta();
            Ok(ffi::Meta {
                epoch_size: m.epoch_size,
                epoch_size_padded: m.epoch_size_padded,
                number_of_shards: m.number_of_shards,
                shard_id: m.shard_id,
                pad_last_batch: m.pad_last_batch,
                stick_to_shard: m.stick_to_shard,
            })
        })
        .unwrap_or(ffi::Meta {
            epoch_size: -1,
            epoch_size_padded: -1,
            number_of_shards: -1,
            shard_id: -1,
            pad_last_batch: false,
            stick_to_shard: false,
        })
    }

    fn buffers_wanted(&self) -> usize {
        guard(|| Ok(self.reader()?.buffers_wanted())).unwrap_or(0)
    }

    fn lend(&self, id: u64, outputs: &[u64], ready: u64) -> ffi::Status {
        let set = DeviceBuffers { id, outputs: outputs.to_vec(), ready };
        to_status(guard(|| {
            self.reader()?.lend(set.clone())?;
            self.interrupted().lent.insert(id, set);
            Ok(())
        }))
    }

    fn taken(&self) -> Result<Batch> {
        let reader = self.reader()?;
        loop {
            let mut ended = false;
            let batch = reader.next_batch_while(&mut || interrupts::check().inspect_err(|_| ended = true));
            let mut interrupted = self.interrupted();
            if ended {
                interrupted.batches += 1;
                return batch;
            }
            if interrupted.batches == 0 {
                return batch;
            }
            interrupted.batches -= 1;
            let left_out = batch.ok().and_then(|batch| batch.buffers);
            if let Some(set) = left_out.and_then(|id| interrupted.lent.get(&id)).cloned() {
                reader.lend(set)?;
            }
        }
    }

    fn next_batch(&self) -> Box<ReadyBatch> {
        let (status, batch) = match guard(|| self.taken()) {
            Ok(batch) => (to_status(Ok(())), batch),
            Err(error) => {
                let none = Batch { host: Vec::new(), buffers: None, lengths: Vec::new(), names: Names::default() };
                (to_status(Err(error)), none)
            }
        };
        Box::new(ReadyBatch {
            status,
            // No set ever gets this name, so a batch without one can't be mistaken for another's.
            set: batch.buffers.unwrap_or(u64::MAX),
            lengths: batch.lengths,
            host: batch.host.into_iter().map(|h| Some(HostMemory(Some(Fenced::new(h))))).collect(),
            names: batch.names,
        })
    }
}

impl ZarrReader {
    fn delivered(&self) -> u64 {
        // DALI asks while it builds a pipeline too, when nobody may wait.
        self.open.get().and_then(|open| open.as_ref().ok()).map_or(0, |(_, reader)| reader.delivered())
    }

    fn state_at(&self, delivered: u64, state: &mut String) -> ffi::Status {
        to_status(guard(|| {
            *state = self.reader()?.state_at(delivered);
            Ok(())
        }))
    }

    fn restore(&mut self, state: &[u8]) -> ffi::Status {
        to_status(guard(|| {
            self.reader()?;
            let Some(Ok((_, reader))) = self.open.get_mut() else { return Err(not_open()) };
            reader.restore(&String::from_utf8_lossy(state))
        }))
    }
}

impl Drop for ZarrReader {
    fn drop(&mut self) {
        if let Some(opening) = &self.opening {
            opening.abandon();
        }
    }
}

impl ReadyBatch {
    fn status(&self) -> ffi::Status {
        self.status.clone()
    }
    fn set(&self) -> u64 {
        self.set
    }
    fn source_text(&self) -> &str {
        &self.names.text
    }
    fn source_ends(&self) -> &[u32] {
        &self.names.ends
    }
    fn lengths(&self) -> &[i64] {
        &self.lengths
    }
    fn num_host(&self) -> usize {
        self.host.len()
    }
    fn take_host(&mut self, output: usize) -> Box<HostMemory> {
        Box::new(self.host.get_mut(output).and_then(Option::take).unwrap_or(HostMemory(None)))
    }
}

impl HostMemory {
    fn data(&self) -> usize {
        self.0.as_ref().map_or(0, |b| b.as_ptr() as usize)
    }
    fn size(&self) -> usize {
        self.0.as_ref().map_or(0, |b| b.len())
    }
}

fn record_event(event: usize, stream: usize) -> ffi::Status {
    to_status(guard(|| {
        use cudarc::driver::sys;
        // SAFETY: looks for the driver's library and nothing else.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::runtime("no CUDA driver (libcuda.so.1) was found on this machine"));
        }
        // SAFETY: both handles come from DALI, which made them in the device's primary context; runtime and driver
        // handles are the same.
        let code = unsafe { sys::cuEventRecord(event as sys::CUevent, stream as sys::CUstream) };
        match code {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(Error::runtime(format!("cuEventRecord failed: {code:?}"))),
        }
    }))
}

fn num_outputs(arguments: &CxxString) -> i32 {
    // What is wrong is said when the reader is opened.
    let count = guard(|| Spec::num_outputs(arguments.as_bytes()));
    count.ok().and_then(|n| i32::try_from(n).ok()).unwrap_or(1)
}
