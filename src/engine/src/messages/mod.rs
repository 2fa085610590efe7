//! What the scheduler hands to other threads, and what it hears of them. Addresses are valid until the matching [`Event`] arrives.
//!
//! ```text
//! planner ─ plans ─> scheduler ─ reads ──> io: threads for local stores, tasks for remote ones ──┐
//!                      ^  │ ───── tasks ─> cpu: decode, and assemble what is delivered there ────┤
//!                      │  └────── waves ─> gpu: copy, decode and assemble, in lanes ─────────────┤
//!                      └─────────────────────────── events ──────────────────────────────────────┘
//! ```
//!
//! The traits ([`Fetch`], [`Decode`], [`Lanes`]) are what the scheduler knows of those who do the work.

mod read;
mod task;
mod wave;
mod workers;

pub(crate) use read::{Fetch, GdsTarget, GroupId, Read, ReadRange};
pub(crate) use task::{Assembly, Decode, Item, Outcome, Served, Task};
pub(crate) use wave::{Content, Lanes, Storage, Upload, Wave, WaveChunk, WaveDone, WaveLimits};
pub(crate) use workers::{Workers, spawn};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;

use crate::assemble::Ops;
use crate::batch::DeviceBuffers;
use crate::cache::Cache;
use crate::chunk_index::{ChunkIndex, Plan, ShardId, ShardIndex};
use crate::error::{Error, Result};
use crate::stats::Stats;

/// Names a chunk in the scheduler's table; used again once the chunk is gone.
pub(crate) type Handle = u32;

/// What happened elsewhere.
pub(crate) enum Event {
    /// The planner planned the next batch.
    Planned(Box<Plan>),
    /// A read ended: bytes read, or `None` if there is no such key. More bytes than there was room for: nothing was read, and the
    /// value has so many.
    Fetched(GroupId, Result<Option<usize>>),
    /// A read with uploads is over, and its memory is being copied to the device. [`Event::Uploaded`] will follow.
    Uploading,
    /// Its uploads ended. Otherwise as [`Event::Fetched`], which doesn't come for such a read.
    Uploaded(GroupId, Result<Option<usize>>),
    /// A shard's index was read; `None` if there is no such shard.
    Index(ShardId, Result<Option<Arc<ShardIndex>>>),
    /// A task of the decode threads ended.
    Decoded(Vec<Outcome>, Vec<Served>, Vec<Handle>),
    /// A lane has copied what it needs of these groups: so many chunks of each.
    Copied(Vec<(GroupId, u32)>),
    /// A lane finished a wave.
    Wave(WaveDone),
    /// The host lent device memory.
    Lent(DeviceBuffers),
    /// The host took a batch.
    Taken,
    /// A thread died.
    Died(Error),
    /// The reader is being dropped.
    Stop,
}

/// Shared by the threads that work for one reader.
#[derive(Clone)]
pub(crate) struct Shared {
    pub chunk_index: Arc<ChunkIndex>,
    pub ops: Arc<Ops>,
    pub stats: Arc<Stats>,
    pub cache: Option<Arc<Cache>>,
    pub events: Sender<Event>,
    /// Set when the reader is dropped: work that is still queued is skipped.
    pub stop: Arc<AtomicBool>,
}

impl Shared {
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
