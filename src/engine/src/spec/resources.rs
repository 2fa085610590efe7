//! With which means chunks are read, kept and decoded.

use std::path::PathBuf;

use serde::Deserialize;

use super::read::{bytes, some_positive};

/// The arguments that say with which means chunks are read, kept and decoded. They change no value that is delivered.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ResourceArguments {
    /// Where chunks are decoded.
    pub decode_device: DecodeDevice,
    /// Batches prepared ahead; `None`: as many as the memory limits allow.
    #[serde(deserialize_with = "some_positive")]
    pub prefetch_queue_depth: Option<usize>,
    /// Bytes of device memory that the reader holds at most; `None`: its default.
    #[serde(deserialize_with = "some_positive")]
    pub device_memory_limit: Option<u64>,
    /// Bytes of host memory that the reader holds at most; `None`: its default.
    #[serde(deserialize_with = "some_positive")]
    pub host_memory_limit: Option<u64>,
    /// Bytes of host memory for encoded chunks that are kept for later epochs, besides `host_memory_limit`; 0: none.
    #[serde(deserialize_with = "bytes")]
    pub cache_size: u64,
    /// A folder on a local disk in which encoded chunks of remote stores are kept for later epochs and readers.
    #[serde(deserialize_with = "folder")]
    pub cache_dir: Option<PathBuf>,
    /// Bytes that the folder may hold; `None`: half of what its disk has free.
    #[serde(deserialize_with = "some_positive")]
    pub cache_dir_size: Option<u64>,
    /// Ask stores, once for each object and reader, whether what `cache_dir` holds of it is still so.
    pub cache_validate: bool,
    /// How chunks of local stores are read.
    pub io: Io,
    /// Read chunks of local stores past the page cache.
    pub use_o_direct: bool,
    /// Threads that read; `None`: by the number of cores.
    #[serde(deserialize_with = "some_positive")]
    pub io_threads: Option<usize>,
    /// Requests to remote stores under way at a time; `None`: 128.
    #[serde(deserialize_with = "some_positive")]
    pub io_concurrency: Option<usize>,
    /// Threads that decode on the CPU; `None`: by the number of cores.
    #[serde(deserialize_with = "some_positive")]
    pub decode_threads: Option<usize>,
}

impl Default for ResourceArguments {
    fn default() -> Self {
        Self {
            decode_device: DecodeDevice::Auto,
            prefetch_queue_depth: None,
            device_memory_limit: None,
            host_memory_limit: None,
            cache_size: 0,
            cache_dir: None,
            cache_dir_size: None,
            cache_validate: true,
            io: Io::Auto,
            use_o_direct: false,
            io_threads: None,
            io_concurrency: None,
            decode_threads: None,
        }
    }
}

/// Where chunks are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodeDevice {
    /// On the GPU what it can decode, the rest on the CPU (said in one log line per array).
    Auto,
    /// On the GPU, or an error that says which codec stands in the way.
    Gpu,
    /// On the CPU.
    Cpu,
}

/// How chunks of local stores are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// By GPUDirect Storage where the machine has it and it was faster in a short trial, else by system calls.
    #[default]
    Auto,
    /// By system calls (`pread`).
    Posix,
    /// By GPUDirect Storage: cuFile reads to the device. An error where it isn't there.
    Gds,
}

/// A folder; empty text: none.
fn folder<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(value)?;
    Ok((!text.is_empty()).then(|| text.into()))
}
