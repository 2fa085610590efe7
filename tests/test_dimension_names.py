"""Names of dimensions that don't tell them apart: the arrays are read as zarr-python reads them, by position."""

from __future__ import annotations

import json
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from support.pipelines import build, check, same, to_numpy
from support.stores import Layout, metadata, write_array

NAMES: list[Any] = [
    ["x", "x", "t"], ["t", None, "x"], [None, None, None], ["x", "x", "x"], ["dim_1", None, "x"], ["dim_2", "dim_0", None],
    ["", "t", ""], None,
]
# zarr-python refuses these in v3, but values don't depend on them.
UNFIT: list[Any] = [["x"], ["a", "b", "c", "d"], [], ["x", 1, 2], "xyz", 7, {"x": 1}]


def store(path, zarr_format, names):
    """An array `a` whose metadata have these names; gives its values."""
    values = np.arange(120, dtype="int32").reshape(4, 6, 5)
    write_array(path, "a", values, zarr_format=zarr_format, layout=Layout((1, 4, 5)))
    if zarr_format == 2:
        (path / "a" / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": names}))
    else:
        file, document = metadata(path, "a")
        file.write_text(json.dumps(document | {"dimension_names": names}))
    return values


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("names", [*NAMES, *UNFIT], ids=str)
def test_arrays_are_read_by_position(tmp_path, device, zarr_format, names):
    values = store(tmp_path, zarr_format, names)
    args = {"path": tmp_path, "arrays": ["a"], "dims": ["1", "-1"], "window": [2, 0], "random_crop": [], "pick": ["0=3,1"]}
    if zarr_format == 2 or names in NAMES:
        same(zarr.open_group(tmp_path, mode="r")["a"][...], values, "by zarr-python")
        check(device, 3, **args)
    pipe = build(device, 15, **args)
    expected = values[[3, 1]].reshape(2, 3, 2, 5).transpose(1, 3, 0, 2).reshape(15, 2, 2)
    same(to_numpy(pipe.run()[0]), np.ascontiguousarray(expected), "by position")
    (told,) = dali_zarr.explain(path=tmp_path, arrays="a")["arrays"]
    assert len(set(told["dims"])) == 3


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("names", "name"),
    [(["x", "x", "t"], "x"), (["dim_1", None, "x"], "dim_1"), (["x"], "x"), (["x", 1, 2], "x"), (["a", "b", "c", "d"], "d")],
    ids=str,
)
def test_names_that_do_not_tell_are_errors(tmp_path, device, zarr_format, names, name):
    """Wherever a dimension may be named; those that tell one dimension from the others still do."""
    store(tmp_path, zarr_format, names)
    words = f'expected a name that only one dimension has, but found "{name}", and array \'a\' has .*"{name}"'
    for args in (
        {"dims": [name]}, {"dims": ["0"], "random_crop": [name]}, {"pick": [f"{name}=0"]}, {"pick": {name: [0]}},
        {"pick": {name: [0.5]}},
    ):
        with pytest.raises(ValueError, match=words):
            build(device, 1, path=tmp_path, arrays=["a"], **args)
    if "t" in names:
        check(device, 2, path=tmp_path, arrays=["a"], dims=["t"])


def test_unclear_names_are_no_names(tmp_path, device):
    """A dimension that shares its name is not that of another array."""
    values = store(tmp_path, 3, ["x", "x", "t"])
    write_array(tmp_path, "b", np.arange(5.0), dims=("t",))
    write_array(tmp_path, "c", np.arange(9.0), dims=("x",))
    pipe = build(device, 2, path=tmp_path, arrays=["a", "b", "c"], dims=["t"])
    a, b, c = (to_numpy(out) for out in pipe.run())
    same(a, np.ascontiguousarray(values.transpose(2, 0, 1)[:2]), "a")
    assert b.tolist() == [0, 1] and c.tolist() == [list(range(9))] * 2
