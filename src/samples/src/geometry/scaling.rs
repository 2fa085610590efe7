//! Arrays of other resolutions: which axes have places, and how each array is cut along them (`scale_by`).

use super::cuts::{Cut, Row, by_array, common};
use super::requested;
use super::scaled::{Along, Place, Scaled};
use super::views::{View, unequal};
use super::{ArrayShape, Role};
use crate::spec::{Region, ScaleMethod, Spec};
use dali_zarr_base::error::{Error, Result};

/// The windows and steps of samples.
pub(super) struct Sizes {
    given: Given,
    strides: Vec<Row>,
}

enum Given {
    Elements {
        windows: Vec<Row>,
        steps: Row,
        overlaps: Row,
    },
    /// With `scale_by`: units along axes that have places. `grid` is the number of the array whose elements samples start
    /// at.
    Lengths {
        grid: usize,
        method: ScaleMethod,
        windows: Vec<Row<f64>>,
        steps: Row<f64>,
        overlaps: Row<f64>,
    },
}

/// How samples are cut along one axis.
pub(super) struct Sized {
    /// How each array is cut. An array without the axis's dimension has the cut of one that has it.
    pub cuts: Vec<Cut>,
    /// Whether arrays have places along the axis, so that only the grid array's cut counts elements of the axis.
    pub is_scaled: bool,
    pub step: Option<i64>,
    pub overlap: Option<i64>,
}

/// Returns the number of the array whose elements samples start at; `None` without `scale_by`.
///
/// # Errors
/// If `grid` names no output, or is given without `scale_by`, as `scale_method` may be too.
pub fn grid_of(spec: &Spec, arrays: &[ArrayShape]) -> Result<Option<usize>> {
    let given = spec.samples.grid.as_deref();
    if spec.samples.scale_by.is_none() {
        if spec.samples.scale_method != ScaleMethod::Nearest {
            return Err(Error::value(
                "scale_method: expected scale_by too, which it is for; leave it out, or give scale_by=\"coordinates\"",
            ));
        }
        return match given {
            None => Ok(None),
            Some(name) => Err(Error::value(format!(
                "grid: expected scale_by too, which it is for, but found only '{name}'; leave it out, or give scale_by=\"coordinates\""
            ))),
        };
    }
    let Some(name) = given else { return Ok(Some(0)) };
    super::cuts::check_outputs("grid", std::iter::once(name), arrays)?;
    Ok(arrays.iter().position(|array| array.output == name))
}

impl Sizes {
    /// Reads the arguments of `spec` for the axes `names`.
    ///
    /// # Errors
    /// If a name is unknown, or a list has the wrong length.
    pub fn of(spec: &Spec, names: &[String], arrays: &[ArrayShape]) -> Result<Self> {
        let samples = &spec.samples;
        let strides = by_array("stride", &samples.stride, names, arrays)?;
        let given = match grid_of(spec, arrays)? {
            None => Given::Elements {
                windows: by_array("window", &samples.window, names, arrays)?,
                steps: common("step", &samples.step, names, arrays)?,
                overlaps: common("overlap", &samples.overlap, names, arrays)?,
            },
            Some(grid) => Given::Lengths {
                grid,
                method: samples.scale_method,
                windows: by_array("window", &samples.window_lengths, names, arrays)?,
                steps: common("step", &samples.step_lengths, names, arrays)?,
                overlaps: common("overlap", &samples.overlap_lengths, names, arrays)?,
            },
        };
        Ok(Self { given, strides })
    }

    /// The number of the array whose elements samples start at; `None` without `scale_by`.
    pub fn grid(&self) -> Option<usize> {
        match self.given {
            Given::Elements { .. } => None,
            Given::Lengths { grid, .. } => Some(grid),
        }
    }

    /// Whether windows or strides of elements differ by output.
    pub fn differ(&self) -> bool {
        let windows = match &self.given {
            Given::Elements { windows, .. } => windows.as_slice(),
            Given::Lengths { .. } => &[],
        };
        let differ = |rows: &[Row]| rows.iter().any(|of| *of != rows[0]);
        differ(windows) || differ(&self.strides)
    }

    /// Returns how samples are cut along axis number `i`, which has the name `name`.
    ///
    /// # Errors
    /// If a size isn't a number of elements, if lengths of arrays differ along an axis without places, or places of arrays
    /// can't be compared.
    pub fn along(&self, i: usize, name: &str, region: Region, arrays: &[ArrayShape], views: &[View]) -> Result<Sized> {
        let strides: Vec<Option<i64>> = self.strides.iter().map(|row| row[i]).collect();
        let (grid, method, windows, steps, overlaps) = match &self.given {
            Given::Elements { windows, steps, overlaps } => {
                let windows: Vec<Option<i64>> = windows.iter().map(|row| row[i]).collect();
                let cuts = requested::cut(name, region, &windows, &strides)?;
                return Ok(Sized { cuts, is_scaled: false, step: steps[i], overlap: overlaps[i] });
            }
            Given::Lengths { grid, method, windows, steps, overlaps } => (*grid, *method, windows, steps, overlaps),
        };
        let windows: Vec<Option<f64>> = windows.iter().map(|row| row[i]).collect();
        let dim = |a: usize| arrays[a].dims.iter().position(|d| d == name);
        let place = |a: usize, part: usize| place(&arrays[a], dim(a)?, part);
        if place(grid, 0).is_none() {
            check_lengths(name, arrays, views)?;
            let whole = |what: &'static str| move |n: Option<f64>| n.map(|n| whole(what, name, n)).transpose();
            let elements: Vec<Option<i64>> = windows.into_iter().map(whole("window")).collect::<Result<_>>()?;
            let cuts = requested::cut(name, region, &elements, &strides)?;
            let (step, overlap) = (whole("step")(steps[i])?, whole("overlap")(overlaps[i])?);
            return Ok(Sized { cuts, is_scaled: false, step, overlap });
        }
        check(name, region, &strides, arrays, views)?;
        let scaled = |part: usize| cuts(name, region, &windows, (grid, method), part, arrays, views);
        let parts = arrays.iter().map(|array| array.parts.len()).max().unwrap_or(1);
        let all = (0..parts).map(scaled).collect::<Result<Vec<_>>>()?;
        if all.iter().any(|cuts| *cuts != all[0]) {
            return Err(Error::value(format!(
                "scale_by: expected the same places along \"{name}\" in all stores that are joined, relative to those of '{}', but found \
                 different ones; use concat=\"samples\"",
                arrays[grid].output
            )));
        }
        let of_grid = place(grid, 0).expect("checked above");
        let elements = |what: &str, n: Option<f64>| match n {
            None => Ok(None),
            // 0 is the step of samples that start at random places, and no overlap.
            Some(0.0) => Ok(Some(0)),
            Some(n) => of_grid.elements(n, what, name, &arrays[grid].name).map(Some),
        };
        let (step, overlap) = (elements("step", steps[i])?, elements("overlap", overlaps[i])?);
        Ok(Sized { cuts: all.into_iter().next().unwrap_or_default(), is_scaled: true, step, overlap })
    }
}

/// Returns the place of an array's dimension in one of its parts. An array with a store of its own has one part.
fn place(array: &ArrayShape, dim: usize, part: usize) -> Option<Place> {
    let places = array.places.get(part).or(array.places.first())?;
    places.get(dim).copied().flatten()
}

/// Returns a number of elements along an axis without places.
fn whole(what: &str, name: &str, n: f64) -> Result<i64> {
    if n.fract() != 0.0 || n.abs() > (1u64 << 53) as f64 {
        return Err(Error::value(format!(
            "{what}: expected a whole number of elements along \"{name}\", which has neither coordinates that are numbers nor a scale, \
             but found {n}"
        )));
    }
    Ok(n as i64)
}

/// Checks that all arrays have one length along an axis that counts elements.
fn check_lengths(name: &str, arrays: &[ArrayShape], views: &[View]) -> Result<()> {
    let mut lengths = arrays.iter().zip(views).filter_map(|(array, view)| {
        let d = array.dims.iter().position(|d| d == name)?;
        Some((array, view.dims[d].len))
    });
    let Some((first, len)) = lengths.next() else { return Ok(()) };
    match lengths.find(|(_, other)| *other != len) {
        Some((array, other)) => Err(unequal(name, (other, &array.name), (len, &first.name))),
        None => Ok(()),
    }
}

/// Checks that nothing else says which elements there are along an axis with places.
fn check(name: &str, region: Region, strides: &[Option<i64>], arrays: &[ArrayShape], views: &[View]) -> Result<()> {
    let refused = |what: &str, instead: &str| {
        Err(Error::value(format!(
            "{what}, scale_by: expected none along \"{name}\", along which arrays have elements of other sizes; {instead}"
        )))
    };
    if strides.iter().any(|stride| stride.is_some_and(|stride| stride != 1)) {
        return refused("stride", "leave it out there");
    }
    if region.spacing != 1 {
        return refused("sel, isel", "select a slice without a step");
    }
    for (array, view) in arrays.iter().zip(views) {
        let Some(d) = array.dims.iter().position(|d| d == name) else { continue };
        if array.aligned.is_some() && view.dims[d].role == Role::Axis(0) {
            return refused("align", "align arrays along another dimension, which is the first of dims");
        }
        if view.dims[d].pick.is_some() {
            return refused("pick", "choose a region with roi_start and roi_end");
        }
        if view.joined.as_ref().is_some_and(|(joined, _)| *joined == d) {
            return refused(
                "path",
                "join stores along another dimension, which is the first of dims, or use concat=\"samples\"",
            );
        }
    }
    Ok(())
}

/// Returns how each array is cut along an axis with places, by those in one of the stores.
fn cuts(
    name: &str,
    region: Region,
    windows: &[Option<f64>],
    (grid, method): (usize, ScaleMethod),
    part: usize,
    arrays: &[ArrayShape],
    views: &[View],
) -> Result<Vec<Cut>> {
    let dim = |a: usize| arrays[a].dims.iter().position(|d| d == name);
    let along = |a: usize, d: usize| -> Result<(Along, bool)> {
        let array = &arrays[a];
        let Some(place) = place(array, d, part) else {
            return Err(Error::value(format!(
                "scale_by: expected the places of elements along \"{name}\" in array '{}', as there are in '{}': evenly spaced \
                 coordinates, or OME-Zarr's transformations; but found none",
                array.name, arrays[grid].name
            )));
        };
        let of_grid = self::place(&arrays[grid], dim(grid).unwrap_or(0), part).unwrap_or(place);
        let length = match windows[a].unwrap_or(0.0) {
            0.0 => None,
            -1.0 => Some((region.end - region.first) as f64 * of_grid.distance.abs()),
            length => Some(length),
        };
        let window = length.map_or(Ok(1), |length| place.elements(length, "window", name, &array.name))?;
        Ok((Along { place, len: views[a].dims[d].len as i64, window }, length.is_none()))
    };
    let (of_grid, is_dropped) = along(grid, dim(grid).unwrap_or(0))?;
    let own = Cut { window: of_grid.window, dropped: is_dropped, stride: 1, scaled: None };
    let of_array = |a: usize| {
        let Some(d) = dim(a).filter(|_| a != grid) else { return Ok(own) };
        let (along, dropped) = along(a, d)?;
        let scaled = Scaled::new(of_grid, along, method).map_err(|found| {
            Error::value(format!(
                "scale_by: expected places along \"{name}\" that can be compared, but found {found} in the arrays '{}' and '{}'",
                arrays[grid].name, arrays[a].name
            ))
        })?;
        Ok(Cut { window: along.window, dropped, stride: 1, scaled })
    };
    (0..arrays.len()).map(of_array).collect()
}
