//! The running reader: threads that fetch, decode and assemble, and one that decides what goes when.
//!
//! The scheduler ([`scheduler`]) is the only one with state. It hands work with addresses in it to threads that know
//! nothing of each other and hears of the outcome as an [`Event`]:
//!
//! ```text
//! planner ─ plans ─> scheduler ─ reads ──> fetch threads ──┐  (local; remote: tasks of requests)
//!                      ^  │ ───── tasks ─> decode threads ─┤  (CPU: decode and assemble; GPU: what it can't decode)
//!                      │  └────── waves ─> lanes ──────────┤  (GPU: copy, decode, assemble)
//!                      └─────────────── events ────────────┘
//! ```
//!
//! In a [`simulation`] the same scheduler works with nothing behind it.

mod admission;
mod arrival;
mod batches;
pub(crate) mod catalog;
pub(crate) mod chunks;
mod decode;
mod fetch;
mod fetch_pool;
mod launch;
pub(crate) mod longer;
mod merging;
mod pieces;
mod queue;
mod requests;
mod scheduler;
mod shards;
pub mod simulation;
pub mod stats;
pub(crate) mod tasks;
mod threads;
pub(crate) mod wave;
mod workers;

pub(crate) use decode::DecodePool;
pub(crate) use fetch_pool::{FetchPool, reread};
pub(crate) use merging::MERGE_REMOTE;
pub(crate) use scheduler::{Block, Finished, Rules, Scheduler, Setup};

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::plan::{BatchPlan, ChunkId};
use crate::reader::DeviceBuffers;
use chunks::Handle;
use tasks::{GroupId, Served};

/// A planned batch, with what the scheduler would otherwise have to find out for each of its chunks.
pub(crate) struct Plan {
    pub batch: BatchPlan,
    /// Where the chunk of each use lies.
    pub places: Vec<catalog::Place>,
    /// The shards that it needs, each with one of its chunks; some may come twice.
    pub shards: Vec<(shards::ShardId, ChunkId)>,
}

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
    Index(shards::ShardId, Result<Option<Arc<shards::Index>>>),
    /// A task of the decode threads ended.
    Decoded(Vec<tasks::Outcome>, Vec<Served>, Vec<Handle>),
    /// A lane has copied what it needs of these groups: so many chunks of each.
    Copied(Vec<(GroupId, u32)>),
    /// A lane finished a wave.
    Wave(wave::WaveDone),
    /// The host lent device memory.
    Lent(DeviceBuffers),
    /// The host took a batch.
    Taken,
    /// A thread died.
    Died(Error),
    /// The reader is being dropped.
    Stop,
}

/// Spawns a named thread whose panics reach the scheduler as events instead of being lost.
pub(crate) fn spawn(
    name: &str,
    events: crossbeam_channel::Sender<Event>,
    body: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>> {
    let label = name.to_owned();
    std::thread::Builder::new()
        .name(format!("dali-zarr-{name}"))
        .spawn(move || {
            crate::nvtx::name_thread(&format!("dali-zarr-{label}"));
            if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
                let what = crate::error::panic_text(&*panic);
                // The receiver may be gone already: then nobody waits for this thread's work.
                let _ = events.send(Event::Died(Error::runtime(format!("internal error in thread {label}: {what}"))));
            }
        })
        .map_err(|e| Error::runtime(format!("the system refuses to start a thread ({name}): {e}")))
}
