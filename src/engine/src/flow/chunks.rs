//! What the scheduler remembers of a chunk and of a batch.

use std::collections::VecDeque;

use crate::error::Error;
use crate::memory::{HostBuffer, Span, arena};
use crate::plan::BatchPlan;
use crate::reader::DeviceBuffers;

use super::tasks::GroupId;

/// Where a chunk is on its way.
#[derive(Debug)]
pub(super) enum State {
    /// In the queue of wanted chunks.
    Wanted,
    /// Its shard's index is being read.
    AwaitsIndex,
    /// Being read.
    Fetching,
    /// Read (or also decoded by the CPU), waiting for a lane of the GPU.
    Fetched,
    /// In a task or wave.
    Decoding,
    /// Decoded, in its slot.
    Ready,
    /// Not in the store.
    Missing,
    /// It can't be had.
    Failed(Error),
}

/// A chunk that a planned batch needs.
#[derive(Debug)]
pub(super) struct Chunk {
    pub state: State,
    /// Its place in the queue of wanted chunks, among those of one batch.
    pub order: u64,
    /// Batches that haven't been served yet, in order, and the number of the use in the batch's plan.
    pub users: VecDeque<(u64, u32)>,
    /// Batches that the task or wave in progress serves.
    pub serving: Vec<u64>,
    /// Its decoded bytes, unless they go straight to an output.
    pub slot: Option<arena::Range>,
    /// Tasks and waves that use its memory.
    pub pins: u32,
    /// Its encoded bytes, and the read that they came with.
    pub payload: Option<(GroupId, Span)>,
    /// Where its decoded bytes go, if that isn't a slot: part of an output.
    pub direct: Option<Span>,
    /// Decoded by the CPU on behalf of a GPU: page-locked memory.
    pub bounce: Option<arena::Range>,
}

impl Chunk {
    pub fn wanted(order: u64) -> Self {
        Self {
            state: State::Wanted,
            order,
            users: VecDeque::new(),
            serving: Vec::new(),
            slot: None,
            pins: 0,
            payload: None,
            direct: None,
            bounce: None,
        }
    }
}

/// A read in progress, or whose bytes are still in use.
#[derive(Debug)]
pub(super) struct Group {
    /// Memory that it was read to, if reserved for it alone.
    pub staging: Option<arena::Range>,
    /// The chunks in it: id, offset in the read, encoded length (`None`: all that was read).
    pub chunks: Vec<(crate::plan::ChunkId, usize, Option<usize>)>,
    pub to: Span,
    /// Chunks that still need the memory.
    pub remaining: usize,
}

/// A batch that was planned and not delivered yet.
pub(super) struct Planned {
    pub plan: BatchPlan,
    /// Addresses of its outputs; empty until it gets them.
    pub outputs: Vec<u64>,
    pub host: Vec<HostBuffer>,
    pub lent: Option<DeviceBuffers>,
    /// Uses (and pads, and the index) that haven't been served.
    pub remaining: u32,
    pub error: Option<Error>,
}

impl Planned {
    pub fn active(&self) -> bool {
        !self.outputs.is_empty()
    }
}
