//! Counters of a reader, shared by its threads.
//!
//! Each chunk that was read is also counted by its outcome. Once nothing is in flight, `chunks_read` is the sum of
//! `chunks_decoded_gpu`, `chunks_decoded_cpu`, `chunks_uncompressed` and `chunks_failed`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dali_zarr_base::error::{Error, Site};
use dali_zarr_stores::Counters;

/// The counters. [`Stats::to_json`] gives them their public names.
#[derive(Debug, Default)]
pub struct Stats {
    /// Chunks (each inner chunk of a shard counts) whose encoded bytes were read from a store or a cache.
    pub chunks_read: AtomicU64,
    /// Chunks that don't exist and give the fill value.
    pub chunks_missing: AtomicU64,
    /// Encoded bytes read from stores, shard indexes not counted.
    pub bytes_read: AtomicU64,
    /// Reads of stores, shard indexes not counted.
    pub reads: AtomicU64,
    /// Reads by GPUDirect Storage to the device; part of `reads`.
    pub reads_gds: AtomicU64,
    /// Shard indexes read from stores.
    pub index_reads: AtomicU64,
    /// Chunks decoded by the CPU, including those that it decoded for a GPU.
    pub chunks_decoded_cpu: AtomicU64,
    /// Chunks decoded by the GPU.
    pub chunks_decoded_gpu: AtomicU64,
    /// Chunks that needed no decoding.
    pub chunks_uncompressed: AtomicU64,
    /// Chunks that were read but can't be decoded.
    pub chunks_failed: AtomicU64,
    /// Different chunks that can't be decoded, and without which the reader goes on (`on_bad_chunk`). A shard whose index is
    /// damaged counts once.
    pub chunks_bad: AtomicU64,
    /// Samples of finished batches that took the places of others, which need bad chunks.
    pub samples_replaced: AtomicU64,
    /// Chunks that the CPU decoded because the GPU had failed to; part of `chunks_decoded_cpu`.
    pub cpu_fallbacks: AtomicU64,
    /// Chunks that idle cores decoded in the GPU's place, while finished batches waited; part of `chunks_decoded_cpu`.
    pub chunks_shared: AtomicU64,
    /// Batches that the consumer took while idle cores helped the GPU to decode.
    pub batches_shared: AtomicU64,
    /// The latest reserve, in batches: if the consumer is the slower side, the GPU decodes nothing while more finished
    /// batches than this wait.
    pub shared_reserve: AtomicU64,
    /// The most chunks that decode threads decoded at a time in the GPU's place, when the last batch was taken.
    pub shared_threads: AtomicU64,
    /// Uses of chunks that needed no read, because the chunk had been read for another batch.
    pub chunks_from_memory: AtomicU64,
    /// Repeated reads of chunks that were read before and not kept, although a planned or foreseen batch still needed them;
    /// part of `chunks_read`.
    pub chunks_read_again: AtomicU64,
    /// Decoded chunks that were evicted although a planned or foreseen batch needs them.
    pub evictions: AtomicU64,
    /// NaNs that `fillna` replaced, in all batches that were assembled.
    pub nans_replaced: OutputCounters,
    /// Batches finished.
    pub batches: AtomicU64,
    /// Batches that weren't finished yet when the host program asked for them.
    pub waits: AtomicU64,
    /// Waves launched on the GPU.
    pub waves: AtomicU64,
    /// Nanoseconds that reads took. Reads that overlap in time are added up.
    pub read_ns: AtomicU64,
    /// Nanoseconds from the beginning of each wave on the GPU until its copies were done, summed over lanes. The copies
    /// by threads that read are added.
    pub copy_ns: AtomicU64,
    /// Nanoseconds that decode threads, or waves on the GPU, spent decoding.
    pub decode_ns: AtomicU64,
    /// Nanoseconds that decode threads, or waves on the GPU, spent assembling.
    pub assemble_ns: AtomicU64,
    /// Nanoseconds that the host program waited for batches.
    pub wait_ns: AtomicU64,
    /// The bad chunks, in the order in which they were found.
    pub(crate) bad: Mutex<Vec<BadChunk>>,
    /// Counters of the cache, if there is one.
    pub cache: Arc<crate::cache::Counters>,
    /// Counters of requests to remote stores, including requests for metadata and indexes.
    pub remote: Arc<Counters>,
}

/// A counter for each array, reported by the name of the array's output.
#[derive(Debug, Default)]
pub struct OutputCounters(Vec<(Option<String>, AtomicU64)>);

impl OutputCounters {
    /// Makes the counters. `names` has an item for each array: the name of its output, or `None` if nothing is counted
    /// for it.
    pub fn new(names: impl Iterator<Item = Option<String>>) -> Self {
        Self(names.map(|name| (name, AtomicU64::new(0))).collect())
    }

    /// Returns the number of arrays.
    pub fn arrays(&self) -> usize {
        self.0.len()
    }

    /// Adds `n` to the counter of the array number `array`.
    ///
    /// # Panics
    /// If there is no such array.
    pub fn add(&self, array: usize, n: u64) {
        Stats::add(&self.0[array].1, n);
    }

    /// Returns the counters by name. The counts of arrays with the same name are added up.
    pub fn to_map(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for (name, counter) in &self.0 {
            if let Some(name) = name {
                *all.entry(name.as_str()).or_default() += counter.load(Relaxed);
            }
        }
        all
    }
}

/// A chunk that can't be decoded, or a shard whose index is damaged.
#[derive(Clone, Debug)]
pub struct BadChunk {
    site: Site,
    /// What is wrong with it.
    reason: String,
}

impl BadChunk {
    /// Makes the entry of the chunk at `site`, which the message of `error` may name.
    pub fn new(site: Site, error: &Error) -> Self {
        let value = Site { store: site.store.clone(), key: site.chunk.clone(), ..Site::default() };
        let places =
            [site.clone(), Site { inner_chunk: None, ..site.clone() }, value].map(|place| format!("{place}: "));
        let mut reason = error.message();
        while let Some(rest) = places.iter().find_map(|place| reason.strip_prefix(place.as_str())) {
            reason = rest;
        }
        let reason = reason.to_owned();
        Self { site, reason }
    }

    /// Returns where it is, and what is wrong with it.
    pub fn message(&self) -> String {
        format!("{}: {}", self.site, self.reason)
    }

    fn to_json(&self) -> serde_json::Value {
        let Site { store, array, chunk, inner_chunk, .. } = &self.site;
        serde_json::json!({
            "store": store, "array": array, "key": chunk, "inner_chunk": inner_chunk, "reason": self.reason,
        })
    }
}

impl Stats {
    /// Adds a bad chunk to the list.
    pub fn list_bad(&self, bad: BadChunk) {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).push(bad);
    }

    /// Returns the list of bad chunks as JSON: the store, the array, the key of each, the coordinates of an inner chunk (`null`:
    /// it is a whole value), and the reason.
    pub fn bad_chunks(&self) -> serde_json::Value {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).iter().map(BadChunk::to_json).collect()
    }

    /// Counts one read of `len` bytes.
    pub fn read(&self, len: usize) {
        Self::add(&self.reads, 1);
        Self::add(&self.bytes_read, len as u64);
    }

    /// Adds to a counter. Often `n` is 0: then nothing is written, and the counter's cache line stays with the threads
    /// that use it.
    pub fn add(counter: &AtomicU64, n: u64) {
        if n > 0 {
            counter.fetch_add(n, Relaxed);
        }
    }

    /// Adds a duration to a counter of nanoseconds.
    pub fn time(counter: &AtomicU64, d: Duration) {
        counter.fetch_add(d.as_nanos() as u64, Relaxed);
    }

    /// Adds seconds to a counter of nanoseconds.
    pub fn seconds(counter: &AtomicU64, s: f64) {
        counter.fetch_add((s * 1e9) as u64, Relaxed);
    }

    /// Returns all counters as a JSON object. Times are in seconds, summed over threads.
    pub fn to_json(&self) -> serde_json::Value {
        let counts = [
            ("chunks_read", &self.chunks_read),
            ("chunks_missing", &self.chunks_missing),
            ("bytes_read", &self.bytes_read),
            ("reads", &self.reads),
            ("reads_gds", &self.reads_gds),
            ("index_reads", &self.index_reads),
            ("chunks_decoded_cpu", &self.chunks_decoded_cpu),
            ("chunks_decoded_gpu", &self.chunks_decoded_gpu),
            ("chunks_uncompressed", &self.chunks_uncompressed),
            ("chunks_failed", &self.chunks_failed),
            ("chunks_bad", &self.chunks_bad),
            ("samples_replaced", &self.samples_replaced),
            ("cpu_fallbacks", &self.cpu_fallbacks),
            ("chunks_shared", &self.chunks_shared),
            ("batches_shared", &self.batches_shared),
            ("shared_reserve", &self.shared_reserve),
            ("shared_threads", &self.shared_threads),
            ("chunks_from_memory", &self.chunks_from_memory),
            ("chunks_read_again", &self.chunks_read_again),
            ("evictions", &self.evictions),
            ("batches", &self.batches),
            ("waits", &self.waits),
            ("waves", &self.waves),
            ("cache_hits", &self.cache.hits),
            ("cache_misses", &self.cache.misses),
            ("cache_bytes", &self.cache.bytes),
            ("cache_evictions", &self.cache.evictions),
            ("cache_dir_hits", &self.cache.disk_hits),
            ("cache_dir_misses", &self.cache.disk_misses),
            ("cache_dir_bytes", &self.cache.disk_bytes),
            ("cache_dir_writes", &self.cache.disk_writes),
            ("cache_dir_dropped", &self.cache.disk_dropped),
            ("cache_dir_evictions", &self.cache.disk_evictions),
            ("cache_dir_errors", &self.cache.disk_errors),
            ("cache_dir_checks", &self.cache.disk_checks),
            ("requests", &self.remote.requests),
            ("requests_retried", &self.remote.retries),
            ("requests_hedged", &self.remote.hedges),
            ("requests_bytes", &self.remote.bytes),
        ];
        let times = [
            ("read_seconds", &self.read_ns),
            ("copy_seconds", &self.copy_ns),
            ("decode_seconds", &self.decode_ns),
            ("assemble_seconds", &self.assemble_ns),
            ("wait_seconds", &self.wait_ns),
        ];
        let counts = counts.map(|(name, count)| (name, serde_json::json!(count.load(Relaxed))));
        let times = times.map(|(name, ns)| (name, serde_json::json!(ns.load(Relaxed) as f64 / 1e9)));
        let nans_replaced = ("nans_replaced", serde_json::json!(self.nans_replaced.to_map()));
        let all = counts.into_iter().chain(times).chain([nans_replaced]);
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
