"""The list of a store's arrays: what zarr-python says of them, whatever else is in the store."""

from __future__ import annotations

import functools
import json
import shutil

import numpy as np
import pytest
import zarr
from dali_zarr import _native
from support.server import Server
from support.stores import Layout, write_array

PACKING = {"scale_factor": 0.01, "add_offset": 3.0, "_FillValue": -999, "missing_value": [1, 2], "_Unsigned": "true"}


def listed(path, **spec):
    found = _native.arrays({"path": str(path), "device": "gpu", **spec})
    assert found["store"].rstrip("/") == str(path).rstrip("/")
    return found


def write(path, zarr_format=3):
    values = np.arange(48 * 8 * 16, dtype="float32").reshape(48, 8, 16)
    put = functools.partial(write_array, path, zarr_format=zarr_format)
    dims = ("time", "lat", "lon")
    put("a", values, codec="gzip", layout=Layout((4, 8, 16)), dims=dims)
    put("deep/b", values, layout=Layout((4, 4, 16), shards=(8, 8, 16) if zarr_format == 3 else None), dims=dims)
    attributes = PACKING | {"units": "K", "history": "x" * 5000}
    put("packed", values.astype("int16"), layout=Layout((5, 3, 16)), dims=dims, attributes=attributes)
    put("scalar", np.float64(3))
    put("day", np.arange(3), layout=Layout((2,)))
    return path


def as_zarr_python_says(path):
    """The same facts by name."""
    found = {}
    for name, array in zarr.open_group(path, mode="r").members(max_depth=None):
        if isinstance(array, zarr.Array):
            found[name] = (list(array.shape), list(array.chunks), None if array.shards is None else list(array.shards))
    return found


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_consolidated", [False, True])
def test_what_is_listed_is_what_zarr_python_finds(tmp_path, zarr_format, is_consolidated):
    path = write(tmp_path / "s", zarr_format)
    if is_consolidated:
        zarr.consolidate_metadata(path)
    found = listed(path)
    assert not found["is_cut"]
    arrays = {array["name"]: array for array in found["arrays"]}
    assert list(arrays) == ["a", "day", "deep/b", "packed", "scalar"]
    expected = as_zarr_python_says(path)
    assert {name: (one["shape"], one["chunks"], one["shards"]) for name, one in arrays.items()} == expected
    assert all(one["refused"] is None and one["is_sound"] and not one["is_root"] for one in arrays.values())
    a, packed, day = arrays["a"], arrays["packed"], arrays["day"]
    assert (a["dims"], a["dtype"], a["chunk_bytes"]) == (["time", "lat", "lon"], "float32", 4 * 8 * 16 * 4)
    assert (a["codecs"], a["decoded_on"], a["packing"], a["units"]) == ("gzip", "gpu", {}, None)
    assert (packed["packing"], packed["units"], packed["stored"], packed["dtype"]) == (PACKING, "K", "int16", "int16")
    assert (day["dtype"], day["dims"]) == ("int64", ["dim_0"])
    # Named ones come as they are named.
    assert [one["name"] for one in listed(path, arrays=["packed", "a"])["arrays"]] == ["packed", "a"]


def test_a_store_that_is_an_array(tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(6), chunks=(4,), attributes={"scale_factor": 2.0})
    (array,) = listed(tmp_path / "x.zarr")["arrays"]
    assert (array["name"], array["is_root"], array["shape"], array["chunks"]) == ("x", True, [6], [4])
    assert array["packing"] == {"scale_factor": 2.0}


def test_arrays_with_stores_of_their_own(tmp_path):
    """Beside others or alone; one that isn't there doesn't hide them."""
    path = write(tmp_path / "s")
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(6), chunks=(4,), attributes={"scale_factor": 2.0})
    own, missing = str(tmp_path / "x.zarr"), str(tmp_path / "none")
    given = listed(path, arrays=[own, "a", missing, "packed"])["arrays"]
    assert [array["name"] for array in given] == [own, "a", missing, "packed"]
    assert (given[0]["shape"], given[0]["packing"]) == ([6], {"scale_factor": 2.0})
    assert "there is nothing" in given[2]["refused"] and not given[2]["is_sound"]
    assert [given[1], given[3]] == listed(path, arrays=["a", "packed"])["arrays"]
    found = _native.arrays({"arrays": [own], "device": "gpu"})
    assert found == {"store": None, "arrays": given[:1], "is_cut": False}


def test_archives(tmp_path):
    path = write(tmp_path / "s")
    shutil.make_archive(str(tmp_path / "s"), "zip", path)
    expected, found = listed(path), listed(tmp_path / "s.zip")
    assert found["arrays"] == expected["arrays"]


def test_servers(tmp_path):
    """One that can't list has consolidated metadata, or is asked for names."""
    path = write(tmp_path / "s")
    with Server(tmp_path) as server:
        with pytest.raises(ValueError, match="expected arrays to be named, since the store has no consolidated metadata"):
            listed(f"{server.url}/s")
        assert listed(f"{server.url}/s", arrays=["deep/b"])["arrays"] == listed(path, arrays=["deep/b"])["arrays"]
        zarr.consolidate_metadata(path)
        server.take_log()
        assert listed(f"{server.url}/s")["arrays"] == listed(path)["arrays"]
        assert {path for _, path in server.counts()} <= {"/s/zarr.json"}


def test_what_readers_do_not_take_is_told_beside_the_rest(tmp_path):
    group = zarr.open_group(write(tmp_path / "s"))
    group.create_array("text", shape=(5,), dtype="str")
    group.create_array("empty", shape=(0, 3), dtype="f4")
    group.create_array("fixed", shape=(5,), dtype="S4")
    found = {array["name"]: array for array in listed(tmp_path / "s")["arrays"]}
    for name in ("text", "empty", "fixed"):
        assert found[name]["is_sound"] and f"array '{name}'" in found[name]["refused"], found[name]
    assert found["empty"]["shape"] == [0, 3] and "shape" not in found["text"]
    assert sum(one["refused"] is None for one in found.values()) == 5


HOSTILE = {
    "shape": [None, "x", [-1, 8, 16], [1.5], [2**63, 2**63, 2**63], [[1]], {}],
    "chunk_grid": [None, {}, {"name": "regular", "configuration": {"chunk_shape": [0, 8, 16]}}, {"name": "round"},
                   {"name": "regular", "configuration": {"chunk_shape": [4]}},
                   {"name": "regular", "configuration": {"chunk_shape": [2**62, 2**62, 2**62]}}],
    "data_type": [None, 7, "float33", "x" * 100_000, {"name": {}}],
    "codecs": [None, [], [{"name": "bites"}], [{"name": "gzip"}], "gzip", [[[]]], [{"name": "bytes"}] * 1000],
    "fill_value": [{}, "never", [1, 2, 3]],
    "chunk_key_encoding": [None, {"name": "soft"}],
    "node_type": [None, "tree"],
    "zarr_format": ["three", 4],
    "storage_transformers": [[{"name": "rot13"}]],
}


def test_damaged_metadata_hide_no_other_array(tmp_path):
    """Each value, in an array of its own."""
    path = write(tmp_path / "s")
    document = json.loads((path / "a/zarr.json").read_text())
    made = {}
    for key, values in HOSTILE.items():
        for number, value in enumerate(values):
            name = f"bad_{key}_{number}"
            made[name] = json.dumps(document | {key: value})
    made |= {
        "bad_text": "{", "bad_bytes": "\xff\0", "bad_list": "[]", "bad_depth": "[" * 100_000, "bad_nothing": "",
        "bad_numbers": json.dumps(document).replace("[48, 8, 16]", "[1e999, 8, 16]"),
    }
    for name, text in made.items():
        (path / name).mkdir()
        (path / name / "zarr.json").write_text(text, encoding="latin-1")
    found = {array["name"]: array for array in listed(path)["arrays"]}
    assert [name for name, one in found.items() if one["refused"] is None] == ["a", "day", "deep/b", "packed", "scalar"]
    damaged = {name: one for name, one in found.items() if name.startswith("bad_")}
    # What isn't said to be an array is none.
    assert len(damaged) > 30
    assert all(len(one["refused"]) < 5000 for one in damaged.values())
    unsound = {name for name, one in damaged.items() if not one["is_sound"]}
    assert {"bad_shape_1", "bad_shape_2", "bad_chunk_grid_2", "bad_codecs_2", "bad_text", "bad_depth"} <= unsound


def test_attributes_are_told_as_they_are_and_long_ones_left_out(tmp_path):
    path = tmp_path / "s"
    attributes = {"scale_factor": "much", "add_offset": {"x": [None]}, "_FillValue": "x" * 5000, "missing_value": 1e300}
    write_array(path, "a", np.arange(4, dtype="i2"), attributes=attributes)
    (array,) = listed(path)["arrays"]
    assert array["packing"] == {name: attributes[name] for name in ("scale_factor", "add_offset", "missing_value")}


def test_a_list_has_a_limit_and_says_so(tmp_path):
    path = tmp_path / "s"
    write_array(path, "a0000", np.arange(4))
    for number in range(1, 1010):
        shutil.copytree(path / "a0000", path / f"a{number:04}")
    found = listed(path)
    assert found["is_cut"] and len(found["arrays"]) == 1000
    assert all(one["refused"] is None for one in found["arrays"])
    zarr.consolidate_metadata(path)
    found = listed(path)
    assert not found["is_cut"] and len(found["arrays"]) == 1010


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"path": ["a", "b"]}, "path: expected one store, but found 2"),
        ({"path": "a", "arrays": ["./b"]}, "path: expected none, since every array of arrays has a location of its own"),
        ({}, "path: expected at least one store, but found none"),
        ({"path": "/nonexistent/s"}, "store /nonexistent/s: expected a directory"),
    ],
)
def test_arguments(spec, message):
    with pytest.raises(ValueError, match=message):
        _native.arrays(spec)
