//! What a scheduler is made of: its rules, its workers and its memory. All of it is fixed when the reader is opened.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::Finished;
use crate::budget::LimitFinder;
use crate::memory::{HostArena, Pool, arena};
use crate::messages::{Decode, Fetch, Lanes, Shared};

/// The limits and sizes that the scheduler works with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Most reads under way at a time: of local stores, and of remote stores. More local reads than threads would
    /// spread over more memory, and their bytes would leave the CPU's caches. Many remote reads can wait for servers at
    /// the same time.
    pub reads: [usize; 2],
    /// Most batches that may be active, or finished and not taken yet.
    pub max_active: usize,
    /// Batches that are planned beyond the active ones. Chunks that they need are kept.
    pub lookahead: usize,
    /// Most bytes of shard indexes that are kept.
    pub index_limit: usize,
    /// Bytes of the largest shard index.
    pub largest_index: usize,
    /// Number of jobs (see [`dali_zarr_kernels::Job`]) of a typical batch.
    pub batch_jobs: usize,
    /// Bytes of all decoded chunks that a typical batch needs.
    pub working_set: usize,
    /// With chunk-aware shuffling: bytes of all decoded chunks in one shuffle window.
    pub shuffled: Option<usize>,
    /// Whether a batch becomes active only when the batches after it are planned: samples come in a random order and
    /// share chunks.
    pub waits_for_plans: bool,
    /// Whether the last output is the index of each sample.
    pub index_output: bool,
    /// Most chunks that decode threads may decode at a time in the GPU's place, to leave the GPU to a model that
    /// trains. 0: none.
    pub shared_tasks: usize,
    /// Where trials begin that find the number of these tasks while a model trains, at most `shared_tasks`. `None`: the
    /// number is always `shared_tasks`.
    pub first_shared_tasks: Option<usize>,
    /// Whether the samples are divided among several shards. Then other processes probably train the same model.
    pub several_shards: bool,
    /// Finds the `host_memory_limit` that would be enough for an oversized chunk.
    pub limit_finder: LimitFinder,
}

/// What the scheduler works with: its rules, its workers and its memory.
pub(crate) struct Setup {
    pub shared: Shared,
    pub rules: Rules,
    pub fetch: Box<dyn Fetch>,
    pub decode: Box<dyn Decode>,
    /// `Some` if batches are delivered to a GPU.
    pub lanes: Option<Box<dyn Lanes>>,
    // The workers above use this memory until they are dropped.
    pub memory: ReaderMemory,
    /// Each message asks the planner for one more batch.
    pub plan: Sender<()>,
    pub finished: Sender<Finished>,
}

/// The memory of a reader, reserved.
pub(crate) struct ReaderMemory {
    /// Memory for encoded chunks, in host memory (page-locked for a GPU).
    pub staging: HostArena,
    /// Device memory for decoded chunks, if batches are assembled there. `None`: they are in `staging`.
    pub slots: Option<DeviceArena>,
    /// Device memory for encoded chunks, if GPUDirect Storage reads them.
    pub gds_buffer: Option<DeviceArena>,
    /// Whether GPUDirect Storage reads local files to the device.
    pub gds: bool,
    /// Buffers for outputs, if batches are delivered to the CPU.
    pub pools: Vec<Arc<Pool>>,
    /// Owns the memory to which `slots` and `gds_buffer` refer. It is dropped in this order.
    pub owned: Vec<Box<dyn Send>>,
}

/// A block of device memory for chunks: its allocator, and the address of its first byte.
pub(crate) struct DeviceArena {
    pub arena: arena::Arena,
    pub base: u64,
}

impl DeviceArena {
    /// Returns the device address of a range.
    pub(super) fn address(&self, range: &arena::Range) -> u64 {
        self.base + range.offset() as u64
    }
}
