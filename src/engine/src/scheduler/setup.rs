//! What a scheduler is made of: its rules, its workers and its memory. All of it is fixed when the reader is opened.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::Finished;
use crate::budget::LimitFinder;
use crate::messages::{Decode, Fetch, Lanes, Shared};
use dali_zarr_base::memory::{Account, HostArena, Pool, arena};

/// The limits and sizes that the scheduler works with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Most reads under way at a time: of local stores, and of remote stores. More local reads than threads would
    /// spread over more memory, and their bytes would leave the CPU's caches. Many remote reads can wait for servers at
    /// the same time.
    pub reads: [usize; 2],
    /// Most batches that may be active, or finished and not taken yet.
    pub max_active: usize,
    /// Batches that are planned beyond the active ones.
    pub lookahead: usize,
    /// Most bytes of shard indexes that are kept.
    pub index_limit: usize,
    /// Bytes of the largest shard index.
    pub largest_index: usize,
    /// Number of jobs (see [`dali_zarr_kernels::Job`]) of a typical batch.
    pub batch_jobs: usize,
    /// Bytes of all decoded chunks that a typical batch needs.
    pub working_set: usize,
    /// In a random order: bytes of all decoded chunks in one shuffle window, or in the epoch.
    pub shuffled: Option<usize>,
    /// Whether the last output is the index of each sample.
    pub index_output: bool,
    /// Most chunks that decode threads may decode at a time in the GPU's place, to leave the GPU to a model that
    /// trains. 0: none.
    pub shared_tasks: usize,
    /// Whether the samples are divided among several shards. Then other processes probably train the same model.
    pub several_shards: bool,
    /// Finds the `host_memory_limit` that would be enough for an oversized chunk.
    pub limit_finder: LimitFinder,
}

impl Rules {
    /// Whether `capacity` bytes are expected to hold a decoded chunk until the batch that comes after so many others.
    pub fn keeps_for(&self, batches: u64, capacity: usize) -> bool {
        let read = batches as f64 * self.working_set as f64;
        // In a random order batches need the same chunks again. The number of different ones approaches all.
        let different = self.shuffled.map_or(read, |all| all as f64 * -(-read / all.max(1) as f64).exp_m1());
        different <= capacity as f64
    }
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
    /// Where memory for more batches is drawn from. `None`: there is enough for all of them.
    pub batches: Option<BatchAccount>,
    /// Owns the memory to which `slots` and `gds_buffer` refer. It is dropped in this order.
    pub owned: Vec<Box<dyn Send>>,
}

/// Memory for batches, of which that of the first ones is reserved.
#[derive(Debug)]
pub(crate) struct BatchAccount {
    /// Where the memory of the other batches is drawn from.
    pub account: Arc<Account>,
    /// Bytes of all outputs of a batch.
    pub bytes: u64,
    /// Number of batches whose memory is reserved.
    pub reserved: usize,
    /// Number of batches whose memory was drawn.
    pub drawn: usize,
}

impl BatchAccount {
    /// Draws memory for one more batch than `batches`. Returns false if there is none.
    pub(super) fn add_to(&mut self, batches: usize) -> bool {
        let is_drawn = batches >= self.reserved + self.drawn;
        if is_drawn && !self.account.draw_batch(self.bytes) {
            return false;
        }
        self.drawn += usize::from(is_drawn);
        true
    }

    /// Gives memory back that `batches` batches don't need.
    pub(super) fn settle(&mut self, batches: usize) {
        while self.drawn > batches.saturating_sub(self.reserved) {
            self.drawn -= 1;
            self.account.give_back_batch(self.bytes);
        }
    }
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
