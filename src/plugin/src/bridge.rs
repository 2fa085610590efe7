//! The cxx bridge: the functions of the engine that the C++ shim of the DALI operator calls.
//!
//! The engine's library exports the Rust half of the bridge. The build script writes the C++ half, and CMake compiles
//! it into each operator, together with a copy of cxx's own C++. So an operator may be compiled with another C++
//! library than the engine uses. This only works if no object is made by the C++ of one side and freed by the C++ of
//! the other:
//!
//! - No `CxxString`, `UniquePtr` or C++ vector. Text is passed as bytes.
//! - No `Result`: one copy of cxx's C++ would allocate its message, and another would free it. Instead, functions
//!   return a [`ffi::Status`]. C++ needs the kind of the error anyway, to throw the right exception.
//!
//! No function panics: cxx would abort the process.

use dali_zarr_base::error::{Code, Error, ErrorKind, Result};
use dali_zarr_engine::reader::{Batch, DeviceBuffers, HostBuffer, Names};
use dali_zarr_samples::spec::Spec;

use crate::c_abi;
use crate::operator::Operator;
use crate::unwind::{Fenced, guard};

#[cxx::bridge(namespace = "dali_zarr::engine")]
mod ffi {
    /// The kind of an error: which exception DALI raises in Python.
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

    /// Element types, with the engine's numbers.
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

    /// One output of every batch.
    struct Output {
        /// Shape of a sample. For a ragged output, the greatest length along each dimension.
        shape: Vec<i64>,
        dtype: DType,
        layout: String,
        /// Whether samples differ in their shapes.
        ragged: bool,
        /// Most bytes of a batch.
        bytes: usize,
    }

    /// The numbers that DALI's iterators ask for.
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

        /// Returns the number of outputs for the arguments in a JSON object; 1 if the arguments are wrong. DALI asks
        /// for it when the graph is defined, before any store is opened.
        fn num_outputs(arguments: &[u8]) -> i32;

        /// Returns a reader that isn't open yet.
        fn new_reader() -> Box<ZarrReader>;
        /// Opens the store and starts the threads. `arguments` is a JSON object. Batches are prepared at once, or, with
        /// `wait`, only after the first `next_batch` or a `restore`. `num_outputs` is the number that the schema
        /// declares. `place` says where in the host's program the operator was made.
        ///
        /// If the host waits for stores itself (`dali_zarr_defer_opening`), this returns before the store is open. Then
        /// all functions below except `delivered` wait until it is.
        fn open(self: &mut ZarrReader, arguments: &[u8], wait: bool, num_outputs: usize, place: &str) -> Status;
        /// Waits until the reader is open. Returns the error if it can't be opened.
        fn opened(self: &ZarrReader) -> Status;
        /// Whether this is a forked child of the process in which the reader was made. Then nothing of it may be used,
        /// and all functions that return a status fail.
        fn is_inherited(self: &ZarrReader) -> bool;
        fn outputs(self: &ZarrReader) -> Vec<Output>;
        fn meta(self: &ZarrReader) -> Meta;
        fn buffers_wanted(self: &ZarrReader) -> usize;
        fn lend(self: &ZarrReader, id: u64, outputs: &[u64], ready: u64) -> Status;
        fn next_batch(self: &ZarrReader) -> Box<ReadyBatch>;
        /// Pushes the samples of the next batch, in the caller's order: their numbers, or with `columns` not 0 so many
        /// entries of the index output for each.
        fn push(self: &ZarrReader, samples: &[i64], columns: usize) -> Status;
        /// Returns the number of samples handed out; 0 if the reader isn't open. A checkpoint holds only this number
        /// until it is written.
        fn delivered(self: &ZarrReader) -> u64;
        /// Writes the state after `delivered` samples to `state`.
        fn state_at(self: &ZarrReader, delivered: u64, state: &mut String) -> Status;
        /// Continues from `state`. Only allowed before the first batch.
        fn restore(self: &mut ZarrReader, state: &[u8]) -> Status;

        fn status(self: &ReadyBatch) -> Status;
        /// Returns the id of the lent set that holds the batch; 2^64 - 1 if there is none.
        fn set(self: &ReadyBatch) -> u64;
        /// Returns the length of each sample along the first dimension of ragged outputs. Empty if samples are no rows.
        fn lengths(self: &ReadyBatch) -> &[i64];
        /// Returns the shapes of the samples of a ragged output, one after the other. Empty for other outputs, and if
        /// samples are rows, which `lengths` tells.
        fn shapes(self: &ReadyBatch, output: usize) -> &[i64];
        /// Returns the number of host buffers; 0 if batches are delivered to a GPU.
        fn num_host(self: &ReadyBatch) -> usize;
        /// Returns the names of all samples, one after the other without separators.
        fn source_text(self: &ReadyBatch) -> &str;
        /// Returns the byte position in `source_text` where each name ends.
        fn source_ends(self: &ReadyBatch) -> &[u32];
        /// Takes the memory of one output. A second call for the same output returns memory with a null pointer.
        fn take_host(self: &mut ReadyBatch, output: usize) -> Box<HostMemory>;

        fn data(self: &HostMemory) -> usize;
        fn size(self: &HostMemory) -> usize;

        /// Returns the status of an error that the shim found.
        fn shim_error(message: &[u8]) -> Status;

        /// Records `event` on `stream`. Both are handles of the CUDA driver.
        fn record_event(event: usize, stream: usize) -> Status;
    }
}

/// The reader as C++ sees it.
#[derive(Default)]
pub struct ZarrReader(Operator);

/// The outcome of waiting for a batch.
pub struct ReadyBatch {
    status: ffi::Status,
    set: u64,
    lengths: Vec<i64>,
    shapes: Vec<Vec<i64>>,
    host: Vec<Option<HostMemory>>,
    names: Names,
}

/// The memory of one output of one batch. Of the reader, it keeps only the memory pool alive.
pub struct HostMemory(Option<Fenced<HostBuffer>>);

fn to_status(result: Result<()>) -> ffi::Status {
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
            // DALI's exceptions hold less. Code that caught one can ask for the details.
            message: c_abi::remember_operator(&error),
        },
    }
}

fn new_reader() -> Box<ZarrReader> {
    Box::default()
}

impl ZarrReader {
    fn open(&mut self, arguments: &[u8], wait: bool, num_outputs: usize, place: &str) -> ffi::Status {
        to_status(guard(|| self.0.open(arguments, wait, num_outputs, place.to_owned())))
    }

    fn opened(&self) -> ffi::Status {
        to_status(guard(|| self.0.opened()))
    }

    fn is_inherited(&self) -> bool {
        self.0.is_inherited()
    }

    fn outputs(&self) -> Vec<ffi::Output> {
        let ask = || {
            let (outputs, batch_size) = self.0.outputs()?;
            let described = outputs.iter().map(|o| ffi::Output {
                shape: o.shape.clone(),
                dtype: ffi::DType { repr: o.dtype.delivered() as u8 },
                layout: o.layout.clone(),
                ragged: o.ragged.is_some(),
                bytes: o.batch_bytes(batch_size),
            });
            Ok(described.collect())
        };
        guard(ask).unwrap_or_default()
    }

    fn meta(&self) -> ffi::Meta {
        // For DALI, -1 means "not a reader".
        guard(|| {
            let m = self.0.meta()?;
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
        guard(|| self.0.buffers_wanted()).unwrap_or(0)
    }

    fn lend(&self, id: u64, outputs: &[u64], ready: u64) -> ffi::Status {
        to_status(guard(|| self.0.lend(DeviceBuffers { id, outputs: outputs.to_vec(), ready })))
    }

    fn next_batch(&self) -> Box<ReadyBatch> {
        let (status, batch) = match guard(|| self.0.next_batch()) {
            Ok(batch) => (to_status(Ok(())), batch),
            Err(error) => {
                let (host, names) = (Vec::new(), Names::default());
                let none = Batch { host, buffers: None, samples: 0, lengths: Vec::new(), shapes: Vec::new(), names };
                (to_status(Err(error)), none)
            }
        };
        Box::new(ReadyBatch {
            status,
            // No set has this id, so it can only mean that there is no set.
            set: batch.buffers.unwrap_or(u64::MAX),
            lengths: batch.lengths,
            shapes: batch.shapes,
            host: batch.host.into_iter().map(|h| Some(HostMemory(Some(Fenced::new(h))))).collect(),
            names: batch.names,
        })
    }

    fn push(&self, samples: &[i64], columns: usize) -> ffi::Status {
        to_status(guard(|| self.0.push(samples, columns)))
    }

    fn delivered(&self) -> u64 {
        self.0.delivered()
    }

    fn state_at(&self, delivered: u64, state: &mut String) -> ffi::Status {
        to_status(guard(|| {
            *state = self.0.state_at(delivered)?;
            Ok(())
        }))
    }

    fn restore(&mut self, state: &[u8]) -> ffi::Status {
        to_status(guard(|| self.0.restore(&String::from_utf8_lossy(state))))
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
    fn shapes(&self, output: usize) -> &[i64] {
        self.shapes.get(output).map_or(&[], Vec::as_slice)
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

fn shim_error(message: &[u8]) -> ffi::Status {
    to_status(guard(|| Err(Error::runtime(String::from_utf8_lossy(message)))))
}

fn record_event(event: usize, stream: usize) -> ffi::Status {
    to_status(guard(|| {
        use cudarc::driver::sys;
        // SAFETY: only looks for the driver's library.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::coded(Code::DeviceFailed, "no CUDA driver (libcuda.so.1) was found on this machine"));
        }
        // SAFETY: both handles come from DALI, which made them in the device's primary context. Handles of the runtime
        // are also handles of the driver.
        let code = unsafe { sys::cuEventRecord(event as sys::CUevent, stream as sys::CUstream) };
        match code {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(Error::coded(Code::DeviceFailed, format!("cuEventRecord failed: {code:?}"))),
        }
    }))
}

fn num_outputs(arguments: &[u8]) -> i32 {
    // Wrong arguments are reported when the reader is opened.
    let count = guard(|| Spec::num_outputs(arguments));
    count.ok().and_then(|n| i32::try_from(n).ok()).unwrap_or(1)
}
