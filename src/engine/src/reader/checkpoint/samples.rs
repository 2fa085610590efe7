//! What identifies the samples of a reader: which samples there are, in which order they come, and how their values are
//! computed. Two readers for which this is equal deliver the same samples.
//!
//! It is taken from the geometry and the dataset, not from the arguments. So a default and its explicit value are the
//! same, and arguments without effect are left out (the seed of an order that is not shuffled, the chunks of an array
//! that is read in order). Entries have the names of arguments where possible, because people read them when something
//! differs.

use serde_json::{Map, Value, json};

use super::{hashed, shortened};
use dali_zarr_base::digest::digest;
use dali_zarr_samples::dataset::{ArrayInfo, Dataset};
use dali_zarr_samples::geometry::{Axis, Between, Cut, Geometry, Role, Rows, Starts, View};
use dali_zarr_samples::order::{Blocks, Layout, Run, Weights};
use dali_zarr_samples::plan::Planner;
use dali_zarr_samples::spec::{Concat, FillMissing, OrderArguments, OrderSource, OutOfBounds, SampleArguments, Spec};

/// Maximum number of arrays that are described one by one. Further arrays are replaced by a hash.
const MAX_ARRAYS: usize = 8;

/// What identifies the samples of a reader.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Samples {
    pub count: u64,
    /// How samples are cut, and in which order they come.
    pub cut: Map<String, Value>,
    /// The folder in the store that the arrays have in common. `None` if the store is the array, or if arrays have
    /// stores of their own.
    pub folder: Option<String>,
    /// For each array, how its values are computed.
    pub arrays: Vec<Map<String, Value>>,
    /// The names of the stores in the order in which they are joined. `None` if there is one store, or if arrays have
    /// stores of their own.
    pub stores: Option<Value>,
}

impl Samples {
    pub fn new(spec: &Spec, dataset: &Dataset, planner: &Planner, blocks: &Blocks, weights: Option<&Weights>) -> Self {
        let geometry = planner.geometry();
        // If arrays have stores of their own, `s/a` and the array `a` of the store `s` are the same, and each array may
        // be moved.
        let has_own = spec.source.own().next().is_some();
        let (folder, names) = if has_own { (None, own_names(&dataset.arrays)) } else { names(&dataset.arrays) };
        let mut arrays: Vec<_> = dataset
            .arrays
            .iter()
            .zip(names)
            .enumerate()
            .map(|(i, (_, name))| described(dataset, name, i, geometry))
            .collect();
        if arrays.len() > MAX_ARRAYS {
            let others = json!(arrays.split_off(MAX_ARRAYS));
            arrays.push(Map::from_iter([("further arrays".into(), hashed(&others))]));
        }
        let name = |store: usize| {
            let name = store_name(dataset.stores[store].location());
            dataset.groups.get(store).map_or_else(|| name.to_owned(), |group| format!("{name}/{group}"))
        };
        let stores: Vec<String> = (0..dataset.stores.len()).map(name).collect();
        let stores = (stores.len() > 1 && !has_own).then(|| shortened(json!(stores)));
        let count = weights.map_or(blocks.samples(), Weights::draws);
        let mut cut = cut(spec, geometry, blocks, weights);
        if planner.geometries().count() > 1 {
            // The first is described above.
            let is_padded = spec.samples.out_of_bounds_policy.fills();
            let all = planner.geometries().map(|geometry| of_store(geometry, is_padded)).collect();
            cut.insert("samples of the stores".into(), shortened(all));
        }
        Self { count, cut, folder, arrays, stores }
    }
}

/// Describes the samples of one store, if stores come one after the other. A table is described once for all stores, so
/// only the bounds are added here, if windows reach beyond them.
fn of_store(geometry: &Geometry, is_padded: bool) -> Value {
    let of_axis = |axis: &Axis| match &geometry.table {
        None => json!([axis.starts.step(), runs(&axis.starts), bounds(axis)]),
        Some(table) => json!((is_padded && table.outside() > 0).then(|| bounds(axis))),
    };
    let starts: Vec<Value> = geometry.axes.iter().map(of_axis).collect();
    let shapes: Vec<Value> = geometry.views.iter().map(|view| shape(view, geometry)).collect();
    json!([starts, shapes])
}

/// Describes how samples are cut and ordered.
fn cut(spec: &Spec, geometry: &Geometry, blocks: &Blocks, weights: Option<&Weights>) -> Map<String, Value> {
    // A new argument of samples or order must be added here, and described if it decides which samples there are, how
    // they are computed or when they come. Arguments of source and values are described with the arrays. Other
    // arguments change nothing: what `on_bad_chunk` puts in place of damaged data moves no other sample.
    let SampleArguments {
        stack_arrays,
        offsets,
        return_mask,
        return_index,
        // The rows are described by their values, not by the name of their array.
        ragged: _,
        ragged_ends: _,
        max_length: _,
        samples_per_volume,
        concat,
        // These are in the geometry.
        dims: _,
        window: _,
        step: _,
        overlap: _,
        // What they come to is in the windows, the starts and the maps of arrays.
        scale_by: _,
        scale_method: _,
        grid: _,
        window_lengths: _,
        step_lengths: _,
        overlap_lengths: _,
        random_crop: _,
        starts: _,
        stride: _,
        roi_start: _,
        roi_end: _,
        regions: _,
        index_origins: _,
        breaks: _,
        missing_dates: _,
        // What is filled with the previous element is in the picks.
        fill_missing,
        // The dimensions and their order are in the outputs.
        transpose: _,
        squeeze: _,
        segments: _,
        pad_before: _,
        pad_after: _,
        cross_stores: _,
        out_of_bounds_policy: _,
        fill_value: _,
    } = &spec.samples;
    let OrderArguments {
        order,
        random_shuffle,
        shuffle_after_epoch,
        initial_fill: _,
        seed: _,
        // These are in the segments.
        shard_id: _,
        num_shards: _,
        stick_to_shard: _,
        pad_last_batch: _,
        // These are in the weights, and in the number of samples.
        weights: _,
        num_samples: _,
        replacement: _,
    } = &spec.order;
    let offsets: &[i64] = if offsets.is_empty() { &[0] } else { offsets };
    let axes = &geometry.axes;
    let each = |of: &dyn Fn(&Axis) -> Value| shortened(axes.iter().map(of).collect());
    let is_shuffled = *random_shuffle || *shuffle_after_epoch;
    let is_random = is_shuffled || weights.is_some() || axes.iter().any(|a| a.random);
    let by_chunks = is_shuffled && blocks.affect_order(spec.order.fill());
    let policy = spec.samples.out_of_bounds_policy;
    let reaches_out = geometry
        .table
        .as_ref()
        .map_or_else(|| axes.iter().any(|axis| axis.reaching_out() > 0), |table| table.outside() > 0);
    let is_padded = policy.fills() && reaches_out;
    let is_apart = is_padded && geometry.table.is_none() && axes.iter().any(lies_apart);
    let is_filled = is_padded && policy == OutOfBounds::Pad;
    let only = |it: bool, value: Value| if it { value } else { Value::Null };
    let all = [
        ("stack_arrays", json!(stack_arrays)),
        ("dims", each(&|a| json!(a.name))),
        ("window", of_cuts(geometry, |cut| if cut.dropped { 0 } else { cut.window })),
        ("stride", of_cuts(geometry, |cut| if cut.window > 1 { cut.stride } else { 1 })),
        (
            "step",
            each(&|a| {
                only(
                    !a.random && geometry.table.is_none() && runs(&a.starts).iter().any(|r| r.0 > 1),
                    json!(a.starts.step()),
                )
            }),
        ),
        ("starts", geometry.table.as_ref().map_or_else(|| each(&starts), |table| json!(table.described()))),
        ("random_crop", axes.iter().filter(|a| a.random).map(|a| json!(a.name)).collect()),
        ("offsets", shortened(json!(offsets))),
        ("region and breaks", only(is_padded, each(&|a| json!(bounds(a))))),
        ("fill_value", only(is_filled, of_all(geometry.norms.iter().map(|norm| number(norm.fill)).collect()))),
        ("random_shuffle", json!(random_shuffle)),
        ("shuffle_after_epoch", json!(shuffle_after_epoch)),
        ("seed", only(is_random, json!(spec.order.effective_seed()))),
        ("initial_fill", only(by_chunks, json!(spec.order.fill()))),
        ("samples that share chunks", if by_chunks { shared(blocks) } else { Value::Null }),
        ("return_index", json!(return_index)),
    ];
    // Entries that were added later. They are left out where they don't apply, so that older checkpoints stay valid.
    let of_segments = axes.iter().any(is_by_segment);
    let others = [
        (is_apart, "windows beyond a break from their start", json!("read")),
        (*samples_per_volume > 1, "samples_per_volume", json!(samples_per_volume)),
        (*concat == Concat::Samples, "concat", json!("samples")),
        (is_padded && policy == OutOfBounds::Edge, "out_of_bounds_policy", json!("edge")),
        (is_padded && axes.iter().any(|a| a.spacing > 1), "distance of elements", each(&|a| json!(a.spacing))),
        (of_segments, "segments", only(of_segments, each(&in_segments))),
        (*return_mask, "return_mask", json!(true)),
        (
            !geometry.filled.is_empty(),
            "fill_missing",
            json!([fill_missing.map(FillMissing::name), shortened(json!(geometry.filled))]),
        ),
        (geometry.views.iter().any(|view| view.between.is_some()), "interpolation", json!(interpolated(geometry))),
        (axes.iter().any(|axis| axis.scaled.is_some()), "scale_by", shortened(json!(scaled(geometry)))),
        (geometry.is_transposed, "transpose", shortened(json!(orders(geometry)))),
        (*order == OrderSource::Pushed, "order", json!("the caller's")),
        // In older versions, all draws of a sample had the same crop.
        (weights.is_some() && axes.iter().any(|a| a.random), "random_crop of each", json!("draw")),
    ];
    let others = others.into_iter().filter(|(it, ..)| *it).map(|(_, name, value)| (name, value));
    let rows = geometry.rows.as_ref().map(|rows| ("rows", described_rows(rows)));
    let weighted = weights.map(|weights| ("weights", json!(weights.described())));
    let others = others.chain(rows).chain(weighted);
    all.into_iter().chain(others).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns for each array a hash of the elements between which values lie, and of their weights; null if none do.
fn interpolated(geometry: &Geometry) -> Vec<Option<String>> {
    let of = |between: &Between| {
        let numbers = between.pairs().iter().flat_map(|pair| [pair.low, pair.high, pair.weight.to_bits()]);
        format!("hash {}", digest(numbers, 3))
    };
    geometry.views.iter().map(|view| view.between.as_ref().map(of)).collect()
}

/// Describes where the elements of arrays of other resolutions lie, for each array along each axis.
fn scaled(geometry: &Geometry) -> Vec<Vec<Option<[i64; 3]>>> {
    let of_cut = |cut: &Cut| cut.scaled.map(|scaled| [scaled.numerator, scaled.denominator, scaled.start]);
    geometry.views.iter().map(|view| view.cuts.iter().map(of_cut).collect()).collect()
}

/// Returns the names of each output's dimensions, in their order.
fn orders(geometry: &Geometry) -> Vec<String> {
    geometry.outputs.iter().map(|output| output.dims.join(" ")).collect()
}

/// Describes the rows of ragged arrays: their number, a hash of their offsets, and how many elements of each are read
/// at most.
fn described_rows(rows: &Rows) -> Value {
    let hash = digest(rows.offsets().iter().copied(), 1);
    json!({ "count": rows.count(), "offsets": format!("hash {hash}"), "max_length": rows.max_length() })
}

/// Returns the bounds of segments that have elements. Checkpoints don't describe empty segments.
fn bounds(axis: &Axis) -> Vec<i64> {
    let mut bounds = axis.bounds.clone();
    bounds.dedup();
    bounds
}

/// Describes the starts along an axis so that people can read it.
fn starts(axis: &Axis) -> Value {
    runs(&axis.starts).iter().map(|(n, first)| json!(format!("{n} from {first}"))).collect()
}

/// Returns a number for each axis. If arrays are cut in different ways, returns a list of these for each array.
fn of_cuts(geometry: &Geometry, of: impl Fn(&Cut) -> i64) -> Value {
    of_all(geometry.views.iter().map(|view| shortened(view.cuts.iter().map(|cut| json!(of(cut))).collect())).collect())
}

/// Returns one value if all are equal, otherwise all of them.
fn of_all(values: Vec<Value>) -> Value {
    match values.split_first() {
        Some((first, others)) if others.iter().all(|value| value == first) => first.clone(),
        _ => shortened(Value::Array(values)),
    }
}

/// Returns the stretches of starts at equal distances, each as the number of its starts and its first start. Stretches
/// that continue each other are merged.
fn runs(starts: &Starts) -> Vec<(i64, i64)> {
    let mut all: Vec<(i64, i64)> = Vec::new();
    for (n, first) in starts.runs() {
        match all.last_mut() {
            _ if n == 0 => {}
            Some((count, from)) if *from + *count * starts.step() == first => *count += n,
            _ => all.push((n, first)),
        }
    }
    all
}

/// Whether the windows of some samples lie in another segment than their start. Older versions filled such windows.
fn lies_apart(axis: &Axis) -> bool {
    let by_place = axis.starts.segments().any(|segment| segment.is_none());
    by_place && axis.fitting(axis.reach) > axis.fitting((axis.reach.0.min(0), axis.reach.1.max(1)))
}

/// Whether the segments of the starts don't follow from where the starts are and what they read.
fn is_by_segment(axis: &Axis) -> bool {
    axis.starts.segments().any(|segment| segment.is_some()) && axis.reaching_out() > 0
}

/// Describes how many starts belong to which segment, and where the segment lies; `Null` if this follows from the
/// starts.
fn in_segments(axis: &Axis) -> Value {
    if !is_by_segment(axis) {
        return Value::Null;
    }
    let of = |((n, _), segment): ((i64, i64), Option<usize>)| {
        let (from, to) = axis.segment(segment?);
        Some(json!(format!("{n} in {from} to {to}")))
    };
    axis.starts.runs().zip(axis.starts.segments()).map_while(of).collect()
}

/// Describes blocks of samples so that people can read it.
fn shared(blocks: &Blocks) -> Value {
    let along = |runs: Vec<Run>| -> Value {
        runs.iter().map(|run| json!(format!("{} times {}", run.count, run.size))).collect()
    };
    match blocks.layout() {
        Layout::Grid(axes) => shortened(axes.into_iter().map(along).collect()),
        Layout::Listed(count, hash) => json!(format!("{count} blocks with hash {hash}")),
    }
}

/// Returns the last part of a store's location. It stays the same when the stores are moved together.
fn store_name(location: &str) -> &str {
    location.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// Returns the folder that all arrays lie in, and their names in it. If the store is the array, the folder is `None`
/// and the name is the store's.
fn names(arrays: &[ArrayInfo]) -> (Option<String>, Vec<String>) {
    let parts = |array: &ArrayInfo| -> Vec<String> {
        array.name.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let all: Vec<Vec<String>> = arrays.iter().map(parts).collect();
    let shared = |depth: usize| all.iter().all(|n| depth + 1 < n.len() && n[depth] == all[0][depth]);
    let depth = (0..).take_while(|&depth| shared(depth)).count();
    let is_root = arrays.iter().any(|a| a.parts.iter().any(dali_zarr_samples::dataset::ArrayPart::is_root));
    let folder = (!is_root).then(|| all.first().map_or_else(String::new, |first| first[..depth].join("/")));
    (folder, all.iter().map(|name| name[depth.min(name.len())..].join("/")).collect())
}

/// Returns the last part of each array's path.
fn own_names(arrays: &[ArrayInfo]) -> Vec<String> {
    let name = |array: &ArrayInfo| {
        store_name(if array.parts[0].is_root() { &array.name } else { array.parts[0].path() }).to_owned()
    };
    arrays.iter().map(name).collect()
}

/// Describes an array and how its values are computed.
fn described(dataset: &Dataset, name: String, at: usize, geometry: &Geometry) -> Map<String, Value> {
    let array = &dataset.arrays[at];
    let norms: Vec<_> = geometry.norms.iter().filter(|norm| norm.array == at).collect();
    let per_channel = |of: fn((f64, f64)) -> f64| {
        let all: Vec<Value> = norms.iter().map(|norm| json!(norm.mean_stddev.map(|both| number(of(both))))).collect();
        match all.first() {
            Some(one) if all.iter().all(|other| other == one) => one.clone(),
            _ => shortened(Value::Array(all)),
        }
    };
    let cf = &array.cf;
    let scale = match cf.int_scale {
        // As a float if that is the same number.
        Some(i) if i.unsigned_abs() <= 1 << 53 => json!(i as f64),
        Some(i) => json!(i),
        None => json!(cf.scale.map(number)),
    };
    // With `_Unsigned`, decoding may do nothing but read the bits as another type.
    let is_identity = cf.is_identity() && cf.src_dtype == array.dtype;
    let decoding = (!is_identity).then(|| {
        json!({
            "missing": shortened(json!(cf.missing)), "scale_factor": scale, "add_offset": cf.offset.map(number),
            "from": cf.src_dtype.name(), "to": cf.decoded.name(),
        })
    });
    // A branch may point to another snapshot by now: with other values, even if the shape is the same.
    let snapshots: Vec<Option<String>> = array.parts.iter().map(|p| dataset.stores[p.store].snapshot()).collect();
    let snapshot = snapshots.iter().any(Option::is_some).then(|| ("snapshot_id", shortened(json!(snapshots))));
    // Entries that were added later. They are left out where they don't apply, so that older checkpoints stay valid.
    let fillna = norms.first().and_then(|norm| norm.fillna).map(|value| ("fillna", number(value)));
    let all = [
        ("name", json!(name)),
        ("dims", shortened(json!(array.dims.names))),
        ("shape", shortened(shape(&geometry.views[at], geometry))),
        ("stored dtype", json!(array.dtype.name())),
        ("mask_and_scale", json!(decoding)),
        ("dtype", json!(norms.first().map(|norm| norm.dtype.name()))),
        ("mean", per_channel(|(mean, _)| mean)),
        ("stddev", per_channel(|(_, stddev)| stddev)),
    ];
    let differ = norms.windows(2).any(|two| two[0].mean_stddev != two[1].mean_stddev);
    let channels = geometry.own_channels(at).filter(|_| differ);
    let channels = channels.map(|dims| ("channels", dims.map(|d| json!(array.dims.names[d])).collect()));
    all.into_iter()
        .chain(snapshot)
        .chain(fillna)
        .chain(channels)
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Describes an array's dimensions as samples see them. A dimension that samples are cut along is described by its name
/// (its length is in the starts), any other dimension by its length. The indices that `pick` takes are listed (one list
/// for each store if they differ), unless they count up from 0.
fn shape(view: &View, geometry: &Geometry) -> Value {
    let dim = |dim: &dali_zarr_samples::geometry::ViewDim| {
        let pick = dim.pick.as_ref().and_then(|pick| match pick.lists() {
            [list] => (!list.iter().copied().eq(0..pick.len())).then(|| json!(list)),
            lists => Some(json!(lists)),
        });
        match (&dim.role, pick) {
            (Role::Axis(a), None) => json!(geometry.axes[*a].name),
            (Role::Axis(a), Some(pick)) => json!({ (geometry.axes[*a].name.as_str()): pick }),
            (Role::Whole, None) => json!(dim.len),
            (Role::Whole, Some(pick)) => json!(pick),
            (Role::Ragged, _) => json!("ragged"),
        }
    };
    view.dims.iter().map(dim).collect()
}

/// Returns a number as JSON. NaN and infinities become text, since JSON lacks them. Negative zero becomes text, since
/// it would equal zero.
fn number(value: f64) -> Value {
    let is_negative_zero = value.to_bits() == (-0.0_f64).to_bits();
    if value.is_finite() && !is_negative_zero { json!(value) } else { json!(format!("{value:?}")) }
}
