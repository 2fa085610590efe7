//! The arguments of a reader, as plain values. Each group of arguments in the documentation has a file here. Names and
//! meanings are those of the operator's arguments. [`Spec::from_json`] reads them all from one flat JSON object.
//! Nothing here touches a store, a clock or a device. Only [`cores`] and [`absolute`] ask the operating system: for
//! defaults, and for the current directory.

mod absolute;
mod by_name;
mod order;
mod read;
mod resources;
mod samples;
mod segments;
mod source;
#[cfg(test)]
mod tests;
mod values;

use serde::Deserialize;

use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::local_processes;
use dali_zarr_stores as store;

pub use by_name::{OutputDims, PerDim, PerOutput};
pub use order::DEFAULT_SEED;
pub use order::{MIN_DEFAULT_FILL, OrderArguments, OrderSource};
pub use resources::{DecodeDevice, Io, OnBadChunk, ResourceArguments};
pub use samples::{Concat, FillMissing, MissingDates, OutOfBounds, Region, SampleArguments, ScaleBy, ScaleMethod};
pub use segments::{Breaks, Segments};
pub use source::{Aligned, ArrayArgument, DimKey, Member, Pick, SourceArguments, is_location};
pub use values::ValueArguments;

/// All arguments of a reader.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The stores and arrays to read.
    pub source: SourceArguments,
    /// How samples are cut.
    pub samples: SampleArguments,
    /// How the values of the outputs are computed.
    pub values: ValueArguments,
    /// The order of samples.
    pub order: OrderArguments,
    /// The resources for reading, caching and decoding chunks.
    pub resources: ResourceArguments,
    /// Samples per batch.
    pub batch_size: usize,
    /// The device that batches are delivered to.
    pub device: Device,
}

/// The device that finished batches are delivered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Host memory.
    Cpu,
    /// The CUDA device with this ordinal.
    Gpu(i32),
}

/// The arguments that DALI's pipeline gives, and not the operator's user.
#[derive(Deserialize)]
#[serde(default)]
struct PipelineArguments {
    #[serde(deserialize_with = "read::positive")]
    batch_size: usize,
    device: Backend,
    #[serde(deserialize_with = "ordinal")]
    device_id: i32,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Backend {
    Cpu,
    Gpu,
}

impl Default for PipelineArguments {
    fn default() -> Self {
        Self { batch_size: 1, device: Backend::Cpu, device_id: 0 }
    }
}

fn ordinal<'de, D: serde::Deserializer<'de>>(value: D) -> Result<i32, D::Error> {
    let found = i64::deserialize(value)?;
    let ordinal = i32::try_from(found).ok().filter(|&v| v >= 0);
    ordinal.ok_or_else(|| read::wrong_value("the number of a CUDA device", found))
}

/// The arguments that decide the number of outputs.
const OF_OUTPUTS: [&str; 5] = ["arrays", "offsets", "stack_arrays", "return_mask", "return_index"];

/// The arguments that are lengths in units with `scale_by`, and the names of the fields for these.
const LENGTHS: [(&str, &str); 3] =
    [("window", "window in units"), ("step", "step in units"), ("overlap", "overlap in units")];

/// Default number of concurrent requests to remote stores. It fills 10 Gbit/s with requests of a megabyte that take 100
/// ms.
const DEFAULT_CONCURRENCY: usize = 128;

impl Default for Spec {
    fn default() -> Self {
        Self {
            source: SourceArguments::default(),
            samples: SampleArguments::default(),
            values: ValueArguments::default(),
            order: OrderArguments::default(),
            resources: ResourceArguments::default(),
            batch_size: 1,
            device: Device::Cpu,
        }
    }
}

/// Whether `scale_by` is given, whatever its value.
fn has_scales(arguments: &serde_json::Map<String, serde_json::Value>) -> bool {
    arguments.get("scale_by").is_some_and(|by| !by.is_null() && by != "")
}

/// Returns the number of CPU cores for this process. Processes that torchrun starts on one machine share it: each takes
/// at most its part of the cores, unless it is bound to its own cores.
pub fn cores() -> usize {
    let available = std::thread::available_parallelism().map_or(4, usize::from);
    let processes = local_processes();
    if processes <= 1 {
        return available;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    share(available, listed(allowed), listed(&online), processes)
}

/// Returns the number of cores for one of `processes` processes, at least 1. `online` is the machine's number of cores,
/// `allowed` the number that this process may run on. `available` is the number that it can use, which is smaller than
/// `allowed` if a container limits CPU time.
fn share(available: usize, allowed: usize, online: usize, processes: usize) -> usize {
    // All processes share a limit on CPU time.
    let common = if available < allowed { available } else { online.max(available) };
    available.min(common / processes.max(1)).max(1)
}

/// Counts the numbers in a list in the kernel's form, such as `0-3,8`.
fn listed(list: &str) -> usize {
    let count = |range: &str| {
        let (first, last) = range.trim().split_once('-').unwrap_or((range.trim(), range.trim()));
        last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.split(',').filter_map(count).fold(0, usize::saturating_add)
}

impl Spec {
    /// Reads a JSON object in UTF-8. Its keys are the operator's arguments, which are the fields of this type's groups. Relative
    /// paths become absolute.
    ///
    /// # Errors
    /// Of kind `Value` for text that isn't JSON, an unknown argument, or an invalid value. Of kind `Type` for a value
    /// of the wrong type.
    pub fn from_json(text: impl AsRef<[u8]>) -> Result<Self> {
        let mut spec = Self::of_arguments(read::object(text.as_ref())?)?;
        spec.source.check()?;
        spec.make_absolute();
        Ok(spec)
    }

    fn of_arguments(mut arguments: serde_json::Map<String, serde_json::Value>) -> Result<Self> {
        let is_scaled = has_scales(&arguments);
        for (name, length) in LENGTHS {
            if arguments.contains_key(length) {
                return Err(Error::value(format!("there is no argument {length:?}")));
            }
            if is_scaled && let Some(value) = arguments.remove(name) {
                arguments.insert(length.to_owned(), value);
            }
        }
        let all = &mut arguments;
        let (source, samples, values) = (read::group(all)?, read::group(all)?, read::group(all)?);
        let (order, resources) = (read::group(all)?, read::group(all)?);
        let PipelineArguments { batch_size, device, device_id } = read::group(all)?;
        let device = match device {
            Backend::Cpu => Device::Cpu,
            Backend::Gpu => Device::Gpu(device_id),
        };
        match arguments.keys().next() {
            Some(name) => Err(Error::value(format!("there is no argument {name:?}"))),
            None => Ok(Self { source, samples, values, order, resources, batch_size, device }),
        }
    }

    /// Returns the spec after `change` was applied to it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Returns the number of threads that read local stores, or that drive the requests if all stores are remote.
    pub fn io_threads(&self) -> usize {
        let given = self.resources.io_threads;
        // Requests wait without a thread. These threads only copy the bodies of answers.
        if self.is_remote() { given.unwrap_or_else(|| cores().clamp(1, 8)).max(1) } else { self.copying_threads() }
    }

    /// Returns the number of threads that read local stores, or that copy chunks from caches.
    pub fn copying_threads(&self) -> usize {
        self.resources.io_threads.unwrap_or_else(|| cores().clamp(4, 16)).max(1)
    }

    /// Returns the largest number of concurrent requests to remote stores.
    pub fn io_concurrency(&self) -> usize {
        self.resources.io_concurrency.unwrap_or(DEFAULT_CONCURRENCY)
    }

    /// Returns the largest number of concurrent reads.
    pub fn reads_at_a_time(&self) -> usize {
        if self.is_remote() { self.io_concurrency() } else { self.io_threads() }
    }

    /// Whether all stores are remote.
    fn is_remote(&self) -> bool {
        let paths = &self.source.locations();
        !paths.is_empty() && paths.iter().all(|p| store::is_remote(p))
    }

    /// Returns the number of outputs of a reader with the arguments in a JSON object: the arrays for each offset, the
    /// mask (one for each array with `scale_by`) and the index. It needs no store, and ignores errors in arguments that don't matter for the number.
    ///
    /// # Errors
    /// Those of [`Self::from_json`], for the arguments that matter.
    pub fn num_outputs(text: impl AsRef<[u8]>) -> Result<usize> {
        let mut arguments = read::object(text.as_ref())?;
        let is_scaled = has_scales(&arguments);
        arguments.retain(|name, _| OF_OUTPUTS.contains(&name.as_str()));
        let Self { source, samples, .. } = Self::of_arguments(arguments)?;
        let arrays = source.arrays.len().max(1);
        let per_offset = if samples.stack_arrays { 1 } else { arrays };
        let masks = if is_scaled { arrays } else { 1 };
        let others = usize::from(samples.return_mask) * masks + usize::from(samples.return_index);
        Ok(per_offset * samples.offsets.len().max(1) + others)
    }
}
