//! The memory for chunks. A range is taken before a chunk is read, and released when nobody uses its bytes any more.

use super::Block;
use super::chunks::Chunk;
use crate::memory::{Span, arena};

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
    staging: Block,
    /// `None`: decoded chunks lie in `staging`.
    slots: Option<Block>,
    gds_buffer: Option<Block>,
}

impl ChunkMemory {
    pub fn new(staging: Block, slots: Option<Block>, gds_buffer: Option<Block>) -> Self {
        Self { staging, slots, gds_buffer }
    }

    fn block(&self, kind: MemoryKind) -> Option<&Block> {
        match kind {
            MemoryKind::Staging => Some(&self.staging),
            MemoryKind::Slots => Some(self.slots.as_ref().unwrap_or(&self.staging)),
            MemoryKind::GdsBuffer => self.gds_buffer.as_ref(),
        }
    }

    fn block_mut(&mut self, kind: MemoryKind) -> Option<&mut Block> {
        match kind {
            MemoryKind::Staging => Some(&mut self.staging),
            MemoryKind::Slots => Some(self.slots.as_mut().unwrap_or(&mut self.staging)),
            MemoryKind::GdsBuffer => self.gds_buffer.as_mut(),
        }
    }

    /// Takes a range of at least `bytes`. `None` if no free range is long enough now.
    pub fn take(&mut self, kind: MemoryKind, bytes: usize) -> Option<arena::Range> {
        self.block_mut(kind)?.arena.take(bytes)
    }

    /// Gives a range back.
    pub fn release(&mut self, kind: MemoryKind, range: arena::Range) {
        if let Some(block) = self.block_mut(kind) {
            block.arena.release(range);
        }
    }

    /// Keeps the first `bytes` bytes of a range, and gives the rest back. Returns the range that is kept.
    pub fn shrink(&mut self, kind: MemoryKind, range: arena::Range, bytes: usize) -> arena::Range {
        self.block_mut(kind).map_or(range, |block| block.arena.shrink(range, bytes))
    }

    /// Gives back the memory that was reserved for the decoded bytes of a chunk.
    pub fn release_decoded(&mut self, chunk: &mut Chunk) {
        chunk.output_span = None;
        self.release_slot(chunk);
        self.release_host_decoded(chunk);
    }

    /// Gives a chunk's slot back, if it has one.
    pub fn release_slot(&mut self, chunk: &mut Chunk) {
        if let Some(slot) = chunk.slot.take() {
            self.release(MemoryKind::Slots, slot);
        }
    }

    /// Gives back the host memory in which the CPU decoded a chunk for the GPU, if the chunk has any.
    pub fn release_host_decoded(&mut self, chunk: &mut Chunk) {
        if let Some(host_decoded) = chunk.host_decoded.take() {
            self.release(MemoryKind::Staging, host_decoded);
        }
    }

    /// Returns the address of a range's first byte.
    pub fn address(&self, kind: MemoryKind, range: arena::Range) -> u64 {
        self.block(kind).map_or(0, |block| block.base + range.offset as u64)
    }

    /// Returns the first `len` bytes of a range.
    pub fn span(&self, kind: MemoryKind, range: arena::Range, len: usize) -> Span {
        Span { address: self.address(kind, range), len }
    }

    /// Returns all bytes of this kind, used and free. 0 if there is no such block.
    pub fn capacity(&self, kind: MemoryKind) -> usize {
        self.block(kind).map_or(0, |block| block.arena.capacity())
    }

    /// Returns the free bytes of this kind, perhaps in several ranges.
    pub fn available(&self, kind: MemoryKind) -> usize {
        self.block(kind).map_or(0, |block| block.arena.available())
    }

    /// Whether decoded chunks have a block of their own.
    pub fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Joins all free ranges with their neighbours. Otherwise a recently released range in the middle would be used
    /// again for a small request, and split the memory that one read needs.
    pub fn join_free(&mut self) {
        let blocks = [Some(&mut self.staging), self.slots.as_mut(), self.gds_buffer.as_mut()];
        blocks.into_iter().flatten().for_each(|block| block.arena.join_all());
    }

    /// Whether the memory that was short is free now, perhaps in several ranges.
    pub fn has_room(&self, MemoryShortage { staging, slots, .. }: MemoryShortage) -> bool {
        let available = self.staging.arena.available();
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
    use crate::memory::arena::Arena;

    fn block(bytes: usize, base: u64) -> Block {
        Block { arena: Arena::new(bytes), base }
    }

    #[test]
    fn without_slots_decoded_chunks_lie_in_staging() {
        let mut memory = ChunkMemory::new(block(1024, 4096), None, None);
        let range = memory.take(MemoryKind::Slots, 300).unwrap();
        assert_eq!((range.len, memory.available(MemoryKind::Staging)), (512, 512));
        assert_eq!(memory.span(MemoryKind::Slots, range, 300), Span { address: 4096, len: 300 });
        assert!(memory.take(MemoryKind::GdsBuffer, 1).is_none() && memory.capacity(MemoryKind::GdsBuffer) == 0);
        let shortage = MemoryShortage { staging: 256, slots: 512, kind: MemoryKind::Staging, batch: 0 };
        assert!(!memory.has_room(shortage) && memory.eviction_frees(MemoryKind::Staging));
        memory.release(MemoryKind::Slots, range);
        assert!(memory.has_room(shortage));
    }

    #[test]
    fn each_kind_has_its_block() {
        let mut memory = ChunkMemory::new(block(512, 1 << 20), Some(block(512, 2 << 20)), Some(block(256, 3 << 20)));
        for (kind, base, bytes) in
            [(MemoryKind::Staging, 1, 512), (MemoryKind::Slots, 2, 512), (MemoryKind::GdsBuffer, 3, 256)]
        {
            let range = memory.take(kind, bytes).unwrap();
            assert_eq!((memory.address(kind, range), memory.available(kind)), (base << 20, 0));
            assert!(memory.take(kind, 1).is_none());
            let range = memory.shrink(kind, range, 1);
            assert_eq!(memory.available(kind), bytes - 256);
            memory.release(kind, range);
            assert_eq!(memory.available(kind), bytes);
        }
        assert!(!memory.eviction_frees(MemoryKind::Staging) && memory.eviction_frees(MemoryKind::Slots));
    }
}
