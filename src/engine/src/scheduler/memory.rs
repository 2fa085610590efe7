//! The memory for chunks. A range is taken before a chunk is read, and given back when nobody uses its bytes any more.
//! Host memory is leased. Device memory has ranges and addresses, which nobody dereferences here.

use std::sync::Arc;

use super::DeviceArena;
use dali_zarr_base::memory::{Account, HostArena, Lease, arena};

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryKind {
    /// Host memory for encoded chunks, and for chunks that the CPU decodes for a GPU.
    Staging,
    /// Memory for decoded chunks. It is a part of staging if batches are delivered to the CPU.
    Slots,
    /// Device memory for encoded chunks that GPUDirect Storage reads.
    GdsBuffer,
}

/// The memory that the first chunk in the queue needs and could not get.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryShortage {
    /// Bytes of staging that it needs.
    pub staging: usize,
    /// Bytes of slots that it needs.
    pub slots: usize,
    /// The kind that was short.
    pub kind: MemoryKind,
    /// The first batch that needs the chunk.
    pub batch: u64,
}

/// The blocks of memory for chunks.
pub(super) struct ChunkMemory {
    staging: HostArena,
    /// `None`: decoded chunks lie in `staging`.
    slots: Option<DeviceArena>,
    gds_buffer: Option<DeviceArena>,
}

impl ChunkMemory {
    pub fn new(staging: HostArena, slots: Option<DeviceArena>, gds_buffer: Option<DeviceArena>) -> Self {
        Self { staging, slots, gds_buffer }
    }

    /// Leases `bytes` bytes of staging. `None` if no free range is long enough now.
    pub fn take_staging(&mut self, bytes: usize) -> Option<Lease> {
        self.staging.take(bytes)
    }

    /// Takes staging back.
    pub fn give_back(&mut self, staging: Lease) {
        self.staging.give_back(staging);
    }

    /// Keeps the first `bytes` bytes of staging, and frees the rest.
    pub fn shorten(&mut self, staging: Lease, bytes: usize) -> Lease {
        self.staging.shorten(staging, bytes)
    }

    /// Reserves device memory for `bytes` decoded bytes. `None` if no free range is long enough now.
    pub fn take_slot(&mut self, bytes: usize) -> Option<arena::Range> {
        self.slots.as_mut()?.arena.take(bytes)
    }

    /// Takes a slot in device memory back.
    pub fn release_slot(&mut self, slot: arena::Range) {
        if let Some(slots) = &mut self.slots {
            slots.arena.release(slot);
        }
    }

    /// Returns the device address of a slot.
    pub fn slot_address(&self, slot: &arena::Range) -> u64 {
        self.slots.as_ref().map_or(0, |slots| slots.address(slot))
    }

    /// Reserves `bytes` bytes of the GDS buffer. `None` if no free range is long enough now.
    pub fn take_gds_buffer(&mut self, bytes: usize) -> Option<arena::Range> {
        self.gds_buffer.as_mut()?.arena.take(bytes)
    }

    /// Takes a range of the GDS buffer back.
    pub fn release_gds_buffer(&mut self, range: arena::Range) {
        if let Some(block) = &mut self.gds_buffer {
            block.arena.release(range);
        }
    }

    /// Keeps the first `bytes` bytes of a range of the GDS buffer, and frees the rest.
    pub fn shorten_gds_buffer(&mut self, range: arena::Range, bytes: usize) -> arena::Range {
        match &mut self.gds_buffer {
            Some(block) => block.arena.shrink(range, bytes),
            None => range,
        }
    }

    /// Returns the device address of a range of the GDS buffer.
    pub fn gds_address(&self, range: &arena::Range) -> u64 {
        self.gds_buffer.as_ref().map_or(0, |block| block.address(range))
    }

    /// Returns all bytes of this kind, used and free. 0 if there is no such block.
    pub fn capacity(&self, kind: MemoryKind) -> usize {
        match self.device_arena(kind) {
            Some(block) => block.arena.capacity(),
            None if kind == MemoryKind::GdsBuffer => 0,
            None => self.staging.capacity(),
        }
    }

    /// Returns the bytes of this kind that this reader can have: all of its own, and of those that it shares with other
    /// readers what it has drawn or can draw now.
    pub fn usable(&self, kind: MemoryKind) -> usize {
        match self.device_arena(kind) {
            None if kind != MemoryKind::GdsBuffer => self.staging.usable(),
            _ => self.capacity(kind),
        }
    }

    /// Returns the bytes of this kind that were not drawn.
    pub fn withheld(&self, kind: MemoryKind) -> usize {
        match self.device_arena(kind) {
            None if kind != MemoryKind::GdsBuffer => self.staging.withheld(),
            _ => 0,
        }
    }

    /// Draws what this shortage needs, because nothing else can give the reader memory. Returns whether it drew any.
    pub fn must_grow(&mut self, MemoryShortage { staging, slots, .. }: MemoryShortage) -> bool {
        self.staging.must_grow(if self.slots.is_none() { staging.saturating_add(slots) } else { staging })
    }

    /// Gives free host memory back to the account from which it was drawn, of `most` bytes at most.
    pub fn shrink(&mut self, most: u64) {
        self.staging.shrink(most);
    }

    /// Returns the account from which host memory is drawn, if it is shared with other readers.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.staging.account()
    }

    /// Returns the free bytes of this kind, perhaps in several ranges.
    pub fn available(&self, kind: MemoryKind) -> usize {
        match self.device_arena(kind) {
            Some(block) => block.arena.available(),
            None if kind == MemoryKind::GdsBuffer => 0,
            None => self.staging.available(),
        }
    }

    fn device_arena(&self, kind: MemoryKind) -> Option<&DeviceArena> {
        match kind {
            MemoryKind::Staging => None,
            MemoryKind::Slots => self.slots.as_ref(),
            MemoryKind::GdsBuffer => self.gds_buffer.as_ref(),
        }
    }

    /// Whether decoded chunks have a block of their own.
    pub fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Joins all free ranges with their neighbours. Otherwise a recently released range in the middle would be used
    /// again for a small request, and split the memory that one read needs.
    pub fn join_free(&mut self) {
        self.staging.join_all();
        [&mut self.slots, &mut self.gds_buffer].into_iter().flatten().for_each(|block| block.arena.join_all());
    }

    /// Whether the memory that was short is free now, perhaps in several ranges.
    pub fn has_room(&self, MemoryShortage { staging, slots, .. }: MemoryShortage) -> bool {
        let available =
            self.staging.available() + self.staging.usable() - (self.staging.capacity() - self.staging.withheld());
        match &self.slots {
            None => available >= staging.saturating_add(slots),
            Some(block) => available >= staging && block.arena.available() >= slots,
        }
    }

    /// Whether the eviction of a decoded chunk frees memory of this kind.
    pub fn eviction_frees(&self, kind: MemoryKind) -> bool {
        kind == MemoryKind::Slots || self.slots.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dali_zarr_base::memory::HostBlock;
    use dali_zarr_base::memory::arena::Arena;

    fn staging(bytes: usize) -> HostArena {
        HostArena::new(HostBlock::invented(1 << 20, bytes))
    }

    fn device(bytes: usize, base: u64) -> Option<DeviceArena> {
        Some(DeviceArena { arena: Arena::new(bytes), base })
    }

    #[test]
    fn without_slots_decoded_chunks_lie_in_staging() {
        let mut memory = ChunkMemory::new(staging(1024), None, None);
        let lease = memory.take_staging(300).unwrap();
        assert_eq!((memory.available(MemoryKind::Staging), memory.available(MemoryKind::Slots)), (512, 512));
        assert!(
            memory.take_slot(1).is_none()
                && memory.take_gds_buffer(1).is_none()
                && memory.capacity(MemoryKind::GdsBuffer) == 0
        );
        let shortage = MemoryShortage { staging: 256, slots: 512, kind: MemoryKind::Staging, batch: 0 };
        assert!(!memory.has_room(shortage) && memory.eviction_frees(MemoryKind::Staging));
        memory.give_back(lease);
        assert!(memory.has_room(shortage));
    }

    #[test]
    fn each_kind_has_its_block() {
        let mut memory = ChunkMemory::new(staging(512), device(512, 2 << 20), device(256, 3 << 20));
        let available = |memory: &ChunkMemory| {
            [MemoryKind::Staging, MemoryKind::Slots, MemoryKind::GdsBuffer].map(|kind| memory.available(kind))
        };
        assert_eq!(available(&memory), [512, 512, 256]);
        let lease = memory.take_staging(512).unwrap();
        let slot = memory.take_slot(512).unwrap();
        let range = memory.take_gds_buffer(256).unwrap();
        assert_eq!(available(&memory), [0; 3]);
        assert_eq!(
            [lease.address(), memory.slot_address(&slot), memory.gds_address(&range)],
            [1 << 20, 2 << 20, 3 << 20]
        );
        assert!(
            memory.take_staging(1).is_none() && memory.take_slot(1).is_none() && memory.take_gds_buffer(1).is_none()
        );
        let lease = memory.shorten(lease, 1);
        assert_eq!((lease.len(), available(&memory)), (1, [256, 0, 0]));
        let range = memory.shorten_gds_buffer(range, 1);
        memory.give_back(lease);
        memory.release_slot(slot);
        memory.release_gds_buffer(range);
        assert_eq!(available(&memory), [512, 512, 256]);
        assert!(!memory.eviction_frees(MemoryKind::Staging) && memory.eviction_frees(MemoryKind::Slots));
    }
}
