//! Explains each array: how it is stored, where it is decoded, and what a sample takes of it.

use serde_json::{Value, json};

use super::reads::MAX_USES;
use crate::reader::opening::UnstartedReader;
use crate::route::{Decision, Route, Why};
use dali_zarr_codecs::{Chain, Compression, ImageFormat};
use dali_zarr_samples::dataset::ArrayPart;
use dali_zarr_samples::geometry::{Geometry, Role, Scaled, View, ViewDim};
use dali_zarr_samples::spec::{Device, ScaleMethod, Spec};

/// Number of samples over which the needs of a sample are averaged.
const SAMPLES: u64 = 64;

/// One array in one store.
pub(crate) struct PartFacts {
    pub store: String,
    pub shape: Vec<u64>,
    /// Extents of the largest chunk (inner chunk of a shard).
    pub chunks: Vec<u64>,
    /// Extents of a shard. `None` if there are no shards, or if each is read and decoded as a whole.
    pub shards: Option<Vec<u64>>,
    pub codecs: String,
    /// Whether chunks are images that lose values. `None` if the metadata don't say so.
    pub lossy_images: Option<bool>,
    /// Decoded bytes of the largest chunk.
    pub chunk_bytes: u64,
    pub decision: Decision,
    /// The compressor of the chunks, if there is only one and the GPU may have a decoder for it.
    pub compression: Option<Compression>,
    pub why: String,
}

/// One array.
pub(crate) struct ArrayFacts {
    pub name: String,
    pub output: String,
    pub dims: Vec<String>,
    /// The type as which its elements are read, by its NumPy name.
    pub dtype: &'static str,
    /// The stored type, as NumPy names it.
    pub stored: String,
    /// Whether its CF attributes are applied (`mask_and_scale`).
    pub decoded: bool,
    /// The value that replaces NaNs, if they are replaced.
    pub fillna: Option<f64>,
    /// The dimensions whose elements have a mean and a stddev of their own.
    pub channels: Vec<String>,
    pub parts: Vec<PartFacts>,
    /// The array whose chunks these are: itself, or the first of the same name.
    pub chunks_of: usize,
    /// How its elements lie beside those that samples start at, by dimension; `None` without `scale_by`. One object for all
    /// stores, or one for each.
    pub scaled: Option<Vec<Value>>,
    /// Stored bytes of the elements in a sample, all offsets together.
    pub bytes_per_sample: u64,
    /// Chunks that a sample needs, on average.
    pub chunks_per_sample: f64,
    /// Decoded bytes of these chunks.
    pub chunk_bytes_per_sample: f64,
}

impl PartFacts {
    /// Returns where its chunks are decoded.
    pub fn decoded_on(&self) -> &'static str {
        match self.decision.route {
            Route::Raw => "nowhere",
            Route::Cpu => "cpu",
            Route::Gpu => "gpu",
        }
    }

    pub fn to_json(&self) -> Value {
        json!({
            "store": self.store,
            "shape": self.shape,
            "chunks": self.chunks,
            "shards": self.shards,
            "codecs": self.codecs,
            "lossy_images": self.lossy_images,
            "chunk_bytes": self.chunk_bytes,
            "decoded_on": self.decoded_on(),
            "why": self.why,
        })
    }
}

impl ArrayFacts {
    /// Returns how many bytes are decoded for each byte that a sample takes, if its chunks are decoded for it alone.
    pub fn amplification(&self) -> f64 {
        self.chunk_bytes_per_sample / self.bytes_per_sample.max(1) as f64
    }

    /// Returns the decoded bytes of the largest chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.chunk_bytes).max().unwrap_or(0)
    }
}

/// Collects the facts about every array.
pub(super) fn facts(spec: &Spec, unstarted: &UnstartedReader) -> Vec<ArrayFacts> {
    let chunk_index = &unstarted.chunk_index;
    let geometry = chunk_index.planner.geometry();
    let arrays = &chunk_index.dataset.arrays;
    let mut touched = vec![(0u64, 0u64); arrays.len()];
    let samples = unstarted.order.epoch_samples();
    let mut order = unstarted.order.clone();
    let uses = if samples > 0 { chunk_index.planner.plan(&[order.sample(0)]).uses.len() } else { 0 };
    let looked_at = samples.min(SAMPLES).min((MAX_USES / uses.max(1)).max(1) as u64);
    for i in 0..looked_at {
        // Evenly spread, the first one included.
        let sample = order.sample((u128::from(i) * u128::from(samples) / u128::from(looked_at)) as u64);
        for chunk_use in &chunk_index.planner.plan(&[sample]).uses {
            let (chunks, bytes) = &mut touched[chunk_use.chunk.array as usize];
            *chunks += 1;
            *bytes += chunk_index.decoded_bytes(chunk_use.chunk) as u64;
        }
    }
    let average = |n: u64| n as f64 / looked_at.max(1) as f64;
    arrays
        .iter()
        .enumerate()
        .map(|(a, array)| {
            let chunks_of = arrays.iter().position(|other| other.is_same(array)).unwrap_or(a);
            let part = |(p, part): (usize, &ArrayPart)| part_facts(spec, unstarted, (a, p), part);
            ArrayFacts {
                name: array.name.clone(),
                output: array.output.clone(),
                dims: array.dims.names.clone(),
                dtype: array.dtype.delivered().name(),
                stored: array.stored.clone(),
                decoded: array.decoded,
                fillna: geometry.norms.iter().find(|norm| norm.array == a).and_then(|norm| norm.fillna),
                channels: geometry.own_channels(a).into_iter().flatten().map(|d| array.dims.names[d].clone()).collect(),
                parts: array.parts.iter().enumerate().map(part).collect(),
                chunks_of,
                scaled: spec
                    .samples
                    .scale_by
                    .map(|_| chunk_index.planner.geometries().map(|g| scaled(g, &g.views[a])).collect()),
                bytes_per_sample: elements(geometry, &geometry.views[a])
                    * array.dtype.size() as u64
                    * spec.samples.offsets.len().max(1) as u64,
                chunks_per_sample: average(touched[chunks_of].0),
                chunk_bytes_per_sample: average(touched[chunks_of].1),
            }
        })
        .collect()
}

/// Describes how an array's elements lie beside those that samples start at, along each of its axes.
fn scaled(geometry: &Geometry, view: &View) -> Value {
    let of_dim = |(d, dim): (usize, &ViewDim)| {
        let Role::Axis(a) = &dim.role else { return None };
        let place = view.places.get(d).copied().flatten();
        let (axis, cut) = (&geometry.axes[*a], view.cuts[*a]);
        let len = dim.len as i64;
        let method = ScaleMethod::Nearest;
        let same = Scaled { numerator: 1, denominator: 1, start: 0, bound: 0, lens: (len, len), method };
        let map = cut.scaled.unwrap_or(same);
        // Rows of a table, and random starts, may be anywhere.
        let is_anywhere = axis.random || geometry.table.is_some();
        let (first, step) = match axis.starts.count() {
            0 => (0, 1),
            _ => (axis.starts.at(0).0, if is_anywhere { 1 } else { axis.starts.step() }),
        };
        let told = json!({
            "window": if cut.dropped { 0 } else { cut.window }, "numerator": map.numerator, "denominator": map.denominator,
            "start": map.start, "bound": map.bound, "length": map.lens.0, "grid_length": map.lens.1, "first": place.map(|place| place.first),
            "distance": place.map(|place| place.distance), "beside": cut.scaled.map_or(0.0, |map| map.beside(first, step)),
        });
        Some((axis.name.clone(), told))
    };
    Value::Object(view.dims.iter().enumerate().filter_map(of_dim).collect())
}

/// Returns how an array is stored in one store. `at` are the numbers of the array and of the store.
pub(super) fn part_facts(spec: &Spec, unstarted: &UnstartedReader, at: (usize, usize), part: &ArrayPart) -> PartFacts {
    PartFacts {
        store: unstarted.chunk_index.dataset.location(part.store),
        shape: part.shape.clone(),
        chunks: part.largest_chunk(),
        shards: part
            .sharding
            .as_ref()
            .map(|s| part.largest_chunk().iter().zip(&s.chunks_per_shard).map(|(chunk, n)| chunk * n).collect()),
        codecs: part.format.chain.names().to_owned(),
        lossy_images: part.format.chain.lossy_images(),
        chunk_bytes: part.largest_bytes as u64,
        decision: unstarted.chunk_index.decisions[at.0][at.1],
        compression: part.format.gpu_chain().and_then(Chain::compression),
        why: why(spec, unstarted, at.0, at.1),
    }
}

/// Returns the elements of a view in one sample. For ragged arrays, those of an average row.
fn elements(geometry: &Geometry, view: &View) -> u64 {
    view.dims
        .iter()
        .map(|dim| match dim.role {
            Role::Whole => dim.len,
            Role::Ragged => geometry.rows.as_ref().map_or(0, |rows| rows.elements() / rows.count()),
            Role::Axis(a) => view.cuts[a].window as u64,
        })
        .product()
}

/// Returns why a part is decoded where it is.
fn why(spec: &Spec, unstarted: &UnstartedReader, array: usize, part: usize) -> String {
    if let Some(note) = unstarted.notes.iter().find(|n| (n.array, n.part) == (array, part)) {
        return note.text.clone();
    }
    let to_gpu = matches!(spec.device, Device::Gpu(_));
    let format = &unstarted.chunk_index.dataset.arrays[array].parts[part].format;
    let image = format.chain.image_format();
    let text = match unstarted.chunk_index.decisions[array][part].why {
        Why::Uncompressed if to_gpu => "uncompressed: its chunks are copied to the GPU as they are",
        Why::Uncompressed => "uncompressed: its chunks are read as they are",
        Why::Asked => "decode_device=\"cpu\" asks for it",
        Why::DeliveredToCpu => "batches are delivered to the CPU and decoded there",
        // The others have notes.
        _ => match image {
            None => "the GPU has a decoder for it",
            Some(ImageFormat::Jpeg) => {
                "JPEG: by the GPU's engine, if it has one, as data centre GPUs from the A100 on have"
            }
            Some(ImageFormat::Jpeg2k) => "JPEG 2000: by the GPU through nvJPEG2000, if that is installed",
        },
    };
    text.into()
}
