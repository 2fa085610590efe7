"""What netCDF-C writes as NCZarr: v2 with `_nczarr_*` attributes, shared dimensions, unlimited ones, filters of HDF5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.configurations import values as random_values
from support.foreign import Foreign, compare, unpack, writer, xarray_values, zarr_python
from support.pipelines import build
from support.stores import metadata

netCDF4 = writer("netCDF4")

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")


def _open(path: Path, mode: str = "nczarr,file", access: str = "w") -> Any:
    return netCDF4.Dataset(f"file://{path}#mode={mode}", access)


def _read(path: Path, name: str) -> np.ndarray:
    """A variable as netCDF-C stores it; a scalar has one element, as in Zarr's metadata."""
    with _open(path, access="r") as dataset:
        dataset.set_auto_maskandscale(False)
        return np.atleast_1d(dataset[name][...])


def _compression(rng: np.random.Generator) -> dict[str, Any]:
    name = str(rng.choice(["none", "none", "zlib", "zlib", "zstd", "bzip2", "blosc_lz", "blosc_lz4", "blosc_lz4hc", "blosc_zstd"]))
    shuffled = bool(rng.random() < 0.7)
    more = {"blosc_shuffle": int(rng.integers(0, 3))} if name.startswith("blosc") else {"shuffle": shuffled}
    options = {} if name == "none" else {"compression": name, "complevel": int(rng.integers(1, 10)), **more}
    return options | ({"fletcher32": True} if rng.random() < 0.2 else {})


def random_variable(rng: np.random.Generator, folder: Path) -> Foreign:
    """A variable of any type and rank, in a group or not, whole or with chunks that are missing."""
    dtype = str(rng.choice(TYPES))
    shape = tuple(int(n) for n in rng.integers(1, 30, int(rng.integers(0, 5))))
    dims = [str(d) for d in rng.permutation(["time", "lat", "x", "levels", "höhe"])[: len(shape)]]
    group = str(rng.choice(["", "", "g/", "deep/er/"]))
    name = group + str(rng.choice(["a", "t 2m", "größe"]))
    options = _compression(rng) if shape else {}
    data = random_values(rng, dtype, shape)
    if "blosc" in str(options):
        # Blosc's filter of netCDF-C fails on chunks that it can't shrink: what is small or noise.
        dtype, shape, dims = "float32", tuple(n + (600 if len(shape) == 1 else 30) for n in shape[:2]), dims[:2]
        data = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
        options |= {"chunksizes": shape, "blosc_shuffle": 1}
    elif shape and rng.random() < 0.8:
        options["chunksizes"] = [int(rng.integers(1, n + 1)) for n in shape]
    if rng.random() < 0.3:
        options["endian"] = str(rng.choice(["little", "big"]))
    # Metadata have six digits of the default fill value of floats, chunks that are written in part all of them.
    fill: Any = [None if np.dtype(dtype).kind in "iu" else 1.5, False, 7][int(rng.integers(0, 3))]
    # Where nothing tells that it was NCZarr, its shuffles are refused: see below.
    shuffled = options.get("compression") == "zlib" and options["shuffle"]
    mode = "nczarr,file" if shuffled else str(rng.choice(["nczarr,file", "zarr,file"]))
    with _open(folder, mode) as dataset:
        place = dataset.createGroup(group.rstrip("/")) if group else dataset
        for i, (dim, extent) in enumerate(zip(dims, shape)):
            (dataset if rng.random() < 0.5 else place).createDimension(dim, None if i == 0 and rng.random() < 0.3 else extent)
        stored = np.dtype(dtype).newbyteorder({"little": "<", "big": ">"}.get(options.get("endian", ""), "="))
        variable = dataset.createVariable(name, stored, dims, fill_value=fill, **options)
        # NCZarr fills big-endian chunks that are written in part with swapped fill values.
        if shape and options.get("endian") != "big" and rng.random() < 0.3:
            # The last along the first dimension too, which may be unlimited: it makes the extent.
            missing = netCDF4.default_fillvals[np.dtype(dtype).str[1:]] if fill is None else fill
            written = np.full(shape, missing).astype(dtype)
            for i in (0, shape[0] - 1):
                variable[i] = written[i] = data[i]
        else:
            variable[...] = written = data
    references = {"what was written": np.atleast_1d(written), "netCDF4": _read(folder, name)}
    document = metadata(folder, name)[1]
    if document["dtype"] not in ("<i1", "<u1", ">i1", ">u1") and not _shuffles(document):
        references["zarr-python"] = zarr_python(folder, name)
    return Foreign(folder, name, references, dims if shape else ["_scalar_"])


def _shuffles(document: dict[str, Any]) -> bool:
    """Whether there is a shuffle of "0 bytes", which NCZarr means to be the type's and zarr-python takes for none."""
    return any(filter["id"] == "shuffle" and filter["elementsize"] == 0 for filter in document["filters"] or ())


@pytest.mark.parametrize("seed", range(20))
def test_random(tmp_path, device, seed):
    """A fixed sample of variables."""
    compare(device, random_variable(np.random.default_rng(seed), tmp_path / "a.zarr"), seed)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("compression", ["zlib", "bzip2"])
def test_default_compression(tmp_path, device, dtype, compression):
    """The default for zlib is a shuffle before it, of whose elements NCZarr says that they have 0 bytes: the type's."""
    values = (np.arange(600).reshape(10, 60) * 3).astype(dtype)
    with _open(tmp_path / "a") as dataset:
        dataset.createDimension("x", 60)
        dataset.createDimension("t", None)
        dataset.createVariable("v", dtype, ("t", "x"), compression=compression, chunksizes=(4, 50))[:] = values
    compare(device, Foreign(tmp_path / "a", "v", {"written": values, "netCDF4": _read(tmp_path / "a", "v")}, ["t", "x"]))


def test_shuffle_of_plain_zarr_is_refused(tmp_path):
    """The mode without NCZarr's attributes: the bytes of netCDF-C and those of numcodecs have the same metadata."""
    with _open(tmp_path / "a", "zarr,file") as dataset:
        dataset.createDimension("x", 60)
        dataset.createVariable("v", "f4", ("x",), compression="zlib")[:] = np.arange(60)
    with pytest.raises(ValueError, match="elementsize: expected the bytes of an element, but found 0.* write 4 into .zarray"):
        build("cpu", 1, path=tmp_path / "a", arrays=["v"])


def _packed(path: Path) -> np.ndarray:
    stored = np.arange(-50, 50, dtype="int16").reshape(10, 10)
    with _open(path) as dataset:
        dataset.createDimension("y", 10)
        dataset.createDimension("x", 10)
        variable = dataset.createVariable("v", "int16", ("y", "x"), fill_value=-7, chunksizes=(3, 4))
        variable.setncatts({"scale_factor": 0.25, "add_offset": 3.0, "units": "K"})
        variable.set_auto_maskandscale(False)
        variable[:] = stored
    return stored


def test_packed(tmp_path, device):
    """`_FillValue`, `scale_factor` and `add_offset` beside the attributes' types."""
    stored = _packed(tmp_path / "a")
    references = {"by hand": unpack(stored, -7, 0.25, 3.0), "xarray": xarray_values(tmp_path / "a", "v")}
    compare(device, Foreign(tmp_path / "a", "v", references, ["y", "x"], {"mask_and_scale": True}))


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_unsigned(tmp_path, device, dtype):
    """NCZarr writes the text "true" as JSON's true, which nobody takes for unsigned: netCDF4 that reads it again, and xarray."""
    stored = np.arange(-60, 60).astype(dtype).reshape(12, 10)
    with _open(tmp_path / "a") as dataset:
        dataset.createDimension("y", 12)
        dataset.createDimension("x", 10)
        variable = dataset.createVariable("v", dtype, ("y", "x"), fill_value=-3)
        variable.setncatts({"scale_factor": 0.5, "_Unsigned": "true"})
        variable.set_auto_maskandscale(False)
        variable[:] = stored
    references = {"by hand": unpack(stored, -3, 0.5), "netCDF4": _masked(tmp_path / "a", "v")}
    if dtype == "int16":
        references["xarray"] = xarray_values(tmp_path / "a", "v")
    compare(device, Foreign(tmp_path / "a", "v", references, ["y", "x"], {"mask_and_scale": True}))


def _masked(path: Path, name: str) -> np.ndarray:
    """A variable as netCDF4 decodes it, NaN where it is masked."""
    with _open(path, access="r") as dataset:
        return np.ma.filled(dataset[name][...].astype("float64"), np.nan)


def test_scalars_and_coordinates(tmp_path, device):
    """NCZarr stores a scalar as one element of a dimension that isn't declared."""
    with _open(tmp_path / "a") as dataset:
        dataset.createDimension("time", None)
        dataset.createVariable("height", "f8", ())[...] = 2.5
        dataset.createVariable("time", "i8", ("time",), chunksizes=(4,))[:] = np.arange(11) * 6
    references = {"written": np.full(1, 2.5), "zarr-python": zarr_python(tmp_path / "a", "height")}
    compare(device, Foreign(tmp_path / "a", "height", references))
    references = {"written": np.arange(11) * 6, "zarr-python": zarr_python(tmp_path / "a", "time")}
    compare(device, Foreign(tmp_path / "a", "time", references, ["time"]))


@pytest.mark.parametrize("version", ["4.8", "4.9"])
def test_older_versions(tmp_path, device, version):
    """netCDF-C 4.8 wrote objects of its own beside Zarr's, 4.9 keys of its own into Zarr's documents, and no fill value."""
    path = tmp_path / "a"
    stored = _packed(path)
    superblock, array = {"version": "2.0.0"}, {"dimrefs": ["/y", "/x"], "storage": "chunked"}
    group = {"dims": {"y": 10, "x": 10}, "vars": ["v"], "groups": []}
    attributes = json.loads((path / "v" / ".zattrs").read_text())
    attributes = {key: value for key, value in attributes.items() if not key.startswith("_nczarr")}
    types = {"types": {"scale_factor": "<f8", "add_offset": "<f8", "_FillValue": "<i2", "units": ">S1"}}
    (path / ".zattrs").unlink()
    if version == "4.8":
        (path / ".nczgroup").write_text(json.dumps(group))
        (path / "v" / ".nczarray").write_text(json.dumps(array))
        (path / "v" / ".nczattr").write_text(json.dumps(types))
        (path / ".nczarr").write_text(json.dumps({"nczarr_version": "1.0.0"}))
    else:
        attributes["_NCZARR_ATTR"] = types
        file, document = metadata(path, "v")
        file.write_text(json.dumps(document | {"fill_value": None, "_NCZARR_ARRAY": array}))
        (path / ".zgroup").write_text(json.dumps({"zarr_format": 2, "_NCZARR_SUPERBLOCK": superblock, "_NCZARR_GROUP": group}))
    (path / "v" / ".zattrs").write_text(json.dumps(attributes))
    compare(device, Foreign(path, "v", {"written": stored, "zarr-python": zarr_python(path, "v")}, ["y", "x"]))
    references = {"by hand": unpack(stored, -7, 0.25, 3.0), "xarray": xarray_values(path, "v")}
    compare(device, Foreign(path, "v", references, ["y", "x"], {"mask_and_scale": True}))


@pytest.mark.parametrize("written", [{"elementsize": "0"}, {"elementsize": "4"}, {}], ids=["4.8", "4.9", "after 4.10"])
def test_shuffles_of_other_versions(tmp_path, device, written):
    """Versions differ in what they say of a shuffle, not in what they do."""
    values = (np.arange(600) * 0.5).reshape(10, 60)
    with _open(tmp_path / "a") as dataset:
        dataset.createDimension("x", 60)
        dataset.createDimension("t", 10)
        dataset.createVariable("v", "f8", ("t", "x"), compression="zlib", chunksizes=(4, 50))[:] = values
    file, document = metadata(tmp_path / "a", "v")
    file.write_text(json.dumps(document | {"filters": [{"id": "shuffle"} | written]}))
    compare(device, Foreign(tmp_path / "a", "v", {"written": values, "netCDF4": _read(tmp_path / "a", "v")}, ["t", "x"]))


def test_scalar_of_4_9(tmp_path, device):
    """One element, but no dimension: as many names as netCDF has of them."""
    with _open(tmp_path / "a") as dataset:
        dataset.createVariable("height", "f8", ())[...] = 2.5
    file, document = metadata(tmp_path / "a", "height")
    file.write_text(json.dumps(document | {"fill_value": None, "_NCZARR_ARRAY": {"dimrefs": [], "storage": "scalar"}}))
    (tmp_path / "a" / "height" / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": [], "_NCZARR_ATTR": {}}))
    references = {"written": np.full(1, 2.5), "zarr-python": zarr_python(tmp_path / "a", "height")}
    compare(device, Foreign(tmp_path / "a", "height", references))


# For the long search by tests/random_foreign.py.
RANDOM = (random_variable,)
