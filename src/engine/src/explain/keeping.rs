//! A model of what the scheduler reads and keeps: the same rules, with nothing that takes time.
//!
//! Batches in preparation have memory for their outputs, so a chunk that is decoded serves all of them that need it at once,
//! whatever else there is memory for. It is kept for batches that are planned only, until a chunk that is needed before them
//! needs its memory: then the chunk that is needed last goes, and is read again when its turn comes. Chunks are read one after the other,
//! in the order of need; a real reader has several under way, which are needed by the batches in preparation all the same.

use std::collections::{BTreeSet, VecDeque};

use super::reads::Lookahead;
use crate::memory::arena::rounded;
use crate::plan::{ChunkId, ChunkMap};

/// What one batch does with one chunk.
pub(super) struct Use {
    pub chunk: ChunkId,
    pub bytes: usize,
    /// Whether it can be decoded to its place in the batch.
    pub direct: bool,
}

/// A chunk that planned batches need.
struct Chunk {
    bytes: usize,
    /// The batches, in order, and whether it can be decoded to its place there.
    users: VecDeque<(u64, bool)>,
    /// When it began to be wanted: its place among the chunks that a batch wants.
    order: u64,
}

/// See the module.
pub(super) struct Keeping {
    model: Lookahead,
    chunks: ChunkMap<Chunk>,
    /// Chunks to be read, by the first batch that needs them.
    wanted: BTreeSet<(u64, u64, ChunkId)>,
    /// How often a chunk began to be wanted.
    order: u64,
    /// Decoded chunks that batches need which aren't in preparation yet, by the first of them.
    kept: BTreeSet<(u64, ChunkId)>,
    /// Bytes of these.
    held: usize,
    /// Number of the first batch that isn't finished.
    first: u64,
    /// Batches from the first on that are in preparation.
    active: u64,
    /// Of each planned batch from the first on: uses that haven't been served.
    left: VecDeque<usize>,
    /// Of each planned batch that isn't in preparation: its chunks.
    waiting: VecDeque<Vec<ChunkId>>,
}

impl Keeping {
    pub fn new(model: Lookahead) -> Self {
        Self {
            model,
            chunks: ChunkMap::default(),
            wanted: BTreeSet::new(),
            order: 0,
            kept: BTreeSet::new(),
            held: 0,
            first: 0,
            active: 0,
            left: VecDeque::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Batches that are planned and not finished.
    pub fn planned(&self) -> usize {
        self.left.len()
    }

    /// Number of the first batch that isn't finished.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Takes note of one more batch.
    pub fn plan(&mut self, uses: &[Use]) {
        let number = self.first + self.left.len() as u64;
        for &Use { chunk: id, bytes, direct } in uses {
            let chunk = self.chunks.entry(id).or_insert_with(|| {
                self.order += 1;
                self.wanted.insert((number, self.order, id));
                Chunk { bytes, users: VecDeque::new(), order: self.order }
            });
            chunk.users.push_back((number, direct));
        }
        self.left.push_back(uses.len());
        self.waiting.push_back(uses.iter().map(|u| u.chunk).collect());
    }

    /// Finishes the next batch; calls `read` for each chunk that is read for it.
    pub fn finish(&mut self, mut read: impl FnMut(ChunkId, usize)) {
        while self.active < self.model.active.max(1) as u64
            && let Some(chunks) = self.waiting.pop_front()
        {
            let number = self.first + self.active;
            self.active += 1;
            for id in chunks {
                if self.kept.remove(&(number, id)) {
                    self.serve(id, usize::MAX);
                    self.retire(id);
                }
            }
        }
        while self.left.front().is_some_and(|&left| left > 0)
            && let Some((batch, _, id)) = self.wanted.pop_first()
        {
            let (bytes, direct) = self.takes(id);
            let takes = bytes.saturating_add(self.model.in_flight);
            while self.held.saturating_add(takes) > self.model.capacity
                && let Some(&(next, victim)) = self.kept.last()
                && next > batch
            {
                self.kept.pop_last();
                self.held -= rounded(self.chunks[&victim].bytes);
                self.want(victim);
            }
            read(id, self.chunks[&id].bytes);
            if direct {
                self.serve(id, 1);
                self.want(id);
            } else {
                self.held += bytes;
                self.serve(id, usize::MAX);
                self.retire(id);
            }
        }
        self.left.pop_front();
        self.first += 1;
        self.active = self.active.saturating_sub(1);
    }

    /// What a chunk takes of the memory of decoded chunks, and whether it is decoded to its place in a batch.
    fn takes(&self, id: ChunkId) -> (usize, bool) {
        let Chunk { bytes, users, .. } = &self.chunks[&id];
        let soon = self.model.ahead as u64 / 2;
        let (first, direct) = users[0];
        let direct = direct && users.get(1).is_none_or(|next| next.0 - first > soon);
        (if direct { 0 } else { rounded(*bytes) }, direct)
    }

    /// Serves those batches in preparation that need a chunk, `most` of them at the most.
    fn serve(&mut self, id: ChunkId, most: usize) {
        let (end, first) = (self.first + self.active, self.first);
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        for _ in 0..most {
            let Some(&(number, _)) = chunk.users.front().filter(|user| user.0 < end) else { return };
            chunk.users.pop_front();
            self.left[(number - first) as usize] -= 1;
        }
    }

    /// Keeps a decoded chunk, if batches to come need it and there is hope that it needn't make room before.
    fn retire(&mut self, id: ChunkId) {
        let chunk = &self.chunks[&id];
        if let Some(&(next, _)) = chunk.users.front() {
            let until = (next - self.first) as usize;
            let ahead = until.saturating_mul(self.model.working_set).min(self.model.shuffled.unwrap_or(usize::MAX));
            if ahead <= self.model.capacity {
                self.kept.insert((next, id));
                return;
            }
        }
        self.held -= rounded(chunk.bytes);
        self.want(id);
    }

    /// Puts a chunk that isn't there among those to be read, if anyone needs it still.
    fn want(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(&id) else { return };
        match chunk.users.front() {
            None => {
                self.chunks.remove(&id);
            }
            Some(&(next, _)) => {
                if next >= self.first + self.active {
                    self.order += 1;
                    chunk.order = self.order;
                }
                self.wanted.insert((next, chunk.order, id));
            }
        }
    }
}
