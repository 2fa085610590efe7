//! Samples that are cut from each store on its own: the arguments of one store, and what the outputs of all stores have in
//! common.

use super::{ArrayShape, Geometry, Norm};
use crate::batch::{OutputInfo, Ragged};
use crate::spec::{Concat, OnBadChunk, OrderSource, Pick, Spec};
use dali_zarr_base::error::{Error, Result};

/// Whether samples are cut from each store on its own.
pub fn is_by_store(spec: &Spec, arrays: &[ArrayShape]) -> bool {
    spec.samples.concat == Concat::Samples && arrays.iter().any(|array| array.parts.len() > 1)
}

/// A spec and arrays in several stores, from each of which samples are cut on its own.
pub struct ByStore<'a> {
    spec: &'a Spec,
    arrays: &'a [ArrayShape],
    /// The spec without what differs by store. There may be thousands of stores, so their lists aren't copied for each.
    common: Spec,
    common_arrays: Vec<ArrayShape>,
}

impl<'a> ByStore<'a> {
    /// Takes the arguments of all stores.
    pub fn new(spec: &'a Spec, arrays: &'a [ArrayShape]) -> Self {
        let common = spec.clone().with(|s| {
            (s.source.paths, s.source.members, s.source.pick) = (Vec::new(), Vec::new(), Vec::new());
            s.samples.breaks.found.clear();
            if s.samples.regions.len() > 1 {
                s.samples.regions.clear();
            }
        });
        let common_arrays =
            arrays.iter().map(|array| ArrayShape { parts: Vec::new(), places: Vec::new(), ..array.clone() }).collect();
        Self { spec, arrays, common, common_arrays }
    }

    /// Returns the spec and the arrays as they are for one of the stores.
    pub fn of(&self, store: usize) -> (Spec, Vec<ArrayShape>) {
        let Self { spec, .. } = self;
        let own = self.common.clone().with(|s| {
            s.source.paths = vec![spec.source.paths[store].clone()];
            for pick in &spec.source.pick {
                let indices = match pick.indices.len() {
                    0 | 1 => pick.indices.clone(),
                    _ => pick.indices.get(store).into_iter().cloned().collect(),
                };
                s.source.pick.push(Pick { indices, ..pick.clone() });
            }
            if spec.samples.regions.len() > 1 {
                s.samples.regions = spec.samples.regions.get(store).into_iter().cloned().collect();
            }
            s.samples.breaks.found = spec.samples.breaks.found.get(store).into_iter().cloned().collect();
        });
        fn part<T: Clone>(all: &[T], store: usize) -> Vec<T> {
            all.get(store).or(all.first()).cloned().into_iter().collect()
        }
        let of = |(array, common): (&ArrayShape, &ArrayShape)| ArrayShape {
            parts: part(&array.parts, store),
            places: part(&array.places, store),
            ..common.clone()
        };
        (own, self.arrays.iter().zip(&self.common_arrays).map(of).collect())
    }
}

/// Gives the geometries of several stores one description of their outputs. An output whose samples have other shapes in
/// other stores becomes ragged. `has_table`: whether a table says where samples start.
///
/// # Errors
/// If outputs differ in more than their shapes, if values are computed differently, or if a sample is too large.
pub(super) fn in_common(spec: &Spec, all: &mut [Geometry], has_table: bool) -> Result<()> {
    let (first, paths) = (&all[0], &spec.source.paths);
    for (store, other) in all.iter().enumerate() {
        let places = || format!("{} and {}", paths[0], paths[store]);
        let differs = |(a, b): &(&OutputInfo, &OutputInfo)| a.dims != b.dims || a.dtype != b.dtype || a.name != b.name;
        let outputs = || first.outputs.iter().zip(&other.outputs);
        if let Some((a, b)) = outputs().find(differs) {
            return Err(Error::value(format!(
                "concat=\"samples\": expected samples with the same dimensions in all stores, but output '{}' has {:?} {} and {:?} {} \
                 in {}",
                a.name,
                a.dims,
                a.dtype,
                b.dims,
                b.dtype,
                places()
            )));
        }
        if first.tables != other.tables || !is_same(&first.norms, &other.norms) {
            return Err(Error::value(format!(
                "mean, stddev, stack_arrays: expected the same channels in all stores, but they differ in {}; name the dimension of \
                 the channels in dims, or pick as many in each",
                places()
            )));
        }
    }
    let mut outputs = first.outputs.clone();
    let sampled = || all.iter().filter(|geometry| has_table || geometry.samples > 0);
    for (o, output) in outputs.iter_mut().enumerate() {
        let shapes = || sampled().map(|geometry| &geometry.outputs[o].shape);
        let Some(one) = shapes().next().cloned() else { continue };
        let dims: Vec<usize> = (0..one.len()).filter(|&d| shapes().any(|shape| shape[d] != one[d])).collect();
        output.shape = (0..one.len()).map(|d| shapes().map(|shape| shape[d]).max().unwrap_or(0)).collect();
        if dims.is_empty() {
            continue;
        }
        let bytes = output.shape.iter().try_fold(output.dtype.size() as i64, |n, &len| n.checked_mul(len));
        if bytes.is_none_or(|bytes| bytes > 1 << 46) {
            return Err(Error::value(format!(
                "output '{}': the samples of all stores are at most {:?} along each dimension, and one of this shape is too large; name \
                 more dimensions in dims, with a window",
                output.name, output.shape
            )));
        }
        let of = |geometry: &Geometry| {
            let elements = geometry.outputs[o].shape.iter().product::<i64>() as u64;
            (elements, if has_table { u64::MAX } else { geometry.samples })
        };
        let most = most(spec, sampled().map(of).collect());
        output.ragged = Some(Ragged { dims, most });
    }
    for geometry in all {
        let own = std::mem::replace(&mut geometry.outputs, outputs.clone());
        if outputs.iter().any(|output| output.ragged.is_some()) {
            geometry.own_shapes = own.into_iter().map(|output| output.shape).collect();
        }
    }
    Ok(())
}

/// Returns the most elements that a batch can have. `sizes` has the elements of a sample, and how many samples have as many.
fn most(spec: &Spec, mut sizes: Vec<(u64, u64)>) -> u64 {
    let batch = spec.batch_size as u64;
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let longest = sizes.first().map_or(0, |&(elements, _)| elements);
    let samples = sizes.iter().fold(0u64, |n, (_, count)| n.saturating_add(*count));
    let times = repeats(spec, samples, 1);
    let (mut left, mut sum) = (batch.div_ceil(times.max(1)), 0u64);
    for (elements, count) in sizes {
        let taken = count.min(left);
        sum = sum.saturating_add(elements.saturating_mul(taken));
        left -= taken;
    }
    sum.saturating_mul(times).min(longest.saturating_mul(batch))
}

/// Returns how often a batch may hold the same sample, if there are `samples` and `each` of them count as the same.
pub(super) fn repeats(spec: &Spec, samples: u64, each: u64) -> u64 {
    let (order, batch) = (&spec.order, spec.batch_size as u64);
    // Padding repeats the last sample. Without padding, a batch may reach over the ends of epochs, and one of these may
    // be the rest that other shards left. Samples that are drawn by weights or pushed, and those that replace others, may come any
    // number of times.
    let replaces = spec.resources.on_bad_chunk == OnBadChunk::Skip;
    if order.pad_last_batch || order.weights.is_some() || order.order == OrderSource::Pushed || replaces {
        return batch;
    }
    let shard = (samples / order.num_shards.max(1) as u64).max(1);
    each.saturating_mul((batch - 1) / shard + 3).min(batch)
}

/// Whether the norms of both are the same, bit by bit.
fn is_same(one: &[Norm], other: &[Norm]) -> bool {
    let bits = |norm: &Norm| {
        let of = |(mean, stddev): (f64, f64)| (mean.to_bits(), stddev.to_bits());
        let values = (norm.fillna.map(f64::to_bits), norm.mean_stddev.map(of), norm.fill.to_bits());
        (norm.array, values, norm.dtype, norm.imaginary)
    };
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| bits(a) == bits(b))
}
