//! The cxx bridge: what the C++ shim of the DALI operator may ask of the engine.
//!
//! No function here returns a `Result`, because C++ has to know the error's kind to throw the exception that fits:
//! each gives a [`ffi::Status`]. No function panics: cxx would abort the process.

use dali_zarr_engine::dtype::DType;
use dali_zarr_engine::error::{Error, ErrorKind, Result};
use dali_zarr_engine::reader::{Batch, DeviceBuffers, HostBuffer, Reader};
use dali_zarr_engine::spec::{Device, DimKey, Spec};

use crate::c_abi;
use crate::parse::{
    parse_decode_device, parse_folder, parse_io, parse_options, parse_paths, parse_picks, parse_policy, positive, size,
};
use crate::registry::Registered;
use crate::unwind::{Fenced, guard};

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

    /// The operator's arguments as the user gave them. A vector called `maybe_…` has one element, or none where the
    /// user said nothing.
    struct Arguments {
        paths: Vec<String>,
        storage_options: Vec<String>,
        arrays: Vec<String>,
        stack_arrays: bool,
        pick: Vec<String>,
        dims: Vec<String>,
        window: Vec<i64>,
        step: Vec<i64>,
        random_crop: Vec<String>,
        stride: Vec<i64>,
        offsets: Vec<i64>,
        roi_start: Vec<i64>,
        roi_end: Vec<i64>,
        breaks: Vec<i64>,
        cross_stores: bool,
        out_of_bounds_policy: String,
        maybe_fill_value: Vec<f64>,
        mask_and_scale: bool,
        maybe_dtype: Vec<DType>,
        mean: Vec<f64>,
        stddev: Vec<f64>,
        random_shuffle: bool,
        initial_fill: i64,
        shuffle_after_epoch: bool,
        seed: i64,
        shard_id: i64,
        num_shards: i64,
        stick_to_shard: bool,
        pad_last_batch: bool,
        batch_size: i64,
        maybe_prefetch_queue_depth: Vec<i64>,
        /// The GPU's ordinal, or -1 for the CPU.
        gpu: i32,
        decode_device: String,
        maybe_device_memory_limit: Vec<i64>,
        maybe_host_memory_limit: Vec<i64>,
        io: String,
        use_o_direct: bool,
        cache_size: i64,
        cache_dir: String,
        maybe_cache_dir_size: Vec<i64>,
        cache_validate: bool,
        maybe_io_threads: Vec<i64>,
        maybe_io_concurrency: Vec<i64>,
        maybe_decode_threads: Vec<i64>,
        return_index: bool,
    }

    /// One output of every batch.
    struct Output {
        shape: Vec<i64>,
        dtype: DType,
        layout: String,
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

        /// How many outputs these arguments give; asked when the graph is drawn, before anything is opened.
        fn num_outputs(arguments: &Arguments) -> i32;

        /// A reader that isn't open yet.
        fn new_reader() -> Box<ZarrReader>;
        /// Opens the store and starts the threads. All functions below ask for an open reader. Batches are prepared at once,
        /// or, if it shall `wait`, from the first `next_batch` or a `restore` on.
        fn open(self: &mut ZarrReader, arguments: &Arguments, wait: bool) -> Status;
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
        /// The number of host buffers; 0 where batches are delivered to a GPU.
        fn num_host(self: &ReadyBatch) -> usize;
        /// The memory of one output; a second call for the same output gives a null pointer.
        fn take_host(self: &mut ReadyBatch, output: usize) -> Box<HostMemory>;

        fn data(self: &HostMemory) -> usize;
        fn size(self: &HostMemory) -> usize;

        /// Records `event` on `stream`, both handles of the CUDA driver.
        fn record_event(event: usize, stream: usize) -> Status;
    }
}

/// A reader that may not be open.
pub struct ZarrReader(Option<(Registered, Fenced<Reader>)>);

/// The outcome of waiting for a batch.
pub struct ReadyBatch {
    status: ffi::Status,
    set: u64,
    host: Vec<Option<HostMemory>>,
}

/// The memory of one output of one batch. Keeps nothing of the reader alive but its pool.
pub struct HostMemory(Option<Fenced<HostBuffer>>);

fn to_status(result: Result<()>) -> ffi::Status {
    if let Err(error) = &result
        && error.kind() == ErrorKind::Memory
    {
        // DALI has no exception of this kind: whoever caught another one asks here what it was.
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
            message: error.message().to_owned(),
        },
    }
}

fn not_open() -> Error {
    Error::runtime("the reader isn't open")
}

fn new_reader() -> Box<ZarrReader> {
    Box::new(ZarrReader(None))
}

impl ZarrReader {
    fn reader(&self) -> Result<&Reader> {
        self.0.as_ref().map(|(_, reader)| &**reader).ok_or_else(not_open)
    }

    fn open(&mut self, arguments: &ffi::Arguments, wait: bool) -> ffi::Status {
        to_status(guard(|| {
            let spec = to_spec(arguments)?;
            let open = if wait { Reader::prepare } else { Reader::open };
            let reader = open(spec.clone())?;
            for note in reader.notes() {
                eprintln!("zarr_reader: {note}");
            }
            self.0 = Some((Registered::new(&spec, &reader), Fenced::new(reader)));
            Ok(())
        }))
    }

    fn outputs(&self) -> Vec<ffi::Output> {
        let ask = || {
            Ok(self
                .reader()?
                .outputs()
                .iter()
                .map(|o| ffi::Output {
                    shape: o.shape.clone(),
                    dtype: ffi::DType { repr: o.dtype as u8 },
                    layout: o.layout.clone(),
                })
                .collect())
        };
        guard(ask).unwrap_or_default()
    }

    fn meta(&self) -> ffi::Meta {
        // DALI takes -1 for "not a reader".
        guard(|| {
            if let Some((registered, _)) = &self.0 {
                registered.described();
            }
            let m = self.reader()?.meta();
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
        to_status(guard(|| self.reader()?.lend(DeviceBuffers { id, outputs: outputs.to_vec(), ready })))
    }

    fn next_batch(&self) -> Box<ReadyBatch> {
        let (status, batch) = match guard(|| self.reader()?.next_batch()) {
            Ok(batch) => (to_status(Ok(())), batch),
            Err(error) => (to_status(Err(error)), Batch { host: Vec::new(), buffers: None }),
        };
        Box::new(ReadyBatch {
            status,
            // No set ever gets this name, so a batch without one can't be mistaken for another's.
            set: batch.buffers.unwrap_or(u64::MAX),
            host: batch.host.into_iter().map(|h| Some(HostMemory(Some(Fenced::new(h))))).collect(),
        })
    }
}

impl ZarrReader {
    fn delivered(&self) -> u64 {
        guard(|| Ok(self.reader()?.delivered())).unwrap_or(0)
    }

    fn state_at(&self, delivered: u64, state: &mut String) -> ffi::Status {
        to_status(guard(|| {
            *state = self.reader()?.state_at(delivered);
            Ok(())
        }))
    }

    fn restore(&mut self, state: &[u8]) -> ffi::Status {
        to_status(guard(|| {
            let (_, reader) = self.0.as_mut().ok_or_else(not_open)?;
            reader.restore(&String::from_utf8_lossy(state))
        }))
    }
}

impl ReadyBatch {
    fn status(&self) -> ffi::Status {
        self.status.clone()
    }
    fn set(&self) -> u64 {
        self.set
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

fn num_outputs(arguments: &ffi::Arguments) -> i32 {
    let count = guard(|| {
        let spec = Spec {
            arrays: arguments.arrays.clone(),
            offsets: arguments.offsets.clone(),
            stack_arrays: arguments.stack_arrays,
            return_index: arguments.return_index,
            ..Spec::default()
        };
        Ok(spec.num_outputs())
    });
    count.ok().and_then(|n| i32::try_from(n).ok()).unwrap_or(1)
}

fn to_spec(a: &ffi::Arguments) -> Result<Spec> {
    Ok(Spec {
        paths: parse_paths(a.paths.clone())?,
        storage_options: parse_options(&a.storage_options)?,
        arrays: a.arrays.clone(),
        stack_arrays: a.stack_arrays,
        pick: parse_picks(&a.pick)?,
        dims: a.dims.iter().map(|d| DimKey::parse(d)).collect(),
        window: a.window.clone(),
        step: a.step.clone(),
        random_crop: a.random_crop.iter().map(|d| DimKey::parse(d)).collect(),
        stride: a.stride.clone(),
        offsets: a.offsets.clone(),
        roi_start: a.roi_start.clone(),
        roi_end: a.roi_end.clone(),
        breaks: a.breaks.clone(),
        cross_stores: a.cross_stores,
        out_of_bounds_policy: parse_policy(&a.out_of_bounds_policy)?,
        fill_value: a.maybe_fill_value.first().copied(),
        mask_and_scale: a.mask_and_scale,
        dtype: a.maybe_dtype.first().map(to_dtype).transpose()?,
        mean: a.mean.clone(),
        stddev: a.stddev.clone(),
        random_shuffle: a.random_shuffle,
        initial_fill: positive("initial_fill", a.initial_fill)? as u64,
        shuffle_after_epoch: a.shuffle_after_epoch,
        seed: a.seed,
        shard_id: a.shard_id,
        num_shards: a.num_shards,
        stick_to_shard: a.stick_to_shard,
        pad_last_batch: a.pad_last_batch,
        batch_size: positive("batch_size", a.batch_size)?,
        prefetch_queue_depth: optional_count("prefetch_queue_depth", &a.maybe_prefetch_queue_depth)?,
        device: if a.gpu < 0 { Device::Cpu } else { Device::Gpu(a.gpu) },
        decode_device: parse_decode_device(&a.decode_device)?,
        device_memory_limit: optional_count("device_memory_limit", &a.maybe_device_memory_limit)?.map(|n| n as u64),
        host_memory_limit: optional_count("host_memory_limit", &a.maybe_host_memory_limit)?.map(|n| n as u64),
        io: parse_io(&a.io)?,
        use_o_direct: a.use_o_direct,
        cache_size: size("cache_size", a.cache_size)?,
        cache_dir: parse_folder(&a.cache_dir),
        cache_dir_size: optional_count("cache_dir_size", &a.maybe_cache_dir_size)?.map(|n| n as u64),
        cache_validate: a.cache_validate,
        io_threads: optional_count("io_threads", &a.maybe_io_threads)?,
        io_concurrency: optional_count("io_concurrency", &a.maybe_io_concurrency)?,
        decode_threads: optional_count("decode_threads", &a.maybe_decode_threads)?,
        return_index: a.return_index,
    })
}

fn to_dtype(dtype: &ffi::DType) -> Result<DType> {
    DType::ALL
        .into_iter()
        .find(|d| *d as u8 == dtype.repr)
        .ok_or_else(|| Error::dtype(format!("dtype: no element type has the number {}", dtype.repr)))
}

fn optional_count(name: &str, value: &[i64]) -> Result<Option<usize>> {
    value.first().map(|&v| positive(name, v)).transpose()
}
