//! What identifies the samples of a reader: which there are, in which order they come, and how their values are
//! computed. Two readers for which this is equal deliver the same.
//!
//! It is taken from the geometry and the dataset, not from the arguments. So a default and its explicit value are the
//! same, and arguments without effect are left out (the seed of an order that is not shuffled, the chunks of an array
//! that is read in order). Names are those of arguments where there is one, because people read them when something
//! differs.

use serde_json::{Map, Value, json};

use super::{hashed, shortened};
use crate::dataset::{ArrayInfo, Dataset};
use crate::digest::digest;
use crate::geometry::{Axis, Cut, Geometry, Role, Rows, Starts, View};
use crate::order::{Blocks, Layout, Run, Weights};
use crate::plan::Planner;
use crate::spec::{Concat, OrderArguments, OutOfBounds, SampleArguments, Spec};

/// Arrays beyond these are represented by a hash.
const MAX_ARRAYS: usize = 8;

/// What identifies the samples of a reader.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Samples {
    pub count: u64,
    /// How samples are cut, and in which order they come.
    pub cut: Map<String, Value>,
    /// The folder that the arrays have in common, in their store; `None` if the store is the array.
    pub folder: Option<String>,
    /// For each array, how its values are computed.
    pub arrays: Vec<Map<String, Value>>,
    /// The names of the stores in the order in which they are joined; `None` if there is one.
    pub stores: Option<Value>,
}

impl Samples {
    pub fn new(spec: &Spec, dataset: &Dataset, planner: &Planner, blocks: &Blocks, weights: Option<&Weights>) -> Self {
        let geometry = planner.geometry();
        // Where arrays have stores of their own, `s/a` and the array `a` of the store `s` are the same, and each may be moved.
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
        let stores: Vec<&str> = dataset.stores.iter().map(|store| store_name(store.location())).collect();
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

/// Which samples a store has, if stores come one after the other. What a table has is described once for all; where windows may
/// reach out, the bounds count too.
fn of_store(geometry: &Geometry, is_padded: bool) -> Value {
    let of_axis = |axis: &Axis| match &geometry.table {
        None => json!([axis.starts.step(), runs(&axis.starts), bounds(axis)]),
        Some(table) => json!((is_padded && table.outside() > 0).then(|| bounds(axis))),
    };
    let starts: Vec<Value> = geometry.axes.iter().map(of_axis).collect();
    let shapes: Vec<Value> = geometry.views.iter().map(|view| shape(view, geometry)).collect();
    json!([starts, shapes])
}

/// How samples are cut and ordered.
fn cut(spec: &Spec, geometry: &Geometry, blocks: &Blocks, weights: Option<&Weights>) -> Map<String, Value> {
    // A new argument of samples or order must be added here: it decides which samples there are, how they are computed or when
    // they come, or it does not. Arguments of source and values are in the arrays; the others change nothing.
    let SampleArguments {
        stack_arrays,
        offsets,
        return_mask,
        return_index,
        // What is read of the rows counts, whatever its array is called.
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
        random_crop: _,
        starts: _,
        stride: _,
        roi_start: _,
        roi_end: _,
        regions: _,
        index_origins: _,
        breaks: _,
        segments: _,
        pad_before: _,
        pad_after: _,
        cross_stores: _,
        out_of_bounds_policy: _,
        fill_value: _,
    } = &spec.samples;
    let OrderArguments {
        random_shuffle,
        shuffle_after_epoch,
        initial_fill,
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
    let by_chunks = is_shuffled && blocks.matter(*initial_fill);
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
        ("initial_fill", only(by_chunks, json!(initial_fill))),
        ("samples that share chunks", if by_chunks { shared(blocks) } else { Value::Null }),
        ("return_index", json!(return_index)),
    ];
    // What came later, so that checkpoints without it stay good.
    let of_segments = axes.iter().any(is_by_segment);
    let others = [
        (is_apart, "windows beyond a break from their start", json!("read")),
        (*samples_per_volume > 1, "samples_per_volume", json!(samples_per_volume)),
        (*concat == Concat::Samples, "concat", json!("samples")),
        (is_padded && policy == OutOfBounds::Edge, "out_of_bounds_policy", json!("edge")),
        (is_padded && axes.iter().any(|a| a.spacing > 1), "distance of elements", each(&|a| json!(a.spacing))),
        (of_segments, "segments", only(of_segments, each(&in_segments))),
        (*return_mask, "return_mask", json!(true)),
        // Samples that were drawn several times had one crop once.
        (weights.is_some() && axes.iter().any(|a| a.random), "random_crop of each", json!("draw")),
    ];
    let others = others.into_iter().filter(|(it, ..)| *it).map(|(_, name, value)| (name, value));
    let rows = geometry.rows.as_ref().map(|rows| ("rows", described_rows(rows)));
    let weighted = weights.map(|weights| ("weights", json!(weights.described())));
    let others = others.chain(rows).chain(weighted);
    all.into_iter().chain(others).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The rows of ragged arrays: how many there are, a hash of where they lie, and what is read of each at most.
fn described_rows(rows: &Rows) -> Value {
    let hash = digest(rows.offsets().iter().copied(), 1);
    json!({ "count": rows.count(), "offsets": format!("hash {hash}"), "max_length": rows.max_length() })
}

/// The ends of segments that have elements: checkpoints tell no others.
fn bounds(axis: &Axis) -> Vec<i64> {
    let mut bounds = axis.bounds.clone();
    bounds.dedup();
    bounds
}

/// The starts along an axis, for people.
fn starts(axis: &Axis) -> Value {
    runs(&axis.starts).iter().map(|(n, first)| json!(format!("{n} from {first}"))).collect()
}

/// A number for each axis; where arrays are cut in different ways, a list of them for each array.
fn of_cuts(geometry: &Geometry, of: impl Fn(&Cut) -> i64) -> Value {
    of_all(geometry.views.iter().map(|view| shortened(view.cuts.iter().map(|cut| json!(of(cut))).collect())).collect())
}

/// One value if all are equal, else all of them.
fn of_all(values: Vec<Value>) -> Value {
    match values.split_first() {
        Some((first, others)) if others.iter().all(|value| value == first) => first.clone(),
        _ => shortened(Value::Array(values)),
    }
}

/// Stretches of starts at equal distances: how many, and the first. Stretches that continue each other are one.
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

/// Whether the windows of a sample lie in another segment than its start. Such windows were filled once.
fn lies_apart(axis: &Axis) -> bool {
    let by_place = axis.starts.segments().any(|segment| segment.is_none());
    by_place && axis.fitting(axis.reach) > axis.fitting((axis.reach.0.min(0), axis.reach.1.max(1)))
}

/// Whether starts belong to segments that don't follow from where they are and what they read.
fn is_by_segment(axis: &Axis) -> bool {
    axis.starts.segments().any(|segment| segment.is_some()) && axis.reaching_out() > 0
}

/// How many starts belong to which segment, and where the segment lies.
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

/// Blocks of samples, for people.
fn shared(blocks: &Blocks) -> Value {
    let along = |runs: Vec<Run>| -> Value {
        runs.iter().map(|run| json!(format!("{} times {}", run.count, run.size))).collect()
    };
    match blocks.layout() {
        Layout::Grid(axes) => shortened(axes.into_iter().map(along).collect()),
        Layout::Listed(count, hash) => json!(format!("{count} blocks with hash {hash}")),
    }
}

/// The last part of a store's location, which stays when the stores are moved together.
fn store_name(location: &str) -> &str {
    location.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// The folder that all arrays lie in, and their names in it; `None` if the store is the array, whose name is the store's.
fn names(arrays: &[ArrayInfo]) -> (Option<String>, Vec<String>) {
    let parts = |array: &ArrayInfo| -> Vec<String> {
        array.name.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let all: Vec<Vec<String>> = arrays.iter().map(parts).collect();
    let shared = |depth: usize| all.iter().all(|n| depth + 1 < n.len() && n[depth] == all[0][depth]);
    let depth = (0..).take_while(|&depth| shared(depth)).count();
    let is_root = arrays.iter().any(|a| a.parts.iter().any(crate::dataset::Part::is_root));
    let folder = (!is_root).then(|| all.first().map_or_else(String::new, |first| first[..depth].join("/")));
    (folder, all.iter().map(|name| name[depth.min(name.len())..].join("/")).collect())
}

/// The last parts of the arrays' paths.
fn own_names(arrays: &[ArrayInfo]) -> Vec<String> {
    let name = |array: &ArrayInfo| {
        store_name(if array.parts[0].is_root() { &array.name } else { array.parts[0].path() }).to_owned()
    };
    arrays.iter().map(name).collect()
}

/// An array, and what is done to it.
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
        // As a float where that is the same number.
        Some(i) if i.unsigned_abs() <= 1 << 53 => json!(i as f64),
        Some(i) => json!(i),
        None => json!(cf.scale.map(number)),
    };
    // Values that are unsigned may be reinterpreted only.
    let is_identity = cf.is_identity() && cf.src_dtype == array.dtype;
    let decoding = (!is_identity).then(|| {
        json!({
            "missing": shortened(json!(cf.missing)), "scale_factor": scale, "add_offset": cf.offset.map(number),
            "from": cf.src_dtype.name(), "to": cf.decoded.name(),
        })
    });
    // What a branch points to may be another snapshot by now: of other values, if not of another shape.
    let snapshots: Vec<Option<String>> = array.parts.iter().map(|p| dataset.stores[p.store].snapshot()).collect();
    let snapshot = snapshots.iter().any(Option::is_some).then(|| ("snapshot_id", shortened(json!(snapshots))));
    // What came later, so that checkpoints without it stay good.
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

/// An array's dimensions as samples see them: names of those that they are cut along (their lengths are in the starts),
/// lengths of the others, and the indices of what `pick` takes (lists of them, if stores differ), unless these are all from
/// the first on.
fn shape(view: &View, geometry: &Geometry) -> Value {
    let dim = |dim: &crate::geometry::ViewDim| {
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

/// A number, or the name of what JSON has no number for. Negative zero is a text, since it would equal zero.
fn number(value: f64) -> Value {
    let is_negative_zero = value.to_bits() == (-0.0_f64).to_bits();
    if value.is_finite() && !is_negative_zero { json!(value) } else { json!(format!("{value:?}")) }
}
