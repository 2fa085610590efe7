//! The chunk index: where each chunk lies, its route, and its name in messages.

mod bad_chunks;
mod foresight;
mod reach;
mod shard;
mod sources;
#[cfg(test)]
mod tests_bad_chunks;
#[cfg(test)]
mod tests_foresight;

pub(crate) use bad_chunks::BadChunks;
pub(crate) use foresight::{Asked, Foresight, LATER, NEVER, Upcoming};
pub(crate) use reach::{bytes_in_reach, chunks_in_reach};
pub(crate) use shard::{Entries, ShardId, ShardIndex};
pub(crate) use sources::Sources;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::route::{Decisions, Route};
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_samples::dataset::{ArrayInfo, ArrayPart, Dataset, DimGrid, Sharding};
use dali_zarr_samples::order::Sample;
use dali_zarr_samples::plan::{BatchPlan, ChunkId, Planner};
use dali_zarr_stores::{Extent, Latency, Store};

/// The thread that reads an uncompressed chunk of at least this many decoded bytes also copies it to its slot. Smaller
/// chunks are copied together, in waves.
pub(crate) const DIRECT_COPY: usize = 256 << 10;

/// Where a chunk lies in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// It is the value of a key.
    Key,
    /// It is an inner chunk of this shard. The number is that of its entry in the shard's index.
    Shard(ShardId, usize),
    /// It is a range of an object that holds other chunks too.
    Range(ObjectRange),
    /// It is unknown until this index of the store (a manifest, a reference file) is read.
    Unread(ShardId),
}

/// A range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRange {
    /// A hash of the object's store, name and version: ranges of one object have the same. There may be as many objects
    /// as chunks, so their names are not kept. [`ChunkIndex::extent`] gives the name.
    pub object: u64,
    pub offset: u64,
    pub len: u64,
}

/// Where a chunk lies, and how it is decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkInfo {
    pub location: Location,
    /// How the chunks of its array are decoded. A decode thread may decode it in the GPU's place.
    pub route: Route,
    /// Whether its store is remote.
    pub remote: bool,
    /// Bytes of the decoded chunk.
    pub decoded: usize,
}

/// Whether the thread that reads a chunk of `decoded` bytes copies it to the device: there is nothing to decode, and it
/// is large enough for a copy of its own. Remote chunks are read by tasks and go with a wave.
const fn uploads(route: Route, remote: bool, decoded: usize) -> bool {
    matches!(route, Route::Raw) && !remote && decoded >= DIRECT_COPY
}

impl ChunkInfo {
    /// Whether the thread that reads the chunk copies it to the device, if batches are delivered there.
    pub const fn uploads(&self) -> bool {
        uploads(self.route, self.remote, self.decoded)
    }
}

/// A planned batch, with what is known of each of its chunks.
pub(crate) struct Plan {
    pub batch: BatchPlan,
    /// The chunk of each use in the batch.
    pub chunks: Vec<ChunkInfo>,
    /// The shards whose indexes the batch needs, each with one of its chunks. A shard may occur twice.
    pub shards: Vec<(ShardId, ChunkId)>,
    /// For each use the number of the next batch that needs the chunk, as [`Upcoming::next`].
    pub next: Vec<u64>,
    /// As [`Upcoming::asked`].
    pub asked: Asked,
    /// If samples may be replaced: those of the batch.
    pub samples: Vec<Sample>,
}

/// The dataset and the planner of a reader, shared by all its threads.
pub(crate) struct ChunkIndex {
    pub dataset: Dataset,
    pub planner: Planner,
    pub decisions: Decisions,
    /// By array and part: the bytes of a decoded chunk, if all chunks have the same number of bytes.
    pub equal_bytes: Vec<Vec<Option<usize>>>,
    hasher: RandomState,
}

impl ChunkIndex {
    pub fn new(dataset: Dataset, planner: Planner, decisions: Decisions) -> Self {
        let equal = |part: &ArrayPart| {
            let regular = part.grid.iter().all(|g| matches!(g, DimGrid::Regular { .. }));
            regular.then_some(part.largest_bytes)
        };
        let of = |array: &ArrayInfo| array.parts.iter().map(equal).collect();
        let equal_bytes = dataset.arrays.iter().map(of).collect();
        Self { dataset, planner, decisions, equal_bytes, hasher: RandomState::new() }
    }

    /// Whether there may be chunks that are copied to the device by the thread that reads them.
    pub fn uploads(&self) -> bool {
        (0..self.decisions.len()).any(|array| {
            let mut parts = self.decisions[array].iter().zip(&self.equal_bytes[array]).enumerate();
            // If chunks differ in size, some may be large.
            parts.any(|(part, (decision, bytes))| {
                uploads(decision.route, self.is_remote(array as u16, part as u16), bytes.unwrap_or(usize::MAX))
            })
        })
    }

    /// Plans the batch of these samples, and looks up its chunks.
    pub fn plan(&self, samples: &[Sample]) -> Plan {
        let batch = self.planner.plan(samples);
        // Otherwise its jobs would write beyond the memory of its outputs.
        assert!(self.planner.holds(&batch), "a batch has more elements than were reserved");
        let mut shards: Vec<(ShardId, ChunkId)> = Vec::new();
        let mut chunks = Vec::with_capacity(batch.uses.len());
        for id in batch.uses.iter().map(|u| u.chunk) {
            let location = self.location(id);
            if let Location::Shard(shard, _) | Location::Unread(shard) = location
                && shards.last().is_none_or(|(last, _)| *last != shard)
            {
                shards.push((shard, id));
            }
            let remote = self.is_remote(id.array, id.part);
            chunks.push(ChunkInfo { location, route: self.route(id), remote, decoded: self.decoded_bytes(id) });
        }
        Plan { batch, chunks, shards, next: Vec::new(), asked: Asked::default(), samples: Vec::new() }
    }

    /// Plans a batch, of which [`Foresight`] tells when its chunks are needed again.
    pub fn plan_upcoming(&self, upcoming: Upcoming) -> Plan {
        let plan = self.plan(&upcoming.samples);
        debug_assert!(
            upcoming.next.is_empty() || upcoming.next.len() == plan.batch.uses.len(),
            "other chunks were seen"
        );
        let Upcoming { samples, next, asked } = upcoming;
        let samples = if asked.samples.is_empty() { Vec::new() } else { samples };
        Plan { next, asked, samples, ..plan }
    }

    pub fn part(&self, id: ChunkId) -> &ArrayPart {
        &self.dataset.arrays[id.array as usize].parts[id.part as usize]
    }

    pub fn route(&self, id: ChunkId) -> Route {
        self.route_of(id.array, id.part)
    }

    /// How the chunks of a part of an array are decoded.
    pub fn route_of(&self, array: u16, part: u16) -> Route {
        self.decisions[array as usize][part as usize].route
    }

    pub fn store(&self, array: u16, part: u16) -> &Arc<dyn Store> {
        &self.dataset.stores[self.store_number(array, part)]
    }

    /// The number of the store that holds a part of an array.
    pub fn store_number(&self, array: u16, part: u16) -> usize {
        self.dataset.arrays[array as usize].parts[part as usize].store
    }

    /// Whether the store of a part of an array is remote.
    pub fn is_remote(&self, array: u16, part: u16) -> bool {
        self.store(array, part).latency() == Latency::Remote
    }

    pub fn location(&self, id: ChunkId) -> Location {
        let part = self.part(id);
        match &part.sharding {
            None if self.store(id.array, id.part).has_extents() => self.located(id),
            None => Location::Key,
            Some(sharding) => {
                // The entry is that of `Sharding::shard_of`, without its allocations: this runs for every chunk.
                let (index, entry) = self.planner.shard_and_entry(id, &sharding.chunks_per_shard);
                Location::Shard(ShardId { array: id.array, part: id.part, index }, entry)
            }
        }
    }

    /// Returns the shard of an inner chunk; `None` if the chunk isn't in a shard.
    pub fn shard_of(&self, id: ChunkId) -> Option<ShardId> {
        let sharding = self.part(id).sharding.as_ref()?;
        let (index, _) = self.planner.shard_and_entry(id, &sharding.chunks_per_shard);
        Some(ShardId { array: id.array, part: id.part, index })
    }

    /// Finds where a chunk lies, in a store whose values may be ranges of larger objects.
    fn located(&self, id: ChunkId) -> Location {
        let (store, key) = (self.store(id.array, id.part), self.key(id));
        if let Some(index) = store.unread_index(&key) {
            return Location::Unread(ShardId { array: id.array, part: id.part, index });
        }
        let Some(Extent { object, version, offset, len }) = store.locate(&key) else { return Location::Key };
        let object = self.hasher.hash_one((self.store_number(id.array, id.part), object, version));
        Location::Range(ObjectRange { object, offset, len })
    }

    /// Returns the object and the range of a chunk that is a range of an object. `None` if the chunk isn't, or it is
    /// not known yet.
    pub fn extent(&self, id: ChunkId) -> Option<Extent> {
        self.store(id.array, id.part).locate(&self.key(id))
    }

    /// The key of a chunk, or of its shard.
    pub fn key(&self, id: ChunkId) -> String {
        let part = self.part(id);
        let coords = self.planner.coords(id);
        match &part.sharding {
            None => part.key(&coords),
            Some(sharding) => part.key(&sharding.shard_of(&coords).0),
        }
    }

    /// Bytes of the decoded chunk.
    pub fn decoded_bytes(&self, id: ChunkId) -> usize {
        if let Some(bytes) = self.equal_bytes[id.array as usize][id.part as usize] {
            return bytes;
        }
        let element = self.dataset.arrays[id.array as usize].dtype.size() as u64;
        // No overflow: the largest chunk was checked when the dataset was opened.
        (self.planner.chunk_elements(id) * element) as usize
    }

    /// Decodes a chunk on the CPU to `out`, which has its decoded size. A panic of the decoder becomes an error.
    ///
    /// # Errors
    /// What is wrong with the chunk, without its name.
    pub fn decode(&self, id: ChunkId, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let (format, shape) = (&self.part(id).format, self.planner.chunk_shape(id));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| format.decode(encoded, &shape, out))).unwrap_or_else(
            |panic| Err(Error::damaged(format!("the decoder gave up: {}", dali_zarr_base::error::panic_text(&*panic)))),
        )
    }

    /// Where a chunk is, for errors.
    pub fn site(&self, id: ChunkId) -> Site {
        let site = self.site_of(id.array, id.part, self.key(id));
        Site {
            inner_chunk: self
                .part(id)
                .sharding
                .as_ref()
                .map(|_| self.part(id).stored(&self.planner.coords(id)).to_vec()),
            ..site
        }
    }

    /// Where a value of an array is, for errors.
    pub fn site_of(&self, array: u16, part: u16, key: impl Into<String>) -> Site {
        Site::store(self.store(array, part).location()).array(&*self.dataset.arrays[array as usize].name).chunk(key)
    }

    /// Checks, if a chunk is missing, that its array still exists. Otherwise the store may have been deleted.
    ///
    /// # Errors
    /// If the array's metadata document is missing too, or can't be looked up.
    pub async fn confirm_missing(&self, array: u16, part: u16) -> Result<()> {
        if self.store(array, part).exists(self.metadata_key(array, part)).await? {
            Ok(())
        } else {
            Err(self.gone(array, part))
        }
    }

    /// The key of the array's metadata document.
    pub fn metadata_key(&self, array: u16, part: u16) -> &str {
        self.dataset.arrays[array as usize].parts[part as usize].metadata_key()
    }

    /// The error for an array that was deleted.
    pub fn gone(&self, array: u16, part: u16) -> Error {
        Error::runtime(format!(
            "expected {} beside its chunks, but both are gone; the store was deleted or moved while it was \
             read, or it has consolidated metadata only, which don't tell missing chunks from a deleted array: write the array's own too",
            self.metadata_key(array, part),
        ))
        .at(Site { chunk: None, ..self.site_of(array, part, "") })
    }

    /// The sharding of a part of an array, if it is sharded.
    pub fn sharded(&self, array: u16, part: u16) -> Option<&Sharding> {
        self.dataset.arrays[array as usize].parts[part as usize].sharding.as_ref()
    }

    /// The sharding that a shard belongs to. Panics if the number is that of an index of the store.
    pub fn sharding(&self, shard: ShardId) -> &Sharding {
        self.sharded(shard.array, shard.part).expect("only shards have an index")
    }
}
