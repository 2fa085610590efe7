//! Opens a reader with all its inputs. First reads the values that the spec asks for (tables, offsets of rows, breaks),
//! then opens the reader.

use super::needs::bound_counts;
use super::opening::{Inputs, UnstartedReader};
use super::{breaks, rows, tables};
use crate::cache;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::geometry;
use crate::spec::{Device, Io, Spec};

impl UnstartedReader {
    /// Opens the stores, reads metadata and checks the spec against them. Reads no chunks except those of arrays that
    /// `breaks`, `ragged`, `starts` and `weights` ask for. Touches no device.
    ///
    /// # Errors
    /// If the arguments, the metadata or these arrays are wrong. The error says what is wrong.
    pub fn new(spec: &Spec) -> Result<Self> {
        if spec.resources.io == Io::Gds && spec.device == Device::Cpu {
            return Err(Error::value("io=\"gds\" needs device=\"gpu\": GPUDirect Storage reads to a device"));
        }
        // Numbers of threads and batches are checked before they are used.
        bound_counts(spec)?;
        cache::check(spec)?;
        let dataset = Dataset::open(spec)?;
        let starts = spec.samples.starts.as_deref().map(|source| tables::load(spec, "starts", source)).transpose()?;
        let weights = spec.order.weights.as_deref().map(|source| tables::load(spec, "weights", source)).transpose()?;
        let samples = geometry::Inputs { starts, rows: rows::read(spec, &dataset.stores)? };
        let inputs = Inputs { samples, weights };
        if !spec.samples.breaks.are_stored() {
            return Self::with(spec, dataset, inputs);
        }
        let found = breaks::found(spec, &dataset, inputs.samples.rows.as_ref())?;
        Self::with(&spec.clone().with(|s| s.samples.breaks.found = found), dataset, inputs)
    }
}
