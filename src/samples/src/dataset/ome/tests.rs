//! Levels: what attributes of each version say, and the comparison of places.

use serde_json::json;

use super::*;

fn image(axes: Value, of_level: Value, of_image: Value) -> Map<String, Value> {
    let level = json!({"path": "0", "coordinateTransformations": of_level});
    let image = json!({"axes": axes, "datasets": [level], "coordinateTransformations": of_image});
    json!({"multiscales": [image]}).as_object().unwrap().clone()
}

/// An image of 0.6: the first system's axes, the transformation from the level to it, and those of the image.
fn image_06(axes: Value, mut of_level: Value, of_image: Value) -> Map<String, Value> {
    of_level["input"] = json!({"path": "s0/image"});
    of_level["output"] = json!({"name": "own"});
    let systems =
        json!([{"name": "world", "axes": axes}, {"name": "own", "axes": axes}, {"name": "atlas", "axes": axes}]);
    let level = json!({"path": "s0/image", "coordinateTransformations": [of_level]});
    let image = json!({"coordinateSystems": systems, "datasets": [level], "coordinateTransformations": of_image});
    json!({"ome": {"version": "0.6", "multiscales": [image]}}).as_object().unwrap().clone()
}

fn check(a: &Level, b: &Level) -> std::result::Result<(), String> {
    Level::check_places(&[("a".into(), a.clone()), ("b".into(), b.clone())]).map_err(|e| e.message().to_owned())
}

fn rows(level: &Level) -> &[Vec<f64>] {
    &level.systems[0].places.as_ref().unwrap().rows
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
        assert_eq!(found.axes.as_ref().unwrap(), &["t", "x"]);
        assert_eq!(rows(&found), [[0.1, 0.0, 0.0], [0.0, 1.0, 6.0]]);
        assert_eq!(level(attributes, "g", "1", 2), None);
        let of_three = level(attributes, "g", "0", 3).unwrap();
        assert_eq!((of_three.axes, of_three.systems[0].places.is_err()), (None, true));
    }
}

#[test]
fn places_are_compared_along_shared_dimensions() {
    let of = |group: &str, axes: Value, scale: Value, translation: Value| {
        let all = json!([{"type": "scale", "scale": scale}, {"type": "translation", "translation": translation}]);
        level(&image(axes, all, Value::Null), group, "0", 2).unwrap()
    };
    let one = of("", json!(["c", "x"]), json!([1, 0.3]), json!([0, 5]));
    assert_eq!(check(&one, &of("l", json!(["x", "t"]), json!([0.1 + 0.2, 9]), json!([5, 9]))), Ok(()));
    let error = check(&one, &of("l", json!(["x", "t"]), json!([0.6, 1]), json!([5, 0]))).unwrap_err();
    assert!(error.contains("the scale 0.3 along \"x\" in a and 0.6 in b"), "{error}");
    let error = check(&one, &of("l", json!(["x", "t"]), json!([0, 1]), json!([5, 0]))).unwrap_err();
    assert!(error.contains("the scale 0.3 along \"x\" in a and 0 in b"), "{error}");
    let error = check(&one, &of("l", json!(["y", "x"]), json!([9, 0.3]), json!([0, 4.9]))).unwrap_err();
    assert!(error.contains("the translation 5 along \"x\" in a and 4.9 in b"), "{error}");
    assert_eq!(check(&one, &of("", json!(["c", "x"]), json!([1, 0.6]), json!([0, 5]))), Ok(()), "of one image");
}

#[test]
fn coordinate_systems_name_axes_and_give_places() {
    let axes = json!([{"name": "z", "type": "space"}, {"name": "y", "type": "space"}]);
    let of = |group: &str, of_level: Value, of_image: Value| {
        level(&image_06(axes.clone(), of_level, of_image), group, "/s0/./image", 2).unwrap()
    };
    let steps = json!({"type": "sequence", "transformations": [
        {"type": "scale", "scale": [2, 0.5]}, {"type": "translation", "translation": [1, 0]}]});
    let one = of("a", steps.clone(), Value::Null);
    assert_eq!(one.axes.as_ref().unwrap(), &["z", "y"]);
    assert_eq!(rows(&one), [[2.0, 0.0, 1.0], [0.0, 0.5, 0.0]]);
    assert_eq!(check(&one, &of("b", steps.clone(), Value::Null)), Ok(()));
    let error = check(&one, &of("b", json!({"type": "scale", "scale": [4, 1]}), Value::Null)).unwrap_err();
    assert!(error.contains("the scale 2 along \"z\" in a and 4 in b"), "{error}");
    // An image of 0.5 with the same places.
    let same = [json!({"type": "scale", "scale": [2, 0.5]}), json!({"type": "translation", "translation": [1, 0]})];
    let older = level(&image(axes.clone(), json!(same), Value::Null), "b", "0", 2).unwrap();
    assert_eq!(check(&one, &older), Ok(()));
    // Dimensions are named by the axes along which they lie.
    let swapped = json!({"type": "sequence", "transformations": [{"type": "mapAxis", "mapAxis": [1, 0]},
        {"type": "affine", "affine": [[2, 0, 1], [0, 0.5, 0]]}]});
    let swapped = of("b", swapped, Value::Null);
    assert_eq!(swapped.axes.as_ref().unwrap(), &["y", "z"]);
    assert_eq!(check(&one, &swapped), Ok(()));
    // Sheared.
    let error = check(&one, &of("b", json!({"type": "affine", "affine": [[2, 0.1, 1], [0, 0.5, 0]]}), Value::Null));
    assert!(
        error.as_ref().unwrap_err().contains("for each element of \"y\" 0 along \"z\" in a and 0.1 in b"),
        "{error:?}"
    );
}

#[test]
fn systems_that_both_have_are_compared() {
    let axes = json!(["z", "y"]);
    let of = |group: &str, scale: f64, of_image: Value| {
        let of_level = json!({"type": "scale", "scale": [scale, scale]});
        level(&image_06(axes.clone(), of_level, of_image), group, "s0/image", 2).unwrap()
    };
    let to = |output: &str, mut transformation: Value| {
        (transformation["input"], transformation["output"]) = (json!({"name": "own"}), json!({"name": output}));
        transformation
    };
    let doubled = || to("world", json!({"type": "scale", "scale": [2, 2]}));
    let same = || to("world", json!({"type": "identity"}));
    // The own systems differ, but not the world.
    assert_eq!(check(&of("a", 0.5, json!([doubled()])), &of("b", 1.0, json!([same()]))), Ok(()));
    let error = check(&of("a", 1.0, json!([doubled()])), &of("b", 1.0, json!([same()]))).unwrap_err();
    assert!(error.contains("the scale 2 along \"z\" in a and 1 in b"), "{error}");
    // One has no world.
    assert_eq!(check(&of("a", 1.0, json!([doubled()])), &of("b", 1.0, Value::Null)), Ok(()));
    let warped = |path: &str| to("atlas", json!({"type": "displacements", "path": path}));
    assert_eq!(check(&of("a", 1.0, json!([warped("d")])), &of("b", 1.0, json!([warped("d")]))), Ok(()));
    let error = check(&of("a", 1.0, json!([warped("d")])), &of("b", 1.0, json!([warped("e")]))).unwrap_err();
    assert!(error.contains("found the transformation {") && error.contains("displacements"), "{error}");
}

#[test]
fn unknown_transformations_are_refused_beside_others() {
    let of = |group: &str, of_level: &Value| {
        level(&image(json!(["y", "x"]), of_level.clone(), Value::Null), group, "0", 2).unwrap()
    };
    let plain = of("a", &json!([{"type": "scale", "scale": [1, 1]}]));
    for odd in [
        json!([{"type": "scale", "scale": [1]}]),
        json!([{"type": "scale", "scale": ["1", 2]}]),
        json!([{"type": "affine", "affine": [1, 2]}]),
        json!([{"scale": [1, 2]}]),
        json!([{"type": "scale", "scale": [1e300, 1]}, {"type": "scale", "scale": [1e300, 1]}]),
        json!([{"type": "scale", "path": "scales"}]),
        json!(5),
    ] {
        let found = of("b", &odd);
        assert_eq!((found.axes.as_ref().map(Vec::len), found.systems[0].places.is_err()), (Some(2), true), "{odd}");
        for error in [check(&plain, &found).unwrap_err(), check(&found, &plain).unwrap_err()] {
            assert!(error.contains("with a reader of its own"), "{error}");
        }
        // The same text means the same places, but not numbers that lie beside each of the images.
        assert_eq!(check(&found, &of("c", &odd)).is_ok(), !odd.to_string().contains("path"), "{odd}");
    }
}

#[test]
fn absurd_attributes_are_none() {
    let valid = image(json!(["y", "x"]), json!([]), Value::Null);
    assert!(level(&valid, "", "0", 2).is_some());
    for axes in
        [json!(["y"]), json!(["x", "x"]), json!(["x", ""]), json!([1, 2]), json!({}), Value::Null, json!([{}, {}])]
    {
        assert_eq!(level(&image(axes.clone(), json!([]), Value::Null), "", "0", 2), None);
        let places = level(&image(axes, json!([{"type": "identity"}]), Value::Null), "", "0", 2).unwrap();
        assert_eq!((places.axes, places.systems[0].places.is_err()), (None, true));
    }
    for attributes in [
        json!({}),
        json!({"multiscales": 1}),
        json!({"multiscales": [1, null, {"datasets": 0}]}),
        json!({"ome": []}),
        json!({"ome": {"multiscales": [{"coordinateSystems": 5, "datasets": [{"path": "0"}]}]}}),
    ] {
        assert_eq!(level(attributes.as_object().unwrap(), "", "0", 2), None);
    }
    // Thousands of coordinate systems, in a circle.
    let to = |i: usize| json!({"type": "identity", "input": {"name": i.to_string()}, "output": {"name": (i + 1).to_string()}});
    let many: Vec<Value> = (0..9999).map(to).collect();
    let of_level = json!([{"type": "identity", "output": {"name": "0"}}]);
    let attributes = json!({"multiscales": [{"coordinateSystems": [], "coordinateTransformations": many,
        "datasets": [{"path": "0", "coordinateTransformations": of_level}]}]});
    assert_eq!(level(attributes.as_object().unwrap(), "", "0", 2).unwrap().systems.len(), MAX_SYSTEMS);
}
