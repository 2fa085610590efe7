//! OME-Zarr: reads from the attributes of a group what they say about the levels of its images.
//!
//! Specifications: OME-NGFF 0.4 (`multiscales` in the attributes) and 0.5 (`multiscales` in the attribute `ome`).
//! Attributes that don't follow them are ignored: they never keep an array from being read.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A level of a multiscale image.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// The path of the image's group, and the number of the image in the group.
    image: (String, usize),
    /// The names of the dimensions.
    pub axes: Vec<String>,
    /// How to compute a position from an index, for each dimension. `None` if the attributes don't give plain numbers.
    transforms: Option<Vec<AxisTransform>>,
}

/// Where the elements along a dimension lie: `position = index * scale + translation`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AxisTransform {
    scale: f64,
    translation: f64,
}

/// Whether a group's attributes describe images.
pub(super) fn has_images(attributes: &Map<String, Value>) -> bool {
    images(attributes).is_some()
}

fn images(attributes: &Map<String, Value>) -> Option<&Vec<Value>> {
    let ome = attributes.get("ome").and_then(Value::as_object).unwrap_or(attributes);
    ome.get("multiscales")?.as_array()
}

/// Returns what the attributes of the group `group` say about its array `path`, which has `ndim` dimensions. `None` if
/// they don't describe it as a level.
pub(super) fn level(attributes: &Map<String, Value>, group: &str, path: &str, ndim: usize) -> Option<Level> {
    images(attributes)?.iter().enumerate().find_map(|(number, image)| {
        let is_this = |dataset: &&Value| {
            dataset
                .get("path")
                .and_then(Value::as_str)
                .is_some_and(|p| p.trim_start_matches("./").trim_matches('/') == path)
        };
        let dataset = image.get("datasets")?.as_array()?.iter().find(is_this)?;
        let name = |axis: &Value| axis.as_str().or_else(|| axis.get("name")?.as_str()).map(str::to_owned);
        let axes: Vec<String> = image.get("axes")?.as_array()?.iter().map(name).collect::<Option<_>>()?;
        let is_own = |(i, axis): (usize, &String)| !axis.is_empty() && !axes[..i].contains(axis);
        if axes.len() != ndim || !axes.iter().enumerate().all(is_own) {
            return None;
        }
        let mut transforms = vec![AxisTransform { scale: 1.0, translation: 0.0 }; ndim];
        let known = apply(dataset, &mut transforms).and_then(|()| apply(image, &mut transforms));
        Some(Level { image: (group.to_owned(), number), axes, transforms: known.map(|()| transforms) })
    })
}

/// Applies the transformations of a level or of an image to `transforms`, in their order. `None` if one isn't a scale or a
/// translation in plain numbers.
fn apply(of: &Value, transforms: &mut [AxisTransform]) -> Option<()> {
    let transformations = match of.get("coordinateTransformations") {
        None | Some(Value::Null) => return Some(()),
        Some(list) => list.as_array()?,
    };
    for transformation in transformations {
        let kind = transformation.get("type")?.as_str()?;
        if kind == "identity" {
            continue;
        }
        let numbers = transformation.get(kind)?.as_array()?;
        let numbers: Vec<f64> = numbers.iter().map(Value::as_f64).collect::<Option<_>>()?;
        if numbers.len() != transforms.len() {
            return None;
        }
        for (transform, number) in transforms.iter_mut().zip(numbers) {
            match kind {
                "scale" => {
                    *transform =
                        AxisTransform { scale: transform.scale * number, translation: transform.translation * number }
                }
                "translation" => transform.translation += number,
                _ => return None,
            }
        }
    }
    Some(())
}

impl Level {
    /// Checks that the elements of several levels lie at the same places along the dimensions that the levels share.
    /// Levels of the same image aren't compared, because they differ by design. Each level comes with a name for
    /// messages.
    ///
    /// # Errors
    /// If places differ.
    pub(super) fn check_places(levels: &[(String, Self)]) -> Result<()> {
        for (i, (name, level)) in levels.iter().enumerate() {
            for (other_name, other) in &levels[..i] {
                if level.image != other.image {
                    level.check(name, other, other_name)?;
                }
            }
        }
        Ok(())
    }

    /// Checks that two levels that are joined along an axis have the same scale.
    ///
    /// # Errors
    /// If they don't.
    pub(super) fn check_joined(&self, name: &str, other: &Self, other_name: &str) -> Result<()> {
        let Some((_, axis, a, b)) = self.difference(other, true) else { return Ok(()) };
        Err(Error::value(format!(
            "expected the same scale in images that are joined, but found {b} along \"{axis}\" in {other_name} and {a} in {name} \
             (OME-Zarr's coordinateTransformations); join stores of one scale, or read them one after the other with \
             concat=\"samples\""
        )))
    }

    fn check(&self, name: &str, other: &Self, other_name: &str) -> Result<()> {
        let Some((what, axis, a, b)) = self.difference(other, false) else { return Ok(()) };
        Err(Error::value(format!(
            "expected the same places of elements in images that are read together, but found the {what} {b} along \
             \"{axis}\" in {other_name} and {a} in {name} (OME-Zarr's coordinateTransformations); read levels of one \
             scale, or leave one out"
        )))
    }

    /// Returns the first difference along the axes that both levels have: "scale" or "translation", the axis, the
    /// number of this level and that of the other. `None` if there is no difference.
    fn difference(&self, other: &Self, only_scale: bool) -> Option<(&'static str, &str, f64, f64)> {
        let (transforms, others) = (self.transforms.as_ref()?, other.transforms.as_ref()?);
        self.axes.iter().zip(transforms).find_map(|(axis, transform)| {
            let of = &others[other.axes.iter().position(|other| other == axis)?];
            let numbers = [
                ("scale", transform.scale, of.scale, 0.0),
                // The tolerance is relative to the distance of elements too, not only to the distance from the origin.
                ("translation", transform.translation, of.translation, transform.scale.abs()),
            ];
            let differs =
                |&&(_, a, b, size): &&(_, f64, f64, f64)| (a - b).abs() > 1e-6 * a.abs().max(b.abs()).max(size);
            let (what, a, b, _) = *numbers[..if only_scale { 1 } else { 2 }].iter().find(differs)?;
            Some((what, axis.as_str(), a, b))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn image(axes: Value, of_level: Value, of_image: Value) -> Map<String, Value> {
        let level = json!({"path": "0", "coordinateTransformations": of_level});
        let image = json!({"axes": axes, "datasets": [level], "coordinateTransformations": of_image});
        json!({"multiscales": [image]}).as_object().unwrap().clone()
    }

    #[test]
    fn both_levels_of_transformations_count() {
        let axes = json!([{"name": "t", "type": "time"}, {"name": "x", "type": "space", "unit": "micrometer"}]);
        let of_level = json!([{"type": "scale", "scale": [1, 0.5]}, {"type": "translation", "translation": [0, 3]}]);
        let of_image = json!([{"type": "scale", "scale": [0.1, 2.0]}]);
        let old = image(axes, of_level, of_image);
        let new = json!({"ome": {"version": "0.5", "multiscales": old["multiscales"]}});
        for attributes in [&old, new.as_object().unwrap()] {
            let found = level(attributes, "g", "0", 2).unwrap();
            assert_eq!(found.axes, ["t", "x"]);
            let transform = |scale, translation| AxisTransform { scale, translation };
            assert_eq!(found.transforms, Some(vec![transform(0.1, 0.0), transform(1.0, 6.0)]));
            assert_eq!((level(attributes, "g", "1", 2), level(attributes, "g", "0", 3)), (None, None));
        }
    }

    #[test]
    fn places_are_compared_along_shared_dimensions() {
        let of = |group: &str, axes: Value, scale: Value, translation: Value| {
            let all = json!([{"type": "scale", "scale": scale}, {"type": "translation", "translation": translation}]);
            level(&image(axes, all, Value::Null), group, "0", 2).unwrap()
        };
        let check = |a: &Level, b: &Level| Level::check_places(&[("a".into(), a.clone()), ("b".into(), b.clone())]);
        let one = of("", json!(["c", "x"]), json!([1, 0.3]), json!([0, 5]));
        assert!(check(&one, &of("l", json!(["x", "t"]), json!([0.1 + 0.2, 9]), json!([5, 9]))).is_ok());
        let error = check(&one, &of("l", json!(["x", "t"]), json!([0.6, 1]), json!([5, 0]))).unwrap_err();
        assert!(error.message().contains("the scale 0.3 along \"x\" in a and 0.6 in b"), "{error}");
        let error = check(&one, &of("l", json!(["y", "x"]), json!([9, 0.3]), json!([0, 4.9]))).unwrap_err();
        assert!(error.message().contains("the translation 5 along \"x\" in a and 4.9 in b"), "{error}");
        assert!(check(&one, &of("", json!(["c", "x"]), json!([1, 0.6]), json!([0, 5]))).is_ok(), "of one image");
    }

    #[test]
    fn absurd_attributes_are_none() {
        let valid = image(json!(["y", "x"]), json!([]), Value::Null);
        assert!(level(&valid, "", "0", 2).is_some());
        for axes in
            [json!(["y"]), json!(["x", "x"]), json!(["x", ""]), json!([1, 2]), json!({}), Value::Null, json!([{}, {}])]
        {
            assert_eq!(level(&image(axes, json!([]), Value::Null), "", "0", 2), None);
        }
        for attributes in [
            json!({}),
            json!({"multiscales": 1}),
            json!({"multiscales": [1, null, {"datasets": 0}]}),
            json!({"ome": []}),
        ] {
            assert_eq!(level(attributes.as_object().unwrap(), "", "0", 2), None);
        }
        for of_level in [
            json!([{"type": "scale", "scale": [1]}]),
            json!([{"type": "scale", "scale": ["1", 2]}]),
            json!([{"type": "scale", "path": "scales"}]),
            json!([{"type": "affine", "affine": [1, 2]}]),
            json!([{"scale": [1, 2]}]),
            json!(5),
        ] {
            let found = level(&image(json!(["y", "x"]), of_level.clone(), Value::Null), "", "0", 2).unwrap();
            assert_eq!((found.axes.len(), found.transforms), (2, None), "{of_level}");
        }
    }
}
