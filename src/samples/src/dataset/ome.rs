//! OME-Zarr: reads from the attributes of a group what they say about the levels of its images.
//!
//! Specifications: OME-NGFF 0.4 (`multiscales` in the attributes), 0.5 (`multiscales` in the attribute `ome`), and 0.6
//! (`coordinateSystems` instead of `axes`, RFC-5). Attributes that don't follow them never keep an array from being read
//! alone. Where arrays are read together, it must be known that their elements lie at the same places: transformations
//! that aren't understood are refused there, unless both arrays have the same ones.

mod affine;
mod places;

use serde_json::{Map, Value};

use affine::Affine;
use dali_zarr_base::error::{Error, Result};
pub use places::LevelPlace;

/// Limit on the coordinate systems of an image, for hostile attributes.
const MAX_SYSTEMS: usize = 64;

/// A level of a multiscale image.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The location of the image's group, and the number of the image in the group.
    image: (String, usize),
    /// The names of the dimensions. `None` if the attributes don't have one for each.
    pub axes: Option<Vec<String>>,
    /// The coordinate systems in which the attributes place the level. The first one is the level's own, which
    /// specifications call intrinsic. Later ones follow from transformations of the image (0.6).
    systems: Vec<System>,
}

/// A coordinate system in which the elements of a level have positions.
#[derive(Clone, Debug, PartialEq)]
struct System {
    /// The name; empty before 0.6.
    name: String,
    /// The names of the axes.
    axes: Vec<String>,
    /// The units of the axes, where they have one; empty if the axes have no names.
    units: Vec<Option<String>>,
    /// Where elements lie; else what isn't understood, as a part of a message.
    places: std::result::Result<Affine, String>,
    /// All transformations from the level to the system, without their names.
    stated: Vec<Value>,
}

/// What a comparison of places found.
enum Compared<'a> {
    Same,
    /// What differs ("scale" or "translation"), the axis, the number of the first level and that of the second.
    Differs(String, &'a str, f64, f64),
    /// The places of a level aren't known: whether it is the first one, and what isn't understood.
    Unclear(bool, &'a str),
}

fn images(attributes: &Map<String, Value>) -> Option<&Vec<Value>> {
    let ome = attributes.get("ome").and_then(|ome| ome.get("multiscales"));
    ome.or_else(|| attributes.get("multiscales"))?.as_array()
}

/// Returns what the attributes of the group at the location `group` say about its array `path`, which has `ndim`
/// dimensions. `None` if they don't describe it as a level, or say neither names nor places.
pub(super) fn level(attributes: &Map<String, Value>, group: &str, path: &str, ndim: usize) -> Option<Level> {
    let parts = |path: &str| -> Vec<String> {
        path.split('/').filter(|part| !matches!(*part, "" | ".")).map(str::to_owned).collect()
    };
    let path = parts(path);
    images(attributes)?.iter().enumerate().find_map(|(number, image)| {
        let is_this = |dataset: &&Value| dataset.get("path").and_then(Value::as_str).is_some_and(|p| parts(p) == path);
        let dataset = image.get("datasets")?.as_array()?.iter().find(is_this)?;
        let mut systems = systems(image, dataset, ndim);
        let axes = dim_names(systems.first()?, ndim);
        if axes.is_none() && systems.iter().all(|system| system.stated.is_empty()) {
            return None;
        }
        if axes.is_none() {
            let count = systems[0].axes.len();
            for system in &mut systems {
                system.places = Err(format!("the names of {count} axes, and {ndim} dimensions"));
            }
        }
        Some(Level { image: (group.to_owned(), number), axes, systems })
    })
}

/// Returns the coordinate systems that an image's level is placed in, its own first.
fn systems(image: &Value, dataset: &Value, ndim: usize) -> Vec<System> {
    let (of_level, of_image) = (transformations(dataset), transformations(image));
    let Some(listed) = image.get("coordinateSystems") else {
        let own = Affine::identity(ndim).then_all(&of_level);
        let axes = image.get("axes").map(Axes::of).unwrap_or_default();
        // spatialdata lists transformations to several coordinate systems, and names these.
        let to: Vec<(&Value, &str)> = of_image.iter().filter_map(|one| Some((one, end(one, "output")?))).collect();
        if !to.is_empty() && to.len() == of_image.len() {
            let mut found = vec![System::new(String::new(), axes.clone(), own.clone(), of_level.clone())];
            for (one, name) in to.into_iter().take(MAX_SYSTEMS) {
                let places = own.clone().and_then(|places| places.then_all(std::slice::from_ref(one)));
                let axes = one["output"].get("axes").map_or_else(|| axes.clone(), Axes::of);
                found.push(System::new(
                    name.to_owned(),
                    axes,
                    places,
                    [&of_level[..], std::slice::from_ref(one)].concat(),
                ));
            }
            return found;
        }
        let places = own.and_then(|places| places.then_all(&of_image));
        return vec![System::new(String::new(), axes, places, [of_level, of_image].concat())];
    };
    let listed = listed.as_array().map_or(&[][..], Vec::as_slice);
    let axes = |name: &str| {
        let is_named = |system: &&Value| system.get("name").and_then(Value::as_str) == Some(name);
        listed.iter().find(is_named).and_then(|system| system.get("axes")).map(Axes::of).unwrap_or_default()
    };
    let first = || listed.first().and_then(|system| system.get("name")?.as_str()).unwrap_or_default().to_owned();
    let outputs: Vec<Option<&str>> = of_level.iter().map(|one| end(one, "output")).collect();
    let (name, own) = match outputs.as_slice() {
        [Some(output), ..] => ((*output).to_owned(), &of_level[..1]),
        _ => (first(), &of_level[..]),
    };
    let places = match outputs.len() > own.len() {
        true => Err(format!("{} transformations of one level", outputs.len())),
        false => Affine::identity(ndim).then_all(own),
    };
    let mut found = vec![System::new(name.clone(), axes(&name), places, of_level.clone())];
    let mut at = 0;
    while let Some(System { name, places, stated, .. }) = found.get(at).cloned() {
        for transformation in of_image.iter().filter(|one| end(one, "input") == Some(name.as_str())) {
            let Some(output) = end(transformation, "output") else { continue };
            if found.len() < MAX_SYSTEMS && found.iter().all(|system| system.name != output) {
                let one = std::slice::from_ref(transformation);
                let places = places.clone().and_then(|places| places.then_all(one));
                found.push(System::new(output.to_owned(), axes(output), places, [&stated, one].concat()));
            }
        }
        at += 1;
    }
    found
}

/// Returns the transformations of a level or of an image. One that isn't in a list is kept, so that it is refused.
fn transformations(of: &Value) -> Vec<Value> {
    match of.get("coordinateTransformations") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list.clone(),
        Some(found) => vec![found.clone()],
    }
}

/// Returns the name of the coordinate system at one end of a transformation; `None` if it names none, or one of another
/// group.
fn end<'a>(transformation: &'a Value, which: &str) -> Option<&'a str> {
    let end = transformation.get(which)?;
    let is_here = end.get("path").is_none_or(|path| path.is_null() || path == "");
    end.as_str().or_else(|| end.get("name")?.as_str().filter(|_| is_here))
}

/// The names and units of axes; empty unless each has a name of its own.
#[derive(Clone, Default)]
struct Axes {
    names: Vec<String>,
    units: Vec<Option<String>>,
}

impl Axes {
    fn of(axes: &Value) -> Self {
        let Some(names) = axis_names(axes) else { return Self::default() };
        let unit = |axis: &Value| axis.get("unit").and_then(Value::as_str).map(str::to_owned);
        Self { names, units: axes.as_array().into_iter().flatten().map(unit).collect() }
    }
}

/// Returns the names of axes; `None` unless each has a name of its own.
fn axis_names(axes: &Value) -> Option<Vec<String>> {
    let name = |axis: &Value| axis.as_str().or_else(|| axis.get("name")?.as_str()).map(str::to_owned);
    let axes: Vec<String> = axes.as_array()?.iter().map(name).collect::<Option<_>>()?;
    let is_own = |(i, axis): (usize, &String)| !axis.is_empty() && !axes[..i].contains(axis);
    axes.iter().enumerate().all(is_own).then_some(axes)
}

/// Returns the names that a coordinate system gives to the dimensions of its array: each that of the only axis along
/// which its elements lie, else all in their order.
fn dim_names(system: &System, ndim: usize) -> Option<Vec<String>> {
    if system.axes.len() != ndim {
        return None;
    }
    let along = |dim: usize| {
        let rows = &system.places.as_ref().ok()?.rows;
        let axis = rows.iter().position(|row| row[dim] != 0.0)?;
        let is_only = rows.iter().enumerate().all(|(i, row)| i == axis || row[dim] == 0.0);
        let is_alone = rows[axis][..ndim].iter().enumerate().all(|(i, &coefficient)| i == dim || coefficient == 0.0);
        (is_only && is_alone).then_some(axis)
    };
    let by_place: Option<Vec<usize>> = (0..ndim).map(along).collect();
    let order = by_place.unwrap_or_else(|| (0..ndim).collect());
    Some(order.into_iter().map(|axis| system.axes[axis].clone()).collect())
}

impl System {
    fn new(
        name: String,
        Axes { names: axes, units }: Axes,
        places: std::result::Result<Affine, String>,
        mut stated: Vec<Value>,
    ) -> Self {
        let places = places.and_then(|places| match places.rows.len() == axes.len() {
            true => Ok(places),
            false => Err(format!("positions along {} axes, and the names of {}", places.rows.len(), axes.len())),
        });
        for object in stated.iter_mut().filter_map(Value::as_object_mut) {
            for key in ["name", "input", "output"] {
                object.remove(key);
            }
        }
        Self { name, axes, units, places, stated }
    }

    /// Compares where the elements of two levels lie in this system and in another, along the axes that both have.
    /// `dims` and `other_dims` are the names of the levels' dimensions.
    fn compare<'a>(
        &'a self,
        dims: &[String],
        other: &'a Self,
        other_dims: &[String],
        only_scale: bool,
    ) -> Compared<'a> {
        let (places, others) = match (&self.places, &other.places) {
            (Ok(places), Ok(others)) => (places, others),
            _ if self.axes == other.axes && self.stated == other.stated && !self.stated.iter().any(has_path) => {
                return Compared::Same;
            }
            (Err(reason), _) => return Compared::Unclear(true, reason),
            (_, Err(reason)) => return Compared::Unclear(false, reason),
        };
        for (axis, row) in self.axes.iter().zip(&places.rows) {
            let Some(at) = other.axes.iter().position(|other| other == axis) else { continue };
            let (one, two) = (Row::of(row, dims), Row::of(&others.rows[at], other_dims));
            // An array that has no extent along an axis of the system lies anywhere along it.
            let is_along = |row: &Row, dims: &[String]| row.step() > 0.0 || dims.contains(axis);
            if !is_along(&one, dims) || !is_along(&two, other_dims) {
                continue;
            }
            let step = one.step();
            let differs = |a: f64, b: f64, size: f64| (a - b).abs() > 1e-6 * a.abs().max(b.abs()).max(size);
            // The dimension of the axis's own name first: its coefficient is what people call the scale.
            let mut names: Vec<&String> = dims.iter().chain(other_dims).collect();
            names.sort_by_key(|name| *name != axis);
            for name in names {
                let (a, b) = (one.along(name), two.along(name));
                if differs(a, b, if name == axis { 0.0 } else { step }) {
                    let what =
                        if name == axis { "scale".into() } else { format!("change for each element of \"{name}\"") };
                    return Compared::Differs(what, axis, a, b);
                }
            }
            // The tolerance is relative to the distance of elements too, not only to the distance from the origin.
            if !only_scale && differs(one.constant, two.constant, step) {
                return Compared::Differs("translation".into(), axis, one.constant, two.constant);
            }
        }
        Compared::Same
    }
}

/// Whether a transformation has numbers that lie in an array.
fn has_path(transformation: &Value) -> bool {
    match transformation {
        Value::Object(fields) => fields.iter().any(|(key, value)| key == "path" || has_path(value)),
        Value::Array(list) => list.iter().any(has_path),
        _ => false,
    }
}

/// The positions along one axis, by the names of dimensions.
struct Row<'a> {
    coefficients: Vec<(&'a str, f64)>,
    constant: f64,
}

impl<'a> Row<'a> {
    fn of(row: &[f64], dims: &'a [String]) -> Self {
        let coefficients = dims.iter().map(String::as_str).zip(row.iter().copied()).collect();
        Self { coefficients, constant: row.last().copied().unwrap_or(0.0) }
    }

    fn along(&self, dim: &str) -> f64 {
        self.coefficients.iter().find(|(name, _)| *name == dim).map_or(0.0, |(_, coefficient)| *coefficient)
    }

    /// Returns the longest distance between neighbouring elements; 0 if all elements lie at one place.
    fn step(&self) -> f64 {
        self.coefficients.iter().map(|(_, coefficient)| coefficient.abs()).fold(0.0, f64::max)
    }
}

impl Level {
    /// Checks that the elements of several levels lie at the same places along the axes that the levels share. Levels
    /// of the same image aren't compared, because they differ by design. Each level comes with a name for messages.
    ///
    /// # Errors
    /// If places differ, or can't be compared.
    pub(super) fn check_places(levels: &[(String, Self)]) -> Result<()> {
        for (i, (name, level)) in levels.iter().enumerate() {
            for (other_name, other) in &levels[..i] {
                if level.image == other.image {
                    continue;
                }
                let message = match level.compare(other, false) {
                    Compared::Same => continue,
                    Compared::Differs(what, axis, a, b) => format!(
                        "expected the same places of elements in images that are read together, but found the {what} {b} \
                         along \"{axis}\" in {other_name} and {a} in {name} (OME-Zarr's coordinateTransformations); read \
                         levels of one scale, or leave one out"
                    ),
                    Compared::Unclear(first, reason) => {
                        unclear("read together", reason, [other_name, name][usize::from(first)])
                    }
                };
                return Err(Error::value(message));
            }
        }
        Ok(())
    }

    /// Checks that two levels that are joined along an axis have the same scale.
    ///
    /// # Errors
    /// If they don't, or it isn't known.
    pub(super) fn check_joined(&self, name: &str, other: &Self, other_name: &str) -> Result<()> {
        Err(Error::value(match self.compare(other, true) {
            Compared::Same => return Ok(()),
            Compared::Differs(what, axis, a, b) => format!(
                "expected the same scale in images that are joined, but found the {what} {b} along \"{axis}\" in {other_name} \
                 and {a} in {name} (OME-Zarr's coordinateTransformations); join stores of one scale, or read them one after \
                 the other with concat=\"samples\""
            ),
            Compared::Unclear(first, reason) => unclear("joined", reason, [other_name, name][usize::from(first)]),
        }))
    }

    /// Compares the places of elements in the coordinate systems that both levels have besides their own, if there are
    /// any: names of their own systems mean nothing to each other. Else compares their own systems, as of images and
    /// their labels.
    fn compare<'a>(&'a self, other: &'a Self, only_scale: bool) -> Compared<'a> {
        let dims = |level: &'a Self| level.axes.as_deref().unwrap_or(&level.systems[0].axes);
        // What the image's transformations add to those of the level.
        let added = |level: &'a Self, system: &'a System| &system.stated[level.systems[0].stated.len()..];
        let compare = |one: &'a System, two: &'a System| one.compare(dims(self), two, dims(other), only_scale);
        let own = compare(&self.systems[0], &other.systems[0]);
        if only_scale {
            return own;
        }
        let mut unclear = None;
        let mut is_same = false;
        for (i, one) in self.systems.iter().enumerate().filter(|(_, one)| !one.name.is_empty()) {
            let Some(at) = other.systems.iter().position(|two| two.name == one.name) else { continue };
            let two = &other.systems[at];
            if i == 0 && at == 0 {
                continue;
            }
            match compare(one, two) {
                Compared::Same => is_same = true,
                differs @ Compared::Differs(..) => return differs,
                // The same unknown transformation moves the same places in the same way.
                Compared::Unclear(..) if matches!(own, Compared::Same) && added(self, one) == added(other, two) => {
                    is_same = true
                }
                found @ Compared::Unclear(..) => unclear = Some(found),
            }
        }
        match (is_same, unclear) {
            (true, _) => Compared::Same,
            (false, Some(unclear)) => unclear,
            (false, None) => own,
        }
    }
}

fn unclear(how: &str, reason: &str, name: &str) -> String {
    format!(
        "expected transformations that tell where the elements of images lie that are {how}, but found {reason} in {name} \
         (OME-Zarr's coordinateTransformations); read each image with a reader of its own, or leave one out"
    )
}

#[cfg(test)]
mod tests;
