//! Reads the tables that arguments name: `starts` and `weights`.
//!
//! A table is a NumPy file (`.npy`), a table that the host keeps in the library, or a Zarr array, which is read by a
//! reader of its own.

use std::path::Path;
use std::sync::Arc;

use super::Reader;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_base::table::{Element, Table, kept, read_npy, room};
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::spec::{ArrayArgument, DimKey, OutOfBounds, PerOutput, Spec};
use dali_zarr_stores as store;

/// Maximum number of bytes that are read at a time, unless a chunk is larger.
const PIECE: u64 = 4 << 20;

/// An element type of tables that are read from Zarr arrays.
pub(super) trait Stored: Element {
    /// The type that an array is read as.
    const DTYPE: DType;
    /// Whether this type can represent each value of the type `stored` exactly.
    fn holds(stored: DType) -> bool;
}

impl Stored for i64 {
    const DTYPE: DType = DType::I64;
    fn holds(stored: DType) -> bool {
        use DType::{I8, I16, I32, I64, U8, U16, U32};
        matches!(stored, I8 | I16 | I32 | I64 | U8 | U16 | U32)
    }
}

impl Stored for f64 {
    const DTYPE: DType = DType::F64;
    fn holds(stored: DType) -> bool {
        use DType::{F16, F32, F64, I8, I16, I32, U8, U16, U32};
        matches!(stored, I8 | I16 | I32 | U8 | U16 | U32 | F16 | F32 | F64)
    }
}

/// Reads the table that `source`, the value of `argument`, names.
///
/// # Errors
/// If the table is missing, damaged, of another type, or too large for memory.
pub(super) fn load<T: Stored>(spec: &Spec, argument: &str, source: &str) -> Result<Arc<Table<T>>> {
    let limit = spec.resources.host_memory_limit;
    let table = if kept::is_name(source) {
        kept::find(source)
    } else if source.ends_with(".npy") && store::is_remote(source) {
        Err(Error::value(format!(
            "{source}: expected a .npy file on a local disk; copy it there, or store the table as a Zarr array"
        )))
    } else if source.ends_with(".npy") {
        read_npy(Path::new(source.strip_prefix("file://").unwrap_or(source)), limit).map(Arc::new)
    } else {
        of_zarr(spec, source, limit).map(Arc::new)
    };
    table.map_err(|e| e.within(argument))
}

/// Returns the spec of a reader of the array `source`, which is a store of its own or an array in the first store of
/// `path`.
fn place(spec: &Spec, source: &str) -> Spec {
    let array = ArrayArgument::from(source);
    let is_own = array.is_own();
    let (path, arrays) = match spec.source.first_store() {
        Some(path) if !is_own => (path.clone(), vec![array]),
        _ => (source.to_owned(), Vec::new()),
    };
    let has_options = !is_own || store::is_remote(source);
    Spec::default().with(|s| {
        s.source.paths = vec![path];
        s.source.arrays = arrays;
        if has_options {
            s.source.storage_options.clone_from(&spec.source.storage_options);
        }
        s.values.mask_and_scale = PerOutput::one(false);
    })
}

/// Reads a table from a Zarr array of two dimensions, or of one dimension, which makes one column.
fn of_zarr<T: Stored>(spec: &Spec, source: &str, limit: Option<u64>) -> Result<Table<T>> {
    let of = place(spec, source);
    let dataset = Dataset::open(&of)?;
    let array = &dataset.arrays[0];
    let part = &array.parts[0];
    let at = |e: Error| e.at(Site::store(dataset.stores[part.store].location()).array(&*array.name));
    let (rows, columns) = match part.shape[..] {
        [rows] => (rows, 1),
        [rows, columns] if columns > 0 => (rows, columns),
        _ => {
            return Err(at(Error::value(format!(
                "expected one or two dimensions, but found the shape {:?}",
                part.shape
            ))));
        }
    };
    if !T::holds(array.dtype) {
        return Err(at(Error::dtype(format!("expected {}, but found {}", T::NAME, array.dtype.name()))));
    }
    let values = rows
        .checked_mul(columns)
        .ok_or_else(|| at(Error::value("the shape has more elements than can be addressed")))?;
    let mut out: Vec<T> = room(values, limit)?;
    if rows > 0 {
        let chunk = part.grid[0].longest();
        let window = chunk.saturating_mul((PIECE / 8 / columns / chunk).max(1)).min(rows);
        let of = of.with(|s| {
            s.samples.dims = vec![DimKey::Index(0)];
            s.samples.window = vec![window as i64].into();
            s.samples.out_of_bounds_policy = OutOfBounds::Pad;
            s.values.dtype = PerOutput::one(T::DTYPE);
            s.resources.io_threads = spec.resources.io_threads;
            s.resources.io_concurrency = spec.resources.io_concurrency;
            s.resources.decode_threads = spec.resources.decode_threads;
        });
        let reader = Reader::small(of, dataset)?;
        while (out.len() as u64) < values {
            let batch = reader.next_batch()?;
            let left = usize::try_from(values).unwrap_or(usize::MAX) - out.len();
            out.extend(batch.host[0].as_slice().as_chunks::<8>().0.iter().take(left).map(|&bytes| T::from_le(bytes)));
        }
    }
    Table::new(out, usize::try_from(columns).unwrap_or(usize::MAX))
}
