//! What the user asked for, as plain values. There is one file for each group of arguments, as the documentation groups them. Names
//! and meanings are the operator's arguments, and the JSON object that [`Spec::from_json`] reads has them side by side.
//! Nothing here touches storage, a clock or a device.

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

use crate::error::{Error, Result};
use crate::store;

pub use by_name::{ChannelDims, PerDim, PerOutput};
pub(crate) use order::DEFAULT_SEED;
pub use order::{DEFAULT_INITIAL_FILL, OrderArguments};
pub use resources::{DecodeDevice, Io, ResourceArguments};
pub use samples::{Concat, OutOfBounds, Region, SampleArguments};
pub use segments::{Breaks, Segments};
pub use source::{ArrayArgument, DimKey, Pick, SourceArguments, is_location};
pub use values::ValueArguments;

/// Everything that the reader is told.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What is read.
    pub source: SourceArguments,
    /// How samples are cut.
    pub samples: SampleArguments,
    /// What values the outputs have.
    pub values: ValueArguments,
    /// In which order samples come.
    pub order: OrderArguments,
    /// With which means chunks are read, kept and decoded.
    pub resources: ResourceArguments,
    /// Samples per batch.
    pub batch_size: usize,
    /// Where batches are delivered.
    pub device: Device,
}

/// Where the finished batches are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Host memory.
    Cpu,
    /// The CUDA device with this ordinal.
    Gpu(i32),
}

/// What DALI's pipelines give, and not the user of an operator.
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

/// The arguments that decide how many outputs there are.
const OF_OUTPUTS: [&str; 5] = ["arrays", "offsets", "stack_arrays", "return_mask", "return_index"];

/// Requests to remote stores at a time: what 10 Gbit/s take at 100 ms an answer and a megabyte a request.
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

/// Processors that there are for this process. Processes that torchrun starts on one machine share it: each takes no more
/// than its part, unless it is bound to processors of its own.
pub(crate) fn cores() -> usize {
    let available = std::thread::available_parallelism().map_or(4, usize::from);
    let processes = std::env::var("LOCAL_WORLD_SIZE").ok().and_then(|n| n.parse().ok());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    share(available, listed(allowed), listed(&online), processes.unwrap_or(1))
}

/// The processors that one of so many processes takes: of those `online` it is `allowed` to run on some, and so much time of them
/// is `available`.
fn share(available: usize, allowed: usize, online: usize, processes: usize) -> usize {
    // A limit on time is one for all processes.
    let common = if available < allowed { available } else { online.max(available) };
    available.min(common / processes.max(1)).max(1)
}

/// How many numbers a list has, as the kernel writes it: `0-3,8`.
fn listed(list: &str) -> usize {
    let count = |range: &str| {
        let (first, last) = range.trim().split_once('-').unwrap_or((range.trim(), range.trim()));
        last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.split(',').filter_map(count).fold(0, usize::saturating_add)
}

impl Spec {
    /// Reads a JSON object in UTF-8 whose keys are the operator's arguments. The C ABI's header says what is allowed.
    ///
    /// # Errors
    /// Of kind `Value` for text that isn't JSON, a key that is no argument, or a value that makes no sense. Of kind `Type` for a
    /// value of the wrong type.
    pub fn from_json(text: impl AsRef<[u8]>) -> Result<Self> {
        let spec = Self::of_arguments(read::object(text.as_ref())?)?;
        spec.source.check()?;
        Ok(spec)
    }

    fn of_arguments(mut arguments: serde_json::Map<String, serde_json::Value>) -> Result<Self> {
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

    /// The same with changes.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Threads that read local stores, or drive the requests to remote ones.
    pub fn io_threads(&self) -> usize {
        let given = self.resources.io_threads;
        // A request waits without a thread; copying bodies is all that they do.
        if self.is_remote() { given.unwrap_or(cores().clamp(1, 8)).max(1) } else { self.copying_threads() }
    }

    /// Threads that read local stores, or copy what caches have of any.
    pub fn copying_threads(&self) -> usize {
        self.resources.io_threads.unwrap_or(cores().clamp(4, 16)).max(1)
    }

    /// Requests to remote stores under way at a time.
    pub fn io_concurrency(&self) -> usize {
        self.resources.io_concurrency.unwrap_or(DEFAULT_CONCURRENCY)
    }

    /// Reads under way at a time.
    pub fn reads_at_a_time(&self) -> usize {
        if self.is_remote() { self.io_concurrency() } else { self.io_threads() }
    }

    /// Whether all stores are remote.
    fn is_remote(&self) -> bool {
        let paths = &self.source.locations();
        !paths.is_empty() && paths.iter().all(|p| store::is_remote(p))
    }

    /// The number of outputs of a reader with the arguments in a JSON object: groups of arrays, one group per offset, the
    /// mask and the index. It is known without opening a store, and also if other arguments are wrong.
    ///
    /// # Errors
    /// As [`Self::from_json`], for the arguments that count.
    pub fn num_outputs(text: impl AsRef<[u8]>) -> Result<usize> {
        let mut arguments = read::object(text.as_ref())?;
        arguments.retain(|name, _| OF_OUTPUTS.contains(&name.as_str()));
        let Self { source, samples, .. } = Self::of_arguments(arguments)?;
        let per_offset = if samples.stack_arrays { 1 } else { source.arrays.len().max(1) };
        let others = usize::from(samples.return_mask) + usize::from(samples.return_index);
        Ok(per_offset * samples.offsets.len().max(1) + others)
    }
}
