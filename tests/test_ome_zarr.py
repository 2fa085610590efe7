"""OME-Zarr 0.4 to 0.6: axes name the dimensions of levels, and images that lie elsewhere aren't read together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.pipelines import batches, build, check, same
from support.stores import Layout, sample_values, write_array

VERSIONS = pytest.mark.parametrize("version", ["0.4", "0.5"])
AXES = [{"name": "c", "type": "channel"}, *({"name": name, "type": "space", "unit": "micrometer"} for name in "zyx")]


def _multiscales(axes: list[Any], levels: dict[str, Any], of_image: Any = None) -> dict[str, Any]:
    """The attribute, with the transformations of each level."""
    datasets = [{"path": path, "coordinateTransformations": of_level} for path, of_level in levels.items()]
    return {"axes": axes, "datasets": datasets} | ({} if of_image is None else {"coordinateTransformations": of_image})


def _scale(*numbers: float) -> dict[str, Any]:
    return {"type": "scale", "scale": list(numbers)}


def _translation(*numbers: float) -> dict[str, Any]:
    return {"type": "translation", "translation": list(numbers)}


def _write(path: Path, version: str, image: dict[str, Any], labels: dict[str, Any]) -> np.ndarray:
    """An image of (2, 4, 6, 8) and its labels of (4, 6, 8), with these attributes; what zarr-python reads of the image."""
    zarr_format = 2 if version == "0.4" else 3
    values = sample_values("uint16", (2, 4, 6, 8))
    write_array(path, "0", values, zarr_format=zarr_format, layout=Layout((1, 2, 6, 8)))
    zarr.open_group(str(path / "labels" / "cells"), mode="w", zarr_format=zarr_format)
    labelled = sample_values("uint8", (4, 6, 8))
    write_array(path / "labels" / "cells", "0", labelled, zarr_format=zarr_format, layout=Layout((4, 3, 8)))
    for group, attribute in ((path, image), (path / "labels" / "cells", labels)):
        found = {"multiscales": [attribute]} if version == "0.4" else {"ome": {"version": "0.5", "multiscales": [attribute]}}
        zarr.open_group(str(group), mode="a", zarr_format=zarr_format).attrs.update(found)
    return zarr.open_array(str(path / "0"), mode="r")[...]


IMAGE = _multiscales(AXES, {"0": [_scale(1, 0.5, 0.1, 0.1)]}, [_translation(0, 3, 4, 5)])
# The same places, told by both levels of transformations in another way.
LABELS = _multiscales(AXES[1:], {"0": [_scale(5, 1, 1), _translation(30, 40, 50)]}, [_scale(0.1, 0.1, 0.1)])


@VERSIONS
def test_axes_name_dimensions(tmp_path, device, version):
    """In windows, in errors, in explain; and the labels are cut in step."""
    import dali_zarr

    values = _write(tmp_path, version, IMAGE, LABELS)
    names = {"arrays": ["0", "labels/cells/0"]}
    where = {"dims": ["z", "y", "x"], "window": [2, 3, 4], "step": [2, 3, 2]}
    pipe = build(device, 1, path=tmp_path, **names, **where, return_index=True, random_shuffle=True)
    labels = zarr.open_array(str(tmp_path / "labels/cells/0"), mode="r")[...]
    found = batches(pipe)
    for _ in range(pipe.reader_meta("reader")["epoch_size"]):
        (image,), (label,), (index,) = next(found)
        z, y, x = index
        same(image, values[:, z : z + 2, y : y + 3, x : x + 4], "image")
        same(label, labels[z : z + 2, y : y + 3, x : x + 4], "label")
    explained = dali_zarr.explain(path=str(tmp_path), **names, **where)
    assert [array["dims"] for array in explained["arrays"]] == [["c", "z", "y", "x"], ["z", "y", "x"]]
    with pytest.raises(ValueError, match="the dimensions are c, z, y, x"):
        build(device, 1, path=tmp_path, arrays=["0"], dims=["lat"])


DIFFERENT = {
    "the scale": _multiscales(AXES[1:], {"0": [_scale(0.5, 0.2, 0.1), _translation(3, 4, 5)]}),
    "the scale of the image": _multiscales(AXES[1:], {"0": [_scale(0.5, 0.1, 0.1)]}, [_scale(1, 2, 1), _translation(3, 4, 5)]),
    "the translation": _multiscales(AXES[1:], {"0": [_scale(0.5, 0.1, 0.1), _translation(3, 4.05, 5)]}),
}


@VERSIONS
@pytest.mark.parametrize("how", DIFFERENT)
def test_images_that_lie_elsewhere(tmp_path, device, version, how):
    """Both scales or translations are in the message, and the arrays. One alone can be read."""
    _write(tmp_path, version, IMAGE, DIFFERENT[how])
    with pytest.raises(ValueError, match="coordinateTransformations") as raised:
        build(device, 1, path=tmp_path, arrays=["0", "labels/cells/0"], dims=["z"])
    numbers = ["4", "4.05"] if "translation" in how else ["0.1", "0.2"]
    for text in ("'0'", "'labels/cells/0'", '"y"', *numbers):
        assert text in str(raised.value)
    build(device, 1, path=tmp_path, arrays=["labels/cells/0"], dims=["z"])


@VERSIONS
def test_levels_of_one_image(tmp_path, device, version):
    """They are meant to have other scales, and differ in dimensions that samples aren't cut along."""
    image = _multiscales(AXES, {"0": [_scale(1, 1, 1, 1)], "1": [_scale(1, 1, 2, 2)]})
    values = _write(tmp_path, version, image, LABELS)
    write_array(tmp_path, "1", values[:, :, ::2, ::2], zarr_format=2 if version == "0.4" else 3)
    pipe = build(device, 4, path=tmp_path, arrays=["0", "1"], dims=["z"])
    found = next(batches(pipe))
    same(found[0], np.moveaxis(values, 1, 0), "level 0")
    same(found[1], np.moveaxis(values, 1, 0)[..., ::2, ::2], "level 1")


@VERSIONS
@pytest.mark.parametrize("dims", [None, ("z", "y", "x")], ids=str)
def test_joined_images_of_other_scales(tmp_path, device, version, dims):
    """They are refused where they become one axis, with both scales; not where they come one after the other."""
    zarr_format = 2 if version == "0.4" else 3
    if dims and version == "0.4":
        pytest.skip("names and axes together are those of 0.5")
    for name, scale, shift in (("a", 0.25, 0), ("b", 0.25, 7), ("c", 0.5, 0)):
        write_array(tmp_path / name, "0", sample_values("uint16", (4, 6, 8)), zarr_format=zarr_format, dims=dims)
        levels = {"0": [_scale(1, 0.5, scale), _translation(shift, 0, 0)]}
        attributes = {"multiscales": [_multiscales(AXES[1:], levels)]}
        group = zarr.open_group(str(tmp_path / name), mode="a", zarr_format=zarr_format)
        group.attrs.update(attributes if version == "0.4" else {"ome": {"version": "0.5", **attributes}})
    how = {"arrays": ["0"], "window": {"z": 2}}
    assert build(device, 1, path=[tmp_path / "a", tmp_path / "b"], **how).reader_meta("reader")["epoch_size"] == 4
    with pytest.raises(ValueError, match="the same scale") as raised:
        build(device, 1, path=[tmp_path / "a", tmp_path / "c"], **how)
    for text in ("0.25", "0.5 in", '"x"', "/a", "/c", "concat"):
        assert text in str(raised.value)
    build(device, 1, path=[tmp_path / "a", tmp_path / "c"], concat="samples", **how)


@VERSIONS
@pytest.mark.parametrize(
    "attribute",
    [
        5, [], {}, {"axes": AXES}, {"axes": "czyx", "datasets": [{"path": "0"}]}, {"axes": AXES[1:], "datasets": [{"path": "0"}]},
        {"axes": [{"name": "x"}] * 4, "datasets": [{"path": "0"}]}, {"axes": [{"name": 1}] * 4, "datasets": [{"path": "0"}]},
        {"axes": AXES, "datasets": [{"path": 0}]}, {"axes": AXES, "datasets": {"path": "0"}}, None,
    ],
    ids=str,
)
def test_attributes_that_make_no_sense(tmp_path, device, version, attribute):
    """The array is read as one without names."""
    _write(tmp_path, version, attribute, LABELS)
    check(device, 2, path=tmp_path, arrays=["0"], dims=["dim_1"])


ODD = [[{"type": "affine", "affine": [[1]]}], [_scale(1)], [{"type": "scale", "scale": ["a"] * 3}], 7, [{}]]


@VERSIONS
@pytest.mark.parametrize("odd", ODD, ids=str)
def test_transformations_that_make_no_sense(tmp_path, device, version, odd):
    """Where images are read together, nobody knows whether they lie at the same places. Alone they can be read."""
    _write(tmp_path, version, IMAGE, _multiscales(AXES[1:], {"0": odd}))
    with pytest.raises(ValueError, match="read each image with a reader of its own") as raised:
        build(device, 1, path=tmp_path, arrays=["0", "labels/cells/0"], dims=["z"])
    assert "'labels/cells/0'" in str(raised.value)
    (found,) = next(batches(build(device, 4, path=tmp_path, arrays=["labels/cells/0"], dims=["z"])))
    same(found, zarr.open_array(str(tmp_path / "labels/cells/0"), mode="r")[...], "labels")


def test_names_of_the_arrays_own_go_first(tmp_path, device):
    """Axes name dimensions only where the arrays don't."""
    write_array(tmp_path, "0", sample_values("uint16", (2, 4, 6, 8)), dims=("a", "b", None, "d"))
    group = zarr.open_group(str(tmp_path), mode="a")
    group.attrs.update({"ome": {"version": "0.5", "multiscales": [IMAGE]}})
    check(device, 2, path=tmp_path, arrays=["0"], dims=["b", "dim_2"], window=[2, 3])


def test_damaged_groups(tmp_path, device):
    """What is wrong with the metadata of a group doesn't keep its arrays from being read."""
    _write(tmp_path, "0.5", IMAGE, LABELS)
    (tmp_path / "labels/cells/zarr.json").write_text("{")
    check(device, 2, path=tmp_path, arrays=["labels/cells/0"], dims=[0])
    metadata = json.loads((tmp_path / "zarr.json").read_text())
    (tmp_path / "zarr.json").write_text(json.dumps(metadata | {"attributes": {"ome": [3]}}))
    check(device, 2, path=tmp_path, arrays=["0"], dims=[1])


SPACE = [{"name": name, "type": "space"} for name in "zyx"]


def _level(path: Path, version: str, level: str, scale: list[float], dims: Any = None, image: str = "") -> np.ndarray:
    """An image with one level, as ngff-zarr writes it; its attributes are in the group ``image``."""
    values = sample_values("uint16", (8, 4, 6))
    zarr_format = 2 if version == "0.4" else 3
    write_array(path / image, level, values, zarr_format=zarr_format, layout=Layout((4, 4, 6)), dims=dims)
    dataset: dict[str, Any] = {"path": level, "coordinateTransformations": [_scale(*scale), _translation(1, 0, 0)]}
    multiscale: dict[str, Any] = {"axes": SPACE, "datasets": [dataset]}
    if version == "0.6":
        whole = {"type": "sequence", "transformations": dataset["coordinateTransformations"], "name": "to_intrinsic"}
        dataset["coordinateTransformations"] = [whole | {"input": {"path": level}, "output": {"name": "intrinsic"}}]
        multiscale = {"coordinateSystems": [{"name": "intrinsic", "axes": SPACE}], "datasets": [dataset]}
    attributes = {"multiscales": [multiscale]}
    group = zarr.open_group(str(path / image), mode="a", zarr_format=zarr_format)
    group.attrs.update(attributes if version == "0.4" else {"ome": {"version": version, **attributes}})
    return values


HOW = {
    "names": lambda base, level, two: {"path": base, "arrays": {"i": f"a/{level}", "l": f"{two}/{level}"}},
    "locations": lambda base, level, two: {"arrays": {"i": str(base / "a" / level), "l": str(base / two / level)}},
    "a location beside a name": lambda base, level, two: {
        "path": base / "a", "arrays": {"i": level, "l": str(base / two / level)},
    },
    "stores with one array": lambda base, level, two: {"arrays": {"i": str(base / "a"), "l": str(base / two)}},
    "arrays that are joined": lambda base, level, two: {"path": [base / "a" / level, base / two / level]},
}


@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
@pytest.mark.parametrize("level", ["0", "scale0/image"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dims", [None, ("z", "y", "x")], ids=str)
def test_scales_count_wherever_levels_are(tmp_path, version, level, how, dims):
    """The axes of a level are known, and levels of two scales aren't paired or joined."""
    for name, scale in (("a", [2, 0.5, 0.5]), ("b", [2, 0.5, 0.5]), ("c", [4, 1, 1])):
        values = _level(tmp_path / name, version, level, scale, dims)
    where: dict[str, Any] = {"dims": ["z"], "window": [2], "batch_size": 1}
    pipe = build(**HOW[how](tmp_path, level, "b"), **where)
    same(next(batches(pipe))[0][0], values[:2], "the first sample")
    with pytest.raises(ValueError, match=r'the scale 2 along "z" in .* and 4 in|the scale 4 along "z" in .* and 2 in'):
        build(**HOW[how](tmp_path, level, "c"), **where)
    if how == "arrays that are joined":
        build(**HOW[how](tmp_path, level, "c"), **where, concat="samples")


def test_two_images_of_one_group(tmp_path):
    """Also if arrays have names of dimensions, which is where attributes weren't looked at before."""
    names = ("z", "y", "x")
    _level(tmp_path, "0.5", "a", [2, 0.5, 0.5], names)
    _level(tmp_path, "0.5", "b", [4, 1, 1], names)
    levels = {name: {"path": name, "coordinateTransformations": [_scale(z, 1, 1)]} for name, z in (("a", 1), ("b", 2))}
    multiscales = [{"axes": SPACE, "datasets": [level]} for level in levels.values()]
    zarr.open_group(str(tmp_path), mode="a").attrs["ome"] = {"version": "0.5", "multiscales": multiscales}
    with pytest.raises(ValueError, match='the scale 1 along "z"'):
        build(path=tmp_path, arrays=["a", "b"])
    multiscales[0]["datasets"] += multiscales.pop()["datasets"]
    zarr.open_group(str(tmp_path), mode="a").attrs["ome"] = {"version": "0.5", "multiscales": multiscales}
    build(path=tmp_path, arrays=["a", "b"])


def test_a_level_whose_transformation_is_not_understood_is_read_alone(tmp_path, device):
    """Its axes still have names."""
    values = _level(tmp_path / "a", "0.6", "s0", [1, 1, 1])
    group = zarr.open_group(str(tmp_path / "a"), mode="a")
    ome = group.attrs["ome"]
    warp = {"type": "displacements", "path": "field", "input": {"path": "s0"}, "output": {"name": "intrinsic"}}
    ome["multiscales"][0]["datasets"][0]["coordinateTransformations"] = [warp]
    group.attrs["ome"] = ome
    (found,) = next(batches(build(device, 1, path=tmp_path / "a", arrays=["s0"], dims=["y"])))
    same(found[0], values[:, 0], "the first sample")
    _level(tmp_path / "b", "0.6", "s0", [1, 1, 1])
    with pytest.raises(ValueError, match="found the transformation .*displacements.* in array"):
        build(device, 1, path=tmp_path, arrays=["a/s0", "b/s0"], dims=["y"])
