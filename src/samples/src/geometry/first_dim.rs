//! The first of `dims`, along which stores may be joined and breaks lie.

use super::ArrayShape;
use super::dims::sample_dims;
use super::views::{Role, View, views};
use crate::spec::Spec;
use dali_zarr_base::error::Result;

/// The first of `dims`. Breaks lie along it.
pub struct FirstDim {
    /// Its name.
    pub name: String,
    /// The first element of each store, and the end of the last one. Where labels are put between those of the stores, all
    /// stores are one.
    pub stores: Vec<u64>,
    /// The elements that `pick` takes of it, counted over all stores; `None` if `pick` doesn't name it.
    pub pick: Option<Vec<u64>>,
}

impl FirstDim {
    /// Finds the first of `dims`; `None` if no array has a dimension.
    ///
    /// # Errors
    /// Those of [`Geometry::of`](super::Geometry::of) about dimensions, `pick` and stores.
    pub fn of(spec: &Spec, arrays: &[ArrayShape]) -> Result<Option<Self>> {
        let names = sample_dims(spec, arrays)?;
        let views = views(spec, arrays, &names)?;
        let along = |view: &View| view.dims.iter().position(|dim| dim.role == Role::Axis(0));
        // With `scale_by`, elements of the first of `dims` are those of the grid array, if it has them.
        let grid = super::scaling::grid_of(spec, arrays)?.into_iter().map(|grid| (grid, &views[grid]));
        let own = grid.chain(views.iter().enumerate()).filter(|(a, _)| arrays[*a].has_own_axis());
        let Some((array, d)) = own.filter_map(|(a, view)| Some((a, along(view)?))).next() else {
            return Ok(None);
        };
        let (stores, pick) = match (&arrays[array].aligned, &views[array].joined) {
            (Some(aligned), _) => (vec![0, aligned.len()], views[array].along.as_ref().map(|along| along.of(0))),
            (None, Some((joined, starts))) if *joined == d => (starts.clone(), views[array].dims[d].picked(0)),
            _ => (vec![0, arrays[array].parts[0][d]], views[array].dims[d].picked(0)),
        };
        let pick = pick.map(<[u64]>::to_vec);
        Ok(Some(Self { name: names[0].clone(), stores, pick }))
    }

    /// Returns its length in one store, before `pick`.
    pub fn len(&self, store: usize) -> u64 {
        self.stores[store + 1] - self.stores[store]
    }
}
