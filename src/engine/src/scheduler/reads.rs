//! The reads under way, and the memory that each holds until no chunk needs its bytes any more.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use super::memory::{ChunkMemory, MemoryKind};
use crate::memory::{Span, arena};
use crate::messages::{GroupId, Handle};
use crate::plan::IdHasher;

/// While there is time, the limit on local reads is divided by this.
const RELAXED_READS_DIVISOR: usize = 4;

/// A chunk of a read: its handle, the offset of its bytes in the read, the number of its bytes (`None`: all bytes of
/// the read).
pub(super) type Member = (Handle, usize, Option<usize>);

/// A read that is under way, or whose bytes are still in use.
#[derive(Debug)]
pub(super) struct Group {
    /// The staging memory that was reserved for it. `None`: it was read to its final place.
    pub staging: Option<arena::Range>,
    /// Device memory to which GPUDirect Storage reads. `None`: it is not used, or reads to slots.
    pub gds_buffer: Option<arena::Range>,
    pub chunks: Vec<Member>,
    pub to: Span,
    /// Whether it is a request to a remote store.
    pub remote: bool,
    /// The version that the object must have. `None`: any.
    pub version: Option<Arc<str>>,
    /// How many chunks still need the memory.
    remaining: u32,
}

impl Group {
    /// A read of these chunks to `to`.
    pub fn new(chunks: Vec<Member>, to: Span, remote: bool) -> Self {
        Self { staging: None, gds_buffer: None, remaining: chunks.len() as u32, chunks, to, remote, version: None }
    }
}

/// The reads of chunks. Reads of shard indexes are counted by [`super::shard_indexes::Shards`]: they hold none of the
/// memory for chunks.
pub(super) struct Reads {
    groups: HashMap<GroupId, Group, BuildHasherDefault<IdHasher>>,
    next: GroupId,
    /// Most reads under way at a time: of local stores, and of remote stores.
    limits: [usize; 2],
    in_flight: [usize; 2],
    /// Number of reads that have ended and whose bytes the reading thread is copying to the device.
    uploads: usize,
}

impl Reads {
    /// Makes an empty list. `limits` are the most reads at a time: of local stores, and of remote stores.
    pub fn new(limits: [usize; 2]) -> Self {
        Self { groups: HashMap::default(), next: 0, limits, in_flight: [0; 2], uploads: 0 }
    }

    /// Whether another read of a remote (or local) store may begin. If there is `time` (nothing is urgent, see
    /// [`Sharing::has_time`](super::sharing::Sharing::has_time)), few threads read local stores: each thread that is
    /// woken up, and each copy that it starts, delays the thread that launches a model's kernels.
    pub fn may_begin(&self, remote: bool, time: bool) -> bool {
        let limit = self.limits[usize::from(remote)];
        self.in_flight[usize::from(remote)]
            < if time && !remote { limit.div_ceil(RELAXED_READS_DIVISOR) } else { limit }
    }

    /// Records that a read begins. Returns its number.
    pub fn begin(&mut self, group: Group) -> GroupId {
        self.in_flight[usize::from(group.remote)] += 1;
        self.insert(group)
    }

    /// Registers staging memory that one chunk needs and that is filled by something other than a read.
    pub fn hold(&mut self, staging: Option<arena::Range>, to: Span) -> GroupId {
        self.insert(Group { staging, remaining: 1, ..Group::new(Vec::new(), to, false) })
    }

    fn insert(&mut self, group: Group) -> GroupId {
        self.next += 1;
        self.groups.insert(self.next, group);
        self.next
    }

    /// Records that a read ended, and that nothing is copied to the device.
    pub fn ended(&mut self, id: GroupId) {
        let remote = self.groups.get(&id).is_some_and(|g| g.remote);
        self.in_flight[usize::from(remote)] -= 1;
    }

    /// Records that a read ended, and that its bytes are being copied to the device.
    pub fn uploading(&mut self) {
        // Only threads upload, and threads read local stores only.
        self.in_flight[0] -= 1;
        self.uploads += 1;
    }

    /// Records that a copy to the device ended.
    pub fn uploaded(&mut self) {
        self.uploads -= 1;
    }

    /// Returns the number of copies to the device under way.
    pub fn uploads(&self) -> usize {
        self.uploads
    }

    /// Returns the number of reads and copies to the device under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight[0] + self.in_flight[1] + self.uploads
    }

    /// Takes the chunks of a read that has ended, and its destination.
    pub fn take_members(&mut self, id: GroupId) -> Option<(Vec<Member>, Span)> {
        let group = self.groups.get_mut(&id)?;
        Some((std::mem::take(&mut group.chunks), group.to))
    }

    /// Records that a read brought `bytes` bytes, and gives the rest of its memory back.
    pub fn shrink(&mut self, id: GroupId, bytes: usize, memory: &mut ChunkMemory) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        for (kind, range) in [(MemoryKind::Staging, &mut group.staging), (MemoryKind::GdsBuffer, &mut group.gds_buffer)]
        {
            *range = range.map(|range| memory.shrink(kind, range, bytes));
        }
    }

    /// Records that `chunks` more chunks no longer need the bytes of a read. The last one gives the read's memory back.
    pub fn release(&mut self, id: GroupId, chunks: u32, memory: &mut ChunkMemory) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.remaining -= chunks;
        if group.remaining > 0 {
            return;
        }
        if let Some(group) = self.groups.remove(&id) {
            for (kind, range) in [(MemoryKind::Staging, group.staging), (MemoryKind::GdsBuffer, group.gds_buffer)] {
                range.into_iter().for_each(|range| memory.release(kind, range));
            }
        }
    }

    /// Returns the address from which a lane copies a part of a read's bytes: in the GDS buffer on the device, if they
    /// were read there, or in host memory.
    pub fn source(&self, id: GroupId, span: Span, memory: &ChunkMemory) -> u64 {
        let in_gds_buffer = self.groups.get(&id).and_then(|group| {
            let address = memory.address(MemoryKind::GdsBuffer, group.gds_buffer?);
            Some(address + (span.address - group.to.address))
        });
        in_gds_buffer.unwrap_or(span.address)
    }

    /// Returns a read that is under way, or whose bytes are still in use.
    pub fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id)
    }

    /// All reads that are under way, or whose bytes are still in use.
    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::Arena;
    use crate::scheduler::Block;

    #[test]
    fn the_last_chunk_gives_the_memory_back() {
        let mut memory = ChunkMemory::new(Block { arena: Arena::new(4096), base: 1 << 20 }, None, None);
        let mut reads = Reads::new([2, 1]);
        let staging = memory.take(MemoryKind::Staging, 4096);
        let to = memory.span(MemoryKind::Staging, staging.unwrap(), 4096);
        let mut group = Group::new(vec![(7, 0, None), (8, 512, None)], to, true);
        group.staging = staging;
        let id = reads.begin(group);
        assert!(!reads.may_begin(true, false) && reads.may_begin(false, false) && reads.in_flight() == 1);
        reads.ended(id);
        assert_eq!((reads.take_members(id).unwrap().0.len(), reads.in_flight()), (2, 0));
        reads.shrink(id, 1000, &mut memory);
        assert_eq!(memory.available(MemoryKind::Staging), 3072);
        assert_eq!(reads.source(id, to.part(512, 10), &memory), to.address + 512);
        reads.release(id, 1, &mut memory);
        assert_eq!(memory.available(MemoryKind::Staging), 3072);
        reads.release(id, 1, &mut memory);
        assert_eq!((memory.available(MemoryKind::Staging), reads.iter().count()), (4096, 0));
    }

    #[test]
    fn with_time_a_quarter_of_the_local_reads_goes_on() {
        let mut reads = Reads::new([6, 1]);
        for expected in [true, true, false] {
            assert_eq!((reads.may_begin(false, true), reads.may_begin(false, false)), (expected, true));
            reads.begin(Group::new(vec![(0, 0, None)], Span { address: 0, len: 1 }, false));
        }
        assert!(reads.may_begin(true, true), "requests keep no thread busy");
    }

    #[test]
    fn a_copy_follows_its_read() {
        let mut reads = Reads::new([1, 0]);
        reads.begin(Group::new(vec![(0, 0, None)], Span { address: 0, len: 1 }, false));
        assert!(!reads.may_begin(false, false));
        reads.uploading();
        assert!(reads.may_begin(false, false), "the thread reads the next chunk");
        assert_eq!((reads.in_flight(), reads.uploads()), (1, 1));
        reads.uploaded();
        assert_eq!((reads.in_flight(), reads.uploads()), (0, 0));
    }
}
