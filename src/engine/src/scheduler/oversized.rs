//! Chunks with more encoded bytes than usual encoders write: with skippable frames, empty members or gaps. They are
//! rare, so no memory is reserved for them in advance. When a value's size or a shard's index shows one, it is read
//! again with enough memory.

use super::Scheduler;
use super::chunks::ChunkState;
use super::memory::MemoryKind;
use crate::messages::Handle;
use dali_zarr_base::error::{Code, Error, Result};
use dali_zarr_base::memory::arena::rounded;

impl Scheduler {
    /// Handles a value of `bytes` bytes that was not read, because less memory was reserved. Queues the chunk again, or
    /// fails it if memory can't hold it.
    pub(super) fn oversized(&mut self, handle: Handle, bytes: usize) {
        self.release_decoded(handle);
        let allowed = match self.chunks[handle].set_oversized(bytes) {
            None => self.holds(handle, bytes as u64),
            // The value changes while it is read. Another try could find it longer still, without end.
            Some(before) => Err(Error::coded(
                Code::Replaced,
                format!(
                    "expected {before} bytes, as it had before, but found {bytes}; it was replaced while it was read"
                ),
            )
            .at(self.shared.chunk_index.site(self.chunks[handle].id()))),
        };
        match allowed {
            Ok(()) => self.requeue(handle),
            Err(e) => self.resolve(handle, ChunkState::Failed(e)),
        }
    }

    /// Checks that a chunk may have `encoded` encoded bytes, and that they fit in memory when nothing else is there.
    ///
    /// # Errors
    /// If the chunk can't have this size, or memory is too small. In the second case the error names a limit that is
    /// enough.
    pub(super) fn holds(&self, handle: Handle, encoded: u64) -> Result<()> {
        let chunk_index = &self.shared.chunk_index;
        let (id, decoded) = (self.chunks[handle].id(), self.chunks[handle].info().decoded);
        let most = chunk_index.part(id).format.max_encoded_bytes(decoded);
        let site = || chunk_index.site(id);
        let encoded = match usize::try_from(encoded) {
            Ok(encoded) if encoded <= most => encoded,
            _ => {
                return Err(Error::damaged(format!(
                    "expected at most {most} encoded bytes for {decoded} decoded ones, but found {encoded}; the chunk is damaged"
                ))
                .at(site()));
            }
        };
        // On the CPU the decoded chunk lies in the same block, unless it is decoded to an output.
        let beside = if !self.on_gpu() || self.decodes_on_host(handle) { rounded(decoded) } else { 0 };
        let capacity = self.memory.capacity(MemoryKind::Staging);
        let needed = rounded(encoded).saturating_add(beside);
        if needed <= capacity {
            return Ok(());
        }
        Err(Error::runtime(format!(
            "expected at most {} encoded bytes for {decoded} decoded ones, for which there is memory, but found {encoded}; give a \
             host_memory_limit of {} or more, unless the chunk is damaged",
            capacity.saturating_sub(beside),
            self.rules.limit_finder.limit_for(needed)
        ))
        .at(site()))
    }
}
