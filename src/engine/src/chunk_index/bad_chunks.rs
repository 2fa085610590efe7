//! The bad chunks of a reader that goes on without them (`on_bad_chunk`): those whose bytes can't be decoded, and all chunks of
//! a shard whose index is damaged.
//!
//! A reader remembers the chunks that it has found bad, and doesn't read them again. If it replaces samples, each sample that
//! needs a bad chunk gives its place to the next one that needs none: in the reader's own order the next one of its epoch and
//! shard, after the last one the first one; in a caller's order the next one of its batch. So which samples come depends on the
//! order and on the data only, not on what was found when: a restored reader goes on with the same samples, and all shards have
//! as many batches as without bad chunks.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{ChunkIndex, Location, Plan, ShardId, Sources};
use crate::stats::{BadChunk, Stats};
use dali_zarr_base::error::{Code, Error, Result, Site};
use dali_zarr_base::first_log::warn_once;
use dali_zarr_samples::order::{Order, Sample};
use dali_zarr_samples::plan::{ChunkId, ChunkMap};
use dali_zarr_samples::spec::OnBadChunk;

/// Most bad chunks and shards that are remembered, listed and logged: some tens of MiB.
const MOST: usize = 1 << 17;

/// Most samples that are looked at to replace one: some seconds.
const MOST_LOOKED_AT: usize = 1 << 20;

/// The bad chunks of a reader.
#[derive(Debug, Default)]
pub(crate) struct BadChunks {
    how: OnBadChunk,
    /// Whether any was found.
    any: AtomicBool,
    found: Mutex<Found>,
    /// Names samples, made when a batch is planned again.
    sources: OnceLock<Sources>,
}

#[derive(Debug, Default)]
struct Found {
    chunks: ChunkMap<()>,
    shards: HashSet<ShardId>,
    /// The reader's own order, once it has begun. `None`: the order is the caller's.
    order: Option<Order>,
    runs: Runs,
}

impl BadChunks {
    /// Makes an empty list.
    pub fn new(how: OnBadChunk) -> Self {
        Self { how, ..Self::default() }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether samples that need bad chunks are replaced.
    pub fn replaces(&self) -> bool {
        self.how == OnBadChunk::Skip
    }

    /// Whether a chunk with this error is a bad one, without which the reader goes on.
    pub fn tolerates(&self, error: &Error) -> bool {
        self.how != OnBadChunk::Error && error.code() == Code::Damaged
    }

    /// Says in which order samples come, if it is the reader's own.
    pub fn begins(&self, order: &Order) {
        if self.replaces() {
            self.found().order = Some(order.clone());
        }
    }

    /// Whether a chunk at this place is known to be bad.
    pub fn contains(&self, id: ChunkId, location: Location) -> bool {
        self.any.load(Ordering::Relaxed) && {
            let found = self.found();
            let in_shard = matches!(location, Location::Shard(shard, _) if found.shards.contains(&shard));
            in_shard || found.chunks.contains_key(&id)
        }
    }

    /// Remembers a chunk, or with `shard` a whole shard, as bad. What is new is counted, listed and logged.
    ///
    /// # Errors
    /// If samples are replaced, and more are bad than can be remembered.
    pub fn add(
        &self,
        chunk_index: &ChunkIndex,
        stats: &Stats,
        id: ChunkId,
        shard: Option<ShardId>,
        error: &Error,
    ) -> Result<()> {
        let mut found = self.found();
        if found.chunks.len() + found.shards.len() >= MOST {
            Stats::add(&stats.chunks_bad, u64::from(!found.is_bad(chunk_index, id)));
            return if self.replaces() && !found.is_bad(chunk_index, id) {
                Err(Error::damaged(format!(
                    "on_bad_chunk=\"skip\": expected at most {MOST} bad chunks, but found more; write the data again, or use \
                     on_bad_chunk=\"nan\""
                ))
                .at(chunk_index.site(id)))
            } else {
                Ok(())
            };
        }
        let is_new = match shard {
            Some(shard) => found.shards.insert(shard),
            None => found.chunks.insert(id, ()).is_none(),
        };
        drop(found);
        self.any.store(true, Ordering::Relaxed);
        if is_new {
            let site =
                if shard.is_some() { Site { inner_chunk: None, ..chunk_index.site(id) } } else { chunk_index.site(id) };
            let bad = BadChunk::new(site, error);
            let then = match self.how {
                OnBadChunk::Skip => "samples that need it are replaced by the next ones",
                _ => "its elements become NaN, or fill values where the output has no NaN",
            };
            warn_once(format!("{}; {then} (on_bad_chunk=\"{}\")", bad.message(), self.how.name()));
            Stats::add(&stats.chunks_bad, 1);
            stats.list_bad(bad);
        }
        Ok(())
    }

    /// Returns the samples of a batch of which these were asked for, the first of them being number `first` of the reader's own
    /// order: other samples take the places of those that need bad chunks. `None` if none does.
    ///
    /// # Errors
    /// If there is no sample to take the place of one.
    pub fn replaced(&self, chunk_index: &ChunkIndex, first: u64, asked: &[Sample]) -> Result<Option<Vec<Sample>>> {
        if !self.replaces() || !self.any.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let found = &mut *self.found();
        let is_bad: Vec<bool> = asked.iter().map(|&sample| found.is_needed(chunk_index, sample)).collect();
        if !is_bad.contains(&true) {
            return Ok(None);
        }
        let mut order = found.order.take();
        let mut replace = |at: usize| {
            if !is_bad[at] {
                return Ok(asked[at]);
            }
            if let Some(order) = &mut order {
                return found.next_of_epoch(chunk_index, order, first + at as u64);
            }
            let next = (at + 1..asked.len()).chain(0..at).find(|&other| !is_bad[other]);
            next.map(|other| asked[other]).ok_or_else(|| {
                Error::damaged(
                    "on_bad_chunk=\"skip\": expected a sample without bad chunks among those that were asked for as one batch, but \
                     found none; ask for larger batches, or use on_bad_chunk=\"nan\"",
                )
            })
        };
        let samples = (0..asked.len()).map(&mut replace).collect::<Result<_>>();
        found.order = order;
        samples.map(Some)
    }

    /// Plans a batch again, with other samples.
    pub fn plan(&self, chunk_index: &ChunkIndex, samples: Vec<Sample>) -> Plan {
        let mut plan = chunk_index.plan(&samples);
        let sources = self.sources.get_or_init(|| Sources::new(chunk_index));
        plan.batch.names = sources.names(&plan.batch.index, samples.len());
        Plan { samples, ..plan }
    }
}

impl Found {
    fn is_bad(&self, chunk_index: &ChunkIndex, id: ChunkId) -> bool {
        let in_shard = || chunk_index.shard_of(id).is_some_and(|shard| self.shards.contains(&shard));
        self.chunks.contains_key(&id) || !self.shards.is_empty() && in_shard()
    }

    /// Whether a sample needs a bad chunk.
    fn is_needed(&self, chunk_index: &ChunkIndex, sample: Sample) -> bool {
        chunk_index.planner.chunks_of_samples(&[sample]).into_iter().any(|id| self.is_bad(chunk_index, id))
    }

    /// Returns the sample that takes the place of number `k` of the reader's own order, which needs a bad chunk.
    fn next_of_epoch(&mut self, chunk_index: &ChunkIndex, order: &mut Order, k: u64) -> Result<Sample> {
        let epoch = order.locate(k).0;
        let first = first_of(order, epoch, k);
        let (mut at, mut looked_at) = (self.runs.end(k).unwrap_or(k + 1), 0);
        let mut begin = k;
        // From the end of the epoch it goes on at its beginning.
        let mut turned = false;
        loop {
            if !turned && order.locate(at).0 != epoch {
                self.runs.add(begin..at);
                (turned, begin, at) = (true, first, self.runs.end(first).unwrap_or(first));
            }
            if turned && at >= k || looked_at == MOST_LOOKED_AT {
                return Err(Error::damaged(format!(
                    "on_bad_chunk=\"skip\": expected a sample without bad chunks {}, but found none; write the data again, or use \
                     on_bad_chunk=\"nan\"",
                    if looked_at == MOST_LOOKED_AT { "among the next 1048576" } else { "in the epoch" }
                )));
            }
            let sample = order.sample(at);
            if !self.is_needed(chunk_index, sample) {
                if at > begin {
                    self.runs.add(begin..at);
                }
                return Ok(sample);
            }
            (at, looked_at) = (at + 1, looked_at + 1);
        }
    }
}

/// Returns the number of the first sample of the epoch that sample `k` belongs to.
fn first_of(order: &Order, epoch: u64, k: u64) -> u64 {
    let (mut from, mut to) = (0, k);
    while from < to {
        let middle = from + (to - from) / 2;
        if order.locate(middle).0 < epoch { from = middle + 1 } else { to = middle }
    }
    from
}

/// Runs of samples of the reader's own order that all need bad chunks: the last ones that were found. So a long run is looked
/// at once, and not for each of its samples.
#[derive(Debug, Default)]
struct Runs(Vec<Range<u64>>);

impl Runs {
    /// Most runs that are kept.
    const MOST: usize = 8;

    /// Returns the end of the run that sample `k` is in.
    fn end(&self, k: u64) -> Option<u64> {
        self.0.iter().find(|run| run.contains(&k)).map(|run| run.end)
    }

    fn add(&mut self, mut run: Range<u64>) {
        self.0.retain(|other| {
            let joins = other.start <= run.end && run.start <= other.end;
            if joins {
                run = run.start.min(other.start)..run.end.max(other.end);
            }
            !joins
        });
        self.0.truncate(Self::MOST - 1);
        self.0.insert(0, run);
    }
}
