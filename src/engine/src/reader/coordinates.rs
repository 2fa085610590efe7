//! Coordinates: the array with the name of a dimension, in the group of the arrays that have it or in the nearest group around it, as
//! CF and xarray's `DataTree` have it. Reads them, and checks that arrays of several stores are in step.

use std::sync::Arc;

use super::Reader;
use super::opening::Opened;
use crate::dataset::{ArrayInfo, Dataset, lone_array, open_around};
use crate::dtype::DType;
use crate::error::{Error, Result, Site};
use crate::geometry::Role;
use crate::spec::{DimKey, PerOutput, Spec};
use crate::store::Store;

/// Limit on coordinates: they take 512 MiB.
pub(crate) const MAX_COORDINATES: u64 = 1 << 26;

/// The array `name` of a group, or of the nearest group around it that has one.
///
/// # Errors
/// If its metadata can't be read.
pub(crate) fn nearest(store: &dyn Store, group: &str, name: &str) -> Result<Option<ArrayInfo>> {
    let path = if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") };
    match lone_array(store, &path, true)? {
        None if !group.is_empty() => nearest(store, group.rsplit_once('/').map_or("", |(parent, _)| parent), name),
        found => Ok(found),
    }
}

/// All values of an array of one dimension.
///
/// # Errors
/// If they can't be read.
pub(crate) fn read(store: &Arc<dyn Store>, array: ArrayInfo) -> Result<Vec<f64>> {
    if array.parts[0].shape.contains(&0) {
        return Ok(Vec::new());
    }
    let spec = Spec::default().with(|s| {
        s.source.paths = vec![store.location().to_owned()];
        s.samples.dims = vec![DimKey::Index(0)];
        s.samples.window = vec![-1].into();
        s.values.mask_and_scale = PerOutput::one(true);
        s.values.dtype = PerOutput::one(DType::F64);
        s.resources.prefetch_queue_depth = Some(1);
        s.resources.io_threads = Some(1);
        s.resources.decode_threads = Some(1);
    });
    let batch = Reader::small(spec, Dataset::of_array(store, array))?.next_batch()?;
    let (values, _) = batch.host[0].as_slice().as_chunks();
    Ok(values.iter().map(|&bytes| f64::from_ne_bytes(bytes)).collect())
}

/// Where an array along a dimension has its coordinates.
#[derive(PartialEq, Eq)]
struct Place {
    store: usize,
    group: String,
}

/// The coordinates of an array along a dimension.
struct Coordinates {
    /// Of the array, for messages.
    site: Site,
    dtype: DType,
    /// What they count, if they are times.
    unit: Option<Unit>,
    values: Vec<f64>,
}

/// Checks that arrays with stores of their own have equal coordinates along the dimensions that samples are cut along, where there
/// are some. Nothing is read if all arrays are in one store.
///
/// # Errors
/// If they don't, or their coordinates can't be read.
pub(crate) fn check_in_step(spec: &Spec, opened: &Opened) -> Result<()> {
    if spec.source.own().next().is_none() {
        return Ok(());
    }
    let (dataset, geometry) = (&opened.chunk_index.dataset, opened.chunk_index.planner.geometry());
    for (a, axis) in geometry.axes.iter().enumerate() {
        let mut places: Vec<Place> = Vec::new();
        let mut first: Option<Coordinates> = None;
        for (array, view) in dataset.arrays.iter().zip(&geometry.views) {
            let Some(d) = view.dims.iter().position(|dim| dim.role == Role::Axis(a)) else { continue };
            let part = &array.parts[0];
            let group = part.path().rsplit_once('/').map_or("", |(group, _)| group).to_owned();
            let place = Place { store: part.store, group };
            if places.contains(&place) {
                continue;
            }
            let site = Site::store(dataset.stores[part.store].location());
            let site = if dataset.around[part.store].is_some() { site } else { site.array(&*array.name) };
            let found = coordinates(spec, dataset, &place, &axis.name, part.shape[d], site.clone());
            let found = found.map_err(|e| {
                let why = format!(
                    "{site}: the coordinates along \"{}\", which other arrays must share, can't be read",
                    axis.name
                );
                e.within(why)
            })?;
            places.push(place);
            match (&first, found) {
                (Some(first), Some(found)) => first.check(&found, &axis.name)?,
                (None, found) => first = found,
                (Some(_), None) => {}
            }
        }
    }
    Ok(())
}

/// The coordinates that an array of `len` elements along `dim` has at `place`; `None` if it has none.
fn coordinates(
    spec: &Spec,
    dataset: &Dataset,
    place: &Place,
    dim: &str,
    len: u64,
    site: Site,
) -> Result<Option<Coordinates>> {
    let store = match &dataset.around[place.store] {
        None => Some(Arc::clone(&dataset.stores[place.store])),
        Some(around) => open_around(spec, around),
    };
    let Some(store) = store else { return Ok(None) };
    let array = match nearest(&*store, &place.group, dim) {
        // A store may refuse what isn't there.
        Err(e) if e.is_refused() => None,
        array => array?,
    };
    let Some(array) = array.filter(|array| array.parts[0].shape == [len] && len <= MAX_COORDINATES) else {
        return Ok(None);
    };
    let (dtype, unit) = (array.cf.decoded, array.units.as_deref().and_then(Unit::parse));
    Ok(Some(Coordinates { site, dtype, unit, values: read(&store, array)? }))
}

impl Coordinates {
    fn check(&self, other: &Self, dim: &str) -> Result<()> {
        let differs: Box<dyn Fn(f64, f64) -> bool> = match (self.unit, other.unit) {
            (Some(unit), Some(of)) if unit != of => {
                // Both count from the same instant then, in seconds; microseconds are below what float64 has of dates.
                Box::new(move |a, b| {
                    (a.mul_add(unit.seconds, unit.origin) - b.mul_add(of.seconds, of.origin)).abs() > 1e-3
                })
            }
            // 0.1 of float32 is the 0.1 of float64 that it was made of.
            _ if self.dtype == DType::F32 || other.dtype == DType::F32 => Box::new(|a, b| (a as f32) != (b as f32)),
            _ => Box::new(|a, b| a != b),
        };
        let pairs = self.values.iter().zip(&other.values);
        // Missing coordinates, such as zeros in Zarr v2 where zero is the fill value, say nothing.
        let mut wrong = pairs.enumerate().filter(|(_, (a, b))| !a.is_nan() && !b.is_nan() && differs(**a, **b));
        let Some((i, (a, b))) = wrong.next() else { return Ok(()) };
        Err(Error::value(format!(
            "expected arrays that are cut along \"{dim}\" together to have the same coordinates there, but found {a} at index {i} in \
             {}, and {b} in {}; give arrays that are in step",
            self.site, other.site
        )))
    }
}

/// What times count: seconds, from an instant in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Unit {
    seconds: f64,
    origin: f64,
}

impl Unit {
    /// Reads `hours since 1900-01-01 12:00` of the usual calendar, and `datetime64[ns]`; `None` for others.
    fn parse(text: &str) -> Option<Self> {
        if let Some(unit) = text.strip_prefix("datetime64[") {
            let unit = unit.strip_suffix(']')?;
            let (scale, name) = unit.split_at(unit.bytes().take_while(u8::is_ascii_digit).count());
            let scale = if scale.is_empty() { 1.0 } else { scale.parse().ok()? };
            return Some(Self { seconds: scale * seconds(name)?, origin: 0.0 });
        }
        let (name, since) = text.split_once(" since ")?;
        let (date, time) = since.trim().split_once([' ', 'T']).unwrap_or((since.trim(), ""));
        let time = time.trim_end_matches('Z').trim_end_matches("UTC").trim();
        let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        // Before this calendars differ.
        if !(1583..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        let mut clock = 0.0;
        for (part, weight) in time.split(':').filter(|part| !part.is_empty()).zip([3600.0, 60.0, 1.0]) {
            clock += part.parse::<f64>().ok()? * weight;
        }
        Some(Self { seconds: seconds(name.trim())?, origin: days(year, month, day) as f64 * 86400.0 + clock })
    }
}

fn seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "D" | "d" | "day" | "days" => 86400.0,
        "h" | "hr" | "hour" | "hours" => 3600.0,
        "m" | "min" | "minute" | "minutes" => 60.0,
        "s" | "sec" | "second" | "seconds" => 1.0,
        "ms" | "millisecond" | "milliseconds" => 1e-3,
        "us" | "microsecond" | "microseconds" => 1e-6,
        "ns" | "nanosecond" | "nanoseconds" => 1e-9,
        _ => return None,
    })
}

/// Days from 1970-01-01 to a date, in years that begin with March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_times() {
        let day = 86400.0;
        for (text, seconds, origin) in [
            ("hours since 1970-01-02", 3600.0, day),
            ("days since 1900-01-01 00:00:00", day, -25567.0 * day),
            ("seconds since 2000-03-01T12:30:05Z", 1.0, 11017.0 * day + 45005.0),
            ("datetime64[10s]", 10.0, 0.0),
            ("datetime64[ns]", 1e-9, 0.0),
        ] {
            assert_eq!(Unit::parse(text), Some(Unit { seconds, origin }), "{text}");
        }
        for text in [
            "K",
            "hours",
            "days since yesterday",
            "months since 2000-01-01",
            "days since 0001-01-01",
            "datetime64[M]",
            "",
            " since ",
        ] {
            assert_eq!(Unit::parse(text), None, "{text}");
        }
    }
}
