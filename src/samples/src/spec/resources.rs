//! The resources for reading, caching and decoding chunks.

use std::path::PathBuf;

use serde::Deserialize;

use super::read::{bytes, positive_or_none};

/// The arguments for the resources that read, cache and decode chunks. They never change delivered values, except
/// `on_bad_chunk`, where chunks are damaged.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ResourceArguments {
    /// The device that decodes chunks.
    pub decode_device: DecodeDevice,
    /// Number of batches prepared ahead. `None`: as many as the memory limits allow.
    #[serde(deserialize_with = "positive_or_none")]
    pub prefetch_queue_depth: Option<usize>,
    /// Limit on the reader's device memory in bytes. `None`: the default limit.
    #[serde(deserialize_with = "positive_or_none")]
    pub device_memory_limit: Option<u64>,
    /// Limit on the reader's host memory in bytes. `None`: the default limit.
    #[serde(deserialize_with = "positive_or_none")]
    pub host_memory_limit: Option<u64>,
    /// Bytes of host memory, in addition to `host_memory_limit`, for a cache of encoded chunks for later epochs. 0: no
    /// cache.
    #[serde(deserialize_with = "bytes")]
    pub cache_size: u64,
    /// A folder on a local disk that caches encoded chunks of remote stores for later epochs and readers.
    #[serde(deserialize_with = "folder")]
    pub cache_dir: Option<PathBuf>,
    /// Limit on the bytes in `cache_dir`. `None`: half of the free bytes of its disk.
    #[serde(deserialize_with = "positive_or_none")]
    pub cache_dir_size: Option<u64>,
    /// Whether to ask the store, once for each object and reader, if the version of the object in `cache_dir` is
    /// current.
    pub cache_validate: bool,
    /// How chunks of local stores are read.
    pub io: Io,
    /// Whether to read chunks of local stores past the page cache.
    pub use_o_direct: bool,
    /// Number of threads that read. `None`: chosen by the number of cores.
    #[serde(deserialize_with = "positive_or_none")]
    pub io_threads: Option<usize>,
    /// Largest number of concurrent requests to remote stores. `None`: 128.
    #[serde(deserialize_with = "positive_or_none")]
    pub io_concurrency: Option<usize>,
    /// Number of threads that decode on the CPU. `None`: chosen by the number of cores.
    #[serde(deserialize_with = "positive_or_none")]
    pub decode_threads: Option<usize>,
    /// What becomes of a chunk whose bytes can't be decoded.
    pub on_bad_chunk: OnBadChunk,
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
            io: Io::Posix,
            use_o_direct: false,
            io_threads: None,
            io_concurrency: None,
            decode_threads: None,
            on_bad_chunk: OnBadChunk::Error,
        }
    }
}

/// The device that decodes chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecodeDevice {
    /// The GPU decodes what it can. The CPU decodes the rest, which is logged in one line for each array.
    Auto,
    /// The GPU. If it can't decode an array, an error names the codec.
    Gpu,
    /// The CPU.
    Cpu,
}

/// What becomes of a chunk whose bytes can't be decoded, or of a shard whose index is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBadChunk {
    /// The batches that need it fail.
    #[default]
    Error,
    /// Its elements are NaN in floating-point outputs. In others they are what those of a missing chunk are.
    Nan,
    /// A sample that needs it is replaced by the next one that needs no such chunk.
    Skip,
}

impl OnBadChunk {
    /// Returns the name that users give.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Nan => "nan",
            Self::Skip => "skip",
        }
    }
}

/// How chunks of local stores are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// By system calls (`pread`).
    #[default]
    Posix,
    /// By GPUDirect Storage: cuFile reads to the device. An error if the machine doesn't have it.
    Gds,
}

/// Reads a folder. `None` for empty text.
fn folder<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(value)?;
    Ok((!text.is_empty()).then(|| text.into()))
}
