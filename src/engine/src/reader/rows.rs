//! Reads the offsets of ragged rows from an array when a reader is opened, and checks them.

use std::sync::Arc;

use super::Reader;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::memory::{Machine, shown};
use dali_zarr_samples::dataset::{ArrayInfo, Dataset, LoneArray, each_store, group_attributes, lone_array};
use dali_zarr_samples::geometry::Rows;
use dali_zarr_samples::spec::{DimKey, OutOfBounds, PerOutput, Spec, is_location};
use dali_zarr_stores::Store;

type Attributes = serde_json::Map<String, serde_json::Value>;

/// Maximum number of integers that are read at a time.
const INTEGERS: u64 = 1 << 18;

/// The argument that names the array of offsets.
struct Argument<'a> {
    name: &'static str,
    array: &'a str,
    /// Whether the array has only the ends of rows. The first row starts at 0 then.
    ends: bool,
}

impl Argument<'_> {
    fn shown(&self) -> String {
        format!("{}=\"{}\"", self.name, self.array)
    }

    fn wrong<T>(&self, store: &Arc<dyn Store>, expected: &str, found: String) -> Result<T> {
        let e = Error::value(format!("{}: expected {expected}, but found {found}", self.shown()));
        Err(e.at(Site::store(store.location())))
    }

    fn unreadable(&self, e: &Error) -> Error {
        e.within(format_args!("{}: the offsets can't be read", self.shown()))
    }
}

/// Reads the rows of ragged arrays, over all stores; `None` if `spec` doesn't ask for any.
///
/// # Errors
/// If the array of offsets is missing, can't be read or has values that aren't offsets; if its group is a matrix that
/// isn't stored by rows.
pub(super) fn read(spec: &Spec, stores: &[Arc<dyn Store>]) -> Result<Option<Rows>> {
    let samples = &spec.samples;
    let argument = match (&samples.ragged, &samples.ragged_ends) {
        (Some(_), Some(_)) => {
            return Err(Error::value("ragged, ragged_ends: expected one of them, but found both; leave one out"));
        }
        (Some(array), None) => Argument { name: "ragged", array, ends: false },
        (None, Some(array)) => Argument { name: "ragged_ends", array, ends: true },
        (None, None) if samples.max_length.is_some() => {
            return Err(Error::value(
                "max_length: expected ragged or ragged_ends with it, but found neither; leave it out",
            ));
        }
        (None, None) => return Ok(None),
    };
    let limit = host_limit(spec);
    let found = if is_location(argument.array) {
        vec![of_own(spec, &argument, limit)?]
    } else {
        // Only stores in `path` have offsets. They also hold for arrays with stores of their own.
        let stores = &stores[..spec.source.paths.len().min(stores.len())];
        if stores.is_empty() {
            return Err(Error::value(format!(
                "{}: expected a path that the array of offsets is in, but found none; give path, or the location of the array, such as \
                 \"./cells.zarr/X/indptr\"",
                argument.shown()
            )));
        }
        let one = |_: usize, store: &Arc<dyn Store>| of_store(&argument, store, limit / stores.len() as u64);
        each_store(stores, one).into_iter().collect::<Result<Vec<_>>>()?
    };
    let (offsets, columns): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    if let Some(other) = columns.iter().find(|other| **other != columns[0]) {
        return Err(Error::value(format!(
            "{}: expected matrices of as many columns in all stores that are joined, but found {} and {}",
            argument.shown(),
            shown_columns(columns[0]),
            shown_columns(*other)
        )));
    }
    let rows = Rows::new(argument.shown(), argument.array, offsets, samples.max_length)?;
    Ok(Some(rows.of_columns(columns[0])))
}

/// Formats a number of columns, for messages.
fn shown_columns(columns: Option<u64>) -> String {
    columns.map_or("a matrix whose group has no 'shape'".into(), |n| format!("{n} columns"))
}

/// Returns how many bytes of host memory all offsets may take.
fn host_limit(spec: &Spec) -> u64 {
    let half = Machine::find().map_or(u64::MAX, |machine| machine.total / 2);
    spec.resources.host_memory_limit.unwrap_or(u64::MAX).min(half)
}

/// Reads the integers of an array and appends them to `to`, as they are stored. Negative ones are in two's complement of
/// 64 bits. The array has `len` elements along its first dimension, each with `width` integers.
///
/// # Errors
/// If they can't be read.
pub(super) fn integers(
    store: &Arc<dyn Store>,
    array: ArrayInfo,
    len: u64,
    width: u64,
    to: &mut Vec<u64>,
) -> Result<()> {
    let window = len.min(INTEGERS);
    let spec = Spec::default().with(|s| {
        s.source.paths = vec![store.location().to_owned()];
        s.samples.dims = vec![DimKey::Index(0)];
        s.samples.window = vec![window as i64].into();
        s.samples.out_of_bounds_policy = OutOfBounds::Pad;
        s.values.mask_and_scale = PerOutput::one(false);
        s.values.dtype = PerOutput::one(if array.dtype == DType::U64 { DType::U64 } else { DType::I64 });
        s.resources.prefetch_queue_depth = Some(2);
        s.resources.io_threads = Some(2);
        s.resources.decode_threads = Some(1);
    });
    let reader = Reader::small(spec, Dataset::of_array(store, array))?;
    let mut left = len;
    while left > 0 {
        let batch = reader.next_batch()?;
        let (values, _) = batch.host[0].as_slice().as_chunks();
        let n = left.min(window);
        to.extend(values[..(n * width) as usize].iter().map(|&bytes| u64::from_ne_bytes(bytes)));
        left -= n;
    }
    Ok(())
}

/// Reads the offsets in one store, and the number of columns of their matrix. The offsets may take `limit` bytes.
fn of_store(argument: &Argument, store: &Arc<dyn Store>, limit: u64) -> Result<(Vec<u64>, Option<u64>)> {
    let path = argument.array.trim_matches('/');
    let group = path.rsplit_once('/').map_or("", |(group, _)| group);
    let attributes = group_attributes(&**store, group).map_err(|e| argument.unreadable(&e))?;
    check_rows(argument, store, group, &attributes)?;
    let Some(array) = lone_array(&**store, path, false).map_err(|e| argument.unreadable(&e))? else {
        return argument.wrong(store, &format!("an array '{path}'"), "none of that name".into());
    };
    offsets(argument, store, array, &attributes, limit)
}

/// As [`of_store`], for an array that has a store of its own.
fn of_own(spec: &Spec, argument: &Argument, limit: u64) -> Result<(Vec<u64>, Option<u64>)> {
    if spec.source.paths.len() > 1 {
        return Err(Error::value(format!(
            "{}: expected the name of an array relative to path, since each of the {} stores there has rows of its own, but found a \
             location",
            argument.shown(),
            spec.source.paths.len()
        )));
    }
    let found = LoneArray::open(spec, argument.array, false).map_err(|e| argument.unreadable(&e))?;
    let group = argument.array.trim_end_matches('/').rsplit_once('/').map_or("", |(group, _)| group);
    check_rows(argument, &found.store, group, &found.group)?;
    offsets(argument, &found.store, found.array, &found.group, limit)
}

/// Returns the kind of a matrix, as AnnData and others write it to the attributes of its group.
fn encoding(attributes: &Attributes) -> Option<&str> {
    ["encoding-type", "h5sparse_format"].into_iter().find_map(|name| attributes.get(name)?.as_str())
}

/// Refuses matrices that are stored by columns.
fn check_rows(argument: &Argument, store: &Arc<dyn Store>, group: &str, attributes: &Attributes) -> Result<()> {
    match encoding(attributes) {
        Some(found @ ("csc_matrix" | "csc")) => argument.wrong(
            store,
            &format!("a matrix that is stored by rows (csr_matrix) in group '{group}'"),
            format!(
                "{found}, whose offsets are those of columns: rows can't be read from it; convert it, as by AnnData's X.tocsr()"
            ),
        ),
        _ => Ok(()),
    }
}

/// Reads the offsets from an array, and returns them with the number of columns of their matrix. They may take `limit`
/// bytes.
fn offsets(
    argument: &Argument,
    store: &Arc<dyn Store>,
    array: ArrayInfo,
    attributes: &Attributes,
    limit: u64,
) -> Result<(Vec<u64>, Option<u64>)> {
    // AnnData and scipy write the shape of the matrix to the attributes of its group.
    let shape_of = |name: &str| attributes.get(name)?.as_array()?.get(1)?.as_u64();
    let columns = encoding(attributes).and_then(|_| shape_of("shape").or_else(|| shape_of("h5sparse_shape")));
    let shape = array.parts[0].shape.clone();
    let is_integer = !array.dtype.is_float() && array.dtype != DType::Bool;
    let is_ranges = shape.len() == 2 && shape[1] == RANGE && !argument.ends && is_ranges(&array.name);
    if (shape.len() != 1 && !is_ranges) || !is_integer {
        let found = format!("the shape {shape:?} of {}", array.dtype);
        return argument.wrong(store, "an array of one dimension of integers", found);
    }
    let width = if is_ranges { RANGE } else { 1 };
    let bytes = shape[0].saturating_add(1).saturating_mul(width * size_of::<u64>() as u64);
    if bytes > limit {
        let room = format!("{} offsets, which take {}", shape[0], shown(bytes));
        return argument.wrong(store, &format!("offsets for which {} of host memory are enough", shown(limit)), room);
    }
    let is_unsigned = array.dtype == DType::U64;
    let mut all: Vec<u64> = Vec::new();
    all.try_reserve_exact((shape[0] * width) as usize + 1)
        .map_err(|e| Error::memory(format!("{}: {} offsets: {e}", argument.shown(), shape[0])))?;
    if argument.ends {
        all.push(0);
    }
    if shape[0] > 0 {
        integers(store, array, shape[0], width, &mut all).map_err(|e| argument.unreadable(&e))?;
    }
    if is_ranges {
        all = of_ranges(argument, store, &all)?;
    }
    match all.iter().position(|&offset| offset > i64::MAX as u64) {
        Some(i) => {
            let entry = i - usize::from(argument.ends);
            let found = if is_unsigned { all[i].to_string() } else { all[i].cast_signed().to_string() };
            argument.wrong(store, "offsets from 0 to 2^63 - 1", format!("{found} as entry {entry}"))
        }
        None => Ok((all, columns)),
    }
}

/// Number of integers of a range: its date, its first element, and its number of elements.
const RANGE: u64 = 3;

/// Whether an array has the ranges of elements of each date, as anemoi-datasets writes them for tabular data.
fn is_ranges(name: &str) -> bool {
    name.trim_end_matches('/').rsplit('/').next() == Some("date_index_ranges")
}

/// Returns the offsets of ranges, of which each begins where the one before ends.
fn of_ranges(argument: &Argument, store: &Arc<dyn Store>, ranges: &[u64]) -> Result<Vec<u64>> {
    let (ranges, _) = ranges.as_chunks::<{ RANGE as usize }>();
    let mut offsets: Vec<u64> = ranges.first().map(|range| range[1]).into_iter().collect();
    for (i, &[_, first, len]) in ranges.iter().enumerate() {
        let before = offsets[i];
        let end =
            first.checked_add(len).filter(|&end| first == before && len <= i64::MAX as u64 && end <= i64::MAX as u64);
        let Some(end) = end else {
            let found =
                format!("{} from {} after an end at {before}, in row {i}", len.cast_signed(), first.cast_signed());
            return argument.wrong(store, "ranges of elements that follow each other", found);
        };
        offsets.push(end);
    }
    Ok(offsets)
}
