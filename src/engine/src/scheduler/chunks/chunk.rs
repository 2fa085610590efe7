//! One chunk: its state, the batches that need it, and the memory that it has. Each change is a method, which asserts
//! that it is possible now.

use std::mem::offset_of;

use dali_zarr_kernels::Layout;
use smallvec::SmallVec;

use super::place::{DecodedMemory, OutputPart};
use super::state::ChunkState;
use crate::chunk_index::{ChunkInfo, Location};
use crate::messages::Payload;
use dali_zarr_base::memory::{Lease, arena};
use dali_zarr_samples::plan::ChunkId;

/// The use of a batch that is not planned yet, but will need the chunk.
const FORESEEN: u32 = u32::MAX;

/// A chunk that a planned batch needs.
///
/// Many thousands of chunks are in the table, and most of the scheduler's time is waiting for their memory. So the fields
/// lie in the order of use, in groups of one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(in crate::scheduler) struct Chunk {
    info: ChunkInfo,
    state: ChunkState,

    /// Its place in the queue among the chunks of one batch.
    order: u64,
    /// Uses that have not been served, in order: the batch, and the use in the batch's plan. The last one may be
    /// [`FORESEEN`].
    users: SmallVec<[(u64, u32); 1]>,
    /// Encoded bytes, if they are more than is usually reserved ([`crate::scheduler::oversized`]).
    oversized: Option<usize>,
    /// Number of tasks and waves that use its memory.
    pins: u32,
    /// Whether it was read since it was added to the table. If it is read again, it had not been kept.
    read: bool,
    /// Whether it must be read alone, because a merged read with it failed.
    unmerged: bool,
    /// Whether a decode thread decodes it now although the GPU could.
    is_shared: bool,
    /// Whether it was read again because its bytes couldn't be decoded.
    retried: bool,

    /// Device memory for its decoded bytes, if batches are delivered to a GPU.
    slot: Option<arena::Range>,
    /// Its bytes in host memory. They are encoded, unless the CPU has decoded the chunk for a GPU. `None` while a
    /// decode thread or a lane has them.
    payload: Option<Payload>,

    id: ChunkId,
    /// Batches that the current task or wave serves.
    serving: SmallVec<[u64; 2]>,
    /// The order of its decoded bytes in memory, once it is decoded.
    layout: Layout,

    /// Host memory for its decoded bytes, if the CPU decodes it. While a read or a decode thread writes there, it has
    /// the lease, and this is `None`.
    decoded: Option<Lease>,
    /// The part of an output to which it goes. In host memory `decoded` is a lease of it; otherwise `decoded` is one of
    /// staging.
    output: Option<OutputPart>,
}

const _: () = assert!(
    offset_of!(Chunk, order) == 64
        && offset_of!(Chunk, slot) == 128
        && offset_of!(Chunk, id) == 192
        && offset_of!(Chunk, decoded) == 256
        && size_of::<Chunk>() == 320,
    "a group of fields is not one cache line"
);

impl Chunk {
    /// Makes a wanted chunk with this place in the queue.
    pub fn new(id: ChunkId, info: ChunkInfo, order: u64) -> Self {
        Self {
            info,
            state: ChunkState::Wanted,
            order,
            users: SmallVec::new(),
            oversized: None,
            pins: 0,
            read: false,
            unmerged: false,
            is_shared: false,
            retried: false,
            slot: None,
            payload: None,
            id,
            serving: SmallVec::new(),
            layout: Layout::NONE,
            decoded: None,
            output: None,
        }
    }

    /// Makes another chunk of one that has left the table, as [`Self::new`] does.
    pub fn renew(&mut self, id: ChunkId, info: ChunkInfo, order: u64) {
        debug_assert!(matches!(self.state, ChunkState::Gone), "still in the table: {self:?}");
        (self.id, self.info, self.state, self.order) = (id, info, ChunkState::Wanted, order);
        (self.read, self.unmerged, self.is_shared, self.retried, self.oversized) = (false, false, false, false, None);
        self.layout = Layout::NONE;
        self.serving.clear();
    }

    pub fn id(&self) -> ChunkId {
        self.id
    }

    /// Returns where the chunk lies and how it is decoded.
    pub fn info(&self) -> ChunkInfo {
        self.info
    }

    /// Records where it lies. Before, this was unknown.
    pub fn set_location(&mut self, location: Location) {
        debug_assert!(matches!(self.info.location, Location::Unread(_)), "its location is known: {self:?}");
        self.info.location = location;
    }

    /// Returns its place in the queue among the chunks of one batch.
    pub fn order(&self) -> u64 {
        self.order
    }

    /// Gives it another place in the queue.
    pub fn set_order(&mut self, order: u64) {
        self.order = order;
    }

    // ---- states ----

    pub fn state(&self) -> &ChunkState {
        &self.state
    }

    fn enter(&mut self, next: ChunkState) {
        debug_assert!(self.state.leads_to(&next), "{next:?} can't follow {self:?}");
        self.state = next;
    }

    /// It waits for an index that is being read.
    pub fn await_index(&mut self) {
        self.enter(ChunkState::AwaitsIndex);
    }

    /// Its read begins.
    pub fn fetch(&mut self) {
        self.enter(ChunkState::Fetching);
    }

    /// It waits for a lane.
    pub fn await_lane(&mut self) {
        debug_assert!(self.payload.is_some() && self.pins == 0, "a lane needs the bytes: {self:?}");
        self.enter(ChunkState::Fetched);
    }

    /// A task or wave begins that decodes it.
    pub fn decode(&mut self) {
        self.enter(ChunkState::Decoding);
        self.pins += 1;
    }

    /// The reading thread has copied it to its slot.
    pub fn uploaded(&mut self) {
        debug_assert!(self.slot.is_some(), "nowhere to be copied to: {self:?}");
        self.layout = Layout::NONE;
        self.enter(ChunkState::Ready);
    }

    /// It is decoded, with its bytes in this order. Returns its encoded bytes.
    pub fn decoded_as(&mut self, layout: Layout) -> Option<Payload> {
        debug_assert!(self.has_decoded(), "decoded to nowhere: {self:?}");
        self.layout = layout;
        self.serving.clear();
        self.enter(ChunkState::Ready);
        self.payload.take()
    }

    /// It is missing, bad or failed. Its memory must have been given back.
    pub fn resolve(&mut self, state: ChunkState) {
        debug_assert!(
            matches!(state, ChunkState::Missing | ChunkState::Bad | ChunkState::Failed(_)),
            "resolved as {state:?}"
        );
        debug_assert!(!self.has_decoded() && self.payload.is_none(), "a chunk without bytes has memory: {self:?}");
        self.enter(state);
    }

    /// It is to be read, perhaps again. Its memory must have been given back.
    pub fn want(&mut self) {
        debug_assert!(!self.has_decoded() && self.payload.is_none() && self.pins == 0, "wanted, but in use: {self:?}");
        self.enter(ChunkState::Wanted);
    }

    /// It leaves the table. Its memory must have been given back.
    pub fn leave(&mut self) {
        debug_assert!(
            !self.has_decoded()
                && self.output.is_none()
                && self.payload.is_none()
                && self.pins == 0
                && self.users.is_empty(),
            "removed, but in use: {self:?}"
        );
        self.order = 0;
        self.enter(ChunkState::Gone);
    }

    // ---- how it is read and decoded ----

    /// Records that it was read. Returns whether it was read before, since it was added to the table.
    pub fn mark_read(&mut self) -> bool {
        std::mem::replace(&mut self.read, true)
    }

    /// Returns its encoded bytes, if they are known to be more than is usually reserved.
    pub fn oversized(&self) -> Option<usize> {
        self.oversized
    }

    /// Records that it has more encoded bytes than were reserved. Returns what was known before.
    pub fn set_oversized(&mut self, bytes: usize) -> Option<usize> {
        self.oversized.replace(bytes)
    }

    /// Whether it must be read alone.
    pub fn is_unmerged(&self) -> bool {
        self.unmerged
    }

    /// Records that a merged read with it failed: it must be read alone.
    pub fn unmerge(&mut self) {
        self.unmerged = true;
    }

    /// Records that its bytes can't be decoded. Whether it may be read once more.
    pub fn retries(&mut self) -> bool {
        !std::mem::replace(&mut self.retried, true)
    }

    /// Lets a decode thread decode it to `to`, although the GPU could.
    pub fn share(&mut self, to: Lease) {
        debug_assert!(matches!(self.state, ChunkState::Fetched), "shared too late: {self:?}");
        self.is_shared = true;
        self.return_decoded(to);
    }

    /// Records that a decode thread is done with it. Returns whether it decoded in the GPU's place.
    pub fn end_sharing(&mut self) -> bool {
        std::mem::take(&mut self.is_shared)
    }

    // ---- users ----

    /// Adds a use of a planned batch.
    pub fn need(&mut self, batch: u64, chunk_use: u32) {
        debug_assert!(self.users.last().is_none_or(|last| *last < (batch, chunk_use)), "users come in order");
        self.users.push((batch, chunk_use));
    }

    /// Adds a use of a batch before others: a batch that is planned again, or a use that was served in vain.
    pub fn need_before(&mut self, batch: u64, chunk_use: u32) {
        let at = self.users.partition_point(|user| *user < (batch, chunk_use));
        debug_assert!(self.users.get(at) != Some(&(batch, chunk_use)), "a use is needed once");
        self.users.insert(at, (batch, chunk_use));
    }

    /// Removes the use of this batch, and returns its number in the batch's plan.
    pub fn take_use_of(&mut self, batch: u64) -> Option<u32> {
        let at = self.users.iter().position(|user| user.0 == batch && user.1 != FORESEEN)?;
        Some(self.users.remove(at).1)
    }

    /// Records that this batch, which is not planned yet, will need it.
    pub fn foresee(&mut self, batch: u64) {
        self.need(batch, FORESEEN);
    }

    /// Forgets the batch that was foreseen, and returns its number.
    pub fn take_foreseen(&mut self) -> Option<u64> {
        let &(batch, _) = self.users.last().filter(|user| user.1 == FORESEEN)?;
        self.users.pop();
        Some(batch)
    }

    /// Whether no planned batch needs it, but one that is foreseen.
    pub fn is_only_foreseen(&self) -> bool {
        matches!(self.users[..], [(_, FORESEEN)])
    }

    /// Returns the uses that have not been served, in order: the batch, and the use in the batch's plan. The last one may
    /// be that of a batch that is only foreseen.
    pub fn users(&self) -> &[(u64, u32)] {
        &self.users
    }

    /// Whether it was read since it was added to the table.
    pub fn is_read(&self) -> bool {
        self.read
    }

    /// Returns the first batch that needs it.
    pub fn first_batch(&self) -> Option<u64> {
        self.users.first().map(|&(batch, _)| batch)
    }

    /// Returns the number of uses of planned batches before `end`.
    pub fn uses_before(&self, end: u64) -> usize {
        self.users.iter().take_while(|&&(batch, chunk_use)| batch < end && chunk_use != FORESEEN).count()
    }

    /// Removes the first `n` uses, which are served or have failed.
    pub fn remove_uses(&mut self, n: usize) {
        self.users.drain(..n);
    }

    /// Records that the current task or wave serves a batch.
    pub fn serves(&mut self, batch: u64) {
        self.serving.push(batch);
    }

    /// Takes the batches that the task or wave serves in which it failed.
    pub fn take_serving(&mut self) -> SmallVec<[u64; 2]> {
        std::mem::take(&mut self.serving)
    }

    // ---- pins ----

    /// Whether a task or wave uses its memory.
    pub fn is_pinned(&self) -> bool {
        self.pins > 0
    }

    /// Jobs that need no decoding will read it. They can't fail, so nobody needs to know which batches they serve.
    pub fn pin(&mut self) {
        debug_assert!(self.state.is_resolved(), "nothing to read yet: {self:?}");
        self.serving.clear();
        self.pins += 1;
    }

    /// A task or wave that used its memory has ended.
    pub fn unpin(&mut self) {
        debug_assert!(self.pins > 0, "not pinned: {self:?}");
        self.pins -= 1;
    }

    // ---- memory ----

    /// Whether memory is reserved for its decoded bytes, and no thread has it.
    pub fn has_decoded(&self) -> bool {
        self.slot.is_some() || self.decoded.is_some() || self.is_placed()
    }

    /// Whether its decoded bytes go to an output on the device.
    fn is_placed(&self) -> bool {
        self.output.is_some_and(|part| part.on_device().is_some())
    }

    /// Gives it memory for its decoded bytes.
    pub fn reserve(&mut self, memory: DecodedMemory) {
        debug_assert!(!self.has_decoded() && self.output.is_none(), "it has memory: {self:?}");
        let DecodedMemory { host, output, slot } = memory;
        (self.decoded, self.output, self.slot) = (host, output, slot);
    }

    /// Lets it go to this part of an output on the device. Returns its slot, which it needs no more.
    pub fn place(&mut self, part: OutputPart) -> Option<arena::Range> {
        debug_assert!(self.output.is_none() && part.on_device().is_some(), "it has a place: {self:?}");
        self.output = Some(part);
        self.slot.take()
    }

    /// Takes all memory for its decoded bytes away. No thread may have it.
    pub fn release(&mut self) -> DecodedMemory {
        DecodedMemory { host: self.decoded.take(), output: self.output.take(), slot: self.slot.take() }
    }

    /// Lends its host memory for decoded bytes to a thread.
    pub fn lend_decoded(&mut self) -> Option<Lease> {
        self.decoded.take()
    }

    /// Takes its host memory for decoded bytes back from a thread.
    pub fn return_decoded(&mut self, lease: Lease) {
        debug_assert!(self.decoded.is_none(), "it has host memory: {self:?}");
        self.decoded = Some(lease);
    }

    /// Returns its host memory for decoded bytes, unless a thread has it.
    pub fn decoded(&self) -> Option<&Lease> {
        self.decoded.as_ref()
    }

    /// Returns its device memory for decoded bytes.
    pub fn slot(&self) -> Option<&arena::Range> {
        self.slot.as_ref()
    }

    /// Returns the part of an output to which it is decoded or copied.
    pub fn output(&self) -> Option<OutputPart> {
        self.output
    }

    /// Returns the order of its decoded bytes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Forgets the order of its decoded bytes: it is decoded again.
    pub fn reset_layout(&mut self) {
        self.layout = Layout::NONE;
    }

    /// Returns its bytes in host memory, unless a thread has them.
    pub fn payload(&self) -> Option<&Payload> {
        self.payload.as_ref()
    }

    /// Gives it its bytes in host memory. `None`: it has none, because it was read to its place.
    pub fn set_payload(&mut self, payload: Option<Payload>) {
        debug_assert!(self.payload.is_none(), "it has bytes: {self:?}");
        self.payload = payload;
    }

    /// Takes its bytes in host memory.
    pub fn take_payload(&mut self) -> Option<Payload> {
        self.payload.take()
    }
}
