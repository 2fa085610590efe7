//! The reads under way, and the memory that each holds until no chunk needs its bytes any more.
//!
//! While a read is under way, it has the lease of its destination. Afterwards the lease is here, shared by the chunks
//! of the read: each has its [`Payload`].

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::memory::ChunkMemory;
use crate::messages::{Handle, Payload, ReadId, ReadObject};
use dali_zarr_base::memory::{Lease, SharedLease, arena};
use dali_zarr_samples::plan::IdHasher;

/// While there is time, the limit on local reads is divided by this.
const RELAXED_READS_DIVISOR: usize = 4;

/// A chunk of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadChunk {
    pub handle: Handle,
    /// The offset of its first byte among the bytes of the read.
    pub offset: usize,
    /// The number of its bytes. `None`: all bytes of the read.
    pub len: Option<usize>,
}

impl ReadChunk {
    /// The only chunk of a read, which has all its bytes.
    pub fn whole(handle: Handle) -> Self {
        Self { handle, offset: 0, len: None }
    }
}

/// A read that is under way, or whose bytes are still in use.
#[derive(Debug)]
pub(super) struct ReadState {
    /// Whether the bytes are read to the memory for the decoded bytes of its only chunk.
    pub in_place: bool,
    /// Device memory to which GPUDirect Storage reads. `None`: it is not used, or reads to slots.
    pub gds_buffer: Option<arena::Range>,
    pub chunks: Vec<ReadChunk>,
    /// Whether it is a request to a remote store.
    pub remote: bool,
    pub object: ReadObject,
    /// The bytes that were read. `None` while the read is under way.
    bytes: Option<SharedLease>,
}

impl ReadState {
    /// A read of these chunks.
    pub fn new(chunks: Vec<ReadChunk>, remote: bool) -> Self {
        Self { in_place: false, gds_buffer: None, chunks, remote, object: ReadObject::default(), bytes: None }
    }
}

/// The reads of chunks. Reads of shard indexes are counted by [`super::shard_indexes::Shards`]: they hold none of the
/// memory for chunks.
pub(super) struct Reads {
    states: HashMap<ReadId, ReadState, BuildHasherDefault<IdHasher>>,
    next: ReadId,
    /// Most reads under way at a time: of local stores, and of remote stores.
    limits: [usize; 2],
    in_flight: [usize; 2],
    /// Number of reads that have ended and whose bytes the reading thread is copying to the device.
    uploads: usize,
}

impl Reads {
    /// Makes an empty list. `limits` are the most reads at a time: of local stores, and of remote stores.
    pub fn new(limits: [usize; 2]) -> Self {
        Self { states: HashMap::default(), next: 0, limits, in_flight: [0; 2], uploads: 0 }
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
    pub fn begin(&mut self, read: ReadState) -> ReadId {
        self.in_flight[usize::from(read.remote)] += 1;
        self.insert(read)
    }

    /// Holds memory that one chunk needs and that was filled by something other than a read.
    pub fn hold(&mut self, lease: Lease) -> Payload {
        let mut bytes = lease.share();
        let all = bytes.part(0, bytes.len());
        let read = self.insert(ReadState { bytes: Some(bytes), ..ReadState::new(Vec::new(), false) });
        Payload { read, bytes: all }
    }

    fn insert(&mut self, read: ReadState) -> ReadId {
        self.next += 1;
        self.states.insert(self.next, read);
        self.next
    }

    /// Records that a read ended, and that nothing is copied to the device.
    pub fn ended(&mut self, id: ReadId) {
        let remote = self.states.get(&id).is_some_and(|read| read.remote);
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

    /// Takes the chunks of a read that has ended. Also returns whether it was read in place.
    pub fn take_chunks(&mut self, id: ReadId) -> Option<(Vec<ReadChunk>, bool)> {
        let read = self.states.get_mut(&id)?;
        Some((std::mem::take(&mut read.chunks), read.in_place))
    }

    /// Removes a read that has ended, and of which no bytes are kept.
    pub fn forget(&mut self, id: ReadId, memory: &mut ChunkMemory) {
        if let Some(range) = self.states.remove(&id).and_then(|read| read.gds_buffer) {
            memory.release_gds_buffer(range);
        }
    }

    /// Keeps the bytes that a read brought, until all parts of `bytes` have come back. The rest of its memory was given
    /// back. If no part was handed out, gives all of it back.
    pub fn keep(&mut self, id: ReadId, bytes: SharedLease, memory: &mut ChunkMemory) {
        let Some(read) = self.states.get_mut(&id) else { return };
        read.gds_buffer = read.gds_buffer.take().map(|range| memory.shorten_gds_buffer(range, bytes.len()));
        let whole = bytes.is_whole();
        read.bytes = Some(bytes);
        if whole {
            self.remove(id, memory);
        }
    }

    /// Takes back what a chunk had of a read. With the last chunk, the read's memory is given back.
    pub fn release(&mut self, payload: Payload, memory: &mut ChunkMemory) {
        let Payload { read: id, bytes } = payload;
        let Some(of) = self.states.get_mut(&id).and_then(|read| read.bytes.as_mut()) else { return };
        of.give_back(bytes);
        if of.is_whole() {
            self.remove(id, memory);
        }
    }

    /// Removes a read whose bytes nobody has, and gives its memory back.
    fn remove(&mut self, id: ReadId, memory: &mut ChunkMemory) {
        let Some(read) = self.states.remove(&id) else { return };
        read.bytes.into_iter().for_each(|bytes| memory.give_back(bytes.into_lease()));
        read.gds_buffer.into_iter().for_each(|range| memory.release_gds_buffer(range));
    }

    /// Returns the address from which a lane copies a part of a read's bytes: in the GDS buffer on the device, if they
    /// were read there, or in host memory.
    pub fn source(&self, payload: &Payload, memory: &ChunkMemory) -> u64 {
        let in_gds_buffer = self
            .states
            .get(&payload.read)
            .and_then(|read| Some(memory.gds_address(read.gds_buffer.as_ref()?) + payload.bytes.offset() as u64));
        in_gds_buffer.unwrap_or_else(|| payload.bytes.address())
    }

    /// Returns a read that is under way, or whose bytes are still in use.
    pub fn get(&self, id: ReadId) -> Option<&ReadState> {
        self.states.get(&id)
    }

    /// All reads that are under way, or whose bytes are still in use.
    pub fn iter(&self) -> impl Iterator<Item = &ReadState> {
        self.states.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::DeviceArena;
    use crate::scheduler::memory::MemoryKind;
    use dali_zarr_base::memory::arena::Arena;
    use dali_zarr_base::memory::{HostArena, HostBlock};

    fn memory(gds_buffer: Option<DeviceArena>) -> ChunkMemory {
        ChunkMemory::new(HostArena::new(HostBlock::invented(1 << 20, 4096)), None, gds_buffer)
    }

    #[test]
    fn the_last_chunk_gives_the_memory_back() {
        let mut memory = memory(None);
        let mut reads = Reads::new([2, 1]);
        let to = memory.take_staging(4096).unwrap();
        let id = reads
            .begin(ReadState::new(vec![ReadChunk::whole(7), ReadChunk { offset: 512, ..ReadChunk::whole(8) }], true));
        assert!(!reads.may_begin(true, false) && reads.may_begin(false, false) && reads.in_flight() == 1);
        reads.ended(id);
        let (chunks, in_place) = reads.take_chunks(id).unwrap();
        assert_eq!((chunks.len(), in_place, reads.in_flight()), (2, false, 0));
        let mut bytes = memory.shorten(to, 1000).share();
        let payloads = [(0, 512), (512, 488)].map(|(at, len)| Payload { read: id, bytes: bytes.part(at, len) });
        reads.keep(id, bytes, &mut memory);
        assert_eq!(memory.available(MemoryKind::Staging), 3072);
        assert_eq!(reads.source(&payloads[1], &memory), (1 << 20) + 512);
        for (payload, available) in payloads.into_iter().zip([3072, 4096]) {
            reads.release(payload, &mut memory);
            assert_eq!(memory.available(MemoryKind::Staging), available);
        }
        assert_eq!(reads.iter().count(), 0);
    }

    #[test]
    fn what_no_chunk_needs_is_given_back_at_once() {
        let mut memory = memory(Some(DeviceArena { arena: Arena::new(4096), base: 1 << 30 }));
        let mut reads = Reads::new([2, 1]);
        for keeps in [true, false] {
            let to = memory.take_staging(4096).unwrap();
            let mut read = ReadState::new(vec![ReadChunk::whole(7)], false);
            read.gds_buffer = memory.take_gds_buffer(4096);
            let id = reads.begin(read);
            reads.ended(id);
            match keeps {
                true => reads.keep(id, to.share(), &mut memory),
                false => {
                    memory.give_back(to);
                    reads.forget(id, &mut memory);
                }
            }
            let free = [MemoryKind::Staging, MemoryKind::GdsBuffer].map(|kind| memory.available(kind));
            assert_eq!((free, reads.iter().count()), ([4096; 2], 0));
        }
    }

    #[test]
    fn lanes_copy_from_the_gds_buffer_what_was_read_there() {
        let mut memory = memory(Some(DeviceArena { arena: Arena::new(4096), base: 1 << 30 }));
        let mut reads = Reads::new([2, 1]);
        let mut read = ReadState::new(vec![ReadChunk::whole(7)], false);
        read.gds_buffer = memory.take_gds_buffer(2048);
        let id = reads.begin(read);
        let mut bytes = memory.take_staging(1000).unwrap().share();
        let payload = Payload { read: id, bytes: bytes.part(600, 400) };
        reads.keep(id, bytes, &mut memory);
        assert_eq!(memory.available(MemoryKind::GdsBuffer), 3072, "only 1000 bytes were read");
        assert_eq!(reads.source(&payload, &memory), (1 << 30) + 600);
        let held = reads.hold(memory.take_staging(100).unwrap());
        assert_eq!(reads.source(&held, &memory), held.bytes.address());
        [payload, held].into_iter().for_each(|payload| reads.release(payload, &mut memory));
        let free = [MemoryKind::Staging, MemoryKind::GdsBuffer].map(|kind| memory.available(kind));
        assert_eq!((free, reads.iter().count()), ([4096; 2], 0));
    }

    #[test]
    fn with_time_a_quarter_of_the_local_reads_goes_on() {
        let mut reads = Reads::new([6, 1]);
        for expected in [true, true, false] {
            assert_eq!((reads.may_begin(false, true), reads.may_begin(false, false)), (expected, true));
            reads.begin(ReadState::new(vec![ReadChunk::whole(0)], false));
        }
        assert!(reads.may_begin(true, true), "requests keep no thread busy");
    }

    #[test]
    fn a_copy_follows_its_read() {
        let mut reads = Reads::new([1, 0]);
        reads.begin(ReadState::new(vec![ReadChunk::whole(0)], false));
        assert!(!reads.may_begin(false, false));
        reads.uploading();
        assert!(reads.may_begin(false, false), "the thread reads the next chunk");
        assert_eq!((reads.in_flight(), reads.uploads()), (1, 1));
        reads.uploaded();
        assert_eq!((reads.in_flight(), reads.uploads()), (0, 0));
    }
}
