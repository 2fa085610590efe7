//! Where the elements of arrays lie, for `scale_by`: by OME-Zarr's transformations, or by coordinates that are evenly
//! spaced numbers. They are read once, when a reader is opened.

use super::coordinates::{self, Coordinates, StoreGroup};
use super::shapes::shapes;
use dali_zarr_base::error::{Error, ErrorKind, Result, Site};
use dali_zarr_base::first_log::warn_once;
use dali_zarr_samples::dataset::{ArrayInfo, Dataset, Level};
use dali_zarr_samples::geometry::{Place, grid_of, sample_dims};
use dali_zarr_samples::spec::{ScaleBy, Spec};

/// Where the elements of an array lie along a dimension, with its unit.
#[derive(Clone, Debug)]
struct Found {
    place: Place,
    unit: Option<String>,
    /// Whether OME-Zarr's transformations say it.
    is_level: bool,
}

/// Reads the places of each array, in each store, along each of its dimensions. Along those of `dims` that have none in the
/// grid array, and along all other dimensions, they are `None`. Empty without `scale_by`.
///
/// # Errors
/// If they can't be read or understood, or have units that can't be compared.
pub(super) fn read(spec: &Spec, dataset: &Dataset) -> Result<Vec<Vec<Vec<Option<Place>>>>> {
    let Some(scale_by) = spec.samples.scale_by else { return Ok(Vec::new()) };
    let shapes = shapes(spec, dataset)?;
    let names = sample_dims(spec, &shapes)?;
    let Some(grid) = grid_of(spec, &shapes)? else { return Ok(Vec::new()) };
    let none = |array: &ArrayInfo| array.parts.iter().map(|part| vec![None; part.shape.len()]).collect();
    let mut all: Vec<Vec<Vec<Option<Place>>>> = dataset.arrays.iter().map(none).collect();
    let parts = dataset.arrays.iter().map(|array| array.parts.len()).max().unwrap_or(1);
    for number in 0..parts {
        let store = InStore { spec, dataset, number, scale_by };
        for name in &names {
            // The arrays along the dimension that have a part of their own in this store; and the grid, which comes first.
            let dim = |a: usize| shapes[a].dims.iter().position(|dim| dim == name);
            let Some(of_grid) = dim(grid) else { continue };
            let others = (0..shapes.len()).filter(|&a| a != grid).filter_map(|a| Some((a, dim(a)?)));
            let arrays: Vec<(usize, usize)> = std::iter::once((grid, of_grid)).chain(others).collect();
            let Some(found) = store.places(name, &arrays)? else { continue };
            for ((a, d), place) in arrays.into_iter().zip(found) {
                if let Some(own) = all[a].get_mut(number) {
                    own[d] = Some(place);
                }
            }
        }
    }
    Ok(all)
}

/// The arrays in one of the stores.
struct InStore<'a> {
    spec: &'a Spec,
    dataset: &'a Dataset,
    /// The number of each array's part. An array with a store of its own has one part.
    number: usize,
    scale_by: ScaleBy,
}

impl InStore<'_> {
    /// Returns the places along the dimension `name` of arrays, each with the number of this dimension; the grid array first.
    /// `None` if the grid array has none.
    fn places(&self, name: &str, arrays: &[(usize, usize)]) -> Result<Option<Vec<Place>>> {
        let Some(found) = self.found(name, arrays)? else { return Ok(None) };
        let of_grid = found[0].clone();
        let place = |((a, _), found): (&(usize, usize), Found)| -> Result<Place> {
            let factor = factor(found.unit.as_deref(), of_grid.unit.as_deref()).ok_or_else(|| {
                let shown = |unit: &Option<String>| unit.clone().unwrap_or_default();
                Error::value(format!(
                    "scale_by: expected places along \"{name}\" in units that can be compared, but found \"{}\" in array '{}' and \"{}\" in \
                     '{}'; write both in one unit",
                    shown(&of_grid.unit), self.dataset.arrays[arrays[0].0].name, shown(&found.unit), self.dataset.arrays[*a].name
                ))
            })?;
            let Place { first, distance } = found.place;
            // A corner is half an element before the centre.
            let shift = if self.scale_by == ScaleBy::Corners { distance / 2.0 } else { 0.0 };
            Ok(Place { first: (first + shift) * factor, distance: distance * factor })
        };
        let places: Vec<Place> = arrays.iter().zip(found.iter().cloned()).map(place).collect::<Result<_>>()?;
        if self.scale_by == ScaleBy::Coordinates {
            self.tell_equal_translations(arrays, &found);
        }
        Ok(Some(places))
    }

    fn level(&self, array: usize) -> Option<&Level> {
        let parts = &self.dataset.arrays[array].parts;
        parts.get(self.number).or(parts.first())?.level.as_ref()
    }

    /// Returns what says where elements lie: the levels of all arrays if they have some, else coordinates.
    fn found(&self, name: &str, arrays: &[(usize, usize)]) -> Result<Option<Vec<Found>>> {
        let levels: Option<Vec<&Level>> = arrays.iter().map(|(a, _)| self.level(*a)).collect();
        if let Some(levels) = levels {
            let system = Level::common(&levels);
            let along = |(level, (a, d)): (&&Level, &(usize, usize))| {
                let array = &self.dataset.arrays[*a].name;
                let found = level.along(system.as_deref(), *d).map_err(|found| {
                    Error::value(format!(
                        "scale_by: expected transformations that say where elements lie along \"{name}\", but found {found} in array \
                         '{array}' (OME-Zarr's coordinateTransformations); read each image with a reader of its own"
                    ))
                })?;
                let place = placed(found.first, found.distance, name, array)?;
                Ok(Found { place, unit: found.unit, is_level: true })
            };
            return levels.iter().zip(arrays).map(along).collect::<Result<Vec<_>>>().map(Some);
        }
        let Some(first) = self.coordinates(name, arrays[0])? else { return Ok(None) };
        let mut all = vec![first];
        for &(a, d) in &arrays[1..] {
            let Some(found) = self.coordinates(name, (a, d))? else {
                let array = |a: usize| &self.dataset.arrays[a].name;
                return Err(Error::value(format!(
                    "scale_by: expected coordinates along \"{name}\" beside array '{}', as there are beside '{}', but found none that \
                     are numbers; write some, or leave the array out",
                    array(a),
                    array(arrays[0].0)
                )));
            };
            all.push(found);
        }
        Ok(Some(all))
    }

    /// Returns the places of an array by its coordinates along a dimension; `None` if it has none, or they are times or text.
    fn coordinates(&self, name: &str, (a, d): (usize, usize)) -> Result<Option<Found>> {
        let array = &self.dataset.arrays[a];
        let Some(part) = array.parts.get(self.number).or(array.parts.first()) else { return Ok(None) };
        let path = part.path().rsplit_once('/').map_or("", |(group, _)| group).to_owned();
        let group = StoreGroup { store: part.store, path };
        let site = Site::store(self.dataset.stores[part.store].location()).array(&*array.name);
        let found = match coordinates::coordinates(self.spec, self.dataset, &group, name, part.shape[d], site) {
            // What can't be labels.
            Err(e) if e.kind() == ErrorKind::Type => None,
            found => {
                found.map_err(|e| e.within(format!("scale_by: the coordinates along \"{name}\" can't be read")))?
            }
        };
        let Some(Coordinates::Numbers(_, numbers)) = found else { return Ok(None) };
        if numbers.meaning.is_time() {
            return Ok(None);
        }
        // In Zarr v2 the coordinate 0 may be the fill value, and so be taken for a missing one.
        let values = numbers.stored.as_ref().unwrap_or(&numbers.values);
        let (first, distance) = evenly(values, numbers.dtype.size() <= 4).ok_or_else(|| {
            Error::value(format!(
                "scale_by: expected two evenly spaced coordinates or more along \"{name}\" of array '{}', but found {}; leave \"{name}\" \
                 out of dims, or scale_by",
                array.name,
                shown(values)
            ))
        })?;
        let place = placed(first, distance, name, &array.name)?;
        Ok(Some(Found { place, unit: numbers.meaning.units().map(str::to_owned), is_level: false }))
    }

    /// Tells in the log that levels of one image have the same translation: writers leave it out, whatever they do.
    fn tell_equal_translations(&self, arrays: &[(usize, usize)], found: &[Found]) {
        let (Some(of_grid), true) = (self.level(arrays[0].0), found[0].is_level) else { return };
        let grid = found[0].place;
        for (&(a, _), other) in arrays.iter().zip(found).skip(1) {
            let place = other.place;
            let is_same_image = self.level(a).is_some_and(|level| level.is_of_same_image(of_grid));
            let is_scaled = (place.distance - grid.distance).abs() > 0.01 * grid.distance.abs();
            if is_same_image && is_scaled && place.first == grid.first {
                let array = |a: usize| &self.dataset.arrays[a].name;
                warn_once(format!(
                    "{}: scale_by=\"coordinates\": the levels '{}' and '{}' of one image have the same translation, so the centres of \
                     their first elements are at one place, as if elements were left out; if they are means of neighbours, \
                     scale_by=\"corners\" is right",
                    Site::store(self.dataset.stores[self.dataset.arrays[a].parts[0].store].location()),
                    array(arrays[0].0),
                    array(a)
                ));
                return;
            }
        }
    }
}

/// Makes a place of numbers that are finite, and of a distance that isn't 0.
fn placed(first: f64, distance: f64, name: &str, array: &str) -> Result<Place> {
    if !first.is_finite() || !distance.is_normal() {
        return Err(Error::value(format!(
            "scale_by: expected a distance of elements along \"{name}\" in array '{array}' that isn't 0, and finite places, but found the \
             distance {distance} and the first place {first}"
        )));
    }
    Ok(Place { first, distance })
}

/// Returns the first of evenly spaced coordinates, and their distance; `None` if they aren't evenly spaced, or fewer than
/// two. `is_single`: whether they have single precision.
fn evenly(values: &[f64], is_single: bool) -> Option<(f64, f64)> {
    let (first, last) = (*values.first()?, *values.last()?);
    let distance = (last - first) / (values.len().checked_sub(1).filter(|&n| n > 0)? as f64);
    let largest = first.abs().max(last.abs());
    let rounding = if is_single { f64::from(f32::EPSILON) } else { f64::EPSILON } * largest;
    let near = |(i, value): (usize, &f64)| {
        (value - (i as f64).mul_add(distance, first)).abs() <= 1e-3 * distance.abs() + rounding
    };
    // Rounding must leave elements apart.
    let is_even = distance != 0.0 && rounding < 0.25 * distance.abs() && values.iter().enumerate().all(near);
    is_even.then_some((first, distance))
}

fn shown(values: &[f64]) -> String {
    let first: Vec<String> = values.iter().take(4).map(f64::to_string).collect();
    match values.len() {
        0 => "none".into(),
        n if n > 4 => format!("{}, ... ({n} in all)", first.join(", ")),
        _ => first.join(", "),
    }
}

/// Returns by what numbers in a unit are multiplied to be in another one; `None` if they can't be compared. A missing unit is
/// taken for the other one.
fn factor(from: Option<&str>, to: Option<&str>) -> Option<f64> {
    let (Some(from), Some(to)) = (from.map(str::trim), to.map(str::trim)) else { return Some(1.0) };
    if from == to || from.is_empty() || to.is_empty() {
        return Some(1.0);
    }
    let ((one, base), (other, other_base)) = (power(from)?, power(to)?);
    // The quotient of powers of ten is rounded once.
    let power = one - other;
    (base == other_base).then(|| if power < 0 { 1.0 / 10f64.powi(-power) } else { 10f64.powi(power) })
}

/// Returns the power of ten of a unit of length or time with a decimal prefix, and its base.
fn power(unit: &str) -> Option<(i32, char)> {
    const LONG: [(&str, i32); 15] = [
        ("", 0),
        ("deca", 1),
        ("hecto", 2),
        ("kilo", 3),
        ("mega", 6),
        ("giga", 9),
        ("tera", 12),
        ("deci", -1),
        ("centi", -2),
        ("milli", -3),
        ("micro", -6),
        ("nano", -9),
        ("pico", -12),
        ("femto", -15),
        ("atto", -18),
    ];
    const SHORT: [(&str, i32); 9] =
        [("", 0), ("k", 3), ("c", -2), ("m", -3), ("u", -6), ("\u{b5}", -6), ("\u{3bc}", -6), ("n", -9), ("p", -12)];
    if unit == "angstrom" {
        return Some((-10, 'm'));
    }
    let lower = unit.to_lowercase();
    let long = lower.strip_suffix('s').unwrap_or(&lower);
    for (base, names) in [('m', &["meter", "metre"][..]), ('s', &["second"][..])] {
        let prefix = names.iter().find_map(|name| long.strip_suffix(name));
        if let Some((_, power)) = prefix.and_then(|prefix| LONG.iter().find(|(name, _)| *name == prefix)) {
            return Some((*power, base));
        }
        let prefix = unit.strip_suffix(base);
        if let Some((_, power)) = prefix.and_then(|prefix| SHORT.iter().find(|(name, _)| *name == prefix)) {
            return Some((*power, base));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_compared_by_powers_of_ten() {
        for (from, to, expected) in [
            (Some("nanometer"), Some("micrometer"), Some(1e-3)),
            (Some("um"), Some("nanometre"), Some(1e3)),
            (Some("\u{b5}m"), Some("mm"), Some(1e-3)),
            (Some("km"), Some("m"), Some(1e3)),
            (Some("metres"), Some("m"), Some(1.0)),
            (Some("angstrom"), Some("nanometer"), Some(0.1)),
            (Some("millisecond"), Some("second"), Some(1e-3)),
            (Some("m"), Some("s"), None),
            (Some("degrees_north"), Some("m"), None),
            (Some("degrees_north"), Some("degrees_north"), Some(1.0)),
            (None, Some("m"), Some(1.0)),
        ] {
            assert_eq!(factor(from, to), expected, "{from:?} {to:?}");
        }
    }

    #[test]
    fn even_coordinates() {
        let even: Vec<f64> = (0..50).map(|i| 5e6 - 10.0 * (f64::from(i) + 0.5)).collect();
        assert_eq!(evenly(&even, false), Some((4_999_995.0, -10.0)));
        let single: Vec<f64> = (0..50).map(|i| f64::from((0.1 * f64::from(i)) as f32)).collect();
        assert!(evenly(&single, true).is_some_and(|(first, distance)| first == 0.0 && (distance - 0.1).abs() < 1e-7));
        for uneven in
            [vec![], vec![1.0], vec![1.0, 1.0], vec![0.0, 1.0, 3.0], vec![0.0, f64::NAN, 2.0], vec![1e9, 1e9 + 1.0]]
        {
            assert_eq!(evenly(&uneven, uneven.first() == Some(&1e9)), None, "{uneven:?}");
        }
    }
}
