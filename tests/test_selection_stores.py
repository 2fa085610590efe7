"""Labels in every kind of store: directories, zip archives, Icechunk repositories, references, each on a disk and on a
server. The library reads them: no other package opens a store, or has to be there."""

from __future__ import annotations

import json
import shutil
import sys
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


CORPUS = Path(__file__).parent / "corpus" / "icechunk"


def samples(path, sel: Any = SEL, **args: Any) -> tuple[int, list[int]]:
    found = dali_zarr.explain(path=path, arrays=["a"], sel=sel, **args)
    return found["samples"], found["outputs"][0]["shape"]


@pytest.fixture
def alone(monkeypatch):
    """The packages that open stores seem to be missing."""
    for package in ("zarr", "obstore", "fsspec", "icechunk", "kerchunk", "s3fs", "aiohttp"):
        monkeypatch.setitem(sys.modules, package, None)


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


@pytest.mark.parametrize("inner", ["", "a folder/store.zarr"])
def test_zip(folder, tmp_path, alone, inner):
    """Also with a folder inside, and on a server."""
    shutil.copytree(folder, tmp_path / "root" / inner, dirs_exist_ok=True)
    shutil.make_archive(str(tmp_path / "store"), "zip", tmp_path / "root")
    place = f"store.zip/{inner}".rstrip("/")
    assert samples(tmp_path / place) == (6, [2])
    with Server(tmp_path) as server:
        assert samples(f"{server.url}/{place}".replace(" ", "%20")) == (6, [2])


def test_a_url_of_a_file(folder, tmp_path, alone):
    assert samples(f"file://{folder}") == (6, [2])
    shutil.copytree(folder, tmp_path / "a b")
    assert samples(f"file://{tmp_path}/a%20b") == (6, [2])


def test_http(folder, tmp_path, alone):
    """Each document is read once for all dimensions of a selection, and the reader's folder keeps the chunks."""
    args = {"storage_options": {"timeout": "10s"}, "cache_dir": tmp_path / "kept"}
    with Server(folder.parent) as server:
        url = f"{server.url}/{folder.name}"
        assert samples(url, **args) == (6, [2])
        counts = server.counts()
        assert counts["GET", f"/{folder.name}/zarr.json"] == 4, "for the shapes, the labels (twice) and what is explained"
        assert [path for _, path in counts if "/c/" in path] == [f"/{folder.name}/{name}/c/0" for name in ("time", "level")]
        assert samples(url, **args) == (6, [2])
        assert not [path for method, path in server.counts() if "/c/" in path and method == "GET"]


def test_s3(folder, s3, s3_options, alone):
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
    with Server(tmp_path) as server:
        assert samples(f"{server.url}/r", storage_options={"snapshot_id": first}) == (6, [2])
        with pytest.raises(ValueError, match="isn't among the coordinates: 1000, 850, 400"):
            samples(f"{server.url}/r")


def test_icechunk_2(alone):
    """A repository that Icechunk 2.3 wrote, in the group ``pressure/spatial``."""
    args = {"arrays": ["pressure/spatial/z"], "sel": {"valid_time": "2020", "pressure_level": [500, 850]}}
    with Server(CORPUS) as server:
        for path in (CORPUS / "labels-v2", f"{server.url}/labels-v2"):
            found = dali_zarr.explain(path=path, **args)
            assert (found["samples"], found["outputs"][0]["shape"]) == (4, [2, 2, 3])


@pytest.mark.parametrize("kind", ["json", "parq"])
def test_virtual_icechunk_and_references_by_http(tmp_path, kind):
    """Coordinates whose chunks are ranges of another file."""
    for module in ("h5netcdf", "kerchunk", "fastparquet", "icechunk"):
        pytest.importorskip(module)
    references = write_references(tmp_path, kind)
    virtual = {"virtual_chunks": f"file://{tmp_path}/"}
    icechunk = sys.modules["icechunk"]
    place = f"file://{tmp_path}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(place, icechunk.local_filesystem_store(str(tmp_path))))
    repo = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path / "r")), config=config, authorize_virtual_chunk_access={place: None}
    )
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    for name, shape, dtype in (("a", (48, 3), "float32"), ("time", (48,), "int64"), ("level", (3,), "int64")):
        attributes = UNITS if name == "time" else {}
        dims = ("time", "level") if name == "a" else (name,)
        group.create_array(
            name, shape=shape, chunks=shape, dtype=dtype, compressors=None, dimension_names=dims, attributes=attributes
        )
        chunk = ["0"] * len(shape)
        _, offset, length = references["refs"][f"{name}/{'.'.join(chunk)}"]
        session.store.set_virtual_ref("/".join([name, "c", *chunk]), f"{place}a.nc", offset=offset, length=length)
    session.commit("virtual")
    assert samples(tmp_path / "r", storage_options=virtual) == (6, [2])
    with Server(tmp_path) as server:
        assert samples(f"{server.url}/r", storage_options=virtual) == (6, [2])
        assert samples(f"{server.url}/refs.{kind}", storage_options=virtual) == (6, [2])


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
    place = "" if damage == "decoding" else "array 'time', chunk time/c/0: "
    words = f"zarr_reader: store {store}: its coordinates can't be read: {place}.*select by position, with isel"
    with pytest.raises(RuntimeError, match=words):
        samples(store)


@pytest.mark.parametrize("kind", ["json", "parq"])
def test_references(tmp_path, kind):
    for module in ("h5netcdf", "kerchunk", "fastparquet"):
        pytest.importorskip(module)
    write_references(tmp_path, kind)
    assert samples(tmp_path / f"refs.{kind}", storage_options={"virtual_chunks": f"file://{tmp_path}"}) == (6, [2])


def write_references(tmp_path: Path, kind: str) -> dict[str, Any]:
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
    references = SingleHdf5ToZarr(str(tmp_path / "a.nc"), inline_threshold=0).translate()
    if kind == "json":
        (tmp_path / "refs.json").write_text(json.dumps(references))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refs_to_dataframe(references, str(tmp_path / "refs.parq"))
    return references


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
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match="dali_zarr: selecting by label needs xarray, which isn't installed: pip install xarray"):
        samples(folder)
