//! Opens a reader with all its inputs. First reads the values that the spec asks for (tables, offsets of rows, breaks),
//! then opens the reader.

use std::borrow::Cow;

use super::needs::bound_counts;
use super::opening::{Inputs, UnstartedReader};
use super::openings::{self, Opening};
use super::{breaks, distances, missing, places, rows, tables};
use crate::cache;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::dataset::{self, Dataset, Kept};
use dali_zarr_samples::geometry;
use dali_zarr_samples::spec::{Device, Io, Spec};

/// Returns the spec with the groups that its argument `groups` names, see [`dali_zarr_samples::dataset::resolved`]. They are
/// those of the first opening, if the spec names one.
///
/// # Errors
/// If they can't be found.
pub(crate) fn resolved(spec: &Spec) -> Result<Cow<'_, Spec>> {
    let first = spec.source.opening.as_deref().and_then(openings::find);
    dataset::resolved(spec, first.as_ref().map_or(&[], |first| &first.members))
}

impl UnstartedReader {
    /// Opens the stores, reads metadata and checks the spec against them. Reads no chunks except those of arrays that
    /// `breaks`, `ragged`, `starts` and `weights` ask for, and of dates where stores declare missing ones. Touches no device.
    /// The groups of `spec` are found ([`resolved`]).
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
        let name = spec.source.opening.as_deref();
        let first = name.and_then(openings::find);
        let dataset = Dataset::open_as(spec, first.as_ref().map(|first| &first.dataset))?;
        let (inputs, breaks) = match &first {
            Some(first) => (first.inputs.clone(), first.breaks.clone()),
            None => read(spec, &dataset)?,
        };
        if let (Some(name), None) = (name, &first) {
            let dataset = Kept::of(&dataset);
            let members = spec.source.members.clone();
            openings::fill(name, Opening { dataset, members, inputs: inputs.clone(), breaks: breaks.clone() });
        }
        Self::with(&spec.clone().with(|s| s.samples.breaks.found = breaks), dataset, inputs)
    }
}

/// Reads the values that say which samples there are: the inputs, and the breaks in the stores.
fn read(spec: &Spec, dataset: &Dataset) -> Result<(Inputs, Vec<Vec<i64>>)> {
    let starts = spec.samples.starts.as_deref().map(|source| tables::load(spec, "starts", source)).transpose()?;
    let weights = spec.order.weights.as_deref().map(|source| tables::load(spec, "weights", source)).transpose()?;
    let (rows, missing) = (rows::read(spec, &dataset.stores)?, missing::found(spec, dataset)?);
    let (labels, places) = (distances::found(spec, dataset)?, places::read(spec, dataset)?);
    let inputs = Inputs { samples: geometry::Inputs { starts, rows, missing, labels, places }, weights };
    let breaks = match spec.samples.breaks.are_stored() {
        true => breaks::found(spec, dataset, inputs.samples.rows.as_ref())?,
        false => Vec::new(),
    };
    Ok((inputs, breaks))
}
