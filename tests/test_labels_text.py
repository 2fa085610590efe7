"""Labels that are text: every type that zarr-python and xarray store, in chunks and in shards, beside what xarray reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dali_zarr
import numcodecs
import numpy as np
import pytest
import zarr
from dali_zarr._selection.axes import Axes
from support.stores import write_array

xarray = pytest.importorskip("xarray")

NAMES = ["DE1", "FR22", "", "日本", "é", "DE10", "x" * 9]
VALUES = np.arange(len(NAMES) * 2, dtype="float32").reshape(2, -1)
# What zarr.create_array is told, by the type of the coordinates.
FIXED, BYTES = np.array(NAMES), np.array([name.encode() for name in NAMES])
KINDS: dict[str, dict[str, Any]] = {
    "<U": {"data": FIXED}, "|S": {"data": BYTES}, "str": {"data": np.array(NAMES, object), "dtype": str},
}


def write(path: Path, zarr_format: int, kind: str, **how: Any) -> None:
    write_array(path, "a", VALUES, zarr_format=zarr_format, dims=("time", "name"))
    given = KINDS[kind]
    if zarr_format == 2:
        how["attributes"] = {"_ARRAY_DIMENSIONS": ["name"]}
    else:
        how["dimension_names"] = ["name"]
    array = zarr.open_group(path, mode="a", zarr_format=zarr_format).create_array(
        "name", shape=(len(NAMES),), dtype=given.get("dtype", given["data"].dtype), **how
    )
    array[:] = given["data"]


def labels(path: Path, name: str = "name") -> np.ndarray:
    axes = Axes.of_reader({"path": str(path), "arrays": ["a"]})
    found = axes.coordinates(name)
    assert found is not None
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [
    {"zarr_format": 2, "chunks": (3,)}, {"zarr_format": 2, "chunks": (20,), "compressors": numcodecs.Blosc()},
    {"zarr_format": 2, "chunks": (2,), "compressors": None}, {"zarr_format": 3, "chunks": (3,)},
    {"zarr_format": 3, "chunks": (2,), "compressors": None}, {"zarr_format": 3, "chunks": (2,), "shards": (4,)},
    {"zarr_format": 3, "chunks": (3,), "compressors": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]},
], ids=str)
def test_labels_are_those_of_xarray(tmp_path, kind, how):
    write(tmp_path, kind=kind, **how)
    with xarray.open_zarr(tmp_path, consolidated=False) as dataset:
        expected = dataset["name"].values
    found = labels(tmp_path)
    assert found.dtype == (object if kind == "str" else expected.dtype)
    assert found.tolist() == expected.tolist()
    label = NAMES[3].encode() if kind == "|S" else NAMES[3]
    told = dali_zarr.explain(path=tmp_path, arrays=["a"], sel={"name": [label]})
    assert told["outputs"][0]["shape"] == [1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_missing_chunks_are_the_fill_value(tmp_path, zarr_format):
    """As zarr-python reads it; xarray masks it in Zarr v2."""
    write(tmp_path, zarr_format, "<U", chunks=(3,), fill_value="none")
    (tmp_path / "name" / ("1" if zarr_format == 2 else "c/1")).unlink()
    with xarray.open_zarr(tmp_path, consolidated=False) as dataset:
        expected = dataset["name"].values
    assert expected.tolist()[:3] == NAMES[:3] and zarr.open_array(tmp_path, path="name")[3] == "none"
    assert list(map(str, labels(tmp_path))) == list(map(str, expected))


def test_labels_of_joined_stores(tmp_path):
    for store in ("one", "two"):
        write(tmp_path / store, 3, "str", chunks=(3,))
    group = zarr.open_group(tmp_path / "two", mode="a")
    group["name"][:2] = np.array(["FR22", "DE1"], object)
    paths = [tmp_path / "one", tmp_path / "two"]
    words = "expected stores with the same coordinates along 'name', but element 0 is DE1 in .*, and FR22 in|FR22"
    with pytest.raises(ValueError, match=words):
        dali_zarr.explain(path=paths, arrays=["a"])
    told = dali_zarr.explain(path=paths, arrays=["a"], sel={"name": ["DE1", "DE10"]})
    assert told["outputs"][0]["shape"] == [2]


@pytest.mark.parametrize(("change", "words"), [
    ({"dtype": [["a", "<i4"], ["b", "<f4"]], "fill_value": None}, 'found [["a","<i4"],["b","<f4"]]'),
    ({"dtype": "|O", "filters": [{"id": "json2"}], "fill_value": None}, 'but found "|O"'),
    ({"dtype": "|V4", "fill_value": None}, 'but found "|V4"'),
    ({"chunks": [1 << 40]}, "expected chunks of at most 536870912 bytes of text"),
    ({"compressor": {"id": "unknown"}}, "unknown"),
])
def test_what_cant_be_labels(tmp_path, change, words):
    write(tmp_path, 2, "<U", chunks=(7,))
    document = json.loads((tmp_path / "name" / ".zarray").read_text())
    (tmp_path / "name" / ".zarray").write_text(json.dumps(document | change))
    place = f"zarr_reader: store {tmp_path}: its coordinates can't be read: array 'name': "
    with pytest.raises(RuntimeError, match=place + ".*select by position, with isel") as caught:
        dali_zarr.explain(path=tmp_path, arrays=["a"], sel={"name": ["DE1"]})
    assert words in str(caught.value)
    if "dtype" in change:
        assert "expected labels that are numbers, times or text" in str(caught.value)


@pytest.mark.parametrize("kind", ["<U", "str"])
def test_damaged_text(tmp_path, kind):
    write(tmp_path, 2, kind, chunks=(7,), compressors=None)
    chunk = tmp_path / "name" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(RuntimeError, match="its coordinates can't be read: array 'name', chunk name/0: .*isel"):
        dali_zarr.explain(path=tmp_path, arrays=["a"], sel={"name": ["DE1"]})
