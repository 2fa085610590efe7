//! The messages between the scheduler and other threads: the work that it hands out, and the events that come back.
//!
//! Work owns the memory that it uses: a read has a lease of its destination, a chunk to be decoded has its part of a
//! read and a lease of its output. The event that ends the work brings them back, and only then can the scheduler use
//! the memory again. Device addresses, and the addresses in jobs, are numbers. They are valid until the event arrives.
//!
//! ```text
//! planner ─ plans ─> scheduler ─ reads ──> io: threads for local stores, tasks for remote ones ──┐
//!                      ^  │ ───── tasks ─> cpu: decode, and assemble what is delivered there ────┤
//!                      │  └────── waves ─> gpu: copy, decode and assemble, in lanes ─────────────┤
//!                      └─────────────────────────── events ──────────────────────────────────────┘
//! ```
//!
//! The scheduler knows the workers only by the traits [`Fetch`], [`Decode`] and [`Lanes`].

mod read;
mod task;
mod wave;
mod workers;

pub(crate) use read::{Fetch, GdsTarget, Payload, Read, ReadDone, ReadId, ReadObject, ReadRange, UploadPart};
pub(crate) use task::{Assembly, Decode, Item, ItemDone, Outcome, Served, Task, TaskDone};
pub(crate) use wave::{Content, FilePart, Lanes, Storage, Upload, Wave, WaveChunk, WaveDone, WaveLimits};
pub(crate) use workers::{Workers, spawn};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;

use crate::cache::Cache;
use crate::chunk_index::{BadChunks, ChunkIndex, Plan, ShardId, ShardIndex};
use crate::stats::Stats;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::assemble::Ops;
use dali_zarr_samples::batch::DeviceBuffers;

/// The index of a chunk in the scheduler's table. The index is reused after the chunk was removed.
pub(crate) type Handle = u32;

/// What the scheduler hears: results of the work that it handed out, and calls of the reader's owner.
pub(crate) enum Event {
    /// The planner planned the next batch.
    Planned(Box<Plan>),
    /// A read ended.
    Fetched(ReadDone),
    /// A read with uploads has ended, and its bytes are being copied to the device. [`Event::Uploaded`] follows.
    Uploading,
    /// The uploads of a read ended. It comes in place of [`Event::Fetched`].
    Uploaded(ReadDone),
    /// A shard's index was read; `None` if there is no such shard.
    Index(ShardId, Result<Option<Arc<ShardIndex>>>),
    /// A task of the decode threads ended.
    Decoded(TaskDone),
    /// A lane has copied these bytes of chunks to the device.
    Copied(Vec<Payload>),
    /// A lane finished a wave.
    Wave(WaveDone),
    /// The host program lent device memory.
    Lent(DeviceBuffers),
    /// The consumer took a batch.
    Taken(Take),
    /// Other readers need host memory: give back what can be spared.
    GiveBack,
    /// A thread died.
    Died(Error),
    /// The reader is being dropped.
    Stop,
}

/// How the consumer took a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Take {
    /// How long it waited for the batch; zero if one was finished when it asked.
    pub waited: Duration,
    /// Time since it took the batch before.
    pub interval: Duration,
}

/// What all threads of one reader share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub chunk_index: Arc<ChunkIndex>,
    pub ops: Arc<Ops>,
    pub stats: Arc<Stats>,
    pub cache: Option<Arc<Cache>>,
    pub bad: Arc<BadChunks>,
    pub events: Sender<Event>,
    /// Set when the reader is dropped. Queued work is skipped then.
    pub stop: Arc<AtomicBool>,
}

impl Shared {
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
