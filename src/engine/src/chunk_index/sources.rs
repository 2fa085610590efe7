//! Names of samples, for people: their store, and their start along each axis. DALI has this as `source_info`.

use std::fmt::Write;

use super::ChunkIndex;
use dali_zarr_samples::batch::Names;
use dali_zarr_samples::geometry::Picked;

/// Names the samples of a reader.
#[derive(Debug)]
pub(crate) struct Sources {
    stores: Vec<String>,
    /// If several stores are joined: the first index of each store followed by the end of the last one, and the indices
    /// that `pick` takes.
    joined: Option<(Vec<u64>, Option<Picked>)>,
    /// The text before the start along each axis: a space, the name of the axis and `=`.
    axes: Vec<String>,
    /// Whether the index of a sample begins with the number of its store. The start then counts in that store alone.
    names_store: bool,
    /// Whether the index of a sample has the number of its segment, after that of the store.
    names_segments: bool,
}

impl Sources {
    pub fn new(chunk_index: &ChunkIndex) -> Self {
        let geometry = chunk_index.planner.geometry();
        let joined = geometry.views.iter().find_map(|view| {
            let (dim, starts) = view.joined.as_ref()?;
            Some((starts.clone(), view.dims[*dim].pick.clone()))
        });
        Self {
            stores: (0..chunk_index.dataset.stores.len()).map(|store| chunk_index.dataset.location(store)).collect(),
            joined,
            names_store: geometry.names_store,
            names_segments: geometry.names_segments && !geometry.axes.is_empty(),
            axes: geometry.axes.iter().map(|axis| format!(" {}=", axis.name)).collect(),
        }
    }

    /// Returns the names of `samples` samples. `starts` has the index of each sample, as in the index output.
    pub fn names(&self, starts: &[i64], samples: usize) -> Names {
        let mut text = String::with_capacity(samples * 64);
        let mut ends = Vec::with_capacity(samples);
        for sample in 0..samples {
            let columns = self.axes.len() + usize::from(self.names_store) + usize::from(self.names_segments);
            let start = starts.get(sample * columns..(sample + 1) * columns).unwrap_or_default();
            let (store, start) = match start {
                [store, start @ ..] if self.names_store => (Some(*store as usize), start),
                _ => (None, start),
            };
            let (segment, start) = match start {
                [segment, start @ ..] if self.names_segments => (Some(*segment), start),
                _ => (None, start),
            };
            let store = store.unwrap_or_else(|| self.store_of(start.first().copied().unwrap_or(0)));
            text.push_str(self.stores.get(store).map_or("", String::as_str));
            if let Some(segment) = segment {
                let _ = write!(text, " segment={segment}");
            }
            for (axis, start) in self.axes.iter().zip(start) {
                text.push_str(axis);
                let _ = write!(text, "{start}");
            }
            ends.push(text.len().try_into().unwrap_or(u32::MAX));
        }
        Names { text, ends }
    }

    /// Returns the number of the store in which a sample starts.
    fn store_of(&self, start: i64) -> usize {
        let Some((starts, pick)) = &self.joined else { return 0 };
        let at = start.max(0) as u64;
        let at = pick.as_ref().map_or(at, |pick| pick.of(0).get(at as usize).copied().unwrap_or(0));
        (starts.partition_point(|&first| first <= at).max(1) - 1).min(self.stores.len() - 1)
    }
}
