"""What xarray writes: packed and masked variables, times, unsigned integers, stores that grew by appended parts, deep groups."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from support.configurations import values as random_values
from support.foreign import Foreign, compare, unpack, xarray_values, zarr_python
from support.pipelines import check
from support.stores import DTYPES

# They are the point of some tests: names and types that others may not know.
pytestmark = pytest.mark.filterwarnings("ignore")

SHAPE = (10, 12, 14)
DIMS = ("time", "lat", "lon")


def _write(dataset: xarray.Dataset, path: Path, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(str(path), **({"consolidated": False} | options))


def _both(path: Path, name: str, dims: list[str], **more: np.ndarray) -> list[Foreign]:
    """A variable as it is stored and as it is decoded."""
    stored = {"zarr-python": zarr_python(path, name), "xarray": xarray_values(path, name, mask_and_scale=False)}
    decoded = {"xarray": xarray_values(path, name)} | more
    if len(decoded) < 2:
        decoded["xarray, from another group"] = xarray_values(path / name.rpartition("/")[0], name.rpartition("/")[2])
    return [Foreign(path, name, stored, dims), Foreign(path, name, decoded, dims, {"mask_and_scale": True})]


def random_variable(rng: np.random.Generator, folder: Path) -> Foreign:
    """A variable of any rank, in a group or not, packed or not, written in one piece, in regions or appended."""
    zarr_format = int(rng.integers(2, 4))
    shape = tuple(int(n) for n in rng.integers(1, 20, int(rng.integers(1, 5))))
    dims = [str(d) for d in rng.permutation(["time", "lat", "x", "level of model", "höhe"])[: len(shape)]]
    name = str(rng.choice(["t2m", "Temperatur (2 m)", "größe", "a.b", "0"]))
    group = str(rng.choice(["", "", "g", "deep/er/group", "in Arbeit/ä"]))
    dtype = str(rng.choice([d for d in DTYPES if d != "bool"]))
    encoding: dict[str, Any] = {"chunks": tuple(int(rng.integers(1, n + 1)) for n in shape)}
    if zarr_format == 3 and rng.random() < 0.3:
        encoding["shards"] = tuple(c * int(rng.integers(1, 4)) for c in encoding["chunks"])
    packed = bool(rng.random() < 0.6)
    if packed:
        stored = str(rng.choice(["int8", "uint8", "int16", "uint16", "int32"]))
        values = rng.integers(0, 100, shape).astype("float64") * 0.5
        values[rng.random(shape) < 0.1] = np.nan
        encoding |= {"dtype": stored, "_FillValue": 101, "scale_factor": 0.5}
        if rng.random() < 0.5:
            encoding["add_offset"] = 1.0
            values += 1.0
    else:
        values = random_values(rng, dtype, shape)
        if values.dtype.kind == "f" and rng.random() < 0.5:
            encoding["_FillValue"] = [np.nan, 0.0, None][int(rng.integers(0, 3))]
    dataset = xarray.Dataset({name: (dims, values)}, attrs={"title": "ö"})
    options: dict[str, Any] = {"group": group or None, "zarr_format": zarr_format, "consolidated": bool(rng.random() < 0.5)}
    how = str(rng.choice(["whole", "whole", "append", "region"]))
    # Parts must end where chunks or shards do.
    piece = encoding.get("shards", encoding["chunks"])[0]
    if how == "append" and shape[0] > piece:
        parts = [dataset.isel({dims[0]: slice(i, i + piece)}) for i in range(0, shape[0], piece)]
        _write(parts[0], folder, encoding={name: encoding}, **options)
        for part in parts[1:]:
            _write(part, folder, append_dim=dims[0], **options)
    elif how == "region":
        _write(dataset, folder, encoding={name: encoding}, compute=True, **options)
        part = slice(0, min(piece, shape[0]))
        changed = dataset.isel({dims[0]: part}) * (1 if dtype == "bool" else 0)
        _write(changed.astype(dataset[name].dtype), folder, region={dims[0]: part}, **options)
    else:
        _write(dataset, folder, encoding={name: encoding}, **options)
    path = f"{group}/{name}".lstrip("/")
    more = {}
    stored_values = zarr_python(folder, path)
    if packed:
        more["by hand"] = unpack(stored_values, 101, 0.5, encoding.get("add_offset", 0.0))
        # What decodes to float32 in xarray: small integers with a scale alone.
        more["by hand"] = more["by hand"].astype(xarray_values(folder, path).dtype)
    return _both(folder, path, dims, **more)[int(rng.integers(0, 2))]


@pytest.mark.parametrize("seed", range(16))
def test_random(tmp_path, device, seed):
    """A fixed sample of variables."""
    compare(device, random_variable(np.random.default_rng(seed), tmp_path / "a.zarr"), seed)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [True, False])
def test_forecast(tmp_path, device, zarr_format, consolidated):
    """Coordinates, times, a land-sea mask of bool, a scalar, and variables that are packed in different ways."""
    rng = np.random.default_rng(0)
    fields = rng.standard_normal(SHAPE).cumsum(0)
    hours = np.datetime64("2020-02-28T18:00", "ns") + np.arange(10) * np.timedelta64(6, "h")
    dataset = xarray.Dataset(
        {
            "packed": (DIMS, np.where(rng.random(SHAPE) < 0.1, np.nan, fields)), "raw": (DIMS, fields.astype("float32")),
            "unsigned": (DIMS, np.round(fields.clip(0, 60) * 2) / 2), "mask": (DIMS[1:], fields[0] > 0),
            "step": ("time", np.arange(10) * np.timedelta64(6, "h")), "height": ((), np.float32(2.0)),
        },
        coords={"time": hours, "lat": np.linspace(60, 49, 12), "lon": np.linspace(0, 13, 14, dtype="float32")},
    )
    encoding: dict[str, Any] = {
        "packed": {"dtype": "int16", "scale_factor": 0.01, "add_offset": 3.5, "_FillValue": -32768, "chunks": (1, 12, 7)},
        "unsigned": {"dtype": "uint8", "scale_factor": 0.5, "_FillValue": 255},
        "time": {"units": "hours since 1900-01-01", "dtype": "int32"}, "raw": {"chunks": (3, 5, 14)},
    }
    if zarr_format == 2:
        encoding["unsigned"] = {"dtype": "int8", "scale_factor": 0.5, "_FillValue": -1, "_Unsigned": "true"}
    path = tmp_path / "forecast.zarr"
    _write(dataset, path, zarr_format=zarr_format, consolidated=consolidated, encoding=encoding)
    for name in ("packed", "raw", "unsigned", "mask", "time", "lat", "lon", "step"):
        for number, array in enumerate(_both(path, name, list(dataset[name].dims))):
            compare(device, array, number, tries=2)
    check(device, 3, path=path, arrays=["packed", "raw", "mask"], dims=["time"], window=[2], step=[1], mask_and_scale=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_scalar(tmp_path, device, zarr_format):
    """A variable without a dimension, alone."""
    _write(xarray.Dataset({"height": ((), np.float32(2.0))}), tmp_path / "a", zarr_format=zarr_format)
    for array in _both(tmp_path / "a", "height", []):
        compare(device, array)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_floats(tmp_path, device, zarr_format):
    """float32 data with a scale and an offset, as unit conversions leave them."""
    dataset = xarray.Dataset({"t": (DIMS, np.random.default_rng(0).standard_normal(SHAPE).astype("float32"))})
    encoding = {"t": {"scale_factor": 0.5, "add_offset": 273.15, "dtype": "float32", "_FillValue": np.float32(-999)}}
    _write(dataset, tmp_path / "a", zarr_format=zarr_format, encoding=encoding)
    for array in _both(tmp_path / "a", "t", list(DIMS)):
        compare(device, array)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["int16", "float32", "int64"])
def test_integer_scales(tmp_path, device, zarr_format, dtype):
    """A scale factor that is an integer in the attributes; xarray's type of the result follows from it."""
    values = np.arange(10 * 12, dtype=dtype).reshape(10, 12)
    dims = {"dimension_names": ("y", "x")} if zarr_format == 3 else {}
    zarr.create_array(
        str(tmp_path / "a"), name="t", data=values, chunks=(4, 5), zarr_format=zarr_format, fill_value=None, **dims,
        attributes={"scale_factor": 10} | ({} if dims else {"_ARRAY_DIMENSIONS": ["y", "x"]}),
    )
    expected = xarray_values(tmp_path / "a", "t")
    references = {"xarray": expected, "by hand": (values * 10).astype(expected.dtype)}
    compare(device, Foreign(tmp_path / "a", "t", references, ["y", "x"], {"mask_and_scale": True}))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_tree(tmp_path, device, zarr_format):
    """A tree of groups, one of them without variables."""
    tree = xarray.DataTree.from_dict(
        {
            "/": xarray.Dataset({"top": ("x", np.arange(7))}), "/a/b/c": xarray.Dataset({"deep": (("y", "x"), np.ones((4, 7)))}),
            "/leer": xarray.Dataset(attrs={"n": 1}),
        }
    )
    tree.to_zarr(str(tmp_path / "t"), zarr_format=zarr_format, consolidated=False)
    for name, dims in (("top", ["x"]), ("a/b/c/deep", ["y", "x"])):
        for array in _both(tmp_path / "t", name, dims):
            compare(device, array)


# For the long search by tests/random_foreign.py.
RANDOM = (random_variable,)
