//! Explains what a reader would do, without reading data: from the spec and the metadata, by the same steps with which
//! a reader is opened. Needs no GPU.

#![forbid(unsafe_code)]

mod advice;
mod arrays;
mod listing;
pub(crate) mod memory;
pub(crate) mod reads;
mod spread;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_memory;

use serde_json::{Value, json};

use crate::budget::MachineMemory;
use crate::cache;
use crate::chunk_index::bytes_in_reach;
use crate::reader::coordinates::check_in_step;
use crate::reader::inputs::resolved;
use crate::reader::needs::ordered;
use crate::reader::notices::{missing, unmasked, without_samples};
use crate::reader::opening::UnstartedReader;
use crate::reader::ordering::memory_left;
use crate::reader::{OutputInfo, ReaderMeta};
use crate::scheduler::simulation::Config;
use crate::scheduler::simulation::rehearsal::Consumer;
use arrays::{ArrayFacts, facts};
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::Machine;
use dali_zarr_samples::geometry::Rows;
use dali_zarr_samples::order::Order;
use dali_zarr_samples::spec::{Device, FillMissing, OrderSource, Spec};
pub use listing::arrays;
use memory::{Memory, simulated};
use reads::{Reads, reads_per_chunk};
use spread::Spread;

/// What [`explain`] found out.
pub struct Explanation {
    spec: Spec,
    outputs: Vec<OutputInfo>,
    meta: ReaderMeta,
    /// The rows of ragged arrays.
    rows: Option<Rows>,
    /// Number of samples in one epoch of this reader.
    epoch_samples: u64,
    arrays: Vec<ArrayFacts>,
    memory: Memory,
    in_order: Reads,
    shuffled: Reads,
    /// The reads in the spec's own order if batches are ready before they are taken, so that each is prepared alone.
    unhurried: Reads,
    /// Whether the spec's own order is the shuffled one, that of samples drawn by weights, or the caller's.
    is_shuffled: bool,
    /// Whether shuffling takes into account which samples share chunks.
    is_by_chunks: bool,
    /// Whether samples start where a table says.
    has_starts: bool,
    /// Whether samples are drawn with replacement. `None` if they aren't drawn by weights.
    replacement: Option<bool>,
    /// How far the samples of a shuffled batch are spread.
    spread: Spread,
    /// Most bytes that the folder of the cache may hold.
    disk_limit: Option<u64>,
    advice: Vec<String>,
    segments: Segments,
    /// Number of dates that are declared missing, and of samples that are left out because they read some.
    missing: (usize, u64),
    /// How missing data are filled, if they are.
    filled: Option<&'static str>,
    /// Number of stores or groups that have no sample, since windows fit nowhere in them.
    without_samples: usize,
}

/// The segments between breaks along the first of `dims`, and what lies outside of them.
struct Segments {
    /// The first element of each segment, and the end of the last one. One list for all stores, or one for each store
    /// if samples are cut from each store on its own.
    bounds: Vec<Vec<i64>>,
    /// Number of segments from which samples are cut.
    read: usize,
    /// The share of samples with elements that are padded or repeated.
    padded: f64,
}

impl Segments {
    fn of(spec: &Spec, unstarted: &UnstartedReader) -> Self {
        let (mut bounds, mut read, mut padded, mut samples) = (Vec::new(), 0, 0.0, 0.0);
        for geometry in unstarted.chunk_index.planner.geometries() {
            let Some(first) = geometry.axes.first() else { continue };
            bounds.push(first.bounds.clone());
            let mut told: Vec<Option<usize>> = first.starts.segments().collect();
            // Missing dates divide the starts of a segment.
            told.dedup();
            read += told.into_iter().map(|segment| segment.map_or(first.bounds.len() - 1, |_| 1)).sum::<usize>();
            let inside = geometry.axes.iter().map(|axis| {
                let count = axis.starts.count();
                (count - axis.reaching_out()) as f64 / count.max(1) as f64
            });
            padded += (1.0 - inside.product::<f64>()) * geometry.samples as f64;
            samples += geometry.samples as f64;
        }
        if let Some(table) = &unstarted.chunk_index.planner.geometry().table {
            (padded, samples) = (table.outside() as f64, table.count() as f64);
        }
        let is_padded = spec.samples.out_of_bounds_policy.fills() && samples > 0.0;
        Self { bounds, read, padded: if is_padded { padded / samples } else { 0.0 } }
    }

    fn to_json(&self) -> Value {
        json!({
            "count": self.bounds.iter().map(|bounds| bounds.len() - 1).sum::<usize>(),
            "read": self.read,
            "padded_samples": self.padded,
            "bounds": self.bounds,
        })
    }
}

/// Explains what a reader of `spec` would do.
///
/// # Errors
/// The errors of opening the reader, except limits that are too small: these are explained.
pub fn explain(spec: &Spec) -> Result<Explanation> {
    let host = Machine::find();
    let share = host.as_ref().map(Machine::share);
    explain_on(spec, &MachineMemory { host, share, device: None })
}

/// Like [`explain`], on a machine with this memory.
fn explain_on(spec: &Spec, there: &MachineMemory) -> Result<Explanation> {
    let spec = &*resolved(spec)?;
    let mut unstarted = UnstartedReader::new(spec)?;
    check_in_step(spec, &unstarted)?;
    let division = unstarted.divide(spec, there)?;
    let memory = Memory::new(spec, &unstarted.needs, there, division);
    let planner = &unstarted.chunk_index.planner;
    let spec = &spec.clone().with(|s| s.order.initial_fill = Some(unstarted.fill));
    let blocks = planner.blocks(unstarted.fill, memory_left(spec, planner))?;
    let spread = Spread::new(spec, &blocks, unstarted.fill, bytes_in_reach(&unstarted.chunk_index.dataset, planner, 0));
    let prepared = |is_random: bool| -> Result<_> {
        // Their order is not that of chunks.
        let is_other = is_random && (spec.order.weights.is_some() || spec.order.order == OrderSource::Pushed);
        let spec = spec.clone().with(|s| {
            s.order.random_shuffle = is_random && s.order.weights.is_none();
            s.order.shuffle_after_epoch = false;
        });
        let mut order = if is_other { unstarted.order.clone() } else { Order::by_chunks(&spec, blocks.clone())? };
        let needs = ordered(unstarted.needs, &spec, &unstarted.chunk_index, &mut order);
        let config = simulated(&spec, &needs, there)?;
        Ok((spec, order, config))
    };
    let reads = |(spec, order, config): &(Spec, Order, Config), consumer| {
        reads_per_chunk(&unstarted, spec, order, *config, consumer)
    };
    let is_pushed = spec.order.order == OrderSource::Pushed;
    let is_shuffled =
        is_pushed || spec.order.random_shuffle || spec.order.shuffle_after_epoch || spec.order.weights.is_some();
    let (as_stored, by_chance) = (prepared(false)?, prepared(true)?);
    let (in_order, shuffled) = (reads(&as_stored, Consumer::Waits)?, reads(&by_chance, Consumer::Waits)?);
    let unhurried = reads(if is_shuffled { &by_chance } else { &as_stored }, Consumer::IsLate)?;
    let arrays = facts(spec, &unstarted);
    let segments = Segments::of(spec, &unstarted);
    let missing = missing(&unstarted.chunk_index.planner);
    let rows = unstarted.chunk_index.planner.geometry().rows.clone();
    let without_samples = without_samples(&unstarted.chunk_index.planner).count();
    let mut explanation = Explanation {
        spec: spec.clone(),
        outputs: unstarted.outputs,
        meta: unstarted.meta,
        rows,
        epoch_samples: unstarted.order.epoch_samples(),
        arrays,
        memory,
        in_order,
        shuffled,
        unhurried,
        is_shuffled,
        is_by_chunks: by_chance.1.window().is_some(),
        has_starts: spec.samples.starts.is_some(),
        replacement: unstarted.order.replacement(),
        spread,
        disk_limit: cache::disk_limit(spec),
        advice: Vec::new(),
        segments,
        missing,
        filled: spec.samples.fill_missing.map(FillMissing::name),
        without_samples,
    };
    explanation.advice = advice::advice(&explanation, unstarted.needs.working_set);
    explanation.advice.extend(unmasked(&unstarted.chunk_index.dataset));
    Ok(explanation)
}

impl Explanation {
    /// Whether the order is the caller's. Then it is taken for a permutation of all samples that ignores chunks.
    fn is_pushed(&self) -> bool {
        self.spec.order.order == OrderSource::Pushed
    }

    /// Returns the reads in the spec's own order.
    fn reads(&self) -> &Reads {
        if self.is_shuffled { &self.shuffled } else { &self.in_order }
    }

    /// Returns everything as a JSON object. The Python package documents its keys.
    pub fn to_json(&self) -> Value {
        let output = |o: &OutputInfo| {
            json!({
                "name": o.name, "offset": o.offset, "dims": o.dims, "shape": o.shape, "dtype": o.dtype.delivered().name(), "layout": o.layout,
                "bits_of": (o.dtype.delivered() != o.dtype).then(|| o.dtype.name()), "sample_bytes": o.sample_bytes(),
                "ragged": o.ragged.is_some(), "ragged_dims": ragged_dims(o), "batch_bytes": o.batch_bytes(self.spec.batch_size),
                "scratch_bytes": o.scratch,
            })
        };
        let arrays: Vec<Value> = self.arrays.iter().enumerate().map(|(i, a)| self.array_json(i, a)).collect();
        json!({
            "path": self.spec.source.locations(),
            "groups": self.spec.source.is_grouped().then_some(self.spec.source.members.len()),
            "without_samples": self.without_samples,
            "device": if self.spec.device == Device::Cpu { "cpu" } else { "gpu" },
            "batch_size": self.spec.batch_size,
            "samples": self.meta.epoch_size,
            "starts_from_table": self.has_starts,
            "weighted": self.replacement.map(|with| if with { "with replacement" } else { "without replacement" }),
            "num_shards": self.meta.number_of_shards,
            "samples_of_this_shard": self.epoch_samples,
            "batches_per_epoch": self.epoch_samples.div_ceil(self.spec.batch_size as u64),
            "outputs": self.outputs.iter().map(output).collect::<Vec<_>>(),
            "ragged": self.rows.as_ref().map(rows_json),
            "arrays": arrays,
            "segments": self.segments.to_json(),
            "missing_dates": (self.missing.0 > 0).then(|| json!({ "dates": self.missing.0, "samples_left_out": self.missing.1, "filled": self.filled })),
            "on_bad_chunk": self.spec.resources.on_bad_chunk.name(),
            "order": match self.is_shuffled {
                _ if self.is_pushed() => "pushed",
                true => "shuffled",
                false => "in_order",
            },
            "reads": {
                "in_order": reads_json(&self.in_order),
                "shuffled": reads_json(&self.shuffled),
                "unhurried": reads_json(&self.unhurried),
            },
            "shuffle": self.spread.to_json(),
            "memory": self.memory.to_json(&self.spec),
            "cache": self.cache_json(),
            "advice": self.advice,
        })
    }

    /// Returns the sizes of the caches, and how an epoch's decoded chunks compare with them. Their encoded size isn't
    /// known without reading them.
    fn cache_json(&self) -> Value {
        let (memory, disk) = (self.spec.resources.cache_size, self.disk_limit);
        if memory == 0 && self.spec.resources.cache_dir.is_none() {
            return Value::Null;
        }
        let epoch: f64 = self.reads().arrays.iter().map(reads::ArrayReads::distinct_bytes).sum();
        let ratio = |limit: Option<u64>| limit.map(|limit| epoch / limit.max(1) as f64);
        json!({
            "memory": (memory > 0).then_some(memory),
            "disk": disk,
            "directory": self.spec.resources.cache_dir,
            "epoch_bytes": epoch.round(),
            "memory_ratio": ratio((memory > 0).then_some(memory)),
            "disk_ratio": ratio(disk),
        })
    }

    fn array_json(&self, i: usize, a: &ArrayFacts) -> Value {
        let bytes = self.reads().arrays[a.chunks_of].bytes / self.reads().samples.max(1) as f64;
        json!({
            "name": a.name,
            "output": a.output,
            "dims": a.dims,
            "dtype": a.dtype,
            "stored": a.stored,
            "mask_and_scale": a.decoded,
            // JSON has no infinities.
            "channels": a.channels,
            "scaled": a.scaled,
            "fillna": a.fillna.map(|v| if v.is_finite() { json!(v) } else { json!(v.to_string()) }),
            "stores": a.parts.iter().map(arrays::PartFacts::to_json).collect::<Vec<_>>(),
            "bytes_per_sample": a.bytes_per_sample,
            "chunks_per_sample": a.chunks_per_sample,
            "chunk_bytes_per_sample": a.chunk_bytes_per_sample,
            "read_amplification": a.amplification(),
            // An array that is named twice is read once: its bytes count where it is named first.
            "chunk_bytes_read_per_sample": if a.chunks_of == i { bytes } else { 0.0 },
            "reads_per_chunk": {
                "in_order": self.in_order.arrays[a.chunks_of].per_chunk(),
                "shuffled": self.shuffled.arrays[a.chunks_of].per_chunk(),
            },
        })
    }
}

/// Returns the names of the dimensions in which the samples of an output differ.
fn ragged_dims(output: &OutputInfo) -> Vec<&str> {
    output.ragged.iter().flat_map(|ragged| &ragged.dims).map(|&d| &*output.dims[d]).collect()
}

fn rows_json(rows: &Rows) -> Value {
    let lengths = || rows.offsets().windows(2).map(|pair| pair[1] - pair[0]);
    json!({
        "rows": rows.count(),
        "elements": rows.elements(),
        "longest": lengths().max(),
        "empty": lengths().filter(|&n| n == 0).count(),
        "max_length": rows.max_length(),
        "bytes": rows.bytes(),
        "columns": rows.columns(),
    })
}

fn reads_json(reads: &Reads) -> Value {
    let total = reads.total();
    json!({
        "chunks": total.chunks.round(),
        "reads": total.reads.round(),
        "reads_per_chunk": total.per_chunk(),
        "chunk_bytes_read": total.bytes.round(),
        "chunk_bytes_read_per_sample": total.bytes / reads.samples.max(1) as f64,
        "samples_looked_at": reads.looked_at,
        "estimated": reads.looked_at < reads.samples,
    })
}
