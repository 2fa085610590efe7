//! Chunks whose bytes can't be decoded, if the reader goes on without them ([`crate::chunk_index::BadChunks`]). Either their
//! jobs write constants, as those of missing chunks. Or the samples that need them are replaced: when all jobs of a batch have
//! run, it is planned again with other samples, to the same outputs.

use std::sync::Arc;

use super::Scheduler;
use super::chunks::ChunkState;
use crate::chunk_index::{Plan, ShardId};
use crate::messages::Handle;
use dali_zarr_base::error::Error;
use dali_zarr_samples::order::Sample;

impl Scheduler {
    /// Whether a chunk is known to be bad, so that it isn't read again.
    pub(super) fn is_known_bad(&self, handle: Handle) -> bool {
        let chunk = &self.chunks[handle];
        self.shared.bad.contains(chunk.id(), chunk.info().location)
    }

    /// Handles a chunk that could not be read or decoded, or the index of whose `shard` is damaged. If the reader goes on without
    /// it, it is bad. Otherwise it has failed. What may have been damaged on the way, or in a cache, is read once more.
    pub(super) fn broken_chunk(&mut self, handle: Handle, error: Error, shard: Option<ShardId>) {
        let (bad, chunk_index) = (Arc::clone(&self.shared.bad), Arc::clone(&self.shared.chunk_index));
        if !bad.tolerates(&error) {
            self.resolve(handle, ChunkState::Failed(error));
            return;
        }
        let chunk = &mut self.chunks[handle];
        let serving = chunk.take_serving();
        self.batches.take_back(chunk, &serving);
        if (self.shared.cache.is_some() || chunk.info().remote) && chunk.retries() {
            let payload = chunk.take_payload();
            self.release_decoded(handle);
            if let Some(payload) = payload {
                self.reads.release(payload, &mut self.memory);
            }
            self.requeue(handle);
            return;
        }
        let id = self.chunks[handle].id();
        let state = match bad.add(&chunk_index, &self.shared.stats, id, shard, &error) {
            Ok(()) => ChunkState::Bad,
            Err(e) => ChunkState::Failed(e),
        };
        self.resolve(handle, state);
    }

    /// Plans the batches again of which samples need bad chunks, and all jobs have run. Returns whether there was one.
    pub(super) fn replace_samples(&mut self) -> bool {
        let mut any = false;
        while self.broken.is_none()
            && let Some((number, asked)) = self.batches.to_be_planned_again()
        {
            any = true;
            let (bad, chunk_index) = (Arc::clone(&self.shared.bad), Arc::clone(&self.shared.chunk_index));
            match bad.replaced(&chunk_index, asked.first, &asked.samples) {
                Ok(samples) => self.plan_again(number, samples.unwrap_or(asked.samples)),
                Err(e) => self.batches.fail_batch(number, &e),
            }
        }
        any
    }

    /// Plans an active batch again, with these samples.
    fn plan_again(&mut self, number: u64, samples: Vec<Sample>) {
        let Plan { batch: plan, chunks, samples, .. } = self.shared.bad.plan(&self.shared.chunk_index, samples);
        let uses = plan.uses.iter().zip(chunks).zip(0..);
        let known: Vec<_> = uses.map(|((u, info), i)| (i, self.chunks.need_again(u.chunk, info, number, i))).collect();
        // It may be read before batches are active that alone needed it until now.
        for &(_, handle) in &known {
            self.batches.know(&self.chunks[handle], handle);
        }
        let uses = self.uses_of(&plan);
        self.batches.plan_again(number, plan, known, uses, samples);
        self.start(number);
    }
}
