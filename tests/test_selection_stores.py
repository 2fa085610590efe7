"""Labels in every kind of store: directories, zip archives, servers, Icechunk repositories, references."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import dali_zarr
import numpy as np
import pytest
import zarr
from support.remote import upload
from support.server import Server
from support.stores import Layout, write_array

pytest.importorskip("xarray", reason="selection by label needs xarray")

VALUES = np.arange(48 * 3, dtype="float32").reshape(48, 3)
SEL = {"time": slice("2020-01-02", "2020-01-02T05"), "level": [500, 850]}
UNITS = {"units": "hours since 2020-01-01", "calendar": "standard"}


def samples(path, sel: Any = SEL, **args: Any) -> tuple[int, list[int]]:
    found = dali_zarr.explain(path=path, arrays=["a"], sel=sel, **args)
    return found["samples"], found["outputs"][0]["shape"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("kinds") / "store.zarr"
    write(path)
    return path


def write(path: Path) -> None:
    write_array(path, "a", VALUES, layout=Layout((6, 3)), dims=("time", "level"))
    write_array(path, "time", np.arange(48), dims=("time",), attributes=UNITS)
    write_array(path, "level", np.array([1000, 850, 500]), dims=("level",))
    zarr.consolidate_metadata(str(path), zarr_format=3)


def test_zip(folder, tmp_path):
    shutil.make_archive(str(tmp_path / "store"), "zip", folder)
    assert samples(tmp_path / "store.zip") == (6, [2])


def test_a_url_of_a_file(folder):
    assert samples(f"file://{folder}") == (6, [2])


def test_http(folder):
    pytest.importorskip("obstore")
    with Server(folder.parent) as server:
        assert samples(f"{server.url}/{folder.name}", storage_options={"timeout": "10s"}) == (6, [2])


def test_s3(folder, s3, s3_options):
    pytest.importorskip("obstore")
    upload(s3, folder, "selected.zarr")
    assert samples("s3://bucket/selected.zarr", storage_options=s3_options) == (6, [2])


def test_icechunk(tmp_path):
    icechunk = pytest.importorskip("icechunk")
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "r")))
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    for name, values, dims in (("a", VALUES, ("time", "level")), ("time", np.arange(48), ("time",))):
        group.create_array(name, data=values, dimension_names=dims, attributes=UNITS if name == "time" else {})
    group.create_array("level", data=np.array([1000, 850, 500]), dimension_names=("level",))
    first = session.commit("first")
    session = repo.writable_session("main")
    zarr.open_group(session.store)["level"][:] = [1000, 850, 400]
    session.commit("second")
    assert samples(tmp_path / "r", storage_options={"snapshot_id": first}) == (6, [2])
    with pytest.raises(ValueError, match="isn't among the coordinates: 1000, 850, 400"):
        samples(tmp_path / "r")
    words = "coordinates can't be read: .*select by position, with isel"
    with Server(tmp_path) as server, pytest.raises(RuntimeError, match=words):
        samples(f"{server.url}/r")


@pytest.mark.parametrize("damage", ["decoding", "chunk"])
def test_coordinates_that_cant_be_decoded(folder, tmp_path, damage):
    """The message names store and array. What xarray can't decode: times of another calendar that have missing values."""
    store = shutil.copytree(folder, tmp_path / "store")
    if damage == "chunk":
        chunk = next(file for file in (store / "time" / "c").rglob("*") if file.is_file())
        chunk.write_bytes(b"damaged")
    else:
        shutil.rmtree(store / "time")
        attributes = {**UNITS, "calendar": "noleap", "_FillValue": 0}
        write_array(store, "time", np.arange(48), dims=("time",), attributes=attributes)
        zarr.consolidate_metadata(str(store), zarr_format=3)
    words = f"zarr_reader: store {store}: its coordinates can't be read: array 'time': .*select by position, with isel"
    with pytest.raises(RuntimeError, match=words):
        samples(store)


@pytest.mark.parametrize("kind", ["json", "parq"])
def test_references(tmp_path, kind):
    for module in ("h5netcdf", "kerchunk", "fastparquet"):
        pytest.importorskip(module)
    import h5netcdf
    from kerchunk.df import refs_to_dataframe
    from kerchunk.hdf import SingleHdf5ToZarr

    with h5netcdf.File(tmp_path / "a.nc", "w") as file:
        file.dimensions = {"time": 48, "level": 3}
        for name, values in (("a", VALUES), ("time", np.arange(48)), ("level", np.array([1000, 850, 500]))):
            variable = file.create_variable(name, ("time", "level") if name == "a" else (name,), values.dtype)
            variable[...] = values
            if name == "time":
                variable.attrs.update(UNITS)
    references = SingleHdf5ToZarr(str(tmp_path / "a.nc")).translate()
    if kind == "json":
        (tmp_path / "refs.json").write_text(json.dumps(references))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refs_to_dataframe(references, str(tmp_path / "refs.parq"))
    options = {"virtual_chunks": f"file://{tmp_path}"}
    assert samples(tmp_path / f"refs.{kind}", storage_options=options) == (6, [2])


def test_groups(tmp_path):
    """The coordinates of the array's group, or of the nearest group around it."""
    write(tmp_path)
    write_array(tmp_path / "inner", "a", VALUES, dims=("time", "level"))
    write_array(tmp_path / "inner", "level", np.array([1, 2, 3]), dims=("level",))
    assert dali_zarr.explain(path=tmp_path, arrays=["inner/a"], sel={"time": "2020-01-02", "level": 3})["samples"] == 24
    (output,) = dali_zarr.explain(path=tmp_path / "inner", arrays=["a"], sel={"level": [1, 3], "time": slice(5)})["outputs"]
    assert output["shape"] == [2], "without coordinates around it, labels of time are positions"
    write_array(tmp_path / "inner", "time", np.arange(5), dims=("time",))
    with pytest.raises(ValueError, match="array 'inner/time': expected 48 coordinates.* but found 5"):
        dali_zarr.explain(path=tmp_path, arrays=["inner/a"], sel={"time": 3})


def test_a_package_that_is_missing(folder, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match="dali_zarr: selecting by label needs xarray, which isn't installed: pip install xarray"):
        samples(folder)
