//! What the user asked for, as plain values. Names and meanings are the operator's arguments;
//! nothing here touches storage, a clock or a device.

use std::path::PathBuf;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::store;

/// Used when the user gives no seed, so that shards in different processes agree.
pub(crate) const DEFAULT_SEED: u64 = 0x5eed;

/// What DALI's readers have.
pub const DEFAULT_INITIAL_FILL: u64 = 1024;

/// Where the finished batches are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Host memory.
    Cpu,
    /// The CUDA device with this ordinal.
    Gpu(i32),
}

/// Where chunks are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeDevice {
    /// On the GPU what it can decode, the rest on the CPU (said in one log line per array).
    Auto,
    /// On the GPU, or an error that says which codec stands in the way.
    Gpu,
    /// On the CPU.
    Cpu,
}

/// How chunks of local stores are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// By GPUDirect Storage where the machine has it and it was faster in a short trial, else by system calls.
    #[default]
    Auto,
    /// By system calls (`pread`).
    Posix,
    /// By GPUDirect Storage: cuFile reads to the device. An error where it isn't there.
    Gds,
}

/// What happens with a window that reaches beyond the region of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfBounds {
    /// An error when the reader is built.
    Error,
    /// Such a window isn't a sample.
    Drop,
    /// The elements outside get the fill value.
    Pad,
}

/// A dimension, named (`dimension_names`, `_ARRAY_DIMENSIONS`) or numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimKey {
    /// By name.
    Name(String),
    /// By position; negative from the end.
    Index(i64),
}

/// Indices to take along one dimension, in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The dimension.
    pub dim: DimKey,
    /// Lists of indices, negative from the end: one for all stores, or one of the same length for each store.
    pub indices: Vec<Vec<i64>>,
}

/// Everything that the reader is told. Vectors that belong to `dims` are empty (the default for every dimension)
/// or have one entry for each.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Stores; several are joined along the first of `dims`.
    pub paths: Vec<String>,
    /// Options of remote stores, names and values; no secrets among them.
    pub storage_options: Vec<(String, String)>,
    /// Names of arrays; empty: the store's only array.
    pub arrays: Vec<String>,
    /// One output of channels instead of one per array.
    pub stack_arrays: bool,
    /// Indices to take.
    pub pick: Vec<Pick>,
    /// The dimensions along which samples are cut; empty: the first dimension of the first array that has most.
    pub dims: Vec<DimKey>,
    /// Elements per sample along each of `dims`; 0 (or `window` empty): one element, and the dimension is dropped.
    pub window: Vec<i64>,
    /// Distance between sample starts; default: the window's length without stride, i.e. 1 for a dropped dimension.
    pub step: Vec<i64>,
    /// Those of `dims` along which a sample's start is drawn anew in each epoch. Their `step` must be 0 or not given.
    pub random_crop: Vec<DimKey>,
    /// Distance between elements inside a sample; default 1.
    pub stride: Vec<i64>,
    /// Along the first of `dims`, one group of outputs for each; empty: `[0]`.
    pub offsets: Vec<i64>,
    /// First element that samples may touch; negative from the end; default 0.
    pub roi_start: Vec<i64>,
    /// One past the last element that samples may touch; negative from the end; default: the dimension's length.
    pub roi_end: Vec<i64>,
    /// Along the first of `dims`: no sample reaches from before one of these elements to it or beyond. Negative from the
    /// end; in any order.
    pub breaks: Vec<i64>,
    /// Whether samples may reach from one store into the next; otherwise their borders are breaks.
    pub cross_stores: bool,
    /// See [`OutOfBounds`]. Beyond a break is out of bounds too.
    pub out_of_bounds_policy: OutOfBounds,
    /// What elements outside the region of interest get, as a value of the output; default: 0.
    pub fill_value: Option<f64>,
    /// Decode `scale_factor`, `add_offset`, `_FillValue`, `missing_value`, `_Unsigned` as xarray does.
    pub mask_and_scale: bool,
    /// The outputs' element type; default: what the decoding yields.
    pub dtype: Option<DType>,
    /// Subtracted: one value, one per array, or one per channel of a stack.
    pub mean: Vec<f64>,
    /// Divided by, after `mean`: one value, one per array, or one per channel of a stack.
    pub stddev: Vec<f64>,
    /// Visit the samples in an order drawn anew for each epoch.
    pub random_shuffle: bool,
    /// Samples among which each is drawn where chunks hold several: whole groups of samples that share chunks are drawn
    /// until there are about so many, and these are shuffled. At least 1.
    pub initial_fill: u64,
    /// The first epoch in order, each later one in an order drawn anew for it, over all shards.
    pub shuffle_after_epoch: bool,
    /// Of the order; the same on every shard.
    pub seed: i64,
    /// Which shard this reader delivers.
    pub shard_id: i64,
    /// How many shards there are.
    pub num_shards: i64,
    /// Stay with `shard_id` instead of moving on to the next shard after each epoch.
    pub stick_to_shard: bool,
    /// Repeat a shard's last sample until its last batch is full and all shards have equally many batches.
    pub pad_last_batch: bool,
    /// Samples per batch.
    pub batch_size: usize,
    /// Batches prepared ahead; `None`: as many as the memory limits allow.
    pub prefetch_queue_depth: Option<usize>,
    /// Where batches are delivered.
    pub device: Device,
    /// Where chunks are decoded.
    pub decode_device: DecodeDevice,
    /// Bytes of device memory that the reader holds at most; `None`: its default.
    pub device_memory_limit: Option<u64>,
    /// Bytes of host memory that the reader holds at most; `None`: its default.
    pub host_memory_limit: Option<u64>,
    /// How chunks of local stores are read.
    pub io: Io,
    /// Read chunks of local stores past the page cache.
    pub use_o_direct: bool,
    /// Threads that read; `None`: by the number of cores.
    pub io_threads: Option<usize>,
    /// Requests to remote stores under way at a time; `None`: 128.
    pub io_concurrency: Option<usize>,
    /// Threads that decode on the CPU; `None`: by the number of cores.
    pub decode_threads: Option<usize>,
    /// Bytes of host memory for encoded chunks that are kept for later epochs, besides `host_memory_limit`; 0: none.
    pub cache_size: u64,
    /// A folder on a local disk in which encoded chunks of remote stores are kept for later epochs and readers.
    pub cache_dir: Option<PathBuf>,
    /// Bytes that the folder may hold; `None`: half of what its disk has free.
    pub cache_dir_size: Option<u64>,
    /// Ask stores, once for each object and reader, whether what `cache_dir` holds of it is still so.
    pub cache_validate: bool,
    /// One more output: the sample's start in each of `dims`, int64.
    pub return_index: bool,
}

/// Requests to remote stores at a time: what 10 Gbit/s take at 100 ms an answer and a megabyte a request.
const DEFAULT_CONCURRENCY: usize = 128;

impl Default for Spec {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            storage_options: Vec::new(),
            arrays: Vec::new(),
            stack_arrays: false,
            pick: Vec::new(),
            dims: Vec::new(),
            window: Vec::new(),
            step: Vec::new(),
            random_crop: Vec::new(),
            stride: Vec::new(),
            offsets: Vec::new(),
            roi_start: Vec::new(),
            roi_end: Vec::new(),
            breaks: Vec::new(),
            cross_stores: true,
            out_of_bounds_policy: OutOfBounds::Drop,
            fill_value: None,
            mask_and_scale: false,
            dtype: None,
            mean: Vec::new(),
            stddev: Vec::new(),
            random_shuffle: false,
            initial_fill: DEFAULT_INITIAL_FILL,
            shuffle_after_epoch: false,
            seed: -1,
            shard_id: 0,
            num_shards: 1,
            stick_to_shard: false,
            pad_last_batch: false,
            batch_size: 1,
            prefetch_queue_depth: None,
            device: Device::Cpu,
            decode_device: DecodeDevice::Auto,
            device_memory_limit: None,
            host_memory_limit: None,
            io: Io::Auto,
            use_o_direct: false,
            io_threads: None,
            io_concurrency: None,
            decode_threads: None,
            cache_size: 0,
            cache_dir: None,
            cache_dir_size: None,
            cache_validate: true,
            return_index: false,
        }
    }
}

impl DimKey {
    /// `"time"` is a name, `"0"` and `"-1"` are numbers.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Index)
    }
}

impl std::fmt::Display for DimKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(n) => write!(f, "\"{n}\""),
            Self::Index(i) => write!(f, "{i}"),
        }
    }
}

impl Pick {
    /// Reads `"level=0,5,-1"`, or with a list for each store `"level=0,5,-1|1,4,0"`.
    ///
    /// # Errors
    /// If it has another form.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::value(format!(
                "pick: expected \"DIMENSION=INDEX,INDEX,…\" with whole numbers, e.g. \"level=0,5,-1\", or such a list for \
                 each store with \"|\" between them, but found {text:?}"
            ))
        };
        let (dim, lists) = text.rsplit_once('=').ok_or_else(wrong)?;
        let list = |list: &str| list.split(',').map(|i| i.trim().parse().map_err(|_| wrong())).collect();
        let indices: Vec<Vec<i64>> = lists.split('|').map(list).collect::<Result<_>>()?;
        Ok(Self { dim: DimKey::parse(dim.trim()), indices })
    }
}

/// The form that [`Pick::parse`] reads.
impl std::fmt::Display for Pick {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |list: &Vec<i64>| list.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let lists = self.indices.iter().map(list).collect::<Vec<_>>().join("|");
        match &self.dim {
            DimKey::Name(name) => write!(f, "{name}={lists}"),
            DimKey::Index(i) => write!(f, "{i}={lists}"),
        }
    }
}

/// Processors that there are for this process.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(4, usize::from)
}

impl Spec {
    /// The seed of whatever is random; it is a fixed one if the user gave none.
    pub fn seed_of_order(&self) -> u64 {
        if self.seed == -1 { DEFAULT_SEED } else { self.seed as u64 }
    }

    /// Threads that read local stores, or drive the requests to remote ones.
    pub fn io_threads(&self) -> usize {
        // A request waits without a thread; copying bodies is all that they do.
        if self.is_remote() { self.io_threads.unwrap_or(cores().clamp(1, 8)).max(1) } else { self.copying_threads() }
    }

    /// Threads that read local stores, or copy what caches have of any.
    pub fn copying_threads(&self) -> usize {
        self.io_threads.unwrap_or(cores().clamp(4, 16)).max(1)
    }

    /// Requests to remote stores under way at a time.
    pub fn io_concurrency(&self) -> usize {
        self.io_concurrency.unwrap_or(DEFAULT_CONCURRENCY)
    }

    /// Reads under way at a time.
    pub fn reads_at_a_time(&self) -> usize {
        if self.is_remote() { self.io_concurrency() } else { self.io_threads() }
    }

    /// Whether all stores are remote.
    fn is_remote(&self) -> bool {
        !self.paths.is_empty() && self.paths.iter().all(|p| store::is_remote(p))
    }

    /// Reads `"NAME=VALUE"` of [`Self::storage_options`].
    ///
    /// # Errors
    /// If there is no name or no value.
    pub fn parse_option(text: &str) -> Result<(String, String)> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
            // The text isn't repeated: it may be a secret.
            _ => Err(Error::value(
                "storage_options: expected \"NAME=VALUE\", but found an entry without a name or \"=\"",
            )),
        }
    }

    /// The number of outputs, known without opening the store: groups of arrays, one group per offset, and the index.
    pub fn num_outputs(&self) -> usize {
        let per_offset = if self.stack_arrays { 1 } else { self.arrays.len().max(1) };
        per_offset * self.offsets.len().max(1) + usize::from(self.return_index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_are_read_and_written() {
        for (text, dim, indices) in [
            ("level=0,5,-1", DimKey::Name("level".into()), vec![vec![0, 5, -1]]),
            ("level=2,5|1,4", DimKey::Name("level".into()), vec![vec![2, 5], vec![1, 4]]),
            ("-1=3|3|-1", DimKey::Index(-1), vec![vec![3], vec![3], vec![-1]]),
            ("a|b=c=7", DimKey::Name("a|b=c".into()), vec![vec![7]]),
        ] {
            let pick = Pick { dim, indices };
            assert_eq!((Pick::parse(text).unwrap(), pick.to_string().as_str()), (pick.clone(), text));
        }
        assert_eq!(Pick::parse(" x = 1 , 2 | 3,4 ").unwrap().to_string(), "x=1,2|3,4");
        for text in
            ["level", "level=", "level=1|", "level=|1", "level=1,|2,3", "level=1.0", "level=1;2", "=", "level=1||2"]
        {
            assert!(Pick::parse(text).unwrap_err().message().contains("pick: expected \"DIMENSION="), "{text}");
        }
    }
}
