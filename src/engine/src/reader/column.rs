//! Arrays of one dimension whose values the host needs whole: coordinates, ends of segments. They are read with a reader.

use std::sync::Arc;

use super::Reader;
use super::opening::Opened;
use crate::budget::smallest;
use crate::dataset::{ArrayInfo, Dataset, decoded_array};
use crate::dtype::DType;
use crate::error::Result;
use crate::spec::{DimKey, PerOutput, Spec};
use crate::store::Store;

/// Limit on the values of one array: they take 512 MiB.
pub(crate) const MAX_VALUES: u64 = 1 << 26;
/// Host memory for reading them, unless more is needed.
const MEMORY: u64 = 64 << 20;

/// The array `name` of a group, or of the nearest group around it that has one.
///
/// # Errors
/// If its metadata can't be read.
pub(crate) fn nearest(store: &dyn Store, group: &str, name: &str) -> Result<Option<ArrayInfo>> {
    let path = if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") };
    match decoded_array(store, &path)? {
        None if !group.is_empty() => nearest(store, group.rsplit_once('/').map_or("", |(parent, _)| parent), name),
        found => Ok(found),
    }
}

/// All values of an array of one dimension with at least one element.
///
/// # Errors
/// If they can't be read.
pub(crate) fn values(store: &Arc<dyn Store>, array: ArrayInfo) -> Result<Vec<f64>> {
    let mut spec = Spec::default().with(|s| {
        s.source.paths = vec![store.location().to_owned()];
        s.samples.dims = vec![DimKey::Index(0)];
        s.samples.window = vec![-1].into();
        s.values.mask_and_scale = PerOutput::one(true);
        s.values.dtype = PerOutput::one(DType::F64);
        s.resources.prefetch_queue_depth = Some(1);
        s.resources.io_threads = Some(1);
        s.resources.decode_threads = Some(1);
    });
    let opened = Opened::of(&spec, Dataset { stores: vec![Arc::clone(store)], arrays: vec![array] })?;
    spec.resources.host_memory_limit =
        Some(MEMORY.max(smallest(&opened.needs, spec.resources.prefetch_queue_depth).host));
    let batch = Reader::start(&spec, opened)?.next_batch()?;
    let (values, _) = batch.host[0].as_slice().as_chunks();
    Ok(values.iter().map(|&bytes| f64::from_ne_bytes(bytes)).collect())
}
