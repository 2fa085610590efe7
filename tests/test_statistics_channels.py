"""Which dimensions have statistics for each element where ``channels`` is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
from dali_zarr._statistics.channels import COLUMNS, of_sample
from support.pipelines import build, to_numpy
from support.stores import write_array

# Dimensions of a sample and their lengths, and the channels; None where it can't be told.
SAMPLES: list[tuple[dict[str, int], list[str] | None]] = [
    ({}, []),
    # Names tell.
    ({"latitude": 721, "longitude": 1440}, []),
    ({"level": 13, "latitude": 721, "longitude": 1440}, ["level"]),
    ({"variable": 2, "level": 3, "lat": 4, "lon": 5}, ["variable", "level"]),
    ({"lat": 4, "lon": 5, "level": 37}, ["level"]),
    ({"variable": 90, "ensemble": 1, "cell": 40320}, ["variable"]),
    ({"number": 50, "values": 6599680}, []),
    ({"c": 2, "z": 60, "y": 256, "x": 256}, ["c"]),
    ({"y": 256, "x": 256, "band": 12}, ["band"]),
    ({"Y": 256, "X": 256, "S": 3}, ["S"]),
    ({"time_in_window": 4, "y": 2, "x": 2}, ["time_in_window"]),
    # Shapes tell.
    ({"dim_1": 7}, ["dim_1"]),
    ({"dim_1": COLUMNS}, ["dim_1"]),
    ({"gene": COLUMNS + 1}, None),
    ({"dim_1": 28, "dim_2": 28}, []),
    ({"dim_1": 2048, "dim_2": 3}, ["dim_2"]),
    ({"dim_1": 3, "dim_2": 3}, []),
    ({"dim_1": 96, "dim_2": 96, "dim_3": 3}, ["dim_3"]),
    ({"dim_1": 96, "dim_2": 96, "dim_3": 1}, ["dim_3"]),
    ({"dim_1": 96, "dim_2": 96, "dim_3": 5}, ["dim_1"]),
    ({"dim_1": 3, "dim_2": 96, "dim_3": 96}, ["dim_1"]),
    ({"dim_1": 3, "dim_2": 4, "dim_3": 4}, ["dim_1"]),
    ({"dim_1": 16, "dim_2": 96, "dim_3": 96, "dim_4": 3}, ["dim_4"]),
    ({"dim_1": 2, "dim_2": 13, "dim_3": 96, "dim_4": 96}, ["dim_1", "dim_2"]),
]


@pytest.mark.parametrize(("sample", "expected"), SAMPLES, ids=str)
def test_of_a_sample(sample, expected):
    assert of_sample(list(sample), list(sample.values())) == expected


def found(path: Path | None, **arguments: Any) -> dict[str, list[str]]:
    arrays = dali_zarr.statistics(path, **arguments)["arrays"]
    return {name: [axis["dim"] for axis in entry["channels"]] for name, entry in arrays.items()}


def test_images_and_actions(tmp_path):
    """Arrays that a stack couldn't join have nothing to do with each other. The numbers are those of colours and of components."""
    rng = np.random.default_rng(0)
    image, action = rng.integers(0, 256, (9, 12, 10, 3)).astype("u1"), rng.standard_normal((9, 2))
    write_array(tmp_path, "image", image)
    write_array(tmp_path, "action", action)
    write_array(tmp_path, "reward", action[:, 0])
    arrays = dali_zarr.statistics(tmp_path, arrays=["image", "action", "reward"])["arrays"]
    assert {name: [axis["dim"] for axis in entry["channels"]] for name, entry in arrays.items()} == {
        "image": ["dim_3"], "action": ["dim_1"], "reward": [],
    }
    np.testing.assert_allclose(arrays["image"]["by_channel"]["mean"], image.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(arrays["action"]["by_channel"]["stddev"], action.std(axis=0), rtol=1e-12)


@pytest.mark.parametrize("names", [["image", "action"], ["action", "image"]], ids="-".join)
@pytest.mark.parametrize("channels", [-1, {"image": 3, "action": "dim_1"}, {"image": "dim_1", "action": 1}], ids=str)
def test_dimensions_without_names_differ_in_each_array(tmp_path, names, channels):
    """``dim_1`` has 12 elements in one array and 2 in the other."""
    rng = np.random.default_rng(0)
    values = {"image": rng.random((9, 12, 10, 3)), "action": rng.random((9, 2))}
    for name in names:
        write_array(tmp_path / "s", name, values[name])
    file = tmp_path / "stats.json"
    dali_zarr.statistics(tmp_path / "s", arrays=names, channels=channels, output=file)
    found = build(path=tmp_path / "s", arrays=names, mean=file, stddev=file, dtype="float64").run()
    others = {"action": (0,), "image": (0, 2, 3) if isinstance(channels, dict) and channels["image"] == "dim_1" else (0, 1, 2)}
    for name, output in zip(names, found, strict=True):
        x = values[name]
        mean, stddev = (f(x, axis=others[name], keepdims=True) for f in (np.mean, np.std))
        np.testing.assert_allclose(to_numpy(output)[0], ((x - mean) / stddev)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("names", [["c", "a"], ["a", "c"]], ids="-".join)
def test_picks_from_the_end_where_lengths_differ(tmp_path, names):
    """Numbers and positions are those of each array's own end, which a reader that counts from the front finds too."""
    rng = np.random.default_rng(0)
    values = {"a": rng.random((9, 2)), "c": rng.random((9, 4))}
    for name in names:
        write_array(tmp_path / "s", name, values[name])
    file = tmp_path / "stats.json"
    arrays = dali_zarr.statistics(tmp_path / "s", arrays=names, pick={1: [-1, 0]}, output=file)["arrays"]
    for name, last in (("a", 1), ("c", 3)):
        assert arrays[name]["channels"][0]["positions"] == [last, 0]
        expected = values[name][:, [last, 0]]
        np.testing.assert_allclose(arrays[name]["by_channel"]["mean"], expected.mean(axis=0), rtol=1e-12)
        (found,) = build(path=tmp_path / "s", arrays=[name], pick={1: [last]}, channels=1, mean=file, dtype="float64").run()
        np.testing.assert_allclose(to_numpy(found)[0], expected[0, :1] - expected[:, 0].mean(), rtol=1e-9)


def test_fields_and_what_a_stack_makes_of_them(tmp_path):
    """``z`` is of space, unless a stack makes channels of it; samples cut along space change nothing; a single level is told by
    its label."""
    sizes = {"time": 4, "level": 3, "z": 2, "lat": 6, "lon": 5, "station": 7}
    dims = {
        "t2m": ("time", "lat", "lon"), "t": ("time", "level", "lat", "lon"), "w": ("time", "z", "lat", "lon"),
        "lsm": ("lat", "lon"), "obs": ("time", "station"), "level": ("level",),
    }
    for name, own in dims.items():
        values = np.random.default_rng(0).random([sizes[dim] for dim in own])
        write_array(tmp_path, name, np.arange(3.0) if name == "level" else values, dims=own)
    assert found(tmp_path, arrays=["w"]) == {"w": []}
    assert found(tmp_path, arrays=["t2m", "t", "w", "lsm"]) == {"t2m": [], "t": ["level"], "w": ["z"], "lsm": []}
    assert found(tmp_path, arrays=["t2m", "t", "obs"]) == {"t2m": [], "t": ["level"], "obs": ["station"]}
    assert found(tmp_path, arrays=["t"], dims=["time", "lat", "lon"]) == {"t": ["level"]}
    assert found(tmp_path, arrays=["t", "lsm", "level"], sel={"level": 1}) == {"t": ["level"], "lsm": [], "level": ["level"]}


def test_rows_too_long_to_tell(tmp_path):
    """Columns of a table and samples of a signal look alike: ``channels`` says which."""
    values = np.random.default_rng(0).random((3, COLUMNS + 1))
    write_array(tmp_path, "a", values)
    write_array(tmp_path, "b", values[:, :2])
    message = r"array 'a': .* its 1025 elements along 'dim_1' are channels; write channels=\{'a': 'dim_1'\} .*\{'a': \[\]\}"
    with pytest.raises(ValueError, match=message):
        dali_zarr.statistics(tmp_path, arrays=["a", "b"])
    assert found(tmp_path, arrays=["a", "b"], channels={"a": "dim_1"}) == {"a": ["dim_1"], "b": ["dim_1"]}
    assert found(tmp_path, arrays=["a", "b"], channels={"a": []}) == {"a": [], "b": ["dim_1"]}
    # A dimension with a name, and what isn't of samples.
    write_array(tmp_path / "cells", "x", values, dims=("time", "cell"))
    write_array(tmp_path / "cells", "area", values[0], dims=("cell",))
    assert found(tmp_path / "cells", arrays=["x", "area"]) == {"x": [], "area": []}
    write_array(tmp_path / "other", "x", values, dims=("time", "unknown"))
    write_array(tmp_path / "other", "area", values[0], dims=("unknown",))
    assert found(tmp_path / "other", arrays=["x", "area"], channels={"x": []}) == {"x": [], "area": []}
